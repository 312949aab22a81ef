"""Images that keep coming."""

from __future__ import annotations

import itertools
from pathlib import Path

import nets
import numpy as np
import pytest
import torch

from gamlens import GamlensError, Lens, Transform
from gamlens.ahead import ahead, grouped


@pytest.fixture
def lens() -> Lens:
    return Lens(nets.small().float(), transform=Transform((64, 64)))


def photos(count):
    draw = np.random.default_rng(0)
    return [draw.integers(0, 255, (50 + number, 60, 3), dtype=np.uint8) for number in range(count)]


def test_results_come_before_the_source_ends(lens: Lens) -> None:
    """An endless source: what is asked for comes, and little more is read."""
    read = 0

    def endless():
        nonlocal read
        for image in itertools.cycle(photos(3)):
            read += 1
            yield image

    seen = list(itertools.islice(lens.stream(endless(), batch_size=2, workers=2), 5))
    assert [one.number for one in seen] == [0, 1, 2, 3, 4]
    assert read <= 2 * (3 + 3)


def test_every_image_is_as_if_alone(lens: Lens) -> None:
    images = photos(5)
    for one, image in zip(lens.stream(images, [0, 2], batch_size=3), images, strict=True):
        alone = lens.classify(image, [[0, 2]])
        torch.testing.assert_close(one.explanation.maps, alone.maps, atol=1e-5, rtol=0)
        assert one.explanation.targets.tolist() == [0, 2]
        assert len(one.top) == 5


def test_mixed_sizes(lens: Lens) -> None:
    """Tensors of several sizes in one batch: each size is looked at together."""
    torch.manual_seed(0)
    images = [torch.randn(1, 3, size, size) for size in (64, 96, 64)]
    seen = list(lens.stream(images))
    assert [one.explanation.maps.shape[-1] for one in seen] == [64, 96, 64]


def test_what_is_wrong_with_all_is_an_error(lens: Lens) -> None:
    with pytest.raises(GamlensError, match="n from 1 to 3"):
        next(lens.stream(photos(2), n=9))
    with pytest.raises(GamlensError, match="at least 1"):
        lens.stream(photos(2), batch_size=0)
    assert list(lens.stream([])) == []


def test_ahead_keeps_order_and_passes_errors_on() -> None:
    assert [value for _, value in ahead(lambda x: x * x, range(20), threads=4)] == [x * x for x in range(20)]
    with pytest.raises(ZeroDivisionError):
        list(ahead(lambda x: 1 // x, [1, 0, 2], threads=2))
    assert list(grouped(range(5), 2)) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("one", ["photo.jpg", Path("photo.jpg"), 3])
def test_one_image_is_no_stream(lens: Lens, one: object) -> None:
    """A path would be taken letter by letter."""
    with pytest.raises(GamlensError, match=r"A stream takes many images, found .*give a list"):
        list(lens.stream(one))
