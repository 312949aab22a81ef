"""Custom torch operators: `mark` labels a tensor in a traced graph; `conv_relu` and `conv_add_relu` fuse kernels."""

from typing import Any

import torch
from torch import Tensor

_CONV_ARGUMENTS = "int[] stride, int[] padding, int[] dilation, int groups"
_library: Any = torch.library.Library("gamlens", "DEF")  # type: ignore[no-untyped-call]
_library.define("mark(Tensor x, int number) -> Tensor")
_library.define(f"conv_relu(Tensor x, Tensor weight, Tensor? bias, {_CONV_ARGUMENTS}) -> Tensor")
_library.define(f"conv_add_relu(Tensor x, Tensor other, Tensor weight, Tensor? bias, {_CONV_ARGUMENTS}) -> Tensor")


def _mark(x: Tensor, number: int) -> Tensor:
    """Mark x as wanted tensor `number`. The network continues with a copy, so that it cannot overwrite x in place."""
    return x.clone()


def _conv_relu(x: Tensor, weight: Tensor, bias: Tensor | None, *shape: Any) -> Tensor:
    """Compute relu(conv(x)) by plain operators: the CPU version, and the shape rule for tracing."""
    made: Tensor = torch.conv2d(x.to(weight.dtype), weight, bias, *shape)
    return made.relu()


def _conv_add_relu(x: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None, *shape: Any) -> Tensor:
    """Compute relu(conv(x) + other) by plain operators."""
    made: Tensor = torch.conv2d(x.to(weight.dtype), weight, bias, *shape)
    return made.add(other).relu().to(weight.dtype)


def _fused_relu(x: Tensor, weight: Tensor, bias: Tensor | None, *shape: Any) -> Tensor:
    made: Tensor = torch.cudnn_convolution_relu(x.to(weight.dtype), weight, bias, *shape)
    return made


def _fused_add_relu(x: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None, *shape: Any) -> Tensor:
    fused = torch.cudnn_convolution_add_relu
    made: Tensor = fused(x.to(weight.dtype), weight, other.to(weight.dtype), 1.0, bias, *shape)
    return made


_library.impl("mark", _mark, "CompositeExplicitAutograd")
for _name, _plain, _cuda in (
    ("conv_relu", _conv_relu, _fused_relu),
    ("conv_add_relu", _conv_add_relu, _fused_add_relu),
):
    _library.impl(_name, _plain, "CPU")
    _library.impl(_name, _cuda, "CUDA")
    torch.library.register_fake(f"gamlens::{_name}", _plain, lib=_library)
torch.library.register_fake("gamlens::mark", lambda x, number: torch.empty_like(x), lib=_library)

MARK = torch.ops.gamlens.mark.default
CONV_RELU = torch.ops.gamlens.conv_relu.default
CONV_ADD_RELU = torch.ops.gamlens.conv_add_relu.default
