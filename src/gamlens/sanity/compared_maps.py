"""The maps that the sanity checks compare, and their similarity by every measure of SIMILARITIES.

An edge detector, which uses no model, is added to the methods as a control; and if maps are refined, a random map that
is carried to the same blocks, without the part that is kept as it is: it shows how much of a map's shape comes from
self-similarity alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens import methods, metrics, targets
from gamlens.engine import pieces
from gamlens.errors import GamlensError
from gamlens.fuse import at_least_float32, min_max
from gamlens.inputs.images import Picture
from gamlens.lens import Lens
from gamlens.metrics import SIMILARITIES
from gamlens.refine import Refine, Refinement
from gamlens.trace import Trace

EDGES, CHANCE = "edges", "random_carried"
CONTROL_TITLES = {EDGES: "Edge detector (control)", CHANCE: "Random map, carried (control)"}
MOST_PAIRS = 2000
MethodMaps = dict[str, Tensor]  # {method: maps (R,H,W)}
MakeMaps = Callable[[Lens], MethodMaps]  # computes the maps of fixed images with any lens
Features = dict[tuple[str, str], Tensor]  # {(method, measure): what the measure compares, one row per map}


def title(method: str) -> str:
    return CONTROL_TITLES.get(method) or methods.find(method).title


def edges(batch: Tensor) -> Tensor:
    """The magnitude of the Sobel gradient of the grey image: (B,C,H,W) -> (B,H,W) in [0,1]."""
    sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]], dtype=batch.dtype)
    grey = F.pad(batch.mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    along, down = (F.conv2d(grey, kernel[None, None]) for kernel in (sobel, sobel.T))
    return min_max((along**2 + down**2).sqrt()[:, 0])[0]


def of_classes(
    lens: Lens, pictures: Sequence[Picture], names: Sequence[str], *,
    target: Any = None, n: int = 2, batch: int = 8, lattice: str = "read", refine: Refine = False,
) -> MakeMaps:  # fmt: skip
    """Return a function that computes the maps of these images with any lens, for one fixed class per image.

    Args:
        lens: The original model, which chooses the classes if `target` is None.
        pictures: The images.
        names: The methods.
        target: The class, or one class per image; None for the top class of the original model.
        n: The number of last blocks.
        batch: Images per forward.
        lattice: How blocks are read of which the network uses only some positions, as in `Trace.explain`.
        refine: How the maps of blocks are refined, as in `Trace.explain`. Maps of pixels stay as they are.
    """
    _check(names)
    wanted = targets.per_image(target, len(pictures))
    groups = pieces(pictures, batch)
    chosen: list[int] = []
    for part, aims in zip(groups, pieces(wanted, batch), strict=True):
        chosen += lens.trace(part, aims, n=1, method=methods.BLOCK_DEFAULT).release().targets.tolist()
    if len(chosen) != len(pictures):
        raise GamlensError(
            f"The check takes one class per image; found {len(chosen)} classes for {len(pictures)} images."
        )
    control = edges(at_least_float32(lens.prepare(pictures).batches[0]))

    def maps(look: Lens, part: Sequence[Picture], aims: Sequence[int]) -> MethodMaps:
        read = [name for name in names if methods.find(name).kind != "input"]
        trace = look.trace(part, aims, n=n, method=read, refine=refine, keep_graph=False) if read else None
        found: MethodMaps = {}
        if trace is not None:
            found = {name: trace.explain(name, n, lattice=lattice, refine=refine).maps for name in read}
        made = {name: found[name] if name in found else look.classify(part, aims, method=name).maps for name in names}
        return made | _carried_chance(trace, part, refine)

    return lambda look: _joined(maps, look, groups, pieces(chosen, batch)) | {EDGES: control}


def of_pairs(
    lens: Lens, x: Sequence[Picture], y: Sequence[Picture], names: Sequence[str], *,
    score: str = "cosine", n: int = 2, batch: int = 8, lattice: str = "read", refine: Refine = False,
) -> MakeMaps:  # fmt: skip
    """Like `of_classes`, for the similarity of the pairs x[i], y[i]. Rows of maps alternate: x0, y0, x1, y1, ..."""
    _check(names, pairs=True)
    control = _alternating(*(edges(at_least_float32(lens.prepare(side).batches[0])) for side in (x, y)))

    def maps(look: Lens, left: Sequence[Picture], right: Sequence[Picture]) -> MethodMaps:
        read = [name for name in names if methods.find(name).kind != "input"]
        trace = look.trace_pair(left, right, n=n, method=read or methods.BLOCK_DEFAULT, refine=refine)
        sides = trace.sides(score, keep=False)
        trace.release()
        found = {}
        for name in names:
            if methods.find(name).kind == "input":
                result = look.compare(left, right, method=name, score=score)
            else:
                result = trace.explain(name, n, score=score, lattice=lattice, refine=refine)
            found[name] = _alternating(result.x.maps, result.y.maps)
        chance = [_carried_chance(side, part, refine) for side, part in zip(sides, (left, right), strict=True)]
        return found | {name: _alternating(chance[0][name], chance[1][name]) for name in chance[0]}

    return lambda look: _joined(maps, look, pieces(x, batch), pieces(y, batch)) | {EDGES: control}


def _carried_chance(trace: Trace | None, pictures: Sequence[Picture], refine: Refine) -> MethodMaps:
    """The control CHANCE where maps are refined: one random map per image, always the same, carried by its trace."""
    how = Refinement.parse(refine)
    if trace is None or how is None:
        return {}
    height, width = trace.provenance.size
    maps = metrics.chance([str(picture.path or picture.name) for picture in pictures], height, width)
    return {CHANCE: trace.refine(maps.to(trace.scores.device), replace(how, keep=0.0))}


def _joined(make: Callable[..., MethodMaps], look: Lens, *groups: Sequence[Any]) -> MethodMaps:
    """Call `make` for each batch, which is one element of each of `groups`, and concatenate the maps per method."""
    parts = [make(look, *batch) for batch in zip(*groups, strict=True)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _alternating(x: Tensor, y: Tensor) -> Tensor:
    """Interleave the rows: (P,H,W), (P,H,W) -> (2P,H,W), ordered x0, y0, x1, y1, ..."""
    return torch.stack([x, y], dim=1).flatten(0, 1)


def _check(names: Sequence[str], *, pairs: bool = False) -> None:
    if not names:
        raise GamlensError("There is no method to check: give at least one method, such as gam.")
    for name in names:
        if methods.find(name).kind == "pair" and not pairs:
            raise GamlensError(f"Method {name!r} explains pairs only: give --pairs and images two by two.")


def describe(maps: Mapping[str, Tensor]) -> Features:
    """Compute what each measure compares, for the maps of every method."""
    return {
        (method, measure): entry.describe(values)
        for method, values in maps.items()
        for measure, entry in SIMILARITIES.items()
    }


def compare(a: Features, b: Features) -> Features:
    """The similarity of a and b row by row: {(method, measure): (R,)}. Where a flat map makes it undefined, it is 0."""
    return {key: SIMILARITIES[key[1]].compare(a[key], b[key]).nan_to_num(0.0) for key in a}


def others(features: Features, groups: Sequence[int], *, seed: int = 0) -> Features:
    """The similarities between maps of different images: {(method, measure): (P,)}.

    Args:
        features: The features of all maps, one row per map.
        groups: The group of each row. Rows of one group, such as the two sides of a pair, are not compared.
        seed: The seed for choosing MOST_PAIRS of the pairs, if there are more.
    """
    pairs = torch.tensor([pair for pair in combinations(range(len(groups)), 2) if groups[pair[0]] != groups[pair[1]]])
    if len(pairs) > MOST_PAIRS:
        pairs = pairs[torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))[:MOST_PAIRS]]
    parts = []
    for part in torch.split(pairs, 64):
        left, right = ({key: values[side] for key, values in features.items()} for side in part.T)
        parts.append(compare(left, right))
    return {key: torch.cat([part[key] for part in parts]) for key in features}
