"""Fixing the blocks of a model: those the user named, or those that discovery finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gamlens.capture.guard import failed, model_guard
from gamlens.capture.layers import OUTPUT, LayerPoint, TokenGrid, tensors
from gamlens.errors import GamlensError, near
from gamlens.models.discovery.blocks import Layout, discover, locate
from gamlens.models.outputs import Output, pick


@dataclass(frozen=True)
class Binding:
    """The blocks in the order they run, what discovery found (None where it found nothing), whether the model changes
    its input in place, and where the tokens of blocks of tokens lie, at the input `size` that was looked at.
    """

    points: tuple[LayerPoint, ...]
    layout: Layout | None
    writes_input: bool
    grids: Mapping[str, TokenGrid]
    size: tuple[int, int]


def named(model: nn.Module, names: Sequence[str] | None) -> tuple[LayerPoint, ...] | None:
    """Names as points of this model, or an error with near matches."""
    if names is None:
        return None
    if isinstance(names, str):
        names = [names]
    points = tuple(LayerPoint.parse(name) for name in names)
    if not points or len(set(points)) != len(points):
        raise GamlensError(f"blocks= needs at least one name and none twice; found {list(names)}.")
    known = dict(model.named_modules())
    for point in points:
        if point.module not in known and str(point) != OUTPUT:
            raise GamlensError(f"The model has no module {point.module!r}: {near(point.module, filter(None, known))}")
    return points


def bind(model: nn.Module, image: Tensor, *, asked: tuple[LayerPoint, ...] | None, output: Output) -> Binding:
    """One recorded forward of `image` (1,C,H,W) through `model`."""

    def leniently(value: Any) -> Any:
        if output is not None or isinstance(value, Tensor):
            return pick(value, output)
        first = next(tensors(value), None)
        return pick(value, None) if first is None and asked is None else first

    layout = None
    with model_guard(model):
        image = image.detach().clone()
        version = image._version
        try:
            layout = discover(model, image, output=leniently)
        except GamlensError:
            if asked is None:
                raise
        except Exception as error:
            raise failed(f"an image of shape {tuple(image.shape)}", error) from error
        places: Mapping[LayerPoint, TokenGrid | None]
        if asked is not None:
            places = locate(model, image.clone(), asked)
        else:
            assert layout is not None
            places = {LayerPoint.parse(stage.name): stage.grid for stage in layout.stages if stage.chosen}
        return Binding(tuple(places), layout, image._version != version, _grids(places), _size(image))


def grids(model: nn.Module, image: Tensor, points: Sequence[LayerPoint]) -> dict[str, TokenGrid]:
    """Where the tokens of `points` lie at another input size, by one recorded forward of `image` (1,C,H,W)."""
    with model_guard(model):
        try:
            return _grids(locate(model, image.detach().clone(), points))
        except GamlensError:
            raise
        except Exception as error:
            raise failed(f"an image of shape {tuple(image.shape)}", error) from error


def _grids(places: Mapping[LayerPoint, TokenGrid | None]) -> dict[str, TokenGrid]:
    return {str(point): grid for point, grid in places.items() if grid is not None}


def _size(image: Tensor) -> tuple[int, int]:
    return int(image.shape[-2]), int(image.shape[-1])
