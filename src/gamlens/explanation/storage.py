"""Save and load an Explanation: overlay PNGs, maps.npz (maps of rows and blocks) and explanation.json (all else)."""

import json
import os
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


def save(result: Explanation, folder: str | Path, *, cmap: str, style: str) -> list[str]:
    """Write `result` to `folder`. If a file cannot be written, the folder stays as it was.

    If an explanation was saved in the folder before, those of its pictures that are not overwritten are deleted.

    Returns:
        The paths of the files.
    """
    before = _written(Path(folder))
    with StagedFiles() as staged:
        _stage(staged, result, Path(folder), cmap, style)
    for old in before - {file for _, file in staged.moves}:
        old.unlink(missing_ok=True)
    return staged.files


def _written(place: Path) -> set[Path]:
    """Return the pictures that belong to an explanation saved in this folder before."""
    try:
        record = json.loads((place / JSON).read_text(encoding="utf-8"))
        names = [row["overlay"] for row in record["rows"]] + [item["kept"] for item in record["images"] if item["kept"]]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {place / name for name in names if Path(str(name)).name == name}


def save_pair(result: PairExplanation, folder: str | Path, *, cmap: str) -> list[str]:
    """Write the two sides to `folder`/x and `folder`/y, and one picture per pair; return the paths of the files."""
    place = Path(folder)
    with StagedFiles() as staged:
        _stage(staged, result.x, place / "x", cmap, "heat")
        _stage(staged, result.y, place / "y", cmap, "heat")
        for row in range(len(result)):
            staged.write(place / f"{row:03d}-pair.png", partial(result.overlay(row, cmap=cmap).save, format="PNG"))
    return staged.files


def _stage(staged: StagedFiles, result: Explanation, place: Path, cmap: str, style: str) -> None:
    """Add the files of one Explanation in folder `place` to those that are written together."""
    result = result.cpu()
    overlays = []
    for row, name in enumerate(result.names):
        overlays.append(f"{row:03d}-{file_stem(Path(result.picture(row).name).stem)}-{file_stem(name)}.png")
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
    kept = f"image-{number:03d}.png"
    staged.write(place / kept, partial(picture.open().save, format="PNG"))
    return {"name": picture.name, "path": None, "kept": kept}


def _two(values: list[int]) -> tuple[int, int]:
    return values[0], values[1]
