"""What can be downloaded: the picture, the raw maps, and what they are."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from gamlens import render
from gamlens.explanation import Explanation, file_stem
from gamlens.methods import METHODS
from gamlens.pairs.pair_trace import PairTrace
from gamlens.studio.spots import spot_match
from gamlens.studio.state import Photo, Spot
from gamlens.studio.views import Controls, Shot, draw, guesses, picked
from gamlens.trace import Trace

LONGEST = 4096


class File(NamedTuple):
    name: str
    kind: str
    data: bytes


def picture(photos: tuple[Photo, ...], source: Trace | PairTrace, controls: Controls, shots: list[Shot]) -> File:
    """What is on the screen as a PNG; one map of a photo, or of both, at the photo's own size."""
    if controls.view == "one" and not any(shot.dot for shot in shots):
        images = [_bounded(draw(result, controls)) for result in picked(source, controls)]
    else:
        images = [shot.image for shot in shots]
    stream = io.BytesIO()
    (images[0] if len(images) == 1 else render.beside(images)).save(stream, "PNG")
    return File(f"{stem(photos)}-{controls.method}.png", "image/png", stream.getvalue())


def maps(photos: tuple[Photo, ...], source: Trace | PairTrace, controls: Controls) -> File:
    """An .npz: `map` in [0,1] at the model's input size, `raw:BLOCK` before resizing and normalising; x and y apart."""
    arrays: dict[str, Any] = {}
    for mark, result, rows in zip(marks(source), picked(source, controls), sides(source, controls), strict=True):
        arrays[f"{mark}map"] = result.numpy()[0]
        for name in result.blocks if METHODS[controls.method].kind == "block" else ():
            arrays[f"{mark}raw:{name}"] = rows.raw(controls.method, name)[0].float().cpu().numpy()
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return File(f"{stem(photos)}-{controls.method}.npz", "application/octet-stream", stream.getvalue())


def record(photos: tuple[Photo, ...], source: Trace | PairTrace, controls: Controls, spot: Spot | None) -> File:
    """Model, photos, scores, boxes, controls: what is needed to make the picture again."""
    results = picked(source, controls)
    about = {"about": dict(results[0].about), "controls": asdict(controls)}
    if isinstance(source, Trace):
        found: dict[str, Any] = {"photo": photos[0].name, **_box(results[0], controls)}
        found |= {"class": results[0].names[0], "target": int(source.targets[0]), "score": float(source.scores[0])}
        found["top"] = [asdict(guess) for guess in guesses(source)]
    else:
        found = {"score": float(results[0].scores[0])}
        for mark, photo, result in zip("xy", photos, results, strict=True):
            found[mark] = {"photo": photo.name, **_box(result, controls)}
        if spot is not None:
            match = spot_match(source, photos["xy".index(spot.side)], controls, spot)
            found["point"] = {"side": spot.side, "cell": match.cell, "part": match.part, "best": match.best}
    text = json.dumps({**found, **about}, indent=2, ensure_ascii=False)
    return File(f"{stem(photos)}-{controls.method}.json", "application/json", text.encode())


def marks(source: Trace | PairTrace) -> tuple[str, ...]:
    return ("",) if isinstance(source, Trace) else ("x:", "y:")


def sides(source: Trace | PairTrace, controls: Controls) -> tuple[Trace, ...]:
    return (source.rows,) if isinstance(source, Trace) else source.sides(controls.score)


def stem(photos: tuple[Photo, ...]) -> str:
    return "-".join(file_stem(photo.path.stem, longest=40) for photo in photos)


def _box(result: Explanation, controls: Controls) -> dict[str, Any]:
    return {"size": result.frames[0].original[::-1], "box": result.boxes(controls.threshold).tolist()[0]}


def _bounded(image: Image.Image) -> Image.Image:
    image.thumbnail((LONGEST, LONGEST))
    return image
