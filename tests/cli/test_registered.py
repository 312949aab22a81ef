"""A model and a data set that stand in MODELS and DATASETS are offered everywhere, without another line for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import nets
import pytest
from typer.testing import CliRunner

from gamlens import DATASETS, MODELS, Lens
from gamlens.cli import app
from gamlens.data import Dataset, DatasetEntry, names_with, table
from gamlens.evaluation import results
from gamlens.evaluation.protocol import usual_truth
from gamlens.models import Network
from gamlens.studio.model_cache import ModelCache

runner = CliRunner()


def made_up_data(root: str | Path, *, split: str | None = None, limit: int | None = None) -> Dataset:
    return replace(table(Path(root) / "items.csv", split=split, limit=limit), name="made_up_data")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(nets.small().float().eval(), "made_up_net", "seed 0", size=(64, 64))
    monkeypatch.setitem(MODELS, "made_up_net", lambda *, weights=None: network)
    monkeypatch.setitem(DATASETS, "made_up_data", DatasetEntry(made_up_data, "Made-Up 2000", ("boxes",)))


@pytest.mark.usefixtures("registered")
def test_both_are_evaluated(boxed: Callable[..., Path], tmp_path: Path) -> None:
    root, out = boxed(4, lambda _: 60), tmp_path / "run"
    (root / "broken.png").write_bytes((root / "00.png").read_bytes())
    words = ["--data", "made_up_data", "--root", str(root), "--model", "made_up_net", "--out", str(out)]
    done = runner.invoke(app, ["evaluate", "localization", *words])
    assert done.exit_code == 0, done.stderr
    run = results.read(out)
    assert (run.about["model"], run.about["data"]) == ("made_up_net", "made_up_data")
    assert run.about["blocks"] == ["layer1", "layer2", "layer3"]
    assert len(run.groups["gam", 2]["item"]) == 5
    subset = runner.invoke(app, ["subset", "pairs", *words[:4], "--out", str(tmp_path / "pairs.json")])
    assert subset.exit_code == 0, subset.stderr


@pytest.mark.usefixtures("registered")
def test_the_model_is_shown_and_offered() -> None:
    assert "layer3" in runner.invoke(app, ["blocks", "made_up_net"]).stdout
    offered = ModelCache({"given": Lens(nets.small().float())}, any_name=True)
    assert "made_up_net" in offered.names
    assert offered.lens("made_up_net").blocks == ("layer1", "layer2", "layer3")


@pytest.mark.parametrize(("measured_by", "usual"), [("boxes", "localization"), ("masks", "segmentation")])
def test_the_entry_says_what_the_usual_evaluation_reads(
    monkeypatch: pytest.MonkeyPatch, measured_by: str, usual: str
) -> None:
    entry = DatasetEntry(made_up_data, "Made-Up 2000", ("boxes", "masks"), measured_by)
    monkeypatch.setitem(DATASETS, "made_up_data", entry)
    measured = [
        kind
        for kind in ("localization", "segmentation")
        if usual_truth({"data": "made_up_data", "protocol": {"kind": kind}})
    ]
    assert measured == [usual]


def test_a_plain_function_is_an_entry_without_ground_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    known = names_with("masks")
    assert known
    monkeypatch.setitem(DATASETS, "made_up_data", made_up_data)
    assert names_with("masks") == known
