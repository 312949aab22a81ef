"""The site in a real browser: phone and desktop widths, both palettes, search, and the picture on the front page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
PATIENCE = 90_000  # milliseconds
PAGES = ("index", "tutorials/class", "api/lens", "gallery", "method", "leaderboards/resnet50")
GROUND = "getComputedStyle(document.body).backgroundColor"


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that prints nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


class Window:
    """A window on the site, with all that went wrong in it and all that was asked of other places."""

    def __init__(self, browser: Any, address: str, *, width: int = 1280, scheme: str = "light") -> None:
        self.address = address
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.troubles: list[str] = []
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("console", lambda said: self.troubles.append(said.text) if said.type == "error" else None)
        self.page.on("request", lambda request: self.asked(request.url))

    def asked(self, url: str) -> None:
        if not url.startswith((self.address, "data:", "blob:")):
            self.troubles.append(f"asked for {url}")

    def open(self, page: str) -> Any:
        self.page.goto(f"{self.address}/{page}.html", wait_until="load")
        return self.page

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_window(browser: Any, address: str, width: int) -> None:
    with Window(browser, address, width=width) as window:
        for name in PAGES:
            page = window.open(name)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert page.locator("h1").first.is_visible(), name
            broken = "all => all.filter(one => one.complete && !one.naturalWidth).map(one => one.src)"
            assert page.eval_on_selector_all("img", broken) == [], name
            if name == "index" and width == 1280:
                cut = "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText)"
                assert page.eval_on_selector_all("pre code", cut) == []
        assert window.troubles == []


@pytest.mark.parametrize("from_disk", [False, True], ids=["server", "disk"])
def test_search_finds_a_name_with_plus_signs(browser: Any, address: str, site: Path, from_disk: bool) -> None:
    address = site.as_uri() if from_disk else address
    with Window(browser, address) as window:
        page = window.open("index")
        page.locator("input.md-search__input").press_sequentially("Grad-CAM++")
        page.wait_for_function(
            "document.querySelector('.md-search-result__list')?.innerText.includes('Grad-CAM++')", timeout=PATIENCE
        )
        assert page.locator(".md-search-result__item").count() >= 3
        first = page.locator(".md-search-result__link").first.get_attribute("href")
        assert first.startswith(address)
        page.goto(first)
        assert page.locator("h1").first.is_visible()
        assert window.troubles == []


def test_the_palette_can_be_switched(browser: Any, address: str) -> None:
    with Window(browser, address, scheme="light") as window:
        page = window.open("index")
        light = page.evaluate(GROUND)
        page.locator("label[title='Dark colours']").click()
        page.wait_for_function(f"{GROUND} !== '{light}'", timeout=PATIENCE)
        dark = page.evaluate(GROUND)
        assert brightness(light) > 600
        assert brightness(dark) < 150
        page.locator("label[title='Light colours']").click()
        page.wait_for_function(f"{GROUND} === '{light}'", timeout=PATIENCE)
        assert window.troubles == []
    with Window(browser, address, scheme="dark") as window:  # what the visitor's system prefers
        assert window.open("index").evaluate(GROUND) == dark


def brightness(colour: str) -> float:
    """The sum of red, green and blue of "rgb(1, 2, 3)"."""
    return sum(float(part) for part in colour.split("(")[1].rstrip(")").split(",")[:3])


def test_the_handle_uncovers_the_map(browser: Any, address: str) -> None:
    with Window(browser, address) as window:
        page = window.open("index")
        cut = "getComputedStyle(document.querySelector('.before-after .before')).clipPath"
        before = page.evaluate(cut)
        page.locator(".before-after input").focus()
        page.keyboard.press("Home")
        page.wait_for_function(f"{cut} !== {before!r}", timeout=PATIENCE)
        assert "100%" in page.evaluate(cut)
        assert window.troubles == []
