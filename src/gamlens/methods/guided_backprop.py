"""Guided backpropagation. Springenberg et al., ICLR workshop 2015."""

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from gamlens.capture.layer_points import function_name
from gamlens.errors import warn

RECTIFIERS = frozenset({"relu", "relu6", "hardtanh"})


class Guided(TorchFunctionMode):
    """Inside this context the gradient that reaches a ReLU loses its negative part: x = relu(z), dz = [z > 0] relu(dx).

    It finds ReLUs that are modules or functions, in place or not, and does not change the model. ReLU6 is one of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if function_name(func) in RECTIFIERS and isinstance(result, Tensor) and result.requires_grad:
            self.found += 1
            result.register_hook(_positive)  # type: ignore[no-untyped-call]
        return result

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if kind is None and self.found == 0:
            warn("guided_backprop found no ReLU in this network: its map is that of input_gradient.")


def guided_backprop(pixels: Tensor, gradient: Tensor) -> Tensor:
    """max_c |g_c|, where g is the gradient of the score with respect to the pixels, computed while each ReLU (or ReLU6)
    passes back positive gradients only: (B,C,H,W), (B,C,H,W) -> (B,H,W).

    `Guided` is the context under which such a gradient is computed.
    """
    return gradient.abs().amax(dim=1)


def _positive(gradient: Tensor) -> Tensor:
    return gradient.clamp(min=0)
