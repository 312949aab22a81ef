"""Colour maps. Each is a few colours in colormaps.json, interpolated to a table of 256."""

import json
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gamlens.errors import GamlensError, Registry

COLORMAPS: dict[str, list[list[int]]] = Registry(
    "colour map", json.loads(resources.files(__package__).joinpath("colormaps.json").read_text())
)
SIGNED_COLORMAPS = frozenset({"diverging"})  # maps whose middle colour means zero

_SLACK = 1e-4  # how far a map value may lie outside [0, 1] by rounding


@cache
def lut(name: str) -> NDArray[np.uint8]:
    """Return the colour map `name` as a read-only table (256, 3) uint8."""
    anchors = COLORMAPS[name]
    at = np.linspace(0, len(anchors) - 1, 256)
    channels = [np.interp(at, range(len(anchors)), channel) for channel in zip(*anchors, strict=True)]
    table: NDArray[np.uint8] = np.rint(np.stack(channels, axis=1)).astype(np.uint8)
    table.setflags(write=False)
    return table


def strength(name: str) -> NDArray[np.float32]:
    """Return how salient each of the 256 entries is, (256,) in [0, 1].

    This is the map's value itself or, for a signed colour map, its distance from the middle.
    """
    ramp = np.linspace(0, 1, 256, dtype=np.float32)
    return np.abs(2 * ramp - 1) if name in SIGNED_COLORMAPS else ramp


def levels(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Round a map (H, W) in [0, 1] to indices into a colour table: (H, W) uint8."""
    values = np.asarray(values)
    if values.ndim != 2 or values.size == 0 or values.dtype.kind not in "fbiu":
        raise GamlensError(
            f"A map is a real array (H, W) that is not empty; found {values.dtype} {values.shape}: give one map."
        )
    low, high = float(values.min()), float(values.max())
    if not (low >= -_SLACK and high <= 1 + _SLACK):
        raise GamlensError(f"Map values must lie in [0, 1]; found {low:.4g} to {high:.4g}: normalise the map first.")
    scaled = values.astype(np.float32)
    scaled *= 255
    scaled += 0.5
    return np.clip(scaled, 0, 255, out=scaled).astype(np.uint8)


def colorize(values: NDArray[Any], *, cmap: str = "ember") -> NDArray[np.uint8]:
    """Colour a map: (H, W) in [0, 1] -> (H, W, 3) uint8."""
    return lut(cmap)[levels(values)]
