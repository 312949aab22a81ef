"""Save and load an Explanation: overlay PNGs, maps.npz (maps of rows and blocks) and explanation.json (all else)."""

import json
import os
import stat
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gamlens.errors import GamlensError, reworded
from gamlens.explanation.result import Explanation, PairExplanation, file_stem
from gamlens.files import StagedFiles
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture

FORMAT = 1
JSON, MAPS = "explanation.json", "maps.npz"
PNG_HEAD = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"  # the first 16 bytes of every PNG file; width and height follow


def save(result: Explanation, folder: str | Path, *, cmap: str, style: str) -> list[str]:
    """Write `result` to `folder`. If a file cannot be written, the folder stays as it was.

    Files of the same names are replaced. If an explanation was saved in the folder before, its other pictures are
    deleted, but only those that are certainly ours, because explanation.json may have been edited: see `_old_pictures`.

    Returns:
        The paths of the files.
    """
    old = _old_pictures(Path(folder))
    with StagedFiles() as staged:
        _stage(staged, result, Path(folder), cmap, style)
    _delete(old, staged, result)
    return staged.files


def save_pair(result: PairExplanation, folder: str | Path, *, cmap: str) -> list[str]:
    """Write the two sides to `folder`/x and `folder`/y, and one picture per pair; return the paths of the files.

    Pictures of pairs that were saved in the folder before are replaced or deleted, as in `save`.
    """
    place = Path(folder)
    old = _old_pair_pictures(place)
    with StagedFiles() as staged:
        _stage(staged, result.x, place / "x", cmap, "heat")
        _stage(staged, result.y, place / "y", cmap, "heat")
        for row in range(len(result)):
            staged.write(place / _pair_name(row), partial(result.overlay(row, cmap=cmap).save, format="PNG"))
    _delete(old, staged, result.x, result.y)
    return staged.files


def _old_pictures(place: Path) -> list[Path]:
    """Return the pictures of an explanation that was saved in this folder before, those that are certainly ours.

    No name is taken from explanation.json on trust. A picture is ours if its name in the record is exactly the one
    that `save` gives to that row or image, and if it is a file (not a link) of type PNG in the folder itself whose
    width and height are those of the image in the record.
    """
    record = _old_record(place)
    try:
        images = record["images"]
        named = [(item["kept"], _kept_name(number), item) for number, item in enumerate(images) if item["kept"]]
        for number, row in enumerate(record["rows"]):
            item = images[row["image"]]
            named.append((row["overlay"], _overlay_name(number, item["name"], row["name"]), item))
        return [
            place / ours
            for found, ours, item in named
            if found == ours and _png_size(place / ours) == tuple(item["original"][::-1])
        ]
    except (KeyError, TypeError, IndexError, ValueError):
        return []


def _old_pair_pictures(place: Path) -> list[Path]:
    """Return the pictures of pairs that were saved in this folder before: of both sides, and one PNG file per row."""
    sides = [place / "x", place / "y"]
    if any(side.is_symlink() for side in sides):
        return []
    x, y = (_old_record(side).get("rows") for side in sides)
    rows = len(x) if isinstance(x, list) and isinstance(y, list) and len(x) == len(y) else 0
    pairs = [place / _pair_name(row) for row in range(rows)]
    return [*(file for side in sides for file in _old_pictures(side)), *(file for file in pairs if _png_size(file))]


def _old_record(place: Path) -> dict[str, Any]:
    """Return the contents of explanation.json in this folder, or {} if it is not one that `save` wrote."""
    try:
        record = json.loads((place / JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) and record.get("format") == FORMAT else {}


def _png_size(file: Path) -> tuple[int, int] | None:
    """Return the width and height of a PNG file; None for a link, a folder and a file of another type."""
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return None
        with open(file, "rb") as data:
            head = data.read(24)
    except OSError:
        return None
    if len(head) < 24 or not head.startswith(PNG_HEAD):
        return None
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def _delete(old: list[Path], staged: StagedFiles, *saved: Explanation) -> None:
    """Delete old pictures, but none that was just written and none that a saved explanation shows."""
    shown = [picture.path for result in saved for picture in result.pictures if picture.path is not None]
    needed = {_identity(file) for file in (*staged.files, *shown)}
    for file in old:
        if _identity(file) not in needed:
            file.unlink(missing_ok=True)


def _identity(file: str | Path) -> tuple[int, int] | None:
    """Return what two names of one file have in common, also where upper and lower case are the same name."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _overlay_name(row: int, picture: str, name: str) -> str:
    return f"{row:03d}-{file_stem(Path(picture).stem)}-{file_stem(name)}.png"


def _kept_name(number: int) -> str:
    return f"image-{number:03d}.png"


def _pair_name(row: int) -> str:
    return f"{row:03d}-pair.png"


def _stage(staged: StagedFiles, result: Explanation, place: Path, cmap: str, style: str) -> None:
    """Add the files of one Explanation in folder `place` to those that are written together."""
    result = result.cpu()
    overlays = []
    for row, name in enumerate(result.names):
        overlays.append(_overlay_name(row, result.picture(row).name, name))
        image = result.overlay(row, cmap=cmap, style=style)
        staged.write(place / overlays[-1], partial(image.save, format="PNG"))
    arrays: dict[str, Any] = {
        "maps": result.maps.numpy(),
        **{f"block:{name}": maps.numpy() for name, maps in result.blocks.items()},
    }
    staged.write(place / MAPS, lambda out: np.savez_compressed(out, **arrays))
    pictures = [_keep(staged, place, number, picture) for number, picture in enumerate(result.pictures)]
    text = json.dumps(_record(result, overlays, pictures), indent=2, ensure_ascii=False)
    staged.write(place / JSON, lambda out: out.write(text.encode(errors="backslashreplace")))


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
        record = json.loads((place / JSON).read_text(encoding="utf-8"))
        form = record.get("format") if isinstance(record, dict) else None
        if form != FORMAT:
            raise GamlensError(
                f"{str(place)!r} is written in format {form}; this version of gamlens reads format {FORMAT}: explain "
                "the images again, or use the version that wrote it."
            )
        with np.load(place / MAPS, allow_pickle=False) as arrays:
            found = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        result = _restore(place, record, found)
        if len(result.scores) != len(result.maps):
            raise ValueError(f"{len(result.scores)} rows in {JSON}, {len(result.maps)} maps in {MAPS}")
        return result


def _restore(place: Path, record: dict[str, Any], found: dict[str, torch.Tensor]) -> Explanation:
    """Make an Explanation from the contents of explanation.json and the arrays of maps.npz.

    Only the labels of explained classes were saved; the others read "class 3".
    """
    rows, images = record["rows"], record["images"]
    known = {row["target"]: row["name"] for row in rows if row["target"] >= 0}
    labels = tuple(known.get(number, f"class {number}") for number in range(max(known, default=-1) + 1))
    return Explanation(
        maps=found["maps"],
        blocks={name.removeprefix("block:"): maps for name, maps in found.items() if name.startswith("block:")},
        scores=torch.tensor([row["score"] for row in rows], dtype=torch.float32),
        targets=torch.tensor([row["target"] for row in rows], dtype=torch.long),
        index=torch.tensor([row["image"] for row in rows], dtype=torch.long),
        pictures=tuple(
            Picture(item["name"], path=str(place / item["kept"]) if item["kept"] else item["path"]) for item in images
        ),
        frames=tuple(Frame(_two(item["original"]), _two(item["size"]), tuple(item["window"])) for item in images),
        labels=labels,
        about=record["about"],
    )


def _record(result: Explanation, overlays: list[str], pictures: list[dict[str, Any]]) -> dict[str, Any]:
    """Make the contents of explanation.json."""
    rows = [
        {"image": image, "target": target, "name": name, "score": score, "overlay": file}
        for image, target, name, score, file in zip(
            result.index.tolist(), result.targets.tolist(), result.names, result.scores.tolist(), overlays, strict=True
        )
    ]
    for item, frame in zip(pictures, result.frames, strict=True):
        item |= {"original": frame.original, "size": frame.size, "window": frame.window}
    return {"format": FORMAT, "about": dict(result.about), "rows": rows, "images": pictures}


def _keep(staged: StagedFiles, place: Path, number: int, picture: Picture) -> dict[str, Any]:
    """Describe one picture for explanation.json; a picture that is not in a file is written beside the maps."""
    if picture.path is not None:
        return {"name": picture.name, "path": os.path.abspath(picture.path), "kept": None}
    kept = _kept_name(number)
    staged.write(place / kept, partial(picture.open().save, format="PNG"))
    return {"name": picture.name, "path": None, "kept": kept}


def _two(values: list[int]) -> tuple[int, int]:
    return values[0], values[1]
