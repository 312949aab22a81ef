"""Images without end: decoded in threads, explained in batches, handed out one by one in their order.

1. `BatchPrefetcher` decodes images in threads and puts those of one size together (`sort_by_size`).
2. `launch` starts forward, backward and maps of a group, and the copy of its results to the host. On a GPU nothing here
   waits, so that the next group is launched while the device works on this one.
3. `finish` waits for the results of a group. If a batch failed, its images are tried one by one.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gamlens.errors import GamlensError, attempt
from gamlens.explanation import Explanation
from gamlens.inputs.batch import ModelInput, join, normalise_on, part
from gamlens.streaming.prefetch import BatchPrefetcher
from gamlens.trace import Guess, Trace

SLOW_SOURCE = 0.01  # seconds per image: what is ready does not wait for a source that takes longer
LAUNCHED_AHEAD = 2
Numbered = tuple[int, Any]
ExplainBatch = Callable[[ModelInput], tuple[Trace, Explanation]]
ExplainedImage = tuple[Explanation, tuple[Guess, ...]]
StartBatch = Callable[[ModelInput, Executor | None], Callable[[], list[ExplainedImage]]]
Loaded = ModelInput | GamlensError


@dataclass(frozen=True, eq=False)
class StreamResult:
    """What came of one image: its explanation (one row per class) and the model's best classes, or an error."""

    number: int
    image: Any
    explanation: Explanation | None = None
    top: tuple[Guess, ...] = ()
    error: str = ""


@dataclass(frozen=True, eq=False)
class SizeBatches:
    """The images of a group: one batch per size with the places of its images in the group, and errors by place."""

    batches: tuple[tuple[list[int], ModelInput], ...]
    errors: dict[int, GamlensError]


@dataclass(frozen=True, eq=False)
class PendingBatch:
    """A group that the device works on: for each size the call that waits for its results, or why there are none.

    `start` begins a batch again, for images one by one. `landed` is done when all results are on the host.
    """

    group: Sequence[Numbered]
    images: SizeBatches
    results: tuple[Callable[[], list[ExplainedImage]] | GamlensError, ...]
    start: StartBatch
    landed: Future[None] | None = None


def stream(
    images: Iterable[Any],
    load: Callable[[Any], ModelInput],
    explain: ExplainBatch,
    *,
    batch_size: int,
    workers: int | None,
    device: torch.device,
    ahead: int | None = None,
) -> Iterator[StreamResult]:
    """One result per image, in order. A bad image has an error of its own; an error on every image is raised.

    Args:
        load: Decodes one image, in a thread.
        explain: Traces and explains a batch on `device`.
        ahead: How many groups are launched before the oldest is handed out, if they are decoded by then: 2 on a GPU.
    """
    if isinstance(images, str | os.PathLike) or not isinstance(images, Iterable):
        raise GamlensError(f"A stream takes many images, found {images!r:.80}: give a list or a generator of them.")
    if ahead is None:
        ahead = LAUNCHED_AHEAD if device.type == "cuda" else 0
    source_errors: list[Exception] = []
    source, pending = _read(images, source_errors), deque[PendingBatch]()
    good, slow = 0, False
    start, collate = partial(_start, explain, device), partial(sort_by_size, device=device)

    def read(item: Numbered) -> Loaded:
        return attempt(load, item[1])

    with (
        ThreadPoolExecutor(1, thread_name_prefix="host") as host,
        BatchPrefetcher(read, collate, batch_size=batch_size, workers=workers) as decoded,
    ):
        while True:
            if not slow or not decoded.waiting:
                slow = _fill(decoded, source, busy=bool(pending))
            if decoded.waiting and (decoded.is_ready or not pending):
                pending.append(launch(*decoded.take(), start, host if ahead else None))
            if not pending:
                break
            while pending and (len(pending) > ahead or not _decoded_first(decoded, pending[0])):
                for result in finish(pending.popleft(), strict=good == 0):
                    good += not result.error
                    yield result
    if source_errors:
        raise source_errors[0]


def explain_group(
    group: Sequence[Numbered], loaded: Sequence[Loaded], explain: ExplainBatch, *, device: torch.device, strict: bool
) -> list[StreamResult]:
    """The results of decoded images, those of one size together. `strict`: raise an error if all of them fail."""
    return finish(launch(group, sort_by_size(loaded, device), partial(_start, explain, device)), strict=strict)


def sort_by_size(loaded: Sequence[Loaded], device: torch.device) -> SizeBatches:
    """Images of one size in one batch: normalised for a model on the CPU, in pinned memory for one on a GPU."""
    errors: dict[int, GamlensError] = {}
    sizes: dict[Any, dict[int, ModelInput]] = {}
    for place, ready in enumerate(loaded):
        if isinstance(ready, GamlensError):
            errors[place] = ready
        else:
            sizes.setdefault((ready.pending_transform is None, ready.batches[0].shape[1:]), {})[place] = ready
    batches = [(list(one), join(list(one.values()), pin=device.type == "cuda")) for one in sizes.values()]
    if device.type == "cpu":
        batches = [(places, normalise_on(ready, device)) for places, ready in batches]
    return SizeBatches(tuple(batches), errors)


def launch(
    group: Sequence[Numbered], images: SizeBatches, start: StartBatch, pool: Executor | None = None
) -> PendingBatch:
    """Start to explain a group. With a `pool`, a thread of it waits for the results; nothing here does."""
    results = tuple(attempt(start, ready, pool) for _, ready in images.batches)
    landed = pool.submit(lambda: None) if pool else None  # the pool's only thread comes to this after the copies
    return PendingBatch(group, images, results, start, landed)


def finish(pending: PendingBatch, *, strict: bool) -> list[StreamResult]:
    """Wait for the results of a group. The images of a batch that failed are explained one by one.

    `strict`: raise the first error if no image that could be decoded has a result.
    """
    found: dict[int, ExplainedImage | GamlensError] = {}
    for (places, ready), results in zip(pending.images.batches, pending.results, strict=True):
        together = results if isinstance(results, GamlensError) else attempt(results)
        if isinstance(together, GamlensError):
            for number, place in enumerate(places):
                found[place] = attempt(lambda one: pending.start(one, None)()[0], part(ready, number))
        else:
            found.update(zip(places, together, strict=True))
    failed = [result for result in found.values() if isinstance(result, GamlensError)]
    if strict and failed and len(failed) == len(found):
        raise failed[0]
    found.update(pending.images.errors)
    return [
        StreamResult(*numbered, error=str(result))
        if isinstance(result, GamlensError)
        else StreamResult(*numbered, *result)
        for numbered, result in ((numbered, found[place]) for place, numbered in enumerate(pending.group))
    ]


def _start(
    explain: ExplainBatch, device: torch.device, ready: ModelInput, pool: Executor | None
) -> Callable[[], list[ExplainedImage]]:
    """Explain a batch and start to copy the results to the host; the call that is returned waits for them."""
    trace, explanation = explain(normalise_on(ready, device))
    arrive = explanation.to_host(pool)
    rank = trace.rank(pool=pool) if trace.output is not None else None

    def results() -> list[ExplainedImage]:
        rows = arrive().each()
        best = rank() if rank is not None else [[] for _ in rows]
        return [(row, tuple(guesses)) for row, guesses in zip(rows, best, strict=True)]

    return results


def _read(images: Iterable[Any], errors: list[Exception]) -> Iterator[Numbered]:
    """Images with their numbers; an error of the source is kept until the images before it are handed out."""
    try:
        yield from enumerate(images)
    except Exception as error:  # noqa: BLE001 - raised in its turn
        errors.append(error)


def _fill(decoded: BatchPrefetcher[Numbered, Any, SizeBatches], source: Iterator[Numbered], *, busy: bool) -> bool:
    """Read while there is room. True if the source is slow and there is something else to do (`busy`, or a batch)."""
    while decoded.has_room:
        begun = time.perf_counter()
        item = next(source, None)
        slow = time.perf_counter() - begun > SLOW_SOURCE
        if item is None:
            decoded.flush()
            return False
        decoded.put(item)
        if slow and (busy or decoded.waiting):
            return True
    return False


def _decoded_first(decoded: BatchPrefetcher[Numbered, Any, SizeBatches], pending: PendingBatch) -> bool:
    """Wait for the next decoded group or for the results of this one: whether the decoded group was first."""
    if not decoded.waiting or pending.landed is None:
        return False
    either: list[Future[Any]] = [decoded.waiting[0].made, pending.landed]
    wait(either, return_when=FIRST_COMPLETED)
    return decoded.is_ready
