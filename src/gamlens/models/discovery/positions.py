"""Where in the image each element of a tensor lies, followed through one recorded forward.

In this module, a map is a tensor (B,C,h,w) or (B,h,w,C). A tensor of tokens is accompanied by a tensor of the same
shape that holds position numbers: row * width + column on the map that the tokens were cut from, or -1 for elements
without a place, such as those of a class token. Functions that only move elements (reshape, permute, cat, roll, slices)
are applied to the position numbers as well. So windows, transposed tokens, class tokens before or after the others and
reordered tokens are all followed, for any input size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gamlens.capture.layer_points import TokenGrid, tensors

Find = Callable[[Tensor], "Positions | None"]
NOWHERE = -1
MOVES = {
    *("view", "reshape", "permute", "transpose", "flatten", "unflatten", "getitem", "contiguous", "roll", "squeeze"),
    *("unsqueeze", "expand", "expand_as", "movedim", "swapaxes", "swapdims", "chunk", "split", "unbind", "clone"),
    *("stack", "cat", "concat", "flip", "repeat", "narrow", "select", "index_select", "view_as", "t", "tensor_split"),
    *("split_with_sizes", "reshape_as", "adjoint", "take_along_dim", "gather"),
}
REDUCES = {"max", "amax", "mean", "sum"}
# The results of these functions lie where their first argument, the queries, lies; the other arguments do not matter.
BY_QUERY = {"scaled_dot_product_attention", "multi_head_attention_forward", "native_multi_head_attention"}


@dataclass(frozen=True, eq=False)
class Positions:
    """The position numbers of a tensor's elements.

    Attributes:
        ids: The position number of each element; of the tensor's shape.
        base: Height and width of the map that the numbers count on.
    """

    ids: Tensor
    base: tuple[int, int]

    @property
    def several(self) -> bool:
        """Whether there are at least two different positions."""
        ids = self.ids[self.ids != NOWHERE]
        return ids.numel() > 0 and int(ids.min()) != int(ids.max())

    @cached_property
    def channels_last(self) -> bool | None:
        """For a map, whether channels are its last dimension (True) or its second (False); None where it is no map."""
        if self.ids.ndim != 4 or self.ids.shape[0] != 1:
            return None
        for channels_last in (False, True):
            ids = self.ids if channels_last else self.ids.permute(0, 2, 3, 1)
            cells = _cells(ids[0], self.base, (int(ids.shape[1]), int(ids.shape[2])))
            if cells is not None and torch.equal(cells.flatten(), torch.arange(cells.numel())):
                return channels_last
        return None

    @cached_property
    def grid(self) -> TokenGrid | None:
        """The grid that tokens (1,...,C) lie on; None unless they cover each cell of a grid exactly once."""
        if self.ids.ndim < 3 or self.ids.shape[0] != 1:
            return None
        ids = _thin(self.ids)[0].flatten(0, -2)
        placed = (ids != NOWHERE).any(dim=1)
        count = int(placed.sum())
        height, width = self.base
        step = round((height * width / count) ** 0.5) if count > 1 else 0
        if step < 1:
            return None
        size = (-(-height // step), -(-width // step))
        cells = _cells(ids[placed][:, None], self.base, size)
        if cells is None or not torch.equal(cells.flatten().sort().values, torch.arange(size[0] * size[1])):
            return None
        order = placed.nonzero()[:, 0][cells.flatten().argsort()]
        return TokenGrid(*size, tuple(order.tolist()), len(ids))


def raster(shape: Sequence[int], *, channels_last: bool) -> Positions:
    """The positions of a map of that shape: (B,C,h,w), or (B,h,w,C) with `channels_last`."""
    height, width = shape[1:3] if channels_last else shape[2:4]
    numbers = torch.arange(height * width, dtype=torch.int32)
    view = (1, height, width, 1) if channels_last else (1, 1, height, width)
    return Positions(numbers.view(view).expand(*shape), (height, width))


def follow(
    func: Any, name: str, args: Any, kwargs: dict[str, Any], results: list[Tensor], find: Find
) -> list[Positions | None]:
    """The positions of each tensor that a function returned; None for those whose places are not known.

    Args:
        func, args, kwargs: The call.
        name: The plain name of the function.
        results: The tensors that it returned.
        find: Gives the positions of a tensor that the function read.
    """
    nothing: list[Positions | None] = [None] * len(results)
    try:
        if name in MOVES:
            return _moved(func, args, kwargs, results, find) or nothing
        if name == "unfold":
            return [_unfolded(find(args[0]), tuple(results[0].shape)), *nothing[1:]]
        if name in REDUCES:
            return [_reduced(args, kwargs, results[0], find), *nothing[1:]]
    except (RuntimeError, TypeError, IndexError, ValueError):
        return nothing
    sources = list(tensors(args))
    if name in BY_QUERY:
        sources = sources[:1]
    known = [where for source in sources if (where := find(source)) is not None]
    if name == "matmul" and sources and (first := find(sources[0])) is not None:
        rows = _rowwise(tuple(results[0].shape), first)
        return [rows or _pointwise(tuple(results[0].shape), known)]
    return [_pointwise(tuple(result.shape), known) for result in results]


def _cells(ids: Tensor, base: tuple[int, int], size: tuple[int, int]) -> Tensor | None:
    """For each entry, the cell of a grid of `size` that all its channels (last dimension) lie in.

    None where the channels of an entry lie in different cells, or where the grid does not fit the map `base`.
    """
    if min(size) < 1 or size[0] * size[1] < 2:
        return None
    step = (-(-base[0] // size[0]), -(-base[1] // size[1]))
    if size != (-(-base[0] // step[0]), -(-base[1] // step[1])):
        return None
    ids = _thin(ids)
    cells = (ids // base[1]) // step[0] * size[1] + (ids % base[1]) // step[1]
    cells = torch.where(ids == NOWHERE, NOWHERE, cells)
    top = cells.amax(dim=-1)
    single = ((cells == top[..., None]) | (cells == NOWHERE)).all() and (top >= 0).all()
    return top.long() if bool(single) else None


def _thin(ids: Tensor) -> Tensor:
    """A single channel in place of all of them, where they are one expanded channel and therefore equal."""
    return ids[..., :1] if ids.stride(-1) == 0 else ids


def _moved(
    func: Any, args: Any, kwargs: dict[str, Any], results: list[Tensor], find: Find
) -> list[Positions | None] | None:
    """The positions after a function that moves elements: the function is applied to the position numbers."""
    base: list[tuple[int, int]] = []
    empty: list[tuple[int, int]] = []

    def swap(value: Any) -> Any:
        if isinstance(value, Tensor):
            if (where := find(value)) is not None:
                (base if bool((where.ids >= 0).any()) else empty).append(where.base)
                return where.ids
            return torch.full(value.shape, NOWHERE, dtype=torch.int32) if value.is_floating_point() else value.cpu()
        if isinstance(value, list | tuple):
            return type(value)(map(swap, value))
        return value

    swapped, options = swap(tuple(args)), {key: swap(value) for key, value in kwargs.items()}
    found = base or empty
    if len(set(found)) != 1:
        return None
    moved = list(tensors(func(*swapped, **options)))
    fits = len(moved) == len(results) and all(a.shape == b.shape for a, b in zip(moved, results, strict=True))
    return [Positions(ids, found[0]) for ids in moved] if fits else None


def _unfolded(where: Positions | None, shape: tuple[int, ...]) -> Positions | None:
    """The positions after F.unfold, (1,C,h,w) -> (1,C*k*k,L): the L patches are numbered row by row."""
    if where is None or len(shape) != 3 or where.ids.ndim != 4:
        return None
    height, width = where.base
    step = round((height * width / shape[2]) ** 0.5)
    base = (height // step, width // step) if step else (0, 0)
    if base[0] * base[1] != shape[2]:
        return None
    return Positions(torch.arange(shape[2], dtype=torch.int32).view(1, 1, -1).expand(*shape), base)


def _reduced(args: Any, kwargs: dict[str, Any], result: Tensor, find: Find) -> Positions | None:
    """The positions after a reduction along a dimension, such as pooling of neighbours: one of those merged is kept."""
    where = find(args[0])
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if where is None or dim is None or isinstance(dim, Tensor):
        return None
    keep = bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False))
    ids = where.ids.amax(dim=dim, keepdim=keep)
    return Positions(ids, where.base) if ids.shape == result.shape else None


def _pointwise(shape: tuple[int, ...], known: list[Positions]) -> Positions | None:
    """The positions after a function that mixes no places, such as a linear layer. It may change the last dimension."""
    for where in known:
        if tuple(where.ids.shape) == shape:
            return where
    return next((found for where in known if (found := _rowwise(shape, where)) is not None), None)


def _rowwise(shape: tuple[int, ...], where: Positions) -> Positions | None:
    """`where` for another number of channels; None where channels of one entry lie at different places."""
    ids = where.ids
    if tuple(ids.shape[:-1]) != shape[:-1] or len(shape) < 2 or not bool((_thin(ids) == ids[..., :1]).all()):
        return None
    return Positions(ids[..., :1].expand(*shape), where.base)
