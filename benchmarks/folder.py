"""From a folder of photos to maps: `lens.stream` beside decoding alone and the model alone.

JPEG files are made from smooth noise, 500 x 375. Decoding alone: every file decoded and prepared by the same threads.
The model alone: the same number of images, prepared already, traced and explained in the same batches. Where decoding
overlaps with the model, the stream takes little more than the slower of the two.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import models

from gamlens import Lens
from gamlens.ahead import ahead, grouped
from gamlens.prepare import Views, join, prepare


def photos(folder: Path, count: int) -> list[str]:
    """Smooth noise as JPEG files: a few hundred patterns, each under several names."""
    draw, found = np.random.default_rng(0), []
    for number in range(count):
        file = folder / f"{number:05d}.jpg"
        if number < 200:
            coarse = Image.fromarray(draw.integers(0, 255, (40, 50, 3), dtype=np.uint8))
            coarse.resize((500, 375), Image.Resampling.BICUBIC).save(file, quality=90)
        else:
            file.write_bytes((folder / f"{number % 200:05d}.jpg").read_bytes())
        found.append(str(file))
    return found


def clock(call: Any, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    parser.epilog = "example: python benchmarks/folder.py --files 100 --batch 8 --device cpu"
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    lens = Lens(models.get_model(options.model).eval(), device=options.device)

    def load(group: list[str]) -> Any:
        return join([prepare(file, lens.transform, Views()) for file in group])

    with tempfile.TemporaryDirectory() as place:
        files = photos(Path(place), options.files)
        ready = load(files[: options.batch])
        batch = lens.sight.fit(ready.batches[0])
        batches = -(-options.files // options.batch)

        def decode() -> None:
            for _ in ahead(load, grouped(files, options.batch), threads=options.workers):
                pass

        def look() -> None:
            for _ in range(batches):
                lens.classify(batch, n=2).cpu()

        def stream() -> None:
            for _ in lens.stream(files, n=2, batch_size=options.batch, workers=options.workers):
                pass

        lens.classify(batch, n=2).cpu()
        found = {name: clock(call, options.repeats) for name, call in
                 (("decode alone", decode), ("model alone", look), ("stream", stream))}  # fmt: skip
    slower = max(found["decode alone"], found["model alone"])
    print(f"{options.model}, {options.files} files, batches of {options.batch}, {options.workers} threads")
    for name, seconds in found.items():
        print(f"{name}: {seconds:.2f} s, {options.files / seconds:.0f} images a second")
    print(f"stream over the slower of the two: {found['stream'] / slower:.2f}")
    if options.json:
        options.json.write_text(json.dumps({**found, "ratio": found["stream"] / slower}))


if __name__ == "__main__":
    main()
