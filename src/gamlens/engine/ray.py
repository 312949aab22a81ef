"""The engine that computes the chunks of a run on a Ray cluster.

Each actor holds one model and writes finished chunks into the run folder. Ray Data assigns chunks to actors and retries
the chunks of a lost actor. A chunk that is computed twice gives the same file, so a retry does no harm.
"""

import logging
import os
import pickle
import queue
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from gamlens.data.reading import import_extra
from gamlens.engine.addresses import ADDRESS_HINT, require_answer
from gamlens.engine.jobs import Done, Job, count_errors, pieces
from gamlens.engine.run_folder import RunFolder, part_name
from gamlens.engine.store import Store
from gamlens.errors import GamlensError

# Environment variables that Ray reads when it is imported. A value that the user has set is kept.
RAY_SETTINGS = {"RAY_DATA_DISABLE_PROGRESS_BARS": "1", "RAY_DEDUP_LOGS": "1", "RAY_USAGE_STATS_ENABLED": "0",
         "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # fmt: skip
# Without this, Ray replaces 127.0.0.1 by the address of a network card, and a cluster on Linux listens to all networks.
OWN_CLUSTER_SETTINGS = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# By default, Ray tries 20 times for 40 s each to connect.
FOREIGN_CLUSTER_SETTINGS = {"RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_py_gcs_connect_timeout_s": "10"}
SAYS_SO = "environment variable RAY_BACKEND_LOG_LEVEL"  # Ray prints this because of RAY_SETTINGS; `_connect` hides it


def run_ray(
    job: Job,
    items: Sequence[Any],
    folder: RunFolder,
    *,
    workers: int | None = None,
    address: str | None = None,
    stall: float = 900.0,
) -> Iterator[Done]:
    """Compute the chunks that are not written yet on a Ray cluster; yields each one as soon as it is finished.

    Args:
        job: What the actors do.
        items: All items of the run; each must be picklable.
        folder: The run folder, which every machine of the cluster must be able to write to.
        workers: The number of actors. By default one per GPU, or without GPUs as many as the CPUs have room for if each
            actor computes with as many threads as torch uses in this process.
        address: The address of a cluster. By default the environment variable RAY_ADDRESS; if that is not set either, a
            cluster is started on this machine and stopped at the end.
        stall: The run fails if no chunk is finished for this many seconds.
    """
    todo = job.unwritten(items, folder)
    if not todo:
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    ray = _ray(address)
    started = _connect(ray, address)
    try:
        count, share = _shares(ray, workers, len(todo), torch.get_num_threads())
        rows = [{"chunk": number, "items": pickle.dumps(list(chunk))} for number, chunk in todo.items()]
        local = folder.store.local
        place = folder.store.place if local is None else str(local.absolute())  # workers start in other directories
        data = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            _Actor,
            fn_constructor_args=(job, place, folder.suffix),
            compute=ray.data.ActorPoolStrategy(size=count, max_tasks_in_flight_per_actor=2),
            **share,
        )
        seen: set[int] = set()
        for row in _watched(ray, data, stall, f"{count} workers of {share}"):
            folder.beat()
            if row["chunk"] not in seen:
                seen.add(row["chunk"])
                yield Done(int(row["chunk"]), int(row["items"]), int(row["errors"]))
        if missing := job.unwritten(items, folder):
            raise GamlensError(
                f"{len(missing)} of {len(todo)} chunks are missing in {folder.store.place!r}: every machine of the "
                "cluster must write to that folder. Name one on a shared disk, or s3://... Finished chunks are kept."
            )
    finally:
        if started:
            ray.shutdown()


class _Actor:
    """A process of the cluster that holds one model."""

    def __init__(self, job: Job, place: str, suffix: str) -> None:
        self.job, self.store, self.suffix = job, Store(place), suffix
        self.worker = job.make()

    def __call__(self, chunk: dict[str, Any]) -> dict[str, Any]:
        items = pickle.loads(chunk["items"])
        rows = [row for part in pieces(items, self.job.batch) for row in self.worker.work(self.worker.load(part))]
        self.store.write(part_name(chunk["chunk"], self.suffix), self.job.encode(rows))
        return {"chunk": chunk["chunk"], "items": len(items), "errors": count_errors(rows)}


def _ray(address: str) -> Any:
    settings = RAY_SETTINGS | (OWN_CLUSTER_SETTINGS if address == "local" else FOREIGN_CLUSTER_SETTINGS)
    os.environ.update({name: os.environ.get(name, value) for name, value in settings.items()})
    import_extra("ray.data", "The engine ray", extra="cluster")
    if address.startswith("ray://"):
        import_extra("grpc", f"The address {address!r}", extra="cluster")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return import_module("ray")


def _connect(ray: Any, address: str) -> bool:
    """Connect to the cluster at `address`, or start one on loopback. Returns whether the caller must shut it down."""
    if ray.is_initialized():
        return False
    own: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address == "local" else {}
    require_answer(address)
    try:
        with _without(SAYS_SO), warnings.catch_warnings(action="ignore"):
            ray.init(address, log_to_driver=False, logging_level="error", configure_logging=True, **own)
    except Exception as error:
        where = "on this machine" if address == "local" else f"at {address!r}"
        hint = "" if address == "local" else f" {ADDRESS_HINT} If the cluster uses tokens, set RAY_AUTH_MODE=token."
        said = next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__
        raise GamlensError(f"Cannot use a Ray cluster {where}: {said}.{hint}") from error
    ray.data.DataContext.get_current().enable_progress_bars = False
    return True


@contextmanager
def _without(text: str) -> Iterator[None]:
    """Remove lines that contain `text` from standard error, including what C++ code writes to file descriptor 2.

    The other lines are printed when the context ends.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            os.write(2, b"".join(line for line in held if text.encode() not in line))


def _shares(ray: Any, workers: int | None, todo: int, threads: int = 1) -> tuple[int, dict[str, float]]:
    """The number of actors, and the resources of each: one GPU if the cluster has any, and a share of the CPUs.

    Without GPUs an actor wants a CPU per thread, but not more than one machine has. A tenth of the CPUs, at least half
    a CPU, is left for the tasks in which Ray Data reads its input.
    """
    have = ray.cluster_resources()
    cpus, gpus = float(have.get("CPU", 0)), float(have.get("GPU", 0))
    if cpus <= 0:
        raise GamlensError("The cluster has no CPU: check with `ray status` that it is running.")
    largest = max(float(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])
    wanted = 1 if gpus else max(1, min(threads, int(largest)))
    count = max(1, min(todo, workers or int(gpus or (cpus // wanted if wanted > 1 else cpus - 1))))
    if gpus and count > gpus:
        raise GamlensError(f"{count} workers want a GPU each and the cluster has {gpus:g}: give a smaller --workers.")
    spare = max(0.5, cpus * 0.1)
    share = min(wanted, (cpus - spare) / count, largest - 0.5)
    share = float(int(share)) if share > 1 else max(0.01, round(share, 2))  # Ray takes no fractions above 1
    return count, {"num_cpus": share, "num_gpus": 1.0} if gpus else {"num_cpus": share}


def _watched(ray: Any, data: Any, stall: float, wanted: str) -> Iterator[dict[str, Any]]:
    """Yield rows as they arrive; raise a GamlensError if none arrives for `stall` seconds.

    `wanted` describes the resources that the run asked for, for the message.
    """
    found: queue.Queue[Any] = queue.Queue()

    def read() -> None:
        try:
            for row in data.iter_rows():
                found.put(row)
            found.put(None)
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            found.put(error)

    threading.Thread(target=read, daemon=True, name="ray rows").start()
    while True:
        try:
            row = found.get(timeout=stall)
        except queue.Empty:
            free = ray.available_resources()
            raise GamlensError(
                f"No chunk was finished for {stall:.0f} s: the run wants {wanted}; the cluster has "
                f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs free. Finished chunks are kept: give a "
                "smaller --workers, or add machines, and run the same command again."
            ) from None
        if row is None:
            return
        if isinstance(row, BaseException):
            raise GamlensError(f"The cluster gave up: {_reason(row)} Finished chunks are kept.") from row
        yield row


def _reason(error: BaseException) -> str:
    """The line of Ray's message to show: that of a worker's GamlensError if there is one, otherwise the last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line.split("GamlensError:", 1)[1].strip() for line in lines if "GamlensError:" in line]
    return own[-1] if own else (lines[-1] if lines else type(error).__name__)
