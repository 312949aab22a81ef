"""Pair scores where they have no gradient or no value."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gamlens import GamlensError, GamlensWarning, Lens, scores
from gamlens.capture import nonblocking


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
