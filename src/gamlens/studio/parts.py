"""Parts that both tabs of the page have: photos, the stage, the controls, downloads. Imports gradio."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import gradio as gr
from PIL import Image

from gamlens import METHODS, GamlensError
from gamlens.render import COLORMAPS
from gamlens.scores import PAIR_SCORES
from gamlens.studio import markup, style
from gamlens.studio.desk import Answer, Desk
from gamlens.studio.views import MEAN, OUTLINES, VIEWS, Controls

DEPTH = 4
QUIET: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
BUSY: dict[str, Any] = {"show_progress": "minimal", "api_visibility": "private"}
NAMES = tuple(field.name for field in fields(Controls))


@dataclass(frozen=True)
class Tab:
    """The components of one tab that actions read and answer: `controls` in the order of Controls."""

    photos: tuple[gr.Image, ...]
    stage: gr.HTML
    controls: list[Any]
    n: gr.Slider
    block: gr.Dropdown
    picks: gr.HTML
    bars: gr.HTML | None = None
    wanted: gr.Dropdown | None = None

    @property
    def answer(self) -> list[Any]:
        """What an Answer changes; a class's bars and the name field come with them."""
        return [self.stage, self.n, self.block, *([self.bars, self.wanted] if self.bars is not None else [])]

    def shown(self, answer: Answer, controls: Controls) -> tuple[Any, ...]:
        """`answer` as values of those components."""
        known = bool(answer.blocks)
        depth = max(len(answer.blocks), 1)
        block = controls.block if controls.block in answer.blocks else MEAN
        number = gr.Slider(maximum=max(depth, 2), value=min(controls.n, depth)) if known else gr.skip()
        choices = gr.Dropdown(choices=[MEAN, *reversed(answer.blocks)], value=block) if known else gr.skip()
        return (answer.stage, number, choices, *([answer.bars, None] if self.bars is not None else []))


def session(request: gr.Request) -> str:
    return str(request.session_hash)


def controls_of(values: Sequence[Any]) -> Controls:
    """The values of a tab's controls, which a page may have changed at will, as Controls."""
    found = dict(zip(NAMES, values, strict=False))
    return Controls(
        **{
            **found,
            "n": max(1, int(found["n"])),
            "block": str(found["block"] or MEAN),
            "opacity": min(max(float(found["opacity"]), 0.0), 1.0),
            "threshold": min(max(float(found["threshold"]), 0.0), 1.0),
            "outline": tuple(found["outline"] or ()),
        }
    )


def drop(label: str, name: str) -> gr.Image:
    """A place to drop a photo. Its file is handed on as it came: it is checked before it is decoded."""
    place = gr.Image(
        label=label,
        type="filepath",
        sources=["upload", "clipboard"],
        height=190,
        min_width=120,
        buttons=[],
        elem_id=name,
        placeholder="Drop a photo here\nor click to choose one",
        alt_text=f"{label}, as you gave it",
    )

    def unread(payload: Any) -> str | None:
        return str(payload.path) if payload is not None and payload.path else None

    place.__dict__["preprocess"] = unread
    return place


def examples(items: Sequence[tuple[str, str, Sequence[Image.Image]]], name: str) -> gr.HTML:
    return gr.HTML(
        markup.examples(items), js_on_load=style.ACT, apply_default_css=False, elem_id=name, visible=bool(items)
    )


def stage(hint: str, name: str) -> gr.HTML:
    return gr.HTML(
        markup.message(hint, kind="hint"),
        js_on_load=style.ACT,
        apply_default_css=False,
        elem_id=f"{name}-stage",
    )


def controls(name: str) -> list[Any]:
    """Everything that can be turned without a new forward, in the order of Controls."""
    usual, pair = Controls(), name == "pair"
    methods = [(m.title, key) for key, m in METHODS.items() if m.kind == "block" or (pair and m.kind == "pair")]

    def own(part: str) -> dict[str, Any]:
        return {"elem_id": f"{name}-{part}"}

    view = gr.Radio(
        [(title, key) for key, title in VIEWS.items()],
        value=usual.view,
        show_label=False,
        container=False,
        **own("view"),
    )
    with gr.Row():
        method = gr.Dropdown(methods, value=usual.method, label="Method", min_width=140, **own("method"))
        block = gr.Dropdown([MEAN], value=MEAN, label="Map of", min_width=140, **own("block"))
        n = gr.Slider(1, DEPTH, usual.n, step=1, label="Blocks (n)", buttons=[], min_width=140, **own("n"))
    with gr.Row():
        score = gr.Radio(
            [(key.capitalize(), key) for key in PAIR_SCORES],
            value=usual.score,
            label="Similarity",
            min_width=230,
            visible=pair,
            **own("score"),
        )
        colours = [(key.capitalize(), key) for key in COLORMAPS]
        cmap = gr.Dropdown(colours, value=usual.cmap, label="Colours", min_width=140, **own("cmap"))
        opacity = gr.Slider(
            0, 1, usual.opacity, step=0.05, label="Opacity", buttons=[], min_width=140, **own("opacity")
        )
    with gr.Row():
        drawn = [(key.capitalize(), key) for key in OUTLINES]
        outline = gr.CheckboxGroup(drawn, value=[], label="Outline", min_width=190, **own("outline"))
        threshold = gr.Slider(
            *(0.05, 0.95, usual.threshold), step=0.05, label="Threshold", buttons=[], min_width=230, **own("threshold")
        )
    return [view, method, n, block, opacity, cmap, outline, threshold, score]


def turning(tab: Tab, act: Callable[[str, Controls], Answer]) -> None:
    """Every control answers at once, from what the last forward left."""

    def turn(request: gr.Request, *values: Any) -> str:
        return act(session(request), controls_of(values)).stage

    gr.on([control.input for control in tab.controls], turn, tab.controls, tab.stage, **QUIET)


def downloads(desk: Desk, tab: Tab, name: str) -> None:
    """Buttons that hand the browser a file; nothing is written here."""

    def make(kind: str) -> Callable[..., str]:
        def give(request: gr.Request, *values: Any) -> str:
            try:
                file = desk.file(session(request), name, kind, controls_of(values))
            except GamlensError as error:
                gr.Warning(str(error))
                return ""
            return json.dumps({**file._asdict(), "data": base64.b64encode(file.data).decode()})

        return give

    with gr.Row():
        for kind, title in (("picture", "Save overlay"), ("maps", "Save raw map"), ("json", "Save JSON")):
            button = gr.Button(title, size="sm", elem_id=f"{name}-{kind}", min_width=90)
            payload = gr.Textbox(visible=False)
            button.click(make(kind), tab.controls, payload, api_visibility="private").then(None, payload, js=style.SAVE)
