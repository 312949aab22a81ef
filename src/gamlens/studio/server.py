"""Starts and stops the studio: address, login, limits, and settings that keep all data on this machine."""

from __future__ import annotations

import json
import signal
import threading
import webbrowser
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gamlens.errors import GamlensError
from gamlens.lens import Lens
from gamlens.models import DEFAULT_MODEL
from gamlens.studio.actions import Actions
from gamlens.studio.address import LOCALHOST, Address, free_address
from gamlens.studio.example_photos import copy_examples
from gamlens.studio.html_fragments import static_file
from gamlens.studio.model_cache import ModelCache
from gamlens.studio.security import SecurityMiddleware, is_loopback
from gamlens.studio.session import MOST_SESSIONS, Sessions
from gamlens.studio.uploads import MOST_BYTES, TEMP_DIR

if TYPE_CHECKING:
    import gradio as gr

SERVER_THREADS, MOST_WAITING = 8, 64
StudioModels = Lens | str | Mapping[str, Lens | str]


@dataclass(frozen=True, eq=False)
class Studio(AbstractContextManager["Studio"]):
    """A running studio. `url` is its address; `close()`, or leaving it as a context manager, stops it."""

    url: str
    actions: Actions
    page: gr.Blocks
    folder: Path
    ended: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self) -> None:
        """Wait until the process gets SIGINT or SIGTERM, then close the studio, which deletes all photos."""
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
        """Stop the server and delete the photos of all visitors."""
        if not self.ended.is_set():
            self.ended.set()
            self.actions.models.close()
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
    """Start the studio and return at once.

    Args:
        models: A lens, the name of a model or `file.py:build`; or a dict of several of these by the name to show.
        host: The address to listen on. By default only this machine can open the page; "0.0.0.0" (IPv4) or "::" (IPv6)
            lets others in.
        port: The port; by default the first free one from 7860.
        auth: (user, password) that visitors must enter. Set it if other machines can open the page.
        browser: Whether to open the page in this machine's browser.
        visits: How many visitors are kept in memory at once; the least recently used one is forgotten first.
        block: Whether to wait until the studio is interrupted before returning.

    Returns:
        The running studio, with `.url` and `.close()`.
    """
    try:
        from gamlens.studio.gradio_page import build_page
    except ImportError as error:
        if str(error.name).split(".")[0] != "gradio":
            raise
        raise GamlensError("The studio needs gradio: pip install 'gamlens[studio]'.") from error

    given, address = _given(models), free_address(host, port)
    cache = ModelCache(given, any_name=is_loopback(address.host.strip("[]")) and auth is None)
    cache.lens(cache.first)
    folder = TEMP_DIR.acquire()
    try:
        examples = copy_examples(folder / "examples")
        actions = Actions(cache, Sessions(visits, folder=folder, keep=examples.files.values()))
        page = build_page(actions, examples, welcome=isinstance(given[cache.first], str))
        _serve(page, address, auth)
    except BaseException as error:
        TEMP_DIR.release()
        if not isinstance(error, OSError):
            raise
        raise GamlensError(f"Cannot listen on {address.url}: {error}. Give another --port or --host.") from error
    studio = Studio(address.url, actions, page, folder)
    if browser:
        webbrowser.open(studio.url)
    if block:
        studio.wait()
    return studio


def _serve(page: gr.Blocks, address: Address, auth: tuple[str, str] | None) -> None:
    """Start the server. Sharing, monitoring and every other entry than the page are switched off."""
    page.queue(max_size=MOST_WAITING, default_concurrency_limit=SERVER_THREADS // 2)
    page.launch(
        server_name=address.host,
        server_port=address.port,
        auth=auth,
        inbrowser=False,
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
            "middleware": [(SecurityMiddleware, (is_loopback(address.host.strip("[]")),), {})],
            "docs_url": None,
            "redoc_url": None,
            "openapi_url": None,
        },
    )


def _theme() -> Any:
    """The colours and fonts of theme.json. Fonts are those of the visitor's system, so none is downloaded."""
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
