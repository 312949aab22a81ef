"""The studio in a real browser: both tabs end to end, with real photos."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from studio_look import Look, differs, until

from gamlens import Explanation, render
from gamlens.data.photos import path
from gamlens.render.raster.link_layout import LINK_COLOURS
from gamlens.studio import Studio
from gamlens.studio.example_photos import ExamplePhotos
from gamlens.studio.session import TabName

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio"),
]


@pytest.fixture
def look(browser: Any, studio: Studio) -> Iterator[Look]:
    found = Look(browser, studio)
    yield found
    found.close()
    assert found.troubles == []


@pytest.fixture(scope="module")
def pair_look(browser: Any, studio: Studio) -> Iterator[Look]:
    """A window in which the pair tab is open with its first example, and each test leaves these two photos."""
    found = Look(browser, studio)
    found.page.get_by_role("tab", name="Why similar?").click()
    found.page.wait_for_selector("#pair-stage figure img")
    yield found
    found.close()
    assert found.troubles == []


@pytest.fixture
def forwards(studio: Studio) -> Iterator[list[int]]:
    """How many images each forward of the studio's model ran on."""
    model, seen = studio.actions.models.lens(studio.actions.models.first).model, []
    hook = model.conv_stem.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    yield seen
    hook.remove()


def turns(look: Look, tab: str) -> dict[str, Callable[[], object]]:
    """Every control, one after another, each from where the last one left it."""
    view = look.page.locator(f"#{tab}-view")
    outline = look.page.locator(f"#{tab}-outline")
    found: dict[str, Callable[[], object]] = {
        "sharp": lambda: look.page.locator(f"#{tab}-sharp").get_by_label("Sharp").check(),
        "method": lambda: look.choose(f"{tab}-method", "Grad-CAM"),
        "n": lambda: look.slide(f"{tab}-n", "ArrowLeft"),
        "block": lambda: look.choose(f"{tab}-block", "blocks.4"),
        "colours": lambda: look.choose(f"{tab}-cmap", "Ocean"),
        "opacity": lambda: look.slide(f"{tab}-opacity", "Home"),
        "box": lambda: outline.get_by_label("Box").check(),
        "mask": lambda: outline.get_by_label("Mask").check(),
        "threshold": lambda: look.slide(f"{tab}-threshold", "End"),
        "three": lambda: view.get_by_label("Three methods").check(),
        "Eq. 4": lambda: view.get_by_label("Eq. 4").check(),
    }
    if tab == "pair":
        found["score"] = lambda: look.page.locator("#pair-score").get_by_label("Dot").check()
    return found


def test_class(look: Look, forwards: list[int]) -> None:
    """A photo of one's own, top five, a class by click and by name, every control, three methods, Eq. 4."""
    assert "Why cheetah?" in look.text("class")
    look.changed("class", lambda: look.give("photo", path("coffee")))
    look.page.wait_for_selector("text=Why espresso?")
    assert look.page.locator("#bars li").count() == 5
    forwards.clear()
    look.changed("class", lambda: look.page.locator("#bars button").nth(1).click())
    second = look.page.locator("#bars button[aria-pressed=true] .gl-name").inner_text()
    assert f"Why {second}?" in look.text("class")

    def name() -> None:
        look.page.locator("#wanted input").fill("soup bowl")
        look.page.locator("#wanted input").press("Enter")

    look.changed("class", name)
    assert "Why soup bowl?" in look.text("class")
    for what, act in turns(look, "class").items():
        before = look.pixels("class")
        look.changed("class", act)
        assert differs(before, look.pixels("class")), what
    assert [title.inner_text() for title in look.page.locator("#class-stage figcaption strong").all()] == [
        *("P: adds", "N: takes away", "Hidden: |N| ≥ P")
    ]
    assert forwards == []
    alts = look.page.eval_on_selector_all("#class-stage img", "all => all.map(one => one.alt)")
    assert all("coffee" in alt for alt in alts)


def test_pair(look: Look, forwards: list[int], tmp_path: Path) -> None:
    """Two photos, the score, both maps, points by mouse and keyboard, every control."""
    look.page.get_by_role("tab", name="Why similar?").click()
    look.page.wait_for_selector("#pair-stage figure img")
    look.changed("pair", lambda: look.page.locator("#pair-examples button").nth(1).click())
    assert "Cosine similarity 0.3" in look.text("pair")
    forwards.clear()
    box = look.page.locator("#pair-stage .gl-frame").first.bounding_box()
    maps = look.pixels("pair")
    click = {"x": box["width"] * 0.68, "y": box["height"] * 0.42}
    look.changed("pair", lambda: look.page.locator("#pair-stage .gl-frame").first.click(position=click))
    look.page.wait_for_selector("#pair-stage .gl-cell")
    assert differs(maps[1:], look.pixels("pair")[1:])
    assert "What matches it" in look.text("pair")
    matched = look.sources("pair")
    frame = look.page.locator("#pair-stage .gl-frame").nth(1)
    frame.focus()
    look.changed("pair", lambda: frame.press("ArrowDown"))
    assert look.sources("pair") != matched
    look.changed("pair", lambda: look.page.get_by_role("button", name="Back to the maps").click())
    assert not differs(maps, look.pixels("pair"))
    assert "What matches it" not in look.text("pair")
    for what, act in turns(look, "pair").items():
        before = look.pixels("pair")
        look.changed("pair", act)
        assert differs(before, look.pixels("pair")), what
    assert forwards == []
    look.give("x", path("cat"))
    look.page.wait_for_function("() => document.querySelector('#pair-stage').innerText.includes('Dot similarity')")
    look.page.wait_for_selector("#pair-stage img[alt*='chelsea']")


def likeness(picture: np.ndarray[Any, Any], photo: Path, wanted: Explanation) -> float:
    """How well the red and blue that were laid over a photo follow a signed map: their correlation."""
    height, width = picture.shape[:2]
    plain = np.asarray(Image.open(photo).convert("RGB").resize((width, height)).convert("L"), dtype=float)
    ratio = (picture - plain[..., None]) @ (1, 0, -1)  # where there is no colour, photos are grey
    signed = wanted.full(0).cpu().numpy()
    found = np.asarray(Image.fromarray(ratio.astype(np.float32)).resize(signed.shape[::-1]))
    return float(np.corrcoef(found.ravel(), signed.ravel())[0, 1])


def test_what_raises_and_what_lowers(look: Look, studio: Studio, forwards: list[int]) -> None:
    """A signed map is red where the lens says that the score rises, and blue where it falls; so is a contrast."""
    lens, (photo, *_) = studio.actions.models.lens(studio.actions.models.first), shown_examples(studio, "class", 0)
    forwards.clear()
    plain = look.pixels("class")
    look.changed("class", lambda: look.page.locator("#class-sign").get_by_label("lowers").check())
    look.page.wait_for_selector("#class-stage .gl-bar")
    signed = look.pixels("class")
    assert differs(plain, signed)

    def name() -> None:
        look.page.locator("#against input").fill("leopard")
        look.page.locator("#against input").press("Enter")

    look.changed("class", name)
    contrast = look.pixels("class")
    assert "Why cheetah rather than leopard?" in look.text("class")
    assert forwards == []
    for drawn, options in ((signed, {}), (contrast, {"against": "leopard"})):
        wanted = lens.classify(str(photo), "cheetah", method="gam", n=2, sign="both", **options)
        assert float(wanted.maps.min()) < 0 < float(wanted.maps.max())
        assert likeness(drawn[0], photo, wanted) > 0.8
    assert differs(signed, contrast)


def test_contrast_with_a_third_photo(pair_look: Look, studio: Studio, forwards: list[int]) -> None:
    """On all three photos, from one forward of each; without the third photo the maps of the pair come back."""
    look = pair_look
    files = shown_examples(studio, "pair", 3)
    forwards.clear()
    look.page.locator("#pair-examples button").nth(3).click()
    look.page.wait_for_selector("#pair-stage figure:nth-of-type(3) .gl-bar")
    assert "is more like cheetah_face.jpg" in look.text("pair")
    drawn = look.pixels("pair")
    assert forwards == [3]
    lens = studio.actions.models.lens(studio.actions.models.first)
    wanted = lens.contrast(*map(str, files), method="gam", n=2)
    for picture, file, part in zip(drawn, files, (wanted.x, wanted.a, wanted.b), strict=True):
        assert likeness(picture, file, part) > 0.8
    forwards.clear()
    look.page.set_viewport_size({"width": 390, "height": 844})
    wide, seen = look.page.evaluate("() => [document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= seen
    assert all(frame.bounding_box()["width"] > 250 for frame in look.page.locator("#pair-stage .gl-frame").all())
    look.page.locator("#rather").get_by_label(re.compile("remove|clear", re.IGNORECASE)).first.click()
    look.page.wait_for_function("() => document.querySelectorAll('#pair-stage figure').length === 2")
    pair = look.pixels("pair")
    both = lens.compare(str(files[0]), str(files[1]), method="gam", n=2, sign="both")
    for picture, file, part in zip(pair, files[:2], (both.x, both.y), strict=True):
        assert likeness(picture, file, part) > 0.8
        redness = picture @ (1, 0, -1)
        assert redness.max() > 60  # both colours
        assert redness.min() < -60
    assert differs(drawn[:1], pair[:1])
    assert forwards == [2]  # that of this test


def test_lines_between_the_photos(pair_look: Look, studio: Studio, forwards: list[int]) -> None:
    """As many curves as were asked for cross the gap between the photos, in the colours of the list below."""
    look = pair_look
    look.page.set_viewport_size({"width": 1280, "height": 900})
    forwards.clear()
    slider = look.page.locator("#pair-links")
    assert not slider.is_visible()
    look.changed("pair", lambda: look.page.locator("#pair-view").get_by_label("Links").check())
    look.page.wait_for_selector("#pair-stage .gl-links")
    assert slider.is_visible()
    (eight,) = look.pixels("pair")
    assert look.page.locator(".gl-links li").count() == 8
    look.changed("pair", lambda: look.slide("pair-links", "Home"))
    (one,) = look.pixels("pair")
    assert look.page.locator(".gl-links li").count() == 1
    assert forwards == []
    files = shown_examples(studio, "pair", 0)
    without = np.asarray(render.linked(*map(Image.open, files), []), dtype=float)
    assert np.isclose(without, without[0, 0]).all(axis=(0, 2)).sum() > 20  # the gap between the photos
    names = look.page.eval_on_selector_all(".gl-links i", "all => all.map(one => getComputedStyle(one).color)")
    assert names == [f"rgb{LINK_COLOURS[0]}"]
    for drawn, many in ((one, 1), (eight, 8)):
        gap = between_photos(drawn)
        assert (np.abs(gap - drawn[0, 0]).max(axis=2) > 40).any(axis=0).all()  # no column without a line
        lines = [(np.abs(gap - colour).max(axis=2) < 30).sum() > 30 for colour in LINK_COLOURS[:3]]
        assert lines == [True, many > 1, many > 1]
    assert differs([eight], [one])
    look.page.set_viewport_size({"width": 390, "height": 844})
    wide, seen = look.page.evaluate("() => [document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= seen


def between_photos(picture: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The gap between the photos of a picture of links: the columns around its middle that are mostly empty."""
    empty = (np.abs(picture - picture[0, 0]).max(axis=2) < 20).mean(axis=0) > 0.4
    middle = picture.shape[1] // 2
    columns = [number for number in np.flatnonzero(empty) if abs(number - middle) < picture.shape[1] / 4]
    return picture[:, min(columns) + 3 : max(columns) - 2]


def shown_examples(studio: Studio, tab: TabName, number: int) -> list[Path]:
    """The files of an example."""
    folder = studio.folder / "examples"
    photos = ExamplePhotos({file.stem: file for file in folder.iterdir()})
    return list(photos.of(tab).values())[number][1]


def test_downloads(look: Look) -> None:
    """The overlay, the raw map and the JSON say what is on the screen."""

    def saved(name: str) -> tuple[str, bytes]:
        with look.page.expect_download() as waiting:
            look.page.locator(f"#{name}").click()
        return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()

    name, data = saved("class-picture")
    assert name == "cheetah-gam.png"
    picture = Image.open(io.BytesIO(data))
    assert picture.size == Image.open(path("cheetah")).size
    shown = look.painted("class")
    resized = np.asarray(picture.convert("RGB").resize(shown.shape[1::-1], Image.Resampling.BILINEAR), dtype=float)
    assert np.abs(resized - shown).mean() < 8
    name, data = saved("class-maps")
    arrays = np.load(io.BytesIO(data))
    assert arrays["map"].shape == (224, 224)
    assert arrays["raw:bn2"].shape == (7, 7)
    record = json.loads(saved("class-json")[1])
    assert record["class"] == "cheetah"
    assert record["top"][0]["probability"] > 0.5
    look.page.get_by_role("tab", name="Why similar?").click()
    look.page.wait_for_selector("#pair-stage figure img")
    assert {"x:map", "y:map"} <= set(np.load(io.BytesIO(saved("pair-maps")[1])).files)
    assert 0.4 < json.loads(saved("pair-json")[1])["score"] < 0.5


def test_a_bad_file_is_a_message(look: Look, tmp_path: Path) -> None:
    bad = tmp_path / "holiday.jpg"
    bad.write_text("not a photo at all")
    look.give("photo", bad)
    alert = look.page.wait_for_selector("#class-stage [role=alert]")
    assert "Cannot read 'holiday.jpg' as an image" in alert.inner_text()
    assert "Traceback" not in look.page.content()
    look.page.locator("#class-examples button").nth(1).click()
    look.page.wait_for_selector("text=Why lion?")

    def wrong() -> None:
        look.page.locator("#wanted input").fill("lyon")
        look.page.locator("#wanted input").press("Enter")

    wrong()
    assert "did you mean" in look.page.wait_for_selector("#class-stage [role=alert]").inner_text()


def test_two_visitors(browser: Any, studio: Studio) -> None:
    """Each has a photo, a class and controls of one's own; nothing is left of either when they go."""
    first, second = Look(browser, studio), Look(browser, studio)
    others = set(studio.folder.glob("*/*"))
    first.give("photo", path("coffee"))
    second.give("photo", path("lion"))
    first.page.wait_for_selector("text=Why espresso?")
    second.page.wait_for_selector("text=Why lion?")
    mine = second.sources("class")
    first.changed("class", lambda: first.choose("class-cmap", "Spectrum"))
    first.changed("class", lambda: first.page.locator("#bars button").nth(2).click())
    second.changed("class", lambda: second.slide("class-n", "ArrowLeft"))
    second.changed("class", lambda: second.slide("class-n", "ArrowRight"))
    assert second.sources("class") == mine
    uploads = set(studio.folder.glob("*/*")) - others
    assert sorted(file.name for file in uploads) == ["coffee.png", "lion.jpg"]
    for look in (first, second):
        assert studio.actions.sessions.find(look.session) is not None
        look.close()  # waits until the session has ended
    until(lambda: not any(file.exists() for file in uploads))
    assert first.troubles == second.troubles == []


def test_widths_and_shades(browser: Any, studio: Studio) -> None:
    """Nothing sticks out, at a phone's, a tablet's and a desktop's width; pictures can be seen; light and dark."""
    look = Look(browser, studio, width=390, height=844)
    for width in (390, 768, 1280):
        look.page.set_viewport_size({"width": width, "height": 844})
        for tab, name in (("class", "Why this class?"), ("pair", "Why similar?")):
            look.page.get_by_role("tab", name=name).click()
            look.page.wait_for_selector(f"#{tab}-stage figure img")
            wide, seen = look.page.evaluate("() => [document.documentElement.scrollWidth, window.innerWidth]")
            assert wide <= seen
            for frame in look.page.locator(f"#{tab}-stage .gl-frame").all():
                box = frame.bounding_box()
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= width
                assert box["width"] > (250 if tab == "class" else 110)

    def shade() -> float:
        return float(np.asarray(Image.open(io.BytesIO(look.page.screenshot())).convert("L"))[:40].mean())

    assert shade() > 200
    look.page.locator("#dark").click()
    look.page.wait_for_function("() => document.body.classList.contains('dark')")
    until(lambda: shade() < 60)
    look.close()
    assert look.troubles == []
