"""An explainer that is not one of METHODS: a function of the user, or a method of another package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from gamlens.inputs.frame import Frame
from gamlens.lens import Lens
from gamlens.scores import PairScoreFunction

FUNCTION_MARK = ".py:"  # stands between a file and its function in the name of an explainer
# (model, batch (B,C,H,W) as the model takes it, targets (B,) long) -> maps (B,H,W)
ClassFunction = Callable[[nn.Module, Tensor, Tensor], Any]
# (embedder, x (P,C,H,W), y (P,C,H,W), score: (P,D), (P,D) -> (P,)) -> maps of x (P,H,W), maps of y (P,H,W); the
# embedder is a module from a batch to the embeddings (P,D) by which the lens compares images
PairFunction = Callable[[nn.Module, Tensor, Tensor, PairScoreFunction], tuple[Any, Any]]


class NamedImage(Protocol):
    """An image of a data set, such as a `Sample`: its name there, and the path of its file."""

    @property
    def name(self) -> str:
        """Its name in the data set."""

    @property
    def image(self) -> str:
        """The path of the image file."""


@dataclass(frozen=True, eq=False)
class BoundExplainer:
    """An explainer for one lens. Both functions return maps in [0,1] of float32, or raise a GamlensError.

    Attributes:
        classify: (batch (B,C,H,W), targets (B,)) -> maps (B,H,W); None if it explains pairs only.
        compare: (x (P,C,H,W), y (P,C,H,W), score) -> maps (P,H,W) of both; None if it explains classes only.
    """

    classify: Callable[[Tensor, Tensor], Tensor] | None = None
    compare: Callable[[Tensor, Tensor, PairScoreFunction], tuple[Tensor, Tensor]] | None = None


@dataclass(frozen=True, eq=False)
class Explainer:
    """An explainer that an evaluation measures beside METHODS.

    Attributes:
        name: What it is called on the command line and in results, such as "captum:IntegratedGradients".
        title: Its name in tables.
        bind: Makes the explainer for a lens; called once per process.
        source: What made its maps, for the record of a run: "captum 0.9.0", or the sha256 of a file.
        classes: Whether it explains classes.
        pairs: Whether it explains pairs.
        by_name: For maps that another program wrote: (lens, images, frames) -> maps (B,H,W) in [0,1] of float32, in
            the frame of the model's input. Which image a map belongs to is known by its name, so both functions of
            the bound explainer are None.
    """

    name: str
    title: str
    bind: Callable[[Lens], BoundExplainer]
    source: str = ""
    classes: bool = True
    pairs: bool = False
    by_name: Callable[[Lens, Sequence[NamedImage], Sequence[Frame]], Tensor] | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a function of a user's file by its name, since another process cannot import the file's functions."""
        return (_found_again, (self.name,)) if FUNCTION_MARK in self.name else super().__reduce_ex__(protocol)


def _found_again(name: str) -> Explainer:
    from gamlens.evaluation.explainers import find

    return find(name)
