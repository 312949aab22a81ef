"""Every action of a visitor, without a page: what it answers, and that only a new photo runs the model."""

from __future__ import annotations

import io
import json
import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from studio_kit import LABELS, noise, small_lens

from gamlens import GamlensError, Lens, methods
from gamlens.render import COLORMAPS
from gamlens.studio.actions import Actions
from gamlens.studio.controls import MEAN_OF_N, OUTLINES, VIEWS, Controls
from gamlens.studio.downloads import Download
from gamlens.studio.model_cache import ModelCache
from gamlens.studio.session import ClickedPoint

pytestmark = pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
USUAL = Controls()


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    return [noise(tmp_path / f"photo {number}.png", seed=number) for number in range(3)]


def sources(stage: str) -> list[str]:
    return re.findall(r'<img src="([^"]+)"', stage)


def turned(blocks: tuple[str, ...]) -> list[Controls]:
    """Controls that differ from the usual ones in one thing each."""
    names = methods.names("block")
    found = [replace(USUAL, method=name) for name in names if name not in ("gam", "layer_cam")]
    found += [replace(USUAL, n=n) for n in range(1, len(blocks) + 1) if n != USUAL.n]
    found += [replace(USUAL, block=name) for name in blocks]
    found += [replace(USUAL, sharp=True, block=name) for name in (MEAN_OF_N, *blocks)]
    found += [replace(USUAL, sharp=True, n=1), replace(USUAL, sharp=True, view="three")]
    found += [replace(USUAL, cmap=name) for name in COLORMAPS if name != USUAL.cmap]
    found += [replace(USUAL, opacity=0.3), replace(USUAL, view="three"), replace(USUAL, view="evidence")]
    outlined = [replace(USUAL, outline=(name,)) for name in OUTLINES]
    return [*found, *outlined, *(replace(one, threshold=0.6) for one in outlined)]


def count_forwards(lens: Lens) -> list[int]:
    seen: list[int] = []
    lens.model.stem.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    return seen


def test_only_a_new_photo_runs_the_model(photos: list[Path]) -> None:
    """Every control, another class, another score and a point: no forward."""
    lens = small_lens()
    actions, seen = Actions(ModelCache({"small": lens}, any_name=False)), count_forwards(lens)
    blocks = actions.set_photos("me", {"photo": photos[0]}, USUAL).blocks
    actions.set_photos("me", {"x": photos[1]}, USUAL)
    actions.set_photos("me", {"y": photos[2]}, USUAL)
    assert seen == [1, 2]
    for controls in turned(blocks):
        actions.redraw("me", "class", controls)
        actions.redraw("me", "pair", controls)
        actions.redraw("me", "pair", replace(controls, score="dot"))
        actions.download("me", "class", "picture", controls)
        actions.download("me", "pair", "maps", controls)
    actions.set_target("me", 3, USUAL)
    actions.set_target("me", "thing 4", USUAL)
    actions.set_point("me", ClickedPoint("x", 0.3, 0.7), USUAL)
    actions.set_point("me", ClickedPoint("y", 0.3, 0.7), replace(USUAL, score="dot"))
    assert seen == [1, 2]


def test_every_control_changes_the_picture(actions: Actions, photos: list[Path]) -> None:
    usual = actions.set_photos("me", {"photo": photos[0]}, USUAL)
    actions.set_photos("me", {"x": photos[1]}, USUAL)
    pair = actions.set_photos("me", {"y": photos[2]}, USUAL)
    assert len(sources(usual.stage)) == 1
    assert len(sources(pair.stage)) == 2
    for controls in turned(usual.blocks):
        assert sources(actions.redraw("me", "class", controls).stage) != sources(usual.stage), controls
        assert sources(actions.redraw("me", "pair", controls).stage) != sources(pair.stage), controls
    assert sources(actions.redraw("me", "pair", replace(USUAL, score="dot")).stage) != sources(pair.stage)
    assert sources(actions.redraw("me", "pair", replace(USUAL, method="vdsn")).stage) != sources(pair.stage)
    assert actions.redraw("me", "class", USUAL).stage == usual.stage
    assert actions.redraw("me", "pair", USUAL).stage == pair.stage


def test_views(actions: Actions, photos: list[Path]) -> None:
    actions.set_photos("me", {"photo": photos[0]}, USUAL)
    actions.set_photos("me", {"x": photos[1]}, USUAL)
    actions.set_photos("me", {"y": photos[2]}, USUAL)
    shown = {view: actions.redraw("me", "class", replace(USUAL, view=view)).stage for view in VIEWS}
    both = {view: actions.redraw("me", "pair", replace(USUAL, view=view)).stage for view in VIEWS}
    assert [len(sources(stage)) for stage in shown.values()] == [1, 3, 3]
    assert [len(sources(stage)) for stage in both.values()] == [2, 6, 6]
    for title in ("GAM", "Grad-CAM", "Grad-CAM++"):
        assert f"<strong>{title}</strong>" in shown["three"]
    for title in ("P: adds", "N: takes away", "Hidden: |N| ≥ P"):
        assert f"<strong>{title}</strong>" in shown["evidence"]
    assert all(re.search(r'alt="photo 0.png: \w', text) for text in shown.values())


def test_class_by_click_and_by_name(actions: Actions, photos: list[Path]) -> None:
    first = actions.set_photos("me", {"photo": photos[0]}, USUAL)
    assert len(re.findall("data-pick", first.bars)) == 5
    last = re.findall(r'data-pick="(\d+)"', first.bars)[-1]
    other = actions.set_target("me", int(last), USUAL)
    assert f"Why {LABELS[int(last)]}?" in other.stage
    assert sources(other.stage) != sources(first.stage)
    assert f'data-pick="{last}" aria-pressed="true"' in other.bars
    rare = next(number for number in range(10) if f'data-pick="{number}"' not in first.bars)
    asked = actions.set_target("me", f" {LABELS[rare].upper()} ", USUAL)
    assert len(re.findall("data-pick", asked.bars)) == 6
    assert f'data-pick="{rare}" aria-pressed="true"' in asked.bars
    wrong = actions.set_target("me", "think 3", USUAL)
    assert "did you mean &#39;thing 3&#39;" in wrong.stage
    assert sources(wrong.stage) == sources(asked.stage)


def test_point_to_point(actions: Actions, photos: list[Path]) -> None:
    actions.set_photos("me", {"x": photos[1]}, USUAL)
    maps = actions.set_photos("me", {"y": photos[2]}, USUAL).stage
    left = actions.set_point("me", ClickedPoint("x", 0.1, 0.9), USUAL).stage
    right = actions.set_point("me", ClickedPoint("y", 0.1, 0.9), USUAL).stage
    assert left.count("gl-dot") == right.count("gl-dot") == 2
    assert "left:0.00%;top:75.00%;width:25.00%;height:25.00%" in left
    assert sources(left)[1] != sources(right)[1]
    assert 'data-pick="back"' in left
    assert sources(actions.redraw("me", "pair", replace(USUAL, cmap="ocean")).stage)[0] != sources(right)[0]
    assert "gl-dot" in actions.redraw("me", "pair", replace(USUAL, score="dot")).stage
    assert "gl-dot" not in actions.redraw("me", "pair", replace(USUAL, method="grad_cam")).stage
    assert actions.set_point("me", None, USUAL).stage == maps


def test_a_similarity_without_matches_says_so(actions: Actions, photos: list[Path]) -> None:
    other = replace(USUAL, score="euclidean")
    actions.set_photos("me", {"x": photos[1]}, other)
    maps = actions.set_photos("me", {"y": photos[2]}, other).stage
    assert "data-side" not in maps
    asked = actions.set_point("me", ClickedPoint("x", 0.1, 0.9), other).stage
    assert "no sum over pairs of positions" in asked
    assert sources(asked) == sources(maps)


def test_downloads(actions: Actions, tmp_path: Path) -> None:
    wide = noise(tmp_path / "wide one.png", seed=5, size=(1400, 700))
    other = noise(tmp_path / "other.png", seed=6, size=(1400, 600))
    actions.set_photos("me", {"photo": wide}, USUAL)
    picture = actions.download("me", "class", "picture", replace(USUAL, outline=("box",)))
    assert picture.name == "wide-one-gam.png"
    assert Image.open(io.BytesIO(picture.data)).size == (1400, 700)
    arrays = np.load(io.BytesIO(actions.download("me", "class", "maps", USUAL).data))
    trace = actions.sessions.get("me").traces["class"]
    assert trace is not None
    np.testing.assert_array_equal(arrays["map"], trace.explain("gam", 2).numpy()[0])
    np.testing.assert_array_equal(arrays["raw:layer3"], trace.raw("gam", "layer3")[0].numpy())
    record = json.loads(actions.download("me", "class", "json", USUAL).data)
    assert record["photo"] == "wide one.png"
    assert record["class"] == record["top"][0]["name"]
    assert record["box"] == pytest.approx(trace.explain("gam", 2).boxes()[0].tolist())
    assert record["controls"]["method"] == record["about"]["method"] == "gam"
    actions.set_photos("me", {"x": wide}, USUAL)
    actions.set_photos("me", {"y": other}, USUAL)
    actions.set_point("me", ClickedPoint("x", 0.5, 0.5), USUAL)
    record = json.loads(actions.download("me", "pair", "json", replace(USUAL, score="dot")).data)
    pair = actions.sessions.get("me").traces["pair"]
    assert pair is not None
    assert record["score"] == pytest.approx(float(pair.sides("dot")[0].scores[0]))
    assert record["point"]["part"] == pytest.approx(pair.matches((700, 350), score="dot").part)
    arrays = np.load(io.BytesIO(actions.download("me", "pair", "maps", USUAL).data))
    assert {"x:map", "y:map", "x:raw:layer2", "y:raw:layer3"} <= set(arrays.files)
    assert Image.open(io.BytesIO(actions.download("me", "pair", "picture", USUAL).data)).height == 411
    actions.set_point("me", None, USUAL)
    assert Image.open(io.BytesIO(actions.download("me", "pair", "picture", USUAL).data)).height == 600


SHARP = replace(USUAL, sharp=True)


def test_sharp_maps_are_refined_and_say_so(actions: Actions, photos: list[Path]) -> None:
    """On the page, and in all files that are saved: the map of n blocks, of one block, and both of a pair."""
    actions.set_photos("me", {"photo": photos[0]}, USUAL)
    actions.set_photos("me", {"x": photos[1], "y": photos[2]}, USUAL)
    trace, pair = actions.sessions.get("me").traces.values()
    plain, stage = (actions.redraw("me", "class", controls).stage for controls in (USUAL, SHARP))
    assert "<span>last 2 blocks, sharp</span>" in stage
    assert "GAM, sharp, why thing" in stage
    assert "sharp" not in plain
    maps = actions.download("me", "class", "maps", SHARP)
    assert maps.name == "photo-0-gam-sharp.npz"
    np.testing.assert_array_equal(array(maps, "map"), trace.explain("gam", 2, refine=True).numpy()[0])
    own = trace.explain("gam", 2, [1, 0], refine=True)
    one = actions.download("me", "class", "maps", replace(SHARP, block="layer2"))
    np.testing.assert_array_equal(array(one, "map"), own.numpy()[0])
    assert not np.array_equal(array(one, "map"), own.blocks["layer2"][0].numpy())
    both = actions.download("me", "pair", "maps", replace(SHARP, score="dot"))
    wanted = pair.explain("gam", 2, score="dot", refine=True)
    np.testing.assert_array_equal(array(both, "x:map"), wanted.x.numpy()[0])
    np.testing.assert_array_equal(array(both, "y:map"), wanted.y.numpy()[0])
    for tab in ("class", "pair"):
        found = [json.loads(actions.download("me", tab, "json", controls).data) for controls in (USUAL, SHARP)]
        assert [record["controls"]["sharp"] for record in found] == [False, True]
        assert "refine" not in found[0]["about"]
        assert found[1]["about"]["refine"] == {"blocks": ["layer2", "layer1"], "keep": 0.5}


def array(file: Download, name: str) -> np.ndarray:
    return np.load(io.BytesIO(file.data))[name]


def test_sharp_leaves_pictures_that_are_no_maps(actions: Actions, photos: list[Path]) -> None:
    """Eq. 4 stays as it is, which a note says; a clicked point goes back to the maps."""
    actions.set_photos("me", {"x": photos[1], "y": photos[2]}, USUAL)
    plain, sharp = (replace(controls, view="evidence") for controls in (USUAL, SHARP))
    before, after = (actions.redraw("me", "pair", controls).stage for controls in (plain, sharp))
    assert sources(before) == sources(after)
    assert "which stay as they are" in after
    assert "which stay as they are" not in before
    assert actions.download("me", "pair", "picture", sharp).name == "photo-1-photo-2-gam.png"
    assert "gl-dot" in actions.set_point("me", ClickedPoint("x", 0.1, 0.9), USUAL).stage
    assert "gl-dot" not in actions.redraw("me", "pair", SHARP).stage


def test_a_model_of_one_block_has_no_sharp_maps(photos: list[Path]) -> None:
    """It works as before: the switch is off and cannot be used, and nothing says that a map is sharp."""
    lens = Lens(small_lens().model, blocks=["layer3"], transform=small_lens().transform)
    actions = Actions(ModelCache({"one block": lens}, any_name=False))
    shown = actions.set_photos("me", {"photo": photos[0]}, SHARP)
    assert "Why class" in shown.stage
    assert shown == actions.redraw("me", "class", USUAL)
    actions.set_photos("me", {"x": photos[1], "y": photos[2]}, SHARP)
    assert actions.redraw("me", "pair", SHARP) == actions.redraw("me", "pair", USUAL)
    assert actions.download("me", "class", "json", SHARP).name == "photo-0-gam.json"
    assert json.loads(actions.download("me", "class", "json", SHARP).data)["controls"]["sharp"] is False


def test_visitors_have_their_own(actions: Actions, photos: list[Path]) -> None:
    answers = [
        actions.set_photos(f"visitor {number}", {"photo": photo}, USUAL).stage for number, photo in enumerate(photos)
    ]
    actions.set_target("visitor 0", 2, USUAL)
    assert len(set(answers)) == 3
    assert [actions.redraw(f"visitor {number}", "class", USUAL).stage for number in (1, 2)] == answers[1:]
    actions.sessions.end("visitor 1")
    assert "Drop a photo" in actions.redraw("visitor 1", "class", USUAL).stage


def test_messages(actions: Actions, photos: list[Path], tmp_path: Path) -> None:
    assert "Drop a photo" in actions.redraw("me", "class", USUAL).stage
    assert "Give two photos" in actions.redraw("me", "pair", USUAL).stage
    assert "One more photo" in actions.set_photos("me", {"x": photos[0]}, USUAL).stage
    (tmp_path / "text.jpg").write_text("<b>no</b>")
    answer = actions.set_photos("me", {"photo": tmp_path / "text.jpg"}, USUAL)
    assert 'role="alert"' in answer.stage
    assert "Cannot read" in answer.stage
    assert "Drop a photo" in actions.set_photos("me", {"photo": None}, USUAL).stage
    refused = actions.use_model("me", actions.choose_model("me", "smal"), USUAL, USUAL)
    assert "did you mean" in str(refused.notice)
    assert refused.class_update is refused.pair_update is None
    same = noise(tmp_path / "same.png", seed=9)
    actions.set_photos("me", {"x": same}, USUAL)
    assert "Choose the similarity Dot." in actions.set_photos("me", {"y": same}, USUAL).stage
    nothing = replace(USUAL, block="no such block")
    assert sources(actions.redraw("me", "pair", nothing).stage) == sources(actions.redraw("me", "pair", USUAL).stage)


def test_a_model_that_fails_is_a_message(photos: list[Path]) -> None:
    lens = small_lens()
    actions = Actions(ModelCache({"small": lens}, any_name=False))
    broken = lens.model.layer2.register_forward_hook(lambda *args: 1 / 0)
    answer = actions.set_photos("me", {"photo": photos[0]}, USUAL)
    assert "The model failed" in answer.stage
    assert "ZeroDivisionError" in answer.stage
    assert "Traceback" not in answer.stage
    broken.remove()
    assert photos[0].exists()
    assert "Why thing" in actions.set_photos("me", {"photo": photos[0]}, USUAL).stage


def test_a_defect_is_a_message_too(actions: Actions, photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gamlens.studio.actions.guesses", lambda trace: [][0])
    answer = actions.set_photos("me", {"photo": photos[0]}, USUAL)
    assert "This failed: IndexError" in answer.stage


def test_another_model(photos: list[Path]) -> None:
    other = Lens(small_lens().model, blocks=["layer2", "layer3"], transform=small_lens().transform)
    actions = Actions(ModelCache({"small": small_lens(), "other": other}, any_name=False))
    before = actions.set_photos("me", {"photo": photos[0]}, USUAL)
    actions.set_photos("me", {"x": photos[1]}, USUAL)
    actions.set_photos("me", {"y": photos[2]}, USUAL)
    choice = actions.choose_model("me", " other ")
    notice, first, second = actions.use_model("me", choice, replace(USUAL, block="layer1"), replace(USUAL, n=4))
    assert first is not None
    assert second is not None
    assert notice == ""
    assert (len(before.blocks), first.blocks, second.blocks) == (3, ("layer2", "layer3"), ("layer2", "layer3"))
    assert "Why class" in first.stage
    assert len(sources(second.stage)) == 2


class SlowModels(ModelCache):
    """Models that load when the test says so."""

    def __init__(self) -> None:
        super().__init__({"small": small_lens()}, any_name=True)
        self.slow: dict[str, Future[Lens]] = {}

    def load(self, name: str, *, download: bool = False) -> Future[Lens]:
        return self.slow.setdefault(name, Future()) if name not in self.given else super().load(name, download=download)


def test_a_visitor_goes_on_while_a_model_loads(photos: list[Path]) -> None:
    actions = Actions(models := SlowModels())
    choice = actions.choose_model("me", "slow")
    assert "Why thing" in actions.set_photos("me", {"photo": photos[0]}, USUAL).stage
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(actions.use_model, "me", choice, USUAL, USUAL)
        assert "Why thing" in actions.set_photos("me", {"photo": photos[1]}, USUAL).stage
        assert not waiting.done()
        models.slow["slow"].set_result(Lens(small_lens().model, transform=small_lens().transform))
        shown = waiting.result(20).class_update
    assert shown is not None
    assert "Why class" in shown.stage
    assert actions.model("me") == ("slow", models.slow["slow"].result())
    assert "Why class" in actions.set_photos("me", {"photo": photos[2]}, USUAL).stage


def test_a_visitor_who_leaves_while_a_model_loads_stays_away() -> None:
    actions = Actions(models := SlowModels())
    choice = actions.choose_model("me", "slow")
    actions.sessions.end("me")
    models.slow["slow"].set_result(small_lens())
    assert actions.use_model("me", choice, USUAL, USUAL) == (None, None, None)
    assert len(actions.sessions) == 0


def test_the_last_choice_counts() -> None:
    actions = Actions(models := SlowModels())
    early, late = actions.choose_model("me", "early"), actions.choose_model("me", "late")
    models.slow["late"].set_result(small_lens())
    assert actions.use_model("me", late, USUAL, USUAL).notice == ""
    models.slow["early"].set_exception(GamlensError("too late"))
    assert actions.use_model("me", early, USUAL, USUAL) == (None, None, None)
    assert actions.model("me")[0] == "late"


def test_a_download_is_asked_about_before_it_happens(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("gamlens.models.remote_weights._unreachable", lambda remote: "no network")
    monkeypatch.setattr("torch.hub.download_url_to_file", lambda *_: pytest.fail("downloaded"))
    actions = Actions(ModelCache({"small": small_lens()}, any_name=True))
    actions.set_photos("me", {"photo": photos[0]}, USUAL)
    asked, *tabs = actions.use_model("me", actions.choose_model("me", "resnet18"), USUAL, USUAL)
    assert "resnet18 would download about 45 MB from download.pytorch.org; it is not on this machine." in str(asked)
    assert 'data-pick="resnet18"' in str(asked)
    assert tabs == [None, None]
    agreed = actions.use_model("me", actions.choose_model("me", "resnet18", download=True), USUAL, USUAL)
    assert "cannot be reached (no network)" in str(agreed.notice)
    assert actions.model("me")[0] == "small"
    shared = Actions(ModelCache({"small": small_lens()}, any_name=False))
    refused = shared.use_model("me", shared.choose_model("me", "resnet18", download=True), USUAL, USUAL)
    assert "There is no model" in str(refused.notice)


def test_notes(photos: list[Path]) -> None:
    """What a person should know: random weights, flat maps, what Grad-CAM hides."""
    random = Lens("lenet5", weights="random")
    actions = Actions(ModelCache({"lenet5": random}, any_name=False))
    assert "weights are random" in actions.set_photos("me", {"photo": photos[0]}, USUAL).stage
    lens = small_lens()
    with torch.no_grad():
        lens.model.fc.weight[0] = -lens.model.fc.weight.abs().max()
    actions = Actions(ModelCache({"small": lens}, any_name=False))
    actions.set_photos("me", {"photo": photos[0]}, USUAL)
    actions.set_target("me", 0, USUAL)
    assert "The map is flat" in actions.redraw("me", "class", replace(USUAL, n=1)).stage
    trace = actions.sessions.get("me").traces["class"]
    assert trace is not None
    share = [float(trace.retarget(number).evidence().hidden_share[0]) for number in range(1, 10)]
    worst, best = share.index(max(share)) + 1, share.index(min(share)) + 1
    assert min(share) < 0.5 < max(share)
    cam = replace(USUAL, method="grad_cam")
    assert f"Grad-CAM hides {100 * max(share):.0f} %" in actions.set_target("me", worst, cam).stage
    assert "Grad-CAM hides" not in actions.set_target("me", best, cam).stage
