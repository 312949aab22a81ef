"""Evaluation: rows, thresholds, controls and tables on small data, and a slice of the real data."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import nets
import numpy as np
import pytest
import torch
from PIL import Image
from run_files import titles, write_run
from torchvision.transforms.v2.functional import gaussian_blur
from typer.testing import CliRunner

from gamlens import GamlensError, Lens, Refinement, Transform, metrics
from gamlens.cli import app
from gamlens.data import Box, Dataset, Sample, hold_out, load, neighbour_pairs, small
from gamlens.evaluation import masked, results, tables
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.paper_numbers import PaperNumber, paper_of
from gamlens.evaluation.protocol import Protocol, units, variant
from gamlens.evaluation.table_files import comma_separated, latex

SIDE, IMAGES = 64, 12


@pytest.fixture(scope="module")
def root(boxed: Callable[..., Path]) -> Path:
    return boxed(IMAGES, lambda number: 20 + 5 * number)


def measured(lens: Lens, root: Path, protocol: Protocol) -> results.Run:
    dataset = load("table", root / "items.csv")
    items = units(dataset, protocol)
    rows = [row for part in evaluate(lens, items, protocol, batch=5) for row in part]
    return results.collect(results.describe(lens, dataset, protocol, len(items)), rows)


def test_localization_rows(lens: Lens, root: Path) -> None:
    """A row's IoU is that of the box around the map, in input pixels, at every threshold."""
    protocol = Protocol("localization", methods=("gam", "grad_cam"), n=(1, 2), hold_out=4)
    run = measured(lens, root, protocol)
    assert [row["item"] for row in run.errors] == ["broken.png"]
    good = [row for row in run.rows if not row["error"]]
    assert len(good) == IMAGES * (2 * 2 + len(metrics.CONTROLS))
    row = next(row for row in good if row["item"] == "03.png" and row["method"] == "gam" and row["n"] == 2)
    maps = lens.classify(str(root / "03.png"), 1, n=2).maps
    truth = torch.tensor([[10 * SIDE / 100, 8 * SIDE / 80, 35 * SIDE / 100, 60 * SIDE / 80]])
    assert row["label"] == 1
    torch.testing.assert_close(torch.tensor([row["iou"]]), metrics.iou_grid(maps, [truth]).float(), atol=1e-6, rtol=0)
    assert row["map_mean"] == pytest.approx(float(maps.mean()), abs=1e-6)
    held = {row["item"] for row in good if row["held_out"]}
    assert held == {"00.png", "04.png", "08.png"}


def test_objective_rows(lens: Lens, root: Path) -> None:
    """Before and after are the class's logit on the image and on image x map; all ones change nothing."""
    run = measured(lens, root, Protocol("objective", methods=("gam",), n=(1,)))
    good = [row for row in run.rows if not row["error"]]
    ones = [row for row in good if row["method"] == "ones"]
    assert len(ones) == IMAGES
    assert all(row["after_logit"] == pytest.approx(row["before_logit"], abs=1e-4) for row in ones)
    row = next(row for row in good if row["item"] == "05.png" and row["method"] == "gam")
    trace = lens.trace(str(root / "05.png"), 1, n=1)
    maps = trace.explain("gam", n=1).maps
    small = Image.open(root / "05.png").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    raw = torch.from_numpy(np.asarray(small, dtype=np.float32) / 255).permute(2, 0, 1) * maps
    mean, std = (torch.tensor(value)[:, None, None] for value in (lens.transform.mean, lens.transform.std))
    after = lens.trace(((raw - mean) / std)[None], 1, n=1).output[0, 1]
    assert row["before_logit"] == pytest.approx(float(trace.output[0, 1]), abs=1e-4)
    assert row["after_logit"] == pytest.approx(float(after), abs=1e-4)


def test_objective_rows_of_equal_mass(lens: Lens, root: Path) -> None:
    """The drop of the class's logit on image x ranks of the map; blank maps and ones hide half of every pixel."""
    run = measured(lens, root, Protocol("objective", methods=("gam",), n=(1,), equal_mass=True))
    good = [row for row in run.rows if not row["error"]]
    row = next(row for row in good if row["method"] == "gam" and row["equal_mass_drop_logit"] > 0.01)
    raw = masked.raw(lens, lens.prepare(str(root / row["item"])))
    maps = metrics.equal_mass(lens.classify(str(root / row["item"]), row["label"], n=1).maps)
    mean, std = lens.transform.mean, lens.transform.std
    after = lens.outputs(metrics.explain_mask(raw, maps, mean=mean, std=std))[0, row["label"]]
    before = torch.tensor([row["before_logit"]])
    expected = float(metrics.drop(before, after[None].double())[0])
    assert row["equal_mass_drop_logit"] == pytest.approx(expected, abs=1e-4)
    drops = {(r["item"], r["method"]): r["equal_mass_drop_logit"] for r in good}
    for item in {row["item"] for row in good}:
        assert drops[item, "blank"] == pytest.approx(drops[item, "ones"], nan_ok=True)
    named = {cell.metric for cell in tables.cells(run)}
    assert {"ADP", "ADP (equal mass)", "PIC"} <= named
    plain = measured(lens, root, Protocol("objective", methods=("gam",), n=(1,)))
    assert not any("equal_mass_drop_logit" in row for row in plain.rows)


@pytest.mark.parametrize("masking", ["one", "both"])
def test_equal_mass_of_pairs(lens: Lens, root: Path, masking: str) -> None:
    """The drop of the similarity when x, or x and y, are seen through the ranks of their maps."""
    usual = {"methods": ("gam",), "n": (1,), "pairs": "neighbour", "equal_mass": True}
    run = measured(lens, root, Protocol("objective", "cosine", masked=masking, **usual))
    row = next(r for r in run.rows if not r["error"] and r["method"] == "gam" and r["side"] in ("x", "both"))
    files = [str(root / name) for name in row["item"].split("~")]
    found = lens.compare(*files, n=1)
    hidden = []
    for file, side in zip(files, (found.x, found.y), strict=True):
        raw, maps = masked.raw(lens, lens.prepare(file)), metrics.equal_mass(side.maps)
        seen = metrics.explain_mask(raw, maps, mean=lens.transform.mean, std=lens.transform.std)
        hidden.append(lens.embed(seen if side is found.x or masking == "both" else file))
    after = torch.nn.functional.cosine_similarity(*hidden)
    expected = float(metrics.drop(found.scores, after)[0])
    assert row["equal_mass_drop_similarity"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("task", ["classification", "cosine"])
def test_refined_rows(lens: Lens, root: Path, task: str) -> None:
    """With refine=1 the maps are refined, and so are the controls centre and random, beside the plain ones."""
    protocol = Protocol("localization", task, methods=("gam",), n=(1,), refine=1, keep=0.25, pairs="neighbour")
    run = measured(lens, root, protocol)
    good = [row for row in run.rows if not row["error"]]
    assert {row["method"] for row in good} == {"gam", *metrics.CONTROLS, "centre_refined", "random_refined"}
    assert variant(run.about).endswith("refine=1, keep=0.25")
    how = Refinement(1, 0.25)
    first = next(row for row in good if row["method"] == "gam")
    files = [str(root / name) for name in first["item"].split("~")]
    if task == "classification":
        trace = lens.trace(files[0], first["label"], n=1, refine=how)
    else:
        trace = lens.trace_pair(*files, n=1, refine=how).sides(task)[0]
    expected = float(trace.explain("gam", 1, refine=how).maps.mean())
    assert first["map_mean"] == pytest.approx(expected, abs=1e-6)
    assert expected != pytest.approx(float(trace.explain("gam", 1).maps.mean()), abs=1e-6)
    prior = metrics.centre_prior(SIDE, SIDE)[None]
    refined = next(row for row in good if row["item"] == first["item"] and row["method"] == "centre_refined")
    assert refined["map_mean"] == pytest.approx(float(trace.refine(prior, how).mean()), abs=1e-6)


def test_a_protocol_refuses_wrong_refinements() -> None:
    for wrong, said in (
        ({"refine": -1}, "refine=-1"),
        ({"keep": 0.2}, "needs refine"),
        ({"refine": 2, "keep": 3}, "keep=3"),
    ):
        with pytest.raises(GamlensError, match=said):
            Protocol(**wrong)


def test_the_temperature_of_the_probability(lens: Lens, root: Path) -> None:
    """Probabilities before and after are softmax(class scores / T); class scores and maps stay as they are."""
    plain, heated = (
        measured(lens, root, Protocol("objective", methods=("gam",), n=(1,), temperature=heat)) for heat in (1, 4)
    )
    assert (plain.about["protocol"]["temperature"], heated.about["protocol"]["temperature"]) == (1.0, 4.0)
    assert (variant(plain.about), variant(heated.about)) == ("", "temperature=4.0")
    names = ("before_logit", "after_logit", "map_mean")
    assert [[row[name] for name in names] for row in heated.rows if not row["error"]] == [
        [row[name] for name in names] for row in plain.rows if not row["error"]
    ]
    row = next(row for row in heated.rows if row["item"] == "05.png" and row["method"] == "gam")
    output = lens.outputs(str(root / "05.png"))[0].double()
    expected = float((output / 4).exp()[1] / (output / 4).exp().sum())
    assert row["before_probability"] == pytest.approx(expected, rel=1e-5)
    other = next(row for row in plain.rows if row["item"] == "05.png" and row["method"] == "gam")
    assert abs(row["after_probability"] - other["after_probability"]) > 1e-4


@pytest.mark.parametrize("task", ["cosine", "dot"])
def test_pairs(lens: Lens, root: Path, task: str) -> None:
    protocol = Protocol("objective", task, ("gam", "vdsn"), (1,), pairs="neighbour")
    run = measured(lens, root, protocol)
    good = [row for row in run.rows if not row["error"]]
    assert {row["side"] for row in good} == {"x", "y"}
    row = next(row for row in good if row["item"] == "00.png~02.png")
    expected = lens.compare(str(root / "00.png"), str(root / "02.png"), score=task, n=1).scores
    assert row["before_similarity"] == pytest.approx(float(expected[0]), rel=1e-4)
    located = measured(lens, root, Protocol("localization", task, ("gam",), (2,), pairs="neighbour"))
    assert len([row for row in located.rows if row["method"] == "gam"]) == 2 * 10


def test_the_number_of_pairs_per_class(root: Path, lens: Lens) -> None:
    """Two classes; the first pairs of each are the same however many are drawn."""
    dataset = load("table", root / "items.csv")
    drawn = {count: units(dataset, Protocol(task="dot", pairs_per_class=count)) for count in (1, 3, 5)}
    assert {count: len(found) for count, found in drawn.items()} == {1: 2, 3: 6, 5: 10}
    assert [unit.name for unit in drawn[3]] == [unit.name for unit in units(dataset, Protocol(task="dot"))]
    assert [unit.name for unit in drawn[1]] == [drawn[5][0].name, drawn[5][5].name]
    about = results.describe(lens, dataset, Protocol(task="dot", pairs_per_class=5), 10)
    assert about["protocol"]["pairs_per_class"] == 5
    assert variant(about) == "pairs_per_class=5"
    del about["protocol"]["pairs_per_class"]  # as in a run of an earlier version
    assert variant(about) == ""


class Half:
    """The left half of an 80 x 100 image is the object, its last row void."""

    def read(self, label: int) -> np.ndarray:
        mask = np.zeros((80, 100), dtype=bool)
        mask[:, :50] = True
        return mask

    def void(self) -> np.ndarray:
        void = np.zeros((80, 100), dtype=bool)
        void[-5:] = True
        return void


def test_segmentation_rows(lens: Lens, root: Path) -> None:
    """All ones cover the whole image: IoU one half, void left out; a map's IoU is counted pixel by pixel."""
    image = str(root / "01.png")
    dataset = Dataset("mine", str(root), ("ant", "bee"), (Sample("01.png", image, (1,), mask=Half()),))
    protocol = Protocol("segmentation", methods=("gam",), n=(1,), hold_out=0)
    (rows,) = evaluate(lens, units(dataset, protocol), protocol)
    found = {row["method"]: row["iou"] for row in rows}
    assert found["ones"] == pytest.approx([0.5] * 19)
    assert found["blank"] == pytest.approx([0.0] * 19)
    hit = lens.classify(image, 1, n=1).maps[0] >= 0.5
    truth, seen = torch.zeros(SIDE, SIDE, dtype=torch.bool), torch.ones(SIDE, SIDE, dtype=torch.bool)
    truth[:, : SIDE // 2], seen[-4:] = True, False
    expected = float((hit & truth & seen).sum() / ((hit | truth) & seen).sum())
    assert found["gam"][9] == pytest.approx(expected, abs=1e-6)
    both = replace(protocol, kind="objective+segmentation")
    (joint,) = evaluate(lens, units(dataset, both), both)
    assert [row["iou"] for row in joint] == [row["iou"] for row in rows]
    ones = next(row for row in joint if row["method"] == "ones")
    assert (ones["relevance_mass"], ones["after_logit"]) == (pytest.approx(0.5), ones["before_logit"])


def test_small_objects_and_bad_choices(root: Path) -> None:
    dataset = load("table", root / "items.csv")
    few = units(dataset, Protocol(subset="25"))
    assert [unit.name for unit in few] == ["00.png", "01.png", "02.png"]
    for wrong, message in (
        ({"kind": "locate"}, "did you mean 'localization'"),
        ({"task": "cosin"}, "did you mean 'cosine'"),
        ({"methods": ("vdsn",)}, "explains pairs only"),
        ({"kind": "segmentation", "task": "dot"}, "for classes only"),
        ({"n": ()}, "at least one method and n"),
        ({"pairs_per_class": 0}, "give the number of pairs to draw"),
        ({"pairs_per_class": 5, "pairs": "neighbour"}, "use pairs='drawn'"),
        ({"kind": "objective", "temperature": 0}, "give a number above 0"),
        ({"kind": "localization", "temperature": 2}, "needs kind objective and task classification"),
        ({"kind": "objective", "task": "dot", "temperature": 2}, "needs kind objective and task classification"),
    ):
        with pytest.raises(GamlensError, match=message):
            Protocol(**wrong)  # type: ignore[arg-type]


def test_a_table_in_the_papers_layout(lens: Lens, root: Path, tmp_path: Path) -> None:
    run = measured(lens, root, Protocol("localization", methods=("gam", "grad_cam"), n=(1, 2)))
    write_run(tmp_path / "run", run.about, run.rows)
    again = results.read(tmp_path / "run")
    assert again.about["protocol"]["methods"] == ["gam", "grad_cam"]
    assert again.about["fingerprint"] == run.about["fingerprint"]
    assert len(again.rows) == len(run.rows)
    found = tables.cells(again)
    header, lines = tables.rows_of(found)
    assert header[:6] == ("task", "data", "model", "metric", "items", "errors")
    assert header[6:11] == ("GAM n=1", "GAM n=2", "Impr.", "GAM n=2 vs n=1", "paper")
    assert header[-4:] == ("blank", "ones", "centre", "random")
    assert [line[3] for line in lines] == list(titles("localization"))
    cell = next(cell for cell in found if (cell.metric, cell.method, cell.n) == ("IoU", "gam", 1))
    rows = [row for row in run.rows if row["method"] == "gam" and row["n"] == 1]
    grid = torch.tensor([row["iou"] for row in rows], dtype=torch.float64)
    held = torch.tensor([row["held_out"] for row in rows])
    best = int(grid[held].mean(0).argmax())
    assert cell.value.mean == pytest.approx(100 * float(grid[~held][:, best].mean()))
    assert cell.threshold == pytest.approx(0.05 * (best + 1))
    assert latex(header, lines).count(r"\\") == len(lines) + 1
    assert comma_separated(header, lines).splitlines()[0].startswith("task,data")


def test_random_weights_never_enter_a_table(root: Path) -> None:
    lens = Lens(nets.small().float(), weights="random", transform=Transform((SIDE, SIDE)))
    with pytest.raises(GamlensError, match="random weights"):
        tables.cells(measured(lens, root, Protocol(methods=("gam",), n=(1,))))


def test_the_papers_numbers() -> None:
    """A number of the same model where there is one; a bound is a bound; Grad-CAM++'s belong to its literal form."""
    number = partial(PaperNumber, below=False)
    iou = paper_of("classification", "ilsvrc", "all", "IoU", "densenet201", "gam", 2)
    assert iou == number(56.9, model="densenet201", method="gam")
    pic = paper_of("cosine", "ilsvrc", "10", "PIC", "resnet50", "grad_cam", 1)
    assert pic == number(27.93, model="resnet101", method="grad_cam")
    voc = paper_of("classification", "voc", "25", "IoU", "tresnet_l", "gam", 1)
    assert voc == number(34.1, model="tresnet", method="gam")
    for method in ("grad_cam_pp", "grad_cam_pp_literal"):
        dead = paper_of("dot", "ilsvrc", "all", "IoU", "densenet201", method, 1)
        assert dead == PaperNumber(1.0, below=True, model="densenet201", method="grad_cam_pp_literal")
        assert str(dead) == "<1"
    assert paper_of("dot", "ilsvrc", "all", "IoU", "densenet201", "layer_cam", 1) is None


def test_a_number_of_another_method_says_so() -> None:
    """The paper ran the literal Grad-CAM++: beside the stable one its number names that method."""
    about = {"model": "resnet50", "weights": "given", "data": "ilsvrc", "protocol": Protocol(task="dot").record()}
    columns = {"iou": np.full((4, 19), 0.5, np.float32), "held_out": np.array([True, False, False, False])}
    columns["item"] = ["a", "b", "c", "d"]
    run = results.Run(about, {("grad_cam_pp", 1): columns, ("gam", 1): columns})
    found = {cell.method: cell for cell in tables.cells(run) if cell.metric == "IoU"}
    assert (found["gam"].paper, found["gam"].paper_shown, found["gam"].paper_model) == (57.9, "57.9", "resnet101")
    stable = found["grad_cam_pp"]
    assert (stable.paper, stable.paper_shown) == (None, "<1")
    assert stable.paper_model == "resnet101, Grad-CAM++ (literal)"


USER = """
import torch, nets
from gamlens import Lens, Transform
def lens():
    return Lens(nets.small().float(), transform=Transform((64, 64)))
"""


def test_commands(root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USER)
    model = ["--model", f"{tmp_path / 'mine.py'}:lens"]
    data = ["--data", "Table", "--root", str(root / "items.csv")]
    run = CliRunner().invoke(
        app, ["evaluate", "localization", *data, *model, "-o", str(tmp_path / "run"), "--methods", "gam"]
    )
    assert run.exit_code == 1
    assert "1 items could not be measured" in run.stderr
    assert "broken.png: Cannot read" in run.stderr
    made = CliRunner().invoke(app, ["table", str(tmp_path / "run"), "-o", str(tmp_path / "tables")])
    assert made.exit_code == 0, made.stderr
    names = {file.name for file in (tmp_path / "tables").iterdir()}
    assert names == {f"{name}.{kind}" for name in ("table", "paired") for kind in ("csv", "md", "tex")}
    subset = CliRunner().invoke(app, ["subset", "neighbour-pairs", *data, "-o", str(tmp_path / "pairs.json")])
    assert subset.exit_code == 0, subset.stderr
    assert (tmp_path / "pairs.json").exists()
    wrong = CliRunner().invoke(app, ["evaluate", "localisation", *data, *model, "-o", str(tmp_path / "x")])
    assert "did you mean 'localization'" in wrong.stderr
    odd = CliRunner().invoke(
        app, ["evaluate", "objective", *data, *model, "-o", str(tmp_path / "x"), "--views", "flop"]
    )
    assert "Views are 'flip' and scales" in odd.stderr
    unmasked = CliRunner().invoke(app, ["evaluate", "segmentation", *data, *model, "-o", str(tmp_path / "x")])
    assert "has the ground truth that segmentation needs" in unmasked.stderr
    assert not (tmp_path / "x").exists()
    five = ["subset", "pairs", *data, "--pairs-per-class", "5", "-o", str(tmp_path / "five.json")]
    assert CliRunner().invoke(app, five).stdout.startswith("10 items")
    folder = CliRunner().invoke(app, ["subset", "pairs", *data, "-o", str(tmp_path / "tables")])
    assert "it is a folder. Give the name of a file" in folder.stderr
    none = CliRunner().invoke(app, ["table", str(tmp_path)])
    assert "is not a run: run.json is missing" in none.stderr


def test_a_refined_run_by_command(root: Path, tmp_path: Path) -> None:
    """--refine and --keep are recorded and named in tables; equal mass is measured unless it makes no sense."""
    (tmp_path / "mine.py").write_text(USER)
    given = ["--data", "table", "--root", str(root / "items.csv"), "--model", f"{tmp_path / 'mine.py'}:lens"]
    given = ["evaluate", "objective", *given, "--methods", "gam", "--n", "1", "--limit", "3"]
    ways = {"refined": ["--refine", "1", "--keep", "0.25"], "plain": ["--no-equal-mass"]}
    ways["far"] = ["--task", "euclidean", "--pairs", "neighbour"]
    found = {}
    for name, words in ways.items():
        made = CliRunner().invoke(app, [*given, *words, "-o", str(tmp_path / name)])
        assert made.exit_code == 0, made.stderr
        found[name] = results.read(tmp_path / name)
    chosen = found["refined"].about["protocol"]
    assert (chosen["refine"], chosen["keep"], chosen["equal_mass"]) == (1, 0.25, True)
    assert ("random_refined", 0) in found["refined"].groups
    shown = CliRunner().invoke(app, ["table", str(tmp_path / "refined")])
    assert "refine=1, keep=0.25" in " ".join(shown.stdout.split())
    assert "ADP (equal mass)" in " ".join(shown.stdout.split())
    assert not found["plain"].about["protocol"]["equal_mass"]
    assert not found["far"].about["protocol"]["equal_mass"]
    wrong = CliRunner().invoke(app, [*given, "--keep", "0.25", "-o", str(tmp_path / "x")])
    assert "--keep 0.25 is a weight in refined maps" in wrong.stderr


def test_commands_for_pairs(root: Path, tmp_path: Path) -> None:
    """The hold-out of single maps is recorded and shown; notes are printed and written; linked pairs count as one."""
    (tmp_path / "mine.py").write_text(USER)
    given = ["--data", "table", "--root", str(root / "items.csv"), "--model", f"{tmp_path / 'mine.py'}:lens"]
    given += ["--task", "cosine", "--pairs", "neighbour", "--methods", "gam", "--hold-out", "3", "--limit", "5"]
    place = ["-o", str(tmp_path / "run")]
    made = CliRunner().invoke(app, ["evaluate", "localization", *given, *place, "--hold-out-by", "maps"])
    assert made.exit_code == 0, made.stderr
    run = results.read(tmp_path / "run")
    assert run.about["protocol"]["hold_out_by"] == "maps"
    assert sum(run.groups["gam", 1]["held_out"]) == 4
    out = tmp_path / "tables"
    shown = CliRunner().invoke(app, ["table", str(tmp_path / "run"), "-o", str(out)])
    assert shown.exit_code == 0, shown.stderr
    text = (out / "table.md").read_text()
    for part in (
        "hold_out_by=maps",
        "IoU, MaxBoxAcc, MaxBoxAccV2 count 6 maps of 5 pairs (4 belong",
        "5 pairs of cosine, table",
    ):
        assert part in " ".join(shown.stdout.split())
        assert part in text
    assert "GAM n=2 vs n=1" in text
    assert "% Rows of this table count different items." in (out / "table.tex").read_text()
    assert "whole pairs" in (out / "paired.md").read_text()
    linked = CliRunner().invoke(app, ["table", str(tmp_path / "run"), "--linked-pairs"])
    assert "10 maps of 1 groups of pairs" in " ".join(linked.stdout.split())
    wrong = CliRunner().invoke(app, ["evaluate", "localization", *given, *place, "--hold-out-by", "images"])
    assert "hold_out_by cannot be 'images'" in wrong.stderr


def test_hold_out_is_of_the_whole_set_and_of_whole_pairs(root: Path, tmp_path: Path) -> None:
    """Small objects keep the hold-out of all items; of pairs every tenth is held out, or every tenth map, x and y."""
    dataset = load("table", root / "items.csv")
    whole = {unit.name: unit.held_out for unit in units(dataset, Protocol(hold_out=4))}
    assert [name for name, held in whole.items() if held == (True,)] == ["00.png", "04.png", "08.png", "broken.png"]
    assert all(whole[unit.name] == unit.held_out for unit in units(dataset, Protocol(hold_out=4, subset="25")))
    pairs = units(dataset, Protocol(task="cosine", pairs="neighbour", hold_out=3))
    assert [unit.held_out for unit in pairs] == [(place % 3 == 0,) * 2 for place in range(len(pairs))]
    single = units(dataset, Protocol(task="cosine", pairs="neighbour", hold_out=3, hold_out_by="maps"))
    flat = [held for unit in single for held in unit.held_out]
    assert flat == [place % 3 == 0 for place in range(len(flat))]
    assert not any(held for unit in units(dataset, Protocol(hold_out=0)) for held in unit.held_out)
    named = hold_out(dataset, every=3)
    chosen = units(dataset, Protocol(hold_out=0), hold_out=named)
    assert {unit.name for unit in chosen if unit.held_out[0]} == named.names
    for by, expected in (("maps", lambda held: held), ("pairs", lambda held: (any(held),) * 2)):
        protocol = Protocol(task="dot", pairs="neighbour", hold_out=0, hold_out_by=by)
        for unit in units(dataset, protocol, hold_out=named):
            assert unit.held_out == expected(tuple(sample.name in named.names for sample in unit.samples))
    few = units(dataset, Protocol(), chosen=small(dataset, 25))
    assert {unit.name for unit in few} == small(dataset, 25).names
    drawn = neighbour_pairs(dataset)
    assert len(units(dataset, Protocol(task="dot"), chosen=drawn)) == len(drawn.items)
    with pytest.raises(GamlensError, match="dot needs pairs"):
        units(dataset, Protocol(task="dot"), chosen=small(dataset, 25))


def test_an_item_without_its_annotation_is_an_error_row(lens: Lens, root: Path) -> None:
    image = str(root / "01.png")
    bare, boxed = Sample("01.png", image, (1,)), Sample("02.png", image, (1,), (Box(1, 8, 8, 40, 40),))
    dataset = Dataset("mine", str(root), ("ant", "bee"), (bare, boxed))
    (rows,) = evaluate(lens, units(dataset, Protocol()), Protocol())
    assert [row["error"] for row in rows if row["error"]] == ["01.png has no ground-truth box of class 1."]
    assert {row["item"] for row in rows if not row["error"]} == {"02.png"}


def test_data_of_which_no_item_has_its_annotation_is_an_error_at_once(root: Path) -> None:
    dataset = Dataset("mine", str(root), ("ant", "bee"), (Sample("01.png", str(root / "01.png"), (1,)),))
    for kind, lacks in (("localization", "box of class 1"), ("segmentation", "mask")):
        with pytest.raises(
            GamlensError, match=rf"ground truth that {kind} needs: 01\.png has no .*{lacks}\. Is a part"
        ):
            units(dataset, Protocol(kind))


def test_curves_before_a_blurred_background(lens: Lens, root: Path) -> None:
    """Insertion and deletion of one image, step by step and pixel by pixel, over torchvision's blur of it."""
    steps, kernel, sigma = 4, 21, 6.0
    protocol = Protocol(
        "objective", methods=("gam",), n=(1,), curves=steps, curve_background="blur", blur_kernel=kernel,
        blur_sigma=sigma,
    )  # fmt: skip
    run = measured(lens, root, protocol)
    assert "curve_background=blur, blur_kernel=21, blur_sigma=6.0" in variant(run.about)
    assert run.about["protocol"]["curves"] == steps
    row = next(row for row in run.rows if row["item"] == "05.png" and row["method"] == "gam")
    inputs = lens.prepare(str(root / "05.png"))
    mean, std = (torch.tensor(value)[:, None, None] for value in (lens.transform.mean, lens.transform.std))
    pixels = (inputs.batches[0] * std + mean).clamp(0, 1)
    blurry = gaussian_blur(pixels, [kernel, kernel], [sigma, sigma])
    values = lens.classify(inputs, 1, n=1).maps[0].flatten().tolist()
    brightest = sorted(range(len(values)), key=lambda place: -values[place])
    curves: dict[str, list[float]] = {"insertion": [], "deletion": []}
    for step in range(steps + 1):
        chosen = torch.zeros(SIDE * SIDE, dtype=torch.bool)
        chosen[brightest[: step * SIDE * SIDE // steps]] = True
        chosen = chosen.view(SIDE, SIDE)
        for name, shown in (("insertion", chosen), ("deletion", ~chosen)):
            image = torch.where(shown, pixels, blurry)
            curves[name].append(float(lens.outputs((image - mean) / std).softmax(dim=1)[0, 1]))
    for name, points in curves.items():
        area = sum((points[at] + points[at + 1]) / 2 / steps for at in range(steps))
        assert row[name] == pytest.approx(area, abs=1e-5)
    plain = measured(lens, root, replace(protocol, curve_background="fill"))
    other = next(row for row in plain.rows if row["item"] == "05.png" and row["method"] == "gam")
    assert other["after_logit"] == row["after_logit"]
    assert abs(other["insertion"] - row["insertion"]) > 1e-5
    for wrong, said in (
        ({"curve_background": "blurred", "curves": 5}, "did you mean 'blur'"),
        ({"curve_background": "blur"}, "needs curves"),
        ({"curve_background": "blur", "curves": 5, "blur_kernel": 4}, "an odd number of pixels"),
    ):
        with pytest.raises(GamlensError, match=said):
            Protocol("objective", **wrong)  # type: ignore[arg-type]


def test_insertion_and_deletion(lens: Lens, root: Path) -> None:
    """The area under the class's probability over 5 steps, against masks made one by one."""
    run = measured(lens, root, Protocol("objective", methods=("gam",), n=(1,), curves=5))
    row = next(row for row in run.rows if row["item"] == "02.png" and row["method"] == "gam")
    image = str(root / "02.png")
    maps = lens.classify(image, 0, n=1).maps
    mean, std = (torch.tensor(value)[:, None, None] for value in (lens.transform.mean, lens.transform.std))
    small_ = Image.open(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    raw = torch.from_numpy(np.asarray(small_, dtype=np.float32) / 255).permute(2, 0, 1)
    order = maps[0].flatten().argsort(descending=True, stable=True)
    curve = {"insertion": [], "deletion": []}
    for step in range(6):
        mask = torch.zeros(SIDE * SIDE)
        mask[order[: step * SIDE * SIDE // 5]] = 1
        for name, shown in (("insertion", mask), ("deletion", 1 - mask)):
            batch = ((raw * shown.view(SIDE, SIDE) - mean) / std)[None]
            curve[name].append(float(lens.trace(batch, 0, n=1).output.softmax(1)[0, 0]))
    for name, values in curve.items():
        area = sum((a + b) / 2 / 5 for a, b in itertools.pairwise(values))
        assert row[name] == pytest.approx(area, abs=1e-4)
    found = {cell.metric for cell in tables.cells(run)}
    assert found == {"ADP", "PIC", "Average gain", "Insertion", "Deletion", "Sparseness"}
    with pytest.raises(GamlensError, match="needs kind objective"):
        Protocol("localization", curves=5)
    with pytest.raises(GamlensError, match="curves=-1: give 0 for no curves, or 2 steps"):
        Protocol("objective", curves=-1)


def test_all_ones_change_nothing_exactly(lens: Lens, root: Path) -> None:
    for task in ("classification", "cosine"):
        run = measured(lens, root, Protocol("objective", task, ("gam",), (1,)))
        cells = {cell.metric: cell.value.mean for cell in tables.cells(run) if cell.method == "ones"}
        assert cells == {"ADP": 0.0, "PIC": 0.0, "Average gain": 0.0, "Sparseness": 0.0}


def test_contests(lens: Lens, root: Path) -> None:
    """GAM against another method: the difference of the means, wins and losses counted by hand."""
    run = measured(lens, root, Protocol("localization", methods=("gam", "grad_cam"), n=(1, 2), hold_out=0))
    found = {(c.metric, c.n, c.other): c.difference for c in tables.contests(run)}
    assert {c for _, _, c in found} == {"grad_cam", *metrics.CONTROLS}
    values = {key: np.asarray(columns["iou"], dtype=float) for key, columns in run.groups.items()}
    mine, theirs = (
        100 * grid[:, int(np.nanmean(grid, 0).argmax())] for grid in (values["gam", 2], values["grad_cam", 2])
    )
    contest = found["IoU", 2, "grad_cam"]
    assert contest.mean == pytest.approx(float((mine - theirs).mean()))
    assert (contest.wins, contest.losses) == (int((mine > theirs).sum()), int((mine < theirs).sum()))
    header, lines = tables.contest_rows(tables.contests(run))
    assert len(header) == len(lines[0])


SLICE = {  # mean IoU of fifty images at the threshold 0.25, n = 1, 2, 3, for both readings of lattices
    "keep": {"gam": (57.69, 57.30, 56.56), "grad_cam_pp": (56.43, 48.89, 46.41), "grad_cam": (57.53, 49.35, 47.43)},
    "read": {"gam": (57.69, 57.06, 58.29), "grad_cam_pp": (56.43, 50.78, 45.98), "grad_cam": (57.53, 48.47, 47.49)},
}


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("lattice", SLICE)
def test_a_slice_of_the_reference(lattice: str, shared_weights: Path, shared_data: Path) -> None:
    """Fifty real images, pinned from the GPU run whose thousand images met the reference figures."""
    import real

    lens, dataset = real.lens("resnet50"), load("ilsvrc", shared_data / "ILSVRC")
    protocol = Protocol("localization", methods=tuple(SLICE[lattice]), n=(1, 2, 3), lattice=lattice)
    items = units(dataset, protocol)[:50]
    rows = [row for part in evaluate(lens, items, protocol, batch=20) for row in part]
    run, at = results.collect(results.describe(lens, dataset, protocol, 50), rows), metrics.THRESHOLDS.index(0.25)
    found = {m: tuple(100 * float(run.groups[m, n]["iou"][:, at].mean()) for n in (1, 2, 3)) for m in SLICE[lattice]}
    for method, expected in SLICE[lattice].items():
        assert found[method] == pytest.approx(expected, abs=0.15), method


def test_names_that_are_not_utf_8_are_error_rows_of_a_run(lens: Lens, root: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    image = str(tmp_path / name)
    Image.new("RGB", (64, 64)).save(image, format="PNG")
    boxes = (Box(1, 8, 8, 40, 40),)
    samples = (Sample("01.png", str(root / "01.png"), (1,), boxes), Sample(name, image, (1,), boxes))
    dataset, protocol = Dataset("mine", str(root), ("ant", "bee"), samples), Protocol(methods=("gam",), n=(1,))
    (rows,) = evaluate(lens, units(dataset, protocol), protocol)
    bad = [row for row in rows if row["error"]]
    assert [row["item"] for row in bad] == ["caf\\xe9.png"]
    write_run(tmp_path / "run", results.describe(lens, dataset, protocol, 2), rows)
    assert [row["item"] for row in results.read(tmp_path / "run").errors] == ["caf\\xe9.png"]
