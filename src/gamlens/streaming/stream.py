"""Images without end: decoded ahead in threads, looked at in batches, given back one by one as they come."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gamlens.errors import GamlensError
from gamlens.explanation import Explanation
from gamlens.inputs.batch import ModelInput, join, normalise_on, part
from gamlens.streaming.prefetch import Line
from gamlens.trace import Guess, Trace

SLOW = 0.01  # seconds an image: a source that takes longer is waited for, so nothing may wait for it
EARLY = 2
CPU = torch.device("cpu")
Numbered = tuple[int, Any]
Load = Callable[[Any], ModelInput]
Look = Callable[[ModelInput], Trace]
Explain = Callable[[Trace], Explanation]
Result = tuple[Explanation, tuple[Guess, ...]]


@dataclass(frozen=True, eq=False)
class StreamResult:
    """What came of one image: its explanation (a row a class) and the model's best classes, or an error."""

    number: int
    image: Any
    explanation: Explanation | None = None
    top: tuple[Guess, ...] = ()
    error: str = ""


@dataclass(frozen=True, eq=False)
class Model:
    """The two steps of a look, how many of the best classes are wanted, and where the model is."""

    look: Look
    explain: Explain
    top: int
    device: torch.device | None = None


@dataclass(frozen=True, eq=False)
class Sorted:
    """The images of a group by size, each size joined, with their places in the group; and what is wrong with some."""

    sizes: tuple[tuple[list[int], ModelInput], ...]
    bad: dict[int, GamlensError]


@dataclass(frozen=True, eq=False)
class PendingBatch:
    """A group the device works on: for each size the call that waits for its results, or why there are none."""

    group: Sequence[Numbered]
    images: Sorted
    landings: tuple[Callable[[], list[Result]] | GamlensError, ...]
    landed: Future[None] | None = None


def stream(
    images: Iterable[Any],
    load: Load,
    look: Look,
    explain: Explain,
    *,
    batch: int,
    threads: int | None,
    top: int = 5,
    device: torch.device = CPU,
    early: int | None = None,
) -> Iterator[StreamResult]:
    """One result per image, in order. A bad image is an error of its own; an error on every image is raised.

    On a GPU up to `early` batches are begun before the oldest is handed out, where they are decoded by then.
    """
    if isinstance(images, str | os.PathLike) or not isinstance(images, Iterable):
        raise GamlensError(f"A stream takes many images, found {images!r:.80}: give a list or a generator of them.")
    model = Model(look, explain, top, device)
    most = early if early is not None else EARLY if device.type == "cuda" else 0
    trouble: list[Exception] = []
    source, flying, good, slow = _read(images, trouble), deque[PendingBatch](), 0, False
    with (
        ThreadPoolExecutor(1, thread_name_prefix="home") as home,
        Line(partial(_loaded, load), partial(sort, device=device), batch=batch, threads=threads) as line,
    ):
        while True:
            if not slow or not line.waiting:
                slow = _fill(line, source, busy=bool(flying))
            if line.waiting and (line.is_ready or not flying):
                flying.append(launch(*line.take(), model, home if most else None))
            if not flying:
                break
            while flying and (len(flying) > most or not _ready_first(line, flying[0])):
                for seen in settle(flying.popleft(), model, strict=good == 0):
                    good += not seen.error
                    yield seen
    if trouble:
        raise trouble[0]


def look_at(
    group: Sequence[Numbered],
    loaded: Sequence[ModelInput | GamlensError],
    look: Look,
    explain: Explain,
    *,
    strict: bool,
    top: int,
) -> list[StreamResult]:
    """Images of one size together; where that fails, one by one. `strict`: an error if all of them fail."""
    model = Model(look, explain, top)
    return settle(launch(group, sort(loaded), model), model, strict=strict)


def sort(loaded: Sequence[ModelInput | GamlensError], device: torch.device | None = None) -> Sorted:
    """Images of one size in one batch: ready for a model on the CPU, pinned for one on a GPU."""
    bad: dict[int, GamlensError] = {}
    sizes: dict[Any, list[int]] = {}
    for place, ready in enumerate(loaded):
        if isinstance(ready, GamlensError):
            bad[place] = ready
        else:
            sizes.setdefault((ready.raw is None, ready.batches[0].shape[1:]), []).append(place)
    pin = device is not None and device.type == "cuda"
    joined = [join([ready for place in places if isinstance(ready := loaded[place], ModelInput)], pin=pin)
              for places in sizes.values()]  # fmt: skip
    if device is not None and device.type == "cpu":
        joined = [normalise_on(ready, device) for ready in joined]
    return Sorted(tuple(zip(sizes.values(), joined, strict=True)), bad)


def launch(group: Sequence[Numbered], images: Sorted, model: Model, pool: Executor | None = None) -> PendingBatch:
    """Begin to look at a group. On a GPU nothing here waits for it."""
    landings: list[Callable[[], list[Result]] | GamlensError] = []
    for _, ready in images.sizes:
        try:
            landings.append(_begun(ready, model, pool))
        except GamlensError as error:
            landings.append(error)
    return PendingBatch(group, images, tuple(landings), pool.submit(_nothing) if pool else None)


def settle(flight: PendingBatch, model: Model, *, strict: bool) -> list[StreamResult]:
    """What came of a group; a size that failed is looked at again, one by one."""
    found = {place: StreamResult(*flight.group[place], error=str(error)) for place, error in flight.images.bad.items()}
    failures: list[GamlensError] = []
    for (places, ready), landing in zip(flight.images.sizes, flight.landings, strict=True):
        try:
            results: list[Result | GamlensError] = [*_landed(landing)]
        except GamlensError:
            results = [_alone(part(ready, number), model) for number in range(len(places))]
        for place, result in zip(places, results, strict=True):
            if isinstance(result, GamlensError):
                failures.append(result)
                found[place] = StreamResult(*flight.group[place], error=str(result))
            else:
                found[place] = StreamResult(*flight.group[place], *result)
    if strict and failures and len(failures) == len(flight.group) - len(flight.images.bad):
        raise failures[0]
    return [found[place] for place in range(len(flight.group))]


def _read(images: Iterable[Any], trouble: list[Exception]) -> Iterator[Numbered]:
    """Images with their numbers; an error of the source is kept until those before it are handed out."""
    try:
        yield from enumerate(images)
    except Exception as error:  # noqa: BLE001 - raised in its turn
        trouble.append(error)


def _fill(line: Line[Numbered, Any, Sorted], source: Iterator[Numbered], *, busy: bool) -> bool:
    """Read while there is room. True where the source is slow and something else is at hand."""
    while line.has_room:
        start = time.perf_counter()
        item = next(source, None)
        slow = time.perf_counter() - start > SLOW
        if item is None:
            line.flush()
            return False
        line.put(item)
        if slow and (busy or line.waiting):
            return True
    return False


def _ready_first(line: Line[Numbered, Any, Sorted], flight: PendingBatch) -> bool:
    """Whether another batch is there to begin with before this one is done."""
    if not line.waiting or flight.landed is None:
        return False
    either: list[Future[Any]] = [line.waiting[0].made, flight.landed]
    wait(either, return_when=FIRST_COMPLETED)
    return line.is_ready


def _loaded(load: Load, item: Numbered) -> ModelInput | GamlensError:
    try:
        return load(item[1])
    except GamlensError as error:
        return error


def _begun(ready: ModelInput, model: Model, pool: Executor | None = None) -> Callable[[], list[Result]]:
    trace = model.look(ready if model.device is None else normalise_on(ready, model.device))
    arrive = model.explain(trace).leave(pool)
    rank = trace.rank(model.top, pool) if trace.output is not None else None
    count = len(ready.pictures)

    def landing() -> list[Result]:
        results = arrive().each()
        guesses = rank() if rank is not None else [[] for _ in range(count)]
        return [(result, tuple(best)) for result, best in zip(results, guesses, strict=True)]

    return landing


def _landed(landing: Callable[[], list[Result]] | GamlensError) -> list[Result]:
    if isinstance(landing, GamlensError):
        raise landing
    return landing()


def _alone(ready: ModelInput, model: Model) -> Result | GamlensError:
    try:
        return _begun(ready, model)()[0]
    except GamlensError as error:
        return error


def _nothing() -> None:
    pass
