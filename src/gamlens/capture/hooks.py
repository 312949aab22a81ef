"""Finding wanted tensors inside one forward: hooks on modules, and functions followed where no module holds them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gamlens.capture.layers import OUTPUT, LayerPoint, function_name, only_tensor, tensors
from gamlens.errors import GamlensError


class TensorTap(TorchFunctionMode):
    """Finds the wanted tensors of one forward in this thread; `take` gets each and says what to go on with."""

    def __init__(
        self, model: nn.Module, wanted: Sequence[LayerPoint], take: Callable[[LayerPoint, Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.model, self.wanted, self.take = model, list(dict.fromkeys(wanted)), take
        self.thread = threading.get_ident()
        self.armed: list[tuple[Tensor, LayerPoint, int]] = []
        self.heard = False
        self.listening = ExitStack()

    @contextmanager
    def attached(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name in dict.fromkeys(point.module for point in self.wanted):
                if name == OUTPUT and not has_output_module(self.model):
                    continue
                module = self.model.get_submodule(name)
                mine = [point for point in self.wanted if point.module == name]
                if any(point.reads_input for point in mine):
                    stack.callback(module.register_forward_pre_hook(self._before(mine), with_kwargs=True).remove)
                if any(not point.reads_input for point in mine):
                    stack.callback(module.register_forward_hook(self._after(mine)).remove)
            if any(point.chain for point in self.wanted):
                stack.callback(self.model.register_forward_hook(self._leave).remove)
            self.listening = stack.enter_context(ExitStack())
            yield

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Functions are followed inside the model only."""
        if threading.get_ident() == self.thread:
            self.listening.close()

    def _before(self, points: list[LayerPoint]) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if threading.get_ident() != self.thread or not (args or kwargs):
                return None
            key = None if args else next(iter(kwargs))
            value = args[0] if key is None else kwargs[key]
            for point in points:
                if point.reads_input:
                    value = self.take(point, _tensor(value, point))
            return ((value, *args[1:]), kwargs) if key is None else (args, {**kwargs, key: value})

        return hook

    def _after(self, points: list[LayerPoint]) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if threading.get_ident() != self.thread:
                return None
            wrapped = isinstance(output, tuple) and only_tensor(output) is not None
            start = value = output[0] if wrapped else output
            for point in points:
                if not point.reads_input and not point.chain:
                    value = self.take(point, _tensor(value, point))
            for point in points:
                if point.chain:
                    self.listen()
                    self.armed.append((_tensor(value, point), point, 0))
            return None if value is start else (value, *output[1:]) if wrapped else value

        return hook

    def listen(self) -> None:
        """Follow functions from here on: not before, since it costs some time each."""
        if not self.heard:
            self.heard = True
            self.listening.enter_context(self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.armed:
            return result
        name, read = function_name(func), {id(tensor) for tensor in tensors(args)}
        for entry in [entry for entry in self.armed if id(entry[0]) in read]:
            _, point, step = entry
            if name != point.chain[step]:
                continue
            self.armed.remove(entry)
            if step + 1 < len(point.chain):
                self.armed.append((_tensor(result, point), point, step + 1))
            else:
                result = self.take(point, _tensor(result, point))
        return result


def has_output_module(model: nn.Module) -> bool:
    """Whether `output` names a module of this model rather than what it returns."""
    return isinstance(getattr(model, OUTPUT, None), nn.Module)


def _tensor(value: Any, point: LayerPoint) -> Tensor:
    if isinstance(value, Tensor):
        return value
    raise GamlensError(
        f"{str(point)!r} gives a {type(value).__name__}, not a tensor: name a module inside it, or after it, "
        "that gives one."
    )
