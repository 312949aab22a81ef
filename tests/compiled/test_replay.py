"""Recorded trunks: when they are made and played. The record itself needs a GPU; here it is a stand-in."""

from __future__ import annotations

from typing import Any

import nets
import pytest
import torch
from torch import Tensor

from gamlens import Lens
from gamlens.compiled import replay
from gamlens.compiled.replay import MOST, WARM, Replayed


class Tape:
    """Plays what was recorded: the call is not made again."""

    def __init__(self, call: Any, batch: Tensor) -> None:
        self.results, self.played = call(batch.clone()), 0

    def play(self, batch: Tensor) -> Any:
        self.played += 1
        return self.results


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> list[Tape]:
    made: list[Tape] = []
    monkeypatch.setattr(replay, "recordable", lambda batch: len(batch) <= 4)
    monkeypatch.setattr(replay, "record", lambda call, batch: made.append(Tape(call, batch)) or made[-1])
    return made


def test_a_size_is_recorded_once_it_comes_again(tapes: list[Tape]) -> None:
    calls: list[int] = []
    trunk = Replayed(lambda batch: calls.append(len(batch)) or (batch + 1,))
    small, other, large = torch.zeros(2, 3), torch.zeros(3, 3), torch.zeros(5, 3)
    for _ in range(WARM):
        assert torch.equal(trunk(small)[0], small + 1)
    assert (len(tapes), calls) == (0, [2] * WARM)
    for _ in range(3):
        trunk(small)
    assert (len(tapes), tapes[0].played, len(calls)) == (1, 3, WARM + 1)
    for _ in range(WARM + 2):
        trunk(large)
        trunk(other)
    assert (len(tapes), calls.count(5), calls.count(3)) == (2, WARM + 2, WARM + 1)


def test_only_a_few_sizes_are_recorded(tapes: list[Tape]) -> None:
    trunk = Replayed(lambda batch: (batch,))
    for width in range(2 * MOST):
        for _ in range(WARM + 1):
            assert trunk(torch.zeros(2, 3 + width))[0].shape == (2, 3 + width)
    assert len(tapes) == MOST


def test_nothing_is_recorded_on_a_cpu() -> None:
    net, images = nets.small().float(), nets.images(2).float()
    lens = Lens(net, compile=True)
    for _ in range(WARM + 2):
        nets.same(lens.classify(images, 0), Lens(net).classify(images, 0), atol=1e-5)
    (program,) = lens._hooked._programs.values()
    assert program is not None
    assert isinstance(program.parts[0].call, Replayed)
    assert not program.parts[0].call.records
