"""Our maps as an attribution method of captum (https://captum.ai), for its metrics.

`captum.metrics` expects attributions of the inputs' shape (B,C,H,W), while a map has one value per pixel. Each channel
gets an equal share of it, map / C, so that the sum over the channels is the map. `infidelity` compares <perturbation,
attribution> with the change of the score. A map in [0,1] does not have the scale of a score: give `normalize=True`, by
which captum chooses the scale that fits best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from torch import Tensor

from gamlens.adapters.map_options import MapOptions
from gamlens.capture.forward import BY_NETWORK
from gamlens.errors import GamlensError, near
from gamlens.fuse import Fusion
from gamlens.inputs.batch import ViewList
from gamlens.lens import Lens
from gamlens.refine import Refine, Sharp


@dataclass(frozen=True, eq=False)
class LensAttribution:
    """An attribution method with the calls of captum's own, which `captum` makes.

    Attributes:
        lens: The lens.
        options: How maps are made.
        score: The class score that is explained.
    """

    lens: Lens
    options: MapOptions
    score: str = "logit"

    @overload
    def attribute(
        self, inputs: Tensor, target: Any = None, additional_forward_args: Any = None, **kwargs: Any
    ) -> Tensor: ...

    @overload
    def attribute(
        self, inputs: tuple[Tensor], target: Any = None, additional_forward_args: Any = None, **kwargs: Any
    ) -> tuple[Tensor]: ...

    def attribute(
        self,
        inputs: Tensor | tuple[Tensor],
        target: Any = None,
        additional_forward_args: Any = None,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor]:
        """Explain a batch. Every channel of an attribution is the map divided by the number of channels.

        Args:
            inputs: Preprocessed images (B,C,H,W), or a tuple of one such tensor, as captum's metrics pass it.
            target: The class of all images, or a list or tensor with the class of each. None is each image's top class;
                metrics that change the images should be given a class, since the top class may change with them.
            additional_forward_args: None: the lens runs its model on images alone.
            kwargs: Options of `captum` (method, n, score, ...) that hold for this call.

        Returns:
            Attributions (B,C,H,W) of the dtype and on the device of `inputs`, without a graph; a tuple of one if
            `inputs` is a tuple.
        """
        batch = _only_tensor(inputs)
        if additional_forward_args is not None:
            raise GamlensError("additional_forward_args: a lens runs its model on images alone. Leave them out.")
        known = (*self.options.names(), "score")
        if unknown := [name for name in kwargs if name not in known]:
            raise GamlensError(f"attribute() has no option {unknown[0]!r}: {near(unknown[0], known, most=len(known))}")
        score, options = kwargs.get("score", self.score), self.options.changed(kwargs)
        result = self.lens.classify(batch.detach(), _targets(target, len(batch)), score=score, **options.keywords())
        maps = result.check().maps.to(batch)
        shares = (maps / batch.shape[1])[:, None].repeat(1, batch.shape[1], 1, 1)
        return (shares,) if isinstance(inputs, tuple) else shares

    def has_convergence_delta(self) -> bool:
        """Whether attributions add up to a difference of scores: they do not."""
        return False


def captum(
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
) -> LensAttribution:
    """Make an attribution method with captum's `attribute`, for `captum.metrics`.

    Args:
        lens: The model, and how it is read.
        method, n, fuse, score, lattice, refine, sharp, views: As `Lens.classify` takes them.

    Returns:
        An object whose `attribute(inputs, target)` gives attributions (B,C,H,W); their sum over the channels is the map
        in [0,1]. `sensitivity_max(adapter.attribute, inputs, target=3)` takes it.

    Example:
        >>> adapter = captum(lens, method="gam", n=1)
        >>> images = torch.rand(2, 3, 64, 64)
        >>> attributions = adapter.attribute(images, target=1)
        >>> maps = lens.classify(images, 1, method="gam", n=1).maps
        >>> attributions.shape, torch.allclose(attributions.sum(dim=1), maps, atol=1e-6)
        (torch.Size([2, 3, 64, 64]), True)
    """
    return LensAttribution(lens, MapOptions(method, n, fuse, lattice, refine, sharp, views), score)


def _only_tensor(inputs: Any) -> Tensor:
    """The one tensor (B,C,H,W) of captum's inputs."""
    batch = inputs[0] if isinstance(inputs, tuple) and len(inputs) == 1 else inputs
    if not isinstance(batch, Tensor) or batch.ndim != 4:
        found = tuple(batch.shape) if isinstance(batch, Tensor) else type(batch).__name__
        if isinstance(inputs, tuple):
            found = f"a tuple of {len(inputs)}"
        raise GamlensError(f"inputs is one tensor of preprocessed images (B,C,H,W); found {found}: give one tensor.")
    return batch


def _targets(target: Any, count: int) -> list[int] | None:
    """The class of each of `count` images, from what captum calls a target; None for the top classes."""
    if target is None:
        return None
    found = target.tolist() if isinstance(target, Tensor | np.ndarray) else target
    classes = found if isinstance(found, list) else [found]
    classes = classes * count if len(classes) == 1 else classes
    if len(classes) != count or not all(isinstance(one, int | np.integer) for one in classes):
        raise GamlensError(
            f"target is the class of all {count} images, or a list or tensor with the class of each; found "
            f"{target!r:.80}. Tuples, which pick from outputs of several axes, are not supported."
        )
    return [int(one) for one in classes]
