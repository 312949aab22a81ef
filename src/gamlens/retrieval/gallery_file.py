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

from gamlens.data.plausible import check_pixels, read_arrays, stored_frame, whole_number
from gamlens.errors import GamlensError
from gamlens.files import StagedFiles
from gamlens.inputs.images import Picture
from gamlens.retrieval.embedding_form import EMBEDDING_FORMS
from gamlens.retrieval.gallery import IDENTITY, TENSORS, Gallery

PLAIN_FORMAT, EARLIER_FORMAT = 1, 2  # the second is written only for a gallery that has earlier blocks
ROWS_AT_ONCE = 1024  # how many rows are checked at once; it limits the memory


def save(gallery: Gallery, path: str | os.PathLike[str]) -> str:
    """Write a gallery to one file and return its path. If writing fails, an older file at `path` stays as it was."""
    arrays: dict[str, Any] = {}
    kinds = {name: _put(arrays, name, getattr(gallery, name)) for name in TENSORS}
    earlier = []
    for number, (block, tensor) in enumerate(gallery.earlier.items()):
        array = f"earlier-{number}"
        earlier.append({"block": block, "array": array, "kind": _put(arrays, array, tensor)})
    images = []
    for number, (picture, frame) in enumerate(zip(gallery.pictures, gallery.frames, strict=True)):
        place = {"original": frame.original, "size": frame.size, "window": frame.window}
        images.append({"name": picture.name, **_keep(arrays, number, picture), **place})
    about = {"law": gallery.law, "size": gallery.size, "kinds": kinds, "about": dict(gallery.about)}
    record = {"format": PLAIN_FORMAT, **about, "images": images}
    record |= {"format": EARLIER_FORMAT, "earlier": earlier} if earlier else {}
    arrays["record"] = np.frombuffer(json.dumps(record).encode(), dtype=np.uint8)
    with StagedFiles() as staged:
        staged.write(Path(path), lambda out: np.savez(out, **arrays))
    return str(path)


def load(path: str | os.PathLike[str]) -> Gallery:
    """Read a saved gallery; anything wrong with the file is a GamlensError."""
    try:
        os.stat(path)
        record = json.loads(read_arrays(path, "record".__eq__)["record"].tobytes())
        if record["format"] in (PLAIN_FORMAT, EARLIER_FORMAT):
            stored = {item.get("tensor") or item.get("png") for item in record["images"]}
            stored |= {item["array"] for item in record.get("earlier", ())}
            return _restore(record, read_arrays(path, lambda name: name in TENSORS or name in stored))
    except FileNotFoundError as error:
        raise GamlensError(
            f"There is no gallery {str(path)!r}: `gamlens search --save-gallery` or Gallery.save writes one."
        ) from error
    except Exception as error:
        why = error if isinstance(error, GamlensError) else f"{type(error).__name__}: {error}"
        raise GamlensError(
            f"Cannot read {str(path)!r} as a gallery: {str(why).rstrip('.')}. Give a file that Gallery.save wrote."
        ) from error
    raise GamlensError(
        f"{str(path)!r} is written in format {record['format']}; this version reads {PLAIN_FORMAT} and "
        f"{EARLIER_FORMAT}."
    )


def _restore(record: dict[str, Any], found: dict[str, Any]) -> Gallery:
    images, about = record["images"], record["about"]
    tensors: dict[str, Any] = {
        name: _rows(name, _take(found[name], record["kinds"][name]), TENSORS[name], len(images)) for name in TENSORS
    }
    earlier = {}
    for item in record.get("earlier", ()):
        block = str(item["block"])
        earlier[block] = _rows(block, _take(found[item["array"]], item["kind"]), TENSORS["activations"], len(images))
    if record["law"] not in EMBEDDING_FORMS:
        raise ValueError(f"the law is {record['law']!r:.80}, not {' or '.join(EMBEDDING_FORMS)}")
    if not isinstance(about, dict):
        raise ValueError("`about` is no object")
    if wrong := [name for name in IDENTITY if not isinstance(about.get(name), str)]:
        raise ValueError(f"`about` has no text {wrong[0]!r}, by which the model is known")
    height, width = map(whole_number, record["size"])
    check_pixels(height, width, "The input of the model")
    return Gallery(
        **tensors,
        law=record["law"],
        size=(height, width),
        pictures=tuple(_picture(item, found) for item in images),
        frames=tuple(stored_frame(item, (height, width)) for item in images),
        about=about,
        earlier=earlier,
    )


def _rows(name: str, tensor: Tensor, dimensions: int, images: int) -> Tensor:
    """A tensor with one row per image, of the number of dimensions that it must have, and finite."""
    if not tensor.is_floating_point() or tensor.ndim != dimensions or len(tensor) != images:
        raise ValueError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)}, not real numbers in {dimensions} dimensions with one "
            f"row for each of {images} images"
        )
    starts = range(0, images, ROWS_AT_ONCE)
    if not all(bool(tensor[start : start + ROWS_AT_ONCE].isfinite().all()) for start in starts):
        raise ValueError(f"{name} has values that are not finite")
    return tensor


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
    name = item["name"]
    if not isinstance(name, str) or not isinstance(item.get("path", ""), str):
        raise ValueError(f"an image has the name {name!r:.80} and the path {item.get('path')!r:.80}")
    if "path" in item:
        return Picture(name, path=item["path"])
    if "tensor" in item:
        scale = (tuple(map(float, item["scale"][0])), tuple(map(float, item["scale"][1]))) if item["scale"] else None
        tensor = _take(found[item["tensor"]], item["kind"])
        if tensor.ndim != 3 or not tensor.is_floating_point():
            raise ValueError(f"the image {name!r} is {tensor.dtype} {tuple(tensor.shape)}, not real numbers (C,H,W)")
        return Picture(name, tensor=tensor, scale=scale)
    pixels = Image.open(io.BytesIO(found[item["png"]].tobytes()), formats=("PNG",))
    if [pixels.height, pixels.width] != item["original"]:
        raise ValueError(f"the image {name!r} is {pixels.width} x {pixels.height} pixels, not {item['original'][::-1]}")
    return Picture(name, pixels=pixels)


def _put(arrays: dict[str, Any], name: str, tensor: Tensor) -> str:
    """Add a tensor to `arrays` and return its dtype. numpy has no bfloat16, so its bits are stored as int16."""
    plain = tensor.detach().cpu().contiguous()
    arrays[name] = (plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy()
    return str(plain.dtype)


def _take(array: Any, kind: str) -> Tensor:
    tensor = torch.from_numpy(array)
    tensor = tensor.view(torch.bfloat16) if kind == "torch.bfloat16" else tensor
    if str(tensor.dtype) != kind:
        raise ValueError(f"an array is {tensor.dtype}, and the record says {kind!r:.80}")
    return tensor
