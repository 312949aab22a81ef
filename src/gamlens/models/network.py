"""`Network`, a model with its input, labels and blocks, and `Builder`, the functions of MODELS that return one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn

from gamlens.errors import GamlensError
from gamlens.inputs.transform import IMAGENET_MEAN, IMAGENET_STD
from gamlens.models.checkpoint import LoadedWeights

Output = str | int | Callable[[Any], Tensor] | None
TextEncoder = Callable[[Sequence[str]], Any]


@dataclass(frozen=True)
class Network:
    """A model and what must be known to use it. Only the first three attributes have no default.

    Attributes:
        module: The model, in eval mode: images (B,C,H,W) -> class scores (B,K), or what `output` picks them from.
        name: The name that results and errors call it by.
        weights: Where the weights come from; "random" means untrained.
        size: Height and width of its input.
        mean, std: One number per channel. Pixels x from 0 to 1 become (x - mean) / std.
        short: The short side that an image is resized to before the centre crop of transform="crop"; usually about
            8/7 of `size`.
        labels: The class names in the order of the class scores.
        aliases: Other names of the same classes: {another name: the name in `labels`}.
        multi_label: Whether probabilities are sigmoids; otherwise they are a softmax.
        output: Key, index or callable that picks the class scores, or the embedding, out of what the module returns.
        text: The text half of a dual encoder: captions -> embeddings (T,D).
        blocks: The blocks to read, named as in Lens(blocks=...), in the order they run. If empty, they are found by one
            recorded forward.
        embedding: The layer that pairs are compared by, named as in Lens(embedding=...); "output" for a module that
            returns an embedding. None: the layer is found by the same forward. A network whose blocks cannot be
            found needs both names.
    """

    module: nn.Module
    name: str
    weights: str
    size: tuple[int, int] = (224, 224)
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    short: int = 256
    labels: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    multi_label: bool = False
    output: Output = None
    text: TextEncoder | None = None
    blocks: tuple[str, ...] = ()
    embedding: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.blocks, str) or isinstance(self.labels, str):
            raise GamlensError(f"The network {self.name!r}: blocks and labels are tuples of names, not one text.")
        if len(self.size) != 2 or len(self.mean) != len(self.std):
            raise GamlensError(
                f"The network {self.name!r}: size is (height, width), and mean and std have one number per channel "
                f"each; found size {self.size}, and {len(self.mean)} and {len(self.std)} numbers."
            )


class Builder(Protocol):
    """A function that builds one network: what an entry of MODELS is."""

    def __call__(self, *, weights: LoadedWeights = None) -> Network:
        """Build the network; `checkpoint.build` does most of it.

        Args:
            weights: None for the network's own weights, "random" for an untrained network, the name of weights that
                the user chose (`NamedWeights`), or a user's tensors by name, already read from their file.

        Returns:
            The Network. If the user gave weights, the caller sets `Network.weights` to where they came from.

        Raises:
            GamlensError: If the weights cannot be loaded or do not fit, or a package is missing; it says what to do.
        """


class FamilyBuilder(Protocol):
    """A function that builds any network of a family: a Builder that is given the network's name first."""

    def __call__(self, name: str, weights: LoadedWeights = None) -> Network: ...


def family(build: FamilyBuilder, names: Iterable[str]) -> dict[str, Builder]:
    """One Builder per name, for the entries of MODELS."""
    return {name: partial(build, name) for name in names}


def input_channels(module: nn.Module) -> int:
    """How many channels the input of a model has: as many as its first convolution reads; 3 without a convolution."""
    first = next((layer for layer in module.modules() if isinstance(layer, nn.Conv2d)), None)
    return first.in_channels if first is not None else 3


def pick(output: Any, how: Output) -> Tensor:
    """The tensor in a model's output.

    Args:
        output: What the model returned.
        how: A key or attribute, a position, a callable on the output, or None for the output itself.
    """
    found = how(output) if callable(how) else output if how is None else _part(output, how)
    if isinstance(found, Tensor):
        return found
    raise GamlensError(
        f"The model returns {_kind(found)}, not a tensor: say which part of it holds the class scores, such as "
        "output='logits' or output=0."
    )


def _part(output: Any, how: str | int) -> Any:
    if isinstance(how, str) and not isinstance(output, Mapping) and hasattr(output, how):
        return getattr(output, how)
    try:
        return output[how]
    except (KeyError, IndexError, TypeError) as error:
        raise GamlensError(
            f"The model's output has no part {how!r}, since it is {_kind(output)}: give another output=."
        ) from error


def _kind(output: Any) -> str:
    if isinstance(output, dict):
        return f"a dict with {', '.join(map(repr, output))}"
    if isinstance(output, list | tuple):
        return f"a {type(output).__name__} of {len(output)}"
    return f"a {type(output).__name__}"
