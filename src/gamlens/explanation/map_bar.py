"""The colour bar below a drawn map: what its colours stand for, with raw values for maps that have a sign."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from PIL import Image

from gamlens import render

MINUS = "\N{MINUS SIGN}"
MOST_NAMED = 3  # how many blocks a bar names with their raw values


class EndWords(NamedTuple):
    """What the ends of the bar of a map with a sign mean, such as "lowers the cosine" and "raises the cosine"."""

    negative: str
    positive: str


class MapBar(NamedTuple):
    """The colour bar of one map: its colour map, the texts at its ends and in its middle, and a line below."""

    cmap: str
    low: str
    high: str
    middle: str = ""
    caption: str = ""

    def below(self, image: Image.Image) -> Image.Image:
        """The picture with this bar below it."""
        return render.with_colour_bar(
            image, cmap=self.cmap, low=self.low, high=self.high, middle=self.middle, caption=self.caption
        )


def map_bar(
    sign: str | None, peak: float, scales: Mapping[str, float], *, cmap: str, words: EndWords, score: str
) -> MapBar:
    """The bar of a map.

    The map of one block has raw values at the ends of its bar. A map that was fused of several blocks has map values
    there, and the caption says what these are worth in each block.

    Args:
        sign: None, or "positive", "negative" or "both".
        peak: The map value that has the strongest colour.
        scales: The raw value that a map value of 1 stands for, {block: value}; infinite for a map of zeros.
        cmap: The colour map.
        words: What negative and positive values mean.
        score: The name of the score, whose units raw values have.

    >>> map_bar("both", 0.5, {"layer4": 0.02}, cmap="diverging", words=EndWords("lowers it", "raises it"), score="dot")
    MapBar(cmap='diverging', low='−0.01 lowers it', high='+0.01 raises it', middle='0', caption='in units of the dot')
    """
    if sign is None:
        return MapBar(cmap, "0", "1", caption="map value: 1 is the strongest place")
    known = {name: scale for name, scale in scales.items() if math.isfinite(scale)}
    end, caption = peak, "map values: no place has an influence" if not known else "map values"
    if len(known) == 1:
        end, caption = peak * next(iter(known.values())), f"in units of the {score}"
    elif 1 < len(known) <= MOST_NAMED:
        parts = " and ".join(f"{peak * scale:.2g} at {name}" for name, scale in known.items())
        caption = f"map values; {peak:.2g} is worth {parts}, in units of the {score}"
    low, high = f"{MINUS}{end:.2g} {words.negative}", f"+{end:.2g} {words.positive}"
    if sign == "both":
        return MapBar(cmap, low, high, "0", caption)
    return MapBar(cmap, "0", high if sign == "positive" else low, caption=caption)


def beside_with_bars(pictures: Sequence[Image.Image], bars: Sequence[MapBar]) -> Image.Image:
    """Pictures side by side at the height of the lowest one, each with its bar below it."""
    height = min(picture.height for picture in pictures)
    scaled = [picture.resize((max(1, round(picture.width * height / picture.height)), height)) for picture in pictures]
    drawn = [bar.below(picture) for picture, bar in zip(scaled, bars, strict=True)]
    tallest = max(picture.height for picture in drawn)
    sheets = [Image.new("RGB", (picture.width, tallest), "white") for picture in drawn]
    for sheet, picture in zip(sheets, drawn, strict=True):
        sheet.paste(picture)
    return render.beside(sheets)
