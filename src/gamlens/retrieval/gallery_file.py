"""A Gallery as one .npz file: arrays and a JSON text, nothing that is run when it is read."""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.files import StagedFiles
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.retrieval.gallery import TENSORS, Gallery

GALLERY_FORMAT = 1


def save(gallery: Gallery, path: str | os.PathLike[str]) -> str:
    """Write a gallery to one file and return its path. If writing fails, an older file at `path` stays as it was."""
    arrays: dict[str, Any] = {}
    kinds = {name: _put(arrays, name, getattr(gallery, name)) for name in TENSORS}
    images = []
    for number, (picture, frame) in enumerate(zip(gallery.pictures, gallery.frames, strict=True)):
        place = {"original": frame.original, "size": frame.size, "window": frame.window}
        images.append({"name": picture.name, **_keep(arrays, number, picture), **place})
    about = {"law": gallery.law, "size": gallery.size, "kinds": kinds, "about": dict(gallery.about)}
    record = {"format": GALLERY_FORMAT, **about, "images": images}
    arrays["record"] = np.frombuffer(json.dumps(record).encode(), dtype=np.uint8)
    with StagedFiles() as staged:
        staged.write(Path(path), lambda out: np.savez(out, **arrays))
    return str(path)


def load(path: str | os.PathLike[str]) -> Gallery:
    """Read a saved gallery; anything wrong with the file is a GamlensError."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        record = json.loads(found["record"].tobytes())
        if record["format"] == GALLERY_FORMAT:
            return _restore(record, found)
    except FileNotFoundError as error:
        raise GamlensError(
            f"There is no gallery {str(path)!r}: `gamlens search --save-gallery` or Gallery.save writes one."
        ) from error
    except Exception as error:
        raise GamlensError(f"Cannot read {str(path)!r} as a gallery: {type(error).__name__}: {error}") from error
    raise GamlensError(f"{str(path)!r} is written in format {record['format']}; this version reads {GALLERY_FORMAT}.")


def _restore(record: dict[str, Any], found: dict[str, Any]) -> Gallery:
    tensors: dict[str, Any] = {name: _take(found[name], record["kinds"][name]) for name in TENSORS}
    images = record["images"]
    if any(len(tensor) != len(images) for tensor in tensors.values()):
        raise ValueError(f"{len(images)} images and {[len(tensor) for tensor in tensors.values()]} rows")
    return Gallery(
        **tensors,
        law=record["law"],
        size=_two(record["size"]),
        pictures=tuple(_picture(item, found) for item in images),
        frames=tuple(Frame(_two(item["original"]), _two(item["size"]), tuple(item["window"])) for item in images),
        about=record["about"],
    )


def _keep(arrays: dict[str, Any], number: int, picture: Picture) -> dict[str, Any]:
    """Describe how one picture is stored, and add its data to `arrays`.

    Of an image file only the path is stored. A preprocessed tensor is stored as it is, and pixels as PNG.
    """
    if picture.path is not None:
        return {"path": os.path.abspath(picture.path)}
    name = f"image-{number}"
    if picture.tensor is not None:
        return {"tensor": name, "kind": _put(arrays, name, picture.tensor), "scale": picture.scale}
    with io.BytesIO() as out:
        picture.open().save(out, format="PNG")
        arrays[name] = np.frombuffer(out.getvalue(), dtype=np.uint8)
    return {"png": name}


def _picture(item: dict[str, Any], found: dict[str, Any]) -> Picture:
    if "path" in item:
        return Picture(item["name"], path=item["path"])
    if "tensor" in item:
        scale = (tuple(item["scale"][0]), tuple(item["scale"][1])) if item["scale"] else None
        return Picture(item["name"], tensor=_take(found[item["tensor"]], item["kind"]), scale=scale)
    return Picture(item["name"], pixels=Image.open(io.BytesIO(found[item["png"]].tobytes()), formats=("PNG",)))


def _put(arrays: dict[str, Any], name: str, tensor: Tensor) -> str:
    """Add a tensor to `arrays` and return its dtype. numpy has no bfloat16, so its bits are stored as int16."""
    plain = tensor.detach().cpu().contiguous()
    arrays[name] = (plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy()
    return str(plain.dtype)


def _take(array: Any, kind: str) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if kind == "torch.bfloat16" else tensor


def _two(values: list[int]) -> tuple[int, int]:
    return values[0], values[1]
