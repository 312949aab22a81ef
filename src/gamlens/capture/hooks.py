"""Find named tensors during one forward.

Outputs and inputs of modules are read by hooks. The result of a function that no module computes (F.relu after a
module, say) is found by a TorchFunctionMode, which sees every torch function that is called.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gamlens.capture.layer_points import OUTPUT, LayerPoint, function_name, only_tensor, tensors
from gamlens.errors import GamlensError

Take = Callable[[LayerPoint, Tensor, bool], Tensor]


class TensorTap(TorchFunctionMode):
    """Hands the wanted tensors of one forward to a callback.

    Hooks also run when another thread uses the model or a part of it; they ignore every thread but the one that
    created this object.

    Args:
        model: The network.
        wanted: The names of the tensors.
        take: Called as take(point, tensor, in_place) for each of them, and the network is given the tensor that it
            returns. `in_place` says that `tensor` is an argument that the layer or function wrote to: the network may
            then ignore what is returned, as in `F.relu_(y)`, and continue with `tensor` itself.
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
        # Tensors whose next function is awaited: (tensor, wanted point, index of that function in point.chain).
        self.pending: list[tuple[Tensor, LayerPoint, int]] = []
        self.mode_stack: ExitStack | None = None
        self.mode_entered = False

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Put the hooks on the model for the duration of this context."""
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
        """Leave the function mode. As a forward hook on the whole model, this runs when the model's forward ends.

        Functions that are called later, on the output, are not part of the model.
        """
        if threading.get_ident() == self.thread and self.mode_stack is not None:
            self.mode_stack.close()

    def _before(self, points: list[LayerPoint]) -> Callable[..., Any]:
        """Make a pre-hook that takes the first argument of a module, positional or by keyword."""

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if threading.get_ident() != self.thread or not (args or kwargs):
                return None
            key = None if args else next(iter(kwargs))
            value = args[0] if key is None else kwargs[key]
            for point in points:
                _check_tensor(value, point)
                value = self.take(point, value, False)
            return ((value, *args[1:]), kwargs) if key is None else (args, {**kwargs, key: value})

        return hook

    def _after(self, points: list[LayerPoint]) -> Callable[..., Any]:
        """Make a hook that takes the output of a module, or awaits the functions that are applied to it."""

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if threading.get_ident() != self.thread:
                return None
            wrapped = isinstance(output, tuple) and only_tensor(output) is not None
            start = value = output[0] if wrapped else output
            in_place = bool(args) and value is args[0] and getattr(module, "inplace", False) is True
            for point in points:
                _check_tensor(value, point)
                if not point.chain:
                    value = self.take(point, value, in_place)
            for point in points:
                if point.chain:
                    self._follow(value, point)
            return None if value is start else (value, *output[1:]) if wrapped else value

        return hook

    def _follow(self, tensor: Tensor, point: LayerPoint) -> None:
        """Await the first function of the point's chain on `tensor`.

        The function mode is entered only now, because it slows down every torch function that is called.
        """
        if not self.mode_entered and self.mode_stack is not None:
            self.mode_entered = True
            self.mode_stack.enter_context(self)
        self.pending.append((tensor, point, 0))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a torch function, and take its result if it completes the chain of a wanted point."""
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
                result = self.take(point, result, id(result) in read)
        return result


def has_output_module(model: nn.Module) -> bool:
    """Tell whether the name `output` means a module of this model rather than what the model returns."""
    return isinstance(getattr(model, OUTPUT, None), nn.Module)


def _check_tensor(value: Any, point: LayerPoint) -> None:
    if not isinstance(value, Tensor):
        raise GamlensError(
            f"{str(point)!r} gives a {type(value).__name__}, not a tensor: name a module inside or after it that gives "
            "a tensor."
        )
