"""Activations and gradients, one row a map: where every method is applied, resized, normalised and fused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gamlens import fuse, maps, methods
from gamlens.capture import checks
from gamlens.capture.checks import Check, indices_on
from gamlens.capture.layers import PIXELS
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.maps import at_least_float32
from gamlens.methods import Method

HIDDEN_SHARE = 0.5
USUAL = 2


class Sums(NamedTuple):
    """Channel sums of a block, (R,h,w) each: relu(h), relu(g) and relu(-g)."""

    activation: Tensor
    positive: Tensor
    negative: Tensor


class Evidence(NamedTuple):
    """Eq. 4 at a block, (R,h,w) each: Grad-CAM's positive and negative part, and the pixels it hides, |N| >= P.

    Where h >= 0, as after a ReLU, Grad-CAM is zero on exactly the hidden pixels.
    """

    positive: Tensor
    negative: Tensor
    hidden: Tensor

    @property
    def hidden_share(self) -> Tensor:
        """How much of the positive evidence lies on hidden pixels: (R,) in [0,1]."""
        positive = self.positive.clamp(min=0)
        return (positive * self.hidden).sum(dim=(1, 2)) / positive.sum(dim=(1, 2)).clamp(min=1e-30)


@dataclass(frozen=True, eq=False)
class Provenance:
    """Where the images came from and by what they were looked at: what an Explanation carries along."""

    pictures: Sequence[Picture]
    frames: tuple[Frame, ...]
    labels: tuple[str, ...]
    aliases: Mapping[str, str]
    about: Mapping[str, Any]


class View(NamedTuple):
    """The same rows seen at another scale or mirrored."""

    rows: Rows
    mirrored: bool


@dataclass(frozen=True, eq=False)
class Rows:
    """Activations of B images and gradients of R scores on them: everything the methods need.

    activations {block: (B,C,h,w)}, gradients {block: (R,C,h,w)}, in network order; index says which image a row
    is of; size is the model's input (H,W); views are other looks at the same images, whose maps are averaged in;
    `compiled` says whether map arithmetic is.
    """

    activations: dict[str, Tensor]
    gradients: dict[str, Tensor]
    scores: Tensor
    targets: Tensor
    index: tuple[int, ...]
    size: tuple[int, int]
    origin: Provenance
    views: tuple[View, ...] = ()
    checks: tuple[Check, ...] = ()
    compiled: bool = False

    def __repr__(self) -> str:
        return f"<Rows: {len(self.index)} of {', '.join(self.gradients)}>"

    def block(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """A block's activation and gradient, one of each a row, in float32 or wider; the last block by default."""
        activation, gradient = self._taken(name)
        return at_least_float32(activation), at_least_float32(gradient)

    def _taken(self, name: str | None) -> tuple[Tensor, Tensor]:
        """The same in the precision they were made in."""
        name = name if name is not None else list(self.gradients)[-1]
        if name not in self.gradients:
            raise GamlensError(f"Block {name!r} was not captured; there are {', '.join(self.gradients)}.")
        activation = self.activations[name]
        if self.index != tuple(range(len(activation))):
            activation = activation[indices_on(self.index, activation.device)]
        return activation, self.gradients[name]

    def raw(self, method: str = "gam", block: str | None = None) -> Tensor:
        """The method's map at a block's own size, neither resized nor normalised: (R,h,w)."""
        entry = methods.find(method)
        if entry.kind == "input" and str(PIXELS) not in self.gradients:
            raise GamlensError(
                f"Method {method!r} needs the gradient by the pixels, a pass of its own through the whole network: use "
                f"lens.classify(..., method={method!r}) or lens.compare."
            )
        if entry.kind == "pair":
            raise GamlensError(
                f"Method {method!r} is of kind {entry.kind!r} and has no map of one image: use compare or trace_pair."
            )
        with without_grad_or_autocast(self.scores):
            return entry.fn(*map(at_least_float32, self._inputs(entry, block)))

    def _inputs(self, entry: Method, block: str | None) -> tuple[Tensor, ...]:
        """What a method takes at a block."""
        return (*self._taken(block), *([self.scores] if entry.reads_score else []))

    def sums(self, block: str | None = None) -> Sums:
        """Channel sums of activations, positive and negative gradients at a block."""
        activation, gradient = self.block(block)
        return Sums(activation.relu().sum(1), gradient.relu().sum(1), (-gradient).relu().sum(1))

    def evidence(self, block: str | None = None) -> Evidence:
        """What Grad-CAM adds up at a block, split by sign, and what it hides (Eq. 4)."""
        with without_grad_or_autocast(self.scores):
            positive, negative = methods.evidence(*self.block(block))
        return Evidence(positive, negative, negative.abs() >= positive)

    def explain(self, method: str, n: int, how: fuse.Fusion, *, given: Tensor | None = None) -> Explanation:
        """Resize, normalise and fuse the maps of the last n blocks; an `input` method has one map, of the pixels."""
        n, how = (1, "mean") if methods.find(method).kind == "input" else (n, how)
        names = last_blocks(tuple(self.gradients), n)
        with without_grad_or_autocast(self.scores):
            made = self._compiled(method, names, how) if given is None else None
            made = made or self._made(method, names, how, given)
        blocks = dict(zip(names, made.blocks, strict=True))
        flat = dict(zip(names, made.flat, strict=True))
        found = [_flat(method, flat), *([self._hidden()] if method == "grad_cam" else [])]
        waiting = checks.make(found, stacklevel=4)
        about = {
            **self.origin.about,
            "method": method,
            "n": len(names),
            "fuse": how if isinstance(how, str) else [float(weight) for weight in how],
            "blocks": list(names),
        }
        return Explanation(
            maps=made.fused.float(),
            blocks={name: block.float() for name, block in blocks.items()},
            scores=self.scores.float(),
            targets=self.targets,
            index=indices_on(self.index, made.fused.device),
            pictures=self.origin.pictures,
            frames=self.origin.frames,
            labels=self.origin.labels,
            about=about,
            checks=self._waiting() + waiting,
        )

    def _made(self, method: str, names: Sequence[str], how: fuse.Fusion, given: Tensor | None) -> maps.Made:
        """Block by block, the views of each averaged."""
        blocks, flat = [], []
        for name in names:
            raws = [given] if given is not None else self._raws(method, name)
            seen = [fuse.min_max(fuse.resize(raw, self.size)) for raw in raws]
            blocks.append(torch.stack([view for view, _ in seen]).mean(dim=0) if len(seen) > 1 else seen[0][0])
            flat.append(torch.stack([bad for _, bad in seen]).all(dim=0) if len(seen) > 1 else seen[0][1])
        return maps.Made(blocks, flat, fuse.fuse(blocks, how))

    def _compiled(self, method: str, names: Sequence[str], how: fuse.Fusion) -> maps.Made | None:
        """The same in a few kernels; None where that is not asked for, or not for this."""
        entry = methods.find(method)
        if not self.compiled or self.views or entry.kind != "block" or not fuse.is_named(how):
            return None
        inputs = [self._inputs(entry, name) for name in names]
        return maps.make_compiled(entry.fn, inputs, self.size, str(how))

    def _waiting(self) -> tuple[Check, ...]:
        """Checks of this look and of the other views."""
        return self.checks + tuple(check for view in self.views for check in view.rows._waiting())

    def _raws(self, method: str, name: str) -> list[Tensor]:
        """The method's map of a block in every view, each as the plain image lies."""
        others = (
            view.rows.raw(method, name).flip(2) if view.mirrored else view.rows.raw(method, name) for view in self.views
        )
        return [self.raw(method, name), *others]

    def _hidden(self) -> Check:
        share = self.evidence().hidden_share
        last = list(self.gradients)[-1]

        def say() -> str:
            return (
                f"Grad-CAM hides most of the positive evidence ({100 * float(share.max()):.0f} % in row "
                f"{int(share.argmax())}) under negative gradients at block {last!r} (Eq. 4): look at .evidence(), or "
                "use method='gam'."
            )

        return Check(lambda: (share > HIDDEN_SHARE).any(), share, say, fatal=False)


@contextmanager
def without_grad_or_autocast(like: Tensor) -> Iterator[None]:
    """No graph and no autocast, whatever surrounds the call: map arithmetic keeps its own precision."""
    with torch.no_grad(), torch.autocast(like.device.type, enabled=False):
        yield


def last_blocks(names: Sequence[str], n: int) -> tuple[str, ...]:
    """The last n names, or an error that says how many there are; where there is one block, n = 2 takes it."""
    n = int(n) if isinstance(n, np.integer) else n
    if n == USUAL and len(names) == 1:
        return tuple(names)
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= len(names):
        raise GamlensError(
            f"n={n!r} blocks were asked for; {len(names)} are at hand ({', '.join(names)}): give n from 1 to "
            f"{len(names)}, or trace with a larger n."
        )
    return tuple(names[len(names) - n :])


def check_score(value: Any, rows: int) -> tuple[Check, ...]:
    """A score is one finite number a row."""
    if not isinstance(value, Tensor) or value.shape != (rows,):
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise GamlensError(
            f"The score must be one number for each of the {rows} rows, a tensor ({rows},); found {found}."
        )
    value = value.detach()

    def say() -> str:
        row = int((~value.isfinite()).nonzero()[0, 0])
        return (
            f"The score of row {row} is {float(value[row])}: are there NaN or infinite values in the weights or the "
            "image?"
        )

    return checks.make([Check(lambda: checks.finite(value, say).bad(), value, say)])


def _flat(method: str, flat: dict[str, Tensor]) -> Check:
    def say() -> str:
        where = "; ".join(
            f"{name!r} row {', '.join(map(str, rows.nonzero()[:, 0].tolist()))}"
            for name, rows in flat.items()
            if bool(rows.any())
        )
        return f"{method}: a map is flat or not finite and was set to zeros (block {where})."

    rows = next(iter(flat.values()))
    return Check(lambda: torch.stack(list(flat.values())).any(), rows, say, fatal=False)
