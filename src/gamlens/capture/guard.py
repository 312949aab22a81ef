"""Holding a user's model still for one forward or backward, and leaving it as it was."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import nn

from gamlens.errors import GamlensError

_lock_of: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_finding = threading.Lock()
_held = threading.local()
_submodules = operator.attrgetter("_modules")
_is_training = operator.attrgetter("training")
_compiled_call = operator.attrgetter("_compiled_call_impl")


def unwrap(model: nn.Module) -> nn.Module:
    """The network inside nn.DataParallel, DistributedDataParallel and torch.compile's wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


class ModelGuard:
    """Holds a model still for one forward or backward, and leaves it as it was.

    The modules of the model, their children and the locks that protect them are found once. Every use compares them
    with what the model has by then, in C-level calls instead of a Python loop, because a GPU idles meanwhile.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._found: tuple[list[nn.Module], list[Any], list[threading.RLock]] = ([], [], [])

    @contextmanager
    def exclusive(self) -> Iterator[list[nn.Module]]:
        """One thread at a time on the model's modules, also where another model shares some; gives the modules."""
        while True:
            modules, children, locks = self._found
            with ExitStack() as stack:
                for lock in locks:
                    stack.enter_context(lock)
                if modules and list(chain.from_iterable(map(dict.values, map(_submodules, modules)))) == children:
                    yield modules
                    return
            self._find()

    def _find(self) -> None:
        """Find the modules and their locks, in an order that is the same for everyone.

        A module that is also part of another model has that model's lock already: this model then takes that one, too.
        """
        modules = list(self.model.modules())
        with _finding:
            locks = {id(lock): lock for module in modules if (lock := _lock_of.get(module)) is not None}
            if not locks:
                lock = threading.RLock()
                locks = {id(lock): lock}
            own = next(iter(locks.values()))
            for module in modules:
                _lock_of.setdefault(module, own)
        children = list(chain.from_iterable(map(dict.values, map(_submodules, modules))))
        self._found = (modules, children, [lock for _, lock in sorted(locks.items())])

    @contextmanager
    def hold(self) -> Iterator[None]:
        """The model in eval mode, for one thread at a time, without a graph and with compiled parts run eagerly.

        Afterwards it is as it was, also after an exception. Inside another guard of the same model in the same
        thread, which holds it already, only the gradient mode is set. `ActivationStore.take` turns gradients on in the
        middle of a forward; leaving this context turns them off again.
        """
        held: set[int] = _held.__dict__.setdefault("models", set())
        key = id(self.model)
        if key in held:
            with torch.no_grad():
                yield
            return
        with self.exclusive() as modules, outside_inference_mode(), torch.no_grad():
            training = list(filter(_is_training, modules))
            compiled = any(map(_compiled_call, modules))
            compiled = compiled or "_orig_mod" in chain.from_iterable(map(_submodules, modules))
            held.add(key)
            try:
                for module in training:
                    module.training = False
                with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
                    yield
            finally:
                held.discard(key)
                for module in training:
                    module.training = True

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "_found": ([], [], [])}


def model_guard(model: nn.Module) -> AbstractContextManager[None]:
    """Hold a model still for one use, as `ModelGuard.hold` does."""
    return ModelGuard(model).hold()


def outside_inference_mode() -> AbstractContextManager[Any]:
    """Tensors made inside this context may be part of a graph, whatever surrounds it."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def forward_error(what: str, error: Exception) -> GamlensError:
    """The error for a model that raised an exception in its forward, with what to do where that is known."""
    message = f"The model failed on {what}: {type(error).__name__}: {error}"
    if isinstance(error, TypeError) and "positional argument" in str(error):
        message += ". A siamese module that takes two images is explained by its shared part: Lens(model.backbone)."
    if isinstance(error, torch.OutOfMemoryError):
        message += " Give fewer images at a time (batch_size=), or a smaller n."
    return GamlensError(message)
