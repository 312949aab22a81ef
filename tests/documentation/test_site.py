"""The site as `make docs` builds it: strict, nothing from elsewhere, no dead link, every public name on an API page."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import gamlens
from gamlens import adapters, bench, fuse

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = re.compile(r"^(?:https?:)?//", flags=re.IGNORECASE)
LOADED = {  # tags and their attributes that make a browser fetch something
    "script": ("src",), "link": ("href",), "img": ("src", "srcset"), "iframe": ("src",), "source": ("src", "srcset"),
    "video": ("src", "poster"), "audio": ("src",), "object": ("data",), "embed": ("src",), "use": ("href",),
}  # fmt: skip
STYLED = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")


class Seen(HTMLParser):
    """What a page loads, where its links lead, and which places in it have a name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.names: set[str] = set()
        self.classes: set[str] = set()
        self.in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.loads += [given[name] for name in LOADED.get(tag, ()) if name in given]
        self.loads += styled(given.get("style", ""))
        self.links += [given["href"]] if tag == "a" and "href" in given else []
        self.names |= {given[name] for name in ("id", "name") if name in given}
        self.classes |= set(given.get("class", "").split())
        self.in_style = tag == "style"

    def handle_data(self, data: str) -> None:
        self.loads += styled(data) if self.in_style else []

    def handle_endtag(self, tag: str) -> None:
        self.in_style = self.in_style and tag != "style"


def styled(text: str) -> list[str]:
    """The addresses that CSS loads."""
    return [first or second for first, second in STYLED.findall(text)]


@cache
def seen(page: Path) -> Seen:
    return Seen(page.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pages(site: Path) -> list[Path]:
    found = sorted(site.rglob("*.html"))
    assert len(found) > 40
    return found


def elsewhere(pages: list[Path], sheets: list[Path]) -> list[str]:
    """What pages and style sheets load from another place."""
    addresses = [(page.name, address) for page in pages for address in seen(page).loads]
    addresses += [(sheet.name, address) for sheet in sheets for address in styled(sheet.read_text(encoding="utf-8"))]
    return [f"{name}: {address}" for name, address in addresses if ELSEWHERE.match(address.strip())]


def dead(pages: list[Path], site: Path) -> list[str]:
    """Links and files of pages that are not there, and links to a place in a page that it does not have."""
    found = []
    for page in pages:
        for address in (*seen(page).links, *seen(page).loads):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            path = unquote(parts.path)
            target = (site / path.lstrip("/") if path.startswith("/") else page.parent / path) if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{page.relative_to(site)}: {address}")
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in seen(target).names:
                found.append(f"{page.relative_to(site)}: {address} (no such place)")
    return found


def test_nothing_comes_from_elsewhere(site: Path, pages: list[Path]) -> None:
    sheets = sorted(site.rglob("*.css"))
    assert len(sheets) >= 3  # two of the theme, one of ours
    assert elsewhere(pages, sheets) == []
    # The theme fetches a library for diagrams from a network if a page has one.
    assert [page.name for page in pages if "mermaid" in seen(page).classes] == []


def test_a_warning_stops_make_docs() -> None:
    """mkdocs counts a warning in strict mode only where it would also print it."""
    made = subprocess.run(["make", "--dry-run", "docs"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (build,) = (line.split() for line in made.splitlines() if "mkdocs build" in line)
    assert "--strict" in build
    assert not {"--quiet", "-q"} & set(build)


def test_every_link_leads_somewhere(site: Path, pages: list[Path]) -> None:
    assert sum(len(seen(page).links) for page in pages) > 2000
    assert dead(pages, site) == []


def test_these_checks_find_what_they_look_for(tmp_path: Path) -> None:
    page, other = tmp_path / "a.html", tmp_path / "b.html"
    page.write_text(
        '<script src="https://x.org/a.js"></script><img src="//x.org/a.png"><p style="background:url(http://x.org/c)">'
        '<style>@import "https://x.org/d.css"</style><a href="b.html#here">1</a><a href="b.html#there">2</a>'
        '<a href="c.html">3</a><a href="https://x.org">4</a>'
    )
    other.write_text('<p id="here"></p>')
    assert len(elsewhere([page], [])) == 4
    assert dead([page], tmp_path) == ["a.html: b.html#there (no such place)", "a.html: c.html"]


def test_every_public_name_is_on_an_api_page(site: Path) -> None:
    names = set().union(*(seen(page).names for page in (site / "api").glob("*.html")))
    rooms = {"adapters": adapters, "fuse": fuse}
    wanted = {f"gamlens.{name}" for name in (*gamlens.__all__, *gamlens.CLASSES_LOADED_WHEN_USED)}
    wanted |= {
        f"gamlens.{name}"
        for name in (*gamlens.LOADED_WHEN_USED, "notebook", "studio", "studio.launch", "studio.Studio")
    }
    wanted |= {f"gamlens.bench.{name}" for name in bench.__all__}
    wanted |= {f"{entry.fn.__module__}.{entry.fn.__name__}" for entry in gamlens.METHODS.values()}
    for room, module in rooms.items():
        wanted |= {
            f"gamlens.{room}.{name}"
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "").startswith(f"gamlens.{room}")
        }
    assert wanted - names == set()


def test_public_classes_show_an_example(site: Path) -> None:
    """Examples are highlighted as Python; they are no quotations, which `>>>` would be in Markdown."""
    for page in (site / "api").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "<blockquote>" not in text, page.name
    for name in ("lens", "results", "traces", "search", "methods"):
        assert '<span class="gp">&gt;&gt;&gt;' in (site / f"api/{name}.html").read_text(encoding="utf-8"), name


def test_equations_are_drawn_without_a_script(site: Path) -> None:
    text = (site / "method.html").read_text(encoding="utf-8")
    assert text.count("<math ") >= 30
    assert text.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') >= 10
    assert "arithmatex" not in text
    assert not re.search(r"\\(?:frac|sum|operatorname|lVert)", text)
    prices = (site / "scale.html").read_text(encoding="utf-8")
    assert "<math " not in prices
    assert "26 $ for GPUs" in prices


def test_pages_of_the_repository_are_there(site: Path) -> None:
    for name in ("contributing", "security", "changelog"):
        assert "<h1" in (site / f"{name}.html").read_text(encoding="utf-8")
    assert 'href="security.html#reporting"' in (site / "reliability.html").read_text(encoding="utf-8")
