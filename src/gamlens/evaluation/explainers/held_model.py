"""Run another package's code on a model, and leave the model as it was, whatever that code did."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gamlens.capture.guard import model_guard
from gamlens.fuse import without_autocast

RANDOM_SEED = 0


@contextmanager
def left_as_it_was(model: nn.Module, *, frozen: bool = False) -> Iterator[None]:
    """Hold a model for a call of code that is not ours: in eval mode, with gradients on, locked for this thread.

    Afterwards, also after an exception, these are the same objects and values as before: the attributes of every
    module (training flags, `inplace` and the like), its submodules, parameters, buffers and hooks; the values of
    buffers, such as the running means of a batch norm that was in training mode; the `requires_grad` flag, the `.data`
    and the `.grad` of every parameter and buffer; the gradient mode; and the states of the random generators of torch,
    numpy and Python. Only values that are written into a parameter itself stay changed: copies of all parameters would
    take too long. Inside, the generators begin at a fixed seed, so that a run can be repeated, and every `.grad` is
    None, so that a backward does not add to a gradient of the user's.

    Args:
        model: The network.
        frozen: Whether parameters need no gradient meanwhile. A backward to the input then costs half as much.
    """
    with model_guard(model), torch.enable_grad(), ExitStack() as stack:
        modules = list(model.modules())
        tensors = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_leaf]
        stack.callback(_restore_modules, [(module, dict(vars(module)), _dicts(module)) for module in modules])
        stack.callback(_restore_values, _values(list(model.buffers())))
        kept = [(tensor, tensor.requires_grad, tensor.data, tensor.grad) for tensor in tensors]
        stack.callback(_restore_tensors, kept)
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        devices = sorted({tensor.device.index or 0 for tensor in tensors if tensor.is_cuda})
        stack.enter_context(torch.random.fork_rng(devices=devices))
        if tensors:
            stack.enter_context(without_autocast(tensors[0]))
        torch.manual_seed(RANDOM_SEED)
        np.random.seed(RANDOM_SEED)
        random.seed(RANDOM_SEED)
        for tensor in tensors:
            tensor.grad = None
            if frozen:
                tensor.requires_grad_(False)
        yield


def _dicts(module: nn.Module) -> dict[str, dict[Any, Any]]:
    """Copies of the dicts of a module that hold its parts and hooks: {attribute: copy}."""
    parts = ("_modules", "_parameters", "_buffers")
    found = vars(module).items()
    return {key: dict(value) for key, value in found if isinstance(value, dict) and (key in parts or "_hooks" in key)}


def _restore_modules(saved: list[tuple[nn.Module, dict[str, Any], dict[str, dict[Any, Any]]]]) -> None:
    for module, attributes, dicts in saved:
        own = vars(module)
        for key in [key for key in own if key not in attributes]:
            del own[key]
        own.update(attributes)
        for key, content in dicts.items():  # in place: the handles of the user's hooks refer to these very dicts
            own[key].clear()
            own[key].update(content)


def _restore_tensors(saved: list[tuple[Tensor, bool, Tensor, Tensor | None]]) -> None:
    for tensor, requires_grad, data, grad in saved:
        if type(data) is Tensor and (tensor.data_ptr() != data.data_ptr() or tensor.dtype != data.dtype):
            tensor.data = data
        if tensor.requires_grad != requires_grad:
            tensor.requires_grad_(requires_grad)
        tensor.grad = grad


def _values(buffers: list[Tensor]) -> list[tuple[list[Tensor], Tensor]]:
    """Copies of the values of buffers: those of one dtype and device together, one after the other, which is quick."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in (one.detach() for one in buffers if one.layout == torch.strided and not one.is_quantized):
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return [(own, torch.cat([tensor.flatten() for tensor in own])) for own in groups.values()]


def _restore_values(saved: list[tuple[list[Tensor], Tensor]]) -> None:
    for own, before in saved:
        if not torch.equal(torch.cat([tensor.flatten() for tensor in own]), before):
            for tensor, values in zip(own, torch.split(before, [tensor.numel() for tensor in own]), strict=True):
                tensor.data.copy_(values.view_as(tensor))
