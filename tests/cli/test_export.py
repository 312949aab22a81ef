"""`gamlens export` as a user runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gamlens import Lens
from gamlens.cli import app, export
from gamlens.data import table

runner = CliRunner()


@pytest.fixture
def words(boxed: Callable[..., Path], lens: Lens, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A command for three photos and a file that is none, with a small model."""
    monkeypatch.setattr(export, "make_lens", lambda *_, **__: lens)
    root = boxed(3, lambda _: 60)
    return ["export", "--data", "table", "--root", str(root / "items.csv"), "--out", str(tmp_path / "maps")]


def test_export_and_continue(words: list[str], lens: Lens, tmp_path: Path) -> None:
    first = runner.invoke(app, [*words, "--limit", "2", "--method", "layer_cam", "-n", "1", "--size", "input"])
    assert first.exit_code == 0, first.stderr
    assert "2 maps were written to" in first.stdout
    (folder,) = (place for place in (tmp_path / "maps").iterdir() if place.is_dir())
    found = np.load(folder / "01.png.npy")
    samples = table(words[4]).samples
    own = lens.classify(samples[1].image, samples[1].labels[0], method="layer_cam", n=1).maps[0]
    np.testing.assert_allclose(found, ((own - own.min()) / (own.max() - own.min())).numpy(), atol=1e-5)
    again = runner.invoke(app, [*words, "--method", "layer_cam", "-n", "1", "--size", "input"])
    assert again.exit_code == 1
    assert "1 maps were written" in again.stdout
    assert "2 were there already" in again.stdout
    assert "1 images have no map" in again.stderr
    assert "broken.png: Cannot read" in again.stderr
    other = runner.invoke(app, words)
    assert other.exit_code == 1
    assert "--fresh" in other.stderr
    fresh = runner.invoke(app, [*words, "--fresh", "--limit", "1"])
    assert fresh.exit_code == 0
    assert [file.name for file in folder.glob("*.npy")] == ["00.png.npy"]


def test_a_list_of_the_benchmark(words: list[str], lens: Lens, tmp_path: Path) -> None:
    listed = tmp_path / "class_labels.txt"
    listed.write_text("val/01.png,7\nval/nowhere.png,3\n")
    done = runner.invoke(app, [*words, "--ids", str(listed), "--no-stretch", "--size", "input", "--sharp"])
    assert done.exit_code == 1
    assert "val/nowhere.png: The data set has no image of this id." in done.stderr
    expected = lens.classify(table(words[4]).samples[1].image, 7, sharp=True).maps[0]
    np.testing.assert_allclose(np.load(tmp_path / "maps/val/01.png.npy"), expected.numpy(), atol=1e-5)
    listed.write_text("../../01.png\n")
    hostile = runner.invoke(app, [*words, "--ids", str(listed)])
    assert hostile.exit_code == 1
    assert "no path below a folder" in hostile.stderr
    listed.write_text("elsewhere.png\n")
    assert "None of the 1 ids" in runner.invoke(app, [*words, "--ids", str(listed)]).stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--to", "wsoll"], "did you mean 'wsol'"),
        (["--method", "gamm"], "did you mean 'gam'"),
        (["--size", "huge"], "number of pixels"),
        (["--target", "none"], "'label'"),
        (["--sharp", "--method", "input_gradient"], "cannot be refined"),
    ],
)
def test_wrong_options_are_one_line(words: list[str], given: list[str], message: str, tmp_path: Path) -> None:
    done = runner.invoke(app, [*words, *given])
    assert done.exit_code == 1
    assert message in done.stderr
    assert not (tmp_path / "maps").exists()
