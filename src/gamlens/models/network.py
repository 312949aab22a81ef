"""What a network is, beside its layers: its input, its labels, where its weights come from, what it returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from gamlens.errors import GamlensError
from gamlens.inputs.transform import IMAGENET_MEAN, IMAGENET_STD

Output = str | int | Callable[[Any], Tensor] | None
TextEncoder = Callable[[Sequence[str]], Any]


@dataclass(frozen=True)
class Network:
    """A model with what comes with it.

    Attributes:
        weights: Where the weights are from; "random" means untrained.
        size, mean, std, short: Its input; `short` is the short side before a centre crop.
        labels: Class names. `aliases` gives other names of the same classes.
        multi_label: Whether probabilities are sigmoids.
        output: How the class scores, or the embedding, are picked out of what the module returns.
        text: The text half of a dual encoder: captions -> embeddings (T,D).
        embeds: Whether what the module returns is an embedding, by which pairs are compared.
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
    embeds: bool = False


def pick(output: Any, how: Output) -> Tensor:
    """The tensor in a model's output: by key or attribute, by position, by a callable, or the output itself."""
    found = how(output) if callable(how) else output if how is None else _part(output, how)
    if isinstance(found, Tensor):
        return found
    raise GamlensError(
        f"The model returns {_kind(found)}, not a tensor: say which part holds the class scores, "
        "output='logits' or output=0."
    )


def _part(output: Any, how: str | int) -> Any:
    if isinstance(how, str) and not isinstance(output, Mapping) and hasattr(output, how):
        return getattr(output, how)
    try:
        return output[how]
    except (KeyError, IndexError, TypeError) as error:
        raise GamlensError(f"The model's output has no {how!r}: it is {_kind(output)}.") from error


def _kind(output: Any) -> str:
    if isinstance(output, dict):
        return f"a dict with {', '.join(map(repr, output))}"
    if isinstance(output, list | tuple):
        return f"a {type(output).__name__} of {len(output)}"
    return f"a {type(output).__name__}"
