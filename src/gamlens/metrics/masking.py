"""Images masked by their maps, and the control maps that every table compares with."""

import math
from collections.abc import Callable, Sequence
from typing import Literal
from zlib import crc32

import torch
from torch import Tensor

from gamlens import fuse
from gamlens.errors import GamlensError
from gamlens.metrics._checks import check_maps

Fill = Literal["black", "mean"]
# The blurred background of insertion and deletion, in pixels of the model's input. It must hide what the object is: the
# kernel of 11 pixels with sigma 5 of RISE leaves a network much of its probability at 224 px.
BLUR_KERNEL, BLUR_SIGMA = 51, 10.0


def explain_mask(
    images: Tensor,
    maps: Tensor,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    fill: Fill = "black",
    background: Tensor | None = None,
) -> Tensor:
    """Hide the pixels of images where the map is low, and normalise for the model: image x map.

    Shapes: images (N,3,H,W) in 0..1, not normalised, and maps (N,H,W) in 0..1 -> (N,3,H,W), normalised.

    With `fill` "black" the image is multiplied by the map and then normalised, so that hidden pixels are black. With
    "mean" the normalised image is multiplied, so that hidden pixels have the colour `mean`. If a `background` is given,
    (N,3,H,W) in 0..1, hidden pixels show it in place of a colour: image x map + background x (1 - map).
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
    if background is not None:
        if background.shape != images.shape:
            shapes = f"{tuple(background.shape)} and {tuple(images.shape)}"
            raise GamlensError(f"A background has the shape of the images, found {shapes}.")
        return (images * weight + background * (1 - weight) - centre) / spread
    if fill == "black":
        return (images * weight - centre) / spread
    if fill == "mean":
        return (images - centre) / spread * weight
    raise GamlensError(f"fill must be 'black' or 'mean', the colour of hidden pixels; found {fill!r}.")


def blurred(images: Tensor, *, kernel: int = BLUR_KERNEL, sigma: float = BLUR_SIGMA) -> Tensor:
    """The images behind a Gaussian blur, a background that shows no detail: (N,3,H,W) -> (N,3,H,W).

    The blur is a weighted mean over kernel x kernel pixels, with weights exp(-d^2 / (2 sigma^2)) at a distance of d
    pixels; beyond the border the image is mirrored.
    """
    from torchvision.transforms.v2.functional import gaussian_blur

    check_blur(kernel, sigma)
    if images.ndim != 4 or min(images.shape[-2:]) <= kernel // 2:
        raise GamlensError(
            f"A blur with a kernel of {kernel} pixels mirrors {kernel // 2} pixels at the border and needs larger "
            f"images (N,3,H,W); found {tuple(images.shape)}: give a smaller kernel."
        )
    found: Tensor = gaussian_blur(images, [kernel, kernel], [sigma, sigma])
    return found


def check_blur(kernel: int, sigma: float) -> None:
    """Raise a GamlensError if there is no Gaussian blur with this kernel and sigma, both in pixels."""
    if kernel < 3 or kernel % 2 == 0 or not (math.isfinite(sigma) and sigma > 0):
        raise GamlensError(
            f"A blur has a kernel of an odd number of pixels, 3 or more, and a sigma above 0, such as {BLUR_KERNEL} "
            f"and {BLUR_SIGMA:g}; found {kernel} and {sigma}."
        )


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


def chance(names: Sequence[str], height: int, width: int) -> Tensor:
    """A random map of 7 x 7 cells for every item, resized and normalised like a method's: (n,H,W).

    The item's name seeds it, so that an item has the same map in every run and batch.
    """
    cells = [
        torch.rand(1, 7, 7, generator=torch.Generator().manual_seed(crc32(name.encode(errors="replace"))))
        for name in names
    ]
    return fuse.min_max(fuse.resize(torch.cat(cells) if cells else torch.zeros(0, 7, 7), (height, width)))[0]


def equal_mass(maps: Tensor) -> Tensor:
    """Replace every value of a map by its rank in the map, scaled to [0,1]: (N,H,W) -> (N,H,W).

    All maps then have the mean 1/2, so that none hides more of an image than another. Equal values share the mean of
    their ranks; a flat map becomes 1/2 everywhere.

    >>> equal_mass(torch.tensor([[[0.1, 0.9, 0.2]]]))
    tensor([[[0.0000, 1.0000, 0.5000]]])
    """
    check_maps(maps)
    values, place = maps.flatten(1).sort(dim=1)
    pixels = values.shape[1]
    position = torch.arange(pixels, device=maps.device, dtype=torch.float64).expand_as(values)
    starts = torch.ones_like(values, dtype=torch.bool)
    starts[:, 1:] = values[:, 1:] != values[:, :-1]
    ends = torch.ones_like(starts)
    ends[:, :-1] = starts[:, 1:]
    first = torch.where(starts, position, 0).cummax(dim=1).values
    last = torch.where(ends, position, pixels).flip(1).cummin(dim=1).values.flip(1)
    ranks = torch.empty_like(position).scatter_(1, place, (first + last) / 2)
    return (ranks / (pixels - 1) if pixels > 1 else ranks + 0.5).to(maps.dtype).view_as(maps)


# {name: a function (names of n items, H, W) -> maps (n,H,W)}. These maps need no model: they show nothing, everything,
# the middle, or places of chance.
CONTROLS: dict[str, Callable[[Sequence[str], int, int], Tensor]] = {
    "blank": lambda names, height, width: torch.zeros(len(names), height, width),
    "ones": lambda names, height, width: torch.ones(len(names), height, width),
    "centre": lambda names, height, width: centre(len(names), height, width),
    "random": chance,
}
REFINED_CONTROLS = ("centre", "random")  # those that are also refined where the maps of an evaluation are


def _check_unit(name: str, values: Tensor) -> None:
    if values.numel() == 0:
        return
    low, high = (float(value) for value in values.float().aminmax())
    if not (low >= -1e-4 and high <= 1 + 1e-4):
        raise GamlensError(
            f"{name} lie between 0 and 1, found {low:.4g} to {high:.4g}: give them before they are normalised."
        )
