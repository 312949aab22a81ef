"""Maps that another program wrote: `maps:FOLDER`, one file of numpy (.npy) per image.

The map of an image is FOLDER/NAME.npy, where NAME is its name in the data set, or the name of its file, with or
without the ending: `ILSVRC2012_val_00000001.npy` or `ILSVRC2012_val_00000001.JPEG.npy`; it may lie in a folder below,
as `gamlens export` writes it (with `--size input --no-stretch` for the maps as they were measured). It is an array
(H,W) of numbers of any range. A map of the size of the model's input is taken as it is. Any other must show the whole
image, so it has the proportions of the original; it is resampled bilinearly where the model's input lies in the image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens.errors import GamlensError, reworded
from gamlens.evaluation.explainers.checked_maps import checked_maps
from gamlens.evaluation.explainers.explainer import BoundExplainer, Explainer, NamedImage
from gamlens.evaluation.explainers.explainer_specs import ExplainerSpec, take_options
from gamlens.inputs.frame import Frame
from gamlens.lens import Lens

MAP_SUFFIX = ".npy"
FILES_READ = 50  # about how many maps, evenly spread, the fingerprint of a folder reads


def maps_explainer(spec: ExplainerSpec) -> Explainer:
    """The explainer that `maps:FOLDER` names. It explains nothing by itself: its maps are found by an image's name."""
    take_options(spec, {})
    folder = Path(spec.entry)
    if not folder.is_dir():
        raise GamlensError(
            f"{spec.text!r}: there is no folder {spec.entry!r}. Write maps:FOLDER, with a file per image."
        )
    return Explainer(
        name=spec.text,
        title=spec.title,
        bind=_nothing_bound,
        source=_fingerprint(folder),
        by_name=partial(_maps_of, spec.text, folder),
    )


def _nothing_bound(lens: Lens) -> BoundExplainer:
    return BoundExplainer()


def _fingerprint(folder: Path) -> str:
    """The number of map files and a sha256, by which a changed folder is noticed.

    It is of the names and sizes of all files and of the contents of some: maps that were made anew have the same sizes.
    """
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob(f"*{MAP_SUFFIX}") if file.is_file()}
    names = sorted(files)
    found = hashlib.sha256(repr([(name, files[name].stat().st_size) for name in names]).encode())
    for name in names[:: max(1, len(names) // FILES_READ)]:
        found.update(files[name].read_bytes())
    return f"{len(names)} files, sha256 of names, sizes and some contents {found.hexdigest()}"


def _maps_of(name: str, folder: Path, lens: Lens, images: Sequence[NamedImage], frames: Sequence[Frame]) -> Tensor:
    """The maps (B,H,W) of images in the frames of the model's input."""
    found = [_read(folder, image, frame) for image, frame in zip(images, frames, strict=True)]
    if not found:
        raise GamlensError(f"{name!r} was asked for the maps of no image: give at least one.")
    return checked_maps(torch.stack(found), len(found), frames[0].size, name=name, device=lens.device)


def _read(folder: Path, image: NamedImage, frame: Frame) -> Tensor:
    tried = list(dict.fromkeys(_candidates(folder, image)))
    file = next(filter(Path.is_file, tried), None) or _deeper(folder, tried)
    if file is None:
        names = " or ".join(str(path) for path in tried)
        raise GamlensError(f"There is no map of the image {image.name!r}: write {names}, an array (H,W).")
    with reworded(f"Cannot read the map {str(file)!r} as an array of numbers"):
        values = torch.from_numpy(np.asarray(np.load(file, allow_pickle=False), dtype=np.float32))
    if values.ndim != 2 or values.numel() == 0:
        raise GamlensError(f"The map {str(file)!r} has the shape {tuple(values.shape)}: write an array (H,W).")
    if not bool(values.isfinite().all()):
        raise GamlensError(f"The map {str(file)!r} has NaN or infinite values: write finite numbers.")
    if tuple(values.shape) == frame.size:
        return values
    height, width = frame.original
    if abs(values.shape[0] * width - values.shape[1] * height) > max(height, width):
        raise GamlensError(
            f"The map {str(file)!r} has the shape {tuple(values.shape)}, which is neither that of the model's input "
            f"{frame.size} nor in proportion to the image {frame.original}: write the map of the whole image."
        )
    return map_in(values, frame)


def _candidates(folder: Path, image: NamedImage) -> Iterator[Path]:
    for name in (image.name, Path(image.image).name, Path(image.image).stem, Path(image.name).name):
        yield folder / f"{name}{MAP_SUFFIX}"


def _deeper(folder: Path, tried: Sequence[Path]) -> Path | None:
    """The one file of such a name in a folder below, where `gamlens export` writes it; None if there is none."""
    below = _files_below(folder)
    found = {file for path in tried for file in below.get(path.name, ())}
    return found.pop() if len(found) == 1 else None


@lru_cache(maxsize=4)
def _files_below(folder: Path) -> dict[str, list[Path]]:
    """All files of maps in a folder and below it, by their names."""
    found: dict[str, list[Path]] = {}
    for file in folder.rglob(f"*{MAP_SUFFIX}"):
        found.setdefault(file.name, []).append(file)
    return found


def map_in(values: Tensor, frame: Frame) -> Tensor:
    """Resample the map (h,w) of a whole image to the model's input: (H,W), zero outside of the image.

    An input pixel takes the value at its centre, interpolated bilinearly. A map that is larger than the input shows it
    is made smaller first, with antialiasing.
    """
    x0, y0, x1, y1 = frame.window
    height, width = frame.original
    shown = round(height * frame.size[0] / (y1 - y0)), round(width * frame.size[1] / (x1 - x0))
    small = max(1, min(shown[0], values.shape[0])), max(1, min(shown[1], values.shape[1]))
    if small != tuple(values.shape):
        values = F.interpolate(values[None, None], size=small, mode="bilinear", antialias=True)[0, 0]
    y = (y0 + (torch.arange(frame.size[0]) + 0.5) * (y1 - y0) / frame.size[0]) / height
    x = (x0 + (torch.arange(frame.size[1]) + 0.5) * (x1 - x0) / frame.size[1]) / width
    grid = torch.stack(torch.meshgrid(x * 2 - 1, y * 2 - 1, indexing="xy"), dim=-1)
    found = F.grid_sample(values[None, None], grid[None].to(values), padding_mode="border", align_corners=False)[0, 0]
    inside = ((y >= 0) & (y < 1))[:, None] & ((x >= 0) & (x < 1))[None]
    return found * inside
