"""The inputs of a figure: a lens, examples and options.

Examples are the user's image files, or items of a data set with their ground truth.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gamlens.data import Dataset, Sample, align
from gamlens.errors import GamlensError, Registry
from gamlens.evaluation.protocol import Protocol, Unit, units
from gamlens.explanation import Explanation
from gamlens.inputs.images import upright
from gamlens.lens import Lens
from gamlens.methods import METHODS
from gamlens.render import BoxCorners
from gamlens.sanity.data_randomisation import Digits
from gamlens.trace import Trace

PAPER_N = 2  # the number of blocks that the paper uses for GAM


@dataclass(frozen=True, eq=False)
class Example:
    """An image, the class to explain on it, and its ground truth if there is one.

    Attributes:
        image: The image file.
        target: The class to explain; None for the model's top class.
        title: The label of the row.
        boxes: True boxes (x0, y0, x1, y1), in pixels of an image of `size`.
        size: (height, width) that `boxes` refer to; None for the size of the image file.
        mask: The true mask (H,W).
        void: Pixels (H,W) that are neither object nor background and are not counted.
    """

    image: str
    target: str | int | None = None
    title: str = ""
    boxes: tuple[BoxCorners, ...] = ()
    size: tuple[int, int] | None = None
    mask: NDArray[np.bool_] | None = None
    void: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class FigureRequest:
    """Everything that a figure is made from.

    Attributes:
        lens: The model to explain.
        examples: The images, in the order of the figure.
        targets: Classes that replace those of the examples: none, one for all, or one per example.
        n: The number of last blocks for GAM.
        others: The number of last blocks for the other methods.
        score: The pair score.
        threshold: A map value from 0 to 1; boxes and masks are drawn around the pixels of at least this value.
        lattice: How blocks are read of which the network uses only some positions, as in `Trace.explain`.
        digits: MNIST's images (N,28,28) and labels (N,), for rows of random labels in the figure "sanity"; or None.
    """

    lens: Lens
    examples: tuple[Example, ...]
    targets: tuple[str | int, ...] = ()
    n: int = PAPER_N
    others: int = 1
    score: str = "cosine"
    threshold: float = 0.25
    digits: Digits | None = None
    lattice: str = "read"

    def blocks_of(self, method: str) -> int:
        """The number of blocks for a method. For a model with one block, the default PAPER_N becomes 1."""
        wanted = self.n if method == "gam" else self.others
        return 1 if wanted == PAPER_N and len(self.lens.blocks) == 1 else wanted

    @property
    def most(self) -> int:
        """The largest number of blocks that any method needs."""
        return max(self.n, self.others)

    def head(self, method: str) -> str:
        """A column head such as "GAM, n=2"."""
        return f"{METHODS[method].title}, n={self.blocks_of(method)}"

    def trace(self, example: Example, n: int | None = None) -> Trace:
        """Trace one example for its target with n blocks (default: as many as any method needs)."""
        target = None if example.target is None else [example.target]
        return self.lens.trace(example.image, target, n=self.most if n is None else n)

    def explain(self, trace: Trace, methods: tuple[str, ...]) -> dict[str, Explanation]:
        """Explain a trace by each method, with that method's own number of blocks: {method: explanation}."""
        return {name: trace.explain(name, self.blocks_of(name), lattice=self.lattice) for name in methods}


def targeted_examples(request: FigureRequest) -> tuple[Example, ...]:
    """The examples with the request's targets in place of their own, if it has any: one for all, or one per example."""
    targets, examples = request.targets, request.examples
    if not targets:
        return examples
    if len(targets) not in (1, len(examples)):
        raise GamlensError(
            f"{len(targets)} targets were given for {len(examples)} images: give one for all, or one per image."
        )
    given = targets * len(examples) if len(targets) == 1 else targets
    return tuple(replace(example, target=target) for example, target in zip(examples, given, strict=True))


def example_pairs(request: FigureRequest) -> list[tuple[Example, Example]]:
    """The examples as pairs: the first with the second, the third with the fourth, and so on."""
    examples = request.examples
    if len(examples) % 2:
        raise GamlensError(f"A figure of pairs takes images two by two; found {len(examples)}: give one more.")
    return list(zip(examples[::2], examples[1::2], strict=True))


def require_several_blocks(lens: Lens) -> None:
    """Raise a GamlensError if the model has only one block. For figures that compare blocks."""
    if len(lens.blocks) < 2:
        raise GamlensError(
            f"This figure compares blocks and {lens.name} has {len(lens.blocks)} ({', '.join(lens.blocks)}): use a "
            "model with more blocks, or name several with --blocks."
        )


def from_images(files: Sequence[str], *, masks: Path | None = None) -> tuple[Example, ...]:
    """One example per image file. `masks` is a folder with NAME.png for each NAME.*, bright where the object is."""
    return tuple(Example(file, mask=None if masks is None else _mask_of(file, masks)) for file in files)


def _mask_of(file: str, folder: Path) -> NDArray[np.bool_]:
    place, image = folder / f"{Path(file).stem}.png", upright(file)
    if not place.is_file():
        raise GamlensError(f"There is no mask {str(place)!r} for the image {file!r}: --masks needs one for each image.")
    mask = np.asarray(upright(place).convert("L")) > 127
    if mask.shape != (image.height, image.width):
        raise GamlensError(
            f"The mask {str(place)!r} is {mask.shape[1]} x {mask.shape[0]}, its image {image.width} x "
            f"{image.height}: give a mask of the image's size."
        )
    return mask


def from_dataset(
    dataset: Dataset,
    lens: Lens,
    *,
    takes: str = "images",
    count: int = 4,
    items: Sequence[str] = (),
    pairs_per_class: int | None = None,
) -> tuple[Example, ...]:
    """Examples from a data set.

    Args:
        dataset: The data set.
        lens: The model; classes of the data set are matched with its labels.
        takes: "images", "boxes", "masks", "pairs" (neighbours of one class), or "overview" (an image and a pair).
        count: How many items to take, spread evenly over the data set.
        items: Names of the items to take instead.
        pairs_per_class: If given, pairs are drawn, this many of each class, in place of neighbours.
    """
    if takes == "overview":
        one = from_dataset(dataset, lens, count=1, items=items[:1])
        return one + from_dataset(
            dataset, lens, takes="pairs", count=1, items=items[1:], pairs_per_class=pairs_per_class
        )
    task, kind = ("cosine", "localization") if takes == "pairs" else ("classification", "objective")
    kind = {"boxes": "localization", "masks": "segmentation"}.get(takes, kind)
    dataset = dataset if takes == "pairs" else align(dataset, lens.labels)
    if pairs_per_class is None:
        protocol = Protocol(kind, task, pairs="neighbour", hold_out=0)
    else:
        protocol = Protocol(kind, task, pairs_per_class=pairs_per_class, hold_out=0)
    found = [unit for unit in units(dataset, protocol) if not unit.problem]
    by_name = Registry("item", {unit.name: unit for unit in found})
    chosen = [by_name[name] for name in items] if items else found[:: max(1, len(found) // count)][:count]
    truth = "segmentation" if takes == "masks" else "localization"  # boxes are shown wherever the data set has them
    examples = []
    for unit in chosen:
        name, target = dataset.classes[unit.label], None if takes == "pairs" else unit.label
        title = "" if name.isdigit() else name.split(",")[0].replace("_", " ")
        examples += [replace(example_of(sample, unit, truth), target=target, title=title) for sample in unit.samples]
    return tuple(examples)


def example_of(sample: Sample, unit: Unit, kind: str) -> Example:
    """Make an example of a sample's image with the ground truth of the unit's class that suits `kind`."""
    own = [box for box in sample.boxes if box.label == unit.label and kind == "localization"]
    boxes = tuple((box.x0, box.y0, box.x1, box.y1) for box in own)
    mask, void = (sample.load_mask(unit.label), sample.void()) if kind == "segmentation" else (None, None)
    return Example(sample.image, boxes=boxes, size=sample.size, mask=mask, void=void)
