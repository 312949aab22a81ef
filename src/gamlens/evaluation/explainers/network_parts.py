"""What explainers of other packages need of a network: class scores, embeddings, and the layers of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from gamlens.capture.forward import as_map
from gamlens.capture.guard import unwrap
from gamlens.capture.hooks import TensorTap, has_output_module
from gamlens.capture.layer_points import OUTPUT, LayerPoint
from gamlens.errors import GamlensError, near
from gamlens.lens import Lens
from gamlens.models.network import Output, pick
from gamlens.scores import PairScoreFunction


class ClassScores(nn.Module):
    """A network that returns its class scores (B,K) as a tensor, whatever else it returns by itself.

    Args:
        lens: The lens that knows the network.
        example: A batch of the network's input, by which the class scores are found in its output.
    """

    def __init__(self, lens: Lens, example: Tensor) -> None:
        super().__init__()
        self.network = unwrap(lens.model)
        self.part = _output_part(lens, example)

    def forward(self, batch: Tensor) -> Tensor:
        """Class scores of a batch: (B,C,H,W) -> (B,K). The network gets a copy, since it may write to its input."""
        return pick(self.network(batch.clone()), self.part)


class Embedder(nn.Module):
    """A network that returns the embeddings (B,D) by which its lens compares images, as `lens.embed`, with a graph.

    Args:
        lens: The lens that knows the network and where its embedding is read.
        example: A batch of the network's input. It is needed where the embedding is what the network returns.
    """

    def __init__(self, lens: Lens, example: Tensor) -> None:
        super().__init__()
        self.network = unwrap(lens.model)
        if not lens.knows_blocks:
            lens.forward(example[:1])
        self.point = LayerPoint.parse(lens.embedding)
        self.whole = self.point.name == OUTPUT and not has_output_module(self.network)
        self.part = _output_part(lens, example) if self.whole else None

    def forward(self, batch: Tensor) -> Tensor:
        """Embeddings of a batch: (B,C,H,W) -> (B,D)."""
        if self.whole:
            return pick(self.network(batch.clone()), self.part).flatten(1)
        found: list[Tensor] = []

        def take(point: LayerPoint, tensor: Tensor, in_place: bool) -> Tensor:
            found.append(tensor.clone())  # a copy, since the network may write to the tensor later
            return tensor

        with TensorTap(self.network, [self.point], take).attached():
            self.network(batch.clone())
        if not found or found[-1].shape[:1] != batch.shape[:1]:
            raise GamlensError(f"The embedding {self.point.name!r} gives no vector per image: name another layer.")
        return found[-1].flatten(1)


class PairSimilarity(nn.Module):
    """The score of images and of given embeddings: (P,C,H,W), (P,D) -> (P,)."""

    def __init__(self, embedder: Embedder, score: PairScoreFunction) -> None:
        super().__init__()
        self.embedder, self.score = embedder, score

    def forward(self, batch: Tensor, other: Tensor) -> Tensor:
        """The scores (P,) of a batch (P,C,H,W) against the embeddings `other` (P,D)."""
        return self.score(self.embedder(batch), other)


@dataclass(frozen=True, eq=False)
class ExplainedLayers:
    """The layers that an explainer of another package reads.

    Attributes:
        modules: The modules, in the order they run.
        reshape: Makes a tensor (B,C,h,w) of what they return; None if it is one already.
    """

    modules: list[nn.Module]
    reshape: Callable[[Tensor], Tensor] | None = None


def blocks_read(kind: type) -> int:
    """How many blocks a class of another package reads by default: one, but two if it is made to join several."""
    return 2 if kind.__name__ == "RefineCAM" else 1


def explained_layers(lens: Lens, example: Tensor, *, n: int = 1, layer: str | None = None) -> ExplainedLayers:
    """The modules of the last n blocks of a lens, or the one that is named.

    A block may be what a function makes of a module's output, such as "features:relu". Other packages read modules
    only, so the module before the function is taken: `features`.
    """
    network = unwrap(lens.model)
    if layer is not None:
        modules = dict(network.named_modules())
        if layer not in modules or not layer:
            raise GamlensError(f"{lens.name} has no layer {layer!r}: {near(str(layer), filter(None, modules))}")
        return ExplainedLayers([modules[layer]])
    if not lens.knows_blocks:
        lens.forward(example[:1])
    if not isinstance(n, int) or not 1 <= n <= len(lens.blocks):
        raise GamlensError(f"n={n!r}: {lens.name} has {len(lens.blocks)} blocks, so give n from 1 to that.")
    points = [LayerPoint.parse(name) for name in lens.blocks[-n:]]
    for point in points:
        if point.reads_input or not point.module:
            raise GamlensError(
                f"The block {point.name!r} is not the output of a module, which other packages need: name a module "
                "with the option layer=NAME."
            )
    found = [network.get_submodule(point.module) for point in points]
    if not any(point.tokens or point.channels_last for point in points):
        return ExplainedLayers(found)
    grids = lens.forward(example[:1], n=n).grids
    return ExplainedLayers(found, partial(_as_image, points[-1].name, grids))


def _as_image(name: str, grids: Mapping[str, Any], tensor: Tensor) -> Tensor:
    return as_map(name, tensor, grids)


def for_model(lens: Lens, batch: Tensor) -> Tensor:
    """A copy of a batch on the model's device and of its dtype, outside of any graph."""
    own = chain(lens.model.parameters(), lens.model.buffers())
    like = next((tensor for tensor in own if tensor.is_floating_point()), batch)
    return batch.detach().to(like.device, like.dtype, copy=True)


def _output_part(lens: Lens, example: Tensor) -> Output:
    """Where in the network's output the tensor is that `lens.outputs` returns: a key, attribute or position.

    None if it is the output itself. It is found by comparing values, since only the lens knows what its user chose.
    """
    output, wanted = lens.forward(example[:1]).output, lens.outputs(example[:1])
    if isinstance(output, Tensor) and _equal(output, wanted):
        return None
    for key, value in _parts(output):
        if isinstance(value, Tensor) and _equal(value, wanted):
            return key
    raise GamlensError(
        f"The class scores of {lens.name} are made by a function (output=), which other packages cannot be given: "
        "give the lens a module that returns the class scores themselves."
    )


def _parts(output: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(output, Mapping):
        yield from output.items()
    elif isinstance(output, list | tuple):
        yield from enumerate(output)
    elif hasattr(output, "__dict__"):
        yield from vars(output).items()


def _equal(found: Tensor, wanted: Tensor) -> bool:
    return found.shape == wanted.shape and bool(torch.allclose(found, wanted, equal_nan=True))


@contextmanager
def copied_outputs(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Let the network go on with copies of what these modules return, so that it cannot write to the outputs.

    Hooks of another package that are registered before read the outputs as the modules gave them, on every device: a
    function such as F.relu(inplace=True) after a module would change the values that the package has kept.
    """
    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(_copy).remove)
        yield


def _copy(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    return output.clone() if isinstance(output, Tensor) else None
