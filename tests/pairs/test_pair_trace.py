"""Pair scores where they have no gradient or no value."""

from __future__ import annotations

from functools import partial

import naive
import nets
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gamlens import GamlensError, GamlensWarning, Lens, Refinement, methods, scores
from gamlens.capture import nonblocking
from gamlens.refine import SPREAD_FACTOR


class Plain(nn.Module):
    """Its block is its input, and its embedding the average of that: any embedding can be given."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.fc = nn.Conv2d(2, 2, 1, bias=False), nn.Linear(2, 2)
        nn.init.dirac_(self.block.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.block(x).mean(dim=(2, 3)))


def lens() -> Lens:
    return Lens(Plain(), blocks=["block"], embedding="fc:input")


def image(*channels: float) -> Tensor:
    """Two positions, 3/4 and 5/4 of the given average."""
    return torch.tensor(channels)[:, None, None] * torch.tensor([[0.75, 1.25]])


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("score", ["cosine", scores.cosine])
def test_a_cosine_of_one_or_minus_one_has_empty_maps(score: str | scores.PairScoreFunction, many: bool) -> None:
    x, y = torch.stack([image(1, 2)] * 3), torch.stack([image(3, 6), image(-2, -4), image(2, -1.5)])
    pairs = {"pairs": [(0, 0), (1, 1), (2, 2)]} if many else {}
    compare = lens().compare_many if many else lens().compare
    with pytest.warns(GamlensWarning) as said:
        found = compare(x, y, score=score, n=1, **pairs)
    (message,) = [str(one.message) for one in said if "embeddings" in str(one.message)]
    assert message.startswith("Pair 0, 1: both embeddings point the same way or opposite ways")
    torch.testing.assert_close(found.scores, torch.tensor([1.0, -1.0, -1 / (2.5 * 5**0.5)]))
    for side in (found.x, found.y):
        assert side.maps[:2].abs().max() == 0
        assert side.maps[2].max() == 1
        assert side.about["score"] == "cosine"


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("score", ["euclidean", scores.euclidean])
def test_a_euclidean_distance_of_zero_has_empty_maps(score: str | scores.PairScoreFunction, many: bool) -> None:
    """Exactly zero, and zero up to rounding; the third pair of the batch has its maps, by hand.

    There x = (1, 2) and y = (2, 1), so the gradient by x is (1, -1) / sqrt(2), shared by two positions with h = 3/4 x
    and 5/4 x: GAM, the sum of positive gradient times activation, is at its largest where h is.
    """
    x = torch.stack([image(1, 2)] * 3)
    y = torch.stack([image(1, 2), image(1, 2 * (1 + 1e-5)), image(2, 1)])
    pairs = {"pairs": [(0, 0), (1, 1), (2, 2)]} if many else {}
    compare = lens().compare_many if many else lens().compare
    with pytest.warns(GamlensWarning) as said:
        found = compare(x, y, score=score, n=1, **pairs)
    (message,) = [str(one.message) for one in said if "embeddings" in str(one.message)]
    assert message.startswith("Pair 0, 1: both embeddings are the same up to rounding, so the Euclidean distance is")
    torch.testing.assert_close(found.scores, torch.tensor([0.0, -2e-5, -(2**0.5)]), rtol=1e-6, atol=1e-6)
    assert found.scores.max() <= 0
    for side in (found.x, found.y):
        assert side.maps.isfinite().all()
        assert side.maps[:2].abs().max() == 0
        assert side.maps[2].tolist() == [[0, 1]]
        assert side.about["score"] == "euclidean"


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_same_image_twice_by_euclidean_distance(precision: str, n: int) -> None:
    """In one forward, in two (compare_many), and beside other pairs, whose maps are what they are alone."""
    small = Lens(nets.small(), precision=precision)
    one, other = nets.images(2).float().split(1)
    alone = small.compare(one, other, score="euclidean", n=n)
    assert alone.scores[0] < 0
    assert min(float(side.maps.max()) for side in (alone.x, alone.y)) > 0.5
    both = torch.cat([one, other])
    calls = (
        partial(small.compare, one, one),
        partial(small.compare, both[[0, 0]], both),
        partial(small.compare_many, one, both, batch_size=1),
    )
    results = []
    for call in calls:
        with pytest.warns(GamlensWarning) as said:
            found = call(score="euclidean", n=n)
        assert sum("Pair 0: both embeddings are the same up to" in str(warning.message) for warning in said) == 1
        assert abs(float(found.scores[0])) < 1e-5
        assert found.x.maps[0].abs().max() == found.y.maps[0].abs().max() == 0
        results.append(found)
    near = {"fp32": 1e-5, "bf16": 0.1, "fp16": 0.01}[precision]
    for found in results[1:]:
        torch.testing.assert_close(found.x.maps[1:], alone.x.maps, rtol=0, atol=near)
        torch.testing.assert_close(found.y.maps[1:], alone.y.maps, rtol=0, atol=near)


def test_the_gradient_of_the_euclidean_distance_through_a_network_is_that_of_finite_differences() -> None:
    """In float64: the last block of x moves along a random direction."""
    model = Plain().double()
    x, y = (torch.stack([image(*channels)]).double() for channels in ((1, 2), (3, -1)))
    own, _ = Lens(model, blocks=["block"], embedding="fc:input").trace_pair(x, y, n=1).sides("euclidean")
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = 1e-6
    ends = [scores.euclidean((x + sign * step * direction).mean(dim=(2, 3)), y.mean(dim=(2, 3))) for sign in (1, -1)]
    slope = float(ends[0] - ends[1]) / (2 * step)
    assert float((own.gradients["block"] * direction).sum()) == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("score", ["euclidean", scores.euclidean])
def test_a_euclidean_distance_has_no_matches(score: str | scores.PairScoreFunction) -> None:
    pair = lens().trace_pair(torch.stack([image(1, 2)]), torch.stack([image(2, 1)]), n=1)
    with pytest.raises(GamlensError, match=r"'euclidean' has no matches: it is no sum over pairs of positions .*'dot'"):
        pair.matches((0.5, 0.5), score=score)


def test_a_zero_embedding_is_told_as_one_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer travels with the result and comes before that of the score, which is NaN."""
    monkeypatch.setattr(nonblocking, "HOST", "none")
    monkeypatch.setattr(scores, "HOST", "none")
    x, y = torch.stack([image(1, 2)] * 2), torch.stack([image(2, 1), image(0, 0)])
    found = lens().compare(x, y, n=1)
    with pytest.raises(GamlensError, match=r"y\[1\] is all zeros, so its cosine is undefined: use score='dot'"):
        found.cpu()


@pytest.mark.parametrize("side", ["x", "y"])
def test_matches_name_the_image_whose_embedding_is_zero(side: str) -> None:
    x, y = torch.stack([image(1, 2)] * 2), torch.stack([image(2, 1), image(0, 0)])
    pair = lens().trace_pair(x, y, n=1)
    assert pair.matches((0.5, 0.5), side=side).score == pytest.approx(0.8)
    with pytest.raises(GamlensError, match=r"y\[1\] is all zeros"):
        pair.matches((0.5, 0.5), side=side, pair=1)
    assert pair.matches((0.5, 0.5), side=side, pair=1, score="dot").part == 0


SIZES = ((24, 32), (40, 28))


@torch.no_grad()
def earlier_blocks(net: nn.Module, batch: Tensor, *, mirrored: bool = False) -> list[Tensor]:
    """layer2 and layer1 of `Small`, computed without hooks."""
    first = net.layer1(net.stem(batch.flip(3) if mirrored else batch))
    return [net.layer2(first), first]


@pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
@pytest.mark.parametrize("method", methods.names("block", "pair"))
@pytest.mark.parametrize("sizes", [SIZES[:1] * 2, SIZES], ids=["one forward", "two forwards"])
def test_each_side_is_refined_by_its_own_image(method: str, sizes: tuple[tuple[int, int], ...]) -> None:
    """Both sides against the naive twin, of the plain maps and of blocks that no hook has read."""
    small = Lens(nets.small())
    x, y = (nets.images(2, size, seed=seed) for seed, size in enumerate(sizes))
    for n in (1, 2):
        pair = small.trace_pair(x, y, n=n, method=method, refine=2)
        plain, found = pair.explain(method, n), pair.explain(method, n, refine=Refinement(2, 0.3))
        torch.testing.assert_close(found.scores, plain.scores)
        for images, own, before in ((x, found.x, plain.x), (y, found.y, plain.y)):
            assert own.about["refine"] == {"blocks": ["layer2", "layer1"], "keep": 0.3}
            blocks = earlier_blocks(small.model, images)
            for number in range(2):
                views = [([h[number].numpy() for h in blocks], False)]
                expected = naive.refined(before.maps[number].double().numpy(), views, SPREAD_FACTOR, 0.3)
                np.testing.assert_allclose(own.maps[number].numpy(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("method", ["gam", "vdsn"])
def test_views_of_a_pair_are_refined_by_every_view(method: str) -> None:
    """A method of kind "pair" makes its map of the plain view alone, and it is refined by that view alone."""
    small, (x, y) = Lens(nets.small()), (nets.images(1, SIZES[0], seed=seed) for seed in (0, 1))
    options = {"method": method, "n": 1, "views": "flip"}
    plain, found = small.compare(x, y, **options), small.compare(x, y, refine=2, **options)
    for images, own, before in ((x, found.x, plain.x), (y, found.y, plain.y)):
        views = [
            ([h[0].numpy() for h in earlier_blocks(small.model, images, mirrored=mirrored)], mirrored)
            for mirrored in ((False, True) if method == "gam" else (False,))
        ]
        expected = naive.refined(before.maps[0].double().numpy(), views, SPREAD_FACTOR)
        np.testing.assert_allclose(own.maps[0].numpy(), expected, rtol=0, atol=2e-5)


def test_a_released_pair_is_refined_under_the_scores_it_knows() -> None:
    small, x, y = Lens(nets.small()), nets.images(2, seed=1), nets.images(2, seed=2)
    pair = small.trace_pair(x, y, n=1, refine=2)
    for score in ("cosine", "dot"):
        nets.same(pair.explain(n=1, score=score, refine=2).y, small.compare(x, y, n=1, score=score, refine=2).y)
    pair.release()
    nets.same(pair.explain(n=1, score="dot", refine=1).x, small.compare(x, y, n=1, score="dot", refine=1).x)
    swapped = small.compare(y, x, n=1, score="dot", refine=1)
    nets.same(pair.explain(n=1, score="dot", refine=1).x, swapped.y)
