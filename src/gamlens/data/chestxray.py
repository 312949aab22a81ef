"""ChestX-ray8: X-rays with boxes around findings.

The published boxes are in pixels of the original images of 1024 x 1024, whatever size the image files have.
"""

from collections import defaultdict
from pathlib import Path

from gamlens.data import reading
from gamlens.data.class_names import CHEST_ALIASES, CHEST_FINDINGS
from gamlens.data.reading import AnyPath
from gamlens.data.sample import Box, Dataset, Sample, labels_of
from gamlens.errors import GamlensError, reworded

DRAWN_ON = 1024.0  # the width and height of the images that the boxes were drawn on
LIST = "BBox_List_2017.csv"


def chestxray(root: AnyPath, *, split: str | None = None, limit: int | None = None) -> Dataset:
    """The X-rays that have boxes, sorted by name. With split="all" also those without boxes, which have no labels.

    Boxes are scaled from 1024 pixels to the size of the image file. Labels index the 14 findings in CheXNet's order.
    """
    if split not in (None, "boxes", "all"):
        raise GamlensError(
            f'ChestX-ray8 has no split {split!r}: use "boxes" (X-rays with boxes, the default) or "all".'
        )
    base = reading.dataset_folder(root)
    listing = reading.first([base / LIST], "list of boxes", "Download it from NIH beside the images.")
    found = _boxes(listing)
    parts = sorted(base.glob("images_*/images")) or [base / "images"]
    reading.first(parts, "folder of images", "Unpack the X-rays there (or into images_001/images and so on).")
    where = {name: part / name for part in parts for name in reading.images_in(part)}
    names = sorted(where.keys() | found.keys() if split == "all" else found)
    chosen = reading.cut(names, limit)
    reading.all_there(chosen, where, parts[0], listing)
    samples = tuple(_sample(where[name], found.get(name, ())) for name in chosen)
    return Dataset("chestxray", str(root), CHEST_FINDINGS, samples)


def _boxes(path: Path) -> dict[str, tuple[Box, ...]]:
    """Read the list of boxes: {file name: its boxes, in pixels of an image of 1024 x 1024}.

    The header of the list is `Image Index,Finding Label,Bbox [x,y,w,h]`, as published.
    """
    table = reading.rows(path)
    if not table or [cell.strip() for cell in table[0][:2]] != ["Image Index", "Finding Label"]:
        raise GamlensError(
            f"{str(path)!r} does not begin with `Image Index,Finding Label,Bbox [x,y,w,h]`: found "
            f"{','.join(table[0]) if table else 'an empty file'!r}. Use NIH's {LIST} as published."
        )
    index = {finding: number for number, finding in enumerate(CHEST_FINDINGS)}
    boxes: dict[str, list[Box]] = defaultdict(list)
    for number, row in enumerate(table[1:], start=2):
        where = f"Row {number} of {str(path)!r}"
        with reworded(f"{where} is not `file,finding,x,y,w,h`: found {','.join(row)!r}", IndexError, ValueError):
            name, finding = row[0].strip(), row[1].strip()
            x, y, width, height = (float(cell) for cell in row[2:6])
        label = reading.class_index(CHEST_ALIASES.get(finding, finding), index, where)
        boxes[name].append(Box(label, x, y, x + width, y + height))
    return {name: tuple(found) for name, found in boxes.items()}


def _sample(path: Path, drawn: tuple[Box, ...]) -> Sample:
    if not drawn:
        return Sample(path.name, str(path))
    height, width = reading.image_size(path)
    right, down = width / DRAWN_ON, height / DRAWN_ON
    boxes = tuple(Box(b.label, b.x0 * right, b.y0 * down, b.x1 * right, b.y1 * down) for b in drawn)
    return Sample(path.name, str(path), labels_of(boxes), boxes, (height, width))
