"""The ids by which wsolevaluation names images, and which image of a data set each of them is.

The benchmark's metadata lists them: `image_ids.txt` has one id per line, such as `val/ILSVRC2012_val_00000001.JPEG`,
and `class_labels.txt` the id, a comma and the class number. An id is the path of the image below the benchmark's own
folder of images, so the same image may lie elsewhere in a data set as its owners publish it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PureWindowsPath

from gamlens.data import Sample
from gamlens.errors import GamlensError, readable, reworded


@dataclass(frozen=True)
class WsolId:
    """One line of a list of images of the benchmark: the id, and the class number if the list has one."""

    name: str
    label: int | None = None


@dataclass(frozen=True)
class MatchedIds:
    """Which sample each id of a list is.

    Attributes:
        samples: The samples, in the order of the list; with the list's class number where it has one.
        ids: Their ids.
        missing: The ids of which the data set has no image.
    """

    samples: tuple[Sample, ...]
    ids: tuple[str, ...]
    missing: tuple[str, ...]


def read_ids(file: str | Path) -> list[WsolId]:
    """Read a list of images of the benchmark: `image_ids.txt`, or `class_labels.txt`, whose class numbers are used.

    Args:
        file: The list.

    Returns:
        One WsolId per line; empty lines are skipped.
    """
    with reworded(f"Cannot read the list of ids {str(file)!r}", OSError, UnicodeError, todo=". Give image_ids.txt."):
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    found = [_parsed(line) for line in lines if line.strip()]
    if not found:
        raise GamlensError(f"The list of ids {str(file)!r} is empty: give the benchmark's image_ids.txt.")
    return found


def _parsed(line: str) -> WsolId:
    name, comma, number = line.rpartition(",")
    return WsolId(name, int(number)) if comma and number.strip().isdecimal() else WsolId(line)


def match_ids(samples: Iterable[Sample], listed: Sequence[WsolId]) -> MatchedIds:
    """Find the image of each id: the one whose path has the most last parts in common with it.

    At least the file names must be equal. An id for which several images are equally good counts as missing.

    Args:
        samples: The samples of a data set.
        listed: The ids, as `read_ids` gives them.

    Example:
        >>> lion = Sample("a", "/data/ILSVRC/Data/CLS-LOC/val/a.JPEG", (291,))
        >>> match_ids([lion], [WsolId("val/a.JPEG"), WsolId("val/b.JPEG")]).missing
        ('val/b.JPEG',)
    """
    by_file: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_file[PurePath(sample.image).name].append(sample)
    chosen, names, missing = [], [], []
    for one in listed:
        parts = one.name.split("/")
        common = [(_common(PurePath(sample.image).parts, parts), sample) for sample in by_file.get(parts[-1], ())]
        best = max((length for length, _ in common), default=0)
        found = [sample for length, sample in common if length == best]
        if len(found) != 1:
            missing.append(one.name)
            continue
        chosen.append(found[0] if one.label is None else replace(found[0], labels=(one.label,)))
        names.append(one.name)
    return MatchedIds(tuple(chosen), tuple(names), tuple(missing))


def _common(path: Sequence[str], other: Sequence[str]) -> int:
    """How many last parts of two paths are equal."""
    count = 0
    for ours, theirs in zip(reversed(path), reversed(other), strict=False):
        if ours != theirs:
            break
        count += 1
    return count


def default_ids(samples: Iterable[Sample]) -> list[str]:
    """The ids without a list: the name of the image's folder and of its file, with its ending.

    They are the benchmark's for ILSVRC as Kaggle publishes it, `val/ILSVRC2012_val_00000001.JPEG`, and for CUB,
    `001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg`.

    >>> default_ids([Sample("a", "/data/CUB_200_2011/images/001.Albatross/a.jpg")])
    ['001.Albatross/a.jpg']
    """
    places = (PurePath(sample.image) for sample in samples)
    return ["/".join(part for part in place.parts[-2:] if part not in (place.anchor, "..")) for place in places]


def check_ids(ids: Sequence[str]) -> None:
    """Raise a GamlensError if a file named by one of the ids would lie outside of the folder, or two are equal."""
    for name in ids:
        parts = name.split("/")
        outside = PurePath(name).is_absolute() or PureWindowsPath(name).drive
        if outside or "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise GamlensError(
                f"The id {readable(name)!r} is no path below a folder: give ids such as 'val/0001.JPEG', without '..' "
                "and without a leading '/'."
            )
    twice = [name for name, count in Counter(ids).items() if count > 1]
    if twice:
        raise GamlensError(
            f"{len(twice)} ids stand for several images, such as {readable(twice[0])!r}: give a list in which every "
            "image has an id of its own (ids= in Python, --ids FILE on the command line)."
        )
