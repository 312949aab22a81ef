"""The blocks of a model that are read: those that were named, or those that discovery finds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gamlens.capture.guard import forward_error, model_guard
from gamlens.capture.layer_points import OUTPUT, LayerPoint, TokenGrid, tensors
from gamlens.errors import GamlensError, near
from gamlens.models.discovery.attention_layers import find_attention
from gamlens.models.discovery.discover import NetworkLayout, discover, locate
from gamlens.models.network import Output, pick


@dataclass(frozen=True)
class ModelBlocks:
    """The blocks of a model that are read.

    Attributes:
        points: The blocks in the order in which they run.
        layout: What discovery found; None where it found nothing and the blocks were named.
        writes_input: Whether the model changes its input in place.
        grids: By name of a block of tokens, where the tokens lie at the input size `size`.
        size: Height and width of the input of the recorded forward.
        layers: The transformer layers whose attention can be read, in the order in which they run.
        no_attention: Why there are none, in words, if the network has transformer layers; otherwise "".
        own_tokens: Whether the rest of the network can be applied to the tokens of every layer.
    """

    points: tuple[LayerPoint, ...]
    layout: NetworkLayout | None
    writes_input: bool
    grids: Mapping[str, TokenGrid]
    size: tuple[int, int]
    layers: tuple[LayerPoint, ...] = ()
    no_attention: str = ""
    own_tokens: bool = False


def points_named(model: nn.Module, names: Sequence[str] | None) -> tuple[LayerPoint, ...] | None:
    """The points that names of blocks stand for; None for None. A name that the model does not have is an error."""
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


def find_blocks(
    model: nn.Module, image: Tensor, *, asked: tuple[LayerPoint, ...] | None, output: Output
) -> ModelBlocks:
    """Record one forward of the model to find its blocks; if the user named blocks, a second one to find those.

    Args:
        model: The network.
        image: One image (1,C,H,W).
        asked: The blocks that were named; None for those that discovery finds.
        output: How the class scores are picked out of what the model returns.
    """

    def pick_scores(value: Any) -> Any:
        """Take the class scores out of what the model returns; without `output`, the first tensor in it."""
        if output is not None or isinstance(value, Tensor):
            return pick(value, output)
        first = next(tensors(value), None)
        return pick(value, None) if first is None and asked is None else first

    layout = None
    with _copied(model, image) as copy:
        version = copy._version
        with suppress(GamlensError) if asked is not None else nullcontext():
            layout = discover(model, copy, pick_scores)
        grids: dict[LayerPoint, TokenGrid | None] = {}
        if asked is not None:
            grids = locate(model, copy.clone(), asked)
        elif layout is not None:
            grids = {LayerPoint.parse(stage.name): stage.grid for stage in layout.stages if stage.chosen}
        size, named = (int(image.shape[-2]), int(image.shape[-1])), _of_tokens(grids)
        writes = copy._version != version
        found = (
            find_attention(model, image.detach().clone(), layout.layers, pick_scores) if layout is not None else None
        )
        if found is None:
            return ModelBlocks(tuple(grids), layout, writes, named, size)
        points = tuple(LayerPoint(name, tokens=True) for name in found.modules)
        named |= {point.name: found.grid for point in points if found.grid is not None}
        return ModelBlocks(tuple(grids), layout, writes, named, size, points, found.reason, found.own_tokens)


def token_grids(model: nn.Module, image: Tensor, points: Sequence[LayerPoint]) -> dict[str, TokenGrid]:
    """Find where the tokens of `points` lie in images of the size of `image` (1,C,H,W), by one recorded forward."""
    with _copied(model, image) as copy:
        return _of_tokens(locate(model, copy, points))


@contextmanager
def _copied(model: nn.Module, image: Tensor) -> Iterator[Tensor]:
    """Gives a copy of `image` to run the model on, and leaves the model as it was.

    What goes wrong inside becomes a GamlensError that says which shape the model was given.
    """
    with model_guard(model):
        try:
            yield image.detach().clone()
        except GamlensError:
            raise
        except Exception as error:
            raise forward_error(f"an image of shape {tuple(image.shape)}", error) from error


def _of_tokens(grids: Mapping[LayerPoint, TokenGrid | None]) -> dict[str, TokenGrid]:
    return {str(point): grid for point, grid in grids.items() if grid is not None}
