"""Our maps as an `explain_func` for Quantus (https://github.com/understandable-machine-intelligence-lab/Quantus).

Quantus calls `explain_func(model=..., inputs=..., targets=..., **explain_func_kwargs)` with preprocessed images. The
model is the one that is measured, or a copy of it whose parameters Quantus changed: its tests compare maps of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gamlens.adapters.map_options import MapOptions
from gamlens.capture.forward import BY_NETWORK
from gamlens.capture.guard import unwrap
from gamlens.errors import GamlensError, warn
from gamlens.fuse import Fusion
from gamlens.inputs.batch import ViewList
from gamlens.lens import Lens
from gamlens.methods import METHODS
from gamlens.refine import Refine, Sharp


@dataclass(frozen=True, eq=False)
class QuantusExplain:
    """An `explain_func` of Quantus, which `quantus` makes.

    Attributes:
        lens: The lens.
        options: How maps are made.
        score: The class score that is explained.
    """

    lens: Lens
    options: MapOptions
    score: str = "logit"

    def __call__(self, model: Any, inputs: Any, targets: Any, **kwargs: Any) -> NDArray[np.float32]:
        """Explain a batch of the model that is given.

        Args:
            model: A module, or Quantus' wrapper around one: the lens's own, or a copy with other parameters.
            inputs: Preprocessed images (B,C,H,W), an array or a tensor of floating point.
            targets: The class of each image, B whole numbers.
            kwargs: Options of `quantus` (method, n, score, ...) hold for this call; all others, such as device, are
                ignored. A `method` that is no name of METHODS is ignored with a warning, because `quantus.evaluate`
                passes the name that the user gave to the explainer.

        Returns:
            The maps (B,1,H,W) float32 in [0,1].
        """
        if isinstance(method := kwargs.get("method"), str) and method not in (*METHODS, BY_NETWORK):
            del kwargs["method"]
            warn(
                f"Quantus gave the name {method!r}, which is no method of gamlens: maps are made by "
                f"{self.options.method!r}, as the adapter was made."
            )
        options = self.options.changed(kwargs)
        lens, images = _lens_of(model, self.lens), torch.as_tensor(inputs)
        score = kwargs.get("score", self.score)
        result = lens.classify(images.detach(), targets, score=score, **options.keywords())
        return result.numpy()[:, None]


def quantus(
    lens: Lens,
    *,
    method: str = BY_NETWORK,
    n: int | str = BY_NETWORK,
    fuse: Fusion = "mean",
    score: str = "logit",
    lattice: str = "read",
    refine: Refine = False,
    sharp: Sharp = False,
    views: ViewList = (),
) -> QuantusExplain:
    """Make an `explain_func` for the metrics of Quantus.

    It explains the model that Quantus passes. If that is not the lens's own, as in tests that randomise parameters, it
    must be a copy with the same layers, and the same blocks are read there.

    Args:
        lens: The model, and how it is read.
        method, n, fuse, score, lattice, refine, sharp, views: As `Lens.classify` takes them. `explain_func_kwargs` of
            Quantus may change them for one metric.

    Returns:
        A function (model, inputs, targets, **kwargs) -> maps (B,1,H,W) float32 in [0,1].

    Example:
        >>> explain = quantus(lens, method="gam", n=1)
        >>> explain(lens.model, torch.rand(2, 3, 64, 64).numpy(), [0, 1]).shape
        (2, 1, 64, 64)
    """
    options = MapOptions(method, n, fuse, lattice, refine, sharp, views)
    return QuantusExplain(lens, options, score)


def _lens_of(model: Any, lens: Lens) -> Lens:
    """The lens on the model that Quantus passed: the user's own lens, or the same on a copy of its model."""
    if not isinstance(model, nn.Module) and callable(getattr(model, "get_model", None)):
        model = model.get_model()  # quantus.PyTorchModel
    if model is lens.model:
        return lens
    if not isinstance(model, nn.Module):
        raise GamlensError(
            f"A gamlens adapter explains models of PyTorch; found a {type(model).__name__}: give Quantus the nn.Module "
            "that the lens was made of."
        )
    known = {name for name, _ in unwrap(lens.model).named_modules()}
    if missing := sorted(known - {name for name, _ in unwrap(model).named_modules()}):
        raise GamlensError(
            f"The model that Quantus passed is not a copy of the lens's model {lens.name!r}: it has no layer "
            f"{missing[0]!r}. Make the adapter of a lens on that model: gamlens.Lens(model)."
        )
    return lens.with_model(model)
