"""The ablation: the same numbers as the evaluation, one forward for all, every fusion, tables and plot, bad input."""

import csv
import json
from functools import partial

import numpy as np
import pytest
import torch
from run_files import titles
from torch import nn
from typer.testing import CliRunner

from gamlens import GamlensError, Lens, Transform, metrics
from gamlens.cli import app
from gamlens.data import load, small
from gamlens.evaluation import measure, results
from gamlens.evaluation.ablation import Plan, fusion_gains, measures, table, write
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.protocol import CONTROL, JOINED, Protocol, units
from gamlens.evaluation.runs import evaluate_run
from gamlens.scores import PAIR_SCORES

SIDE, IMAGES = 64, 6
PLAN = Plan(("gam", "grad_cam"))


@pytest.fixture(scope="module")
def root(boxed):
    return boxed(IMAGES, lambda number: 40 + 5 * number)


@pytest.fixture(scope="module")
def many(boxed):
    """Enough images that two of each class are among the smallest quarter."""
    return boxed(16, lambda number: 20 + 4 * number)


@pytest.fixture(scope="module")
def run(lens, root):
    """Rows of the ablation, what it is about, and the items."""
    dataset, protocol = load("table", root / "items.csv"), PLAN.protocol(lens)
    items = units(dataset, protocol)
    rows = [row for part in evaluate(lens, items, PLAN.protocol(lens), batch=4) for row in part]
    return rows, results.describe(lens, dataset, protocol, len(items)), items


def test_every_method_n_and_fusion_is_measured_on_every_image(run, lens):
    rows, _, _ = run
    assert [row["item"] for row in rows if row["error"]] == ["broken.png"]
    keys = {(row["method"], row["n"], row["fuse"]) for row in rows if not row["error"] and row["fuse"] != CONTROL}
    assert keys == {(m, n, f) for m in PLAN.methods for n in range(1, len(lens.blocks) + 1) for f in JOINED}
    assert sum(not row["error"] for row in rows) == IMAGES * (len(keys) + len(metrics.CONTROLS))


@pytest.mark.parametrize("kind", ["localization", "objective"])
def test_the_mean_fusion_equals_the_evaluation(run, lens, kind):
    rows, _, items = run
    protocol = Protocol(kind, methods=PLAN.methods, n=PLAN.protocol(lens).n)
    for theirs in (row for part in evaluate(lens, items, protocol, batch=5) for row in part if not row["error"]):
        key = {name: theirs[name] for name in ("item", "method", "n")}
        mine = next(
            row for row in rows if row.get("fuse") in ("mean", CONTROL) and all(row[name] == key[name] for name in key)
        )
        fields = ["iou"] if kind == "localization" else ["before_logit", "after_logit", "after_probability"]
        for field in fields:
            np.testing.assert_allclose(mine[field], theirs[field], rtol=1e-4, atol=1e-5)


def test_one_forward_serves_every_map(lens, root):
    calls = []
    hook = lens.model.register_forward_pre_hook(lambda module, args: calls.append(len(args[0])))
    items = units(load("table", root / "items.csv"), Protocol())[:4]
    rows = [row for part in evaluate(lens, items, PLAN.protocol(lens), batch=4) for row in part]
    hook.remove()
    # At n = 1 every fusion is the same. All ones are the image itself, and the black image of blank runs once.
    maps = 2 * (1 + (len(lens.blocks) - 1) * len(JOINED)) + len(metrics.CONTROLS) - 2
    assert sum(calls) == 4 * (1 + maps) + 1
    assert len(rows) == 4 * (2 * len(lens.blocks) * len(JOINED) + len(metrics.CONTROLS))


def test_weights_are_those_given_or_grow_towards_the_last_block(lens):
    assert PLAN.protocol(lens).fusion("weights", 3) == [1.0, 2.0, 3.0]
    count = len(lens.blocks)
    plan = Plan(weights=tuple(range(1, count + 1))).protocol(lens)
    assert plan.fusion("weights", 2) == (count - 1, count)
    assert plan.fusion("max", 2) == "max"
    with pytest.raises(GamlensError, match=r"2 weights were given; .* has \d blocks"):
        Plan(weights=(1.0, 2.0)).protocol(lens)


def test_tables_and_plot(run, lens, tmp_path):
    rows, about, _ = run
    found = table(rows, about, PLAN)
    named = {title: name for title, name in titles("localization", "objective").items() if name != "adp_equal_mass"}
    assert {"IoU": "iou", "ADP": "adp", "PIC": "pic"}.items() <= named.items()
    assert measures(found) == named
    assert all(set(own) == set(named) for own in found.values())
    same = {found["gam", 1, name]["IoU"].value.mean for name in JOINED}
    assert len(same) == 1
    written = write(found, PLAN, tmp_path, about)
    assert all(file.is_file() for file in written)
    assert {file.name for file in written} == {
        "ablation.json", "ablation.png", "table.md", *(f"{name}.csv" for name in named.values())
    }  # fmt: skip
    lines = list(csv.reader((tmp_path / "iou.csv").open()))
    assert lines[0] == ["IoU %", "blocks joined by", *(f"n = {n}" for n in range(1, len(lens.blocks) + 1))]
    assert len(lines) == 1 + len(PLAN.methods) * len(JOINED) + len(metrics.CONTROLS)
    cells = json.loads((tmp_path / "ablation.json").read_text())["cells"]
    one = next(c for c in cells if (c["method"], c["n"], c["fuse"], c["measure"]) == ("gam", 2, "max", "ADP"))
    assert one["mean"] == pytest.approx(found["gam", 2, "max"]["ADP"].value.mean)


def test_fusions_are_compared_item_by_item(run, lens, tmp_path):
    rows, about, _ = run
    gains = fusion_gains(rows, about, PLAN)
    assert set(gains) == {(m, n, f) for m in PLAN.methods for n in range(2, len(lens.blocks) + 1) for f in JOINED[1:]}

    def drops(how):
        own = [row for row in rows if not row["error"] and (row["method"], row["n"], row["fuse"]) == ("gam", 2, how)]
        return {row["item"]: (row["before_logit"], row["after_logit"]) for row in own}

    mean, product = drops("mean"), drops("product")
    rises = [100.0 * ((product[item][1] > whole) - float(kept > whole)) for item, (whole, kept) in mean.items()]
    assert gains["gam", 2, "product"]["PIC"].mean == pytest.approx(sum(rises) / len(rises))
    positive = {item: both for item, both in mean.items() if both[0] > 0}
    less = [
        100 * (max(0.0, whole - kept) - max(0.0, whole - product[item][1])) / whole
        for item, (whole, kept) in positive.items()
    ]
    assert less, "an image with a positive logit is needed"
    assert gains["gam", 2, "product"]["ADP"].mean == pytest.approx(sum(less) / len(less)), "plus is better"
    write(table(rows, about, PLAN), PLAN, tmp_path, about, gains)
    cells = json.loads((tmp_path / "ablation.json").read_text())["cells"]
    of = {c["fuse"]: c["against"] for c in cells if (c["method"], c["n"], c["measure"]) == ("gam", 2, "ADP")}
    assert of["mean"] is None
    assert of["product"]["fuse"] == "mean"
    assert of["product"]["mean"] == gains["gam", 2, "product"]["ADP"].mean


def test_a_model_with_one_block(root):
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    lens = Lens(net.eval(), blocks=["1"], transform=Transform((SIDE, SIDE)))
    plan = Plan(("gam",), fusions=("mean",))
    items = units(load("table", root / "items.csv"), Protocol())
    rows = [row for part in evaluate(lens, items, plan.protocol(lens)) for row in part]
    assert {row["n"] for row in rows if row["method"] == "gam"} == {1}


def test_a_run_folder_holds_the_mean_alone(lens, root, tmp_path):
    """Its rows do not say how blocks were joined, and run.json stays as it was before there were fusions."""
    dataset, protocol = load("table", root / "items.csv"), PLAN.protocol(lens)
    with pytest.raises(GamlensError, match="one way to join blocks"):
        evaluate_run(lambda: lens, dataset, units(dataset, protocol), protocol, tmp_path)
    assert set(protocol.record()) == set(Protocol().record())
    assert "fusions" not in protocol.record()


def test_only_errors_is_an_error(run):
    rows, about, _ = run
    with pytest.raises(GamlensError, match=r"No item of .* could be measured; the first error: "):
        table([row for row in rows if row["error"]], about, PLAN)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ("vdsn",)}, "'vdsn' explains pairs only"),
        ({"methods": ()}, "at least one method"),
        ({"methods": ("gamm",)}, "did you mean 'gam'"),
        ({"fusions": ()}, "no fusion to vary"),
        ({"fusions": ("sum",)}, "no fusion 'sum'"),
        ({"fill": "red"}, "fill cannot be 'red'"),
        ({"task": "cosin"}, "did you mean 'cosine'"),
        ({"subset": "5"}, "subset cannot be '5'"),
        ({"task": "dot", "pairs": "neighbour", "pairs_per_class": 2}, "use pairs='drawn'"),
        ({"confidence": "odds"}, "confidence is logit or probability"),
    ],
)
def test_bad_plans(options, message):
    with pytest.raises(GamlensError, match=message):
        Plan(**options)


def test_command(root, many, tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\nfrom nets import small\nfrom gamlens import Lens, Transform\n"
        f"def build():\n    return Lens(small().float(), transform=Transform(({SIDE}, {SIDE})))\n"
    )
    at = ["ablate", "--data", "table", "--root", str(root / "items.csv"), "--model", f"{tmp_path}/net.py:build"]
    at += ["--methods", "gam", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, at, env={"COLUMNS": "160"})
    assert result.exit_code == 1  # one image cannot be read, and the command says so
    assert "1 items could not be read" in result.stderr
    assert "n = 3" in result.stdout
    assert (tmp_path / "out" / "ablation.png").is_file()
    pairs = [
        *at,
        "--root",
        str(many / "items.csv"),
        "--task",
        "dot",
        "--subset",
        "25",
        "--pairs-per-class",
        "1",
        "-n",
        "1,2",
        "--fusions",
        "mean,max",
    ]
    paired = CliRunner().invoke(app, [*pairs, "--out", str(tmp_path / "pairs")])
    assert "n = 2" in paired.stdout, paired.stderr
    described = json.loads((tmp_path / "pairs" / "ablation.json").read_text())
    assert {name: described["protocol"][name] for name in ("task", "subset", "pairs_per_class")} == {
        "task": "dot", "subset": "25", "pairs_per_class": 1
    }  # fmt: skip
    assert {"iou.csv", "adp.csv", "pic.csv"} <= {file.name for file in (tmp_path / "pairs").iterdir()}
    wrong = CliRunner().invoke(app, [*at, "-n", "9"])
    assert "n=9 blocks were asked for" in " ".join(wrong.stderr.split())
    assert "Example:" in CliRunner().invoke(app, ["ablate", "--help"]).stdout
    assert len(Plan().methods) >= 7


def test_an_item_that_fails_in_the_model_is_an_error_row(lens, root, monkeypatch):
    """The others of its batch are measured; where all of the first batch fail it is an error."""
    items = units(load("table", root / "items.csv"), Protocol("localization"))[:4]
    plan, real = Plan(("gam",), (1,), ("mean",)), measure._measured_rows

    def picky(lens, batch, *rest, wrong=items[1].name):
        if wrong in ("", *(unit.name for unit in batch.units)):
            raise GamlensError("not this one")
        return real(lens, batch, *rest)

    monkeypatch.setattr(measure, "_measured_rows", picky)
    rows = [row for part in evaluate(lens, items, plan.protocol(lens), batch=4) for row in part]
    assert [row["item"] for row in rows if row["error"] == "not this one"] == [items[1].name]
    assert {row["item"] for row in rows if not row["error"]} >= {items[2].name, items[3].name}
    monkeypatch.setattr(measure, "_measured_rows", partial(picky, wrong=""))
    with pytest.raises(GamlensError, match=r"^not this one$"):
        list(evaluate(lens, items, plan.protocol(lens), batch=4))


@pytest.mark.parametrize("task", ["cosine", "dot"])
def test_fusions_on_pairs_are_those_of_explain(lens, root, task):
    """The rows of every fusion: the IoU of its map, and the similarity with one image masked by it."""
    plan = Plan(("gam", "vdsn"), (1, 2), fusions=("mean", "product"), task=task, pairs="neighbour")
    dataset, protocol = load("table", root / "items.csv"), plan.protocol(lens)
    items = [unit for unit in units(dataset, protocol) if "broken" not in unit.name][:2]
    rows = [row for part in evaluate(lens, items, protocol, batch=2) for row in part]
    unit = items[1]
    files = [sample.image for sample in unit.samples]
    whole = lens.prepare(files)
    mean, std = (torch.tensor(value)[:, None, None] for value in (lens.transform.mean, lens.transform.std))
    pixels, embeddings = whole.batches[0] * std + mean, lens.embed(whole)
    rule = PAIR_SCORES[task].fn
    for how in plan.fusions:
        result = lens.compare(*files, score=task, n=2, fuse=how)
        for side, other in ((0, 1), (1, 0)):
            key = {"item": unit.name, "method": "gam", "n": 2, "fuse": how, "side": "xy"[side]}
            (row,) = (row for row in rows if key.items() <= row.items())
            maps = (result.x, result.y)[side].maps
            box = next(box for box in unit.samples[side].boxes)
            truth = torch.tensor([[box.x0 * SIDE / 100, box.y0 * SIDE / 80, box.x1 * SIDE / 100, box.y1 * SIDE / 80]])
            np.testing.assert_allclose(row["iou"], metrics.iou_grid(maps, [truth])[0], rtol=0, atol=1e-6)
            after = rule(lens.embed((pixels[side] * maps - mean) / std), embeddings[other : other + 1])
            assert row["before_similarity"] == pytest.approx(float(result.scores[0]), rel=1e-4)
            assert row["after_similarity"] == pytest.approx(float(after), rel=1e-3, abs=1e-5)
    means = {row["fuse"]: row["map_mean"] for row in rows if (row["method"], row["n"], row["side"]) == ("gam", 2, "x")}
    assert means["mean"] != means["product"]
    found = table(rows, results.describe(lens, dataset, protocol, len(items)), plan)
    assert {"IoU", "ADP", "PIC"} <= set(found["gam", 2, "product"])
    assert ("vdsn", 1, "mean") in found


def test_pairs_of_one_map_share_a_forward(lens, root):
    calls = []
    hook = lens.model.register_forward_pre_hook(lambda module, args: calls.append(len(args[0])))
    plan = Plan(("gam",), (1, 2), task="dot", pairs="neighbour")
    items = units(load("table", root / "items.csv"), plan.protocol(lens))[:2]
    rows = [row for part in evaluate(lens, items, plan.protocol(lens), batch=2) for row in part]
    hook.remove()
    # At n = 1 every fusion is the same. All ones are the image itself, and the black image of blank runs once. Both
    # pairs have the image 02.png, for which the maps of the two other controls are the same.
    maps = 1 + len(JOINED) + len(metrics.CONTROLS) - 2
    assert sum(calls) == 2 * 2 * (1 + maps) + 1 - 2
    assert not any(row["error"] for row in rows)


def test_the_mean_fusion_of_pairs_equals_the_evaluation(lens, root):
    plan = Plan(("gam",), (2,), ("mean",), task="cosine", seed=1, pairs_per_class=1)
    items = units(load("table", root / "items.csv"), plan.protocol(lens))
    rows = [row for part in evaluate(lens, items, plan.protocol(lens), batch=2) for row in part]
    for kind, column in (("localization", "iou"), ("objective", "after_similarity")):
        protocol = Protocol(kind, "cosine", ("gam",), (2,), seed=1, pairs_per_class=1)
        theirs = [row for part in evaluate(lens, items, protocol, batch=2) for row in part]
        keyed = {(row["item"], row["method"], row["side"]): row[column] for row in theirs if not row["error"]}
        mine = {(row["item"], row["method"], row["side"]): row[column] for row in rows if not row["error"]}
        assert mine == keyed
        assert mine


@pytest.mark.parametrize("task", ["classification", "dot"])
def test_small_objects_alone(lens, many, task):
    plan = Plan(("gam",), (1,), ("mean",), task=task, subset="25")
    dataset = load("table", many / "items.csv")
    names = {name for unit in units(dataset, plan.protocol(lens)) for name in unit.name.split("~")}
    assert names <= small(dataset, 25).names
    assert 0 < len(names) < len(dataset)


def test_all_ones_change_nothing_exactly(run):
    """Undoing and redoing the normalisation rounds: it must not count as a gain."""
    rows = [row for row in run[0] if row["method"] == "ones"]
    assert rows
    assert all(row["after_logit"] == row["before_logit"] for row in rows)
    assert all(row["after_probability"] == row["before_probability"] for row in rows)
