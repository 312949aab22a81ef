"""The registry, and what every reader has in common."""

import inspect
import pkgutil

import pytest

from gamlens import data
from gamlens.errors import GamlensError

HELPERS = {"class_names", "photos", "plausible", "reading", "sample", "subsets"}
ARRAYS = {"mnist"}


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
