"""Point to point: the parts of a similarity add up to it."""

from __future__ import annotations

import naive
import nets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from gamlens import GamlensError, Lens, Transform
from gamlens.inputs.frame import Frame
from gamlens.pairs.correspondence import cell_of
from gamlens.pairs.pair_trace import PairTrace

X, Y, WIDE = nets.images(2), nets.images(2, seed=1), nets.images(2, (80, 112), seed=2)


class Head(nets.Small):
    """Small with another way from the last block to the embedding."""

    def __init__(self, pool: str) -> None:
        super().__init__()
        self.pool, self.flat, self.last = pool, nn.AdaptiveAvgPool2d(1), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        pooled = {
            "sum": lambda: h.sum(dim=(2, 3)),
            "flatten": lambda: self.flat(h).flatten(1),
            "normalize": lambda: F.normalize(h.mean(dim=(2, 3))),
            "max": lambda: h.amax(dim=(2, 3)),
            "fc": lambda: torch.relu(F.linear(h.mean(dim=(2, 3)), torch.eye(32).double().roll(1, 0))),
            "bias": lambda: h.mean(dim=(2, 3)) + 0.1,
            "whole": lambda: h.flatten(1),
        }[self.pool]()
        return self.last(pooled)


def head(pool: str) -> Lens:
    return Lens(nets.seeded(Head, pool), embedding="last")


def grid(pair: PairTrace, side: str, number: int) -> list[tuple[float, float]]:
    """The middle of every position of the last block, in original pixels."""
    index = "xy".index(side)
    height, width = pair._activations(index)[pair.blocks[-1]].shape[2:]
    rows, columns = pair.provenances[index].frames[number].original
    return [((c + 0.5) * columns / width, (r + 0.5) * rows / height) for r in range(height) for c in range(width)]


@pytest.mark.parametrize("score", ["cosine", "dot"])
@pytest.mark.parametrize("side", ["x", "y"])
@pytest.mark.parametrize("other", [Y, WIDE])
def test_parts_add_up_to_the_score(score: str, side: str, other: Tensor) -> None:
    pair = Lens(nets.small()).trace_pair(X, other, n=1)
    for number in range(2):
        found = [pair.matches(point, side=side, score=score, pair=number) for point in grid(pair, side, number)]
        expected = float(pair.sides(score)[0].scores[number])
        assert sum(match.part for match in found) == pytest.approx(expected, rel=1e-12)
        assert all(match.score == pytest.approx(expected, rel=1e-12) for match in found)
        assert len({match.cell for match in found}) == len(found)


@pytest.mark.parametrize("pool", ["sum", "flatten", "normalize"])
@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_other_ways_to_pool(pool: str, score: str) -> None:
    pair = head(pool).trace_pair(X, Y)
    total = sum(pair.matches(point, score=score).part for point in grid(pair, "x", 0))
    assert total == pytest.approx(float(pair.sides(score)[0].scores[0]), rel=1e-12)


@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_twin(score: str) -> None:
    """Every map of both sides against plain loops."""
    pair = Lens(nets.small()).trace_pair(X, WIDE, n=1)
    h, other = (pair._activations(side)[pair.blocks[-1]][1].numpy() for side in (0, 1))
    table = naive.matches(h, other, cosine=score == "cosine")
    for side in "xy":
        for point in grid(pair, side, 1):
            match = pair.matches(point, side=side, score=score, pair=1)
            row, column = match.cell
            expected = table[row, column] if side == "x" else table[:, :, row, column]
            np.testing.assert_allclose(match.map.numpy(), expected, rtol=1e-11)


def test_by_hand() -> None:
    """One channel, x = 1 2, y = 3 5: the dot of the means is 1.5 * 4 = 6 = (3 + 5 + 6 + 10) / 4."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.fc = nn.Conv2d(1, 1, 1, bias=False), nn.Linear(1, 2, bias=False)
            nn.init.ones_(self.block.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.block(x).mean(dim=(2, 3)))

    lens = Lens(Rows(), blocks=["block"], embedding="fc:input")
    pair = lens.trace_pair(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, 5.0]]]]), n=1)
    assert pair.matches((0.5, 0.5), score="dot").map.tolist() == [[0.75, 1.25]]
    assert pair.matches((1.5, 0.5), score="dot").map.tolist() == [[1.5, 2.5]]
    assert pair.matches((1.5, 0.5), score="dot", side="y").map.tolist() == [[1.25, 2.5]]
    assert pair.matches((1.5, 0.5), score="dot").best == (1.5, 0.5)
    assert pair.matches((1.5, 0.5)).part == pytest.approx(2 / 3)


def test_swap_and_release() -> None:
    """y's map seen from x is x's seen from y; the graph is not needed."""
    pair, swapped = (Lens(nets.small()).trace_pair(*both).release() for both in ((X, Y), (Y, X)))
    a, b = pair.matches((20, 40), side="x"), swapped.matches((20, 40), side="y")
    torch.testing.assert_close(a.map, b.map, rtol=1e-12, atol=0)


@pytest.mark.parametrize("pool", ["max", "fc", "bias", "whole"])
def test_any_other_embedding_is_split_by_integrals(pool: str) -> None:
    pair = head(pool).trace_pair(X, Y)
    found = pair.interactions()
    total = sum(pair.matches(point).part for point in grid(pair, "x", 0))
    assert total == pytest.approx(found.score - found.remainder - found.gap, abs=1e-12)
    assert abs(found.gap) < 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"point": (65, 3)}, "outside what the model saw"),
        ({"point": (3, -1)}, "outside what the model saw"),
        ({"point": 7}, r"A point is \(x, y\)"),
        ({"point": (3, 3), "side": "z"}, "side= is 'x' or 'y'"),
        ({"point": (3, 3), "score": "dott"}, "did you mean 'dot'"),
    ],
)
def test_errors(options: dict[str, object], message: str) -> None:
    with pytest.raises(GamlensError, match=message):
        Lens(nets.small()).trace_pair(X, Y).matches(**options)


def test_points_of_a_cropped_photo() -> None:
    """A point is in original pixels; the parts that a crop leaves out are an error, and zero in the other's map."""
    crop = Transform((64, 64), mode="crop", short=64)
    photo = Image.effect_noise((256, 128), 80).convert("RGB")
    pair = Lens(nets.small(), transform=crop).trace_pair(photo, photo, n=1)
    assert pair.matches((70, 5)).cell == (0, 0)
    assert pair.matches((191, 127)).cell == (3, 3)
    with pytest.raises(GamlensError, match="x from 64 to 192"):
        pair.matches((20, 20))
    full = pair.matches((100, 60)).full()
    assert full.shape == (128, 256)
    assert full[:, :60].max() == 0
    assert full.max() == pytest.approx(1, abs=0.1)
    assert pair.matches((100, 60)).overlay().size == (256, 128)


def test_cell_of() -> None:
    frame = Frame.whole((100, 200), (224, 224))
    assert cell_of((0, 0), frame, (7, 7)) == (0, 0)
    assert cell_of((200, 100), frame, (7, 7)) == (6, 6)
    assert cell_of((100, 10), frame, (7, 14)) == (0, 7)


def test_half_precision_is_no_reason_to_refuse() -> None:
    lens = Lens(nets.small().float(), precision="bf16")
    pair = lens.trace_pair(X.float(), Y.float(), n=1)
    total = sum(pair.matches(point).part for point in grid(pair, "x", 0))
    assert total == pytest.approx(float(pair.sides("cosine")[0].scores[0]), rel=0.02)
