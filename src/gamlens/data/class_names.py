"""The class names of public data sets, and which class of a data set is which class of a model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gamlens.data.reading import own_json
from gamlens.data.sample import Dataset, Mask, MaskSource, Sample
from gamlens.data.subsets import Manifest
from gamlens.errors import GamlensError, warn

_NAMES = own_json("class_names.json")
VOC_CLASSES, COCO_CLASSES, CHEST_FINDINGS = (tuple(_NAMES[data]) for data in ("voc", "coco", "chestxray"))
CHEST_ALIASES: dict[str, str] = _NAMES["chestxray_aliases"]
SYNONYMS: dict[str, str] = _NAMES["synonyms"]


@dataclass(frozen=True)
class RenumberedMask:
    """The masks of an image whose labels were renumbered: `numbers` is {new label: label in the mask}."""

    mask: MaskSource
    numbers: Mapping[int, int]

    def read(self, label: int) -> Mask:
        return self.mask.read(self.numbers[label])

    def void(self) -> Mask | None:
        return self.mask.void()


def match(classes: Sequence[str], labels: Sequence[str]) -> dict[int, int]:
    """Match the classes of a data set with those of a model by name: {index in `classes`: index in `labels`}.

    Capitals, `_` and `-` make no difference, and the names that VOC and COCO give to the same class match each other
    (`SYNONYMS`). A name that occurs twice in one of the lists matches nothing.

    >>> match(["tv", "cat", "zebra"], ["cat", "tvmonitor"])
    {0: 1, 1: 0}
    """
    theirs, ours = ([_plain(name) for name in names] for names in (classes, labels))
    once = {name for names in (theirs, ours) for name, count in Counter(names).items() if count > 1}
    where = {name: index for index, name in enumerate(ours) if name not in once}
    return {index: where[name] for index, name in enumerate(theirs) if name in where}


def align(dataset: Dataset, labels: Sequence[str]) -> Dataset:
    """Return the data set with the class numbers of the model.

    Labels and boxes of classes that the model does not have are left out, with a warning that names these classes. It
    is an error if the model has none of the classes. The data set is returned unchanged where the model or the data set
    has no class names, or where both have equally many classes and every shared name has the same number in both.
    """
    if not labels or all(name.isdigit() for name in dataset.classes):
        return dataset
    found = match(dataset.classes, labels)
    if len(labels) == len(dataset.classes) and all(theirs == ours for theirs, ours in found.items()):
        return dataset
    if not found:
        raise GamlensError(
            f"The model has {len(labels)} classes ({', '.join(labels[:3])}, ...), {dataset.name} has "
            f"{len(dataset.classes)} ({', '.join(dataset.classes[:3])}, ...), and no name is in both: use a model of "
            "these classes, or a task that compares pairs of images, such as --task cosine, which needs no classes."
        )
    if len(found) < len(dataset.classes):
        missing = [name for index, name in enumerate(dataset.classes) if index not in found]
        warn(
            f"The model has {len(found)} of the {len(dataset.classes)} classes of {dataset.name}. Left out are "
            f"{', '.join(missing[:5])}{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}."
        )
    back = {ours: theirs for theirs, ours in found.items()}
    samples = tuple(_renumbered(sample, found, back) for sample in dataset)
    return replace(dataset, classes=tuple(labels), samples=samples)


def align_manifest(manifest: Manifest, whole: Dataset, aligned: Dataset) -> Manifest:
    """Convert a manifest of a data set (`whole`) to one of the result of `align` (`aligned`).

    Labels get the class numbers of the aligned data set, and items of classes that it does not have are left out.
    """
    manifest.check(whole)
    if aligned is whole:
        return manifest
    found = match(whole.classes, aligned.classes)
    items = [item if item.label < 0 else replace(item, label=found.get(item.label, -1)) for item in manifest.items]
    kept = [new for new, old in zip(items, manifest.items, strict=True) if new.label >= 0 or old.label < 0]
    return replace(manifest, source=aligned.fingerprint(), items=tuple(kept))


def _renumbered(sample: Sample, found: Mapping[int, int], back: Mapping[int, int]) -> Sample:
    return replace(
        sample,
        labels=tuple(sorted(found[label] for label in sample.labels if label in found)),
        boxes=tuple(replace(box, label=found[box.label]) for box in sample.boxes if box.label in found),
        mask=sample.mask and RenumberedMask(sample.mask, back),
    )


def _plain(name: str) -> str:
    plain = " ".join(name.lower().replace("_", " ").replace("-", " ").split())
    return SYNONYMS.get(plain, plain)
