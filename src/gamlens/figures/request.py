"""What a figure is asked for, and what all of them draw with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from gamlens import fuse, render
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation
from gamlens.lens import Lens
from gamlens.methods import METHODS
from gamlens.render import Line, Panel, Scale
from gamlens.trace import HIDDEN_SHARE, USUAL, Trace

THREE = ("gam", "grad_cam", "grad_cam_pp")
PREDICTED, TRUE = (64, 224, 255), (255, 255, 255)
SALIENCY = Scale("Saliency", over=True)
Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Example:
    """An image with the class to explain (None: the top one) and its ground truth, where there is one."""

    image: str
    target: str | int | None = None
    title: str = ""
    boxes: tuple[Box, ...] = ()
    size: tuple[int, int] | None = None
    mask: NDArray[np.bool_] | None = None
    void: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Ask:
    """A model, examples, n for GAM and for the others, the pair score, and where a map is cut for boxes and masks."""

    lens: Lens
    examples: tuple[Example, ...]
    targets: tuple[str | int, ...] = ()
    n: int = 2
    others: int = 1
    score: str = "cosine"
    threshold: float = 0.25

    def blocks_of(self, method: str) -> int:
        """The n of that method; a model with one block has no n = 2."""
        wanted = self.n if method == "gam" else self.others
        return 1 if wanted == USUAL and len(self.lens.blocks) == 1 else wanted

    @property
    def most(self) -> int:
        """How many blocks must be captured."""
        return max(self.n, self.others)

    def head(self, method: str) -> str:
        """A column head: GAM, n=2."""
        return f"{METHODS[method].title}, n={self.blocks_of(method)}"


def with_targets(ask: Ask) -> Ask:
    """The examples with the targets given for all, or one each in turn; those of a data set keep their own."""
    if not ask.targets:
        return ask
    if len(ask.targets) not in (1, len(ask.examples)):
        raise GamlensError(
            f"{len(ask.targets)} targets were given for {len(ask.examples)} images: give one for all, or one each."
        )
    given = ask.targets * (len(ask.examples) if len(ask.targets) == 1 else 1)
    examples = tuple(replace(example, target=target) for example, target in zip(ask.examples, given, strict=True))
    return replace(ask, examples=examples)


def couples(ask: Ask, *, most: int | None = None) -> list[tuple[Example, Example]]:
    """The examples two by two."""
    if len(ask.examples) % 2:
        raise GamlensError(f"A figure of pairs takes images two by two; found {len(ask.examples)}: give one more.")
    return list(zip(ask.examples[::2], ask.examples[1::2], strict=True))[:most]


def find_blocks(ask: Ask) -> None:
    """Have the blocks found, where the model waits for its first image."""
    try:
        _ = ask.lens.blocks
    except GamlensError:
        ask.lens.trace(ask.examples[0].image, n=1)


def several_blocks(lens: Lens, least: int = 2) -> None:
    if len(lens.blocks) < least:
        raise GamlensError(
            f"This figure compares blocks and {lens.name} has {len(lens.blocks)} ({', '.join(lens.blocks)}): use a "
            "model with more, or name them with --blocks."
        )


def photo(explanation: Explanation, row: int = 0) -> Panel:
    return Panel(explanation.image(row), alt="the photo")


def heat(explanation: Explanation, row: int = 0, *, block: str | None = None, **words: Any) -> Panel:
    """A map over its photo."""
    return Panel(explanation.overlay(row, block=block), alt=f"{explanation.names[row]}: saliency", **words)


def sheet(rows: Trace, values: Tensor, top: float, row: int = 0, **words: Any) -> Panel:
    """Values (R,h,w) of a block, divided by `top`, as a plain map in the photo's shape."""
    wide = fuse.resize(values[row : row + 1] / max(top, 1e-30), rows.size)[0].clamp(0, 1)
    full = rows.origin.frames[rows.index[row]].map(wide.cpu()).numpy()
    return Panel(Image.fromarray(render.colorize(full)), **words)


def hidden(rows: Trace, row: int = 0) -> Panel:
    """The photo, dark where Grad-CAM hides a pixel (Eq. 4)."""
    picture = np.asarray(rows.origin.pictures[rows.index[row]].open())
    found = rows.evidence()
    grid = found.hidden[row : row + 1, None].float()
    near = torch.nn.functional.interpolate(grid, size=rows.size, mode="nearest")[0, 0]
    mask = rows.origin.frames[rows.index[row]].map(near.cpu()).numpy() > 0.5
    pixels = np.where(mask[:, :, None], picture // 4, picture).astype(np.uint8)
    share = 100 * float(found.hidden_share[row])
    marked = render.outlined(pixels, mask, colour=PREDICTED, thick=1.5)
    return Panel(marked, caption=f"{share:.0f} % of P", alt="pixels that Grad-CAM hides")


def hides(rows: Trace, row: int = 0) -> bool:
    """Whether Grad-CAM hides most of the positive evidence at the last block."""
    return bool(rows.evidence().hidden_share[row] > HIDDEN_SHARE)


def empty(explanation: Explanation, row: int = 0) -> bool:
    """Whether a map has nothing in it: flat, or not finite."""
    return float(explanation.maps[row].max()) == 0


def aspects(images: Sequence[Image.Image]) -> tuple[float, ...]:
    """Width over height of each: columns this wide hold pictures of one height."""
    return tuple(image.width / image.height for image in images)


def keys_for(box: bool = False, mask: bool = False, truth: bool = True, threshold: float = 0.25) -> tuple[Any, ...]:
    """The colour scale, and the lines of predicted and true places."""
    lines: list[Scale | Line] = [SALIENCY]
    if box or mask:
        lines.append(Line(f"predicted, map >= {threshold:g}", PREDICTED))
    if (box or mask) and truth:
        lines.append(Line("ground truth", TRUE, dashed=box))
    return tuple(lines)
