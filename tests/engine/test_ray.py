"""The same rows from a Ray cluster of two workers, one of which dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import toy

from gamlens import GamlensError
from gamlens.engine.ray import SAYS_SO, _shares, _watched, _without
from gamlens.evaluation import results
from gamlens.evaluation.runs import Engine

ray = pytest.importorskip("ray")
IMAGES = 48


class Cluster:
    """What a cluster says it has."""

    def __init__(self, cpus: float, gpus: float = 0) -> None:
        self.have = {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}

    def cluster_resources(self) -> dict[str, float]:
        return self.have


def test_room_is_left_for_reading() -> None:
    """Actors never take every CPU, however many are asked for: reading needs some."""
    for cpus in (1, 2, 4, 64):
        for workers in (1, 2, 3, 8):
            count, share = _shares(Cluster(cpus), workers, 100)
            assert count == workers
            assert count * share["num_cpus"] <= cpus - 0.4 or share["num_cpus"] == 0.01
    assert _shares(Cluster(16, 8), None, 100) == (8, {"num_cpus": 1.0, "num_gpus": 1.0})
    with pytest.raises(GamlensError, match="9 workers want a GPU each and the cluster has 8"):
        _shares(Cluster(16, 8), 9, 100)
    with pytest.raises(GamlensError, match="no CPU"):
        _shares(Cluster(0), 1, 1)


def test_one_line_of_standard_error_is_held_back(capfd: pytest.CaptureFixture[str]) -> None:
    """Also what is written past Python; the other lines come, also when starting fails."""

    def start() -> None:
        os.write(2, f"first\n[I] Set ray log level from {SAYS_SO} to 3\nlast\n".encode())
        raise RuntimeError

    with pytest.raises(RuntimeError), _without(SAYS_SO):
        start()
    os.write(2, f"{SAYS_SO}\n".encode())
    assert capfd.readouterr().err == f"first\nlast\n{SAYS_SO}\n"


def kill_one(place: Path, told: list[int]) -> None:
    """Kill -9 one actor as soon as two parts are there."""
    import psutil

    end = time.monotonic() + 90
    while time.monotonic() < end:
        if len(list((place / "parts").glob("*.parquet"))) >= 2:
            for process in psutil.process_iter(["cmdline"]):
                line = " ".join(process.info["cmdline"] or [])
                if line.startswith("ray::") and "MapWorker" in line:
                    os.kill(process.pid, signal.SIGKILL)
                    told.append(process.pid)
                    return
        time.sleep(0.02)


@pytest.mark.slow
def test_rows_are_those_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two workers, one killed in the midst: the same rows, none twice, and the cluster is gone afterwards."""
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])))
    toy.data(tmp_path, IMAGES)
    toy.run(tmp_path, tmp_path / "local")
    killed: list[int] = []
    killer = threading.Thread(target=kill_one, args=(tmp_path / "ray", killed), daemon=True)
    killer.start()
    done = toy.run(tmp_path, tmp_path / "ray", 0.3, engine=Engine("ray", workers=2))
    killer.join(10)
    assert killed, "no worker was killed: the test showed nothing"
    assert done["items"] == IMAGES
    assert not ray.is_initialized()
    assert SAYS_SO not in capfd.readouterr().err
    one, other = results.read(tmp_path / "local"), results.read(tmp_path / "ray")
    assert one.groups.keys() == other.groups.keys()
    for key, columns in one.groups.items():
        assert columns["item"] == other.groups[key]["item"]
        assert len(set(columns["item"])) == IMAGES
        for name in ("iou", "map_mean", "pointing", "boxes"):
            np.testing.assert_allclose(columns[name], other.groups[key][name], atol=1e-5)


def test_a_run_without_progress_says_so() -> None:
    """Nothing is finished within the time: an error that names what is wanted and what is free."""

    class Stuck:
        def iter_rows(self):
            time.sleep(30)
            yield {}

    class Ray:
        def available_resources(self):
            return {"CPU": 0.5}

    with pytest.raises(GamlensError, match=r"No chunk was finished for 0 s: the run wants 2 workers; .*has 0.5 CPUs"):
        list(_watched(Ray(), Stuck(), 0.2, "2 workers"))


def test_an_error_of_a_worker_is_told() -> None:
    class Broken:
        def iter_rows(self):
            yield {"chunk": 0}
            raise RuntimeError("trace\n  gamlens.errors.GamlensError: There is no class 9.\n")

    rows = _watched(None, Broken(), 5, "")
    assert next(rows) == {"chunk": 0}
    with pytest.raises(GamlensError, match=r"gave up: There is no class 9. Finished chunks are kept."):
        next(rows)


def test_engines_by_name() -> None:
    with pytest.raises(GamlensError, match="did you mean 'ray'"):
        Engine("rey")
    with pytest.raises(GamlensError, match="use it with --engine ray"):
        Engine("local", address="127.0.0.1:6379")
    with pytest.raises(GamlensError, match="at least 1"):
        Engine("local", 0)
