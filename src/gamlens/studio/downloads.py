"""The files that visitors can save: the picture, the raw maps, and a record of how they were made."""

import io
import json
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from gamlens import render
from gamlens.explanation import Explanation, file_stem
from gamlens.figures import scaled_frame
from gamlens.inputs.images import Picture
from gamlens.methods import METHODS
from gamlens.pairs.interactions import Interactions
from gamlens.pairs.set_trace import SetTrace
from gamlens.studio.result_images import Shown, guesses, point_match, stage_images
from gamlens.studio.signed_drawing import draw_map, map_threshold, sign_bar, strongest, with_sign_bar
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
    if shown.shows_links:
        return Download(f"{stem}-links.{suffix}", kind, make(shown))
    how = shown.controls.method
    if not without_map:
        how += ("-sharp" if shown.controls.sharp else "") + ("-signed" if shown.controls.signed else "")
    return Download(f"{stem}-{how}.{suffix}", kind, make(shown))


def _picture(shown: Shown) -> bytes:
    """The pictures of the stage as one PNG. The view "one" is drawn at the photos' size, up to LONGEST_DOWNLOAD."""
    if shown.point is None and shown.controls.view == "one":
        images = [_drawn(result, shown, number) for number, result in enumerate(shown.results)]
    else:
        images = [one.image if one.bar is None else with_sign_bar(one.image, one.bar) for one in stage_images(shown)]
    stream = io.BytesIO()
    (images[0] if len(images) == 1 else render.beside(images)).save(stream, "PNG")
    return stream.getvalue()


def _drawn(result: Explanation, shown: Shown, number: int) -> Image.Image:
    """The map of photo `number` over that photo, with a colour bar if it is signed."""
    image = draw_map(_not_too_large(result), shown.controls)
    if not result.signed or not strongest(result):
        return image
    return with_sign_bar(image, sign_bar(result, shown.controls, shown.words(number)))


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
    resizing and normalising. For a pair all keys start with `x:` or `y:`, with a third photo with `x:`, `a:` or `b:`.
    Signed maps are in [-1,1]; instead of `raw:BLOCK` there are `block:BLOCK`, the map of a block, and `scale:BLOCK`,
    the raw value that 1 stands for in it. Links have one key, `interactions`: what each place of x (row, column) and
    each place of y (row, column) add to the score.
    """
    arrays: dict[str, Any] = {}
    method = shown.controls.method
    if shown.shows_links:
        arrays["interactions"] = shown.links.found.matrix.float().cpu().numpy()
        return _npz(arrays)
    for number, (name, result) in enumerate(zip(_names(shown), shown.results, strict=True)):
        prefix = f"{name}:" if name else ""
        arrays[f"{prefix}map"] = result.numpy()[0]
        for block, maps in result.blocks.items() if METHODS[method].kind == "block" else ():
            if result.signed:
                arrays[f"{prefix}block:{block}"] = maps[0].float().cpu().numpy()
                arrays[f"{prefix}scale:{block}"] = result.scales[block][0].float().cpu().numpy()
            elif shown.traces:
                arrays[f"{prefix}raw:{block}"] = shown.traces[number].raw(method, block)[0].float().cpu().numpy()
    return _npz(arrays)


def _npz(arrays: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def _names(shown: Shown) -> tuple[str, ...]:
    """What the photos are called in files: "" for a single one."""
    if isinstance(shown.source, SetTrace):
        return "x", "a", "b"
    return ("",) if isinstance(shown.source, Trace) else ("x", "y")


def _record(shown: Shown) -> bytes:
    """Model, photos, scores, boxes and controls as JSON: all that is needed to make the picture again."""
    source, controls, point = shown.source, shown.controls, shown.point
    sides: list[dict[str, Any]] = [{"photo": one.name, "size": one.size} for one in shown.photos]
    about = shown.about
    if not shown.shows_links:  # links are no maps
        about = shown.results[0].about
        for side, result in zip(sides, shown.results, strict=True):
            side["box"] = result.boxes(map_threshold(result, controls)).tolist()[0]
    found: dict[str, Any]
    if isinstance(source, Trace):
        found = {**sides[0], "class": shown.results[0].names[0], "target": int(source.targets[0])}
        found |= {"score": float(source.scores[0]), "top": [asdict(guess) for guess in guesses(source)]}
    elif isinstance(source, SetTrace):
        for_a, for_b = shown.scores
        found = {"score": for_a - for_b, "score_a": for_a, "score_b": for_b}
        found |= dict(zip(_names(shown), sides, strict=True))
    else:
        found = {"score": shown.scores[0], "x": sides[0], "y": sides[1]}
        if point is not None and shown.split is not None:
            match = point_match(shown.split, shown.photos, controls, point)
            found["point"] = {"side": point.side, "cell": match.cell, "part": match.part, "best": match.best}
        if shown.shows_links:
            found |= _links_record(shown.links.found, controls.links)
    record = {**found, "about": dict(about), "controls": asdict(controls)}
    return json.dumps(record, indent=2, ensure_ascii=False).encode()


def _links_record(found: Interactions, most: int) -> dict[str, Any]:
    """The strongest links, in pixels of the original photos, and what else makes up the score."""
    numbers = {name: getattr(found, name) for name in ("remainder", "aside", "gap", "exact", "steps", "baseline")}
    return {
        "links": [link._asdict() for link in found.links(most)],
        "split": {"places": list(found.matrix.shape), "matches": float(found.matrix.sum()), **numbers},
    }
