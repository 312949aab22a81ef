"""The result: maps, one row per image and target, and what can be done with them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gamlens import boxes as locate
from gamlens import render
from gamlens.capture.nonblocking import Checks, answers_of, to_host
from gamlens.errors import GamlensError, warn
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture

NO_CLASS = -1
SHOWN = 12
Rows = int | slice | Sequence[int] | Sequence[bool] | Tensor


@dataclass(frozen=True, eq=False)
class Explanation:
    """Saliency maps. Row r explains `targets[r]` on image `index[r]`.

    maps (R,H,W) float32 in [0,1] at the model's input size; blocks {name: (R,H,W)}, each block's own map;
    scores (R,); targets (R,) class indices, -1 where the score is not a class; index (R,).
    `about` says how it was made: model, weights, method, n, fuse, score, blocks, versions.
    """

    maps: Tensor
    blocks: dict[str, Tensor]
    scores: Tensor
    targets: Tensor
    index: Tensor
    pictures: Sequence[Picture]
    frames: tuple[Frame, ...]
    labels: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    checks: Checks = field(default_factory=Checks, repr=False)

    def check(self) -> Explanation:
        """Wait for the device and say what is wrong: an error for values that are not finite, a warning for flat maps.

        Whatever brings maps to the host does this first; on the CPU it is done when the result is made.
        """
        self.checks.resolve()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self.check()), "checks": Checks()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({**state, "checks": Checks()})  # they were answered before the result was saved

    def __len__(self) -> int:
        return len(self.maps)

    def __repr__(self) -> str:
        rows = ", ".join(
            f"{name} {score:.3g}" for name, score in zip(self.names[:3], self.scores.tolist(), strict=False)
        )
        more = ", ..." if len(self) > 3 else ""
        size = "x".join(map(str, self.maps.shape[1:]))
        return f"<Explanation of {len(self)} by {self.about.get('method', '?')}, {size}: {rows}{more}>"

    def __getitem__(self, rows: Rows) -> Explanation:
        """Some rows, by number, slice, list or mask; one number keeps its row dimension."""
        self.check()
        keep = torch.arange(len(self))[_selector(rows, len(self))].reshape(-1).to(self.maps.device)
        images = self.index[keep].tolist()
        order = {image: place for place, image in enumerate(dict.fromkeys(images))}
        return self._with_tensors(
            [tensor[keep] for tensor in self._tensors()],
            index=self.index.new_tensor([order[image] for image in images]),
            pictures=tuple(self.pictures[image] for image in order),
            frames=tuple(self.frames[image] for image in order),
        )

    def _tensors(self) -> list[Tensor]:
        """Everything that has one entry per row."""
        return [self.maps, self.scores, self.targets, self.index, *self.blocks.values()]

    def _with_tensors(self, tensors: Sequence[Tensor], **changes: Any) -> Explanation:
        """The same with other tensors, in the order of `_tensors`, and further changes."""
        maps, scores, targets, index, *blocks = tensors
        named = dict(zip(self.blocks, blocks, strict=True))
        return replace(
            self, **{"maps": maps, "scores": scores, "targets": targets, "index": index, "blocks": named, **changes}
        )

    def each(self) -> list[Explanation]:
        """One Explanation per image, in order. They share this one's memory where rows come in the images' order."""
        self.check()
        index = self.index.tolist()
        order = sorted(range(len(index)), key=index.__getitem__)
        counted = Counter(index)
        counts = [counted[image] for image in range(len(self.pictures))]
        stay = order == list(range(len(index)))
        parts = [(tensor if stay else tensor[order]).split_with_sizes(counts) for tensor in self._tensors()]
        shown = zip(self.pictures, self.frames, zip(*parts, strict=True), strict=True)
        return [
            self._with_tensors(
                tensors, index=torch.zeros_like(tensors[3]), pictures=(picture,), frames=(frame,), checks=Checks()
            )
            for picture, frame, tensors in shown
        ]

    @property
    def names(self) -> list[str]:
        """The class each row explains, by name where the model has labels; the score's name otherwise."""
        return [self._name(target) for target in self.targets.tolist()]

    def _name(self, target: int) -> str:
        if target == NO_CLASS:
            return str(self.about.get("score", "score"))
        return self.labels[target] if target < len(self.labels) else f"class {target}"

    def picture(self, i: int = 0) -> Picture:
        return self.pictures[int(self.index[i])]

    def image(self, i: int = 0) -> Image.Image:
        """The original image of row i, upright, in RGB."""
        return self.picture(i).open()

    def full(self, i: int = 0, *, block: str | None = None) -> Tensor:
        """Row i's map at the original image's size, (H,W) in [0,1]; or that of one block."""
        self.check()
        return self.frames[int(self.index[i])].map(self._maps(block)[i])

    def _maps(self, block: str | None) -> Tensor:
        if block is not None and block not in self.blocks:
            raise GamlensError(f"There is no map of block {block!r}; there are {', '.join(self.blocks)}.")
        return self.maps if block is None else self.blocks[block]

    def overlay(
        self,
        i: int = 0,
        *,
        block: str | None = None,
        opacity: float = 0.7,
        cmap: str = "ember",
        style: str = "heat",
        threshold: float | None = None,
        mode: locate.BoxMode = "all",
    ) -> Image.Image:
        """Row i's map, or that of one of its blocks, over the original image; with a threshold, its box as well."""
        full, boxes = self.full(i, block=block).cpu().numpy(), []
        if threshold is not None:
            found = locate.boxes(self._maps(block)[i][None], threshold=threshold, mode=mode)
            boxes = [box for box in self.frames[int(self.index[i])].boxes(found).tolist() if any(box)]
        return render.overlay(self.image(i), full, opacity=opacity, cmap=cmap, style=style, boxes=boxes)

    def boxes(self, threshold: float = 0.25, mode: locate.BoxMode = "all") -> Tensor:
        """Box x0,y0,x1,y1 of each row in original pixels, half-open: (R,4); zeros where there is none."""
        self.check()
        found = locate.boxes(self.maps, threshold=threshold, mode=mode)
        return torch.cat(
            [self.frames[image].boxes(found[row : row + 1]) for row, image in enumerate(self.index.tolist())]
        )

    def masks(self, threshold: float = 0.25) -> list[Tensor]:
        """Where each row's map reaches the threshold, in original pixels: R tensors (H,W) of bool."""
        locate.check_threshold(threshold)
        return [self.full(row) >= threshold for row in range(len(self))]

    def cpu(self) -> Explanation:
        """The same on the host."""
        return self.to_host()()

    def to_host(self, pool: Executor | None = None) -> Callable[[], Explanation]:
        """Start to bring it to the host; returns a function that waits for it, in a thread of `pool` if there is one,
        and says what is wrong, as `check` does."""
        asked = self.checks.open()
        answers = [answers_of(asked)] if asked else []
        arrival = to_host([*answers, *self._tensors()], pool)

        def arrive() -> Explanation:
            found = arrival()
            self.checks.tell(asked, found[0].tolist() if asked else [])
            shown = tuple(picture.cpu() for picture in self.pictures)
            return self._with_tensors(found[len(answers) :], pictures=shown, checks=Checks())

        return arrive

    def leave(self, pool: Executor | None = None) -> Callable[[], Explanation]:
        """The former name of `to_host`."""
        warn("Explanation.leave is called to_host now; the old name will go.")
        return self.to_host(pool)

    def numpy(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The maps as an array (R,H,W)."""
        self.check()
        return np.asarray(self.maps.cpu().numpy())

    def save(self, folder: str, *, cmap: str = "ember", style: str = "heat") -> list[str]:
        """Write one overlay PNG a row, the maps (maps.npz) and what they are (explanation.json); returns the files."""
        from gamlens.explanation.storage import save

        return save(self, folder, cmap=cmap, style=style)

    @classmethod
    def load(cls, folder: str) -> Explanation:
        """Read back what `save` wrote."""
        from gamlens.explanation.storage import load

        return load(folder)

    def _repr_html_(self) -> str:
        """The overlays of the first rows, for a notebook."""
        rows = zip(range(SHOWN), self.names, self.scores.tolist(), strict=False)
        return render.fragment(
            [
                render.Panel(self.overlay(row), name, f"{score:.4g}", f"{name}: saliency over the image")
                for row, name, score in rows
            ]
        )


@dataclass(frozen=True, eq=False)
class PairExplanation:
    """Both maps of each pair: `x` and `y` are Explanations whose row p belongs to pair p; scores (P,)."""

    x: Explanation
    y: Explanation
    scores: Tensor

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        scores = ", ".join(f"{score:.3g}" for score in self.scores.tolist()[:4])
        about = self.x.about
        return f"<PairExplanation of {len(self)} by {about.get('method', '?')}, {about.get('score', '?')}: {scores}>"

    def __getitem__(self, rows: Rows) -> PairExplanation:
        x = self.x[rows]
        return PairExplanation(x, self.y[rows], x.scores)

    @property
    def about(self) -> Mapping[str, Any]:
        return self.x.about

    def cpu(self) -> PairExplanation:
        return PairExplanation(self.x.cpu(), self.y.cpu(), self.scores.cpu())

    def numpy(self) -> tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.float32]]]:
        return self.x.numpy(), self.y.numpy()

    def overlay(self, i: int = 0, *, opacity: float = 0.7, cmap: str = "ember") -> Image.Image:
        """Both overlays of pair i side by side, at one height."""
        sides = [side.overlay(i, opacity=opacity, cmap=cmap) for side in (self.x, self.y)]
        return render.beside(sides)

    def save(self, folder: str, *, cmap: str = "ember") -> list[str]:
        """Write both sides below `folder` (x/, y/) and a PNG of each pair; returns the files."""
        from gamlens.explanation.storage import save_pair

        return save_pair(self, folder, cmap=cmap)

    @classmethod
    def load(cls, folder: str) -> PairExplanation:
        from gamlens.explanation.storage import load

        x = load(f"{folder}/x")
        return cls(x, load(f"{folder}/y"), x.scores)

    def _repr_html_(self) -> str:
        rows = zip(range(SHOWN), self.scores.tolist(), strict=False)
        return render.fragment(
            [
                render.Panel(self.overlay(row), self.x.names[row], f"{score:.4g}", "both maps of a pair")
                for row, score in rows
            ]
        )


def concat(parts: Iterable[Explanation]) -> Explanation:
    """Explanations made the same way, one after another."""
    items = list(parts)
    if len(items) == 1:
        return items[0]
    if len(sizes := {tuple(item.maps.shape[1:]) for item in items}) > 1:
        found = ", ".join(str(size) for size in sorted(sizes))
        raise GamlensError(f"The images of one call must come out at one size; found {found}: one call for each size.")
    starts = accumulate((len(item.pictures) for item in items[:-1]), initial=0)
    shifted = [replace(item, index=item.index + start) for item, start in zip(items, starts, strict=True)]
    return items[0]._with_tensors(
        [torch.cat(several) for several in zip(*(item._tensors() for item in shifted), strict=True)],
        pictures=tuple(picture for item in items for picture in item.pictures),
        frames=tuple(frame for item in items for frame in item.frames),
        checks=sum((item.checks for item in items), Checks()),
    )


def file_stem(text: str, *, longest: int = 60) -> str:
    """`text` as part of a file name.

    >>> file_stem("Egyptian cat / tabby")
    'Egyptian-cat-tabby'
    """
    return re.sub(r"[^\w.]+", "-", text).strip("-.")[:longest] or "image"


def _selector(rows: Rows, count: int) -> Any:
    if isinstance(rows, int | np.integer):
        if not -count <= rows < count:
            raise IndexError(f"row {rows} of {count}")
        return rows
    if isinstance(rows, Tensor):
        return rows.cpu()
    return list(range(count))[rows] if isinstance(rows, slice) else list(rows)
