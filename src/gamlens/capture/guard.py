"""Holding a user's model still for one forward or backward, and leaving it as it was."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from gamlens.errors import GamlensError


class _Known(NamedTuple):
    """What a model was made of when its locks were found: its modules, the numbers of their children, the locks.

    Modules are referred to weakly, so that a model is freed when its user lets it go.
    """

    modules: list[weakref.ref[nn.Module]]
    children: list[int]
    locks: list[threading.RLock]


_lock_of: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_known: weakref.WeakKeyDictionary[nn.Module, _Known] = weakref.WeakKeyDictionary()
_finding = threading.Lock()
_held = threading.local()


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
def exclusive(model: nn.Module) -> Iterator[list[nn.Module]]:
    """One thread at a time on the modules of a model, also where another model shares some of them.

    Gives the modules. They are compared with those that the locks were found for, and the locks are found anew if
    the model has changed since.
    """
    while True:
        known = _known.get(model) or _find_locks(model)
        with ExitStack() as stack:
            for lock in known.locks:
                stack.enter_context(lock)
            modules: list[Any] = list(map(operator.call, known.modules))  # None where one is gone
            if None not in modules and list(map(id, _children(modules))) == known.children:
                yield modules
                return
        _find_locks(model)


_submodules = operator.attrgetter("_modules")
_is_training = operator.attrgetter("training")
_compiled_call = operator.attrgetter("_compiled_call_impl")


def _find_locks(model: nn.Module) -> _Known:
    """The locks of a model's modules, in an order that is the same for everyone.

    A module that is also part of another model has that model's lock already: this model then takes that one, too.
    """
    modules = list(model.modules())
    with _finding:
        locks = {id(lock): lock for module in modules if (lock := _lock_of.get(module)) is not None}
        if not locks:
            lock = threading.RLock()
            locks = {id(lock): lock}
        own = next(iter(locks.values()))
        for module in modules:
            _lock_of.setdefault(module, own)
        ordered = [lock for _, lock in sorted(locks.items())]
        children = list(map(id, _children(modules)))
        _known[model] = found = _Known(list(map(weakref.ref, modules)), children, ordered)
        return found


def _children(modules: list[nn.Module]) -> Iterator[nn.Module | None]:
    """All children of these modules, in order. No loop of ours: a GPU has nothing to do until it ends."""
    return chain.from_iterable(map(dict.values, map(_submodules, modules)))


@contextmanager
def model_guard(model: nn.Module) -> Iterator[None]:
    """Hold a model in eval mode, for one thread at a time, without a graph and with compiled parts run eagerly.

    Afterwards it is as it was, also after an exception. Inside another guard of the same model in the same thread,
    which holds it already, only the gradient mode is set.
    """
    held: set[int] = _held.__dict__.setdefault("models", set())
    if id(model) in held:
        with torch.inference_mode(False), torch.no_grad():
            yield
        return
    with exclusive(model) as modules, torch.inference_mode(False), torch.no_grad():
        training = list(filter(_is_training, modules))
        compiled = any(map(_compiled_call, modules)) or "_orig_mod" in chain.from_iterable(map(_submodules, modules))
        held.add(id(model))
        try:
            for module in training:
                module.training = False
            with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
                yield
        finally:
            held.discard(id(model))
            for module in training:
                module.training = True


def failed(what: str, error: Exception) -> GamlensError:
    """The error for a model that raised an exception in its forward, with what to do where that is known."""
    message = f"The model failed on {what}: {type(error).__name__}: {error}"
    if isinstance(error, TypeError) and "positional argument" in str(error):
        message += ". A siamese module that takes two images is explained by its shared part: Lens(model.backbone)."
    if isinstance(error, torch.OutOfMemoryError):
        message += " Give fewer images at a time (batch_size=), or a smaller n."
    return GamlensError(message)
