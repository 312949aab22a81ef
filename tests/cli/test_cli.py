"""The commands as a user runs them."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nets
import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from gamlens import METHODS, Explanation, Lens, PairExplanation, Refinement, Transform
from gamlens.cli import app, compare_command, explain, show, terminal, waiting
from gamlens.data.photos import path
from gamlens.report.image_files import find_images

runner = CliRunner()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three good photos, one in a folder below and of a name that is taken, and three files that are none."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "below").mkdir()
    shutil.copy(path("lion"), folder / "lion.jpg")
    shutil.copy(path("cheetah"), folder / "cheetah.jpg")
    Image.open(path("coffee")).save(folder / "below" / "lion.png")
    (folder / "cut.jpg").write_bytes(path("lion").read_bytes()[:3000])
    (folder / "text.jpg").write_text("no image")
    (folder / "empty.png").touch()
    (folder / "readme.txt").write_text("left alone")
    return folder


def test_find_images(photos: Path) -> None:
    found = find_images([str(photos), str(photos / "lion.jpg"), str(photos / "*.jpg")])
    assert [Path(file).name for file in found] == [
        *("lion.png", "cheetah.jpg", "cut.jpg", "empty.png", "lion.jpg", "text.jpg")
    ]


def test_classify_folder_with_bad_files(photos: Path, tmp_path: Path) -> None:
    """Every bad file is named, the rest is explained, and the exit code says that something was wrong."""
    result = runner.invoke(app, ["classify", str(photos), "--out", str(tmp_path)])
    assert result.exit_code == 1
    for name in ("cut.jpg", "text.jpg", "empty.png"):
        assert name in result.stderr
    assert "3 of 6 files" in result.stderr
    assert "espresso" in result.stdout
    assert "cheetah" in result.stdout
    assert sorted(place.name for place in tmp_path.iterdir()) == ["cheetah", "index.html", "lion", "lion-2"]
    assert Explanation.load(str(tmp_path / "lion")).names == ["espresso"]
    assert Explanation.load(str(tmp_path / "lion-2")).names == ["lion"]
    assert "no image" not in (tmp_path / "index.html").read_text()


def test_a_page_of_an_earlier_run_that_is_replaced_is_told(photos: Path, tmp_path: Path) -> None:
    """Only where its contents differ: the same command again says nothing."""
    said = []
    for name in ("lion.jpg", "lion.jpg", "cheetah.jpg"):
        result = runner.invoke(app, ["classify", str(photos / name), "--out", str(tmp_path)])
        assert result.exit_code == 0, result.stderr
        said.append("index.html of an earlier run was replaced: give another folder to keep both." in result.stderr)
    assert said == [False, False, True]


def test_classify_json_is_all_of_stdout(photos: Path, tmp_path: Path) -> None:
    arguments = ["classify", str(photos / "lion.jpg"), "-t", "lion", "-t", "293", "--json", "--out", str(tmp_path)]
    result = runner.invoke(app, [*arguments, "--method", "layer_cam", "-n", "1", "--score", "probability"])
    assert result.exit_code == 0, result.stderr
    (record,) = json.loads(result.stdout)
    assert [(row["target"], row["name"]) for row in record["explained"]] == [(291, "lion"), (293, "cheetah")]
    assert record["explained"][0]["score"] == pytest.approx(record["top"][0]["probability"], abs=1e-5)
    assert record["about"]["method"] == "layer_cam"
    assert record["about"]["n"] == 1
    saved = Explanation.load(record["folder"])
    assert saved.maps.shape == (2, 224, 224)
    assert Image.open(next(Path(record["folder"]).glob("000-*.png"))).size == Image.open(path("lion")).size


def test_classify_at_a_temperature(photos: Path, tmp_path: Path) -> None:
    """The score and the guesses are of one temperature, and the JSON says which."""
    arguments = ["classify", str(photos / "lion.jpg"), "--json", "--score", "softmax", "--out", str(tmp_path)]
    found = [json.loads(runner.invoke(app, [*arguments, *more]).stdout)[0] for more in ((), ("--temperature", "3"))]
    scores = [record["explained"][0]["score"] for record in found]
    assert scores[1] < 0.9 * scores[0]
    assert scores == pytest.approx([record["top"][0]["probability"] for record in found], abs=1e-5)
    assert ["temperature" in record["about"] for record in found] == [False, True]


def test_compare_writes_both_maps(photos: Path, tmp_path: Path) -> None:
    files = [str(photos / "lion.jpg"), str(photos / "cheetah.jpg")]
    result = runner.invoke(app, ["compare", *files, "--json", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert 0.2 < record["score"] < 0.4
    pair = PairExplanation.load(record["folder"])
    assert float(pair.scores[0]) == pytest.approx(record["score"])
    assert pair.x.maps.max() <= 1
    assert not np.array_equal(pair.x.numpy(), pair.y.numpy())
    assert (tmp_path / "lion-cheetah" / "000-pair.png").exists()


SHARP: list[tuple[list[str], dict[str, Any]]] = [
    (["--sharp"], {"sharp": True}),
    (["--refine", "1", "--keep", "0.25"], {"refine": Refinement(1, 0.25)}),
    (["--views", "flip"], {"views": ("flip",)}),
    (["--sharp", "--views", "flip,1.43,2.0"], {"sharp": "views"}),
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Lens:
    """A small lens, which the commands use in place of the model that they would load."""
    made = Lens(
        nets.small().float(),
        transform=Transform((64, 64)),
        text=lambda captions: torch.eye(nets.CLASSES)[: len(captions)],  # stands for a text encoder
    )
    for module in (explain, compare_command):
        monkeypatch.setattr(module, "make_lens", lambda *_, **__: made)
    return made


def assert_same_maps(found: Explanation, wanted: Explanation, plain: Explanation) -> None:
    """Saved maps are those that Python gives for the same options, and others than without these options."""
    torch.testing.assert_close(found.maps, wanted.maps.cpu(), atol=1e-3, rtol=0)
    assert float((found.maps - plain.maps.cpu()).abs().max()) > 0.02
    assert found.about.get("refine") == wanted.about.get("refine")
    assert found.about.get("views") == wanted.about.get("views")


@pytest.mark.parametrize(("words", "options"), SHARP)
def test_classify_sharp(small: Lens, photos: Path, tmp_path: Path, words: list[str], options: dict[str, Any]) -> None:
    file = str(photos / "lion.jpg")
    result = runner.invoke(app, ["classify", file, "--json", "--out", str(tmp_path), *words])
    assert result.exit_code == 0, result.stderr
    saved = Explanation.load(json.loads(result.stdout)[0]["folder"])
    assert_same_maps(saved, small.classify(file, **options), small.classify(file))
    page = " ".join((tmp_path / "index.html").read_text().split())
    assert ("The maps are refined" in page) == ("--views" not in words[:1])
    assert ("further views of it: flip" in page) == ("--views" in words)


@pytest.mark.parametrize(("words", "options"), SHARP)
def test_compare_sharp(small: Lens, photos: Path, tmp_path: Path, words: list[str], options: dict[str, Any]) -> None:
    files = [str(photos / "lion.jpg"), str(photos / "cheetah.jpg")]
    result = runner.invoke(app, ["compare", *files, "--json", "--out", str(tmp_path / "pair"), *words])
    assert result.exit_code == 0, result.stderr
    pair = PairExplanation.load(json.loads(result.stdout)["folder"])
    wanted, plain = small.compare(*files, **options), small.compare(*files)
    assert_same_maps(pair.x, wanted.x, plain.x)
    assert_same_maps(pair.y, wanted.y, plain.y)
    text = runner.invoke(app, ["compare", files[0], "--text", "a cat", "--json", "--out", str(tmp_path), *words])
    assert text.exit_code == 0, text.stderr
    saved = Explanation.load(json.loads(text.stdout)["folder"])
    assert_same_maps(saved, small.compare_text(files[0], "a cat", **options), small.compare_text(files[0], "a cat"))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("command", ["classify", "compare"])
def test_more_blocks_than_there_are_is_one_error(command: str, photos: Path, tmp_path: Path) -> None:
    files = [str(photos / "lion.jpg"), str(photos / "cheetah.jpg")]
    result = runner.invoke(app, [command, *files, "--refine", "3", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "the model has 2 before the last (layer1, layer2): give at most 2." in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_help_of_classify_shows_how_to_get_sharp_maps() -> None:
    text = " ".join(runner.invoke(app, ["classify", "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert "--sharp" in text.split("Example:")[1]
    for option in ("--refine", "--keep", "--sharp", "--views"):
        assert option in text.split("Example:")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["classify", "nothing-*.jpg"], "Nothing matches"),
        (["classify", "{photos}/lion.jpg", "-t", "lyon"], "did you mean 'lynx', 'lion'"),
        (["classify", "{photos}/lion.jpg", "--model", "resnet5"], "did you mean 'resnet50'"),
        (["classify", "{photos}/lion.jpg", "--method", "gm"], "did you mean 'gam'"),
        (["classify", "{photos}/lion.jpg", "--method", "vdsn"], "explains pairs of images only"),
        (["classify", "{photos}/lion.jpg", "-n", "9"], "n from 1 to 4"),
        (["classify", "{photos}/lion.jpg", "--blocks", "bn2,blocks.9"], "no module 'blocks.9'"),
        (["classify", "{photos}/lion.jpg", "--score", "logits"], "did you mean 'logit'"),
        (["classify", "{photos}/lion.jpg", "--temperature", "2"], "the score is 'logit'"),
        (["classify", "{photos}/lion.jpg", "--score", "softmax", "--temperature", "0"], "give a number above 0"),
        (["classify", "{photos}/lion.jpg", "--fuse", "sum"], "no fusion 'sum'"),
        (["classify", "{photos}/lion.jpg", "--out", "{photos}/readme.txt/x"], "readme.txt' is a file. Give another"),
        (["classify", "{photos}/lion.jpg", "--out", "{photos}/lion.jpg"], "lion.jpg' is a file. Give another folder"),
        (["compare", "{photos}/lion.jpg", "{photos}/none.jpg"], "There is no file"),
        (["compare", "{photos}/lion.jpg", "{photos}/cut.jpg"], "truncated"),
        (["classify", "{photos}/lion.jpg", "--weights", "{photos}/text.jpg"], "not a checkpoint"),
        (["classify", "n" * 400], "File name too long"),
        (["search", "{photos}/lion.jpg", "--in", "a/" * 3000], "File name too long"),
        (["table", "n" * 400], "File name too long"),
    ],
)
def test_errors_are_one_line(photos: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    words = [word.format(photos=photos) for word in arguments]
    result = runner.invoke(app, words if "--out" in words else [*words, "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_link_to_itself_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "items.csv").symlink_to("items.csv")
    words = ["evaluate", "localization", "--data", "table", "--root", str(tmp_path / "items.csv")]
    result = runner.invoke(app, [*words, "--out", str(tmp_path / "run")])
    assert result.exit_code == 1
    assert "found nothing at" in result.stderr


def test_blocks_lists_what_is_read() -> None:
    result = runner.invoke(app, ["blocks", "densenet201"])
    assert result.exit_code == 0
    for text in ("features.denseblock3", "1792", "14 x 14", "features:relu", "classifier:input"):
        assert text in result.stdout


@pytest.mark.parametrize(
    "command", ["classify", "compare", "group", "search", "blocks", "demo", "evaluate", "table", "subset", "studio"]
)
def test_help_has_an_example(command: str) -> None:
    result = runner.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"gamlens {command}" in result.stdout.split("Example:")[1]


def test_the_studio_takes_the_weights_of_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """lenet5 has no weights of its own; one file or "random" per model, or none at all."""
    offered: dict[str, Any] = {}
    running = SimpleNamespace(url="http://here", wait=lambda: None)
    monkeypatch.setattr(show, "launch", lambda models, **_: offered.update(models) or running)
    result = runner.invoke(app, ["studio", "--model", "lenet5", "--weights", "random"])
    assert result.exit_code == 0, result.output
    assert offered["lenet5"].weights == "random"
    result = runner.invoke(app, ["studio", "--model", "lenet5", "--model", "resnet50", "--weights", "random"])
    assert result.exit_code == 1
    assert "Give --weights once per --model: there are 2 and 1." in result.output


def test_method_choices_come_from_the_registry() -> None:
    words = " ".join(runner.invoke(app, ["compare", "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert all(name in words for name in METHODS)


def test_hostile_names_are_one_error_each_and_never_reach_the_terminal(tmp_path: Path) -> None:
    """A name that is not UTF-8, a link to itself, a pipe, and a name that holds control characters."""
    folder, good = tmp_path / "in", path("lion").read_bytes()
    folder.mkdir()
    (folder / "lion.jpg").write_bytes(good)
    (folder / "red\x1b[31m.jpg").write_bytes(good)
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.jpg")).write_bytes(good)
    (folder / "loop.jpg").symlink_to("loop.jpg")
    os.mkfifo(folder / "pipe.jpg")
    result = runner.invoke(app, ["classify", str(folder), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "3 of 5 files could not be explained." in result.output
    assert "\x1b" not in result.output
    assert "red\\x1b[31m.jpg" in result.output
    assert "caf\\xe9.jpg' is not UTF-8" in result.output
    page = (tmp_path / "out" / "index.html").read_text()
    assert "caf\\xe9.jpg" in page
    table = runner.invoke(app, ["classify", str(folder), "--out", str(tmp_path / "json"), "--json"])
    assert len(json.loads(table.stdout)) == 5


def test_progress_shows_names_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run folder may be called like a control sequence, or like a tag of rich's markup."""
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    monkeypatch.setattr(terminal, "err_console", console)
    monkeypatch.setattr(waiting.TerminalProgress, "start", waiting.Progress.start)  # at once
    monkeypatch.setattr(waiting.TerminalProgress, "stop", waiting.Progress.stop)
    with waiting.steps("reporting", 1) as step:
        step("red\x1b[31m [/b]")
    assert "red\\x1b[31m [/b]" in console.file.getvalue()
