"""Put a user's model into eval mode for one forward or backward, lock it for one thread, and restore it afterwards."""

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
_finding = threading.Lock()  # protects _lock_of
_held = threading.local()  # .models: ids of the models that this thread holds
_submodules = operator.attrgetter("_modules")
_is_training = operator.attrgetter("training")
_compiled_call = operator.attrgetter("_compiled_call_impl")


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside the wrappers of nn.DataParallel, DistributedDataParallel and torch.compile."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


class ModelGuard:
    """Keeps a model unchanged by others during one forward or backward, and restores it afterwards.

    The modules of the model, their children and the locks that protect them are found once and cached. Every use
    compares the cached children with those that the modules have now, since the user may have replaced a layer. The
    comparison chains C-level calls (map, chain) instead of a Python loop, because a GPU idles meanwhile.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._found: tuple[list[nn.Module], list[Any], list[threading.RLock]] = ([], [], [])

    @contextmanager
    def exclusive(self) -> Iterator[list[nn.Module]]:
        """Lock all modules of the model for this thread, also against other models that share some of them.

        Yields:
            The modules of the model.
        """
        while True:  # once more if the modules have changed since they were found
            modules, children, locks = self._found
            with ExitStack() as stack:
                for lock in locks:
                    stack.enter_context(lock)
                if modules and list(chain.from_iterable(map(dict.values, map(_submodules, modules)))) == children:
                    yield modules
                    return
            self._find()

    def _find(self) -> None:
        """Find the modules of the model and the locks that protect them.

        A model has one lock for all its modules. A module that is also part of another model may have the lock of that
        model already: this model then takes that lock, too. Locks are sorted by id, so that all threads take them
        in the same order and cannot deadlock.
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
        """Hold the model for this thread: in eval mode, with gradients off, and with torch.compile'd parts run eagerly.

        Afterwards, also after an exception, every module has the training flag that it had before. Compiled parts run
        eagerly because compiled code may skip hooks that were added later. If this thread holds the model already, only
        the gradient mode is set. `ActivationStore.take` switches gradients on in the middle of a forward; leaving this
        context brings back the gradient mode of the caller.
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
        return {"model": self.model, "_found": ([], [], [])}  # locks cannot be pickled; they are found again


def model_guard(model: nn.Module) -> AbstractContextManager[None]:
    """Hold a model once, as `ModelGuard.hold` does."""
    return ModelGuard(model).hold()


def outside_inference_mode() -> AbstractContextManager[Any]:
    """Return a context that leaves torch.inference_mode, inside which no tensor can become part of a graph."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def forward_error(what: str, error: Exception) -> GamlensError:
    """Make the GamlensError for a model whose forward raised `error` on `what`, with advice for known causes."""
    message = f"The model failed on {what}: {type(error).__name__}: {error}"
    if isinstance(error, TypeError) and "positional argument" in str(error):
        message += ". A siamese module that takes two images is explained by its shared part: Lens(model.backbone)."
    if isinstance(error, torch.OutOfMemoryError):
        message += " Give fewer images at a time (batch_size=), or a smaller n (fewer blocks)."
    return GamlensError(message)
