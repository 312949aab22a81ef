"""The engine that computes the chunks of a run on a Ray cluster.

Each actor holds one model and writes finished chunks into the run folder. The chunk of a lost actor is given to another
one. A chunk that is computed twice gives the same file, so that does no harm.

Actors are used directly rather than through Ray Data, which does not work with addresses ray://host:port.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from gamlens.data.reading import import_extra
from gamlens.engine.actor_pool import ActorPool, ChunkActor
from gamlens.engine.addresses import ADDRESS_HINT, require_answer
from gamlens.engine.jobs import Done, Job
from gamlens.engine.run_folder import RUN, RunFolder
from gamlens.errors import GamlensError

# Environment variables that Ray reads when it is imported. A value that the user has set is kept.
RAY_SETTINGS = {"RAY_DEDUP_LOGS": "1", "RAY_USAGE_STATS_ENABLED": "0",
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
        arguments = job, folder.writer(), folder.store.read(RUN)
        make = ray.remote(**share, max_restarts=0)(ChunkActor)
        pool = ActorPool(ray, lambda: make.remote(*arguments), count, f"{count} workers of {share}")
        yield from pool.run(todo, stall=stall, beat=folder.beat)
        if missing := job.unwritten(items, folder):
            raise GamlensError(
                f"{len(missing)} of {len(todo)} chunks are missing in {folder.store.place!r}: every machine of the "
                "cluster must write to that folder. Name one on a shared disk, or s3://... Finished chunks are kept."
            )
    finally:
        if started:
            ray.shutdown()


def _ray(address: str) -> Any:
    settings = RAY_SETTINGS | (OWN_CLUSTER_SETTINGS if address == "local" else FOREIGN_CLUSTER_SETTINGS)
    os.environ.update({name: os.environ.get(name, value) for name, value in settings.items()})
    import_extra("ray", "The engine ray", extra="cluster")
    if address.startswith("ray://"):
        import_extra("grpc", f"The address {address!r}", extra="cluster")
    return import_module("ray")


def _connect(ray: Any, address: str) -> bool:
    """Connect to the cluster at `address`, or start one on loopback. Returns whether the caller must shut it down."""
    if ray.is_initialized():
        return False
    own: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address == "local" else {}
    require_answer(address)
    try:
        with _without(SAYS_SO), warnings.catch_warnings(action="ignore"):
            _init(ray, address, log_to_driver=False, logging_level="error", configure_logging=True, **own)
    except Exception as error:
        where = "on this machine" if address == "local" else f"at {address!r}"
        hint = "" if address == "local" else f" {ADDRESS_HINT} If the cluster uses tokens, set RAY_AUTH_MODE=token."
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        said = f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") else lines[0]
        raise GamlensError(f"Cannot use a Ray cluster {where}: {said.rstrip('.')}.{hint}") from error
    return True


def _init(ray: Any, address: str, **options: Any) -> None:
    """Call ray.init, a second time if the process that the head starts for a ray:// address does not come up."""
    try:
        ray.init(address, **options)
    except ConnectionAbortedError:
        ray.init(address, **options)


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

    Without GPUs an actor wants one CPU per thread, but at most all CPUs of one machine. If so many actors do not fit
    on the machines of the cluster, each gets a smaller share.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = [int(node.get("CPU", 0)) for node in nodes], int(sum(node.get("GPU", 0) for node in nodes))
    if sum(cpus) <= 0:
        raise GamlensError("The cluster has no CPU: check with `ray status` that it is running.")
    wanted = 1 if gpus else min(threads, max(cpus))
    count = max(1, min(todo, workers or gpus or sum(have // wanted for have in cpus)))
    if gpus and count > gpus:
        raise GamlensError(f"{count} workers want a GPU each and the cluster has {gpus}: give a smaller --workers.")
    smaller = (*range(wanted, 0, -1), 0.5, 0.25, 0.1, 0.05)  # above 1, Ray takes whole numbers only
    share = next((share for share in smaller if sum(int(have / share) for have in cpus) >= count), 0.01)
    return count, {"num_cpus": float(share), "num_gpus": 1.0} if gpus else {"num_cpus": float(share)}
