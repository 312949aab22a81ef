"""Weights derived from a model's own: with batch norms folded in, and in half precision.

In eval mode a batch norm after a convolution is linear, so both are one convolution. With the norm's scale s, shift t,
running mean m and variance v, and the convolution's weight W and bias b,

    s * (W x + b - m) / sqrt(v + eps) + t  =  (f W) x + (t - (m - b) f)        where f = s / sqrt(v + eps)

per output channel: the folded weight is f W, the folded bias t - (m - b) f.

The derived weights are computed again in every call of a program, in case the model's weights have changed. On a GPU
the kernels for this are recorded once as a CUDA graph, so that all of it is one launch.
"""

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Norm:
    """The tensors of a batch norm in eval mode, (out,) each. Without affine parameters, scale and shift are None."""

    scale: Tensor | None
    shift: Tensor | None
    mean: Tensor
    variance: Tensor
    eps: float


@dataclass(frozen=True, eq=False)
class Derived:
    """The derived weight and bias of one layer, and what they are derived from.

    Attributes:
        weight, bias: The model's own tensors, (out, ...) and (out,).
        made_weight, made_bias: The derived tensors, of the same shapes. There is a bias if the layer has one or a norm
            is folded in.
        norm: The batch norm that is folded in.
    """

    weight: Tensor
    bias: Tensor | None
    made_weight: Tensor
    made_bias: Tensor | None
    norm: Norm | None = None

    def rooms(self) -> tuple[Tensor, Tensor | None]:
        """Return the derived weight and bias as the tensors to write to.

        Writing to `.data` does not raise a tensor's version counter. autograd would otherwise refuse the backward of an
        earlier call ("modified by an inplace operation"), although every call writes the same values unless the
        model's weights have changed, and `Program` checks that itself.
        """
        return self.made_weight.data, self.made_bias.data if self.made_bias is not None else None


@dataclass(eq=False)
class Workshop:
    """All derived weights of one program. `recorded` is the CUDA graph that computes them, once it exists."""

    items: list[Derived] = field(default_factory=list)
    recorded: torch.cuda.CUDAGraph | None = None

    def derive(self, weight: Tensor, bias: Tensor | None, norm: Norm | None, dtype: torch.dtype | None) -> Derived:
        """Register a layer and allocate its derived weight and bias; `refresh` fills them.

        Args:
            weight, bias: The model's own tensors.
            norm: The batch norm to fold in, if any.
            dtype: The type of the derived tensors; None keeps that of `weight`. Convolution weights in half precision
                on a GPU are allocated in channels_last, for which cuDNN has the fastest kernels.
        """
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
        """Compute all derived weights from the model's weights as they are now."""
        if self.recorded is not None:
            self.recorded.replay()
        elif self.items:
            device = self.items[0].weight.device
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                self._make()
                # A CUDA graph is recorded by the main thread only; in other threads the kernels are launched each time.
                if device.type == "cuda" and threading.current_thread() is threading.main_thread():
                    self._record(device)

    def _make(self) -> None:
        """Compute all derived weights. Tensors with one number per channel are computed for all layers together."""
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
        """Record `_make` as a CUDA graph and run it once."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._make()
        graph.replay()
        self.recorded = graph


def _factors(norms: list[Norm]) -> list[Tensor]:
    """Compute f = scale / sqrt(variance + eps) of every norm, (out,) each, with a few launches for all of them."""
    each: Any = torch._foreach_add([norm.variance for norm in norms], [norm.eps for norm in norms])
    torch._foreach_rsqrt_(each)
    scaled = [(factor, norm.scale) for factor, norm in zip(each, norms, strict=True) if norm.scale is not None]
    if scaled:
        torch._foreach_mul_([factor for factor, _ in scaled], [scale for _, scale in scaled])
    return list(each)


def _make_biases(biases: list[tuple[Tensor, Tensor, Tensor, Tensor | None]]) -> None:
    """Write shift - mean * factor to `made`, for every (made, mean, factor, shift or None), each (out,)."""
    values: Any = torch._foreach_mul([mean for _, mean, _, _ in biases], [factor for _, _, factor, _ in biases])
    torch._foreach_neg_(values)
    shifted = [(value, bias[3]) for value, bias in zip(values, biases, strict=True) if bias[3] is not None]
    if shifted:
        torch._foreach_add_([value for value, _ in shifted], [shift for _, shift in shifted])
    torch._foreach_copy_([made for made, _, _, _ in biases], values)
