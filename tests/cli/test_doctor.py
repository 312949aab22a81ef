"""`gamlens doctor`: what it finds, and that it says when something is wrong."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from gamlens import METHODS, __version__
from gamlens.cli import app, installation

runner = CliRunner()


def document(code: int) -> dict[str, Any]:
    result = runner.invoke(app, ["doctor", "--json"])
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_all_is_well() -> None:
    found = document(0)
    assert found["ok"]
    assert found["versions"]["gamlens"] == __version__
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["devices"]["cpu"].startswith(f"{torch.get_num_threads()} threads")
    assert len(found["self_test"]) == 3
    assert [check["error"] for check in found["self_test"]] == [""] * 3
    assert found["memory_bytes"] > 2**20
    assert found["free_disk_bytes"] > 0
    text = runner.invoke(app, ["doctor"])
    assert text.exit_code == 0
    assert text.stdout.splitlines()[-1] == "All is well: gamlens works."


def test_extras_are_those_of_the_package() -> None:
    named = metadata.metadata("gamlens").get_all("Provides-Extra")
    assert set(document(0)["extras"]) == set(named or ())


LINES = [
    "torch>=2.4",
    "pytest>=7; extra == 'good'",
    "no-such-package<3,>=2.5; extra == 'bad'",
    "pytest[testing]>=9000 ; python_version > '3' and extra == \"old\"",
    "torch; extra == 'bad'",
]


def test_missing_and_old_packages_are_named_with_the_command_that_installs_them(monkeypatch: Any) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: LINES)
    found = document(0)["extras"]  # what is optional may be missing
    assert found["good"] == {
        "installed": True,
        "packages": {"pytest": metadata.version("pytest")},
        "missing": [],
        "install": "pip install 'gamlens[good]'",
    }
    assert found["bad"]["missing"] == ["no-such-package<3,>=2.5"]
    assert found["old"]["missing"] == [f"pytest>=9000 (found {metadata.version('pytest')})"]
    text = " ".join(runner.invoke(app, ["doctor"], env={"COLUMNS": "200"}).stdout.split())
    assert "bad missing: no-such-package<3,>=2.5 pip install 'gamlens[bad]'" in text
    assert "good installed" in text


def test_a_core_package_that_is_too_old_is_a_problem(monkeypatch: Any) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: ["torch>=9000"])
    found = document(1)
    assert not found["ok"]
    assert "torch>=9000 (found " in found["error"]


def test_without_metadata_the_extras_are_unknown(monkeypatch: Any) -> None:
    def none(_: str) -> list[str]:
        raise metadata.PackageNotFoundError("gamlens")

    monkeypatch.setattr(metadata, "requires", none)
    assert document(0)["extras"] == {}


def test_a_wrong_map_is_found(monkeypatch: Any) -> None:
    """Another formula in place of GAM's: the map is no longer that of pencil and paper, and the exit code is 1."""
    monkeypatch.setitem(METHODS, "gam", METHODS["eigen_cam"])
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "a map is what pencil and paper give" in result.stderr
    assert result.stdout.splitlines()[-1] == "Something is wrong."


def test_a_disk_that_cannot_be_written_is_found(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(installation.tempfile, "tempdir", str(tmp_path / "gone"))
    found = document(1)
    assert [bool(check["error"]) for check in found["self_test"]] == [False, False, True]


def test_caches_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hub" / "a").mkdir(parents=True)
    (tmp_path / "hub" / "a" / "weights").write_bytes(b"x" * 1000)
    (tmp_path / "hub" / "a" / "link").symlink_to("weights")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "none"))
    found = {cache["name"]: (cache["path"], cache["bytes"]) for cache in document(0)["caches"]}
    assert found == {"torch.hub": (str(tmp_path / "none"), None), "Hugging Face": (str(tmp_path / "hub"), 1000)}
