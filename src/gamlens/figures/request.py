"""What a figure is made from: a lens, examples, and the choices of the person who asks for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gamlens.errors import GamlensError
from gamlens.explanation import Explanation
from gamlens.lens import Lens
from gamlens.methods import METHODS
from gamlens.render import BoxCorners
from gamlens.trace import Trace

COMPARED = ("gam", "grad_cam", "grad_cam_pp")
PAPER_N = 2  # the number of blocks that the paper uses for GAM


@dataclass(frozen=True, eq=False)
class Example:
    """An image with the class to explain (None: the top one) and its ground truth, where there is one.

    `boxes` are in pixels of an image of `size` (height, width); `mask` and `void` are (H,W).
    """

    image: str
    target: str | int | None = None
    title: str = ""
    boxes: tuple[BoxCorners, ...] = ()
    size: tuple[int, int] | None = None
    mask: NDArray[np.bool_] | None = None
    void: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class FigureRequest:
    """Everything that a figure is made from.

    `n` is the number of blocks for GAM and `others` that for the other methods; `score` is the pair score;
    `threshold` is where a map is cut for boxes and masks.
    """

    lens: Lens
    examples: tuple[Example, ...]
    targets: tuple[str | int, ...] = ()
    n: int = PAPER_N
    others: int = 1
    score: str = "cosine"
    threshold: float = 0.25

    def blocks_of(self, method: str) -> int:
        """The n of that method; where a model has one block, the usual n = 2 means 1."""
        wanted = self.n if method == "gam" else self.others
        return 1 if wanted == PAPER_N and len(self.lens.blocks) == 1 else wanted

    @property
    def most(self) -> int:
        """How many blocks must be captured."""
        return max(self.n, self.others)

    def head(self, method: str) -> str:
        """A column head such as "GAM, n=2"."""
        return f"{METHODS[method].title}, n={self.blocks_of(method)}"

    def trace(self, example: Example, n: int | None = None) -> Trace:
        """One example traced for its target, with n blocks (default: as many as any method needs)."""
        target = None if example.target is None else [example.target]
        return self.lens.trace(example.image, target, n=self.most if n is None else n)

    def explain(self, trace: Trace, methods: tuple[str, ...]) -> dict[str, Explanation]:
        """Each method's explanation at its own n, in order."""
        return {name: trace.explain(name, self.blocks_of(name)) for name in methods}


def targeted_examples(request: FigureRequest) -> tuple[Example, ...]:
    """The examples with the targets that were given: one for all, or one each. Without any they keep their own."""
    targets, examples = request.targets, request.examples
    if not targets:
        return examples
    if len(targets) not in (1, len(examples)):
        raise GamlensError(
            f"{len(targets)} targets were given for {len(examples)} images: give one for all, or one each."
        )
    given = targets * len(examples) if len(targets) == 1 else targets
    return tuple(replace(example, target=target) for example, target in zip(examples, given, strict=True))


def example_pairs(request: FigureRequest) -> list[tuple[Example, Example]]:
    """The examples two by two."""
    examples = request.examples
    if len(examples) % 2:
        raise GamlensError(f"A figure of pairs takes images two by two; found {len(examples)}: give one more.")
    return list(zip(examples[::2], examples[1::2], strict=True))


def require_several_blocks(lens: Lens) -> None:
    """An error where the model has one block, for figures that compare blocks."""
    if len(lens.blocks) < 2:
        raise GamlensError(
            f"This figure compares blocks and {lens.name} has {len(lens.blocks)} ({', '.join(lens.blocks)}): use a "
            "model with more, or name them with --blocks."
        )
