"""ILSVRC-2012 as Kaggle publishes it, or unpacked into one folder per class, as torchvision expects it."""

from collections.abc import Sequence
from pathlib import Path

from gamlens.data import reading
from gamlens.data.reading import Annotation, AnyPath
from gamlens.data.sample import Dataset, Sample
from gamlens.errors import GamlensError

INSIDE = Path("CLS-LOC")
MAPPING = "LOC_synset_mapping.txt"


def ilsvrc(root: AnyPath, *, split: str | None = None, limit: int | None = None) -> Dataset:
    """The images sorted by name, with boxes as the XML files give them; `split` is "val" (default) or "train".

    A class index is the line number in LOC_synset_mapping.txt, from 0. Without that file it is the place of the class
    folder among all class folders, sorted by WordNet id.
    """
    base, split = reading.dataset_folder(root), split or "val"
    top = base / "ILSVRC" if (base / "ILSVRC" / "Data").is_dir() else base
    kaggle = top / "Data" / INSIDE / split
    images = reading.first([kaggle, top / split], f"ILSVRC split {split!r}", 'Splits are "val" and "train".')
    places = (top / "Annotations" / INSIDE / split, top / "bbox" / split)
    xmls = next((place for place in places if place.is_dir()), None)
    lists = (top, base, top.parent) if images == kaggle else (top,)
    flat = reading.images_in(images)
    folders = [] if flat else reading.folders_in(images)
    classes = _classes(lists, folders)
    index = {wnid: number for number, (wnid, _) in enumerate(classes)}
    files = {Path(name).stem: (images / name, "") for name in flat}
    found = list(files.values()) or [
        (images / wnid / name, wnid) for wnid in folders for name in reading.images_in(images / wnid)
    ]
    answers = {} if folders else _answers(images, list(files), lists, f"LOC_{split}_solution.csv", needed=xmls is None)
    chosen = reading.cut(sorted(found, key=lambda item: item[0].stem), limit)
    if not chosen:
        raise GamlensError(f"There are no images in {str(images)!r}: expected *.JPEG or folders of them.")
    samples = tuple(_sample(path, wnid, xmls, index, answers.get(path.stem)) for path, wnid in chosen)
    return Dataset("ilsvrc", str(root), tuple(name for _, name in classes), samples)


def _classes(lists: Sequence[Path], folders: Sequence[str]) -> list[tuple[str, str]]:
    """The WordNet id and name of each class, in the order of the class indices; `folders` are the class folders."""
    places = [place / MAPPING for place in lists]
    if folders and not any(place.exists() for place in places):
        return [(wnid, wnid) for wnid in folders]
    mapping = reading.first(
        places, "list of classes", f"Put Kaggle's {MAPPING} there: its line numbers are the class indices."
    )
    pairs = (line.strip().partition(" ") for line in reading.text(mapping).splitlines() if line.strip())
    return [(wnid, name.strip() or wnid) for wnid, _, name in pairs]


def _answers(
    images: Path, stems: Sequence[str], lists: Sequence[Path], file: str, *, needed: bool
) -> dict[str, Annotation]:
    """{image id: its boxes} from Kaggle's rows, such as `ILSVRC2012_val_00000005,n03125729 13 1 326 255`.

    A missing file is an error only where it is `needed`, which it is if nothing else says which class an image shows.
    """
    places = [place / file for place in lists]
    if not needed and not any(place.exists() for place in places):
        return {}
    path = reading.first(places, "list of answers", f"Put Kaggle's {file} there: it says which class an image shows.")
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
    reading.all_there([f"{stem}.JPEG" for stem in answers], [f"{stem}.JPEG" for stem in stems], images, path)
    return answers


def _sample(path: Path, wnid: str, xmls: Path | None, index: dict[str, int], answer: Annotation | None) -> Sample:
    """One sample, with boxes from its XML file, else from Kaggle's CSV, or none; `wnid` is its class folder or ""."""
    places = [folder / f"{path.stem}.xml" for folder in (xmls, xmls / wnid)] if xmls else []
    xml = next((place for place in places if place.is_file()), None)
    note = reading.read_xml(xml) if xml else answer or Annotation()
    where = repr(str(xml or path))
    boxes = note.boxes(index, where)
    names = [wnid] if wnid else [name for name, _ in (answer or note).objects]
    labels = tuple(sorted({reading.class_index(name, index, where) for name in names}))
    size = note.size or (reading.image_size(path) if boxes else None)
    return Sample(path.stem, str(path), labels, boxes, size)
