"""The pieces of HTML that the studio writes itself: figures, bars, examples, messages. Everything shown is escaped."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from PIL import Image

from gamlens.studio.stage_images import StageImage
from gamlens.trace import Guess

STAGE_JPEG_QUALITY = 90


def static_file(name: str) -> str:
    """The text of a style sheet or script that lies beside this module."""
    return files("gamlens.studio").joinpath(name).read_text(encoding="utf-8")


def data_uri(image: Image.Image) -> str:
    """A JPEG inside the page: nothing is written to disk and nothing is fetched."""
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "JPEG", quality=STAGE_JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


def figure(shown: StageImage) -> str:
    """A picture with its words and marks; one that can be clicked is a button for the keyboard too."""
    marks = ""
    if shown.cell is not None:
        left, top, width, height = (f"{100 * value:.2f}%" for value in shown.cell)
        marks += f'<span class="gl-cell" style="left:{left};top:{top};width:{width};height:{height}"></span>'
    if shown.dot is not None:
        marks += f'<span class="gl-dot" style="left:{100 * shown.dot[0]:.2f}%;top:{100 * shown.dot[1]:.2f}%"></span>'
    x, y = shown.dot or (0.5, 0.5)
    ask = "Click a spot, or move with the arrow keys, to see what matches it in the other photo."
    press = (
        f'data-side="{shown.side}" data-x="{x:.4f}" data-y="{y:.4f}" tabindex="0" role="button" '
        f'aria-label="{escape(shown.alt)}. {ask}" title="{ask}"'
        if shown.side
        else ""
    )
    caption = f"<span>{escape(shown.caption)}</span>" if shown.caption else ""
    return (
        f'<figure><div class="gl-frame" {press}><img src="{data_uri(shown.image)}" alt="{escape(shown.alt)}" '
        f'width="{shown.image.width}" height="{shown.image.height}" draggable="false">{marks}</div>'
        f"<figcaption><strong>{escape(shown.title)}</strong>{caption}</figcaption></figure>"
    )


def stage(
    head: str, images: Sequence[StageImage], notes: Iterable[str] = (), *, columns: int = 1, tip: str = ""
) -> str:
    """The headline, the pictures in columns as wide as they are, so that a row has one height, and what to know."""
    figures = "".join(map(figure, images))
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    aside = f'<div class="gl-notes" role="note">{below}</div>' if below else ""
    ratios = [shown.image.width / shown.image.height for shown in images[:columns]]
    widths = " ".join(f"minmax(0,{ratio:.4f}fr)" for ratio in ratios)
    shape = f"grid-template-columns:{widths};--r:{sum(ratios):.4f}"
    return (
        f'<div class="gl-head" role="status" aria-live="polite">{head}</div>'
        f'<div class="gl-figures gl-{columns}" style="{shape}">{figures}</div>'
        f"{f'<p class=gl-tip>{escape(tip)}</p>' if tip else ''}{aside}"
    )


def headline(big: str, small: str, *, back: bool = False) -> str:
    button = '<button type="button" class="gl-back" data-pick="back">Back to the maps</button>' if back else ""
    return f"<h2>{escape(big)}</h2><p>{escape(small)}</p>{button}"


def message(text: str, *, kind: str = "error") -> str:
    """Something for a person to read in place of a picture."""
    role = "alert" if kind == "error" else "status"
    return f'<div class="gl-message gl-{kind}" role="{role}"><p>{escape(text)}</p></div>'


def bars(guesses: Sequence[Guess], chosen: int) -> str:
    """The classes as buttons, each with its bar; the explained one is pressed."""
    items = []
    for guess in guesses:
        percent = f"{100 * guess.probability:.1f} %"
        items.append(
            f'<li><button type="button" data-pick="{guess.index}" aria-pressed="{str(guess.index == chosen).lower()}">'
            f'<span class="gl-name">{escape(guess.name)}</span><span class="gl-value">{percent}</span>'
            f'<span class="gl-track" aria-hidden="true"><i style="width:{100 * guess.probability:.2f}%"></i></span>'
            "</button></li>"
        )
    title = '<p class="gl-label" id="gl-guesses">The model\'s best guesses: click one to see why</p>'
    return f'{title}<ol class="gl-bars" aria-labelledby="gl-guesses">{"".join(items)}</ol>'


def examples(items: Iterable[tuple[str, str, Sequence[Image.Image]]]) -> str:
    """Photos to click: (what is sent, what is read, the photos)."""
    buttons = []
    for key, title, photos in items:
        thumbs = "".join(f'<img src="{data_uri(photo)}" alt="">' for photo in photos)
        buttons.append(
            f'<button type="button" data-pick="{escape(key)}"><span class="gl-thumbs">{thumbs}</span>'
            f"<span>{escape(title)}</span></button>"
        )
    title = '<p class="gl-label">Or try an example</p>'
    return f'{title}<div class="gl-examples" role="group" aria-label="Examples">{"".join(buttons)}</div>'
