"""The files of an Explanation: overlay PNGs, maps.npz (maps of rows and blocks) and explanation.json (all else)."""

import hashlib
import io
import json
import math
import os
import stat
import zipfile
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from gamlens.data.plausible import read_arrays, stored_frame, whole_number
from gamlens.data.table import MOST_CLASS_NAMES
from gamlens.errors import GamlensError, reworded
from gamlens.explanation.map_bar import EndWords
from gamlens.explanation.result import NO_CLASS, Explanation, file_stem
from gamlens.files import StagedFiles, check_plain
from gamlens.inputs.images import Picture
from gamlens.render import write_png

FORMAT = 1
JSON, MAPS = "explanation.json", "maps.npz"
BLOCK_PREFIX = "block:"  # what the name of a block begins with in MAPS


def overlay_name(row: int, picture: str, name: str) -> str:
    return f"{row:03d}-{file_stem(Path(picture).stem)}-{file_stem(name)}.png"


def kept_name(number: int) -> str:
    return f"image-{number:03d}.png"


def pair_name(row: int) -> str:
    return f"{row:03d}-pair.png"


def stage(
    staged: StagedFiles, result: Explanation, place: Path, cmap: str, style: str, words: EndWords | None = None
) -> None:
    """Add the files of one Explanation in folder `place` to those that are written together.

    Maps with a sign are drawn with a colour bar; `words` say what its ends mean, as `Explanation.bar` takes them.
    """
    result = result.cpu()
    overlays = []
    for row, name in enumerate(result.names):
        overlays.append(overlay_name(row, result.picture(row).name, name))
        image = result.overlay(row, cmap=cmap, style=style)
        image = result.bar(row, cmap=cmap, words=words).below(image) if result.scales else image
        staged.write(place / overlays[-1], partial(write_png, image))
    arrays: dict[str, Any] = {
        "maps": result.maps.numpy(),
        **{f"{BLOCK_PREFIX}{name}": maps.numpy() for name, maps in result.blocks.items()},
    }
    staged.write(place / MAPS, partial(_write_maps, arrays))
    pictures = [_keep(staged, place, number, picture) for number, picture in enumerate(result.pictures)]
    text = json.dumps(_record(result, overlays, pictures), indent=2, ensure_ascii=False)
    staged.write(place / JSON, lambda out: out.write(text.encode(errors="backslashreplace")))


def is_saved(folder: str) -> bool:
    """Whether a folder holds an explanation, judged by the names of its files."""
    return all(os.path.isfile(os.path.join(folder, name)) for name in (JSON, MAPS))


def _write_maps(arrays: dict[str, Any], out: IO[bytes]) -> None:
    """Write maps.npz, with a mark in the comment of the zip archive that it is."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    with zipfile.ZipFile(stream, "a") as archive:
        archive.comment = _maps_mark(archive)
    out.write(stream.getvalue())


def is_marked_maps(file: Path) -> bool:
    """Whether a file is a maps.npz that `stage` wrote and nobody changed; False for a link."""
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return False
        with zipfile.ZipFile(file) as archive:
            return archive.comment == _maps_mark(archive)
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def _maps_mark(archive: zipfile.ZipFile) -> bytes:
    """The mark of an archive: a hash of the names, sizes and checksums of its arrays."""
    arrays = [(item.filename, item.file_size, item.CRC) for item in archive.infolist()]
    return b"gamlens sha256 " + hashlib.sha256(repr(arrays).encode()).hexdigest().encode()


def load(folder: str | Path) -> Explanation:
    """Read an Explanation that `save` wrote. Its pictures refer to the original files, or to copies in the folder."""
    place = Path(folder)
    for name in (JSON, MAPS):
        if not (place / name).exists():
            raise GamlensError(
                f"{str(place)!r} is not a saved explanation: {name} is missing. Give a folder that Explanation.save "
                "wrote."
            )
    with reworded(f"Cannot read the explanation in {str(place)!r}"):
        check_plain(place / JSON)
        record = json.loads((place / JSON).read_text(encoding="utf-8"))
        form = record.get("format") if isinstance(record, dict) else None
        if form != FORMAT:
            raise GamlensError(
                f"{str(place)!r} is written in format {form}; this version of gamlens reads format {FORMAT}: explain "
                "the images again, or use the version that wrote it."
            )
        found = read_arrays(place / MAPS, lambda name: name == "maps" or name.startswith(BLOCK_PREFIX))
        return _restore(place, record, {name: _maps(name, array, len(record["rows"])) for name, array in found.items()})


def _maps(name: str, array: Any, rows: int) -> torch.Tensor:
    """Maps as a tensor (R,H,W), where there is one map per row."""
    if array.ndim != 3 or len(array) != rows or array.dtype.kind != "f":
        raise ValueError(
            f"{rows} rows in {JSON}, and {name!r} in {MAPS} is {array.dtype} {array.shape}, not one map (H,W) per row"
        )
    return torch.from_numpy(array)


def _restore(place: Path, record: dict[str, Any], found: dict[str, torch.Tensor]) -> Explanation:
    """Make an Explanation from the contents of explanation.json and the arrays of maps.npz."""
    rows, images, maps = record["rows"], record["images"], found["maps"]
    if not isinstance(record["about"], dict) or any(other.shape != maps.shape for other in found.values()):
        raise ValueError(f"the maps in {MAPS} differ in size, or `about` in {JSON} is no object")
    for row in rows:
        if not 0 <= whole_number(row["image"]) < len(images) or whole_number(row["target"]) < NO_CLASS:
            raise ValueError(f"a row explains class {row['target']} on image {row['image']} of {len(images)}")
    size = (maps.shape[1], maps.shape[2])
    return Explanation(
        maps=maps,
        blocks={name.removeprefix(BLOCK_PREFIX): maps for name, maps in found.items() if name.startswith(BLOCK_PREFIX)},
        scores=torch.tensor([float(row["score"]) for row in rows], dtype=torch.float32),
        targets=torch.tensor([row["target"] for row in rows], dtype=torch.long),
        index=torch.tensor([row["image"] for row in rows], dtype=torch.long),
        pictures=tuple(_picture(place, item) for item in images),
        frames=tuple(stored_frame(item, size) for item in images),
        labels=_labels({row["target"]: _label(row, record["about"]) for row in rows if row["target"] > NO_CLASS}),
        about=record["about"],
        scales=_scales(rows),
    )


def _label(row: dict[str, Any], about: dict[str, Any]) -> str:
    """The name of a row's class: a row of a contrast is called "lion rather than cheetah"."""
    name = str(row["name"])
    return name.removesuffix(f" rather than {about['against']}") if "against" in about else name


def _scales(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """The scales of maps with a sign, {block: (R,)}; null in the file stands for infinity."""
    names = list(rows[0].get("scales", {})) if rows else []
    values = {name: [row["scales"][name] for row in rows] for name in names}
    return {
        name: torch.tensor([math.inf if value is None else float(value) for value in own], dtype=torch.float32)
        for name, own in values.items()
    }


def _labels(known: dict[int, str]) -> tuple[str, ...]:
    """The names of all classes from those of the explained ones, {class index: name}; the others read "class 3".

    All names are in memory. A larger index is therefore accepted only if no class has a name of its own.
    """
    most = max(known, default=-1)
    if most < MOST_CLASS_NAMES:
        return tuple(known.get(number, f"class {number}") for number in range(most + 1))
    if any(name != f"class {number}" for number, name in known.items()):
        raise ValueError(f"class {most} has a name, and class indices with names go up to {MOST_CLASS_NAMES - 1:,}")
    return ()


def _picture(place: Path, item: dict[str, Any]) -> Picture:
    """The picture that explanation.json describes: a file in the folder, or the original file."""
    name, kept, path = item["name"], item["kept"], item["path"]
    if not all(isinstance(text, str) for text in (name, kept or "", path or "")):
        raise ValueError(f"an image has the name {name!r:.80} and the file {kept or path!r:.80}")
    return Picture(name, path=str(place / kept) if kept else path)


def _record(result: Explanation, overlays: list[str], pictures: list[dict[str, Any]]) -> dict[str, Any]:
    """Make the contents of explanation.json."""
    rows: list[dict[str, Any]] = [
        {"image": image, "target": target, "name": name, "score": score, "overlay": file}
        for image, target, name, score, file in zip(
            result.index.tolist(), result.targets.tolist(), result.names, result.scores.tolist(), overlays, strict=True
        )
    ]
    for number, row in enumerate(rows):
        if result.scales:
            own = {name: float(scales[number]) for name, scales in result.scales.items()}
            row["scales"] = {name: value if math.isfinite(value) else None for name, value in own.items()}
    for item, frame in zip(pictures, result.frames, strict=True):
        item |= {"original": frame.original, "size": frame.size, "window": frame.window}
    return {"format": FORMAT, "about": dict(result.about), "rows": rows, "images": pictures}


def _keep(staged: StagedFiles, place: Path, number: int, picture: Picture) -> dict[str, Any]:
    """Describe one picture for explanation.json; a picture that is not in a file is written beside the maps."""
    if picture.path is not None:
        return {"name": picture.name, "path": os.path.abspath(picture.path), "kept": None}
    kept = kept_name(number)
    staged.write(place / kept, partial(write_png, picture.open()))
    return {"name": picture.name, "path": None, "kept": kept}
