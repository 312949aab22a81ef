"""A network made fast: the same weights in another frame, whose parts between the blocks are compiled.

Hooks sit on the frame, which runs as it is, so reading a block breaks no graph. The trunk is compiled without a graph
for the backward, what follows the first wanted block with one, and no weight asks for a gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import nn

from gamlens.errors import GamlensError
from gamlens.points import Point

BACKEND = "inductor"
_numbers = count()


class Region(nn.Module):
    """A part of the network behind one compiled call."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        object.__setattr__(self, "call", torch.compile(_own_code(inner), backend=BACKEND))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return self.call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


def _own_code(inner: nn.Module) -> Callable[..., Any]:
    """What is compiled. Graphs are cached by code: layers of one kind share theirs, but every Sequential has the same
    code whatever is in it, so each gets a function of its own.
    """
    if type(inner).forward is not nn.Sequential.forward:
        return inner

    def call(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    code = call.__code__.replace(co_name=f"region_{next(_numbers)}")
    return FunctionType(code, call.__globals__, code.co_name, call.__defaults__, call.__closure__)


def compiled(model: nn.Module, points: Iterable[Point]) -> nn.Module:
    """A twin of `model` in eval mode that shares its weights; the modules that points name can be hooked in it."""
    shared: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    shared |= {id(buffer): buffer for buffer in model.buffers()}
    try:
        twin = copy.deepcopy(model, shared).eval()
    except Exception as error:
        raise GamlensError(f"compile=True needs a model that can be copied: {type(error).__name__}: {error}") from error
    named = {point.module for point in points}
    return _framed(twin, "", named)


def shares(twin: nn.Module, model: nn.Module) -> bool:
    """Whether the twin still has the model's weights: moving a model gives it new ones."""
    pairs = zip(twin.parameters(), model.parameters(), strict=False)
    return all(a.data_ptr() == b.data_ptr() and a.device == b.device for a, b in pairs)


def _framed(module: nn.Module, path: str, named: set[str]) -> nn.Module:
    """Compile every largest part that has no named module inside."""
    inside = any(name.startswith(f"{path}." if path else "") and name != path for name in named)
    runs = type(module).forward is not nn.Module.forward
    if not inside and runs and path:
        return Region(module) if any(True for _ in module.parameters()) else module
    for name, child in module.named_children():
        framed = _framed(child, f"{path}.{name}" if path else name, named)
        if framed is not child:
            setattr(module, name, framed)
    return module
