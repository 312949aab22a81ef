"""Starting the studio: where it listens, who may come in, what it may hold, and that nothing leaves the machine."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gamlens.errors import GamlensError
from gamlens.lens import Lens
from gamlens.models import DEFAULT_MODEL
from gamlens.studio.actions import Actions
from gamlens.studio.example_photos import copy_examples
from gamlens.studio.html_fragments import static_file
from gamlens.studio.model_cache import ModelCache
from gamlens.studio.security import SecurityMiddleware, is_loopback
from gamlens.studio.session import MOST_SESSIONS, Sessions
from gamlens.studio.uploads import MOST_BYTES, TEMP_DIR

if TYPE_CHECKING:
    import gradio as gr

LOCALHOST = "127.0.0.1"
SERVER_THREADS, MOST_WAITING = 8, 64
StudioModels = Lens | str | Mapping[str, Lens | str]


@dataclass(frozen=True, eq=False)
class Studio(AbstractContextManager["Studio"]):
    """A running studio: its address, and `close()`. As a context manager it closes itself."""

    url: str
    actions: Actions
    page: gr.Blocks
    folder: Path
    ended: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self) -> None:
        """Until the process is interrupted or told to end; photos are deleted either way."""
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, signal.default_int_handler) if main else None
        try:
            with suppress(KeyboardInterrupt):
                while not self.ended.wait(0.5):
                    pass
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)
            self.close()

    def close(self) -> None:
        """Stop serving; every visit's photos are deleted."""
        if not self.ended.is_set():
            self.ended.set()
            self.page.close(verbose=False)
            self.actions.sessions.clear()
            TEMP_DIR.release()

    def __exit__(self, *_: object) -> None:
        self.close()


def launch(
    models: StudioModels = DEFAULT_MODEL,
    *,
    host: str = LOCALHOST,
    port: int | None = None,
    auth: tuple[str, str] | None = None,
    browser: bool = False,
    visits: int = MOST_SESSIONS,
    block: bool = False,
) -> Studio:
    """Open the studio in the browser's reach and return at once.

    Args:
        models: A lens, a model's name or `file.py:build`, or a dict of several of them by name.
        host: Where to listen. By default only this machine can open the page; "0.0.0.0" lets others in.
        port: The port; by default a free one from 7860 on.
        auth: (user, password) that visitors must give. Set it where others are let in.
        browser: Whether to open the page in this machine's browser.
        visits: How many visitors' photos are kept in memory at a time.
        block: Whether to return only when the studio is interrupted.

    Returns:
        The running studio, with `.url` and `.close()`.
    """
    try:
        from gamlens.studio.gradio_page import build_page
    except ImportError as error:
        if str(error.name).split(".")[0] != "gradio":
            raise
        raise GamlensError("The studio needs gradio: pip install 'gamlens[studio]'.") from error

    given = _given(models)
    cache = ModelCache(given, any_name=is_loopback(host) and auth is None)
    cache.lens(cache.first)
    folder = TEMP_DIR.acquire()
    try:
        examples = copy_examples(folder / "examples")
        actions = Actions(cache, Sessions(visits, keep=examples.files.values()))
        page = build_page(actions, examples, welcome=isinstance(given[cache.first], str))
        url = _serve(page, host, port, auth, browser)
    except BaseException as error:
        TEMP_DIR.release()
        if not isinstance(error, OSError):
            raise
        raise GamlensError(f"Cannot listen on {host}:{port or ''}: {error}. Give another --port or --host.") from error
    studio = Studio(url, actions, page, folder)
    if block:
        studio.wait()
    return studio


def _serve(page: gr.Blocks, host: str, port: int | None, auth: tuple[str, str] | None, browser: bool) -> str:
    """Start listening; everything that would reach out, or let in more than the page, is off."""
    page.queue(max_size=MOST_WAITING, default_concurrency_limit=SERVER_THREADS // 2)
    _, url, _ = page.launch(
        server_name=host,
        server_port=port,
        auth=auth,
        inbrowser=browser,
        prevent_thread_lock=True,
        quiet=True,
        share=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
        max_threads=SERVER_THREADS,
        max_file_size=MOST_BYTES,
        allowed_paths=[],
        footer_links=[],
        theme=_theme(),
        css=static_file("studio.css"),
        app_kwargs={
            "middleware": [(SecurityMiddleware, (is_loopback(host),), {})],
            "docs_url": None,
            "redoc_url": None,
            "openapi_url": None,
        },
    )
    return str(url)


def _theme() -> Any:
    """Quiet labels, one strong colour that white text can be read on, and fonts of the machine itself."""
    import gradio as gr

    theme = json.loads(static_file("theme.json"))
    return gr.themes.Soft(**theme["base"]).set(**theme["variables"])


def _given(models: StudioModels) -> dict[str, Lens | str]:
    if isinstance(models, Lens):
        return {models.name: models}
    if isinstance(models, str):
        return {models: models}
    if isinstance(models, Mapping) and models and all(isinstance(item, Lens | str) for item in models.values()):
        return dict(models)
    raise GamlensError(f"The studio takes a Lens, a model's name, or a dict of them by name; found {models!r:.80}.")
