"""Starts and stops the studio: address, login, limits, and settings that keep all data on this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gamlens.errors import GamlensError, needs_package, warn
from gamlens.index.index import Index
from gamlens.lens import Lens
from gamlens.models import DEFAULT_MODEL
from gamlens.models.devices import AUTO
from gamlens.studio.access_rules import AccessRules, is_loopback
from gamlens.studio.actions import Actions
from gamlens.studio.address import LOCALHOST, Address, free_address
from gamlens.studio.example_photos import copy_examples
from gamlens.studio.freed_memory import return_freed_memory
from gamlens.studio.html_fragments import static_file
from gamlens.studio.model_cache import ModelCache
from gamlens.studio.search_actions import SearchActions
from gamlens.studio.searched_indexes import SearchedIndexes
from gamlens.studio.security import SecurityMiddleware
from gamlens.studio.session import MOST_SESSIONS, Sessions
from gamlens.studio.temp_folder import TEMP_DIR
from gamlens.studio.uploads import MOST_BYTES, SWEEP_SECONDS, UploadedFiles

if TYPE_CHECKING:
    import gradio as gr

SERVER_THREADS, MOST_WAITING = 8, 64
PORT_TRIES = 8
StudioModels = Lens | str | Mapping[str, Lens | str]


@dataclass(frozen=True, eq=False)
class Studio(AbstractContextManager["Studio"]):
    """A running studio. `url` is its address; `close()`, or leaving it as a context manager, stops it."""

    url: str
    actions: Actions
    page: gr.Blocks
    folder: Path
    ended: threading.Event = field(default_factory=threading.Event, repr=False)
    cleanup: ExitStack = field(default_factory=ExitStack, repr=False)

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

    def sweep(self) -> None:
        """End idle sessions, delete uploads nobody uses, and give freed memory back, until the studio is closed."""
        while not self.ended.wait(SWEEP_SECONDS):
            self.actions.sessions.sweep()
            return_freed_memory()

    def close(self) -> None:
        """Stop the server and delete the photos of all visitors."""
        if not self.ended.is_set():
            self.ended.set()
            self.actions.models.close()
            self.page.close(verbose=False)
            self.actions.sessions.clear()
            self.cleanup.close()
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
    public_url: str | None = None,
    device: str = AUTO,
    index: Index | str | os.PathLike[str] | None = None,
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
        public_url: The address of the page in browsers, such as "https://example.org/studio", if it differs from the
            address listened on: that of a reverse proxy, or another name of this machine. By default the environment
            variable GRADIO_ROOT_PATH.
        device: Where models that are given by name run; "auto" is a GPU where there is one, else the CPU. A lens stays
            where it is.
        index: What the tab "Search" searches: an Index that was opened with its lens, whose model becomes the first one
            of the studio; or the folder of an index that the first model made. By default some example photos.

    Returns:
        The running studio, with `.url` and `.close()`.
    """
    try:
        from gamlens.studio.gradio_page import build_page
    except ImportError as error:
        package = str(error.name).partition(".")[0]
        if package not in ("gradio", "gradio_client", "jinja2"):
            raise
        raise GamlensError(needs_package("The studio", package, extra="studio", found=str(error))) from error

    given, address = _given(models), free_address(host, port)
    if isinstance(index, Index):
        own = index.lens
        given = {own.name: own, **{name: model for name, model in given.items() if name != own.name}}
    rules = _access_rules(address.host.strip("[]"), auth, public_url)
    cache = ModelCache(given, any_name=rules.only_this_machine and auth is None, device=device)
    first = cache.lens(cache.first)
    folder, cleanup = TEMP_DIR.acquire(), ExitStack()
    try:
        examples = copy_examples(folder / "examples")
        offered = examples.of("search")
        if index is None:
            indexes = SearchedIndexes(examples.files, examples.columns)
        else:
            searched = index if isinstance(index, Index) else cleanup.enter_context(Index.open(index, first))
            indexes = SearchedIndexes(examples.files, given=searched)
            offered = indexes.offered(Path(cleanup.enter_context(TemporaryDirectory(prefix="indexed-", dir=folder))))
        kept = [*examples.files.values(), *(file for _, files in offered.values() for file in files)]
        actions = Actions(cache, Sessions(visits, folder=folder, keep=kept))
        search = SearchActions(actions, indexes, offered)
        page = build_page(actions, search, examples, welcome=isinstance(given[cache.first], str))
        serve = partial(_serve, page, auth=auth, guard=(rules, actions.sessions.files), visits=visits)
        address = _served_at(address, serve, others=port is None)
    except BaseException as error:
        cleanup.close()
        TEMP_DIR.release()
        if not isinstance(error, OSError):
            raise
        raise GamlensError(f"Cannot listen on {address.url}: {error}. Give another --port or --host.") from error
    studio = Studio(address.url, actions, page, folder, cleanup=cleanup)
    threading.Thread(target=studio.sweep, name="gamlens studio sweep", daemon=True).start()
    if browser:
        webbrowser.open(studio.url)
    if block:
        studio.wait()
    return studio


def _access_rules(host: str, auth: tuple[str, str] | None, public_url: str | None) -> AccessRules:
    """The rules for requests. Warns if everybody who can reach this machine can use the studio."""
    public = public_url if public_url is not None else os.environ.get("GRADIO_ROOT_PATH", "")
    rules = AccessRules(host, auth is not None, public, notebook=_in_notebook())
    if auth is None and not rules.only_this_machine:
        warn(
            f"Anyone who can reach this machine at {rules.reached_at} can use the studio: set auth=(user, password), "
            "or on the command line --auth USER:PASSWORD."
        )
    if public_url is not None and (urlsplit(public).scheme not in ("http", "https") or not urlsplit(public).hostname):
        raise GamlensError(
            f"public_url is the address of the page in browsers, such as https://example.org/studio; found {public!r}."
        )
    if not is_loopback(host):
        _ = rules.own_names  # asks for them now, not while a visitor waits
    return rules


def _in_notebook() -> bool:
    """Whether this code runs in IPython, where gradio shows the page in a frame below the cell."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _served_at(address: Address, serve: Callable[[Address], None], *, others: bool) -> Address:
    """Serve at an address, or, if `others` are allowed, at one whose port nobody has taken meanwhile; return it."""
    for _ in range(PORT_TRIES if others else 0):
        try:
            serve(address)
        except OSError:
            address = free_address(address.host)
        else:
            return address
    serve(address)
    return address


def _serve(
    page: gr.Blocks,
    address: Address,
    *,
    auth: tuple[str, str] | None,
    guard: tuple[AccessRules, UploadedFiles],
    visits: int,
) -> None:
    """Start the server. Sharing, monitoring and every other entry than the page are switched off."""
    page.queue(max_size=MOST_WAITING, default_concurrency_limit=SERVER_THREADS // 2, api_open=False)
    page.launch(
        server_name=address.host,
        server_port=address.port,
        root_path=guard[0].public_url or None,
        auth=auth,
        inbrowser=False,
        prevent_thread_lock=True,
        quiet=True,
        share=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
        run_history=False,
        state_session_capacity=4 * visits,
        max_threads=SERVER_THREADS,
        max_file_size=MOST_BYTES,
        allowed_paths=[],
        footer_links=[],
        _frontend=False,  # else gradio gives up if its page does not come within 3 s, as on a machine under load
        theme=_theme(),
        css=static_file("studio.css"),
        app_kwargs={
            "middleware": [(SecurityMiddleware, guard, {})],
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
