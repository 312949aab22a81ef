import base64
import errno
import io
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gamlens.errors import GamlensError, GamlensWarning
from gamlens.render import PAGE_FILE, Bars, Block, Grid, Page, Panel, Section, Table, Text, html, write
from gamlens.render.inline import bare, inline, slug

EVIL = '<script>alert("x")</script>" onload="y'
PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (600, 900, 3), dtype=np.uint8))
VOID = {"meta", "link", "img"}


class Tree(HTMLParser):
    """Every start tag with its attributes; every end tag must close the tag opened last."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def tree(*blocks: Block) -> Tree:
    return Tree(html(Page("Page", sections=(Section("Part", blocks),))))


def full(word: str) -> Page:
    panel = Panel(PHOTO, title=word, caption=word, alt=word, mark="bad")
    blocks: tuple[Block, ...] = (
        panel,
        Grid(((panel, None), (Panel(PHOTO),)), (word, word), (word, word), word),
        Grid(((panel, panel),), title=word),
        Bars(((word, 0.5, word),)),
        Table((word, word), ((word, 1.5), (word, 2.5))),
        Text(word),
    )
    return Page(word, word, (Section(word, blocks, word), Section(word, ())), word)


def test_no_text_field_can_smuggle_markup() -> None:
    page = Tree(html(full(EVIL)))
    assert len(page.all("script")) == 1
    assert not [attrs for _, attrs in page.tags if "onload" in attrs]
    assert page.words.count("alert(") >= 20


def test_the_page_needs_no_network() -> None:
    page = Tree(html(full("word")))
    targets = [attrs[key] or "" for _, attrs in page.tags for key in ("src", "href") if key in attrs]
    assert len(targets) >= 8
    assert all(target.startswith(("data:", "#")) for target in targets)
    assert "url(" not in html(full("word"))
    assert "@import" not in html(full("word"))


def test_the_page_says_what_browsers_and_readers_need() -> None:
    source = html(full("word"))
    page = Tree(source)
    assert source.startswith("<!doctype html>")
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("nav")) == 1
    assert "prefers-color-scheme:dark" in source


def test_every_picture_has_words_and_decodes() -> None:
    pictures = Tree(html(full("word"))).all("img")
    assert len(pictures) == 5
    for attrs in pictures:
        assert attrs["alt"]
        kind, data = re.fullmatch(r"data:image/(\w+);base64,(.+)", attrs["src"] or "").groups()  # type: ignore[union-attr]
        with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
            assert picture.format == kind.upper() == "JPEG"
            assert picture.size == (640, 427)
        assert (attrs["width"], attrs["height"]) == ("640", "427")


def test_alt_falls_back_to_the_place_in_the_grid() -> None:
    page = tree(Grid(((Panel(PHOTO), Panel(PHOTO, alt="own")),), ("Grad-CAM", "b"), ("cat",)), Panel(PHOTO))
    assert [attrs["alt"] for attrs in page.all("img")] == ["cat · Grad-CAM", "own", "picture"]


def test_small_pictures_stay_exact() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    (attrs,) = tree(Panel(Image.fromarray(pixels))).all("img")
    assert attrs["class"] == "pixels"
    with Image.open(io.BytesIO(base64.b64decode((attrs["src"] or "").split(",")[1]))) as picture:
        assert (np.asarray(picture) == pixels).all()


def test_a_tall_picture_is_narrower_in_its_cell() -> None:
    wide, tall = Image.new("RGB", (400, 300)), Image.new("RGB", (100, 400))
    first, second = tree(Grid(((Panel(wide), Panel(tall)),))).all("img")
    assert (first["style"], second["style"]) == ("width:100.00%", "width:25.00%")


def test_tables_carry_what_sorting_needs() -> None:
    rows = (("a", 0.25, "1,200 ms", "−3 ± 1", True), ("b", float("nan"), "**7** ms", "–", False))
    page = tree(Table(("name", "score", "time", "gain", "ok"), rows))
    assert [attrs["aria-sort"] for attrs in page.all("th")] == ["none"] * 5
    assert [attrs.get("class") for attrs in page.all("th")] == [None, "num", "num", "num", None]
    keys = [attrs.get("data-sort") for attrs in page.all("td")]
    assert keys == [None, "0.25", "1200.0", "-3.0", None, None, "", "7.0", "", None]
    assert {"class": "sortable"} in page.all("table")


def test_numbers_are_written_for_people() -> None:
    cells = (3, 12_000, 0.12345, 1234.56, float("nan"), np.int64(5), np.float32(0.5))
    words = tree(Table(tuple("abcdefg"), (cells,))).words
    assert "\n312,0000.1231,234.6–50.500" in words


def test_a_table_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(GamlensError, match="2 columns"):
        Table(("a", "b"), (("only",),))


def test_bars_stay_within_their_track() -> None:
    bars = Bars((("a", 0.125, ""), ("b", 7, ""), ("c", -1, ""), ("d", float("nan"), "")))
    assert [a["style"] for a in tree(bars).all("i")] == [f"width:{w}%" for w in ("12.50", "100.00", "0.00", "0.00")]


def test_contents_link_to_unique_sections() -> None:
    page = Tree(html(Page("P", sections=(Section("How it works", ()), Section("How it works!", ())))))
    anchors = [attrs["id"] for attrs in page.all("section")]
    assert anchors == ["how-it-works", "how-it-works-2"]
    assert [attrs["href"] for attrs in page.all("a")] == ["#how-it-works", "#how-it-works-2"]


def test_marks_are_words_too() -> None:
    assert {"class": "tick good", "role": "img", "aria-label": "good"} in tree(Panel(PHOTO, mark="good")).all("span")


def test_inline_markup_is_small_and_safe() -> None:
    assert inline("**a `b*` <c>** & d") == "<strong>a <code>b*</code> &lt;c&gt;</strong> &amp; d"
    assert inline("see [the *numbers*](#numbers)") == 'see <a href="#numbers">the *numbers*</a>'
    assert inline("[csv](out/results.csv)") == '<a href="out/results.csv">csv</a>'
    assert inline("`**x** <y>`") == "<code>**x** &lt;y&gt;</code>"
    for target in ("javascript:alert(1)", "https://example.org", "//example.org", '#"onload="'):
        assert "<a" not in inline(f"[x]({target})")
    assert bare("**a `b`** [c](#d)") == "a b c"
    assert slug("Où est-ce ?") == "ou-est-ce"
    assert slug("漢字") == "section"


def test_paragraphs_are_split_at_blank_lines() -> None:
    assert len(tree(Text("one\ntwo\n\n \nthree")).all("p")) == 2


def test_a_page_of_other_contents_that_is_replaced_is_told(tmp_path: Path) -> None:
    """Commands share a default folder: each writes the same index.html. The same page again is no loss."""
    for _ in range(2):
        write(Page("One", "", ()), tmp_path / PAGE_FILE)
    with pytest.warns(GamlensWarning, match=r"index\.html of an earlier run was replaced: give another"):
        write(Page("Two", "", ()), tmp_path / PAGE_FILE)
    assert "Two" in (tmp_path / PAGE_FILE).read_text()


def test_write_makes_the_whole_file(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    assert write(full("naïve \udce9 name"), target) == target
    assert "naïve ? name" in target.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [target]
    assert os.stat(target).st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("place", ["missing/page.html", "file/page.html", "folder", ""])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    target = tmp_path / place if place else Path("/")
    with pytest.raises(GamlensError, match=re.escape(str(target))):
        write(Page("P"), target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_full_disk_keeps_the_earlier_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "page.html"
    target.write_text("earlier")

    def full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(GamlensError, match="No space left"):
        write(Page("P"), target)
    assert target.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [target]
