"""What commands on image files share: folders of results, and pages."""

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image

from gamlens.explanation import Explanation, file_stem
from gamlens.explanation.map_bar import EndWords
from gamlens.index.image_listing import find_images as find_images
from gamlens.refine import Refinement
from gamlens.render import PAGE_FILE as PAGE_FILE
from gamlens.render import Bars, Page, Section, thumbnail
from gamlens.render.inline import unique_names
from gamlens.trace import Guess

BOXED_FROM = 0.25  # the share of a signed map's strongest value from which pixels are boxed


def result_folders(files: Sequence[str], out: Path) -> dict[str, Path]:
    """One folder below `out` per file, named after it, with a number where two names are the same."""
    _, *names = unique_names([PAGE_FILE, *(file_stem(Path(file).stem) for file in files)])
    return {file: out / name for file, name in zip(files, names, strict=True)}


def limited_page(title: str, lead: str, sections: Iterable[Section], *, limit: int, count: int, what: str) -> Page:
    """Make a page of the first `limit` sections. If there are more, its lead adds: first `limit` of `count` `what`."""
    more = f" The first {limit} of {count} {what} are shown." if count > limit else ""
    return Page(title, lead + more, tuple(islice(sections, limit)))


def about_sharpness(refine: Refinement | None, views: Sequence[str | float] = ()) -> str:
    """Sentences for the lead of a page, with a space before each: how maps were refined, over which views averaged.

    >>> about_sharpness(None, ("flip", 2.0))
    ' Each map is the mean over the photo itself and further views of it: flip, 2.0.'
    """
    said = ""
    if refine is not None:
        said += (
            " The maps are refined by the network's own self-similarity, so that they follow the outlines of objects "
            f"(earlier blocks: {refine.blocks}; weight of the map before refinement: {refine.keep:g})."
        )
    if views:
        said += f" Each map is the mean over the photo itself and further views of it: {', '.join(map(str, views))}."
    return said


def about_sign(sign: str | None) -> str:
    """A sentence for the lead of a page, with a space before it: what the maps show, if they have a sign."""
    shown = {
        "positive": "what raises the score",
        "negative": "what lowers the score",
        "both": "in two colours what raises the score and what lowers it",
    }
    return "" if sign is None else f" The maps show {shown[sign]}; the bar below each has raw values."


def record_of_maps(result: Explanation) -> dict[str, Any]:
    """What JSON says about maps: "boxes", one per row, and for maps with a sign "scales", {block: one value per row}.

    The box of a signed map encloses what raises the score by at least a quarter of the strongest value. The scale of a
    block is the raw value that 1 of its map stands for, null for a map of zeros.
    """
    if not result.scales:
        return {"boxes": result.boxes().tolist()}
    scales = {
        name: [value if math.isfinite(value) else None for value in own.tolist()] for name, own in result.scales.items()
    }
    if not result.signed:
        return {"boxes": result.boxes().tolist(), "scales": scales}
    peaks = (result.maps.flatten(1).abs().amax(dim=1)).tolist()
    boxes = [result[row].boxes(BOXED_FROM * (peak or 1)).tolist()[0] for row, peak in enumerate(peaks)]
    return {"boxes": boxes, "scales": scales}


def small_overlay(result: Explanation, row: int = 0, *, side: int, words: EndWords | None = None) -> Image.Image:
    """A map over its photo for a page, at most `side` pixels wide and high; maps with a sign have a colour bar below.

    The bar is drawn after the photo was made smaller, so that its letters stay large. `Explanation.bar` takes `words`.
    """
    picture = thumbnail(result.overlay(row), side)
    return result.bar(row, words=words).below(picture) if result.scales else picture


def guess_bars(guesses: Iterable[Guess]) -> Bars:
    """The model's best guesses with their probabilities."""
    return Bars(tuple((guess.name, guess.probability, f"{100 * guess.probability:.1f} %") for guess in guesses))
