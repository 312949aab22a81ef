"""The files that visitors can save: the picture, the raw maps, and a record of how they were made."""

import io
import json
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from gamlens import render
from gamlens.explanation import Explanation, file_stem
from gamlens.figures import scaled_frame
from gamlens.inputs.images import Picture
from gamlens.methods import METHODS
from gamlens.studio.result_images import Shown, draw, guesses, point_match, stage_images
from gamlens.trace import Trace

LONGEST_DOWNLOAD = 4096


class Download(NamedTuple):
    """A file for the browser: its name, its MIME type and its bytes."""

    name: str
    kind: str
    data: bytes


def download(what: str, shown: Shown) -> Download:
    """Make the file for one of the page's buttons; `what` is "picture", "maps" or "json"."""
    make, suffix, kind = {
        "picture": (_picture, "png", "image/png"),
        "maps": (_maps, "npz", "application/octet-stream"),
        "json": (_record, "json", "application/json"),
    }[what]
    stem = "-".join(file_stem(photo.path.stem, longest=40) for photo in shown.photos)
    without_map = what == "picture" and (shown.point is not None or shown.controls.view == "evidence")
    sharp = "-sharp" if shown.controls.sharp and not without_map else ""
    return Download(f"{stem}-{shown.controls.method}{sharp}.{suffix}", kind, make(shown))


def _picture(shown: Shown) -> bytes:
    """The pictures of the stage as one PNG. The view "one" is drawn at the photos' size, up to LONGEST_DOWNLOAD."""
    if shown.point is None and shown.controls.view == "one":
        images = [draw(_not_too_large(result), shown.controls) for result in shown.results]
    else:
        images = [one.image for one in stage_images(shown)]
    stream = io.BytesIO()
    (images[0] if len(images) == 1 else render.beside(images)).save(stream, "PNG")
    return stream.getvalue()


def _not_too_large(result: Explanation) -> Explanation:
    """The result with a smaller picture if its longest side exceeds LONGEST_DOWNLOAD; drawing takes much memory."""
    image = result.image(0)
    if max(image.size) <= LONGEST_DOWNLOAD:
        return result
    image.thumbnail((LONGEST_DOWNLOAD, LONGEST_DOWNLOAD))
    frame = scaled_frame(result.frames[0], image)
    return replace(result, pictures=(Picture(result.pictures[0].name, pixels=image),), frames=(frame,))


def _maps(shown: Shown) -> bytes:
    """The maps as an .npz file.

    Its keys are `map`, the map in [0,1] at the size of the model's input, and `raw:BLOCK`, each block's map before
    resizing and normalising. For a pair all keys start with `x:` or `y:`.
    """
    arrays: dict[str, Any] = {}
    method = shown.controls.method
    prefixes = ("",) if isinstance(shown.source, Trace) else ("x:", "y:")
    for prefix, result, trace in zip(prefixes, shown.results, shown.traces, strict=True):
        arrays[f"{prefix}map"] = result.numpy()[0]
        for name in result.blocks if METHODS[method].kind == "block" else ():
            arrays[f"{prefix}raw:{name}"] = trace.raw(method, name)[0].float().cpu().numpy()
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def _record(shown: Shown) -> bytes:
    """Model, photos, scores, boxes and controls as JSON: all that is needed to make the picture again."""
    source, results, controls, point = shown.source, shown.results, shown.controls, shown.point
    boxes = [result.boxes(controls.threshold).tolist()[0] for result in results]
    sides = [{"photo": one.name, "size": one.size, "box": box} for one, box in zip(shown.photos, boxes, strict=True)]
    if isinstance(source, Trace):
        found: dict[str, Any] = {**sides[0], "class": results[0].names[0], "target": int(source.targets[0])}
        found |= {"score": float(source.scores[0]), "top": [asdict(guess) for guess in guesses(source)]}
    else:
        found = {"score": float(results[0].scores[0]), "x": sides[0], "y": sides[1]}
        if point is not None:
            match = point_match(source, shown.photos, controls, point)
            found["point"] = {"side": point.side, "cell": match.cell, "part": match.part, "best": match.best}
    record = {**found, "about": dict(results[0].about), "controls": asdict(controls)}
    return json.dumps(record, indent=2, ensure_ascii=False).encode()
