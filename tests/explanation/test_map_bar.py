"""The colour bar below a map: its raw values, and that the strongest value has the strongest colour."""

from __future__ import annotations

import math
from dataclasses import replace

import nets
import numpy as np
import pytest
import torch

from gamlens import Lens
from gamlens.explanation.map_bar import EndWords, map_bar
from gamlens.render import lut, overlay

X, Y = nets.images(1), nets.images(1, seed=1)
WORDS = EndWords("lowers it", "raises it")


@pytest.mark.parametrize(
    ("sign", "scales", "texts"),
    [
        (None, {}, ("0", "", "1")),
        ("both", {"a": 0.04}, ("−0.02 lowers it", "0", "+0.02 raises it")),
        ("both", {"a": 0.04, "b": math.inf}, ("−0.02 lowers it", "0", "+0.02 raises it")),
        ("both", {"a": 0.04, "b": 0.1}, ("−0.5 lowers it", "0", "+0.5 raises it")),
        ("positive", {"a": 2.0}, ("0", "", "+1 raises it")),
        ("negative", {"a": 2.0}, ("0", "", "−1 lowers it")),
        ("both", {"a": math.inf}, ("−0.5 lowers it", "0", "+0.5 raises it")),
    ],
)
def test_texts(sign: str | None, scales: dict[str, float], texts: tuple[str, str, str]) -> None:
    bar = map_bar(sign, 0.5, scales, cmap="diverging", words=WORDS, score="dot")
    assert (bar.low, bar.middle, bar.high) == texts
    assert ("0.02 at a and 0.05 at b, in units of the dot" in bar.caption) == (len(scales) == 2 and "b" in bar.caption)


def test_the_ends_are_the_raw_values_of_the_strongest_place() -> None:
    found = Lens(nets.small()).compare(X, Y, method="gam", n=1, sign="both", score="dot").x
    (scale,) = found.scales.values()
    raw = float(found.maps.abs().max() * scale[0])
    assert found.bar().high == f"+{raw:.2g} raises the dot"
    assert found.bar().low == f"−{raw:.2g} lowers the dot"


def test_the_strongest_value_has_the_strongest_colour() -> None:
    """However small it is: a map of a tenth of the values looks the same. Unsigned maps stay as they are."""
    found = Lens(nets.small()).classify(X, 3, method="gam", n=1, sign="both")
    weak = replace(found, maps=found.maps / 10)
    assert np.array_equal(np.asarray(found.overlay()), np.asarray(weak.overlay()))
    flat = np.asarray(weak.overlay(style="flat", opacity=1.0)).reshape(-1, 3)
    at = int(weak.full().abs().argmax())
    end = lut("diverging")[-1 if weak.full().flatten()[at] > 0 else 0]
    assert np.abs(flat[at].astype(int) - np.asarray(end).astype(int)).max() <= 2
    up = Lens(nets.small()).classify(X, 3, method="gam", n=1, sign="positive")
    assert np.array_equal(np.asarray(up.overlay()), np.asarray(overlay(up.image(), up.full().numpy())))


def test_a_bar_stands_below_the_same_picture() -> None:
    found = Lens(nets.small()).compare(X, Y, sign="both")
    plain, barred = found.overlay(), found.overlay(bar=True)
    assert barred.width == plain.width
    assert barred.height > plain.height
    assert np.array_equal(np.asarray(barred)[: plain.height], np.asarray(plain))


def test_a_map_of_zeros_can_be_drawn() -> None:
    found = Lens(nets.small()).classify(X, 3, n=1, sign="both")
    empty = replace(
        found, maps=torch.zeros_like(found.maps), scales={name: own / 0 for name, own in found.scales.items()}
    )
    assert "no place has an influence" in empty.bar().caption
    assert empty.overlay(bar=True).height > 64
