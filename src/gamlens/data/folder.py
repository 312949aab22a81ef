"""A folder of images: in one subfolder per class, or all in the folder itself, without labels."""

import os
from collections.abc import Iterator
from pathlib import Path

from gamlens.data.reading import AnyPath, cut, dataset_folder, first, folders_in, images_in, is_image
from gamlens.data.sample import Dataset, Sample
from gamlens.errors import GamlensError
from gamlens.inputs.images import IMAGE_EXTENSIONS


def folder(root: AnyPath, *, split: str | None = None, limit: int | None = None) -> Dataset:
    """The images, named by their path and sorted by it. Classes are the subfolders, sorted by name.

    `split` is a folder inside `root` that is read in its place.
    """
    base = dataset_folder(root)
    if split is not None:
        base = first([base / split], f"split {split!r}", f"Folders there: {', '.join(folders_in(base)) or 'none'}.")
    flat = images_in(base)
    classes = () if flat else tuple(name for name in folders_in(base) if next(_below(base / name), None))
    files: list[tuple[str, tuple[int, ...]]] = [(name, ()) for name in flat]
    for label, name in enumerate(classes):
        files += [(path.relative_to(base).as_posix(), (label,)) for path in _below(base / name)]
    if not files:
        raise GamlensError(
            f"There are no images in {str(base)!r}: expected files ({', '.join(IMAGE_EXTENSIONS)}) or one subfolder "
            "per class."
        )
    samples = tuple(Sample(name, str(base / name), labels) for name, labels in cut(sorted(files), limit))
    return Dataset("folder", str(root), classes, samples)


def _below(base: Path) -> Iterator[Path]:
    """Every image file below a folder."""
    for place, _, names in os.walk(base):
        yield from (Path(place, name) for name in names if is_image(name))
