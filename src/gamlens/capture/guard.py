"""Holding a user's model still for one look, and leaving it as it was."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from gamlens.errors import GamlensError


@dataclass(frozen=True, eq=False)
class _Known:
    """The modules a model had when its locks were found, by identity, and these locks."""

    modules: list[int]
    locks: list[threading.RLock]


_locks: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_known: weakref.WeakKeyDictionary[nn.Module, _Known] = weakref.WeakKeyDictionary()
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


@dataclass(frozen=True, eq=False)
class _Found:
    """A model's modules, each once; which of them are in training mode; whether any is compiled."""

    modules: list[nn.Module]
    training: list[nn.Module]
    compiled: bool


def _walk(model: nn.Module) -> _Found:
    """One walk, without `modules()`'s generators: a device has nothing to do until it ends."""
    seen, waiting = {id(model): model}, [model]
    training: list[nn.Module] = []
    compiled = False
    while waiting:
        module = waiting.pop()
        if module.training:
            training.append(module)
        compiled = compiled or module._compiled_call_impl is not None or "_orig_mod" in module._modules
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen[id(child)] = child
                waiting.append(child)
    return _Found(list(seen.values()), training, compiled)


@contextmanager
def alone(model: nn.Module) -> Iterator[_Found]:
    """One thread at a time on these modules, also where another model shares some of them."""
    while True:
        known = _known.get(model) or _locks_of(model, _walk(model).modules)
        with ExitStack() as stack:
            for lock in known.locks:
                stack.enter_context(lock)
            found = _walk(model)
            if [id(module) for module in found.modules] == known.modules:
                yield found
                return
        _locks_of(model, found.modules)


def _locks_of(model: nn.Module, modules: list[nn.Module]) -> _Known:
    """The locks of these modules, in one order for everyone; one shared with another model brings that model's."""
    with _guard:
        held = {id(lock): lock for module in modules if (lock := _locks.get(module)) is not None}
        if not held:
            lock = threading.RLock()
            held = {id(lock): lock}
        own = next(iter(held.values()))
        for module in modules:
            _locks.setdefault(module, own)
        found = _Known([id(module) for module in modules], [lock for _, lock in sorted(held.items())])
        _known[model] = found
        return found


@contextmanager
def model_guard(model: nn.Module) -> Iterator[None]:
    """The model in eval mode, for one thread at a time, no graph, compiled parts run eagerly; then as it was."""
    with alone(model) as found, torch.inference_mode(False), torch.no_grad():
        try:
            for module in found.training:
                module.training = False
            with torch.compiler.set_stance("force_eager") if found.compiled else nullcontext():
                yield
        finally:
            for module in found.training:
                module.training = True


def failed(what: str, error: Exception) -> GamlensError:
    """The error for a model that raised in its forward, with what to do where that is known."""
    message = f"The model failed on {what}: {type(error).__name__}: {error}"
    if isinstance(error, TypeError) and "positional argument" in str(error):
        message += ". A siamese module that takes two images is explained by its shared part: Lens(model.backbone)."
    if isinstance(error, torch.OutOfMemoryError):
        message += " Give fewer images at a time (batch_size=), or a smaller n."
    return GamlensError(message)
