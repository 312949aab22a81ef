"""The registry, and what every reader has in common."""

import inspect
import pkgutil
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from gamlens import data
from gamlens.cli import app
from gamlens.errors import GamlensError

HELPERS = {"class_names", "photos", "plausible", "reading", "sample", "subsets"}
ARRAYS = {"mnist"}
PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_every_reader_is_in_the_registry() -> None:
    files = {module.name for module in pkgutil.iter_modules(data.__path__)}
    assert files - HELPERS - ARRAYS == set(data.DATASETS)


@pytest.mark.parametrize("name", data.DATASETS)
def test_readers_share_one_signature(name: str) -> None:
    shared = inspect.signature(data.load).parameters
    found = inspect.signature(data.DATASETS[name]).parameters
    assert list(found) == ["root", "split", "limit"]
    assert all(found[key] == shared[key] for key in found)


@pytest.mark.parametrize("name", data.DATASETS)
def test_a_missing_root_is_named(name: str, tmp_path) -> None:
    with pytest.raises(GamlensError, match="nowhere"):
        data.load(name, tmp_path / "nowhere")


@pytest.mark.parametrize("name", sorted(set(data.DATASETS) - {"table"}))
def test_an_empty_root_says_what_was_expected_where(name: str, tmp_path) -> None:
    with pytest.raises(GamlensError, match=rf"(?s){tmp_path.name}"):
        data.load(name, tmp_path)


def test_unknown_names() -> None:
    with pytest.raises(GamlensError, match="did you mean 'ilsvrc'"):
        data.load("ilsvrc2012", ".")
    with pytest.raises(GamlensError, match=r"gamlens\.data\.mnist"):
        data.load("mnist", ".")


def test_limits(tmp_path, image) -> None:
    for name in "cab":
        image(tmp_path / f"{name}.png")
    assert [sample.name for sample in data.load("folder", tmp_path, limit=2)] == ["a.png", "b.png"]
    assert len(data.load("folder", tmp_path, limit=9)) == 3
    with pytest.raises(GamlensError, match="found 0"):
        data.load("folder", tmp_path, limit=0)


def test_broken_places_are_named(tmp_path, image) -> None:
    (tmp_path / "Data/CLS-LOC").mkdir(parents=True)
    (tmp_path / "Data/CLS-LOC/val").write_text("a file")
    with pytest.raises(GamlensError, match=r"folder of images at .*CLS-LOC/val"):
        data.load("ilsvrc", tmp_path)
    (tmp_path / "mine/val/n01").mkdir(parents=True)
    with pytest.raises(GamlensError, match=r"no images in .*mine/val"):
        data.load("ilsvrc", tmp_path / "mine")
    (tmp_path / "a.png").write_text("no image")
    (tmp_path / "t.csv").write_text("path,label,x0,y0,x1,y1\na.png,0,0,0,1,1\n")
    assert data.load("table", tmp_path / "t.csv")[0].size is None


def test_the_page_about_data_has_a_layout_of_every_data_set() -> None:
    parts = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
    for name in data.DATASETS:
        mine = [part for head, part in parts.items() if head.endswith(f"(`{name}`)")]
        assert len(mine) == 1, name
        assert "--root" in mine[0], name


def test_the_commands_of_the_page_about_data_are_understood() -> None:
    """Every command and option that it shows exists; what they would read is not here."""
    lines = [line for block in PAGE.split("```")[1::2] for line in block.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("gamlens ")]
    assert len(commands) >= 7
    for words in commands:
        command = get_command(app)
        name = words[0]
        made = command.commands[name].make_context(name, words[1:])  # type: ignore[attr-defined]
        assert made.params["model"]
