"""ILSVRC-2012 as Kaggle publishes it, or unpacked into class folders as the devkit and torchvision have it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gamlens.data.files import (
    Note,
    Root,
    all_there,
    cut,
    first,
    folder,
    folders_in,
    image_size,
    images_in,
    read_xml,
    rows,
    text,
)
from gamlens.data.sample import Box, Dataset, Sample
from gamlens.errors import GamlensError, near

INSIDE = Path("CLS-LOC")
MAPPING = "LOC_synset_mapping.txt"


@dataclass(frozen=True)
class _Layout:
    """Where the parts lie: images, the annotations (if any), and the folders that may hold Kaggle's lists."""

    images: Path
    notes: Path | None
    lists: tuple[Path, ...]
    split: str


def ilsvrc(root: Root, *, split: str | None = None, limit: int | None = None) -> Dataset:
    """Images sorted by name, with XML boxes as given; `split` is "val" (default) or "train".

    Class indices: line numbers of LOC_synset_mapping.txt; without it, the class folders' WordNet ids, sorted.
    """
    layout = _layout(folder(root), split or "val")
    by_folder = {} if images_in(layout.images) else {wnid: layout.images / wnid for wnid in folders_in(layout.images)}
    wnids, classes = _classes(layout, tuple(by_folder))
    index = {wnid: number for number, wnid in enumerate(wnids)}
    if by_folder:
        files = [(place / name, wnid) for wnid, place in by_folder.items() for name in images_in(place)]
        files.sort(key=lambda item: item[0].stem)
        samples = [_sample(path, wnid, layout, index, None) for path, wnid in cut(files, limit)]
    else:
        samples = _flat(layout, index, limit)
    if not samples:
        raise GamlensError(f"There are no images in {str(layout.images)!r}: expected *.JPEG or folders of them.")
    return Dataset("ilsvrc", str(root), classes, tuple(samples))


def _layout(root: Path, split: str) -> _Layout:
    top = root / "ILSVRC" if (root / "ILSVRC" / "Data").is_dir() else root
    kaggle = top / "Data" / INSIDE / split
    images = first([kaggle, top / split], f"ILSVRC split {split!r}", 'Splits are "val" and "train".')
    notes = [place for place in (top / "Annotations" / INSIDE / split, top / "bbox" / split) if place.is_dir()]
    lists = (top, root, top.parent) if images == kaggle else (top,)
    return _Layout(images, notes[0] if notes else None, lists, split)


def _classes(layout: _Layout, folders: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """WordNet ids and names in the order of the class indices."""
    places = [place / MAPPING for place in layout.lists]
    if folders and not any(place.exists() for place in places):
        return folders, folders
    mapping = first(places, "list of classes", f"Put Kaggle's {MAPPING} there: its line numbers are the class indices.")
    pairs = [line.strip().partition(" ") for line in text(mapping).splitlines() if line.strip()]
    return tuple(wnid for wnid, _, _ in pairs), tuple(name.strip() or wnid for wnid, _, name in pairs)


def _flat(layout: _Layout, index: dict[str, int], limit: int | None) -> list[Sample]:
    """All images in one folder: the class is in the solution CSV, or in the XML where there is none."""
    names = {Path(name).stem: name for name in images_in(layout.images)}
    file = f"LOC_{layout.split}_solution.csv"
    places = [place / file for place in layout.lists]
    answers: dict[str, Note] = {}
    if layout.notes is None or any(place.exists() for place in places):
        solution = first(places, "list of answers", f"Put Kaggle's {file} there: it says which class an image shows.")
        answers = _solution(solution)
        all_there([f"{stem}.JPEG" for stem in answers], [f"{stem}.JPEG" for stem in names], layout.images, solution)
    chosen = cut(sorted(names), limit)
    return [_sample(layout.images / names[stem], None, layout, index, answers.get(stem)) for stem in chosen]


def _solution(path: Path) -> dict[str, Note]:
    """Image id -> its boxes, from rows such as `ILSVRC2012_val_00000005,n03125729 13 1 326 255`."""
    answers: dict[str, Note] = {}
    for number, row in enumerate(rows(path)[1:], start=2):
        words = row[1].split() if len(row) == 2 else []
        try:
            objects = [(words[at], tuple(map(float, words[at + 1 : at + 5]))) for at in range(0, len(words), 5)]
        except ValueError:
            objects = []
        if not objects or len(words) % 5:
            raise GamlensError(
                f"Line {number} of {str(path)!r} is not `ImageId,wnid x0 y0 x1 y1 ...`: found {','.join(row)!r}. "
                "Download the file again."
            )
        answers[row[0].strip()] = Note(None, tuple(objects))
    return answers


def _sample(path: Path, wnid: str | None, layout: _Layout, index: dict[str, int], answer: Note | None) -> Sample:
    """Boxes from the XML, else from the solution CSV, else none."""
    xml = None
    if layout.notes is not None:
        places = (layout.notes / f"{path.stem}.xml", layout.notes / (wnid or "") / f"{path.stem}.xml")
        xml = next((place for place in places if place.is_file()), None)
    note = read_xml(xml) if xml else answer or Note(None, ())
    where = str(xml or path)
    boxes = tuple(Box(_index(name, index, where), *corners) for name, corners in note.objects)
    named = [wnid] if wnid else [name for name, _ in (answer or note).objects]
    labels = tuple(sorted({_index(name, index, where) for name in named}))
    size = note.size or (image_size(path) if boxes else None)
    return Sample(path.stem, str(path), labels, boxes, size)


def _index(wnid: str, index: dict[str, int], where: str) -> int:
    if wnid not in index:
        raise GamlensError(
            f"The class {wnid!r} of {where!r} is not among the {len(index)} classes of {MAPPING}: {near(wnid, index)}"
        )
    return index[wnid]
