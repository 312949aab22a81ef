"""The same rows from a Ray cluster, of which workers die, addresses are wrong, and which somebody interrupts."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import toy

from gamlens import GamlensError, Lens, Transform
from gamlens.data import load
from gamlens.engine import RunFolder, addresses
from gamlens.engine.actor_pool import MOST_LOSSES, ActorPool, ChunkActor
from gamlens.engine.jobs import Done, Job
from gamlens.engine.ray import SAYS_SO, _connect, _ray, _shares, _without
from gamlens.evaluation import results
from gamlens.evaluation.protocol import units
from gamlens.evaluation.runs import Engine, evaluate_run

ray = pytest.importorskip("ray")
IMAGES = 24
HERE = str(Path(__file__).parent)


class Cluster:
    """What a cluster says it has: the CPUs of each of its machines, and GPUs on the first."""

    def __init__(self, *cpus: float, gpus: float = 0) -> None:
        self.have = [{"Alive": True, "Resources": {"CPU": number}} for number in cpus]
        self.have.append({"Alive": False, "Resources": {"CPU": 1000.0}})
        if gpus:
            self.have[0]["Resources"]["GPU"] = gpus

    def nodes(self) -> list[dict]:
        return self.have


def test_actors_fit_on_the_machines() -> None:
    """As many as have a CPU per thread; more of them get smaller shares, which the machines have room for."""
    for cpus in ((1,), (2,), (64,), (12, 12, 12), (16, 16, 4)):
        for workers in (1, 2, 3, 8):
            for threads in (1, 2, 8, 128):
                count, share = _shares(Cluster(*cpus), workers, 100, threads)
                assert count == workers
                assert share["num_cpus"] <= threads
                assert share["num_cpus"] <= 1 or share["num_cpus"].is_integer()
                assert sum(int(have / share["num_cpus"]) for have in cpus) >= workers
    assert _shares(Cluster(64), None, 100, 1) == (64, {"num_cpus": 1.0})
    assert _shares(Cluster(64), None, 100, 64) == (1, {"num_cpus": 64.0})
    assert _shares(Cluster(12, 12, 12), None, 100, 8) == (3, {"num_cpus": 8.0})
    assert _shares(Cluster(8, 8), None, 100, 64) == (2, {"num_cpus": 8.0})
    assert _shares(Cluster(16, gpus=8), None, 100, 16) == (8, {"num_cpus": 1.0, "num_gpus": 1.0})
    with pytest.raises(GamlensError, match="9 workers want a GPU each and the cluster has 8"):
        _shares(Cluster(16, gpus=8), 9, 100)
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


class FakeRay:
    """Actors in this process. `ends` says how their calls end: a value to return or an error to raise, or never."""

    def __init__(self, ends) -> None:
        self.ends, self.alive, self.exceptions, self.made = ends, set(), ray.exceptions, 0

    def make(self) -> FakeActor:
        self.alive.add(actor := FakeActor(self.made))
        self.made += 1
        return actor

    def wait(self, calls, timeout):
        ended = [call for call in calls if self.ends(*call) is not None]
        time.sleep(0 if ended else timeout)
        return ended[:1], []

    def get(self, call):
        if isinstance(end := self.ends(*call), Exception):
            raise end
        return end if isinstance(end, Done) else None

    def kill(self, actor) -> None:
        self.alive.discard(actor)

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 0.5}


class FakeActor:
    def __init__(self, number: int) -> None:
        self.ready, self.work = (RemoteMethod(name, number) for name in ("ready", "work"))


class RemoteMethod:
    def __init__(self, *call) -> None:
        self.call = call

    def remote(self, *values):
        return *self.call, *values[:1]


def pool(ends, count: int = 2, chunks: int = 5) -> tuple[FakeRay, Iterator[Done]]:
    fake = FakeRay(ends)
    made = ActorPool(fake, fake.make, count, f"{count} workers")
    return fake, made.run(dict.fromkeys(range(chunks), ()), stall=0.2, beat=lambda: None)


def test_the_chunk_of_a_lost_actor_is_given_to_another() -> None:
    """The first two actors die with chunk 3, whose turn comes again; all others finish their chunks."""

    def ends(what: str, actor: int, chunk: int | None = None) -> Done | Exception | str:
        if chunk == 3 and actor < MOST_LOSSES - 1:
            return ray.exceptions.ActorDiedError()
        return "ready" if chunk is None else Done(chunk, 4, 0)

    fake, run = pool(ends)
    assert sorted(done.chunk for done in run) == [0, 1, 2, 3, 4]
    assert fake.made > 2
    assert not fake.alive


def test_a_chunk_that_always_loses_its_worker_ends_the_run() -> None:
    fake, run = pool(lambda what, actor, chunk=None: "ready" if chunk is None else ray.exceptions.ActorDiedError())
    with pytest.raises(GamlensError, match=r"3 workers died with chunk \d: The actor died .* Finished chunks are kept"):
        list(run)
    assert not fake.alive


def test_an_actor_without_room_holds_up_no_chunk() -> None:
    """The second actor never starts: the first does all the work."""
    fake, run = pool(lambda what, actor, chunk=None: None if actor else "ready" if chunk is None else Done(chunk, 1, 0))
    assert [done.chunk for done in run] == [0, 1, 2, 3, 4]
    assert not fake.alive


def test_a_run_without_progress_says_so() -> None:
    """Nothing is finished within the time: an error that names what is wanted and what is free."""
    _, run = pool(lambda what, actor, chunk=None: None)
    with pytest.raises(GamlensError, match=r"No chunk was finished for 0 s: the run wants 2 workers; .*has 0.5 CPUs"):
        list(run)


def test_an_error_of_a_worker_is_told() -> None:
    text = "trace\n  gamlens.errors.GamlensError: There is no class 9.\n"
    for error in (RuntimeError(text), ray.exceptions.RayActorError(None, text, actor_init_failed=True)):
        fake, run = pool(lambda what, actor, chunk=None, error=error: error)
        with pytest.raises(GamlensError, match=r"gave up: There is no class 9. Finished chunks are kept."):
            list(run)
        assert not fake.alive


def test_a_worker_that_sees_another_folder_refuses(tmp_path: Path) -> None:
    """A machine that does not share the run folder would compute everything into a folder that nobody reads."""
    with RunFolder(tmp_path / "run", {"n": 1}, suffix=".json") as folder:
        job = Job(lambda: None, lambda rows: b"", 1, 1)
        ChunkActor(job, folder.writer(), folder.store.read("run.json"))
        with pytest.raises(GamlensError, match=r"is not the folder of this run: all machines .* shared disk"):
            ChunkActor(job, replace(folder.writer(), place=str(tmp_path / "elsewhere")), folder.store.read("run.json"))
    assert not (tmp_path / "elsewhere").exists()


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: int, scheme: str
) -> None:
    """A closed port, a mute server, a web server, an unknown name: an error in seconds that says what to do."""
    monkeypatch.setattr(addresses, "ANSWER_SECONDS", 0.2)
    toy.data(tmp_path, 2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    for address, said in (
        (f"127.0.0.1:{closed}", "refused"),
        (f"127.0.0.1:{silent}", "timed out"),
        ("no.such.host.invalid:6379", r"(?i)name"),
        ("what is this", "is not the address"),
        ("127.0.0.1", "is not the address"),
        ("127.0.0.1:99999", "is not the address"),
        ("host:port", "is not the address"),
        (":6379", "is not the address"),
    ):
        with pytest.raises(GamlensError, match=f"{said}.*ray start --head.*check --address"):
            toy.run(tmp_path, tmp_path / "run", engine=Engine("ray", address=scheme + address))


def test_a_server_that_is_not_ray() -> None:
    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        with pytest.raises(GamlensError, match=r"What answers at .* is not a Ray cluster"):
            addresses.require_answer(f"127.0.0.1:{server.getsockname()[1]}")
    with pytest.raises(GamlensError, match=r"'http://127.0.0.1:8265' is not the address of a Ray cluster"):
        addresses.require_answer("http://127.0.0.1:8265")


def test_what_ray_says_about_a_cluster_is_told() -> None:
    class NoCluster:
        def __init__(self, said: str) -> None:
            self.said = said

        def is_initialized(self) -> bool:
            return False

        def init(self, *args, **options) -> None:
            raise ConnectionError(self.said)

    with pytest.raises(GamlensError, match=r"cluster at 'auto': Could not find any. Start the .* RAY_AUTH_MODE=token"):
        _connect(NoCluster("Could not find any.\nMore."), "auto")
    with pytest.raises(GamlensError, match=r"at 'auto': Failure from server: No memory. Start the"):
        _connect(NoCluster("Failure from server:\n  trace\nNo memory.\n"), "auto")
    with pytest.raises(GamlensError, match=r"cluster on this machine: ConnectionError.$"):
        _connect(NoCluster(""), "local")


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setitem(sys.modules, "grpc", None)
    _ray("local")
    with pytest.raises(GamlensError, match=r"'ray://head:10001' needs the package 'grpc' .*gamlens\[cluster\]"):
        _ray("ray://head:10001")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(GamlensError, match=r"The engine ray needs the package 'ray' .*gamlens\[cluster\]"):
        _ray("local")


class Threaded(toy.Slow):
    """A network whose maps show with how many threads torch computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * torch.linspace(1, torch.get_num_threads() ** 2, x.shape[-1]))


def threaded(nap: float = 0.0) -> Lens:
    torch.manual_seed(0)
    return Lens(Threaded(nap), transform=Transform((32, 32)))


def run_threaded(root: Path, out: Path, threads: int, nap: float = 0.0, **options) -> dict:
    """An evaluation that is started in a process where torch computes with `threads` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        dataset = load("table", root / "items.csv")
        make, items = partial(threaded, nap), units(dataset, toy.PROTOCOL)
        return evaluate_run(make, dataset, items, toy.PROTOCOL, out, batch=2, chunk=4, **options)
    finally:
        assert torch.get_num_threads() == threads
        torch.set_num_threads(before)


def parts(run: Path) -> dict[str, bytes]:
    return {part.name: part.read_bytes() for part in (run / "parts").iterdir()}


def test_a_run_keeps_its_number_of_threads(tmp_path: Path) -> None:
    """What is continued with another number of threads is bit for bit the whole run."""
    toy.data(tmp_path, 8)
    run_threaded(tmp_path, tmp_path / "whole", 2)
    run_threaded(tmp_path, tmp_path / "other", 1)
    assert parts(tmp_path / "other") != parts(tmp_path / "whole"), "the test shows nothing"

    def stop(items: int, errors: int) -> None:
        if items == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_threaded(tmp_path, tmp_path / "run", 2, status=stop)
    run_threaded(tmp_path, tmp_path / "run", 1)
    assert parts(tmp_path / "run") == parts(tmp_path / "whole")


def kill_one(place: Path, told: list[int]) -> None:
    """Kill -9 one actor as soon as two parts are there."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        if len(list((place / "parts").glob("*.parquet"))) >= 2:
            for process in psutil.Process().children(recursive=True):
                if "ray::ChunkActor" in process.name() or "ray::ChunkActor" in " ".join(process.cmdline()):
                    os.kill(process.pid, signal.SIGKILL)
                    told.append(process.pid)
                    return
        time.sleep(0.02)


@pytest.mark.slow
def test_rows_are_those_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two workers, one killed in the midst: the same files bit for bit, and the cluster is gone afterwards."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")])))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    toy.data(tmp_path, IMAGES)
    run_threaded(tmp_path, tmp_path / "local", 2)
    killed: list[int] = []
    killer = threading.Thread(target=kill_one, args=(tmp_path / "ray", killed), daemon=True)
    killer.start()
    done = run_threaded(tmp_path, tmp_path / "ray", 2, 0.3, engine=Engine("ray", workers=2))
    killer.join(60)
    assert killed, "no worker was killed: the test showed nothing"
    assert done["items"] == IMAGES
    assert not ray.is_initialized()
    assert capfd.readouterr().err == ""
    assert parts(tmp_path / "ray") == parts(tmp_path / "local")
    one = results.read(tmp_path / "local")
    assert all(len(set(columns["item"])) == IMAGES for columns in one.groups.values())
    assert np.isfinite(one.groups["gam", 1]["map_mean"]).all()


def run_toy(root: Path, out: Path, nap: float, address: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, f"{HERE}/toy.py", str(root), str(out), str(nap), address]
    return subprocess.Popen(
        command, env=own_environment() | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def own_environment() -> dict[str, str]:
    """The environment without settings of Ray, and with gamlens and the toy."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return found | {"PYTHONPATH": os.pathsep.join([HERE, *sys.path])}


def end_all(processes: list[psutil.Process], *, wait: float = 60.0) -> list[psutil.Process]:
    """Wait until processes have ended, then kill those that have not, and return them."""
    _, alive = psutil.wait_procs(processes, timeout=wait)
    for process in alive:
        process.kill()
    return alive


@pytest.mark.slow
def test_an_interrupted_run_leaves_no_process_and_was_never_reachable(tmp_path: Path) -> None:
    """The cluster that a run starts listens on loopback only, and ends with Ctrl-C."""
    toy.data(tmp_path, IMAGES)
    run = run_toy(tmp_path, tmp_path / "run", 0.5, "local")
    started: list[psutil.Process] = []
    try:
        end = time.monotonic() + 60
        while not list((tmp_path / "run" / "parts").glob("*.parquet")) and time.monotonic() < end:
            time.sleep(0.05)
        started = psutil.Process(run.pid).children(recursive=True)
        names = {process.name() for process in started}
        listening = [
            connection.laddr.ip
            for process in started
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=120)
    finally:
        run.kill()
        left = end_all(started)
    assert {"gcs_server", "raylet"} <= names
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    assert said.strip().endswith("KeyboardInterrupt")
    assert not left


@pytest.fixture
def head(tmp_path: Path) -> Iterator[tuple[dict[str, str], int, int]]:
    """A Ray cluster on loopback: the environment to use it in, its port, and its port for ray:// addresses."""
    place = tempfile.mkdtemp(prefix="ray")  # short, because the paths of sockets are limited to 107 characters
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, client = one.getsockname()[1], other.getsockname()[1]
    (tmp_path / "token").write_text(secrets.token_hex(32))
    environment = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    environment["RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S"] = "60"
    environment["RAY_AUTH_TOKEN_PATH"] = str(tmp_path / "token")
    options = f"--head --block --port {port} --ray-client-server-port {client} --num-cpus 2 --temp-dir {place}"
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options.split()]
    command += ["--node-ip-address", "127.0.0.1", "--include-dashboard=false"]
    started = subprocess.Popen(
        command, env=own_environment() | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(300):
            time.sleep(0.2)
            try:
                addresses.require_answer(f"ray://127.0.0.1:{client}")
                break
            except GamlensError:
                assert started.poll() is None, "ray start failed"
        yield environment, port, client
    finally:
        processes = [psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)]
        started.terminate()
        end_all(processes)
        shutil.rmtree(place, ignore_errors=True)


@pytest.mark.slow
def test_a_cluster_that_is_there_already(tmp_path: Path, head: tuple[dict[str, str], int, int]) -> None:
    """By host:port and by ray://host:port, at once: the rows of one process, and no other output."""
    environment, port, client = head
    toy.data(tmp_path, 12)
    toy.run(tmp_path, tmp_path / "local")
    both = {"direct": f"127.0.0.1:{port}", "client": f"ray://127.0.0.1:{client}"}
    runs = [run_toy(tmp_path, tmp_path / name, 0.0, address, **environment) for name, address in both.items()]
    for run in runs:
        said, _ = run.communicate(timeout=120)
        assert (run.returncode, said) == (0, "")
    for name in both:
        assert parts(tmp_path / name) == parts(tmp_path / "local")


def test_engines_by_name() -> None:
    with pytest.raises(GamlensError, match="did you mean 'ray'"):
        Engine("rey")
    with pytest.raises(GamlensError, match="use it with --engine ray"):
        Engine("local", address="127.0.0.1:6379")
    with pytest.raises(GamlensError, match="at least 1"):
        Engine("local", 0)
