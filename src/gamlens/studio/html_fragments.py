"""The HTML of the stage, the bars and the examples, made from the templates in fragments.html."""

import base64
import functools
import io
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from PIL import Image

from gamlens.render import COLORMAPS
from gamlens.studio.link_images import LinkRow
from gamlens.studio.result_images import StageImage
from gamlens.trace import Guess

STAGE_JPEG_QUALITY = 90


def static_file(name: str) -> str:
    """The text of a file in this package: a style sheet, script, template or JSON file."""
    return files("gamlens.studio").joinpath(name).read_text(encoding="utf-8")


def data_uri(image: Image.Image) -> str:
    """An image as a data URI (JPEG), so that the page holds it without a file or a request."""
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "JPEG", quality=STAGE_JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


def gradient(cmap: str) -> str:
    """A colour map as a CSS gradient from left to right; its colours are equally far apart."""
    colours = ",".join(f"rgb({','.join(map(str, colour))})" for colour in COLORMAPS[cmap])
    return f"linear-gradient(to right,{colours})"


@functools.cache
def _fragments() -> Any:
    """The macros of fragments.html as functions; they escape every value."""
    environment = Environment(autoescape=True)
    environment.filters |= {"data_uri": data_uri, "gradient": gradient, "percent": "{:.2%}".format}
    return environment.from_string("".join(map(str.strip, static_file("fragments.html").splitlines()))).module


def message(text: str, *, kind: str = "error") -> str:
    """A message in place of the pictures; `kind` is "error", "hint" or "note"."""
    return str(_fragments().message(text, kind))


def question(text: str, name: str) -> str:
    """A question whether a model may be downloaded, with two buttons. A click sends the model's name, or "" for no."""
    return str(_fragments().question(text, name))


def split_question(text: str, *, point: bool) -> str:
    """Whether a pair's score should be split, which takes long, with a button. `point`: a point was clicked."""
    return str(_fragments().split(text, False, point))


def split_progress(text: str, *, point: bool) -> str:
    """That a pair's score is being split, with a button to stop it. `point`: a point was clicked."""
    return str(_fragments().split(text, True, point))


def stage(
    title: str,
    lead: str,
    images: Sequence[StageImage],
    notes: Sequence[str] = (),
    *,
    columns: int,
    points: str = "",
    links: Sequence[LinkRow] = (),
) -> str:
    """The stage: a headline, the pictures, and notes.

    Args:
        title: The headline.
        lead: The sentence after the headline.
        images: The pictures, row by row.
        notes: Remarks below the pictures.
        columns: Pictures per row. Columns get the aspect ratios of their pictures, which makes a row equally high.
        points: "ask" to invite visitors to click a spot of a photo, "shown" if the match of a spot is shown.
        links: A list of links below the pictures, in which they are drawn.
    """
    ratios = [shown.image.width / shown.image.height for shown in images[:columns]]
    return str(_fragments().stage(title, lead, images, notes, ratios, points, links))


def bars(guesses: Sequence[Guess], chosen: int) -> str:
    """One button per class with a bar for its probability. The button of the explained class is pressed."""
    return str(_fragments().bars(guesses, chosen))


def examples(items: Iterable[tuple[str, str, Sequence[Image.Image]]]) -> str:
    """Buttons with example photos; an item is (key that a click sends, title, photos)."""
    return str(_fragments().examples(items))
