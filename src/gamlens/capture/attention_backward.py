"""Gradients of a score with respect to the attention of a transformer's layers.

For the tokens z_l that layer l returns, its attention A_l, and the score s, which is computed from the tokens z_L that
the last layer returns:

    attention_gradient  ds/dA_l                       through everything that follows layer l
    output_gradient     ds/do_l                       the same for o_l, what the heads of layer l give
    direct_gradient     (dz_l/dA_l)^T ds/dz_L         along the residual connection from layer l to the score, without
                                                      what later layers do with its tokens
    own_gradient        (dz_l/dA_l)^T ds_l/dz_l       of s_l, the score of layer l's own tokens
    pooled              share of each token in ds/dz_L != 0: the tokens that the score is read from

The direct gradient needs one short backward from the score to z_L, and one through each layer by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gamlens.capture.attention import AttentionLayer, AttentionRecord
from gamlens.capture.backward import PEAK, backward_hint
from gamlens.capture.forward import ForwardRecord
from gamlens.capture.layer_points import TokenGrid
from gamlens.capture.nonblocking import indices_on
from gamlens.errors import GamlensError
from gamlens.fuse import at_least_float32

LayerTensors = dict[str, dict[str, Tensor]]  # {layer: {what: tensor of one row per score}}
VALUES = ("attention", "query", "key", "value")  # what the forward has computed, one row per image
NOT_LINEAR = ("pooled",)  # what is kept with the gradients, but does not grow with the score


@dataclass(frozen=True, eq=False)
class AttentionTrace:
    """What a trace holds of a transformer's attention, outside of any graph.

    Attributes:
        values: What the forward computed, one row per image: {layer: {what: (B,...)}}, as `Method.reads` names it.
        gradients: The gradients of the explained scores, one row per score: {layer: {what: (R,...)}}.
        grid: Which token lies where in the image.
    """

    values: LayerTensors
    gradients: LayerTensors
    grid: TokenGrid

    @classmethod
    def of_record(cls, record: AttentionRecord, gradients: LayerTensors) -> AttentionTrace:
        """The values of a record, with the gradients of scores."""
        return cls(values_of(record), gradients, record.grid)

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers, in the order in which they ran."""
        return tuple(self.values)

    def has(self, reads: Sequence[str]) -> bool:
        """Whether the tensors that a method reads were kept."""
        last = self.layers[-1]
        return {*reads} <= {*self.values[last], *self.gradients[last], "image"}

    def read(self, layer: str, reads: Sequence[str], images: Sequence[int]) -> tuple[Tensor, ...]:
        """The tensors that a method reads at a layer, R rows each; `images` says which image each row is of."""
        found = []
        for what in reads:
            if what == "image":
                found.append(self.grid.image_tokens(self.device))
            elif what in self.values[layer]:
                tensor = self.values[layer][what]
                plain = tuple(images) == tuple(range(len(tensor)))
                found.append(tensor if plain else tensor[indices_on(images, tensor.device)])
            else:
                found.append(self.gradients[layer][what])
        return tuple(found)

    @property
    def device(self) -> torch.device:
        last = self.layers[-1]
        return next(iter((self.values[last] | self.gradients[last]).values())).device

    def sliced(self, rows: slice) -> AttentionTrace:
        """The same of some rows, such as those of one image of each pair."""
        return replace(self, values=_slice(self.values, rows), gradients=_slice(self.gradients, rows))

    def negated(self) -> AttentionTrace:
        """The same for the negated scores."""
        return replace(self, gradients=_combined(torch.neg, self.gradients))

    def minus(self, other: AttentionTrace) -> AttentionTrace:
        """The same for the scores minus those of `other`, which belong to the same images."""
        return replace(self, gradients=_combined(torch.sub, self.gradients, other.gradients))


def _combined(operation: Callable[..., Tensor], first: LayerTensors, *others: LayerTensors) -> LayerTensors:
    """Apply an operation to every gradient; what is NOT_LINEAR stays as it is in `first`."""
    return {
        layer: {
            what: tensor if what in NOT_LINEAR else operation(tensor, *(other[layer][what] for other in others))
            for what, tensor in own.items()
        }
        for layer, own in first.items()
    }


def values_of(record: AttentionRecord) -> LayerTensors:
    """What the methods read of the forward itself, outside of the graph: one row per image."""
    found: LayerTensors = {}
    for name, layer in record.layers.items():
        found[name] = {}
        for what in VALUES:
            if what in record.needs:
                found[name][what] = _required(name, layer, what).detach()
    return found


def gradients_of(
    score: Tensor, records: Sequence[ForwardRecord], own_score: Callable[[int], Tensor | None] | None = None
) -> list[LayerTensors]:
    """The gradients that the methods read, for every record: one row per image of it.

    The graph is kept for a later backward.

    Args:
        score: One score per image, (B,), or per pair, in the graph.
        records: The forwards that the score depends on: one, or two for the images of a pair.
        own_score: For "own_gradient": gives the scores of every layer's own tokens of a record, (L*B,), layer by layer.

    Returns:
        For each record, {layer: {what: (B,...)}}. "pooled", (B,N), is the same for every layer.
    """
    kept = [record.attention for record in records if record.attention is not None]
    if len(kept) != len(records):
        return [{} for _ in records]
    if not score.requires_grad:
        raise GamlensError(
            "The score does not depend on the attention of this network in a way that has a gradient: look for "
            "torch.no_grad() or .detach() inside the model's forward or in the score function."
        )
    try:
        with records[0].guard.hold(), torch.enable_grad():
            return _of_records(score, kept, own_score)
    except RuntimeError as error:
        raise GamlensError(f"The backward failed: {error}. {backward_hint(error)}") from error


def _of_records(
    score: Tensor, kept: Sequence[AttentionRecord], own_score: Callable[[int], Tensor | None] | None
) -> list[LayerTensors]:
    """The gradients for every record. That of the score with respect to the last tokens comes first: others need it."""
    last = [list(record.layers.values())[-1].kept_tokens() for record in kept]
    ends = torch.autograd.grad(score.sum(), last, retain_graph=True, allow_unused=True)
    found = []
    for number, (record, end) in enumerate(zip(kept, ends, strict=True)):
        if end is None:
            raise GamlensError(
                "The score does not depend on what the last transformer layer returns: name another embedding "
                "(embedding=), or use a method that reads blocks."
            )
        own = own_score(number) if own_score is not None and "own_gradient" in record.needs else None
        found.append(_of_record(score, record, end, own))
    return found


def _of_record(score: Tensor, record: AttentionRecord, end: Tensor, own: Tensor | None) -> LayerTensors:
    """The gradients of one record; `end` is ds/dz_L (B,N,C), and `own` the scores of every layer's own tokens."""
    found: LayerTensors = {name: {} for name in record.layers}
    layers = list(record.layers.values())
    for what, part in (("attention_gradient", "attention"), ("output_gradient", "output")):
        if what in record.needs:
            wanted = [_required(name, layer, part) for name, layer in record.layers.items()]
            for name, gradient in zip(found, _whole(score, wanted), strict=True):
                found[name][what] = gradient
    if "direct_gradient" in record.needs:
        for name, layer in record.layers.items():
            found[name]["direct_gradient"] = _through(layer, end)
    if own is not None and record.own is not None:
        (starts,) = torch.autograd.grad(own.sum(), [record.own], retain_graph=True)
        for (name, layer), start in zip(record.layers.items(), starts.chunk(len(layers)), strict=True):
            found[name]["own_gradient"] = _through(layer, start)
    if "pooled" in record.needs:
        read = at_least_float32((end != 0).any(dim=2).to(end.dtype))
        pooled = read / read.sum(dim=1, keepdim=True).clamp(min=1)
        for tensors in found.values():
            tensors["pooled"] = pooled
    return found


def _whole(score: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    """d sum(score) / d tensor, for each of them; scaled where one is float16, so that small values are not lost."""
    factor = 2.0**10 if any(tensor.dtype == torch.float16 for tensor in wanted) else 1.0
    found = torch.autograd.grad((score * factor).sum(), wanted, retain_graph=True)
    return [gradient.detach() if factor == 1 else gradient.detach().float() / factor for gradient in found]


def _through(layer: AttentionLayer, start: Tensor) -> Tensor:
    """The backward through one layer: from a gradient with respect to its tokens to that of its attention.

    No other layer is run through, although autograd could: only the attention of this layer is asked for. In half
    precision each row is scaled by a power of two first, and the result divided by it.
    """
    tokens = layer.kept_tokens()
    scale = None
    if torch.float16 in (tokens.dtype, layer.attention.dtype):
        peak = start.float().abs().amax(dim=(1, 2))
        scale = torch.exp2(torch.floor(torch.log2(PEAK / peak.clamp(min=2.0**-60)))).clamp(max=2.0**40)
        start = start.float() * scale[:, None, None]
    (gradient,) = torch.autograd.grad(tokens, layer.attention, start.to(tokens.dtype), retain_graph=True)
    gradient = gradient.detach()
    return gradient if scale is None else gradient.float() / scale[:, None, None, None]


def _required(name: str, layer: AttentionLayer, what: str) -> Tensor:
    found: Tensor | None = getattr(layer, what)
    if found is None:
        raise GamlensError(
            f"{name!r} computes its attention in a way that does not show the {what} of its heads: use a method that "
            "reads the attention alone, such as attention_gam or chefer."
        )
    return found


def stacked_rows(turns: Sequence[LayerTensors], place: tuple[Tensor, Tensor]) -> LayerTensors:
    """Gather the rows of several backwards: row r is that of backward place[0][r] and image place[1][r]."""
    first = turns[0]
    return {
        name: {what: torch.stack([turn[name][what] for turn in turns])[place] for what in tensors}
        for name, tensors in first.items()
    }


def _slice(layers: LayerTensors, rows: slice) -> LayerTensors:
    return {name: {what: tensor[rows] for what, tensor in own.items()} for name, own in layers.items()}
