"""The wheel and the sdist hold what they should, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging_kit import ROOT, Built

from gamlens import __version__

SOURCE = ROOT / "src" / "gamlens"


def in_source() -> set[str]:
    """Every file of the package, as a path in the wheel."""
    files = (file for file in SOURCE.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {file.relative_to(SOURCE.parent).as_posix() for file in files}


def test_the_wheel_is_the_package_and_its_metadata(built: Built) -> None:
    with ZipFile(built.wheel) as files:
        names = set(files.namelist())
        licence = files.read(f"gamlens-{__version__}.dist-info/licenses/LICENSE")
    described = {name for name in names if name.startswith(f"gamlens-{__version__}.dist-info/")}
    assert names - described == in_source()
    assert licence == (ROOT / "LICENSE").read_bytes()
    data = {Path(name).suffix for name in names - described}
    assert {".py", ".json", ".toml", ".csv", ".css", ".html", ".js"} <= data  # what pages and tables are made of
    assert "gamlens/py.typed" in names


def test_the_sdist_is_what_builds_the_wheel(built: Built) -> None:
    """`build` made the wheel from it. It has no tests: they need the whole repository."""
    with tarfile.open(built.sdist) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    top = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "PKG-INFO", "pyproject.toml", ".gitignore"}
    assert names == {f"src/{name}" for name in in_source()} | top


def test_the_metadata(built: Built) -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = built.metadata
    assert (about["Name"], about["Version"]) == ("gamlens", __version__)
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == asked["requires-python"]
    assert about.get_payload() == (ROOT / "README.md").read_text()
    assert set(about.get_all("Provides-Extra", [])) == set(asked["optional-dependencies"])
    assert about.get_all("Project-URL") is None  # the project has no address of its own yet


@pytest.mark.parametrize(
    "command", [["twine", "check", "--strict"], ["check_wheel_contents"]], ids=lambda part: part[0]
)
def test_checked_by_others(built: Built, command: list[str]) -> None:
    files = [built.wheel, built.sdist] if command[0] == "twine" else [built.wheel]
    found = subprocess.run([sys.executable, "-m", *command, *files], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
