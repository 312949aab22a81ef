"""Images masked by their maps, and the control maps that every table compares with."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from gamlens.errors import GamlensError

Fill = Literal["black", "mean"]


def explain_mask(
    images: Tensor, maps: Tensor, *, mean: Sequence[float], std: Sequence[float], fill: Fill = "black"
) -> Tensor:
    """Hide the pixels of images where the map is low, and normalise for the model: image x map.

    Shapes: images (N,3,H,W) in 0..1, not normalised, and maps (N,H,W) in 0..1 -> (N,3,H,W), normalised.

    With `fill` "black" the image is multiplied by the map and then normalised, so that hidden pixels are black. With
    "mean" the normalised image is multiplied, so that hidden pixels have the colour `mean`.
    """
    if images.ndim != 4 or maps.shape != images.shape[:1] + images.shape[2:]:
        shapes = f"{tuple(images.shape)} and {tuple(maps.shape)}"
        raise GamlensError(f"Images (N,3,H,W) take maps (N,H,W) of the same size, found {shapes}.")
    if len(mean) != images.shape[1] or len(std) != images.shape[1]:
        raise GamlensError(
            f"mean and std must have one number per channel, {images.shape[1]}; found {len(mean)} and {len(std)}."
        )
    _check_unit("Raw images", images)
    _check_unit("Maps", maps)
    centre, spread = (images.new_tensor(list(value))[:, None, None] for value in (mean, std))
    weight = maps.to(images)[:, None]
    if fill == "black":
        return (images * weight - centre) / spread
    if fill == "mean":
        return (images - centre) / spread * weight
    raise GamlensError(f"fill must be 'black' or 'mean', the colour of hidden pixels; found {fill!r}.")


def centre_prior(height: int, width: int) -> Tensor:
    """A Gaussian around the centre, scaled to [0,1]: (H,W). Its sigma is H/4 down and W/4 across."""
    if min(height, width) < 1 or max(height, width) < 3:
        raise GamlensError(f"A centre prior needs at least three pixels along a side, found {height} x {width}.")
    y, x = (((torch.arange(size, dtype=torch.float64) + 0.5) * 4 / size - 2).square() for size in (height, width))
    bump = (-(y[:, None] + x[None, :]) / 2).exp()
    return ((bump - bump.min()) / (bump.max() - bump.min())).float()


def centre(n: int, height: int, width: int) -> Tensor:
    """The centre prior for every item: (n,H,W)."""
    return centre_prior(height, width).expand(n, height, width)


# {name: a function (n, H, W) -> maps (n,H,W)}. These maps need no model: they show nothing, everything, or the middle.
CONTROLS: dict[str, Callable[[int, int, int], Tensor]] = {"blank": torch.zeros, "ones": torch.ones, "centre": centre}


def _check_unit(name: str, values: Tensor) -> None:
    if values.numel() == 0:
        return
    low, high = (float(value) for value in values.float().aminmax())
    if not (low >= -1e-4 and high <= 1 + 1e-4):
        raise GamlensError(
            f"{name} lie between 0 and 1, found {low:.4g} to {high:.4g}: give them before they are normalised."
        )
