"""Networks of tokens: which tokens the score depends on, one point per transformer block, and how they are pooled."""

import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from gamlens.capture.layer_points import LayerPoint, TokenGrid
from gamlens.models.discovery.recorder import Node, Recorder

Pick = tuple[Node, LayerPoint]
NORMS = ("layer_norm", "rms_norm", "batch_norm", "group_norm")
TRIES = (8, 40, 10**6)  # how many of the last gates are examined at the first, second and third try
ATTENDS = ("scaled_dot_product_attention", "multi_head_attention_forward", "matmul", "softmax", "einsum", "bmm")
POOLS = {
    **dict.fromkeys(("getitem", "select", "unbind", "split", "narrow"), "class token"),
    **dict.fromkeys(("mean", "sum", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d"), "mean"),
    **dict.fromkeys(("max", "amax", "adaptive_max_pool1d", "adaptive_max_pool2d"), "max"),
    **dict.fromkeys(ATTENDS, "attention"),
    "linear": "none, positions are flattened",
}


def reached(rerun: Callable[[int], Recorder], recorder: Recorder, spatial: list[Node], target: Node) -> list[Node]:
    """Drop the last gates from `spatial` if the score does not depend on their image tokens.

    After the last attention layer, for example, a score may depend on the class token only. The gradient with respect
    to the image tokens is then zero, and no map can be made there. The gradient is computed in a second forward, in
    which autograd records from one of the last gates on.

    Args:
        rerun: Records another forward, with a graph from the node of the given number on.
        recorder: The first forward.
        spatial: The gates with positions, in the order in which they ran.
        target: The node that is differentiated.

    Returns:
        `spatial` up to the last gate on whose image tokens the score depends; all of it if that cannot be found out.
    """
    for count in TRIES:
        late = spatial[-count:]
        start = next((node for node in late if node.sole_result), None)
        if start is None:
            continue
        late = late[late.index(start) :]
        with suppress(RuntimeError):
            again = rerun(start.order)
            if [node.shape for node in again.all] != [node.shape for node in recorder.all]:
                return spatial
            with torch.enable_grad():
                value = again.all[target.order].tensor
                generator = torch.Generator().manual_seed(0)
                weights = torch.randn(value.shape, generator=generator).to(value.device, value.dtype)
                wanted = [again.all[node.order].tensor for node in late]
                found = torch.autograd.grad((value * weights).sum(), wanted, allow_unused=True)
            alive = [node for node, grad in zip(late, found, strict=True) if grad is not None and _matters(node, grad)]
            if alive:
                return spatial[: spatial.index(alive[-1]) + 1]
        if count >= len(spatial):
            break
    return spatial


def _matters(node: Node, gradient: Tensor) -> bool:
    """Whether the gradient of any position in the image is not zero."""
    return bool((node.grid.image(gradient) if node.grid is not None else gradient).any())


def layers(group: list[Node]) -> tuple[tuple[str, TokenGrid], ...]:
    """The transformer layers of a network: the repeated modules that return tokens, with where these tokens lie.

    Only the last ones are taken whose tokens are as many as those of the last layer, and lie at the same places: what
    one of them adds to its tokens reaches the last one along the residual connection.

    Args:
        group: The gates of one resolution, in the order in which they ran.
    """
    own, best = _repeated(group)
    found: list[tuple[str, TokenGrid]] = []
    for node in (node for node in group if best and best in own[node]):
        name = next(name for name in node.names if _pattern(name) == best)
        if node.grid is not None and (not found or found[-1][1] == node.grid):
            found.append((name, node.grid))
        else:
            found = [(name, node.grid)] if node.grid is not None else []
    return tuple(found)


def _repeated(group: list[Node]) -> tuple[dict[Node, set[str]], str]:
    """The patterns of the modules that return each gate, and the pattern that occurs most often; "" without one."""
    own = {node: {_pattern(name) for name in node.names if _pattern(name) != name} for node in group}
    patterns = Counter(chain.from_iterable(own.values()))
    return own, max(patterns, key=lambda pattern: (patterns[pattern], -pattern.count(".")), default="")


def per_block(recorder: Recorder, group: list[Node], *, norms: bool) -> list[Pick]:
    """One point for each transformer block among gates of one resolution: its output, or the norm that reads it.

    A transformer block is a module that is repeated and whose output is a gate.

    Args:
        recorder: The recorded forward.
        group: The gates.
        norms: Whether to take the norm. docs/transformers.md measures which is better for which kind of pooling.
    """
    own, best = _repeated(group)
    if not best:
        return [(node, point) for node in group if (point := recorder.point(node)) is not None][-1:]
    found: list[Pick] = []
    for node in (node for node in group if best in own[node]):
        chosen = _norm_of(recorder, node) if norms else None
        point = recorder.point(chosen) if chosen is not None and chosen.grid is not None else None
        if chosen is None or point is None:
            chosen, point = node, _as_block(node, recorder.point(node), best)
        if point is not None:
            found.append((chosen, point))
    return found


def _pattern(name: str) -> str:
    """The name with `#` in place of its numbers: `blocks.#` for `blocks.11`."""
    return re.sub(r"\d+", "#", name)


def _as_block(node: Node, point: LayerPoint | None, pattern: str) -> LayerPoint | None:
    """Name a block's output after the block (`blocks.11`), not after the container that returns it, too (`blocks`)."""
    own = [name for name in node.names if _pattern(name) == pattern]
    return replace(point, module=own[0]) if point is not None and own and not point.chain else point


def _norm_of(recorder: Recorder, node: Node) -> Node | None:
    """The output of the norm module that reads a block's output; None without one."""
    readers = (other for other in recorder.all[node.order + 1 :] if node in other.inputs and other.shape == node.shape)
    return next((other for other in readers if other.names and other.func in NORMS), None)


def pooling(nodes: list[Node], last: Node) -> str:
    """How one vector is made of `last`, the last gate with positions, in words.

    The words name the functions that read it, or what follows from it, and give a tensor without positions.
    """
    placed, words = {last}, []
    for node in sorted(nodes, key=lambda node: node.order):
        if any(source in placed for source in node.inputs):
            if node.size is not None or (node.positions is not None and node.positions.several):
                placed.add(node)
            else:
                words.append(POOLS.get(node.func, f"by {node.func}"))
    return " and ".join(dict.fromkeys(words)) or "none"
