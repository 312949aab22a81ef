"""Starting the studio: where it listens, who may come in, what it may hold, and that nothing leaves the machine."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gamlens.errors import GamlensError
from gamlens.lens import Lens
from gamlens.studio import home
from gamlens.studio.desk import Desk
from gamlens.studio.samples import collect
from gamlens.studio.shelf import Shelf
from gamlens.studio.state import MOST_BYTES, MOST_VISITS, Visits
from gamlens.studio.style import CSS

if TYPE_CHECKING:
    import gradio as gr

EMBEDDED = "efficientnet_lite0"
LOCAL = "127.0.0.1"
THREADS, WAITING = 8, 64
FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica", "Arial", "sans-serif"]
MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; font-src 'self' data:; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval'; connect-src 'self' data: blob:; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'"
)
OUTSIDE = ("file=http", "/proxy=", "deep_link")
Models = Lens | str | Mapping[str, Lens | str]


@dataclass(frozen=True, eq=False)
class Studio:
    """A running studio: its address, and `close()`. As a context manager it closes itself."""

    url: str
    desk: Desk
    page: gr.Blocks
    folder: Path
    ended: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self) -> None:
        """Until the process is interrupted or told to end; photos are deleted either way."""

        def stop(number: int, frame: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGTERM, stop) if threading.current_thread() is threading.main_thread() else None
        try:
            while not self.ended.wait(0.5):
                pass
        except KeyboardInterrupt:
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
            self.desk.visits.clear()
            home.leave()

    def __enter__(self) -> Studio:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def launch(
    models: Models = EMBEDDED,
    *,
    host: str = LOCAL,
    port: int | None = None,
    auth: tuple[str, str] | None = None,
    browser: bool = False,
    visits: int = MOST_VISITS,
    block: bool = False,
) -> Studio:
    """Open the studio on a lens, a model's name or `file.py:build`, or several of them by name.

    It listens on this machine alone; `host="0.0.0.0"` opens it to others, and then give `auth=(user, password)`.
    `visits`: how many visitors' photos are kept in memory at a time. `block=True` returns when it is interrupted.
    """
    try:
        from gamlens.studio.page import build
    except ImportError as error:
        if str(error.name).split(".")[0] != "gradio":
            raise
        raise GamlensError("The studio needs gradio: pip install 'gamlens[studio]'.") from error

    given = _given(models)
    shelf = Shelf(given, anything=_local(host) and auth is None)
    shelf.lens(shelf.first)
    folder = home.enter()
    try:
        samples = collect(folder / "examples")
        desk = Desk(shelf, Visits(visits, ours=samples.files.values()))
        page = build(desk, samples, welcome=isinstance(given[shelf.first], str))
        url = _serve(page, host, port, auth, browser)
    except OSError as error:
        home.leave()
        raise GamlensError(f"Cannot listen on {host}:{port or ''}: {error}. Give another --port or --host.") from error
    except BaseException:
        home.leave()
        raise
    studio = Studio(url, desk, page, folder)
    if block:
        studio.wait()
    return studio


def _serve(page: gr.Blocks, host: str, port: int | None, auth: tuple[str, str] | None, browser: bool) -> str:
    """Start listening; everything that would reach out, or let in more than the page, is off."""
    page.queue(max_size=WAITING, default_concurrency_limit=THREADS // 2)
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
        max_threads=THREADS,
        max_file_size=MOST_BYTES,
        allowed_paths=[],
        footer_links=[],
        theme=_theme(),
        css=CSS,
        app_kwargs={
            "middleware": [(Walls, (_local(host),), {})],
            "docs_url": None,
            "redoc_url": None,
            "openapi_url": None,
        },
    )
    return str(url)


def _theme() -> Any:
    """Quiet labels, one strong colour that white text can be read on, and fonts of the machine itself."""
    import gradio as gr

    theme = gr.themes.Soft(
        primary_hue="indigo", secondary_hue="indigo", neutral_hue="slate", font=FONTS, font_mono=MONO
    )
    values = {
        "block_title_background_fill": ("transparent", "transparent"),
        "block_title_text_color": ("*body_text_color_subdued", "*body_text_color_subdued"),
        "block_label_background_fill": ("*background_fill_primary", "*background_fill_primary"),
        "block_label_text_color": ("*body_text_color_subdued", "*body_text_color_subdued"),
        "body_text_color_subdued": ("*neutral_600", "*neutral_300"),
        "body_background_fill": ("*neutral_50", "*neutral_950"),
        "checkbox_label_background_fill_selected": ("*primary_600", "*primary_600"),
        "checkbox_background_color_selected": ("*primary_600", "*primary_600"),
        "slider_color": ("*primary_600", "*primary_400"),
    }
    light = {name: value for name, (value, _) in values.items()}
    dark = {f"{name}_dark": value for name, (_, value) in values.items()}
    return theme.set(**light, **dark, color_accent="*primary_600", block_title_padding="0")


class Walls:
    """Around every request: the browser is told to fetch nothing from elsewhere, and no address is fetched for it.

    A `local` studio answers only to this machine's own names, so that no other site's name can be pointed at it.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], local: bool) -> None:
        self.app, self.local = app, local

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        async def guarded(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                kept = [(name, value) for name, value in event["headers"] if name.lower() != b"content-security-policy"]
                event["headers"] = [
                    *kept,
                    (b"content-security-policy", POLICY.encode()),
                    (b"referrer-policy", b"no-referrer"),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(event)

        path = str(scope.get("path", "")).lower()
        asked = dict(scope.get("headers", ())).get(b"host", b"").decode("latin-1")
        stranger = self.local and not _local(asked.rsplit(":", 1)[0].strip("[]"))
        if scope["type"] == "http" and (stranger or any(part in path for part in OUTSIDE)):
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"Not here: this studio is for its own page alone."})
            return
        await self.app(scope, receive, guarded if scope["type"] == "http" else send)


def _given(models: Models) -> dict[str, Lens | str]:
    if isinstance(models, Lens):
        return {models.name: models}
    if isinstance(models, str):
        return {models: models}
    if isinstance(models, Mapping) and models and all(isinstance(item, Lens | str) for item in models.values()):
        return dict(models)
    raise GamlensError(f"The studio takes a Lens, a model's name, or a dict of them by name; found {models!r:.80}.")


def _local(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return False
