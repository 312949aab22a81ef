"""Weights made from a model's own: batch norms folded in, half precision. Made anew in every call.

On a GPU making them is one launch: the kernels are recorded once and played again.
"""

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Norm:
    """A batch norm in eval mode: scale and shift may be missing."""

    scale: Tensor | None
    shift: Tensor | None
    mean: Tensor
    variance: Tensor
    eps: float


@dataclass(frozen=True, eq=False)
class Derived:
    """A layer's weight and bias as they are used, (out, ...) and (out,), and what they are made from."""

    weight: Tensor
    bias: Tensor | None
    made_weight: Tensor
    made_bias: Tensor | None
    norm: Norm | None = None

    def rooms(self) -> tuple[Tensor, Tensor | None]:
        """Where they are written: `.data`, which autograd does not count as a change, for every call writes the same
        values, and the graph of an earlier one stays good.
        """
        return self.made_weight.data, self.made_bias.data if self.made_bias is not None else None


@dataclass(eq=False)
class Workshop:
    """All derived weights of one program."""

    items: list[Derived] = field(default_factory=list)
    recorded: torch.cuda.CUDAGraph | None = None

    def derive(self, weight: Tensor, bias: Tensor | None, norm: Norm | None, dtype: torch.dtype | None) -> Derived:
        """Room for a weight in `dtype`, its own where that is None; half precision on a GPU has channels last."""
        dtype = dtype or weight.dtype
        layout = torch.preserve_format
        if weight.is_cuda and weight.ndim == 4 and dtype.itemsize == 2:
            layout = torch.channels_last
        made = torch.empty_like(weight, dtype=dtype, memory_format=layout)
        with_bias = bias is not None or norm is not None
        found = Derived(weight, bias, made, weight.new_empty(len(weight), dtype=dtype) if with_bias else None, norm)
        self.items.append(found)
        return found

    def refresh(self) -> None:
        """Make them all, as the model's weights are now."""
        if self.recorded is not None:
            self.recorded.replay()
        elif self.items:
            device = self.items[0].weight.device
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                self._make()
                if device.type == "cuda" and threading.current_thread() is threading.main_thread():
                    self._record(device)

    def _make(self) -> None:
        """Weights one by one; what is small, one number a channel, for all layers together."""
        normed = [(item, item.norm) for item in self.items if item.norm is not None]
        factors = iter(_factors([norm for _, norm in normed]) if normed else [])
        biases: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = []
        for item in self.items:
            room, room_for_bias = item.rooms()
            if item.norm is None:
                room.copy_(item.weight)
                if room_for_bias is not None and item.bias is not None:
                    room_for_bias.copy_(item.bias)
                continue
            factor = next(factors)
            torch.mul(item.weight, factor.view(-1, *[1] * (item.weight.ndim - 1)), out=room)
            assert room_for_bias is not None
            mean = item.norm.mean if item.bias is None else item.norm.mean - item.bias
            biases.append((room_for_bias, mean, factor, item.norm.shift))
        if biases:
            _make_biases(biases)

    def _record(self, device: torch.device) -> None:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._make()
        graph.replay()
        self.recorded = graph


def _factors(norms: list[Norm]) -> list[Tensor]:
    """scale / sqrt(variance + eps) of every norm, (out,) each."""
    each: Any = torch._foreach_add([norm.variance for norm in norms], [norm.eps for norm in norms])
    torch._foreach_rsqrt_(each)
    scaled = [(factor, norm.scale) for factor, norm in zip(each, norms, strict=True) if norm.scale is not None]
    if scaled:
        torch._foreach_mul_([factor for factor, _ in scaled], [scale for _, scale in scaled])
    return list(each)


def _make_biases(biases: list[tuple[Tensor, Tensor, Tensor, Tensor | None]]) -> None:
    """shift - mean * factor, into the first of each: (made, mean, factor, shift or None)."""
    values: Any = torch._foreach_mul([mean for _, mean, _, _ in biases], [factor for _, _, factor, _ in biases])
    torch._foreach_neg_(values)
    shifted = [(value, bias[3]) for value, bias in zip(values, biases, strict=True) if bias[3] is not None]
    if shifted:
        torch._foreach_add_([value for value, _ in shifted], [shift for _, shift in shifted])
    torch._foreach_copy_([made for made, _, _, _ in biases], values)
