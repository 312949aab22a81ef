"""Holding a user's model still for one look, and leaving it as it was."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import torch
from torch import nn

from gamlens.errors import GamlensError

_locks: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_guard = threading.Lock()


def unwrap(model: nn.Module) -> nn.Module:
    """The network inside nn.DataParallel, DistributedDataParallel and torch.compile's wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


@contextmanager
def _locked(modules: list[nn.Module]) -> Iterator[None]:
    """One thread at a time on these modules, also where another model shares some of them."""
    with _guard:
        held = {id(lock): lock for module in modules if (lock := _locks.get(module)) is not None}
        if not held:
            lock = threading.RLock()
            held = {id(lock): lock}
        own = next(iter(held.values()))
        for module in modules:
            _locks.setdefault(module, own)
    with ExitStack() as stack:
        for _, lock in sorted(held.items()):
            stack.enter_context(lock)
        yield


def _every(model: nn.Module) -> list[nn.Module]:
    """The model and all modules inside, each once: `modules()` without its generators, which cost on large networks."""
    found, waiting = {id(model): model}, [model]
    while waiting:
        for child in waiting.pop()._modules.values():
            if child is not None and id(child) not in found:
                found[id(child)] = child
                waiting.append(child)
    return list(found.values())


@contextmanager
def settled(model: nn.Module) -> Iterator[None]:
    """The model in eval mode, for one thread at a time, no graph, compiled parts run eagerly; then as it was."""
    modules = _every(model)
    compiled = any("_orig_mod" in module._modules or module._compiled_call_impl is not None for module in modules)
    with _locked(modules), torch.inference_mode(False), torch.no_grad():
        training = [module for module in modules if module.training]
        try:
            for module in training:
                module.training = False
            with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
                yield
        finally:
            for module in training:
                module.training = True


def failed(what: str, error: Exception) -> GamlensError:
    """The error for a model that raised in its forward, with what to do where that is known."""
    message = f"The model failed on {what}: {type(error).__name__}: {error}"
    if isinstance(error, TypeError) and "positional argument" in str(error):
        message += ". A siamese module that takes two images is explained by its shared part: Lens(model.backbone)."
    if isinstance(error, torch.OutOfMemoryError):
        message += " Give fewer images at a time (batch_size=), or a smaller n."
    return GamlensError(message)
