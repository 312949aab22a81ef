"""ILSVRC-2012 as Kaggle publishes it, or unpacked into class folders as the devkit and torchvision have it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gamlens.data import reading
from gamlens.data.reading import Annotation, AnyPath
from gamlens.data.sample import Dataset, Sample
from gamlens.errors import GamlensError

INSIDE = Path("CLS-LOC")
MAPPING = "LOC_synset_mapping.txt"


@dataclass(frozen=True)
class _SplitFolders:
    """Where the parts of a split lie: images, annotations (if any), and the folders that may hold Kaggle's lists."""

    images: Path
    notes: Path | None
    lists: tuple[Path, ...]
    split: str


def ilsvrc(root: AnyPath, *, split: str | None = None, limit: int | None = None) -> Dataset:
    """Images sorted by name, with XML boxes as given; `split` is "val" (default) or "train".

    Class indices: line numbers of LOC_synset_mapping.txt; without it, the class folders' WordNet ids, sorted.
    """
    folders = _split_folders(reading.dataset_folder(root), split or "val")
    flat = reading.images_in(folders.images)
    by_folder = {} if flat else {wnid: folders.images / wnid for wnid in reading.folders_in(folders.images)}
    wnids, classes = _classes(folders, tuple(by_folder))
    index = {wnid: number for number, wnid in enumerate(wnids)}
    if by_folder:
        files = [(place / name, wnid) for wnid, place in by_folder.items() for name in reading.images_in(place)]
        files.sort(key=lambda item: item[0].stem)
        samples = [_sample(path, wnid, folders, index, None) for path, wnid in reading.cut(files, limit)]
    else:
        samples = _flat(folders, index, limit)
    if not samples:
        raise GamlensError(f"There are no images in {str(folders.images)!r}: expected *.JPEG or folders of them.")
    return Dataset("ilsvrc", str(root), classes, tuple(samples))


def _split_folders(root: Path, split: str) -> _SplitFolders:
    top = root / "ILSVRC" if (root / "ILSVRC" / "Data").is_dir() else root
    kaggle = top / "Data" / INSIDE / split
    images = reading.first([kaggle, top / split], f"ILSVRC split {split!r}", 'Splits are "val" and "train".')
    notes = [place for place in (top / "Annotations" / INSIDE / split, top / "bbox" / split) if place.is_dir()]
    lists = (top, root, top.parent) if images == kaggle else (top,)
    return _SplitFolders(images, notes[0] if notes else None, lists, split)


def _classes(folders: _SplitFolders, wnids: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """WordNet ids and names in the order of the class indices; `wnids` are the class folders, where there are some."""
    places = [place / MAPPING for place in folders.lists]
    if wnids and not any(place.exists() for place in places):
        return wnids, wnids
    mapping = reading.first(
        places, "list of classes", f"Put Kaggle's {MAPPING} there: its line numbers are the class indices."
    )
    pairs = [line.strip().partition(" ") for line in reading.text(mapping).splitlines() if line.strip()]
    return tuple(wnid for wnid, _, _ in pairs), tuple(name.strip() or wnid for wnid, _, name in pairs)


def _flat(folders: _SplitFolders, index: dict[str, int], limit: int | None) -> list[Sample]:
    """All images in one folder: the class is in the solution CSV, or in the XML where there is none."""
    names = {Path(name).stem: name for name in reading.images_in(folders.images)}
    file = f"LOC_{folders.split}_solution.csv"
    places = [place / file for place in folders.lists]
    answers: dict[str, Annotation] = {}
    if folders.notes is None or any(place.exists() for place in places):
        solution = reading.first(
            places, "list of answers", f"Put Kaggle's {file} there: it says which class an image shows."
        )
        answers = _solution(solution)
        reading.all_there(
            [f"{stem}.JPEG" for stem in answers], [f"{stem}.JPEG" for stem in names], folders.images, solution
        )
    chosen = reading.cut(sorted(names), limit)
    return [_sample(folders.images / names[stem], None, folders, index, answers.get(stem)) for stem in chosen]


def _solution(path: Path) -> dict[str, Annotation]:
    """Image id -> its boxes, from rows such as `ILSVRC2012_val_00000005,n03125729 13 1 326 255`."""
    answers: dict[str, Annotation] = {}
    for number, row in enumerate(reading.rows(path)[1:], start=2):
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
        answers[row[0].strip()] = Annotation(None, tuple(objects))
    return answers


def _sample(
    path: Path, wnid: str | None, folders: _SplitFolders, index: dict[str, int], answer: Annotation | None
) -> Sample:
    """Boxes from the XML, else from the solution CSV, else none."""
    xml = None
    if folders.notes is not None:
        places = (folders.notes / f"{path.stem}.xml", folders.notes / (wnid or "") / f"{path.stem}.xml")
        xml = next((place for place in places if place.is_file()), None)
    note = reading.read_xml(xml) if xml else answer or Annotation()
    where = repr(str(xml or path))
    boxes = note.boxes(index, where)
    names = [wnid] if wnid else [name for name, _ in (answer or note).objects]
    labels = tuple(sorted({reading.class_index(name, index, where) for name in names}))
    size = note.size or (reading.image_size(path) if boxes else None)
    return Sample(path.stem, str(path), labels, boxes, size)
