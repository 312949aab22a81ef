"""The maps that the sanity checks compare: of classes or pairs, by any method, beside a control without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens import methods, targets
from gamlens.engine import pieces
from gamlens.errors import GamlensError
from gamlens.fuse import at_least_float32, min_max
from gamlens.inputs.batch import Views, prepare
from gamlens.inputs.images import Picture
from gamlens.lens import Lens
from gamlens.sanity.parameters import Make

EDGES = "edges"
TITLES = {EDGES: "Edge detector (control)"}


def title(method: str) -> str:
    return TITLES.get(method) or methods.find(method).title


def edges(batch: Tensor) -> Tensor:
    """Sobel's gradient of the grey image, no model at all: (B,C,H,W) -> (B,H,W) in [0,1]."""
    sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]], dtype=batch.dtype)
    grey = F.pad(batch.mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    along, down = (F.conv2d(grey, kernel[None, None]) for kernel in (sobel, sobel.T))
    return min_max((along**2 + down**2).sqrt()[:, 0])[0]


def batch_of(lens: Lens, pictures: Sequence[Picture]) -> Tensor:
    """The pictures as the model takes them, (B,C,H,W)."""
    return prepare(list(pictures), lens.transform, Views()).batches[0]


def of_classes(
    lens: Lens, pictures: Sequence[Picture], names: Sequence[str], *, target: Any = None, n: int = 2, batch: int = 8
) -> Make:
    """Maps of one class an image, by default the one that the model as it is puts first."""
    _check(names)
    wanted = targets.per_image(target, len(pictures))
    chosen: list[int] = []
    for start, part in zip(range(0, len(pictures), batch), pieces(pictures, batch), strict=True):
        chosen += lens.trace(part, wanted[start : start + batch], n=1).release().targets.tolist()
    if len(chosen) != len(pictures):
        raise GamlensError(f"One class an image is compared, found {len(chosen)} for {len(pictures)} images.")
    control = edges(at_least_float32(batch_of(lens, pictures)))

    def make(look: Lens) -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {name: [] for name in names}
        for start, part in zip(range(0, len(pictures), batch), pieces(pictures, batch), strict=True):
            aims = chosen[start : start + batch]
            trace = look._trace(part, aims, n=n, score="logit", views=(), keep=False) if _blocks(names) else None
            for name in names:
                own = methods.find(name).kind == "input" or trace is None
                result = look.classify(part, aims, method=name) if own else trace.explain(name, n)  # type: ignore[union-attr]
                found[name].append(result.maps)
        return {name: torch.cat(maps) for name, maps in found.items()} | {EDGES: control}

    return make


def of_pairs(
    lens: Lens, x: Sequence[Picture], y: Sequence[Picture], names: Sequence[str], *,
    score: str = "cosine", n: int = 2, batch: int = 8,
) -> Make:  # fmt: skip
    """Both maps of each pair: rows x0, y0, x1, y1 ..."""
    _check(names, pairs=True)
    control = torch.stack([edges(at_least_float32(batch_of(lens, side))) for side in (x, y)], dim=1).flatten(0, 1)

    def make(look: Lens) -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {name: [] for name in names}
        for left, right in zip(pieces(x, batch), pieces(y, batch), strict=True):
            trace = look.trace_pair(left, right, n=n)
            trace.sides(score, keep=False)
            trace.release()
            for name in names:
                own = methods.find(name).kind == "input"
                result = (
                    look.compare(left, right, method=name, score=score) if own else trace.explain(name, n, score=score)
                )
                found[name].append(torch.stack([result.x.maps, result.y.maps], dim=1).flatten(0, 1))
        return {name: torch.cat(maps) for name, maps in found.items()} | {EDGES: control}

    return make


def _check(names: Sequence[str], *, pairs: bool = False) -> None:
    if not names:
        raise GamlensError("Give at least one method.")
    for name in names:
        if methods.find(name).kind == "pair" and not pairs:
            raise GamlensError(f"Method {name!r} explains pairs only: give --pairs and images two by two.")


def _blocks(names: Sequence[str]) -> bool:
    return any(methods.find(name).kind == "block" for name in names)
