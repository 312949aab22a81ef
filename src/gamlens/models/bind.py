"""Fixing the blocks of a model: those the user named, or those that discovery finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gamlens.errors import GamlensError, near
from gamlens.models.discover import Layout, discover, locate
from gamlens.models.outputs import Output, pick
from gamlens.points import OUTPUT, Grid, Point, tensors
from gamlens.settle import failed, settled


@dataclass(frozen=True)
class Binding:
    """The blocks in the order they run, what discovery found (None where it found nothing), whether the model changes
    its input in place, and where the tokens of blocks of tokens lie, at the input `size` that was looked at.
    """

    points: tuple[Point, ...]
    layout: Layout | None
    writes_input: bool
    grids: Mapping[str, Grid]
    size: tuple[int, int]


def named(model: nn.Module, names: Sequence[str] | None) -> tuple[Point, ...] | None:
    """Names as points of this model, or an error with near matches."""
    if names is None:
        return None
    if isinstance(names, str):
        names = [names]
    points = tuple(Point.parse(name) for name in names)
    if not points or len(set(points)) != len(points):
        raise GamlensError(f"blocks= needs at least one name and none twice; found {list(names)}.")
    known = dict(model.named_modules())
    for point in points:
        if point.module not in known and str(point) != OUTPUT:
            raise GamlensError(f"The model has no module {point.module!r}: {near(point.module, filter(None, known))}")
    return points


def bind(model: nn.Module, image: Tensor, *, asked: tuple[Point, ...] | None, output: Output) -> Binding:
    """One recorded forward of `image` (1,C,H,W) through `model`."""

    def leniently(value: Any) -> Any:
        if output is not None or isinstance(value, Tensor):
            return pick(value, output)
        first = next(tensors(value), None)
        return pick(value, None) if first is None and asked is None else first

    layout = None
    with settled(model):
        image = image.detach().clone()
        version = image._version
        try:
            layout = discover(model, image, output=leniently)
        except GamlensError:
            if asked is None:
                raise
        except Exception as error:
            raise failed(f"an image of shape {tuple(image.shape)}", error) from error
        places: Mapping[Point, Grid | None]
        if asked is not None:
            places = locate(model, image.clone(), asked)
        else:
            assert layout is not None
            places = {Point.parse(stage.name): stage.grid for stage in layout.stages if stage.chosen}
        return Binding(tuple(places), layout, image._version != version, _grids(places), _size(image))


def grids(model: nn.Module, image: Tensor, points: Sequence[Point]) -> dict[str, Grid]:
    """Where the tokens of `points` lie at another input size, by one recorded forward of `image` (1,C,H,W)."""
    with settled(model):
        try:
            return _grids(locate(model, image.detach().clone(), points))
        except GamlensError:
            raise
        except Exception as error:
            raise failed(f"an image of shape {tuple(image.shape)}", error) from error


def _grids(places: Mapping[Point, Grid | None]) -> dict[str, Grid]:
    return {str(point): grid for point, grid in places.items() if grid is not None}


def _size(image: Tensor) -> tuple[int, int]:
    return int(image.shape[-2]), int(image.shape[-1])
