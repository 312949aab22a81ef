"""Pairs under every protocol (one or both images masked, black or mean, squashed or cropped) against a plain loop.

The loop is written from the formulas with PIL and torch alone, in float64: it prepares the images, makes GAM of the
last n blocks (Eqs. 1 and 2), multiplies, runs the network again, and computes ADP and PIC.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import nets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from gamlens import Lens, Transform
from gamlens.data import load
from gamlens.evaluation import results, tables
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.protocol import Protocol, units
from gamlens.evaluation.runs import set_input

SIDE, SHORT, IMAGES = 64, 72, 8
MEAN, STD = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in ((0.5, 0.4, 0.3), (0.2, 0.3, 0.25)))
PAIRS = tuple((f"{a:02d}.png", f"{a + 2:02d}.png") for a in (0, 2, 4, 1, 3, 5))  # each image with the next of its class


@pytest.fixture(scope="module")
def root(boxed: Callable[..., Path]) -> Path:
    return boxed(IMAGES, lambda number: 20 + 5 * number)


@pytest.fixture(scope="module")
def network() -> nets.Small:
    return nets.small().double().eval().requires_grad_(False)


def pixels(path: Path, how: str) -> Tensor:
    """The image in 0..1 at the size of the input: (3,H,W). The photos are 100 wide and 80 high."""
    photo = Image.open(path)
    if how == "squash":
        photo = photo.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    else:
        left, top = (90 - SIDE) // 2, (SHORT - SIDE) // 2
        photo = photo.resize((90, SHORT), Image.Resampling.BICUBIC).crop((left, top, left + SIDE, top + SIDE))
    return torch.from_numpy(np.asarray(photo, dtype=np.float64) / 255).permute(2, 0, 1)


def similarity(task: str, x: Tensor, y: Tensor) -> Tensor:
    dot = sum(a * b for a, b in zip(x, y, strict=True))
    return dot if task == "dot" else dot / (x.square().sum().sqrt() * y.square().sum().sqrt())


def embedding(network: nets.Small, image: Tensor) -> Tensor:
    return network.features(image[None]).mean(dim=(2, 3))[0]


def saliency(network: nets.Small, images: list[Tensor], task: str) -> list[dict[int, Tensor]]:
    """GAM of both images at n = 1 and 2: {n: (H,W)} each."""
    blocks: list[list[Tensor]] = []
    vectors = []
    for image in images:
        second = network.layer2(network.layer1(network.stem(image[None]))).detach().requires_grad_()
        last = network.layer3(second)
        last.retain_grad()
        blocks.append([last, second])
        vectors.append(last.mean(dim=(2, 3))[0])
    similarity(task, *vectors).backward()
    found = []
    for own in blocks:
        maps = []
        for h in own:
            raw = sum(h[0, k].clamp(min=0) * h.grad[0, k].clamp(min=0) for k in range(h.shape[1]))
            large = F.interpolate(raw[None, None], (SIDE, SIDE), mode="bicubic", align_corners=False)[0, 0]
            maps.append(((large - large.min()) / (large.max() - large.min())).detach())
        found.append({1: maps[0], 2: (maps[0] + maps[1]) / 2})
    return found


def hidden(image: Tensor, weight: Tensor, fill: str) -> Tensor:
    """Image x map as the network sees it."""
    return (image * weight - MEAN) / STD if fill == "black" else (image - MEAN) / STD * weight


def by_loop(network: nets.Small, root: Path, protocol: Protocol) -> dict[tuple[str, int, str], tuple[float, float]]:
    """The similarity before and after masking: {(item, n, side): (Y, O)}."""
    found = {}
    for names in PAIRS:
        images = [pixels(root / name, protocol.input) for name in names]
        seen = [(image - MEAN) / STD for image in images]
        x, y = (embedding(network, image) for image in seen)
        before = float(similarity(protocol.task, x, y))
        maps = saliency(network, seen, protocol.task)
        for n in (1, 2):
            dark = [embedding(network, hidden(i, m[n], protocol.fill)) for i, m in zip(images, maps, strict=True)]
            if protocol.masked == "both":
                after = {"both": similarity(protocol.task, *dark)}
            else:
                after = {"x": similarity(protocol.task, dark[0], y), "y": similarity(protocol.task, x, dark[1])}
            found |= {("~".join(names), n, side): (before, float(value)) for side, value in after.items()}
    return found


CLOSE = 2e-5
CHOICES = list(itertools.product(("one", "both"), ("black", "mean"), ("squash", "crop")))


@pytest.mark.parametrize("task", ["cosine", "dot"])
@pytest.mark.parametrize(("masked", "fill", "how"), CHOICES)
def test_pairs_equal_a_plain_loop(network: nets.Small, root: Path, masked: str, fill: str, how: str, task: str) -> None:
    transform = Transform((SIDE, SIDE), (0.5, 0.4, 0.3), (0.2, 0.3, 0.25), short=SHORT)
    lens = Lens(nets.small().float(), transform=transform)
    protocol = Protocol("objective", task, ("gam",), (1, 2), input=how, fill=fill, masked=masked, pairs="neighbour")
    set_input(lens, protocol)
    dataset = load("table", root / "items.csv")
    items = [unit for unit in units(dataset, protocol) if "broken" not in unit.name]
    rows = [row for part in evaluate(lens, items, protocol, batch=4) for row in part]
    own = {(row["item"], row["n"], row["side"]): row for row in rows if row["method"] == "gam"}
    expected = by_loop(network, root, protocol)
    assert own.keys() == expected.keys()
    for key, (before, after) in expected.items():
        assert own[key]["before_similarity"] == pytest.approx(before, rel=CLOSE)
        assert own[key]["after_similarity"] == pytest.approx(after, rel=CLOSE)
    run = results.collect(results.describe(lens, dataset, protocol, len(items)), rows)
    cells = {(cell.metric, cell.n): cell for cell in tables.cells(run) if cell.method == "gam"}
    for n in (1, 2):
        mine = [value for (_, own_n, _), value in expected.items() if own_n == n]
        drops = [max(0, before - after) / before for before, after in mine]
        assert cells["ADP", n].value.mean == pytest.approx(100 * sum(drops) / len(drops), abs=0.05)
        rises = sum(after > before for before, after in mine)
        assert cells["PIC", n].value.mean == pytest.approx(100 * rises / len(mine))
        assert (cells["ADP", n].value.n, cells["ADP", n].clusters) == (len(mine), len(PAIRS))


def test_the_choices_matter(network: nets.Small, root: Path) -> None:
    """The loop gives other numbers for each choice, so that the test above can tell them apart."""
    found = []
    for masked, fill, how in CHOICES:
        protocol = Protocol("objective", "cosine", ("gam",), (1,), input=how, fill=fill, masked=masked)
        values = by_loop(network, root, protocol)
        found.append([values.get((*key, "both")) or values[*key, "x"] for key in dict.fromkeys(k[:2] for k in values)])
    for one, other in itertools.combinations(found, 2):
        assert max(abs(a - b) for (_, a), (_, b) in zip(one, other, strict=True)) > 50 * CLOSE
