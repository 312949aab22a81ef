"""The gradio components that tabs share: photos, examples, the stage, the controls."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from gamlens.capture.forward import BY_NETWORK
from gamlens.methods import METHODS, Kind, names
from gamlens.render import COLORMAPS
from gamlens.scores import PAIR_SCORES
from gamlens.studio import html_fragments
from gamlens.studio.actions import HINTS, TabUpdate
from gamlens.studio.controls import (
    CONTROL_NAMES,
    MEAN_OF_N,
    MOST_LINKS,
    OUTLINES,
    PAIR_VIEWS,
    SIGN_TITLES,
    VIEWS,
    Controls,
)
from gamlens.studio.example_photos import OfferedPhotos, thumbnail
from gamlens.studio.session import TabName

DEEPEST = 4  # the largest n of the slider until a model tells how many blocks it has
ABOUT_SHARP = "Follow the outlines of objects"
ONE_BLOCK_ONLY = "Not for this model: it has one block only, and earlier ones are needed"
CLICKS = html_fragments.static_file("clicks.js")


@dataclass(frozen=True)
class Tab:
    """The components of one tab that actions read and change.

    Attributes:
        name: Which tab it is.
        photos: The places to drop photos, also those that may stay empty.
        examples: The buttons with example photos.
        stage: The area with the pictures.
        controls: One component per field of Controls, by name and in that order.
        class_choice: The bars of the best guesses, the field for another class, and the one for a class to compare
            with; empty on the pair tab.
    """

    name: TabName
    photos: tuple[gr.Image, ...]
    examples: gr.HTML
    stage: gr.HTML
    controls: dict[str, Any]
    class_choice: tuple[Any, ...] = ()

    @property
    def inputs(self) -> list[Any]:
        return list(self.controls.values())

    @property
    def outputs(self) -> list[Any]:
        """The components that a TabUpdate changes."""
        return [self.stage, *(self.controls[name] for name in ("n", "block", "sharp", "sign")), *self.class_choice]

    def values(self, update: TabUpdate, controls: Controls) -> tuple[Any, ...]:
        """The values of `outputs` for an update."""
        n = block = sharp = gr.skip()
        if update.blocks:
            depth = len(update.blocks)
            chosen = controls.for_trace(update.blocks)
            n = gr.Slider(maximum=max(depth, 2), value=min(controls.n, depth))
            block = gr.Dropdown(choices=[MEAN_OF_N, *reversed(update.blocks)], value=chosen.block)
            can = depth > 1
            sharp = gr.Checkbox(value=chosen.sharp, interactive=can, info=ABOUT_SHARP if can else ONE_BLOCK_ONLY)
        return (update.stage, n, block, sharp, controls.sign, *([update.bars, None, None] if self.class_choice else []))


def photo_drop(label: str, name: str, hint: str = "Drop a photo here", *, height: int = 190) -> gr.Image:
    """A place to drop a photo. Actions get the path of the file.

    gradio's own `preprocess` would decode the photo; it is replaced, so that `uploads.read_photo` can check it first.
    """
    place = gr.Image(
        label=label,
        type="filepath",
        sources=["upload", "clipboard"],
        height=height,
        min_width=120,
        buttons=[],
        elem_id=name,
        placeholder=f"{hint}\nor click to choose one",
        alt_text=f"{label}, as you gave it",
    )

    def path_of(payload: Any) -> str | None:
        return str(payload.path) if payload is not None and payload.path else None

    place.__dict__["preprocess"] = path_of
    return place


def clickable_html(html: str, name: str, **options: Any) -> gr.HTML:
    """HTML whose buttons and pictures send their clicks to the studio."""
    return gr.HTML(html, js_on_load=CLICKS, apply_default_css=False, elem_id=name, **options)


def example_buttons(offered: OfferedPhotos, tab: TabName) -> gr.HTML:
    found = [(key, title, [thumbnail(file) for file in files]) for key, (title, files) in offered.items()]
    return clickable_html(html_fragments.examples(found), f"{tab}-examples", visible=bool(found))


def stage(tab: TabName) -> gr.HTML:
    """The area with the pictures of a tab; it shows a hint until there are any."""
    return clickable_html(html_fragments.message(HINTS[tab], kind="hint"), f"{tab}-stage")


def control_widgets(tab: TabName) -> dict[str, Any]:
    """Make one component per field of Controls, by the field's name and in the order of the fields."""
    default, pair = Controls(), tab != "class"
    kinds: tuple[Kind, ...] = ("block", "attention", "pair") if pair else ("block", "attention")
    methods = [("Automatic", BY_NETWORK), *((METHODS[name].title, name) for name in names(*kinds))]
    similarities = [(score.title, key) for key, score in PAIR_SCORES.items()]
    made: dict[str, Any] = {}

    def add(component: Any, name: str, *args: Any, **options: Any) -> None:
        value = getattr(default, name)
        value = list(value) if isinstance(value, tuple) else value
        made[name] = component(*args, value=value, elem_id=f"{tab}-{name}", **options)

    def titled(names: Any) -> list[tuple[str, str]]:
        return [(name.capitalize(), name) for name in names]

    views = [(title, key) for key, title in (PAIR_VIEWS if pair else VIEWS).items()]
    add(gr.Radio, "view", views, show_label=False, container=False)
    add(gr.Slider, "links", 1, MOST_LINKS, step=1, label="Number of links", buttons=[], visible=pair)
    add(gr.Radio, "sign", [(title, key) for key, title in SIGN_TITLES.items()], label="Maps show", min_width=230)
    with gr.Row():
        add(gr.Dropdown, "method", methods, label="Method", min_width=140)
        add(gr.Dropdown, "block", [MEAN_OF_N], label="Map of", min_width=140)
        add(gr.Slider, "n", 1, DEEPEST, step=1, label="Blocks (n)", buttons=[], min_width=140)
        add(gr.Checkbox, "sharp", label="Sharp", info=ABOUT_SHARP, min_width=140)
    with gr.Row():
        add(gr.Radio, "score", similarities, label="Similarity", min_width=230, visible=tab == "pair")
        add(gr.Dropdown, "cmap", titled(COLORMAPS), label="Colours", min_width=140)
        add(gr.Slider, "opacity", 0, 1, step=0.05, label="Opacity", buttons=[], min_width=140)
    with gr.Row():
        add(gr.CheckboxGroup, "outline", titled(OUTLINES), label="Outline", min_width=190)
        add(gr.Slider, "threshold", 0.05, 0.95, step=0.05, label="Threshold", buttons=[], min_width=230)
    return {name: made[name] for name in CONTROL_NAMES}
