"""The commands of docs/figures.md for data and checkpoints that a user must have: made-up data, random weights."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from public_layouts import public_chexnet, public_tresnet
from typer.testing import CliRunner

from gamlens.cli import app
from gamlens.models import load

PAGE = Path(__file__).resolve().parents[2] / "docs/figures.md"


def documented(figure: str, model: str) -> list[str]:
    """The words of the command of the page that makes a figure with a model, after `gamlens`."""
    found = re.findall(rf"^gamlens (figure {figure} .*--model {model}.*)$", PAGE.read_text(), flags=re.MULTILINE)
    assert len(found) == 1
    return shlex.split(found[0])


def run(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Image.Image:
    """Run a command in a folder; returns the figure that it writes."""
    monkeypatch.chdir(folder)
    with warnings.catch_warnings(action="ignore"):  # random weights may give flat maps
        result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    return Image.open(folder / words[words.index("--out") + 1])


def noise(place: Path, size: tuple[int, ...]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)).save(place)


@pytest.mark.slow
def test_xray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = documented("xray", "chexnet")
    root = tmp_path / words[words.index("--root") + 1]
    for number in (1, 2):
        noise(root / f"images/{number}.png", (256, 256))
    (root / "BBox_List_2017.csv").write_text(
        "Image Index,Finding Label,Bbox [x,y,w,h],,,\n1.png,Nodule,256,512,128,64,,,\n2.png,Infiltrate,0,0,512,512,,,\n"
    )
    torch.manual_seed(0)
    state = public_chexnet(load("chexnet", weights="random").module.state_dict())
    torch.save({"state_dict": state}, tmp_path / words[words.index("--weights") + 1])
    assert run(words, tmp_path, monkeypatch).width >= 690


@pytest.mark.slow
def test_several_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page names TResNet-L; the smaller M reads the same checkpoints."""
    commands = [documented(figure, "tresnet_l") for figure in ("classes", "segmentation")]
    words = commands[0]
    root, file = (words[words.index(name) + 1] for name in ("--root", "--weights"))
    made_coco(tmp_path / root)
    torch.manual_seed(0)
    state = public_tresnet(load("tresnet_m", weights="random").module.state_dict())
    torch.save({"model": state}, tmp_path / file)
    for words in commands:
        words[words.index("--model") + 1] = "tresnet_m"
        assert run([*words, "--count", "1"], tmp_path, monkeypatch).width >= 690


def made_coco(root: Path) -> None:
    """One photo with a person and a dog, in the layout of MS-COCO."""
    noise(root / "val2017/000001.jpg", (60, 80, 3))
    shapes = {1: (10, 10, 30, 20), 18: (45, 20, 30, 35)}  # category: x, y, width, height
    notes = [
        {"id": key, "image_id": 5, "category_id": key, "bbox": (x, y, w, h), "iscrowd": 0,
         "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]]}
        for key, (x, y, w, h) in shapes.items()
    ]  # fmt: skip
    contents = {
        "images": [{"id": 5, "file_name": "000001.jpg", "height": 60, "width": 80}],
        "categories": [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}],
        "annotations": notes,
    }
    (root / "annotations").mkdir()
    (root / "annotations/instances_val2017.json").write_text(json.dumps(contents))
