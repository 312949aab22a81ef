"""Actors of Ray that compute chunks: each holds one model, and a chunk whose actor is lost is given to another one."""

import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from gamlens.engine.jobs import Done, Job, count_errors, pieces
from gamlens.engine.part_files import PartWriter
from gamlens.engine.run_folder import RUN
from gamlens.engine.store import Store
from gamlens.errors import GamlensError
from gamlens.streaming.prefetch import MOST_THREADS, prefetch

BEAT_SECONDS = 30.0
MOST_LOSSES = 3  # of actors with one chunk: a chunk that crashes its process again and again must end the run


class ChunkActor:
    """A process of the cluster that holds one model.

    Args:
        job: What to do.
        writer: Writes parts into the run folder.
        run: The contents of run.json. If the folder does not hold them on this machine, it is another folder.
    """

    def __init__(self, job: Job, writer: PartWriter, run: bytes | None) -> None:
        self.job, self.writer = job, writer
        if Store(writer.place).read(RUN) != run:
            raise GamlensError(
                f"{writer.place!r} on the machine {socket.gethostname()!r} is not the folder of this run: all machines "
                "of the cluster must write to the same folder. Name one on a shared disk, or s3://..."
            )
        self.worker = job.make()

    def ready(self) -> None:
        """Returns as soon as the model is loaded."""

    def work(self, chunk: int, items: Sequence[Any]) -> Done:
        threads = min(MOST_THREADS, torch.get_num_threads())  # they decode while the model runs
        batches = prefetch(self.worker.load, pieces(items, self.job.batch), workers=threads)
        rows = [row for _, loaded in batches for row in self.worker.work(loaded)]
        self.writer.write(chunk, self.job.encode(rows), self.job.names(items))
        return Done(chunk, len(items), count_errors(rows))


@dataclass
class ActorPool:
    """Actors that compute one chunk at a time each.

    Attributes:
        ray: The module.
        make: Starts an actor, and returns its handle at once.
        count: The number of actors.
        wanted: A description of their number and resources, for error messages.
        calls: The calls that have not returned, each with its actor and chunk. The first call of an actor, which
            returns when the model is loaded, has no chunk; so an actor for which there is no room holds up no chunk.
        idle: The actors that wait for a chunk.
        lost: The number of actors that were lost with each chunk, or with None before they were ready.
    """

    ray: Any
    make: Callable[[], Any]
    count: int
    wanted: str
    calls: dict[Any, tuple[Any, int | None]] = field(default_factory=dict)
    idle: list[Any] = field(default_factory=list)
    lost: Counter[int | None] = field(default_factory=Counter)

    def run(self, todo: Mapping[int, Sequence[Any]], *, stall: float, beat: Callable[[], None]) -> Iterator[Done]:
        """Yield the chunks as they are finished.

        Args:
            todo: {chunk number: items}.
            stall: It is an error if no chunk is finished for this many seconds.
            beat: Called at least every BEAT_SECONDS.
        """
        waiting, finished, last = deque(todo), 0, time.monotonic()
        try:
            for _ in range(self.count):
                self._start()
            while finished < len(todo):
                while self.idle and waiting:
                    actor, chunk = self.idle.pop(), waiting.popleft()
                    self.calls[actor.work.remote(chunk, todo[chunk])] = actor, chunk
                ended, _ = self.ray.wait(list(self.calls), timeout=min(BEAT_SECONDS, stall))
                beat()
                for done in map(self._end, ended):
                    if isinstance(done, Done):
                        finished, last = finished + 1, time.monotonic()
                        yield done
                    elif done is not None:
                        waiting.appendleft(done)
                if time.monotonic() - last >= stall:
                    raise self._stalled(stall)
        finally:
            for actor in [*self.idle, *(actor for actor, _ in self.calls.values())]:
                self._kill(actor)

    def _start(self) -> None:
        actor = self.make()
        self.calls[actor.ready.remote()] = actor, None

    def _kill(self, actor: Any) -> None:
        with suppress(Exception):  # the connection may be what failed
            self.ray.kill(actor)

    def _end(self, call: Any) -> Done | int | None:
        """Take the result of a call that has ended: a finished chunk, or the number of a chunk whose actor was lost.

        It is None if the call had no chunk. In place of a lost actor, another one is started.
        """
        actor, chunk = self.calls.pop(call)
        try:
            done: Done | None = self.ray.get(call)
        except self.ray.exceptions.RayActorError as error:
            self.lost[chunk] += 1
            self._kill(actor)  # it may be alive on a machine that cannot be reached at the moment
            if error.actor_init_failed or self.lost[chunk] >= MOST_LOSSES:
                what = "while it loaded the model" if chunk is None else f"with chunk {chunk}"
                often = "" if error.actor_init_failed else f"{self.lost[chunk]} workers died {what}: "
                raise GamlensError(f"The cluster gave up: {often}{_reason(error)} Finished chunks are kept.") from error
            self._start()
            return chunk
        except Exception as error:
            self._kill(actor)
            raise GamlensError(f"The cluster gave up: {_reason(error)} Finished chunks are kept.") from error
        self.idle.append(actor)
        if chunk is None:
            self.lost[None] = 0
        return done

    def _stalled(self, stall: float) -> GamlensError:
        free = self.ray.available_resources()
        return GamlensError(
            f"No chunk was finished for {stall:.0f} s: the run wants {self.wanted}; the cluster has "
            f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs free. Finished chunks are kept: give a "
            "smaller --workers, or add machines, and run the same command again."
        )


def _reason(error: BaseException) -> str:
    """The line of Ray's message to show: that of a worker's GamlensError if there is one, otherwise the last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line.split("GamlensError:", 1)[1].strip() for line in lines if "GamlensError:" in line]
    return own[-1] if own else (lines[-1] if lines else type(error).__name__)
