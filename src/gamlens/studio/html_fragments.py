"""The HTML of the stage, the bars and the examples, made from the templates in fragments.html."""

import base64
import functools
import io
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment
from PIL import Image

from gamlens.render import COLORMAPS
from gamlens.studio.link_images import LinkRow
from gamlens.studio.result_images import StageImage
from gamlens.trace import Guess

STAGE_JPEG_QUALITY = 90


class ShownHit(NamedTuple):
    """A hit as a button: what a click sends, its texts, whether it is the chosen one, and a small JPEG of it.

    `small` is None if the hit has no picture. `columns` are (name, value).
    """

    slot: int
    score: str
    name: str
    columns: Sequence[tuple[str, str]]
    chosen: bool
    small: bytes | None


def static_file(name: str) -> str:
    """The text of a file in this package: a style sheet, script, template or JSON file."""
    return files("gamlens.studio").joinpath(name).read_text(encoding="utf-8")


def data_uri(image: Image.Image) -> str:
    """An image as a data URI (JPEG), so that the page holds it without a file or a request."""
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "JPEG", quality=STAGE_JPEG_QUALITY)
    return jpeg_uri(stream.getvalue())


def jpeg_uri(data: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"


def gradient(cmap: str) -> str:
    """A colour map as a CSS gradient from left to right; its colours are equally far apart."""
    colours = ",".join(f"rgb({','.join(map(str, colour))})" for colour in COLORMAPS[cmap])
    return f"linear-gradient(to right,{colours})"


@functools.cache
def _fragments() -> Any:
    """The macros of fragments.html as functions; they escape every value."""
    environment = Environment(autoescape=True)
    environment.filters |= {"data_uri": data_uri, "jpeg_uri": jpeg_uri, "gradient": gradient}
    environment.filters |= {"percent": "{:.2%}".format}
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


def query_photo(image: Image.Image, name: str, box: tuple[float, float, float, float] | None, *, marked: bool) -> str:
    """The photo that is searched for, to draw a box on or to click.

    Args:
        image: The photo.
        name: Its name.
        box: The region that is searched for, x0,y0,x1,y1 as fractions of width and height.
        marked: Whether the visitor marked a region, which a button takes away.
    """
    return str(_fragments().query_photo(image, name, box, marked))


def hits(title: str, lead: str, found: Sequence[ShownHit], note: str = "") -> str:
    """The hits of a search as buttons, below a headline."""
    return str(_fragments().hits(title, lead, found, note))


def filter_columns(columns: Sequence[str], error: str = "") -> str:
    """Which columns a filter can name; before that, what is wrong with the filter."""
    return str(_fragments().filter_columns(columns, error))
