"""Measures one query against a gallery at n = 1, compared with one `compare` call per pair, on one device.

Times are medians after a warm-up. The time to build the gallery (one forward per image) is printed separately. Separate
calls are measured on the first few pairs and scaled to all of them. The maps of these pairs are compared, too: the
command fails if they differ by more than 1e-5, or if the ratio is below --least.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision import models

from gamlens import Lens, PairExplanation

EXAMPLE = """example:
  python benchmarks/gallery.py --device cuda
  python benchmarks/gallery.py --images 200 --calls 5 --repeats 3   # on a CPU"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], epilog=EXAMPLE, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="resnet50", help="a torchvision classifier, random weights")
    parser.add_argument("--images", type=int, default=1000, help="images in the gallery (default 1000)")
    parser.add_argument("--calls", type=int, default=20, help="separate calls measured (default 20)")
    parser.add_argument("--repeats", type=int, default=7, help="timed calls against the gallery (default 7)")
    parser.add_argument("--size", type=int, default=224, help="input height and width (default 224)")
    parser.add_argument("--batch", type=int, default=64, help="images or pairs at a time (default 64)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    parser.add_argument("--least", type=float, default=50, help="fail below this ratio (default 50)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to this file")
    return parser.parse_args()


def blobs(count: int, size: int, device: str) -> Tensor:
    """Random images (count,3,size,size) with some structure: coarse patches with noise added."""
    coarse = torch.randn(count, 3, 7, 7, device=device)
    return F.interpolate(coarse, size=(size, size)) + 0.3 * torch.randn(count, 3, size, size, device=device)


def timed(call: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Call, wait for the device, and return the seconds and the result."""
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    wait()
    start = time.perf_counter()
    result = call()
    wait()
    return time.perf_counter() - start, result


def median(call: Callable[[], Any], repeats: int, device: str) -> tuple[float, Any]:
    call()
    runs = [timed(call, device) for _ in range(repeats)]
    return statistics.median(seconds for seconds, _ in runs), runs[-1][1]


def separate(lens: Lens, query: Tensor, images: Tensor, calls: int, device: str) -> tuple[list[float], Any]:
    lens.compare(query, images[:1], n=1)
    runs = [timed(lambda at=at: lens.compare(query, images[at : at + 1], n=1), device) for at in range(calls)]
    return [seconds for seconds, _ in runs], [pair for _, pair in runs]


def difference(many: PairExplanation, ones: list[PairExplanation]) -> float:
    """The largest difference between map values, over the pairs that were also compared one by one."""
    return max(
        float((mine.maps[row] - other.maps[0]).abs().max())
        for row, one in enumerate(ones)
        for mine, other in ((many.x, one.x), (many.y, one.y))
    )


def machine(device: str) -> str:
    name = (
        torch.cuda.get_device_name(device) if device.startswith("cuda") else f"CPU, {torch.get_num_threads()} threads"
    )
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}"


def main() -> int:
    options = arguments()
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # with TF32 the batch size would change the third decimal
    device = options.device
    lens = Lens(models.get_model(options.model, weights=None).eval(), device=device)
    images = blobs(options.images, options.size, device)
    query = blobs(1, options.size, device)
    lens.remember(images[: options.batch], batch_size=options.batch)
    build, gallery = timed(lambda: lens.remember(images, batch_size=options.batch), device)
    first, remembered = timed(lambda: lens.remember(query), device)
    seconds, many = median(lambda: lens.compare_many(query, gallery, batch_size=options.batch), options.repeats, device)
    cached, _ = median(
        lambda: lens.compare_many(remembered, gallery, batch_size=options.batch), options.repeats, device
    )
    calls, ones = separate(lens, query, images, min(options.calls, options.images), device)
    whole = statistics.median(calls) * options.images
    figures = {
        "model": options.model,
        "machine": machine(device),
        "images": options.images,
        "gallery_s": build,
        "gallery_mib": gallery.nbytes / 2**20,
        "law": gallery.law,
        "query_s": first,
        "many_s": seconds,
        "many_remembered_s": cached,
        "calls_measured": len(calls),
        "separate_s": whole,
        "ratio": whole / seconds,
        "difference": difference(many, ones),
    }
    show(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0 if figures["ratio"] >= options.least and figures["difference"] <= 1e-5 else 1


def show(figures: dict[str, Any]) -> None:
    print(f"{figures['model']}, n = 1, {figures['machine']}")
    print(
        f"gallery of {figures['images']}: built once in {figures['gallery_s']:.3f} s, {figures['gallery_mib']:.0f} MiB"
    )
    print(f"one query against it: {figures['many_s']:.4f} s with the query's forward, "
          f"{figures['many_remembered_s']:.4f} s with the query remembered")  # fmt: skip
    print(
        f"{figures['images']} separate calls: {figures['separate_s']:.2f} s (scaled from {figures['calls_measured']})"
    )
    print(f"ratio: {figures['ratio']:.0f}; largest difference of a map: {figures['difference']:.1e}")


if __name__ == "__main__":
    sys.exit(main())
