"""The signed view, contrasts with a third photo or another class, and links: what they answer, and what they cost."""

from __future__ import annotations

import io
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import attention_nets
import numpy as np
import pytest
import torch
from PIL import Image
from studio_kit import LABELS, noise, small_lens

from gamlens import Lens, Transform
from gamlens.studio.actions import Actions, TabUpdate
from gamlens.studio.controls import LINKS, PAIR_VIEWS, Controls
from gamlens.studio.html_fragments import data_uri
from gamlens.studio.model_cache import ModelCache
from gamlens.studio.score_split import ScoreSplit
from gamlens.studio.session import ClickedPoint

pytestmark = pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
USUAL = Controls()
SIGNED, LINKED = replace(USUAL, sign="both"), replace(USUAL, view=LINKS)
PATIENCE = 60


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Of three sizes, one high and one wide."""
    sizes = ((96, 64), (60, 180), (300, 50))
    return [noise(tmp_path / f"photo {number}.png", seed=number, size=size) for number, size in enumerate(sizes)]


def counted(lens: Lens) -> tuple[Actions, list[int]]:
    """The actions with a lens, and how many images each of its forwards ran on."""
    seen: list[int] = []
    first = next(module for module in lens.model.modules() if isinstance(module, torch.nn.Conv2d))
    first.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    return Actions(ModelCache({"small": lens}, any_name=False)), seen


def from_output() -> Lens:
    """A lens whose embedding is the output of a linear layer, which is no average over positions."""
    return Lens(small_lens().model, embedding="output", transform=small_lens().transform)


def with_class_token() -> Lens:
    net = attention_nets.transformer(dtype=torch.float32)
    return Lens(net, transform=Transform(tuple(attention_nets.images(1).shape[-2:])))


def sources(stage: str) -> list[str]:
    return re.findall(r'<img src="([^"]+)"', stage)


def titles(stage: str) -> list[str]:
    return re.findall(r"<strong>([^<]+)</strong>", stage)


def give_three(actions: Actions, photos: list[Path], controls: Controls = SIGNED) -> TabUpdate:
    return actions.set_photos("me", dict(zip(("x", "y", "rather"), photos, strict=True)), controls)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_signs_contrasts_and_links_need_one_forward_per_photo(photos: list[Path]) -> None:
    actions, seen = counted(small_lens())
    actions.set_photos("me", {"photo": photos[0]}, SIGNED)
    actions.set_against("me", LABELS[3], SIGNED)
    actions.redraw("me", "class", USUAL)
    assert seen == [1]
    give_three(actions, photos)
    assert len(sources(actions.set_photos("me", {"rather": None}, SIGNED).stage)) == 2
    assert seen == [1, 3]
    give_three(actions, photos)
    seen.clear()
    for view in PAIR_VIEWS:
        for controls in (SIGNED, replace(USUAL, score="dot")):
            assert actions.redraw("me", "pair", replace(controls, view=view)).blocks
            actions.download("me", "pair", "json", replace(controls, view=view))
    assert len(sources(actions.set_photos("me", {"rather": None}, SIGNED).stage)) == 2
    actions.set_point("me", ClickedPoint("x", 0.3, 0.7), SIGNED)
    assert seen == []
    actions.set_photos("me", {"rather": photos[2]}, SIGNED)
    assert seen == [3]


@pytest.mark.parametrize("lens", [small_lens, with_class_token])
def test_the_pair_beside_a_third_photo_is_that_of_two_photos(photos: list[Path], lens: Callable[[], Lens]) -> None:
    """It is made from the forward of all three photos."""
    with_third, alone = (Actions(ModelCache({"it": lens()}, any_name=False)) for _ in range(2))
    give_three(with_third, photos)
    with_third.set_photos("me", {"rather": None}, SIGNED)
    alone.set_photos("me", {"x": photos[0], "y": photos[1]}, SIGNED)
    found, wanted = (each.download("me", "pair", "maps", SIGNED).data for each in (with_third, alone))
    arrays, others = np.load(io.BytesIO(found)), np.load(io.BytesIO(wanted))
    assert arrays.files == others.files
    for name in arrays.files:
        np.testing.assert_allclose(arrays[name], others[name], atol=1e-4)


def test_signed_maps_have_two_colours_and_a_bar(actions: Actions, photos: list[Path]) -> None:
    plain = actions.set_photos("me", {"x": photos[0], "y": photos[1]}, USUAL).stage
    stage = actions.redraw("me", "pair", SIGNED).stage
    assert sources(stage) != sources(plain)
    assert stage.count("gl-bar") == 2
    assert "gl-bar" not in plain
    assert "Red pixels raise the score" in stage
    wanted = actions.sessions.get("me").traces["pair"].explain("gam", 2, sign="both")
    arrays = np.load(io.BytesIO(actions.download("me", "pair", "maps", SIGNED).data))
    np.testing.assert_array_equal(arrays["x:map"], wanted.x.numpy()[0])
    assert arrays["x:map"].min() < 0 < arrays["x:map"].max()
    assert float(arrays["y:scale:layer3"]) == pytest.approx(float(wanted.y.scales["layer3"][0]))
    actions.set_photos("me", {"photo": photos[0]}, SIGNED)
    picture = actions.download("me", "class", "picture", SIGNED)
    assert picture.name == "photo-0-gam-signed.png"
    assert Image.open(io.BytesIO(picture.data)).height > 64  # the bar stands below the photo
    assert Image.open(io.BytesIO(actions.download("me", "class", "picture", USUAL).data)).height == 64
    peak = f"{abs(arrays['x:map']).max():.2g}"
    assert f"−{peak} lowers it" in stage
    assert f"+{peak} raises it" in stage
    one = actions.redraw("me", "pair", replace(SIGNED, block="layer3")).stage
    scale = float(wanted.x.scales["layer3"][0]) * np.abs(wanted.x.blocks["layer3"][0].numpy()).max()
    assert f"+{scale:.2g} raises it" in one
    assert "raw values, in units of the score" in one


@pytest.mark.parametrize("tab", ["class", "pair"])
def test_a_method_without_a_sign_shows_its_map_and_says_so(actions: Actions, photos: list[Path], tab: str) -> None:
    actions.set_photos("me", {"photo": photos[2]}, USUAL)
    give_three(actions, photos)
    said = "Eigen-CAM does not tell what raises the score from what lowers it"
    without, signed = (replace(controls, method="eigen_cam") for controls in (USUAL, SIGNED))
    stage = actions.redraw("me", tab, signed).stage
    assert said in stage
    assert "gl-bar" not in stage
    assert sources(stage) == sources(actions.redraw("me", tab, without).stage)
    three = actions.redraw("me", tab, replace(signed, view="three")).stage  # none of the three is that method
    assert said not in three
    assert "Red pixels" in three
    assert three.count("gl-bar") == len(sources(three))


def test_a_contrast_is_on_all_three_photos(actions: Actions, photos: list[Path]) -> None:
    stage = give_three(actions, photos).stage
    assert titles(stage) == ["First photo", "Second photo", "Rather than this one"]
    several = actions.sessions.get("me").traces["set"]
    wanted = several.contrast(0, 1, 2, method="gam", n=2)
    for_a, for_b = float(wanted.score_a[0]), float(wanted.score_b[0])
    than = "more" if for_a > for_b else "less"
    assert f"photo 0.png is {than} like photo 1.png ({for_a:.3g}) than like photo 2.png ({for_b:.3g})" in stage
    arrays = np.load(io.BytesIO(actions.download("me", "pair", "maps", SIGNED).data))
    for name, part in (("x", wanted.x), ("a", wanted.a), ("b", wanted.b)):
        np.testing.assert_array_equal(arrays[f"{name}:map"], part.numpy()[0])
    record = json.loads(actions.download("me", "pair", "json", SIGNED).data)
    assert record["score"] == pytest.approx(for_a - for_b)
    assert [record[name]["photo"] for name in "xab"] == [photo.name for photo in photos]
    assert "data-side" not in stage
    nine = actions.redraw("me", "pair", replace(SIGNED, view="three", method="vdsn")).stage
    assert len(sources(nine)) == 9
    assert "VDSN compares two photos" in actions.redraw("me", "pair", replace(SIGNED, method="vdsn")).stage


def test_a_third_photo_comes_and_goes(actions: Actions, photos: list[Path], tmp_path: Path) -> None:
    assert "Give two photos" in actions.set_photos("me", {"rather": photos[2]}, SIGNED).stage
    assert "One more photo is needed" in actions.set_photos("me", {"x": photos[0]}, SIGNED).stage
    contrast = actions.set_photos("me", {"y": photos[1]}, SIGNED).stage
    assert len(sources(contrast)) == 3
    for view in ("evidence", LINKS):
        assert "about the first two photos" in actions.redraw("me", "pair", replace(SIGNED, view=view)).stage
    pair = actions.set_photos("me", {"rather": None}, SIGNED).stage
    assert len(sources(pair)) == 2
    bad = tmp_path / "no photo.png"
    bad.write_text("no photo")
    refused = actions.set_photos("me", {"rather": bad}, SIGNED).stage
    assert "Cannot read" in refused
    assert sources(refused) == sources(pair)
    assert actions.set_photos("me", {"rather": photos[2]}, SIGNED).stage == contrast
    same = actions.set_photos("me", {"rather": photos[1]}, SIGNED).stage
    assert "as much like photo 1.png" in same
    assert same.count("gl-bar") == 2
    assert "The map is flat" in same
    assert "One more photo is needed" in actions.set_photos("me", {"y": None}, SIGNED).stage


def test_a_class_rather_than_another(actions: Actions, photos: list[Path]) -> None:
    first = actions.set_photos("me", {"photo": photos[0]}, SIGNED)
    best, second = re.findall(r'data-pick="(\d+)"', first.bars)[:2]
    stage = actions.set_against("me", second, SIGNED).stage
    assert f"Why {LABELS[int(best)]} rather than {LABELS[int(second)]}?" in stage
    assert f"speaks for {LABELS[int(second)]}" in stage
    wanted = actions.sessions.get("me").traces["class"].contrast(int(best), int(second)).explain("gam", 2, sign="both")
    arrays = np.load(io.BytesIO(actions.download("me", "class", "maps", SIGNED).data))
    np.testing.assert_array_equal(arrays["map"], wanted.numpy()[0])
    swapped = actions.set_target("me", int(second), SIGNED).stage
    assert "choose two different classes" in swapped
    assert f"Why {LABELS[int(second)]}?" in swapped
    wrong = actions.set_against("me", "think 3", SIGNED).stage
    assert "did you mean" in wrong
    assert "rather than" not in wrong
    actions.set_against("me", second, SIGNED)
    assert "rather than" not in actions.set_photos("me", {"photo": photos[1]}, SIGNED).stage


def test_links_of_an_average_are_exact_and_there_at_once(photos: list[Path]) -> None:
    actions, seen = counted(small_lens())
    actions.set_photos("me", {"x": photos[0], "y": photos[1]}, USUAL)
    stage = actions.redraw("me", "pair", LINKED).stage
    found = actions.sessions.get("me").traces["pair"].interactions()
    assert "nothing remains" in stage
    assert stage.count("<li>") == USUAL.links
    assert f"{found.links(1)[0].value:+.2g}" in stage
    assert actions.redraw("me", "pair", replace(LINKED, links=2)).stage.count("<li>") == 2
    assert sources(actions.redraw("me", "pair", replace(LINKED, links=2)).stage) != sources(stage)
    for other in (replace(LINKED, method="attention_gam"), replace(LINKED, sign="both", sharp=True)):
        assert sources(actions.redraw("me", "pair", other).stage) == sources(stage)  # links are no maps
        assert "split" in json.loads(actions.download("me", "pair", "json", other).data)
    picture = Image.open(io.BytesIO(actions.download("me", "pair", "picture", LINKED).data))
    assert data_uri(picture) == sources(stage)[0]
    np.testing.assert_allclose(
        np.load(io.BytesIO(actions.download("me", "pair", "maps", LINKED).data))["interactions"], found.matrix
    )
    assert "choose Cosine or Dot" in actions.redraw("me", "pair", replace(LINKED, score="euclidean")).stage
    assert seen == [2]


@pytest.mark.parametrize("lens", [from_output, with_class_token])
def test_links_of_any_other_embedding_are_computed_when_asked_for(photos: list[Path], lens: Callable[[], Lens]) -> None:
    """A question first, then both links and matches of points, which tell what remains."""
    actions, seen = counted(lens())
    actions.set_photos("me", {"x": photos[0], "y": photos[1]}, USUAL)
    before = len(seen)
    asked = actions.redraw("me", "pair", LINKED).stage
    assert "no average over positions" in asked
    assert "data-ask" in asked
    point = ClickedPoint("x", 0.2, 0.2)
    assert "Back to the maps" in actions.set_point("me", point, USUAL).stage
    assert len(seen) == before
    assert "is being computed" in actions.start_split("me", USUAL).stage
    until(lambda: not actions.split_news("me")[0])
    running, news = actions.split_news("me")
    assert (running, news is None) == (False, False)
    assert str(news and news.stage).count("gl-dot") == 2
    ran = len(seen)
    assert ran > before
    stage = actions.redraw("me", "pair", LINKED).stage
    assert "remains, which belongs to no pair of places" in stage
    assert stage.count("<li>") == USUAL.links
    assert "remains" in actions.redraw("me", "pair", replace(LINKED, score="dot")).stage
    assert "and a remainder" in actions.set_point("me", point, replace(USUAL, score="dot")).stage
    assert len(seen) == ran
    assert "data-ask" in actions.set_photos("me", {"y": photos[2]}, LINKED).stage


def test_while_links_are_computed_everything_else_goes_on(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """One visitor at a time; stopping, leaving and failing end it, and free the place for the next one."""
    lens, go = from_output(), threading.Event()
    actions = Actions(ModelCache({"small": lens}, any_name=False))
    trace_pair = lens.trace_pair

    def slow_trace(*given: object, **options: object) -> object:
        assert not in_background() or go.wait(PATIENCE)
        return trace_pair(*given, **options)

    monkeypatch.setattr(lens, "trace_pair", slow_trace)
    for visitor in ("me", "you"):
        actions.set_photos(visitor, {"x": photos[0], "y": photos[1]}, LINKED)
        assert "gl-progress" in actions.start_split(visitor, LINKED).stage
    split, waiting = (actions.sessions.get(visitor).split for visitor in ("me", "you"))
    assert isinstance(split, ScoreSplit)
    until(lambda: split.begun is not None)
    assert "another visitor" in actions.redraw("you", "pair", LINKED).stage
    assert actions.split_news("me")[0] is True
    with pytest.raises(Exception, match="was not computed"):
        actions.download("me", "pair", "picture", LINKED)
    actions.sessions.end("you")
    assert actions.split_news("you") == (False, None)
    assert "data-ask" in actions.stop_split("me", LINKED).stage
    go.set()
    until(lambda: split.done and waiting is not None and waiting.done)
    broken = lens.model.fc.register_forward_pre_hook(lambda *_: 1 / 0 if in_background() else None)
    actions.set_point("me", ClickedPoint("x", 0.2, 0.2), USUAL)
    stages = [actions.start_split("me", USUAL).stage]
    until(lambda: "gl-progress" not in stages[-1] or bool(stages.append(actions.redraw("me", "pair", USUAL).stage)))
    failed = stages[-1]
    assert "ZeroDivisionError" in failed
    assert len(sources(failed)) == 2
    broken.remove()
    actions.start_split("me", LINKED)
    until(lambda: not actions.split_news("me")[0])
    assert "gl-links" in actions.redraw("me", "pair", LINKED).stage


def in_background() -> bool:
    return threading.current_thread().name == "split a score"


def test_controls_of_a_page_are_checked() -> None:
    values = [getattr(replace(USUAL, sign="bad", links=99), name) for name in Controls.__dataclass_fields__]
    assert Controls.from_values(values) == replace(USUAL, sign="raises", links=24)
