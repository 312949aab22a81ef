"""An evaluation that is interrupted with Ctrl-C goes on where it was. `tests/test_chaos.py` kills commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import toy

from gamlens import metrics

pytestmark = pytest.mark.slow

IMAGES, CHUNKS = 40, 10
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    toy.data(folder, IMAGES)
    return folder


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, never broken off."""
    place = tmp_path_factory.mktemp("whole")
    toy.run(root, place)
    return place


def parts(place: Path) -> list[Path]:
    return sorted((place / "parts").glob("*.parquet"))


def same(a: Path, b: Path) -> bool:
    """Every part of both, row for row and bit for bit."""
    names = [file.name for file in parts(a)]
    return names == [file.name for file in parts(b)] and all(
        parquet.read_table(a / "parts" / name).equals(parquet.read_table(b / "parts" / name)) for name in names
    )


def start(root: Path, place: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *sys.path]))}
    command = [sys.executable, str(HERE / "toy.py"), str(root), str(place), "0.02"]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def wait_for(place: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while len(parts(place)) < count and process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)


def test_interrupted(root: Path, whole: Path, tmp_path: Path) -> None:
    """Ctrl-C leaves whole parts and a free folder at once."""
    process = start(root, tmp_path)
    wait_for(tmp_path, 3, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode != 0
    left = parts(tmp_path)
    assert 3 <= len(left) < CHUNKS
    assert all(len(parquet.read_table(file)) == 4 * (4 + len(metrics.CONTROLS)) for file in left)
    # If Ctrl-C comes in the instant in which a lock file is made, it stays, empty, until the next writer sweeps it.
    assert not [
        file for file in tmp_path.rglob("*.part") if file.stat().st_size or not file.name.endswith("-lock.part")
    ]
    toy.run(root, tmp_path)
    assert same(tmp_path, whole)


def test_finished_runs_are_left_alone(root: Path, whole: Path) -> None:
    stamps = {file: file.stat().st_mtime_ns for file in parts(whole)}
    assert toy.run(root, whole)["items"] == IMAGES
    assert {file: file.stat().st_mtime_ns for file in parts(whole)} == stamps
