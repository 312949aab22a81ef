"""`gamlens leaderboard`: one command from a data set to a page, which continues where it stopped."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import nets
import pytest
import torch
from typer.testing import CliRunner

from gamlens import METRICS, Lens, Transform
from gamlens.cli import app
from gamlens.cli.leaderboard_command import chosen_names, kind_for
from gamlens.data import load

MODEL = """
import nets, torch
from gamlens import Lens, Transform
def build():
    torch.manual_seed(0)
    return Lens(nets.small().float(), transform=Transform((64, 64)), labels=("ant", "bee"))
"""
MINE = "def explain(model, batch, targets):\n    return batch.mean(dim=1)\n"


@pytest.fixture(scope="module")
def root(boxed: Callable[..., Path]) -> Path:
    return boxed(5, lambda number: 20 + 5 * number)


def words(root: Path, tmp_path: Path, *more: str) -> list[str]:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "mine.py").write_text(MINE)
    named = f"gam,grad_cam+refine,{tmp_path}/mine.py:explain"
    fast = ["--curves", "2", "--road", "50", "--infidelity", "2", "--sensitivity", "1", "--batch", "4", *more]
    data = ["--data", "table", "--root", str(root / "items.csv"), "--model", f"{tmp_path}/model.py:build"]
    return ["leaderboard", *data, "--methods", named, "--n", "1,2", *fast, "--out", str(tmp_path / "board")]


def test_a_board_from_one_command(root: Path, tmp_path: Path) -> None:
    """Every file is there, with every metric, rows of ours, of the user's file and of controls; then it resumes."""
    first = CliRunner().invoke(app, words(root, tmp_path))
    assert first.exit_code == 1, first.output  # one file of the data set is no image, and the rest is measured
    assert "1 items could not be measured" in first.output
    with open(tmp_path / "board" / "leaderboard.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    methods = {(line["method"], line["n"]) for line in lines}
    own = {("gam", "1"), ("gam", "2"), ("grad_cam+refine", "1"), ("grad_cam+refine", "2")}
    assert {*own, (f"{tmp_path}/mine.py:explain", "1"), ("blank", "0"), ("centre_refined", "0")} <= methods
    wanted = {name for name, metric in METRICS.items() if {"objective", "localization"} & {*metric.kinds}}
    assert {line["metric"] for line in lines} == wanted
    page = (tmp_path / "board" / "leaderboard.html").read_text()
    assert all(said in page for said in ("Grad-CAM, refined", "explain (mine.py)", "Which metrics agree"))
    assert "http://" not in page.replace("http://www.w3.org", "")
    again = CliRunner().invoke(app, words(root, tmp_path))
    assert "already finished; nothing was measured again" in " ".join(again.output.split())


def test_a_board_of_pairs(root: Path, tmp_path: Path) -> None:
    more = ("--methods", "ours", "--task", "cosine", "--pairs", "neighbour", "--quick", "--limit", "2")
    made = CliRunner().invoke(app, words(root, tmp_path, *more))
    assert made.exit_code == 0, made.output
    text = (tmp_path / "board" / "leaderboard.md").read_text()
    assert "VDSN" in text
    assert "PIC" in text


def test_what_ours_stands_for(root: Path) -> None:
    torch.manual_seed(0)
    lens = Lens(nets.small().float(), transform=Transform((64, 64)))
    plain = chosen_names(lens, "ours", "classification")
    assert plain[:2] == ("gam", "grad_cam")
    assert not {"grad_cam_pp_literal", "vdsn", "attention_gam", "input_gradient"} & {*plain}
    assert "vdsn" in chosen_names(lens, "ours", "cosine")
    assert chosen_names(lens, "gam,ours+views,captum:Saliency?a=[1,2]", "classification") == (
        "gam", *(f"{name}+views" for name in plain), "captum:Saliency?a=[1,2]",
    )  # fmt: skip
    assert kind_for(load("table", root / "items.csv"), "cosine") == "objective+localization"
