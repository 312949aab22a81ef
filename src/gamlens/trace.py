"""What one forward and one short backward gave, from which every map is made without another forward."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gamlens import capture, fuse, methods, scores
from gamlens.capture import Tail
from gamlens.errors import GamlensError, GamlensWarning
from gamlens.explanation import NO_CLASS, Explanation, PairExplanation
from gamlens.geometry import Frame
from gamlens.images import Picture

HIDDEN_SHARE = 0.5


@dataclass(frozen=True)
class Guess:
    """One of a model's best classes for an image."""

    index: int
    name: str
    score: float
    probability: float


class Sums(NamedTuple):
    """Channel sums of a block, (R,h,w) each: relu(h), relu(g) and relu(-g)."""

    activation: Tensor
    positive: Tensor
    negative: Tensor


class Evidence(NamedTuple):
    """Eq. 4 at a block, (R,h,w) each: Grad-CAM's positive and negative part, and the pixels it hides, |N| >= P."""

    positive: Tensor
    negative: Tensor
    hidden: Tensor

    @property
    def hidden_share(self) -> Tensor:
        """How much of the positive evidence lies on hidden pixels: (R,) in [0,1]."""
        positive = self.positive.clamp(min=0)
        return (positive * self.hidden).sum(dim=(1, 2)) / positive.sum(dim=(1, 2)).clamp(min=1e-30)


@dataclass(frozen=True, eq=False)
class Origin:
    """Where the images came from and by what they were looked at: what an Explanation carries along."""

    pictures: tuple[Picture, ...]
    frames: tuple[Frame, ...]
    labels: tuple[str, ...]
    about: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Rows:
    """Activations of B images and gradients of R scores on them: everything the methods need.

    activations {block: (B,C,h,w)}, gradients {block: (R,C,h,w)}, in network order; index says which image a row
    is of; size is the model's input (H,W).
    """

    activations: dict[str, Tensor]
    gradients: dict[str, Tensor]
    scores: Tensor
    targets: Tensor
    index: tuple[int, ...]
    size: tuple[int, int]
    origin: Origin

    def block(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """A block's activation and gradient, one of each a row, in float32 or wider; the last block by default."""
        name = name if name is not None else list(self.gradients)[-1]
        if name not in self.gradients:
            raise GamlensError(f"Block {name!r} was not captured; there are {', '.join(self.gradients)}.")
        activation = self.activations[name]
        if self.index != tuple(range(len(activation))):
            activation = activation[list(self.index)]
        return _wide(activation), _wide(self.gradients[name])

    def raw(self, method: str = "gam", block: str | None = None) -> Tensor:
        """The method's map at a block's own size, neither resized nor normalised: (R,h,w)."""
        entry = methods.find(method)
        if entry.kind != "block":
            raise GamlensError(f"Method {method!r} is of kind {entry.kind!r} and has no map of one block of one image.")
        activation, gradient = self.block(block)
        result: Tensor = entry.fn(activation, gradient, *([_wide(self.scores)] if entry.reads_score else []))
        return result

    def sums(self, block: str | None = None) -> Sums:
        """Channel sums of activations, positive and negative gradients at a block."""
        activation, gradient = self.block(block)
        return Sums(activation.relu().sum(1), gradient.relu().sum(1), (-gradient).relu().sum(1))

    def evidence(self, block: str | None = None) -> Evidence:
        """What Grad-CAM adds up at a block, split by sign, and what it hides (Eq. 4)."""
        positive, negative = methods.evidence(*self.block(block))
        return Evidence(positive, negative, negative.abs() >= positive)

    def explain(self, method: str, n: int, how: fuse.Fusion, *, given: Tensor | None = None) -> Explanation:
        """Resize, normalise and fuse the maps of the last n blocks."""
        names = last_blocks(tuple(self.gradients), n)
        blocks: dict[str, Tensor] = {}
        flat: dict[str, Tensor] = {}
        for name in names:
            raw = given if given is not None else self.raw(method, name)
            blocks[name], flat[name] = fuse.min_max(fuse.resize(raw, self.size))
        maps = fuse.fuse(list(blocks.values()), how)
        _warn_flat(method, flat)
        if method == "grad_cam":
            self._warn_hidden()
        about = {
            **self.origin.about,
            "method": method,
            "n": n,
            "fuse": how if isinstance(how, str) else [float(weight) for weight in how],
            "blocks": list(names),
        }
        return Explanation(
            maps=maps.float(),
            blocks={name: block.float() for name, block in blocks.items()},
            scores=self.scores.float(),
            targets=self.targets,
            index=torch.tensor(self.index, device=maps.device),
            pictures=self.origin.pictures,
            frames=self.origin.frames,
            labels=self.origin.labels,
            about=about,
        )

    def _warn_hidden(self) -> None:
        share = self.evidence().hidden_share
        rows = (share > HIDDEN_SHARE).nonzero()[:, 0].tolist()
        if rows:
            warnings.warn(
                f"Grad-CAM hides most of the positive evidence ({100 * float(share.max()):.0f} % in row "
                f"{int(share.argmax())}) under negative gradients at block {list(self.gradients)[-1]!r} (Eq. 4): "
                "look at .evidence(), or use method='gam'.",
                GamlensWarning,
                stacklevel=4,
            )


@dataclass(frozen=True, eq=False)
class Trace:
    """One forward of B images and the gradients of R class scores.

    `explain` makes a map by any method from any of the captured blocks; `retarget` asks for other classes at the
    price of the tail's backward. `output` is the model's output (B,K).
    """

    rows: Rows
    output: Tensor | None
    score: str
    multi_label: bool
    aim: Callable[[Any], Trace] | None = field(default=None, repr=False)

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(self.rows.gradients)

    @property
    def scores(self) -> Tensor:
        return self.rows.scores

    @property
    def targets(self) -> Tensor:
        return self.rows.targets

    @property
    def index(self) -> Tensor:
        return torch.tensor(self.rows.index)

    def explain(self, method: str = "gam", n: int = 2, fuse: fuse.Fusion = "mean") -> Explanation:
        """The maps of `method` over the last n blocks. No forward, no backward."""
        return self.rows.explain(method, n, fuse)

    def raw(self, method: str = "gam", block: str | None = None) -> Tensor:
        """The method's unnormalised map at a block's own size: (R,h,w). The last block by default."""
        return self.rows.raw(method, block)

    def sums(self, block: str | None = None) -> Sums:
        """Channel sums of activations and of positive and negative gradients at a block."""
        return self.rows.sums(block)

    def evidence(self, block: str | None = None) -> Evidence:
        """Grad-CAM's sum split by sign, and the pixels it hides (Eq. 4)."""
        return self.rows.evidence(block)

    def top(self, k: int = 5) -> list[list[Guess]]:
        """The k best classes of each image, best first."""
        if self.output is None:
            raise GamlensError("There are no classes to rank: the score of this trace is not a class score.")
        output = self.output.detach().float()
        chance = scores.probabilities(output, multi_label=self.multi_label)
        best = output.topk(min(k, output.shape[1]), dim=1)
        labels = self.rows.origin.labels
        return [
            [
                Guess(
                    index, labels[index] if index < len(labels) else f"class {index}", score, float(chance[row, index])
                )
                for index, score in zip(indices, values, strict=True)
            ]
            for row, (indices, values) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        ]

    def retarget(self, target: Any) -> Trace:
        """The same forward, other classes: only the tail's backward runs."""
        if self.aim is None:
            raise GamlensError("This trace was released, or its score is not a class score: trace the images again.")
        return self.aim(target)

    def release(self) -> Trace:
        """The same without its graph: less memory, no `retarget`."""
        return replace(self, aim=None)


@dataclass(eq=False)
class PairTrace:
    """One forward of P pairs (one for each side where their sizes differ): both sides' activations and embeddings.

    The score is chosen when explaining: its gradients run through the tail once and are kept.
    """

    tails: tuple[Tail, ...]
    embeddings: tuple[Tensor, Tensor]
    origins: tuple[Origin, Origin]
    sizes: tuple[tuple[int, int], tuple[int, int]]
    done: dict[Any, tuple[Rows, Rows]] = field(default_factory=dict, repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    released: bool = False

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(self.tails[0].blocks)

    def __len__(self) -> int:
        return len(self.embeddings[0])

    def explain(
        self, method: str = "gam", n: int = 2, fuse: fuse.Fusion = "mean", *, score: str | scores.PairScore = "cosine"
    ) -> PairExplanation:
        """Both maps of every pair by `method` over the last n blocks. No forward."""
        x, y = self.sides(score)
        if methods.find(method).kind == "pair":
            fn, last = methods.find(method).fn, self.blocks[-1]
            h = [_wide(side.activations[last]) for side in (x, y)]
            maps = (fn(h[0], h[1]), fn(h[1], h[0]))
            results = [side.explain(method, 1, "mean", given=raw) for side, raw in zip((x, y), maps, strict=True)]
        else:
            results = [side.explain(method, n, fuse) for side in (x, y)]
        return PairExplanation(results[0], results[1], results[0].scores)

    def sides(self, score: str | scores.PairScore = "cosine", *, keep: bool = True) -> tuple[Rows, Rows]:
        """Activations and gradients of x and of y under a score: `.raw()`, `.sums()`, `.evidence()` of either."""
        with self.lock:
            if score not in self.done:
                if self.released:
                    raise GamlensError("This trace was released: trace the pair again for another score.")
                self.done[score] = self._backward(score, keep)
            return self.done[score]

    def release(self) -> PairTrace:
        """Let the graph go: scores explained so far stay, others need a new trace."""
        with self.lock:
            self.released = True
            self.tails = tuple(
                Tail(None, {name: block.detach() for name, block in tail.blocks.items()}, None) for tail in self.tails
            )
            self.embeddings = (self.embeddings[0].detach(), self.embeddings[1].detach())
        return self

    def _backward(self, score: str | scores.PairScore, keep: bool) -> tuple[Rows, Rows]:
        name = score if isinstance(score, str) else getattr(score, "__name__", "score")
        fn = scores.find_pair_score(score) if isinstance(score, str) else score
        pairs = len(self)
        with torch.inference_mode(False), torch.enable_grad():
            value = fn(*(_wide(side) for side in self.embeddings))
        check_score(value, pairs)
        wanted = {f"{number}/{block}": h for number, tail in enumerate(self.tails) for block, h in tail.blocks.items()}
        found = capture.gradients(value, wanted, keep_graph=keep)
        if score == "cosine":
            found = _without_noise(found, value.detach())
        sides = []
        for side, (origin, size) in enumerate(zip(self.origins, self.sizes, strict=True)):
            number, part = (side, slice(None)) if len(self.tails) == 2 else (0, slice(side * pairs, (side + 1) * pairs))
            sides.append(
                Rows(
                    {block: h.detach()[part] for block, h in self.tails[number].blocks.items()},
                    {block: found[f"{number}/{block}"][part] for block in self.blocks},
                    value.detach(),
                    torch.full((pairs,), NO_CLASS, device=value.device),
                    tuple(range(pairs)),
                    size,
                    replace(origin, about={**origin.about, "score": name}),
                )
            )
        return sides[0], sides[1]


def _without_noise(gradients: dict[str, Tensor], cosine: Tensor) -> dict[str, Tensor]:
    """Zero gradients where the cosine is at its maximum: by Eq. 5 they are zero, what is computed is rounding."""
    same = cosine >= 1 - 16 * torch.finfo(cosine.dtype).eps
    if not bool(same.any()):
        return gradients
    rows = ", ".join(map(str, same.nonzero()[:, 0].tolist()))
    warnings.warn(
        f"Pair {rows}: both embeddings point the same way, so the cosine is at its maximum and has no gradient; "
        "the maps are empty. Use score='dot' to see what the images share.",
        GamlensWarning,
        stacklevel=5,
    )
    return {
        name: torch.where(same.repeat(len(gradient) // len(same))[:, None, None, None], 0, gradient)
        for name, gradient in gradients.items()
    }


def last_blocks(names: Sequence[str], n: int) -> tuple[str, ...]:
    """The last n names, or an error that says how many there are."""
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= len(names):
        raise GamlensError(
            f"n={n!r} blocks were asked for; {len(names)} are at hand ({', '.join(names)}): give n from 1 to "
            f"{len(names)}, or trace with a larger n."
        )
    return tuple(names[len(names) - n :])


def check_score(value: Any, rows: int) -> None:
    """A score is one finite number a row."""
    if not isinstance(value, Tensor) or value.shape != (rows,):
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise GamlensError(
            f"The score must be one number for each of the {rows} rows, a tensor ({rows},); found {found}."
        )
    if not bool(value.isfinite().all()):
        row = int((~value.isfinite()).nonzero()[0, 0])
        raise GamlensError(
            f"The score of row {row} is {float(value[row])}: are there NaN or infinite values in the weights or the "
            "image?"
        )


def _warn_flat(method: str, flat: dict[str, Tensor]) -> None:
    bad = torch.stack(list(flat.values()))
    if bool(bad.any()):
        where = "; ".join(
            f"{name!r} row {', '.join(map(str, rows.nonzero()[:, 0].tolist()))}"
            for name, rows in flat.items()
            if bool(rows.any())
        )
        warnings.warn(
            f"{method}: a map is flat or not finite and was set to zeros (block {where}).", GamlensWarning, stacklevel=4
        )


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
