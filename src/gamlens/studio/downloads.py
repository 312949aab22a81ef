"""What can be downloaded: the picture, the raw maps, and the record of how they were made."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from gamlens import render
from gamlens.explanation import Explanation, file_stem
from gamlens.methods import METHODS
from gamlens.pairs.pair_trace import PairTrace
from gamlens.studio.controls import Controls
from gamlens.studio.point_match import point_images, point_match
from gamlens.studio.session import ClickedPoint
from gamlens.studio.stage_images import draw, explanations, guesses, stage_images, traces_of
from gamlens.studio.uploads import Photo
from gamlens.trace import Trace

LONGEST_DOWNLOAD = 4096


class Download(NamedTuple):
    """A file for the browser: its name, its MIME type and its bytes."""

    name: str
    kind: str
    data: bytes


class Shown(NamedTuple):
    """What a tab shows: a class or a pair (then perhaps a clicked point), of one photo or two."""

    source: Trace | PairTrace
    photos: Sequence[Photo]
    controls: Controls
    point: ClickedPoint | None = None


def download(what: str, shown: Shown) -> Download:
    """The file that a button of the page asks for: "picture", "maps" or "json"."""
    make, suffix, kind = {
        "picture": (_picture, "png", "image/png"),
        "maps": (_maps, "npz", "application/octet-stream"),
        "json": (_record, "json", "application/json"),
    }[what]
    stem = "-".join(file_stem(photo.path.stem, longest=40) for photo in shown.photos)
    return Download(f"{stem}-{shown.controls.method}.{suffix}", kind, make(shown))


def _picture(shown: Shown) -> bytes:
    """What is on the screen as a PNG; where that is one map per photo, at the photos' own size."""
    source, photos, controls, point = shown
    if point is not None and isinstance(source, PairTrace):
        images = [one.image for one in point_images(source, photos, controls, point)]
    elif controls.view == "one":
        images = [draw(result, controls) for result in explanations(source, controls)]
        for image in images:
            image.thumbnail((LONGEST_DOWNLOAD, LONGEST_DOWNLOAD))
    else:
        images = [one.image for one in stage_images(source, photos, controls)]
    stream = io.BytesIO()
    (images[0] if len(images) == 1 else render.beside(images)).save(stream, "PNG")
    return stream.getvalue()


def _maps(shown: Shown) -> bytes:
    """An .npz: `map` in [0,1] at the model's input size, `raw:BLOCK` before resizing and normalising.

    The keys of a pair start with `x:` and `y:`.
    """
    source, controls = shown.source, shown.controls
    arrays: dict[str, Any] = {}
    prefixes = ("",) if isinstance(source, Trace) else ("x:", "y:")
    results, traces = explanations(source, controls), traces_of(source, controls)
    for prefix, result, trace in zip(prefixes, results, traces, strict=True):
        arrays[f"{prefix}map"] = result.numpy()[0]
        for name in result.blocks if METHODS[controls.method].kind == "block" else ():
            arrays[f"{prefix}raw:{name}"] = trace.raw(controls.method, name)[0].float().cpu().numpy()
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def _record(shown: Shown) -> bytes:
    """Model, photos, scores, boxes and controls as JSON: what is needed to make the picture again."""
    source, photos, controls, point = shown
    results = explanations(source, controls)
    about = {"about": dict(results[0].about), "controls": asdict(controls)}
    if isinstance(source, Trace):
        found: dict[str, Any] = {"photo": photos[0].name, **_box(results[0], controls)}
        found |= {"class": results[0].names[0], "target": int(source.targets[0]), "score": float(source.scores[0])}
        found["top"] = [asdict(guess) for guess in guesses(source)]
    else:
        found = {"score": float(results[0].scores[0])}
        for side, photo, result in zip("xy", photos, results, strict=True):
            found[side] = {"photo": photo.name, **_box(result, controls)}
        if point is not None:
            match = point_match(source, photos, controls, point)
            found["point"] = {"side": point.side, "cell": match.cell, "part": match.part, "best": match.best}
    return json.dumps({**found, **about}, indent=2, ensure_ascii=False).encode()


def _box(result: Explanation, controls: Controls) -> dict[str, Any]:
    return {"size": result.frames[0].original[::-1], "box": result.boxes(controls.threshold).tolist()[0]}
