"""Makes the weights of a copy of a network random, part by part from the head down."""

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from gamlens.capture.guard import forward_error, model_guard, unwrap
from gamlens.capture.hooks import has_output_module
from gamlens.capture.layer_points import OUTPUT, LayerPoint
from gamlens.errors import GamlensError
from gamlens.evaluation.masked import as_model_takes
from gamlens.lens import Lens

HEAD_PART, STEM_PART = "head", "stem"
MODES = ("cascading", "independent")


@dataclass(frozen=True)
class NetworkPart:
    """Modules that are made random together: those with parameters or buffers that run between two blocks' outputs."""

    name: str
    modules: tuple[str, ...]


@dataclass(frozen=True)
class State:
    """A network with random parts.

    Attributes:
        mode: "cascading": the first `step` parts are random; "independent": only part number `step` is.
        step: The number of the step, from 1.
        part: The name of the part that this step made random.
        lens: A lens on the network.
    """

    mode: str
    step: int
    part: str
    lens: Lens


def twin(lens: Lens) -> Lens:
    """A lens on a copy of the model, so that the user's own weights are never changed."""
    try:
        made = lens.with_model(copy.deepcopy(lens.model))
    except Exception as error:
        raise GamlensError(
            f"Weights are made random in a copy of the model, but copy.deepcopy cannot copy {lens.name}: {error}"
        ) from error
    made.weights = f"{lens.weights}, randomised"
    return made


def parts(lens: Lens, image: Tensor, *, pairs: bool = False) -> tuple[NetworkPart, ...]:
    """Divide a network into parts, in the order in which they are made random.

    These are the head, then the blocks from the last to the first, then the stem (what runs before the first block).

    Args:
        lens: The network.
        image: An input (1,C,H,W) that is run once, to see in which order modules run.
        pairs: Whether similarities are explained; modules after the embedding are then left out.
    """
    points = [LayerPoint.parse(name) for name in lens.blocks]
    embedding = LayerPoint.parse(lens.embedding) if pairs else None
    ends, places = _order(lens, image, [*points, *([embedding] if embedding else [])])
    last = places[str(embedding)] if embedding else math.inf
    groups: dict[str, list[str]] = {name: [] for name in (HEAD_PART, *reversed(lens.blocks), STEM_PART)}
    for name, place in ends.items():
        if place <= last:
            groups[next((block for block in lens.blocks if places[block] >= place), HEAD_PART)].append(name)
    # Everything up to the output of the first block was assigned to it: separate the modules before it, the stem.
    first, inside = lens.blocks[0], f"{points[0].module}."
    if points[0].module and any(name.startswith(inside) for name in groups[first]):
        groups[STEM_PART] = [name for name in groups[first] if not name.startswith(inside)]
        groups[first] = [name for name in groups[first] if name.startswith(inside)]
    found = tuple(NetworkPart(name, tuple(modules)) for name, modules in groups.items() if modules)
    if not found:
        raise GamlensError(f"{lens.name} has no weights before the explained score: there is nothing to randomise.")
    return found


def states(lens: Lens, found: Iterable[NetworkPart], *, seed: int = 0, modes: Sequence[str] = MODES) -> Iterator[State]:
    """Yield the states of one copy of the network. All share that copy, so a state is valid only until the next one."""
    chosen, work = tuple(found), twin(lens)
    model = unwrap(work.model)
    saved = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for mode in modes:
        model.load_state_dict(saved)
        for step, part in enumerate(chosen, 1):
            if mode != MODES[0]:
                model.load_state_dict(saved)
            reset(model, part, seed=1000 * seed + step)
            yield State(mode, step, part.name, work)


def reset(model: nn.Module, part: NetworkPart, *, seed: int) -> None:
    """Make the modules of a part random, in place.

    A module is initialised by its own `reset_parameters`, which also resets the statistics of a batch norm. The
    parameters of a module without this method are shuffled.
    """
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for name in part.modules:
            module = model.get_submodule(name)
            own = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if callable(own):
                own()
                continue
            for tensor in module.parameters(recurse=False):
                order = torch.randperm(tensor.numel()).to(tensor.device)
                tensor.copy_(tensor.flatten()[order].view_as(tensor))


def _order(lens: Lens, image: Tensor, points: list[LayerPoint]) -> tuple[dict[str, int], dict[str, float]]:
    """The order of events in one forward: when each module with tensors of its own ended, and when each point ran.

    Returns:
        Two dicts, {module name: position} and {point: position}; positions count up from 0.
    """
    model, clock = unwrap(lens.model), count()
    ends: dict[str, int] = {}
    places: dict[str, float] = {}
    owners = {name: module for name, module in model.named_modules() if _own(module)}

    def stamp(into: dict[str, Any], name: str, *_: Any) -> None:
        into[name] = next(clock)

    with model_guard(model), ExitStack() as stack:
        for name, module in owners.items():
            stack.callback(module.register_forward_hook(partial(stamp, ends, name)).remove)
        for point in points:
            if point.module == OUTPUT and not has_output_module(model):
                places[str(point)] = math.inf
                continue
            at = model.get_submodule(point.module)
            register = at.register_forward_pre_hook if point.reads_input else at.register_forward_hook
            stack.callback(register(partial(stamp, places, str(point))).remove)
        try:
            model(as_model_takes(lens, image).clone())
        except Exception as error:
            raise forward_error(f"an image of shape {tuple(image.shape)}", error) from error
    previous = 0
    for name in owners:  # one that was not called, such as a projection in attention, gets the position before
        previous = ends.setdefault(name, previous)
    return ends, places


def _own(module: nn.Module) -> bool:
    tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(tensor.is_floating_point() for tensor in tensors)
