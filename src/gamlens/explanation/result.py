"""Explanation and PairExplanation: saliency maps, and what can be done with them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gamlens import boxes as locate
from gamlens import notebook, render
from gamlens.capture.nonblocking import Checks, answers_of, to_host
from gamlens.errors import GamlensError, deprecated
from gamlens.explanation.map_bar import EndWords, MapBar, beside_with_bars, map_bar
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture

if TYPE_CHECKING:
    from gamlens.explanation.origin import Origin
    from gamlens.notebook.result_view import ResultView

NO_CLASS = -1  # the target of a row whose score is not the score of a class
SHOWN = 12  # how many rows a notebook shows
STEM_BYTES = 100
Rows = int | slice | Sequence[int] | Sequence[bool] | Tensor


@dataclass(frozen=True, eq=False)
class Explanation:
    """Saliency maps of some images: the result of `Lens.classify` and `Trace.explain`.

    There are R rows, one per image and explained class: row r explains class `targets[r]` on image `index[r]`. Maps
    are made at the size of the model's input, H x W; `full`, `overlay`, `boxes` and `masks` bring them to the size of
    the original image.

    Attributes:
        maps: The fused maps, (R,H,W) float32 in [0,1]; in [-1,1] if they are `signed`.
        blocks: The map of each block before fusing, {block name: (R,H,W)}.
        scores: The score that each row explains, (R,).
        targets: The class index of each row, (R,); -1 if the score is not the score of a class.
        index: The index in `pictures` of each row's image, (R,).
        pictures: The images as they were given.
        frames: For each image, which part of it the model's input shows.
        labels: The names of the model's classes, if they are known.
        about: How the maps were made: model, weights, method, n, fuse, score, blocks, versions.
        checks: Checks that wait for a GPU; see `check`.
        scales: For maps with a sign, {block name: (R,)}: the raw value, in units of the score, that a map value of 1
            stands for; infinite where a map is zero everywhere. {} for all other maps.
        origin: The lens that made the result, for its `view`. None in a part of a result, and after saving or pickling.

    Example:
        >>> import torch, torchvision, gamlens
        >>> _ = torch.manual_seed(0)  # the weights of this example are random
        >>> lens = gamlens.Lens(torchvision.models.resnet18())
        >>> result = lens.classify(torch.rand(2, 3, 64, 64), [[3], [7, 8]])  # class 3 on image 0, 7 and 8 on image 1
        >>> result.maps.shape, result.index.tolist()
        (torch.Size([3, 64, 64]), [0, 1, 1])
        >>> result.names
        ['class 3', 'class 7', 'class 8']
        >>> result.overlay(0).size
        (64, 64)
        >>> len(result[1:])
        2
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
    scales: dict[str, Tensor] = field(default_factory=dict, repr=False)
    origin: Origin | None = field(default=None, repr=False)

    def check(self) -> Explanation:
        """Wait for the device and report what is wrong with the result.

        On the CPU this has been done when the result was made. On a GPU it would make the host wait, so it is done when
        the result is first read; every method that reads maps calls this.

        Returns:
            This Explanation.

        Raises:
            GamlensError: If activations, gradients or scores have values that are not finite. A flat map gives a
                GamlensWarning instead.
        """
        self.checks.resolve()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self.check()), "checks": Checks(), "origin": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({**state, "checks": Checks()})  # all checks were answered before pickling

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
        """Select rows.

        Args:
            rows: A row number, a slice, a list of numbers or of booleans, or a tensor of either.

        Returns:
            An Explanation of these rows and of the images that they belong to. A single number gives one row.
        """
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
        """Return all tensors that have one entry per row."""
        return [self.maps, self.scores, self.targets, self.index, *self.blocks.values(), *self.scales.values()]

    def _with_tensors(self, tensors: Sequence[Tensor], **changes: Any) -> Explanation:
        """Return a copy with other tensors, given in the order of `_tensors`, and with other attributes changed.

        The copy has no `origin` unless one is among the changes: its rows need not be those that the lens explained.
        """
        maps, scores, targets, index, *rest = tensors
        named = {
            "blocks": dict(zip(self.blocks, rest[: len(self.blocks)], strict=True)),
            "scales": dict(zip(self.scales, rest[len(self.blocks) :], strict=True)),
        }
        return replace(
            self,
            **{"maps": maps, "scores": scores, "targets": targets, "index": index, "origin": None, **named, **changes},
        )

    def each(self) -> list[Explanation]:
        """Split the result into one Explanation per image, in the order of `pictures`.

        The parts share memory with this Explanation if its rows are sorted by image, as those of `Lens.classify` are.
        """
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
        """What each row explains, R strings: the label of its class, "class 3" without labels, or the score's name."""
        return [self._name(target) for target in self.targets.tolist()]

    def _name(self, target: int) -> str:
        if target == NO_CLASS:
            return str(self.about.get("score", "score"))
        name = self.labels[target] if target < len(self.labels) else f"class {target}"
        return f"{name} rather than {self.about['against']}" if "against" in self.about else name

    @property
    def signed(self) -> bool:
        """Whether maps are positive where the score is raised and negative where it is lowered, in [-1,1]."""
        return self.about.get("sign") == "both"

    def picture(self, i: int = 0) -> Picture:
        """Return the image of row i as it was given; `image` opens it."""
        return self.pictures[self._picture_of(i)]

    def image(self, i: int = 0) -> Image.Image:
        """Return the original image of row i as a PIL image in RGB, turned upright by its EXIF orientation."""
        return self.picture(i).open()

    def full(self, i: int = 0, *, block: str | None = None) -> Tensor:
        """Return the map of row i at the size of the original image.

        Args:
            i: The row.
            block: A name of `blocks`, for the map of one block; None for the fused map.

        Returns:
            (height, width) of the original image, in [0,1], or in [-1,1] if maps are `signed`. Pixels that the model
            did not see are 0.
        """
        frame = self.frames[self._picture_of(i)]
        self.check()
        values = self._maps(block)[i]
        return frame.map(values.relu()) - frame.map((-values).relu()) if self.signed else frame.map(values)

    def _picture_of(self, i: int) -> int:
        """Return the number of row i's image in `pictures`."""
        if not -len(self) <= i < len(self):
            raise GamlensError(f"There is no row {i}: there are {len(self)}, numbered 0 to {len(self) - 1}.")
        return int(self.index[i])

    def _maps(self, block: str | None) -> Tensor:
        if block is not None and block not in self.blocks:
            raise GamlensError(f"There is no map of block {block!r}: give one of {', '.join(self.blocks)}.")
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
        bar: bool = False,
    ) -> Image.Image:
        """Draw the map of row i over the original image.

        In a signed map the value farthest from zero has the strongest colour, whatever it is; a bar says its value.

        Args:
            i: The row.
            block: A name of `blocks`, for the map of one block; None for the fused map.
            opacity: How strongly the map covers the image, from 0 to 1.
            cmap: The colour map, a name of `gamlens.render.COLORMAPS`. Signed maps are drawn in "diverging", whose
                middle colour is zero, unless another signed colour map is named.
            style: "heat" (colours where the map is high, a dimmed photo elsewhere), "spotlight" (the photo multiplied
                by the map) or "flat" (colours everywhere).
            threshold: If given, the box of the map at this threshold is drawn, too.
            mode: Which pixels the box surrounds, as in `boxes`.
            bar: Whether a colour bar stands below the image. For maps with a sign it has the raw values, in units of
                the score, of its ends (see `scales`), and says which end raises the score and which lowers it.

        Returns:
            An RGB image of the original size; with a bar it is higher.
        """
        full, boxes = self.full(i, block=block).cpu().numpy(), []
        if self.signed:
            full, cmap = (full / self._peak(i, block)).clip(-1, 1) / 2 + 0.5, self._colours(cmap)
        if threshold is not None:
            found = locate.boxes(self._maps(block)[i][None], threshold=threshold, mode=mode)
            boxes = [box for box in self.frames[int(self.index[i])].boxes(found).tolist() if any(box)]
        drawn = render.overlay(self.image(i), full, opacity=opacity, cmap=cmap, style=style, boxes=boxes)
        return self.bar(i, block=block, cmap=cmap).below(drawn) if bar else drawn

    def bar(
        self, i: int = 0, *, block: str | None = None, cmap: str = "ember", words: EndWords | None = None
    ) -> MapBar:
        """What the colours of row i stand for: the colour bar that `overlay` draws, as texts.

        Args:
            i: The row.
            block: A name of `blocks`, for the map of one block; None for the fused map.
            cmap: The colour map, as in `overlay`.
            words: What negative and positive values mean. By default: they lower and raise the score, or, for the
                contrast of two classes or captions, speak for the other one and for the first.
        """
        self._picture_of(i)
        score = str(self.about.get("score", "score"))
        if words is None:
            words = EndWords(f"lowers the {score}", f"raises the {score}")
            if "against" in self.about:
                other = str(self.about["against"])
                words = EndWords(f"for {other}", f"for {self.names[i].removesuffix(f' rather than {other}')}")
        scales = {name: float(scale[i]) for name, scale in self.scales.items() if block in (None, name)}
        peak = self._peak(i, block) if self.signed else 1.0
        sign = self.about.get("sign")
        return map_bar(sign, peak, scales, cmap=self._colours(cmap), words=words, score=score)

    def _peak(self, i: int, block: str | None) -> float:
        """The largest absolute value of a map; 1 if it is zero everywhere."""
        return float(self._maps(block)[i].abs().max()) or 1.0

    def _colours(self, cmap: str) -> str:
        """The colour map that this result is drawn in: a signed one for signed maps."""
        return "diverging" if self.signed and cmap not in render.SIGNED_COLORMAPS else cmap

    def boxes(self, threshold: float = 0.25, mode: locate.BoxMode = "all") -> Tensor:
        """Box the pixels of each map that reach a threshold.

        Args:
            threshold: The lowest map value that counts, from 0 to 1.
            mode: "all" boxes all such pixels, "largest" only those of the largest connected component.

        Returns:
            (R,4): x0, y0, x1, y1 in pixels of the original image, half-open; zeros for a map without such pixels.
        """
        self.check()
        found = locate.boxes(self.maps, threshold=threshold, mode=mode)
        return torch.cat(
            [self.frames[image].boxes(found[row : row + 1]) for row, image in enumerate(self.index.tolist())]
        )

    def masks(self, threshold: float = 0.25) -> list[Tensor]:
        """Return where each map reaches a threshold: R boolean tensors (height, width) of the original image's size."""
        locate.check_threshold(threshold)
        return [self.full(row) >= threshold for row in range(len(self))]

    def cpu(self) -> Explanation:
        """Return this Explanation in CPU memory, after reporting what `check` reports."""
        return self.to_host()()

    def to_host(self, pool: Executor | None = None) -> Callable[[], Explanation]:
        """Start to copy this Explanation to CPU memory, without waiting.

        Args:
            pool: If given, one of its threads waits for the copies.

        Returns:
            A function that waits for the copies, reports what `check` reports, and returns the Explanation on the CPU.
        """
        asked = self.checks.open()
        answers = [answers_of(asked)] if asked else []
        arrival = to_host([*answers, *self._tensors()], pool)

        def arrive() -> Explanation:
            found = arrival()
            self.checks.tell(asked, found[0].tolist() if asked else [])
            shown = tuple(picture.cpu() for picture in self.pictures)
            return self._with_tensors(found[len(answers) :], pictures=shown, checks=Checks(), origin=self.origin)

        return arrive

    def leave(self, pool: Executor | None = None) -> Callable[[], Explanation]:
        """Do what `to_host` does, under its former name, with a warning."""
        deprecated("Explanation.leave", instead="Explanation.to_host", since="1.0", removed_in="2.0")
        return self.to_host(pool)

    def numpy(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the fused maps as a numpy array (R,H,W) float32."""
        self.check()
        return np.asarray(self.maps.cpu().numpy())

    def save(self, folder: str, *, cmap: str = "ember", style: str = "heat") -> list[str]:
        """Write the result to a folder: all files, or none if writing fails.

        The files are one overlay per row (PNG; with a colour bar if maps have a sign), the maps (maps.npz), all else
        (explanation.json), and a PNG of each image that was not given as a file. An explanation that was saved in the
        folder before is replaced. All other files stay: it is an error if one of them, or an overlay that was changed
        since, is in the way.

        Args:
            folder: Where the files go; it is created if it does not exist.
            cmap: The colour map of the overlays.
            style: The style of the overlays, as in `overlay`.

        Returns:
            The paths of the files.
        """
        from gamlens.explanation.saving import save

        return save(self, folder, cmap=cmap, style=style)

    @classmethod
    def load(cls, folder: str) -> Explanation:
        """Read an Explanation that `save` wrote. Images that were given as files must still be where they were."""
        from gamlens.explanation.storage import load

        return load(folder)

    def view(self) -> ResultView:
        """The interactive view that a notebook shows: docs/notebook.md says what its controls do.

        Raises:
            GamlensError: If anywidget, which the extra `gamlens[notebook]` installs, is missing.
        """
        return notebook.open_view((self,), self.origin)

    def _repr_mimebundle_(self, **asked: Any) -> dict[str, Any]:
        """Show the interactive view in a notebook that can, and the overlays elsewhere."""
        return notebook.mime_bundle(self)

    def _repr_html_(self) -> str:
        """Show the overlays of the first rows in a notebook."""
        rows = zip(range(SHOWN), self.names, self.scores.tolist(), strict=False)
        return render.fragment(
            [
                render.Panel(
                    self.overlay(row, bar=bool(self.scales)), name, f"{score:.4g}", f"{name}: saliency over the image"
                )
                for row, name, score in rows
            ]
        )


@dataclass(frozen=True, eq=False)
class PairExplanation:
    """Saliency maps of P pairs of images, one map on each image: the result of `Lens.compare`.

    Attributes:
        x: The maps on the first image of each pair: row p belongs to pair p.
        y: The maps on the second image of each pair.
        scores: The similarity of each pair, (P,).
        origin: As in Explanation.

    Example:
        >>> import torch, torchvision, gamlens
        >>> _ = torch.manual_seed(0)  # the weights of this example are random
        >>> lens = gamlens.Lens(torchvision.models.resnet18())
        >>> pair = lens.compare(torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64))
        >>> pair.x.maps.shape, pair.y.maps.shape, pair.scores.shape
        (torch.Size([2, 64, 64]), torch.Size([2, 64, 64]), torch.Size([2]))
        >>> pair.overlay(0).size  # both images side by side
        (140, 64)
    """

    x: Explanation
    y: Explanation
    scores: Tensor
    origin: Origin | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "origin": None}

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        scores = ", ".join(f"{score:.3g}" for score in self.scores.tolist()[:4])
        about = self.x.about
        return f"<PairExplanation of {len(self)} by {about.get('method', '?')}, {about.get('score', '?')}: {scores}>"

    def __getitem__(self, rows: Rows) -> PairExplanation:
        """Select pairs by number, slice, list or mask, as `Explanation` selects rows."""
        x = self.x[rows]
        return PairExplanation(x, self.y[rows], x.scores)

    @property
    def about(self) -> Mapping[str, Any]:
        """How the maps were made: model, weights, method, n, fuse, score, blocks, versions."""
        return self.x.about

    def cpu(self) -> PairExplanation:
        """Return this PairExplanation in CPU memory, after reporting what `Explanation.check` reports."""
        return PairExplanation(self.x.cpu(), self.y.cpu(), self.scores.cpu(), self.origin)

    def numpy(self) -> tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.float32]]]:
        """Return the maps of x and of y as two numpy arrays (P,H,W) float32."""
        return self.x.numpy(), self.y.numpy()

    def overlay(self, i: int = 0, *, opacity: float = 0.7, cmap: str = "ember", bar: bool = False) -> Image.Image:
        """Draw the maps of pair i over both images.

        Args:
            i: The pair.
            opacity: How strongly the maps cover the images, from 0 to 1.
            cmap: The colour map, a name of `gamlens.render.COLORMAPS`.
            bar: Whether a colour bar stands below each image, as in `Explanation.overlay`.

        Returns:
            An RGB image with x on the left and y on the right, at the height of the smaller one.
        """
        return draw_beside((self.x, self.y), i, opacity=opacity, cmap=cmap, bar=bar)

    def save(self, folder: str, *, cmap: str = "ember") -> list[str]:
        """Write the result to a folder: x/ and y/ as `Explanation.save` writes them, and one PNG per pair.

        Files that are there already are treated as `Explanation.save` treats them.

        Args:
            folder: Where the files go; it is created if it does not exist.
            cmap: The colour map of the overlays.

        Returns:
            The paths of the files.
        """
        from gamlens.explanation.saving import save_pair

        return save_pair(self, folder, cmap=cmap)

    @classmethod
    def load(cls, folder: str) -> PairExplanation:
        """Read a PairExplanation that `save` wrote."""
        from gamlens.explanation.storage import load

        x = load(f"{folder}/x")
        return cls(x, load(f"{folder}/y"), x.scores)

    def view(self) -> ResultView:
        """The interactive view that a notebook shows, as `Explanation.view`; here points can be matched, too."""
        return notebook.open_view((self.x, self.y), self.origin)

    def _repr_mimebundle_(self, **asked: Any) -> dict[str, Any]:
        """Show the interactive view in a notebook that can, and the overlays elsewhere."""
        return notebook.mime_bundle(self)

    def _repr_html_(self) -> str:
        """Show the overlays of the first pairs in a notebook."""
        rows = zip(range(SHOWN), self.scores.tolist(), strict=False)
        return render.fragment(
            [
                render.Panel(
                    self.overlay(row, bar=bool(self.x.scales)),
                    self.x.names[row],
                    f"{score:.4g}",
                    "both maps of a pair",
                )
                for row, score in rows
            ]
        )


def draw_beside(
    sides: Sequence[Explanation], i: int, *, opacity: float, cmap: str, bar: bool, words: EndWords | None = None
) -> Image.Image:
    """Draw row i of several Explanations side by side, each with its colour bar if `bar`; see `Explanation.bar`."""
    pictures = [side.overlay(i, opacity=opacity, cmap=cmap) for side in sides]
    if not bar:
        return render.beside(pictures)
    return beside_with_bars(pictures, [side.bar(i, cmap=cmap, words=words) for side in sides])


def concat(parts: Iterable[Explanation]) -> Explanation:
    """Concatenate Explanations that were made with the same settings and at the same input size."""
    items = list(parts)
    if len(items) == 1:
        return items[0]
    if len(sizes := {tuple(item.maps.shape[1:]) for item in items}) > 1:
        found = ", ".join(str(size) for size in sorted(sizes))
        raise GamlensError(
            f"The transform must bring all images of one call to one size; found {found}: use one call for each size."
        )
    starts = accumulate((len(item.pictures) for item in items[:-1]), initial=0)
    shifted = [replace(item, index=item.index + start) for item, start in zip(items, starts, strict=True)]
    return items[0]._with_tensors(
        [torch.cat(several) for several in zip(*(item._tensors() for item in shifted), strict=True)],
        pictures=tuple(picture for item in items for picture in item.pictures),
        frames=tuple(frame for item in items for frame in item.frames),
        checks=sum((item.checks for item in items), Checks()),
    )


def file_stem(text: str, *, longest: int = 60) -> str:
    """Turn text into a part of a file name: only letters, digits, dots, underscores and hyphens, at most `longest`.

    It has at most 100 bytes in UTF-8, so that a name of two such parts and a number has less than 255.

    >>> file_stem("Egyptian cat / tabby")
    'Egyptian-cat-tabby'
    """
    stem = re.sub(r"[^\w.]+", "-", text).strip("-.")[:longest]
    return stem.encode("utf-8", "ignore")[:STEM_BYTES].decode("utf-8", "ignore") or "image"


def _selector(rows: Rows, count: int) -> Any:
    """Turn what the user wrote between brackets into an index for a tensor (count,)."""
    if isinstance(rows, int | np.integer):
        if not -count <= rows < count:
            raise IndexError(f"There is no row {rows}: there are {count} rows.")
        return rows
    if isinstance(rows, Tensor):
        return rows.cpu()
    return list(range(count))[rows] if isinstance(rows, slice) else list(rows)
