"""The paper's other networks through the commands, from checkpoints in their public layouts with random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from public_layouts import public_chexnet, public_tresnet
from typer.testing import CliRunner

from gamlens import Lens
from gamlens.cli import app
from gamlens.evaluation import results
from gamlens.models.zoo.chexnet import chexnet


@pytest.fixture
def devkit(tmp_path: Path) -> Path:
    """Two photos: a cat's left and a person's right half in the first, a cat in the second."""
    top = tmp_path / "VOCdevkit/VOC2012"
    for part in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (top / part).mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name, values in (("a", (8, 15)), ("b", (8, 0))):
        Image.fromarray(draw.integers(0, 255, (40, 60, 3), dtype=np.uint8)).save(top / f"JPEGImages/{name}.jpg")
        mask = np.repeat(np.array([values], np.uint8), 30, axis=1).repeat(40, axis=0)
        Image.fromarray(mask).save(top / f"SegmentationClass/{name}.png")
    (top / "ImageSets/Segmentation/val.txt").write_text("a\nb\n")
    return tmp_path / "VOCdevkit"


@pytest.fixture
def xrays(tmp_path: Path) -> Path:
    """Two X-rays with a finding each."""
    root = tmp_path / "ChestX-ray8"
    (root / "images").mkdir(parents=True)
    draw = np.random.default_rng(1)
    lines = ["Image Index,Finding Label,Bbox [x,y,w,h]"]
    for name, finding in (("1.png", "Infiltrate"), ("2.png", "Mass")):
        Image.fromarray(draw.integers(0, 255, (64, 64), dtype=np.uint8)).save(root / "images" / name)
        lines.append(f"{name},{finding},256,256,512,512,,,")
    (root / "BBox_List_2017.csv").write_text("\n".join(lines))
    return root


def evaluated(kind: str, data: str, root: Path, model: str, weights: Path | str, out: Path) -> results.Run:
    arguments = ["--data", data, "--root", str(root), "--model", model, "--weights", str(weights), "-o", str(out)]
    made = CliRunner().invoke(app, ["evaluate", kind, *arguments, "--methods", "gam", "--n", "1,2"])
    assert made.exit_code == 0, made.output
    return results.read(out)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [20, 80])
def test_tresnet_segments(classes: int, devkit: Path, tmp_path: Path) -> None:
    """VOC's checkpoint by its own class numbers, COCO's by name; a row's IoU is the map's against that class's mask."""
    torch.manual_seed(0)
    state = public_tresnet(timm.create_model("tresnet_m", num_classes=classes).state_dict())
    torch.save({"state_dict": state}, tmp_path / "tresnet.pth")
    run = evaluated("segmentation", "voc", devkit, "tresnet_m", tmp_path / "tresnet.pth", tmp_path / "run")
    assert run.about["weights"] == str(tmp_path / "tresnet.pth")
    assert run.about["model"] == "tresnet_m"
    cat, person = (7, 14) if classes == 20 else (15, 0)
    good = [row for row in run.rows if row["method"] == "gam"]
    assert sorted((row["item"], row["label"], row["n"]) for row in good) == sorted(
        (item, label, n) for item, label in ((f"a#{cat}", cat), (f"a#{person}", person), ("b", cat)) for n in (1, 2)
    )
    ones = {row["item"]: row["iou"][0] for row in run.rows if row["method"] == "ones"}
    assert list(ones.values()) == pytest.approx([0.5] * 3)
    lens = Lens("tresnet_m", weights=str(tmp_path / "tresnet.pth"))
    hit = lens.classify(str(devkit / "VOC2012/JPEGImages/a.jpg"), "person", n=2).maps[0] >= 0.25
    truth = torch.zeros(448, 448, dtype=torch.bool)
    truth[:, 224:] = True
    row = next(row for row in good if row["item"] == f"a#{person}" and row["n"] == 2)
    assert row["iou"][4] == pytest.approx(float((hit & truth).sum() / (hit | truth).sum()), abs=2e-3)


@pytest.mark.slow
def test_chexnet_localizes(xrays: Path, tmp_path: Path) -> None:
    """Items by finding; all ones against a box of a quarter of the X-ray is a quarter."""
    torch.manual_seed(0)
    state = public_chexnet(chexnet(weights="random").module.state_dict())
    torch.save({"epoch": 1, "state_dict": state}, tmp_path / "model.pth.tar")
    run = evaluated("localization", "chestxray", xrays, "chexnet", tmp_path / "model.pth.tar", tmp_path / "run")
    assert run.about["weights"] == str(tmp_path / "model.pth.tar")
    assert {(row["item"], row["label"]) for row in run.rows} == {("1.png", 3), ("2.png", 4)}
    assert [row["iou"][0] for row in run.rows if row["method"] == "ones"] == pytest.approx([0.25] * 2)
    assert all(row["map_mean"] > 0 for row in run.rows if row["method"] == "gam")


def test_without_a_checkpoint_the_run_is_marked_and_has_no_table(xrays: Path, tmp_path: Path) -> None:
    run = evaluated("localization", "chestxray", xrays, "chexnet", "random", tmp_path / "run")
    assert run.about["weights"] == "random"
    refused = CliRunner().invoke(app, ["table", str(tmp_path / "run")])
    assert refused.exit_code == 1
    assert "random weights" in refused.stderr
