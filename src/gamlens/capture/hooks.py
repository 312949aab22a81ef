"""Finding wanted tensors inside one forward: hooks on modules, and functions followed where no module holds them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gamlens.capture.layer_points import OUTPUT, LayerPoint, function_name, only_tensor, tensors
from gamlens.errors import GamlensError

Take = Callable[[LayerPoint, Tensor], Tensor]


class TensorTap(TorchFunctionMode):
    """Finds the wanted tensors of one forward in this thread.

    `take(point, tensor)` is called with each of them and returns the tensor that the network goes on with.
    """

    def __init__(self, model: nn.Module, wanted: Sequence[LayerPoint], take: Take) -> None:
        super().__init__()
        self.model, self.take = model, take
        self.inputs: dict[str, list[LayerPoint]] = {}
        self.outputs: dict[str, list[LayerPoint]] = {}
        self.needs_functions = False
        for point in dict.fromkeys(wanted):
            self.needs_functions = self.needs_functions or bool(point.chain)
            if point.module != OUTPUT or has_output_module(model):
                (self.inputs if point.reads_input else self.outputs).setdefault(point.module, []).append(point)
        self.thread = threading.get_ident()
        self.pending: list[tuple[Tensor, LayerPoint, int]] = []
        self.mode_stack: ExitStack | None = None
        self.mode_entered = False

    @contextmanager
    def attached(self) -> Iterator[None]:
        """The hooks are on the model inside this context, and gone after it."""
        with ExitStack() as stack, ExitStack() as mode_stack:
            self.mode_stack = mode_stack
            for name, points in self.inputs.items():
                module = self.model.get_submodule(name)
                stack.callback(module.register_forward_pre_hook(self._before(points), with_kwargs=True).remove)
            for name, points in self.outputs.items():
                module = self.model.get_submodule(name)
                stack.callback(module.register_forward_hook(self._after(points)).remove)
            if self.needs_functions:
                stack.callback(self.model.register_forward_hook(self._leave).remove)
            yield

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Functions are followed inside the model only: this hook runs when the model is done."""
        if threading.get_ident() == self.thread and self.mode_stack is not None:
            self.mode_stack.close()

    def _before(self, points: list[LayerPoint]) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if threading.get_ident() != self.thread or not (args or kwargs):
                return None
            key = None if args else next(iter(kwargs))
            value = args[0] if key is None else kwargs[key]
            for point in points:
                _check_tensor(value, point)
                value = self.take(point, value)
            return ((value, *args[1:]), kwargs) if key is None else (args, {**kwargs, key: value})

        return hook

    def _after(self, points: list[LayerPoint]) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if threading.get_ident() != self.thread:
                return None
            wrapped = isinstance(output, tuple) and only_tensor(output) is not None
            start = value = output[0] if wrapped else output
            for point in points:
                _check_tensor(value, point)
                if not point.chain:
                    value = self.take(point, value)
            for point in points:
                if point.chain:
                    self._follow(value, point)
            return None if value is start else (value, *output[1:]) if wrapped else value

        return hook

    def _follow(self, tensor: Tensor, point: LayerPoint) -> None:
        """Follow functions from here on. It begins no earlier, since it costs some time for every function."""
        if not self.mode_entered and self.mode_stack is not None:
            self.mode_entered = True
            self.mode_stack.enter_context(self)
        self.pending.append((tensor, point, 0))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.pending:
            return result
        name, read = function_name(func), {id(tensor) for tensor in tensors((args, kwargs))}
        for entry in [entry for entry in self.pending if id(entry[0]) in read]:
            _, point, step = entry
            if name != point.chain[step]:
                continue
            self.pending = [other for other in self.pending if other is not entry]
            _check_tensor(result, point)
            if step + 1 < len(point.chain):
                self.pending.append((result, point, step + 1))
            else:
                result = self.take(point, result)
        return result


def has_output_module(model: nn.Module) -> bool:
    """Whether `output` names a module of this model rather than what the model returns."""
    return isinstance(getattr(model, OUTPUT, None), nn.Module)


def _check_tensor(value: Any, point: LayerPoint) -> None:
    if not isinstance(value, Tensor):
        raise GamlensError(
            f"{str(point)!r} gives a {type(value).__name__}, not a tensor: name a module inside it, or after it, "
            "that gives one."
        )
