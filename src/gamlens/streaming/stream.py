"""Explain a stream of images of any length: decode in threads, explain in batches, yield results in order.

Images are handled in groups of `batch_size` consecutive images.

1. `BatchPrefetcher` decodes the images of a group in threads, and `sort_by_size` batches those of one size.
2. `launch` starts forward, backward, maps, and the copy of the results to the host for one group. On a GPU it does not
   wait for any of them, so the next group is launched while the GPU works on this one.
3. `finish` waits for the results of a group. If a batch failed, its halves are explained, down to single images.

What fails for one image is the error of that image's result, whatever exception it was. What would fail for every image
is raised once: see `Witness` in `failures.py`.
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

from gamlens.errors import GamlensError, attempt, reworded
from gamlens.explanation import Explanation
from gamlens.inputs.batch import ModelInput, join, normalise_on, part
from gamlens.streaming.failures import Witness, tried, worded
from gamlens.streaming.prefetch import BatchPrefetcher
from gamlens.trace import Guess, Trace

SLOW_SOURCE = 0.01  # seconds: if the source takes longer to give an image, finished results are not held back for it
LAUNCHED_AHEAD = 2  # how many groups a GPU works on, at most, besides the one whose results are waited for
Numbered = tuple[int, Any]  # the number of an image in the stream, and the image as the source gave it
ExplainBatch = Callable[[ModelInput], tuple[Trace, Explanation]]
ExplainedImage = tuple[Explanation, tuple[Guess, ...]]
StartBatch = Callable[[ModelInput, Executor | None], Callable[[], list[ExplainedImage]]]
Loaded = ModelInput | GamlensError


@dataclass(frozen=True, eq=False)
class StreamResult:
    """The result for one image of a stream.

    Attributes:
        number: The position of the image in the stream, from 0.
        image: The image as the source gave it.
        explanation: The maps of this image, one row per explained class; None after an error.
        top: The model's best classes.
        error: Why there is no explanation; empty if there is one.
    """

    number: int
    image: Any
    explanation: Explanation | None = None
    top: tuple[Guess, ...] = ()
    error: str = ""


@dataclass(frozen=True, eq=False)
class SizeBatches:
    """The decoded images of a group.

    Attributes:
        batches: One (indices of the images in the group, batch) per image size (and per dtype and device).
        errors: For each image that could not be decoded or batched, by its index in the group, why.
    """

    batches: tuple[tuple[list[int], ModelInput], ...]
    errors: dict[int, Exception]


@dataclass(frozen=True, eq=False)
class PendingBatch:
    """A group of images whose results are not on the host yet.

    Attributes:
        group: The images with their numbers.
        images: The same images, decoded and batched.
        results: For each batch a function that waits for its results, or the error with which its launch failed.
        start: Launches a batch; used again for single images after a batch failed.
        landed: Done when all results are on the host; None if no thread waits for them.
    """

    group: Sequence[Numbered]
    images: SizeBatches
    results: tuple[Callable[[], list[ExplainedImage]] | Exception, ...]
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
    """Yield one StreamResult per image, in order.

    An image that cannot be decoded or explained has an error in its result, whatever exception it was, and the others
    go on. A failure that would hit every image is raised once: if the model fails on every decoded image of a group,
    and no image has been explained yet, or an image that was explained before now fails, too. If a batch needs too much
    memory, smaller ones are made. KeyboardInterrupt is always raised. However the stream ends, no thread is left.

    Args:
        images: The images, a list or any iterable. If it raises, the results of the images before come first.
        load: Decodes one image; called in a thread. Whatever it raises is the error of that image.
        explain: Traces and explains a batch on `device`.
        batch_size: How many images form a group.
        workers: How many threads decode; see `worker_count`.
        device: Where the model lies.
        ahead: How many groups may be launched after the one whose results are waited for: by default 2 on a GPU and 0
            on the CPU.
    """
    if isinstance(images, str | os.PathLike) or not isinstance(images, Iterable):
        raise GamlensError(f"A stream takes many images, found {images!r:.80}: give a list or a generator of them.")
    if ahead is None:
        ahead = LAUNCHED_AHEAD if device.type == "cuda" else 0
    source_errors: list[Exception] = []
    source, pending = _read(images, source_errors), deque[PendingBatch]()
    witness, slow = Witness(), False
    start, collate = partial(_start, explain, device), partial(sort_by_size, device=device)
    with (
        ThreadPoolExecutor(1, thread_name_prefix="host") as host,
        BatchPrefetcher(partial(_decode, load), collate, batch_size=batch_size, workers=workers) as decoded,
    ):
        while True:
            if not slow or not decoded.waiting:
                slow = _fill(decoded, source, busy=bool(pending))
            if decoded.waiting and (decoded.is_ready or not pending):
                pending.append(launch(*decoded.take(), start, host if ahead else None))
            if not pending:
                break
            while pending and (len(pending) > ahead or not _decoded_first(decoded, pending[0])):
                yield from finish(pending.popleft(), witness)
    if source_errors:
        raise source_errors[0]


def explain_group(
    group: Sequence[Numbered],
    loaded: Sequence[Loaded],
    explain: ExplainBatch,
    *,
    device: torch.device,
    witness: Witness,
) -> list[StreamResult]:
    """Explain the decoded images of one group and return their results in order.

    Args:
        group: The images with their numbers.
        loaded: What decoding each of them gave.
        explain: Traces and explains a batch on `device`.
        device: Where the model lies.
        witness: Decides whether an error is raised if every decoded image fails.
    """
    return finish(launch(group, sort_by_size(loaded, device), partial(_start, explain, device)), witness)


def sort_by_size(loaded: Sequence[Loaded], device: torch.device) -> SizeBatches:
    """Batch images of the same size. For the CPU they are also normalised; for a GPU they lie in pinned memory.

    Tensors that the user gave may differ in dtype or device, too. Such tensors cannot be concatenated, or only by a
    change of dtype, so they are in separate batches. If images cannot be batched, each is a batch of its own.
    """
    errors: dict[int, Exception] = {}
    sizes: dict[Any, dict[int, ModelInput]] = {}
    for place, ready in enumerate(loaded):
        if isinstance(ready, GamlensError):
            errors[place] = ready
        else:
            batch = ready.batches[0]
            kind = (ready.pending_transform is None, batch.shape[1:], batch.dtype, batch.device)
            sizes.setdefault(kind, {})[place] = ready
    batches: list[tuple[list[int], ModelInput]] = []
    for one in sizes.values():
        together = tried(_batched, list(one.values()), device)
        made = [(list(one), together)]
        if isinstance(together, Exception):
            made = [([place], tried(_batched, [ready], device)) for place, ready in one.items()]
        for places, batch_ in made:
            if isinstance(batch_, Exception):
                errors[places[0]] = batch_
            else:
                batches.append((places, batch_))
    return SizeBatches(tuple(batches), errors)


def _batched(several: list[ModelInput], device: torch.device) -> ModelInput:
    together = join(several, pin=device.type == "cuda")
    return normalise_on(together, device) if device.type == "cpu" else together


def launch(
    group: Sequence[Numbered], images: SizeBatches, start: StartBatch, pool: Executor | None = None
) -> PendingBatch:
    """Start to explain a group. With a `pool`, one of its threads waits for the results, and this function does not."""
    results = tuple(tried(start, ready, pool) for _, ready in images.batches)
    landed = pool.submit(lambda: None) if pool else None  # the pool has one thread, which runs this after the copies
    return PendingBatch(group, images, results, start, landed)


def finish(pending: PendingBatch, witness: Witness) -> list[StreamResult]:
    """Wait for the results of a group and return them in order; the images of a failed batch are explained in halves.

    Args:
        pending: The group.
        witness: Decides whether an error is raised if every decoded image fails.
    """
    found: dict[int, ExplainedImage | Exception] = {}
    for (places, ready), results in zip(pending.images.batches, pending.results, strict=True):
        together = results if isinstance(results, Exception) else tried(results)
        several = _in_halves(ready, together, pending.start) if isinstance(together, Exception) else together
        found.update(zip(places, several, strict=True))
        good = [at for at, result in enumerate(several) if not isinstance(result, Exception)]
        if good:
            witness.saw(part(ready, good[0]))
    failed = [result for result in found.values() if isinstance(result, Exception)]
    if failed and len(failed) == len(found):
        general = witness.general(failed, lambda one: pending.start(one, None)())
        if general is not None:
            raise general
    found.update(pending.images.errors)
    return [
        StreamResult(*numbered, error=worded(result))
        if isinstance(result, Exception)
        else StreamResult(*numbered, *result)
        for numbered, result in ((numbered, found[place]) for place, numbered in enumerate(pending.group))
    ]


def _in_halves(ready: ModelInput, error: Exception, start: StartBatch) -> Sequence[ExplainedImage | Exception]:
    """Explain the images of a batch that failed with `error`: in two halves, each of which may fail in turn."""
    count = len(ready.pictures)
    if count == 1:
        return [error]
    found: list[ExplainedImage | Exception] = []
    for at in (slice(0, count // 2), slice(count // 2, count)):
        half = part(ready, at)
        made = tried(lambda one: start(one, None)(), half)
        found += _in_halves(half, made, start) if isinstance(made, Exception) else made
    return found


def _start(
    explain: ExplainBatch, device: torch.device, ready: ModelInput, pool: Executor | None
) -> Callable[[], list[ExplainedImage]]:
    """Explain a batch, start to copy the results to the host, and return a function that waits for them."""
    trace, explanation = explain(normalise_on(ready, device))
    arrive = explanation.to_host(pool)
    rank = trace.rank(pool=pool) if trace.output is not None else None

    def results() -> list[ExplainedImage]:
        rows = arrive().each()
        best = rank() if rank is not None else [[] for _ in rows]
        return [(row, tuple(guesses)) for row, guesses in zip(rows, best, strict=True)]

    return results


def _decode(load: Callable[[Any], ModelInput], item: Numbered) -> Loaded:
    """Return load(image), or what it raises as a GamlensError: one bad image must not end the stream."""

    def decoded() -> ModelInput:
        with reworded("Cannot read this image", todo=". Give a path, a PIL image, a uint8 array or a tensor."):
            return load(item[1])

    return attempt(decoded)


def _read(images: Iterable[Any], errors: list[Exception]) -> Iterator[Numbered]:
    """Yield images with their numbers. An exception of the source ends them and is appended to `errors`."""
    try:
        yield from enumerate(images)
    except Exception as error:  # noqa: BLE001 - `stream` raises it after the results of the images before
        errors.append(error)


def _fill(decoded: BatchPrefetcher[Numbered, Any, SizeBatches], source: Iterator[Numbered], *, busy: bool) -> bool:
    """Read images from the source while the prefetcher has room.

    Returns:
        True if reading was broken off because the source is slow and there is other work: a group on the device
        (`busy`) or a batch that is being decoded.
    """
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
    """Wait until the next group is decoded or the results of `pending` are on the host; tell if it was the former."""
    if not decoded.waiting or pending.landed is None:
        return False
    either: list[Future[Any]] = [decoded.waiting[0].made, pending.landed]
    wait(either, return_when=FIRST_COMPLETED)
    return decoded.is_ready
