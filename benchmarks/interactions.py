"""Measures what `pair.interactions()` costs, compared with a plain forward of the pair, and how well it converges.

The pair is traced first, which is not counted. Time is the median of the repeats after one warm-up call; a call of more
than 20 s is timed once. The plain forward (eval, no_grad, both images in one batch) and the interactions take turns, so
that other work on the machine affects both alike, and the ratio is that of their medians. Every call splits both
embeddings anew over 7 x 7 cells.

`gap` is what the numerical integral misses: score - (sum of all links + aside + remainder). It is shown in units of the
score and as a share of it; `baseline` is the one that the parts start from, and `forwards` counts runs of the network,
each of which is one forward of a blank image up to the last block and of many rows after it.

Photos are two of ILSVRC in ../shared/data (or where GAMLENS_DATA points), if they are there, and else random numbers.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cost import hardware, seconds
from real import DATA, WEIGHTS, original_resnet50, vit_class_token
from tools import build
from torch import Tensor, nn
from torchvision import models

from gamlens import Lens
from gamlens.pairs.interactions import Interactions
from gamlens.pairs.pair_trace import PairTrace

STEPS = (5, 10, 20, 40)
TITLES = ("embedding", "steps", "baseline", "forwards", "plain ms", "interactions ms", "x plain", "gap", "gap / score")
SIZE = 224
LONG = 20  # seconds: a call that takes longer is timed once
EXAMPLE = """example:
  python benchmarks/interactions.py --device cpu --markdown interactions.md"""


class LargestOfBlock(nn.Module):
    """The largest value of every channel: max pooling over all positions."""

    def forward(self, block: Tensor) -> Tensor:
        return block.amax(dim=(2, 3), keepdim=True)


class GeneralisedMean(nn.Module):
    """Generalised-mean pooling with p = 3, as in image retrieval."""

    def forward(self, block: Tensor) -> Tensor:
        return block.clamp(min=1e-6).pow(3).mean(dim=(2, 3), keepdim=True).pow(1 / 3)


def resnet50(device: str, pool: nn.Module | None = None) -> Lens:
    """ResNet-50, its average replaced by another pooling where one is given; real weights where they are."""
    weights = WEIGHTS / "resnet50_imagenet1k_fp16.pth"
    torch.manual_seed(0)
    if not weights.exists():
        module = models.resnet50()
        module.avgpool = pool or module.avgpool
        return Lens(module.eval(), device=device)
    module = original_resnet50()
    module.avgpool = pool or module.avgpool
    return Lens(module, weights=weights, device=device)


def vit_tiny(device: str) -> Lens:
    """A ViT-tiny whose embedding is its class token; real weights where they are."""
    if (WEIGHTS / "vit_tiny_imagenette_fp16.pth").exists():
        return vit_class_token().to(device)
    torch.manual_seed(0)
    module = models.VisionTransformer(
        image_size=SIZE, patch_size=16, num_layers=12, num_heads=3, hidden_dim=192, mlp_dim=768, num_classes=10
    )
    return Lens(module.eval(), device=device)


CASES: dict[str, Callable[[str], Lens]] = {
    "EfficientNet-Lite0, mean pooling": lambda device: build("efficientnet_lite0", device),
    "ResNet-50, mean pooling": resnet50,
    "ResNet-50, max pooling": lambda device: resnet50(device, LargestOfBlock()),
    "ResNet-50, GeM pooling": lambda device: resnet50(device, GeneralisedMean()),
    "ViT-tiny, class token": vit_tiny,
}


def photos() -> tuple[Any, Any]:
    """Two photos of one class, or random numbers."""
    found = sorted((DATA / "ILSVRC/Data/CLS-LOC/val").glob("*.JPEG"))[:2]
    make = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 1, 3, SIZE, SIZE, generator=make)
    return (found[0], found[1]) if len(found) == 2 else (noise[0], noise[1])


def split(pair: PairTrace, steps: int) -> Interactions:
    """Split both embeddings anew: what an earlier call kept is dropped."""
    pair._parts.clear()
    return pair.interactions(steps=steps)


def measure(title: str, lens: Lens, steps: tuple[int, ...], repeats: int) -> Iterator[tuple[str, ...]]:
    pair = lens.trace_pair(*photos(), n=1)
    batch = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0)).to(lens.device)

    def plain() -> Any:
        with torch.no_grad():
            return lens.model(batch)

    for count in steps:
        warm = seconds(partial(split, pair, count), lens.device)
        found = pair.interactions(steps=count)
        times: dict[str, list[float]] = {"plain": [], "interactions": []}
        seconds(plain, lens.device)
        for _ in range(repeats if warm < LONG else 1):
            times["plain"].append(seconds(plain, lens.device))
            times["interactions"].append(seconds(partial(split, pair, count), lens.device))
        once, own = (1000 * statistics.median(values) for values in times.values())
        share = abs(found.gap / found.score) if found.score else 0.0
        yield (
            title,
            "exact" if found.exact else str(count),
            found.baseline,
            str(found.forwards),
            f"{once:.1f}",
            f"{own:.1f}",
            f"{own / once:.2f}" if own < once else f"{own / once:.1f}",
            f"{found.gap:.1e}",
            f"{100 * share:.2g} %",
        )
        if found.exact:  # no integral: all numbers of steps are the same
            return


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], epilog=EXAMPLE, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    parser.add_argument(
        "--steps", nargs="+", type=int, default=STEPS, help="steps of the integral (default 5 10 20 40)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="timed calls of each (default 3)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only embeddings whose name has this text")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table for the documentation")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    print(f"{hardware(args.device)}, {torch.get_num_threads()} threads, torch {torch.__version__}, {args.device}")
    lines = [f"| {' | '.join(TITLES)} |", f"|{'|'.join([' --- ', *[' ---: '] * (len(TITLES) - 1)])}|"]
    print(*lines, sep="\n")
    for title, make in CASES.items():
        if args.only.lower() not in title.lower():
            continue
        for row in measure(title, make(args.device), tuple(args.steps), args.repeats):
            lines.append(f"| {' | '.join(row)} |")
            print(lines[-1], flush=True)
    if args.markdown:
        args.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
