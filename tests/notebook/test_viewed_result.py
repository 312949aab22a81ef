"""What a view shows: its maps are those of the lens, from one forward, and the result is as it was."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
import torch
from studio_kit import noise, small_lens

from gamlens import Explanation, GamlensError, Lens, PairExplanation, Refinement, Transform
from gamlens.explanation import concat
from gamlens.notebook.viewed_result import HIGHEST_LEVEL, PointOfPair, ViewedResult, ViewRequest


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    return [str(noise(tmp_path / f"{seed}.png", seed=seed)) for seed in range(3)]


@pytest.fixture
def lens() -> Lens:
    return small_lens()


@pytest.fixture
def forwards(lens: Lens) -> Iterator[list[int]]:
    """How many images each forward of the lens's model ran on."""
    seen: list[int] = []
    hook = lens.model.register_forward_hook(lambda module, args, output: seen.append(len(args[0])))
    yield seen
    hook.remove()


def viewed(result: Explanation | PairExplanation) -> ViewedResult:
    sides = (result,) if isinstance(result, Explanation) else (result.x, result.y)
    return ViewedResult(sides, result.origin)


def values(side: dict[str, Any], size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """The map of a side in its own values, (H,W)."""
    levels = np.frombuffer(side["values"], "<u2").reshape(size).astype(float)
    return side["low"] + levels / HIGHEST_LEVEL * (side["high"] - side["low"])


def same(shown: dict[str, Any], *wanted: Explanation) -> None:
    for side, row in zip(shown["sides"], wanted, strict=True):
        full = row.full().numpy()  # the photos are smaller than a view, so that they are shown at their own size
        assert np.abs(values(side, full.shape) - full).max() < 1e-4


def test_the_first_view_is_the_result_and_takes_no_forward(lens: Lens, photos: list[str], forwards: list[int]) -> None:
    result, pair = lens.classify(photos, method="hires_cam", n=1), lens.compare(*photos[:2], method="gam")
    forwards.clear()
    for found in (result, pair):
        view = viewed(found)
        view.menus()
        assert [photo["size"] for photo in view.photos(0)] == [[96, 64]] * len(view.sides)
        same(view.shown(view.first), *(side[0] for side in view.sides))
    assert forwards == []


@pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
@pytest.mark.parametrize("options", [{}, {"views": ("flip", 1.43)}, {"sign": "both"}, {"fuse": "max"}, {"sharp": True}])
def test_every_map_is_that_of_the_lens_and_takes_one_forward(
    lens: Lens, photos: list[str], forwards: list[int], options: dict[str, Any]
) -> None:
    classes = lens.classify(photos[:2], [[3, 4], [5]], n=1, **options)
    pairs = lens.compare(photos[:2], photos[1:], score="dot", n=1, **options)
    rest = {name: value for name, value in options.items() if name != "sharp"}
    for result, single in ((classes, True), (pairs, False)):
        view = viewed(result)
        methods = [entry["name"] for entry in view.menus()["methods"] if entry["kind"] not in ("input", "attention")]
        assert {"gam", "layer_cam"} <= set(methods)
        forwards.clear()
        for method in methods:
            for n, refine in ((1, False), (2, True), (3, False)):
                asked = ViewRequest(1, method, n, refine)
                shown = view.shown(asked)
                assert len(forwards) <= (1 if "views" not in options else 4), (method, n, refine)
                keep, forwards[:] = list(forwards), []
                if single:
                    wanted: tuple[Explanation, ...] = (
                        lens.classify(photos[0], 4, method=method, n=n, refine=refine, **rest),
                    )
                else:
                    pair = lens.compare(photos[1], photos[2], score="dot", method=method, n=n, refine=refine, **rest)
                    wanted = (pair.x, pair.y)
                same(shown, *wanted)
                forwards[:] = keep
        assert forwards


def test_a_contrast_and_a_callable_score(lens: Lens, photos: list[str]) -> None:
    contrast = lens.classify(photos[0], 2, against=5, sign="both", n=1)
    view = viewed(contrast)
    shown = view.shown(ViewRequest(0, "layer_cam", 2, False))
    assert "rather than" in shown["title"]
    same(shown, lens.classify(photos[0], 2, against=5, sign="both", method="layer_cam", n=2))

    def second(output: torch.Tensor) -> torch.Tensor:
        return output[:, 1] * 2

    own = lens.classify(photos[0], score=second, n=1)
    same(viewed(own).shown(ViewRequest(0, "gam", 3, False)), lens.classify(photos[0], score=second, n=3))


def test_a_tensor_and_the_result_s_own_refinement(lens: Lens) -> None:
    torch.manual_seed(0)
    batch, how = torch.randn(2, 3, 64, 64), Refinement(blocks=1, keep=0.2)
    view = viewed(lens.classify(batch, [1, 2], refine=how, n=2))
    assert view.first.refine
    same(view.shown(ViewRequest(1, "gam", 1, True)), lens.classify(batch[1:], 2, refine=how, n=1))


def test_a_method_of_pixels_has_a_forward_of_its_own(lens: Lens, photos: list[str], forwards: list[int]) -> None:
    view = viewed(lens.classify(photos[0], n=1))
    forwards.clear()
    for method in ("input_gradient", "gam", "input_gradient", "layer_cam"):
        shown = view.shown(ViewRequest(0, method, 1, False))
        kept, wanted = list(forwards), lens.classify(photos[0], method=method, n=1)
        forwards[:] = kept
        same(shown, wanted)
    assert len(forwards) == 2  # one for pixels, and one for blocks: LayerCAM's; GAM's map was there


@pytest.mark.parametrize("side", ["x", "y"])
def test_matches_are_those_of_the_trace(lens: Lens, photos: list[str], forwards: list[int], side: str) -> None:
    view = viewed(lens.compare(*photos[:2]))
    forwards.clear()
    asked = ViewRequest(0, "gam", 2, False, PointOfPair(side, 0.8, 0.3))
    shown, again = view.shown(asked), view.shown(ViewRequest(0, "gam", 2, False, PointOfPair(side, 0.1, 0.3)))
    assert len(forwards) == 1
    wanted = lens.trace_pair(*photos[:2]).matches((0.8 * 96, 0.3 * 64), side=side)
    number = "xy".index(side)
    there = shown["sides"][1 - number]
    assert np.abs(values(there, (64, 96)) - wanted.full().numpy()).max() < 1e-4
    assert there["spot"] == pytest.approx([wanted.best[0] / 96, wanted.best[1] / 64])
    here = shown["sides"][number]
    assert "values" not in here
    assert here["spot"] == [0.8, 0.3]
    assert here["cell"] == pytest.approx((0.75, 0.25, 0.25, 0.25))
    assert f"{wanted.part:.3g} of {wanted.score:.3g}" in shown["caption"]
    assert again["sides"][1 - number]["values"] != there["values"]


@pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
@pytest.mark.parametrize("pool", [torch.nn.AdaptiveMaxPool2d(1), torch.nn.Flatten()], ids=["max", "layer"])
def test_matches_of_other_embeddings(photos: list[str], pool: torch.nn.Module) -> None:
    """The trace is kept without its graph; the layers after the last block run again all the same."""
    torch.manual_seed(0)
    stem = torch.nn.Sequential(nets.stage(3, 8), nets.stage(8, 12), nets.stage(12, 16))
    head = torch.nn.Linear(16 * 64, 4) if isinstance(pool, torch.nn.Flatten) else torch.nn.Linear(16, 4)
    model = torch.nn.Sequential(stem, pool, torch.nn.Flatten(), head).eval()
    lens = Lens(model, transform=Transform((64, 64)), blocks=["0.1", "0.2"], embedding="3")
    view, pair, seen = viewed(lens.compare(*photos[:2], n=1)), lens.trace_pair(*photos[:2], n=1), set()
    for x in (0.1, 0.3, 0.5, 0.7, 0.9):
        shown = view.shown(ViewRequest(0, "gam", 1, False, PointOfPair("x", x, 0.5)))
        wanted = pair.matches((96 * x, 32)).full().numpy()
        assert np.abs(values(shown["sides"][1], (64, 96)) - wanted).max() < 1e-4
        assert bool(shown["note"]) == (wanted.max() == 0)
        seen.add(bool(shown["note"]))
    assert False in seen


def test_errors_say_what_is_wrong(lens: Lens, photos: list[str]) -> None:
    view, pair = viewed(lens.classify(photos[0])), viewed(lens.compare(*photos[:2], score="euclidean"))
    point = PointOfPair("x", 0.5, 0.5)
    first = view.first
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: view.shown(ViewRequest(0, "gamm", 1, False)), "did you mean 'gam'"),
        (lambda: view.shown(ViewRequest(3, "gam", 1, False)), "no row 3"),
        (lambda: view.shown(ViewRequest(0, "gam", 9, False)), "9"),
        (lambda: view.shown(ViewRequest(0, "gam", 1, False, point)), "pairs"),
        (lambda: pair.shown(ViewRequest(0, "gam", 1, False, point)), "'euclidean' has no matches"),
        (lambda: ViewRequest.parse({"row": 0}), "found {'row': 0}"),
        (lambda: ViewRequest.parse({"row": 0, "method": "gam", "n": 1, "refine": 0, "point": 3}), "row, method"),
        (
            lambda: viewed(lens.classify(photos)[0]).shown(ViewRequest(0, "layer_cam", 1, False)),
            "does not know its lens",
        ),
        (lambda: viewed(lens.classify(photos[0])[[]]), "no row"),
    ]
    for act, text in cases:
        with pytest.raises(GamlensError, match=text):
            act()
    same(view.shown(first), lens.classify(photos[0]))


def test_another_transform_is_not_shown_as_the_lens_s_own(lens: Lens, photos: list[str]) -> None:
    inputs = Lens(lens.model, transform=Transform((64, 64), mode="crop", short=96)).prepare(photos[0])
    view = viewed(lens.classify(inputs, n=1))
    view.shown(view.first)
    with pytest.raises(GamlensError, match="prepared in another way"):
        view.shown(ViewRequest(0, "layer_cam", 1, False))


def test_another_photo_in_the_same_file_is_not_explained(lens: Lens, photos: list[str]) -> None:
    """It has the same size, so that only the score tells."""
    point = ViewRequest(0, "gam", 2, False, PointOfPair("x", 0.5, 0.5))
    for result, asked in (
        (lens.classify(photos[0], n=2), ViewRequest(0, "layer_cam", 2, False)),
        (lens.classify(photos[0], 2, against=5, sign="both", n=2), ViewRequest(0, "layer_cam", 2, False)),
        (lens.compare(*photos[:2], score="dot"), point),
    ):
        view, before = viewed(result), Path(photos[0]).read_bytes()
        Path(photos[0]).write_bytes(Path(photos[2]).read_bytes())
        with pytest.raises(GamlensError, match="Call the lens again"):
            view.shown(asked)
        Path(photos[0]).write_bytes(before)
        assert view.shown(asked)["sides"]


def test_a_flat_map_is_noted(photos: list[str]) -> None:
    model = nets.small().float()
    torch.nn.init.zeros_(model.fc.weight)
    with pytest.warns(match="flat"):
        view = viewed(Lens(model, transform=Transform((64, 64))).classify(photos[0], n=1))
    assert view.shown(view.first)["note"] == "The map is flat: GAM marks no pixel of 0.png."


def test_parts_and_copies_of_a_result_have_no_origin(lens: Lens, photos: list[str], tmp_path: Path) -> None:
    result, pair = lens.classify(photos), lens.compare(photos[:2], photos[1:])
    assert result.origin is not None
    assert pair.origin is not None
    assert result.cpu().origin is result.origin
    assert pair.cpu().origin is pair.origin
    result.save(str(tmp_path / "classes"))
    pair.save(str(tmp_path / "pair"))
    parts: list[Explanation | PairExplanation] = [
        *(result[0], result[:2], *result.each(), concat([result, result]), Explanation.load(str(tmp_path / "classes"))),
        *(pair[0], pair[:1], pair.x, pair.y, PairExplanation.load(str(tmp_path / "pair"))),
    ]
    for made in (result, pair):
        parts += [pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)]
    for part in parts:
        assert part.origin is None
        view = viewed(part)
        assert view.menus()["fixed"]
        assert len(view.menus()["methods"]) == 1
        assert view.shown(view.first)["sides"]
    assert b"Lens" not in pickle.dumps(result)
    assert "origin" not in repr(result) + repr(pair)


def test_another_row_and_forget_drop_the_trace(lens: Lens, photos: list[str], forwards: list[int]) -> None:
    view = viewed(lens.classify(photos))
    forwards.clear()
    for row in (0, 0, 1, 1, 0):
        view.shown(ViewRequest(row, "layer_cam", 1, False))
    assert len(forwards) == 3
    view.forget()
    view.shown(ViewRequest(0, "hires_cam", 1, False))
    assert len(forwards) == 4


def test_a_long_result_lists_its_first_rows(lens: Lens) -> None:
    torch.manual_seed(0)
    menus = viewed(lens.classify(torch.randn(13, 3, 64, 64), [list(range(10))] * 13, n=1)).menus()
    assert (len(menus["rows"]), menus["more_rows"]) == (100, 30)
    assert menus["rows"][11] == "image 1: thing 1"


def test_the_model_is_left_as_it_was(lens: Lens, photos: list[str]) -> None:
    model = lens.model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hooks = len(model._forward_hooks)
    view = viewed(lens.compare(*photos[:2]))
    view.shown(ViewRequest(0, "layer_cam", 3, True))
    with pytest.raises(GamlensError):
        view.shown(ViewRequest(0, "gam", 9, False))
    assert model.training
    assert len(model._forward_hooks) == hooks
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_views_in_threads_show_what_they_show_alone(lens: Lens, photos: list[str]) -> None:
    """Several views of one lens, and several threads in one view."""
    results = [lens.classify(photos[0]), lens.classify(photos), lens.compare(*photos[:2])]
    asked = [
        ViewRequest(0, method, n, refine) for method in ("layer_cam", "hires_cam") for n in (1, 3) for refine in (0, 1)
    ]
    alone = [[viewed(result).shown(one)["sides"] for one in asked] for result in results]
    views, found, failed = [viewed(result) for result in results], {}, []

    def work(number: int) -> None:
        try:
            for turn in range(len(asked)):
                at = (turn + number) % len(asked)
                for place, view in enumerate(views):
                    found[number, place, at] = view.shown(asked[at])["sides"]
        except Exception as error:  # noqa: BLE001 - it fails the test
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(found) == 4 * len(views) * len(asked)
    assert all(sides == alone[place][at] for (_, place, at), sides in found.items())
