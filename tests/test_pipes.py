"""Pipes and devices in the place of files: reading one may never end, so each is one error."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import nets
import pytest

from gamlens import Explanation, Gallery, GamlensError, Lens, Transform
from gamlens.engine import Store
from gamlens.files import check_plain


@pytest.fixture(params=["pipe", "device"])
def spoil(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """A function that puts a pipe without a writer, or a link to an endless device, in the place of a file."""

    def put(file: Path) -> None:
        file.unlink(missing_ok=True)
        if request.param == "pipe":
            os.mkfifo(file)
        else:
            file.symlink_to("/dev/zero")

    return put


def test_a_gallery(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    spoil(tmp_path / "gallery.npz")
    with pytest.raises(GamlensError, match="is a pipe or a device"):
        Gallery.load(tmp_path / "gallery.npz")


@pytest.mark.parametrize("name", ["explanation.json", "maps.npz"])
def test_an_explanation(spoil: Callable[[Path], None], tmp_path: Path, name: str) -> None:
    """It is neither read nor replaced."""
    found = Lens(nets.small().float(), transform=Transform((32, 32))).classify(nets.images(1).float(), n=1)
    found.save(str(tmp_path))
    spoil(tmp_path / name)
    with pytest.raises(GamlensError, match="is a pipe or a device"):
        Explanation.load(tmp_path)
    with pytest.raises(GamlensError, match="that gamlens did not write"):
        found.save(str(tmp_path))
    assert not (tmp_path / name).is_file()


def test_a_file_of_a_run(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    spoil(tmp_path / "run.json")
    with pytest.raises(GamlensError, match="is a pipe or a device"):
        Store(tmp_path).read("run.json")


def test_files_and_folders_are_plain(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    check_plain(tmp_path / "a")
    check_plain(tmp_path)
    with pytest.raises(FileNotFoundError):
        check_plain(tmp_path / "b")
