"""The pieces of HTML that the studio writes itself, from the templates in fragments.html."""

import base64
import functools
import io
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from PIL import Image

from gamlens.studio.result_images import StageImage
from gamlens.trace import Guess

STAGE_JPEG_QUALITY = 90


def static_file(name: str) -> str:
    """The text of a style sheet, script, template or table that lies beside this module."""
    return files("gamlens.studio").joinpath(name).read_text(encoding="utf-8")


def data_uri(image: Image.Image) -> str:
    """A JPEG inside the page: nothing is written to disk and nothing is fetched."""
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "JPEG", quality=STAGE_JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


@functools.cache
def _fragments() -> Any:
    """The macros of fragments.html as functions; they escape every value."""
    environment = Environment(autoescape=True)
    environment.filters |= {"data_uri": data_uri, "percent": "{:.2%}".format}
    return environment.from_string("".join(map(str.strip, static_file("fragments.html").splitlines()))).module


def message(text: str, *, kind: str = "error") -> str:
    """Something for a person to read in place of a picture."""
    return str(_fragments().message(text, kind))


def stage(
    title: str, lead: str, images: Sequence[StageImage], notes: Sequence[str] = (), *, columns: int, points: str = ""
) -> str:
    """The headline, the pictures in columns as wide as they are, so that a row has one height, and what to know.

    `points` is "ask" where the page invites to click a spot of a photo, "shown" where it shows what matches one.
    """
    ratios = [shown.image.width / shown.image.height for shown in images[:columns]]
    return str(_fragments().stage(title, lead, images, notes, ratios, points))


def bars(guesses: Sequence[Guess], chosen: int) -> str:
    """The classes as buttons, each with its bar; the explained one is pressed."""
    return str(_fragments().bars(guesses, chosen))


def examples(items: Iterable[tuple[str, str, Sequence[Image.Image]]]) -> str:
    """Photos to click: (what is sent, what is read, the photos)."""
    return str(_fragments().examples(items))
