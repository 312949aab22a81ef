"""The tab "Search" in a real browser: hits, boxes, filters, maps, points, a phone, and two visitors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studio_look import Look, differs

from gamlens.data.photos import path
from gamlens.index.index import Index
from gamlens.lens import Lens
from gamlens.studio import Studio, launch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio"),
]


class SearchLook(Look):
    """A visitor's window in which the tab is open and shows its first hits."""

    def __init__(self, browser: Any, studio: Studio, *, phone: bool = False) -> None:
        width, height = (390, 844) if phone else (1280, 900)
        super().__init__(browser, studio, width=width, height=height)
        self.page.get_by_role("tab", name="Search").click()
        self.page.wait_for_selector("#search-stage figure:nth-of-type(2) img")

    def hits(self) -> list[str]:
        """The names of the hits, best first, each with its score."""
        found: list[str] = self.page.eval_on_selector_all(
            "#search-hits button",
            "all => all.map(one => `${one.querySelector('.gl-name').innerText} ${one.querySelector('b').innerText}`)",
        )
        return found

    def until_hits_change(self, act: Callable[[], object]) -> list[str]:
        before = self.hits()
        act()
        self.page.wait_for_function(
            "before => JSON.stringify([...document.querySelectorAll('#search-hits button')].map(one => "
            "`${one.querySelector('.gl-name').innerText} ${one.querySelector('b').innerText}`)) !== before",
            arg=json.dumps(before, separators=(",", ":"), ensure_ascii=False),
        )
        return self.hits()

    def draw(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Draw a box on the photo by mouse; the corners are fractions of its width and height."""
        frame = self.page.locator("#search-query .gl-frame")
        frame.scroll_into_view_if_needed()
        area = frame.bounding_box()
        corners = [(area["x"] + x * area["width"], area["y"] + y * area["height"]) for x, y in ((x0, y0), (x1, y1))]
        self.page.mouse.move(*corners[0])
        self.page.mouse.down()
        self.page.mouse.move(*corners[1], steps=4)
        self.page.mouse.up()

    def filter(self, where: str) -> None:
        field = self.page.locator("#search-where textarea")
        field.fill(where)
        field.press("Enter")

    def narrow(self) -> bool:
        """Whether nothing sticks out of the window."""
        wide, seen = self.page.evaluate("() => [document.documentElement.scrollWidth, window.innerWidth]")
        return bool(wide <= seen)


@pytest.fixture
def search_look(browser: Any, studio: Studio) -> Iterator[SearchLook]:
    found = SearchLook(browser, studio)
    yield found
    found.close()
    assert found.troubles == []


def example(look: SearchLook, number: int) -> list[str]:
    return look.until_hits_change(lambda: look.page.locator("#search-examples button").nth(number).click())


def test_hits_at_once_photos_filters_and_maps(search_look: SearchLook) -> None:
    """Hits without any click; a photo of one's own; a filter, also a wrong one; a hit, signs, sharp, and a point."""
    look = search_look
    first = look.hits()
    assert first[0].startswith("cheetah_face.jpg 0.4")
    assert len(first) >= 7
    assert len(look.page.locator("#search-hits img").all()) == len(first)
    assert "Cosine similarity 0.4" in look.text("search")
    best = look.pixels("search")
    assert len(best) == 2
    look.changed("search", lambda: look.page.locator("#search-hits button").nth(1).click())
    lion = look.pixels("search")
    assert differs(best, lion)
    assert look.page.locator("#search-hits [aria-pressed=true]").inner_text().startswith("0.3")
    assert not look.page.locator("#search-score").is_visible()
    look.changed("search", lambda: look.page.locator("#search-sign").get_by_label("lowers").check())
    look.page.wait_for_selector("#search-stage .gl-bar")
    signed = look.pixels("search")
    assert all(np.abs(a - b).mean() > 1 for a, b in zip(lion, signed, strict=True))
    redness = signed[0] @ (1, 0, -1)
    assert redness.max() > 60 > -60 > redness.min()
    look.changed("search", lambda: look.page.locator("#search-sharp").get_by_label("Sharp").check())
    assert differs(signed, look.pixels("search"))
    frame = look.page.locator("#search-stage .gl-frame").first
    area = frame.bounding_box()
    spot = {"x": area["width"] * 0.75, "y": area["height"] * 0.4}
    look.changed("search", lambda: frame.click(position=spot))
    look.page.wait_for_selector("#search-stage .gl-cell")
    assert "What matches it" in look.text("search")
    look.changed("search", lambda: look.page.get_by_role("button", name="Back to the maps").click())

    animals = look.until_hits_change(lambda: look.filter("kind = 'animal' and legs = 4"))
    assert sorted(hit.split()[0] for hit in animals) == ["cat.jpg", "cheetah_face.jpg", "lion.jpg"]
    look.until_hits_change(lambda: look.filter("knid = 'animal'"))
    alert = look.page.locator("#search-columns [role=alert]")
    assert "did you mean 'kind'" in alert.inner_text()
    assert look.hits() == []
    assert look.until_hits_change(lambda: look.filter("")) == first
    assert not alert.is_visible()
    dropped = look.until_hits_change(lambda: give(look, path("cat")))
    assert dropped[0].startswith("cat.jpg 0.99")  # a smaller copy of the same photo
    assert "chelsea" in str(look.page.locator("#search-query img").get_attribute("alt"))


def give(look: SearchLook, file: Path) -> None:
    look.page.locator("#query").get_by_label("Remove").or_(
        look.page.locator("#query").get_by_label("Clear")
    ).first.click()
    look.page.wait_for_selector("#search-hits .gl-hint")
    look.page.locator("#query input[type=file]").set_input_files(str(file))
    look.page.wait_for_selector("#search-stage figure:nth-of-type(2) img")


def test_a_drawn_box(search_look: SearchLook) -> None:
    """A box on the coffee finds coffee, one on the cat finds the cat, and maps lie in the box; a click is a point."""
    look = search_look
    whole = example(look, 1)
    look.page.wait_for_selector("#search-query img[alt*=both]")
    look.changed("search", lambda: look.slide("search-n", "Home"))
    coffee = look.until_hits_change(lambda: look.draw(0.55, 0.1, 0.98, 0.9))
    assert coffee[0].startswith("coffee.jpg")
    assert not coffee[-1].startswith("coffee")
    look.page.wait_for_selector("#search-stage img[alt*=coffee]")
    drawn = look.pixels("search")[0]
    box = look.page.locator("#search-query .gl-box").bounding_box()
    area = look.page.locator("#search-query .gl-frame").bounding_box()
    assert box["x"] == pytest.approx(area["x"] + 0.55 * area["width"], abs=5)
    cat = look.until_hits_change(lambda: look.draw(0.4, 0.95, 0.02, 0.05))  # from the lower right to the upper left
    assert cat[0].startswith("cat.jpg")
    look.page.wait_for_selector("#search-stage img[alt*='cat.jpg']")
    other = look.pixels("search")[0]
    for picture, there, elsewhere in (
        (drawn, slice(-200, None), slice(0, 200)),
        (other, slice(0, 200), slice(-200, None)),
    ):
        assert colour(picture[:, there]) > 2.5 * colour(picture[:, elsewhere])  # without a map, photos are nearly grey
    point = look.until_hits_change(lambda: click(look, 0.75, 0.4))
    assert point[0].startswith("coffee.jpg")
    assert look.page.locator("#search-query .gl-box").bounding_box()["width"] < area["width"] / 5
    keyed = look.until_hits_change(lambda: press(look, "ArrowLeft"))
    assert keyed != point
    back = look.until_hits_change(lambda: look.page.get_by_role("button", name="Whole photo").click())
    assert back == whole
    assert not look.page.locator("#search-query .gl-box").is_visible()


def colour(picture: np.ndarray[Any, Any]) -> float:
    """How far pixels are from grey, on average."""
    return float((picture.max(axis=2) - picture.min(axis=2)).mean())


def click(look: SearchLook, x: float, y: float) -> None:
    frame = look.page.locator("#search-query .gl-frame")
    area = frame.bounding_box()
    frame.click(position={"x": x * area["width"], "y": y * area["height"]})


def press(look: SearchLook, key: str) -> None:
    look.page.locator("#search-query .gl-frame").focus()
    look.page.keyboard.press(key)


def test_a_phone_and_two_visitors(browser: Any, studio: Studio) -> None:
    """By touch on a phone, where nothing sticks out; what one visitor does, the other does not see."""
    desk, phone = SearchLook(browser, studio), SearchLook(browser, studio, phone=True)
    theirs = desk.hits(), desk.sources("search")
    assert phone.hits() == theirs[0]
    assert phone.narrow()
    example(phone, 1)
    phone.page.wait_for_selector("#search-query img[alt*=both]")
    found = phone.until_hits_change(lambda: touch(phone, 0.55, 0.1, 0.95, 0.9))
    assert found[0].startswith("coffee.jpg")
    phone.page.wait_for_selector("#search-stage img[alt*=coffee]")
    phone.filter("1=1; DROP TABLE images --")
    phone.page.wait_for_selector("#search-columns [role=alert]")
    assert phone.narrow()
    for frame in phone.page.locator("#search-query .gl-frame, #search-stage .gl-frame").all():
        area = frame.bounding_box()
        assert 0 <= area["x"] < area["x"] + area["width"] <= 390
    desk.changed("search", lambda: desk.choose("search-cmap", "Ocean"))
    assert desk.hits() == theirs[0]
    desk.close()
    phone.close()
    assert desk.troubles == phone.troubles == []


def touch(look: SearchLook, x0: float, y0: float, x1: float, y1: float) -> None:
    """Draw a box by finger."""
    frame = look.page.locator("#search-query .gl-frame")
    frame.scroll_into_view_if_needed()
    area = frame.bounding_box()
    client = look.context.new_cdp_session(look.page)
    steps = [(x0, y0), ((x0 + x1) / 2, (y0 + y1) / 2), (x1, y1)]
    points = [{"x": area["x"] + x * area["width"], "y": area["y"] + y * area["height"]} for x, y in steps]
    for kind, at in zip(("touchStart", "touchMove", "touchMove", "touchEnd"), (*points, None), strict=True):
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [at] if at else []})


def test_an_index_of_ones_own(browser: Any, studio: Studio, tmp_path: Path) -> None:
    """It opens with hits; a hit without its file has no picture; another model cannot search it."""
    lens = studio.actions.models.lens(studio.actions.models.first)
    files = [str(file) for file in sorted((studio.folder / "examples").iterdir())]
    with Index.create(tmp_path / "shop.gamlens", lens) as index:
        index.add(copies(tmp_path, files))
        index.annotate({str(tmp_path / "lion.jpg"): {"price": 40, "note": "<img src=x>"}})
        with launch({"other": Lens("efficientnet_lite0", weights="random")}, index=index) as own:
            look = SearchLookWithoutClass(browser, own)
            assert look.page.locator("#search-hits .gl-gone").count() == 0
            (tmp_path / look.hits()[1].split()[0]).unlink()
            found = look.until_hits_change(lambda: look.slide("search-top", "ArrowLeft"))
            assert look.page.locator("#search-hits .gl-gone").count() == 1
            assert look.page.locator("#search-hits img").count() == len(found) - 1
            assert look.until_hits_change(lambda: look.filter("price < 50"))[0].startswith("lion.jpg")
            assert "<img src=x>" in look.page.locator("#search-hits").inner_text()
            look.choose("model", "other")
            look.page.wait_for_selector(f"text=choose {lens.name} under Model")
            look.choose("model", lens.name)
            look.page.wait_for_selector("#search-hits button")
            assert look.hits()[0].startswith("lion.jpg")
            look.close()
            assert look.troubles == []
            copied = [file for file in own.folder.glob("indexed-*/*") if file.is_file()]
            assert len(copied) == 5
        assert not any(file.exists() for file in copied)


def copies(folder: Path, files: list[str]) -> list[str]:
    made = []
    for file in files:
        made.append(str(folder / Path(file).name))
        Path(made[-1]).write_bytes(Path(file).read_bytes())
    return made


class SearchLookWithoutClass(SearchLook):
    """The same where the first tab shows no example, because the model is one that the user gave."""

    first_stage = "#class-stage .gl-hint"
