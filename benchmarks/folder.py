"""Measures `lens.stream` on a folder of photos, compared with decoding alone and with the model alone.

The photos are JPEG files of smooth noise, 500 x 375 pixels, or of several shapes with --mixed. "Decoding alone" uses
the threads of the stream to turn files into batches, without a model. "The model alone" runs the model on batches that
were decoded before, as the stream does, up to one result per image on the host. If decoding and model overlap well, the
stream takes little more time than the slower of the two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torchvision import models

from gamlens import Lens
from gamlens import trace as trace_room
from gamlens.capture.nonblocking import to_host
from gamlens.explanation import result as result_room
from gamlens.inputs.batch import ModelInput, Views, prepare_pixels
from gamlens.streaming import stream as room
from gamlens.streaming.prefetch import BatchPrefetcher, grouped, worker_count

PATTERNS = 200
DECODED = 4  # number of prepared batches for the model alone, used in turn
SHAPES = ((500, 375), (375, 500), (640, 427), (333, 500), (500, 500), (1024, 768), (320, 240))


def photos(folder: Path, count: int, *, mixed: bool = False) -> list[str]:
    """Write JPEG files of smooth noise: a few hundred patterns, each under several names."""
    draw, found = np.random.default_rng(0), []
    for number in range(count):
        file = folder / f"{number:05d}.jpg"
        if number < PATTERNS:
            coarse = Image.fromarray(draw.integers(0, 255, (40, 50, 3), dtype=np.uint8))
            shape = SHAPES[number % len(SHAPES)] if mixed else SHAPES[0]
            coarse.resize(shape, Image.Resampling.BICUBIC).save(file, quality=90)
        else:
            file.write_bytes((folder / f"{number % PATTERNS:05d}.jpg").read_bytes())
        found.append(str(file))
    return found


class Bench:
    """A lens and files, and the three ways to process them that are compared."""

    def __init__(self, lens: Lens, files: list[str], batch: int) -> None:
        self.lens, self.files, self.batch = lens, files, batch
        self.device = next(lens.model.parameters()).device
        self.start = partial(room._start, self._explain, self.device)
        self.groups = [list(group) for group in grouped(enumerate(files), batch)]
        self.decoded = [self._decoded(group) for group in self.groups[:DECODED]]
        self.last = self._decoded(self.groups[-1])

    def _decoded(self, group: list[tuple[int, str]]) -> room.SizeBatches:
        return room.sort_by_size([self._load(file) for _, file in group], self.device)

    def _explain(self, ready: ModelInput) -> Any:
        trace = self.lens.trace(ready, keep_graph=False)
        return trace, trace.explain("gam", 2, "mean")

    def _load(self, file: str) -> ModelInput:
        return prepare_pixels(file, self.lens.transform, Views())

    def decode(self, workers: int) -> None:
        collate = partial(room.sort_by_size, device=self.device)
        source = iter(enumerate(self.files))
        with BatchPrefetcher(
            lambda item: self._load(item[1]), collate, batch_size=self.batch, workers=workers
        ) as decoded:
            while True:
                room._fill(decoded, source, busy=False)
                if not decoded.waiting:
                    return
                decoded.take()

    def look(self) -> None:
        ahead = room.LAUNCHED_AHEAD if self.device.type == "cuda" else 0
        pending: deque[room.PendingBatch] = deque()
        with ThreadPoolExecutor(1) as executor:
            for number, group in enumerate(self.groups):
                images = self.decoded[number % DECODED] if len(group) == self.batch else self.last
                pending.append(room.launch(group, images, self.start, executor if ahead else None))
                if len(pending) > ahead:
                    room.finish(pending.popleft(), strict=True)
            while pending:
                room.finish(pending.popleft(), strict=True)

    def stream(self, workers: int) -> None:
        for seen in self.lens.stream(self.files, n=2, batch_size=self.batch, workers=workers):
            assert not seen.error, seen.error


def clock(call: Callable[[], None], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Measure where the thread that drives the model spends its time: seconds per activity, without nested ones."""
    spent: dict[str, float] = defaultdict(float)
    inside = [0.0]

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def inner(*args: Any, **options: Any) -> Any:
            inside.append(0.0)
            start = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                took = time.perf_counter() - start
                spent[name] += took - inside.pop()
                inside[-1] += took

        return inner

    def timed_to_host(*args: Any) -> Any:
        return timed("waiting for the device", to_host(*args))

    with ExitStack() as stack:
        for place, name, what in (
            (room, "_fill", "reading the source"),
            (room, "_decoded_first", "waiting for decoding or the device"),
            (BatchPrefetcher, "take", "waiting for decoding"),
            (room, "launch", "launching the model"),
            (room, "finish", "handing out"),
        ):
            stack.enter_context(patch.object(place, name, timed(what, getattr(place, name))))
        for module in (result_room, trace_room):
            stack.enter_context(patch.object(module, "to_host", timed_to_host))
        start = time.perf_counter()
        yield spent
        spent["the rest"] = time.perf_counter() - start - sum(spent.values())


def measure(bench: Bench, workers: int, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {
        "workers": workers,
        "decode alone": clock(lambda: bench.decode(workers), options.repeats),
        "model alone": clock(bench.look, options.repeats),
        "stream": clock(lambda: bench.stream(workers), options.repeats),
    }
    found["ratio"] = found["stream"] / max(found["decode alone"], found["model alone"])
    print(f"{workers} threads")
    for name in ("decode alone", "model alone", "stream"):
        print(f"  {name}: {found[name]:.2f} s, {options.files / found[name]:.0f} images per second")
    print(f"  stream over the slower of the two: {found['ratio']:.2f}")
    if options.profile:
        with watched() as spent:
            bench.stream(workers)
        found["profile"] = dict(spent)
        for name, seconds in sorted(spent.items(), key=lambda pair: -pair[1]):
            print(f"    {name}: {seconds:.2f} s")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--mixed", action="store_true", help="files of several shapes")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[worker_count()], help="numbers of decoding threads")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="say where the thread that drives the model spends time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    parser.epilog = "example: python benchmarks/folder.py --files 100 --batch 8 --device cpu --workers 1 2 --profile"
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    lens = Lens(models.get_model(options.model).eval(), device=options.device)
    with tempfile.TemporaryDirectory() as place:
        bench = Bench(lens, photos(Path(place), options.files, mixed=options.mixed), options.batch)
        shapes = "several shapes" if options.mixed else "one shape"
        print(f"{options.model}, {options.files} files of {shapes}, batches of {options.batch}, {options.device}")
        bench.stream(options.workers[0])  # warm up: loads libraries and kernels, allocates pinned memory
        rows = [measure(bench, workers, options) for workers in options.workers]
    if options.json:
        about = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        options.json.write_text(json.dumps({"options": about, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
