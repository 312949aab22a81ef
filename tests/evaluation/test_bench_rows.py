"""Rows of the bench: every metric of the model's score by hand, variants, costs, and no masked image run twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from gamlens import GamlensError, Lens, Transform, metrics
from gamlens.cli import app
from gamlens.data import load
from gamlens.evaluation import results
from gamlens.evaluation.contests import contests
from gamlens.evaluation.explainer_cost import peak_bytes
from gamlens.evaluation.masked import MaskedForwards, fingerprints, raw, seeded
from gamlens.evaluation.measure import NOISE_RADIUS, evaluate
from gamlens.evaluation.protocol import Protocol, units

IMAGES, SIDE = 6, 64
EVERYTHING: dict[str, Any] = {
    "curves": 4, "road": (20.0, 60.0), "infidelity": 3, "sensitivity": 2, "coherency": True, "equal_mass": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def root(boxed: Callable[..., Path]) -> Path:
    return boxed(IMAGES, lambda number: 20 + 5 * number)


def measured(lens: Lens, root: Path, protocol: Protocol, *, batch: int = 4, limit: int | None = None) -> list[Any]:
    items = [unit for unit in units(load("table", root / "items.csv"), protocol) if "broken" not in unit.name][:limit]
    rows = [row for part in evaluate(lens, items, protocol, batch=batch) for row in part]
    assert not [row["error"] for row in rows if row["error"]]
    return rows


def probability(lens: Lens, inputs: Tensor, label: int) -> float:
    return float(lens.outputs(inputs).double().softmax(dim=1)[0, label])


def normalised(lens: Lens, image: Tensor) -> Tensor:
    mean, std = (torch.tensor(value)[:, None, None] for value in (lens.transform.mean, lens.transform.std))
    return (image - mean) / std


def test_equal_inputs_run_once() -> None:
    """Whoever asks, in batches of the given size, and answers are those of the model."""
    seen: list[int] = []

    def run(batch: Tensor) -> Tensor:
        seen.append(len(batch))
        return batch.flatten(1).sum(dim=1, keepdim=True)

    forwards = MaskedForwards(run, at_once=3)
    a, b = torch.rand(4, 3, 8, 8), torch.rand(2, 3, 8, 8)
    forwards.know(b[1:], torch.tensor([[7.0]]))
    tickets = [forwards.add(a), forwards.add(b), forwards.add(torch.cat([b[:1], a[2:]]))]
    assert seen == [3]
    found = [forwards.outputs(ticket) for ticket in tickets]
    assert seen == [3, 2]
    torch.testing.assert_close(found[0][:, 0], a.flatten(1).sum(dim=1))
    torch.testing.assert_close(found[1][:, 0], torch.stack([b[0].sum(), torch.tensor(7.0)]))
    torch.testing.assert_close(found[2][:, 0], torch.stack([b[0].sum(), a[2].sum(), a[3].sum()]))


def test_fingerprints_tell_inputs_apart() -> None:
    inputs = torch.rand(2, 3, 8, 8)
    changed = inputs.clone()
    changed[1, 2, 7, 7] = torch.nextafter(changed[1, 2, 7, 7], torch.tensor(2.0))
    mine, theirs = fingerprints(inputs), fingerprints(changed)
    assert mine[0] == theirs[0]
    assert mine[1] != theirs[1]
    assert fingerprints(inputs.flip(3)) != mine


@pytest.mark.parametrize("task", ["classification", "cosine"])
def test_no_masked_image_runs_twice(lens: Lens, root: Path, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """With every metric: the masked inputs of a batch are all different, and their number is that by hand."""
    seen: Counter[Any] = Counter()
    name = "outputs" if task == "classification" else "embed"
    real = getattr(Lens, name)

    def counting(self: Lens, images: Any) -> Tensor:
        seen.update(fingerprints(images))
        found: Tensor = real(self, images)
        return found

    monkeypatch.setattr(Lens, name, counting)
    protocol = Protocol("objective", task, ("gam", "grad_cam", "layer_cam"), (1, 2), pairs="neighbour", **EVERYTHING)
    measured(lens, root, protocol, batch=3, limit=3)
    assert set(seen.values()) == {1}
    if task != "classification":  # an image may be x of one pair and y of another
        return
    # GAM and LayerCAM are equal where activations are not negative, so that they share everything. Per map: image x
    # map, its ranks, 3 inner steps of both curves, 2 x 2 removals. Of the controls, the ranks and the orders of blank
    # and ones are the same, so both share what follows from these; blank is black, which runs once, and ones is the
    # image itself, which the trace has run.
    each = 1 + 1 + 2 * 3 + 4
    controls = (each - 1) + 2 * each
    squares = 3
    assert sum(seen.values()) == 3 * (4 * each + controls + squares) + 1


def test_scores_of_masked_classes(lens: Lens, root: Path) -> None:
    """Insertion, deletion, ROAD, infidelity, coherency and sensitivity of one row, each computed step by step."""
    protocol = Protocol("objective", methods=("gam",), n=(2,), **EVERYTHING)
    row = next(row for row in measured(lens, root, protocol) if row["method"] == "gam" and row["item"] == "03.png")
    file, label = str(root / "03.png"), row["label"]
    prepared = lens.prepare(file)
    image, maps = raw(lens, prepared), lens.classify(file, label, n=2).maps
    whole = probability(lens, prepared.batches[0], label)
    pixels = SIDE * SIDE

    order = maps.flatten().argsort(descending=True, stable=True)
    inserted, deleted = [], []
    for step in range(5):
        mask = torch.zeros(pixels)
        mask[order[: step * pixels // 4]] = 1
        inserted.append(probability(lens, normalised(lens, image * mask.view(1, 1, SIDE, SIDE)), label))
        deleted.append(probability(lens, normalised(lens, image * (1 - mask.view(1, 1, SIDE, SIDE))), label))
    assert row["insertion"] == pytest.approx((sum(inserted) - (inserted[0] + inserted[-1]) / 2) / 4, abs=1e-5)
    assert row["deletion"] == pytest.approx((sum(deleted) - (deleted[0] + deleted[-1]) / 2) / 4, abs=1e-5)

    noise = 0.01 * torch.randn(3, SIDE, SIDE, generator=seeded("03.png"))
    for column, last in (("road_morf", False), ("road_lerf", True)):
        found = []
        for share in (20, 60):
            count = int(share * pixels / 100)
            removed = torch.zeros(pixels, dtype=torch.bool)
            removed[order[-count:] if last else order[:count]] = True
            removed = removed.view(1, SIDE, SIDE)
            seen = normalised(lens, metrics.impute(image, removed)) + noise * removed
            found.append(probability(lens, seen, label))
        assert row[column] == pytest.approx(sum(found) / 2, abs=1e-5)

    a, b = [], []
    for size, y, x in torch.rand(3, 3, generator=seeded("03.png")).tolist():
        side = round((1 / 8 + (1 / 2 - 1 / 8) * size) * SIDE)
        top, left = int(y * (SIDE - side + 1)), int(x * (SIDE - side + 1))
        hidden = image.clone()
        hidden[..., top : top + side, left : left + side] = 0
        a.append(float(maps[0, top : top + side, left : left + side].sum()))
        b.append(whole - probability(lens, normalised(lens, hidden), label))
    beta = sum(p * q for p, q in zip(a, b, strict=True)) / sum(p * p for p in a)
    expected = sum((beta * p - q) ** 2 for p, q in zip(a, b, strict=True)) / 3
    assert row["infidelity"] == pytest.approx(expected, abs=1e-7)

    again = lens.classify(normalised(lens, image * maps[:, None]), [label], n=2).maps
    pearson = float(torch.corrcoef(torch.stack([maps.flatten(), again.flatten()]).double())[0, 1])
    assert row["coherency"] == pytest.approx((pearson + 1) / 2, abs=1e-4)

    shares = []
    for number in (1, 2):
        noise = NOISE_RADIUS * (2 * torch.rand(3, SIDE, SIDE, generator=seeded("03.png", number)) - 1)
        other = lens.classify(prepared.batches[0] + noise, [label], n=2).maps
        shares.append(float((other - maps).norm() / maps.norm()))
    assert row["max_sensitivity"] == pytest.approx(max(shares), rel=1e-3)


@pytest.mark.parametrize("masking", ["one", "both"])
def test_curves_of_pairs(lens: Lens, root: Path, masking: str) -> None:
    """The similarity while positions of x, or of both images, appear and vanish in the order of their maps."""
    protocol = Protocol("objective", "cosine", ("gam",), (1,), pairs="neighbour", curves=4, masked=masking)
    rows = measured(lens, root, protocol, limit=2)
    row = next(row for row in rows if row["method"] == "gam" and row["side"] in ("x", "both"))
    files = [str(root / name) for name in row["item"].split("~")]
    result = lens.compare(*files, n=1)
    found: dict[str, list[float]] = {"insertion": [], "deletion": []}
    for step in range(5):
        for name, values in found.items():
            embeddings = []
            for file, side in zip(files, (result.x, result.y), strict=True):
                mask = torch.zeros(SIDE * SIDE)
                mask[side.maps.flatten().argsort(descending=True, stable=True)[: step * SIDE * SIDE // 4]] = 1
                mask = (1 - mask if name == "deletion" else mask).view(1, 1, SIDE, SIDE)
                seen = normalised(lens, raw(lens, lens.prepare(file)) * mask)
                embeddings.append(lens.embed(seen if side is result.x or masking == "both" else file))
            values.append(float(torch.nn.functional.cosine_similarity(*embeddings)))
    for name, values in found.items():
        assert row[name] == pytest.approx((sum(values) - (values[0] + values[-1]) / 2) / 4, abs=1e-5)


@pytest.mark.parametrize("task", ["classification", "cosine"])
def test_variants_are_made_of_the_same_trace(lens: Lens, root: Path, task: str) -> None:
    """Refined maps and maps over views stand beside the plain ones, each as the lens makes it."""
    names = ("gam", "gam+refine", "gam+views", "gam+refine+views")
    rows = measured(lens, root, Protocol("localization", task, names, (1, 2), pairs="neighbour", variant_n=2), limit=2)
    assert {(row["method"], row["n"]) for row in rows if row["n"]} == {("gam", 1), *((name, 2) for name in names)}
    assert {"centre_refined", "random_refined"} <= {row["method"] for row in rows}
    for name in names:
        row = next(row for row in rows if (row["method"], row["n"]) == (name, 2))
        how: dict[str, Any] = {"refine": "refine" in name, "views": ("flip", 1.43, 2.0) if "views" in name else ()}
        files = [str(root / one) for one in row["item"].split("~")]
        if task == "classification":
            maps = lens.classify(files[0], row["label"], n=2, **how).maps
        else:
            maps = lens.compare(*files, n=2, **how).x.maps
        assert row["map_mean"] == pytest.approx(float(maps.mean()), abs=1e-5)


def test_refined_controls_are_not_taken_for_constant(lens: Lens, root: Path) -> None:
    """Plain controls never change; refined ones follow the image, and are not explained again."""
    protocol = Protocol("objective", methods=("gam+refine",), n=(2,), sensitivity=1, coherency=True)
    rows = {row["method"]: row for row in measured(lens, root, protocol, limit=1)}
    assert (rows["centre"]["coherency"], rows["centre"]["max_sensitivity"]) == (pytest.approx(1), 0)
    assert rows["gam+refine"]["max_sensitivity"] > 0
    assert rows["centre_refined"]["sparseness"] > 0
    for name in ("coherency", "adcc", "max_sensitivity"):
        assert name not in rows["centre_refined"]


def test_a_method_of_pixels_has_nothing_to_fuse(lens: Lens, root: Path) -> None:
    protocol = Protocol(methods=("gam", "input_gradient"), n=(2,), fusions=("weights", "mean"))
    rows = measured(lens, root, protocol, limit=1)
    assert [row["fuse"] for row in rows if row["method"] == "input_gradient"] == ["weights"]


def test_two_kinds_at_once_are_the_same_numbers(lens: Lens, root: Path) -> None:
    both, one, other = (
        measured(lens, root, Protocol(kind, methods=("gam",), n=(1,)), limit=3)
        for kind in ("objective+localization", "objective", "localization")
    )
    for joint, scored, placed in zip(both, one, other, strict=True):
        assert {**scored, **placed} == joint


def test_methods_that_read_pixels_have_one_row(lens: Lens, root: Path) -> None:
    rows = measured(lens, root, Protocol("objective", methods=("gam", "input_gradient"), n=(1, 2)), limit=2)
    assert {row["n"] for row in rows if row["method"] == "input_gradient"} == {1}
    row = next(row for row in rows if row["method"] == "input_gradient")
    maps = lens.classify(str(root / row["item"]), row["label"], method="input_gradient").maps
    assert row["map_mean"] == pytest.approx(float(maps.mean()), abs=1e-6)


def test_a_method_with_one_row_stands_against_every_n(lens: Lens, root: Path) -> None:
    data = load("table", root / "items.csv")
    protocol = Protocol(methods=("gam", "grad_cam", "input_gradient"), n=(1, 2))
    about = {**results.describe(lens, data, protocol, 3), "weights": "trained"}
    run = results.collect(about, measured(lens, root, protocol, limit=3))
    found = {(contest.n, contest.other, contest.other_n) for contest in contests(run)}
    assert {one for one in found if one[2]} == {
        (1, "grad_cam", 1), (2, "grad_cam", 2), (1, "input_gradient", 1), (2, "input_gradient", 1),
    }  # fmt: skip


def test_costs_are_measured_in_the_first_batch(lens: Lens, root: Path) -> None:
    """Time for all items of the batch; on a CPU memory for the first item. Other runs have neither column."""
    rows = measured(lens, root, Protocol("localization", methods=("gam",), n=(1, 2), cost=True), batch=2)
    own = [row for row in rows if row["method"] == "gam"]
    assert [row["item"] for row in own if row["n"] == 1 and row.get("seconds", 0) > 0] == ["00.png", "01.png"]
    memory = {row["n"]: row["peak_bytes"] for row in own if row.get("peak_bytes", 0) > 0}
    assert set(memory) == {1, 2}
    assert not any("seconds" in row for row in rows if row["n"] == 0)
    assert not any("seconds" in row for row in measured(lens, root, Protocol(methods=("gam",)), limit=2))


def test_peak_bytes_counts_what_is_alive() -> None:
    def call() -> Tensor:
        a = torch.zeros(1000)
        b = a + 1
        del a
        return (b * 2).view(-1)[::2]

    assert peak_bytes(call, torch.device("cpu")) == 2 * 4000


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"methods": ("gam+sharp",)}, r"\+sharp, which means nothing"),
        ({"methods": ("gam+refine",), "refine": 2}, "leave refine and views out"),
        ({"methods": ("gam", "gam")}, "named twice"),
        ({"methods": ("vdsn",)}, "explains pairs only"),
        ({"methods": ("input_gradient+views",)}, "reads the pixels"),
        ({"road": (10.0,)}, "needs kind objective"),
        ({"kind": "objective", "road": (0.0,)}, "between 0 and 100"),
        ({"kind": "objective", "infidelity": -1}, "give 0 to leave them out"),
        ({"kind": "objective+localization", "masked": "both"}, "needs masked='one'"),
        ({"variant_n": 3}, "add it"),
        ({"task": "cosine", "methods": ("vdsn+views",)}, r"leave \+views out"),
        ({"kind": "objective", "task": "cosine", "masked": "both", "coherency": True}, "coherency belongs to the map"),
    ],
)
def test_a_protocol_refuses(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(GamlensError, match=said):
        Protocol(**wrong)


def test_a_file_of_yours_on_the_command_line(boxed: Callable[..., Path], tmp_path: Path) -> None:
    """Its rows are in the run, and a run is not continued with another version of the file."""
    root = boxed(3, lambda number: 50, ("zero", "one"))
    mine = tmp_path / "mine.py"
    mine.write_text("def explain(model, batch, targets):\n    return batch.mean(dim=1)\n")
    data = ["--data", "table", "--root", str(root / "items.csv"), "--model", "lenet5", "--weights", "random"]
    words = ["evaluate", "objective", *data, "--methods", f"gam,{mine}:explain", "-n", "1", "--out", f"{tmp_path}/run"]
    first = CliRunner().invoke(app, words)
    assert first.exit_code == 1  # one file of the data set is no image
    assert "1 items could not be measured" in first.output
    run = results.read(tmp_path / "run")
    assert (f"{mine}:explain", 1) in run.groups
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["explainers"][f"{mine}:explain"]) >= 64
    mine.write_text("def explain(model, batch, targets):\n    return -batch.mean(dim=1)\n")
    again = CliRunner().invoke(app, words)
    assert again.exit_code != 0
    assert "explainers" in again.output


@pytest.mark.parametrize("name", ["grad_cam_lib:GradCAM", "captum:LayerGradCam"])
def test_our_grad_cam_and_theirs_have_the_same_figures(root: Path, name: str) -> None:
    """Where no map is resized, which each does in its own way, every metric agrees."""
    pytest.importorskip("pytorch_grad_cam" if name.startswith("grad_cam_lib") else "captum")
    torch.manual_seed(3)
    block = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 5, padding=2), torch.nn.ReLU())
    head = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(6, 2))
    lens = Lens(torch.nn.Sequential(block, head), blocks=["0"], transform=Transform((SIDE, SIDE)))
    protocol = Protocol("objective+localization", methods=("grad_cam", name), n=(1,), **EVERYTHING)
    rows = measured(lens, root, protocol, limit=3)
    ours, theirs = ([row for row in rows if row["method"] == method] for method in ("grad_cam", name))
    compared = [column for column in ours[0] if column not in ("method", "truth", "boxes")]
    for mine, other in zip(ours, theirs, strict=True):
        for column in compared:
            assert mine[column] == pytest.approx(other[column], abs=2e-3, nan_ok=True), column
