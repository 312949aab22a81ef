"""The folder for uploads: who makes it, who removes it, and what a killed studio leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gamlens.studio import temp_folder
from gamlens.studio.temp_folder import LOCK_NAME, SharedTempDir, remove_abandoned_folders

KILLED = """
import os, signal, sys
from importlib.machinery import SourceFileLoader
shared = SourceFileLoader("temp_folder", sys.argv[1]).load_module().SharedTempDir()
folder = shared.acquire()
(folder / "token").mkdir()
(folder / "token" / "photo.png").write_bytes(b"0")
(folder / "link").symlink_to(sys.argv[2])
print(folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _own_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temp"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))


def test_folder_is_made_by_the_first_and_removed_by_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedTempDir()
    monkeypatch.setenv("GRADIO_TEMP_DIR", "/before")
    monkeypatch.delenv("GRADIO_ANALYTICS_ENABLED", raising=False)
    first, second = shared.acquire(), shared.acquire()
    assert first == second
    assert os.environ["GRADIO_TEMP_DIR"] == str(first)
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    shared.release()
    assert first.is_dir()
    shared.release()
    assert not first.exists()
    assert os.environ["GRADIO_TEMP_DIR"] == "/before"
    assert "GRADIO_ANALYTICS_ENABLED" not in os.environ


def test_a_killed_studio_is_cleared_at_the_next_start(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").touch()
    command = [sys.executable, "-c", KILLED, temp_folder.__file__, str(mine)]
    left = Path(subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip())
    assert (left / "token" / "photo.png").exists()
    running = SharedTempDir()
    folder = running.acquire()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not left.exists()
    assert (mine / "file").exists()
    remove_abandoned_folders()
    assert folder.exists()
    running.release()
    assert not folder.exists()


def test_only_folders_of_studios_are_cleared(tmp_path: Path) -> None:
    """Not those without a lock, those that others can write to, links to folders, or links in place of the lock."""
    temp = tmp_path / "temp"
    names = ("unlocked", "shared", "linked-lock")
    unlocked, shared, linked_lock = (temp / f"gamlens-studio-{name}" for name in names)
    for folder in (unlocked, shared, linked_lock):
        folder.mkdir(mode=0o700)
    (shared / LOCK_NAME).touch()
    shared.chmod(0o777)
    (tmp_path / "file").touch()
    (linked_lock / LOCK_NAME).symlink_to(tmp_path / "file")
    abandoned = tmp_path / "elsewhere"
    abandoned.mkdir(mode=0o700)
    (abandoned / LOCK_NAME).touch()
    (temp / "gamlens-studio-link").symlink_to(abandoned)
    (temp / "gamlens-studio-file").touch()
    remove_abandoned_folders()
    assert len(list(temp.iterdir())) == 5
    assert (abandoned / LOCK_NAME).exists()
    os.rename(abandoned, temp / "gamlens-studio-abandoned")
    remove_abandoned_folders()
    assert not (temp / "gamlens-studio-abandoned").exists()
