"""An Explanation on disk: overlay PNGs, maps.npz and explanation.json."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from gamlens.errors import GamlensError
from gamlens.explanation.result import Explanation, PairExplanation, file_stem
from gamlens.geometry import Frame
from gamlens.images import Picture

FORMAT = 1
JSON, MAPS = "explanation.json", "maps.npz"


def save(result: Explanation, folder: str | Path, *, cmap: str, style: str) -> list[str]:
    """Write the rows of `result` into `folder`; explanation.json comes last, so a folder that has it is whole."""
    place = Path(folder)
    _make(place)
    result = result.cpu()
    files, overlays = [], []
    for row, name in enumerate(result.names):
        file = f"{row:03d}-{file_stem(Path(result.picture(row).name).stem)}-{file_stem(name)}.png"
        image = result.overlay(row, cmap=cmap, style=style)
        files.append(_write(place / file, partial(image.save, format="PNG")))
        overlays.append(file)
    arrays: dict[str, Any] = {
        "maps": result.maps.numpy(),
        **{f"block:{name}": maps.numpy() for name, maps in result.blocks.items()},
    }
    files.append(_write(place / MAPS, lambda out: np.savez_compressed(out, **arrays)))
    pictures = [_keep(place, number, picture, files) for number, picture in enumerate(result.pictures)]
    record = _record(result, overlays, pictures)
    text = json.dumps(record, indent=2, ensure_ascii=False).encode()
    files.append(_write(place / JSON, lambda out: out.write(text)))
    return files


def save_pair(result: PairExplanation, folder: str | Path, *, cmap: str) -> list[str]:
    """Write x/ and y/ and one picture a pair."""
    place = Path(folder)
    _make(place)
    files = [
        *save(result.x, place / "x", cmap=cmap, style="heat"),
        *save(result.y, place / "y", cmap=cmap, style="heat"),
    ]
    for row in range(len(result)):
        image = result.overlay(row, cmap=cmap)
        files.append(_write(place / f"{row:03d}-pair.png", partial(image.save, format="PNG")))
    return files


def load(folder: str | Path) -> Explanation:
    """Read a saved Explanation; its pictures are read again from where they were."""
    place = Path(folder)
    try:
        record = json.loads((place / JSON).read_text(encoding="utf-8"))
        with np.load(place / MAPS, allow_pickle=False) as arrays:
            found = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except FileNotFoundError as error:
        raise GamlensError(
            f"{str(place)!r} is not a saved explanation: {Path(error.filename).name} is missing."
        ) from error
    except Exception as error:
        raise GamlensError(f"Cannot read the explanation in {str(place)!r}: {type(error).__name__}: {error}") from error
    if record.get("format") != FORMAT:
        raise GamlensError(f"{str(place)!r} is written in format {record.get('format')}; this version reads {FORMAT}.")
    return _restore(place, record, found)


def _restore(place: Path, record: dict[str, Any], found: dict[str, torch.Tensor]) -> Explanation:
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
    rows = [
        {"image": image, "target": target, "name": name, "score": score, "overlay": file}
        for image, target, name, score, file in zip(
            result.index.tolist(), result.targets.tolist(), result.names, result.scores.tolist(), overlays, strict=True
        )
    ]
    for item, frame in zip(pictures, result.frames, strict=True):
        item |= {"original": frame.original, "size": frame.size, "window": frame.window}
    return {"format": FORMAT, "about": dict(result.about), "rows": rows, "images": pictures}


def _keep(place: Path, number: int, picture: Picture, files: list[str]) -> dict[str, Any]:
    """A picture that lies in a file is named; any other is written beside the maps."""
    if picture.path is not None:
        return {"name": picture.name, "path": os.path.abspath(picture.path), "kept": None}
    kept, image = f"image-{number:03d}.png", picture.open()
    files.append(_write(place / kept, partial(image.save, format="PNG")))
    return {"name": picture.name, "path": None, "kept": kept}


def _make(place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GamlensError(f"Cannot make the folder {str(place)!r}: {error.strerror or error}.") from error


def _write(file: Path, write: Callable[[IO[bytes]], Any]) -> str:
    """Write beside the file, then put it in its place: a failure leaves what was there before."""
    beside = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as out:
            write(out)
        os.replace(beside, file)
    except OSError as error:
        raise GamlensError(f"Cannot write {str(file)!r}: {error.strerror or error}.") from error
    finally:
        beside.unlink(missing_ok=True)
    return str(file)


def _two(values: list[int]) -> tuple[int, int]:
    return values[0], values[1]
