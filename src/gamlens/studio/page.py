"""The page: gradio's layout and which action each event is. Imported only when the studio starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import gradio as gr

from gamlens.studio import parts, style
from gamlens.studio.desk import ONE, TWO, Desk
from gamlens.studio.parts import BUSY, QUIET, Tab, controls_of, session
from gamlens.studio.samples import Samples
from gamlens.studio.state import Slot, Spot

TITLE = '<div class="gl-title"><h1>gamlens studio</h1><p>Why does a vision model think so?</p></div>'
FOOT = (
    '<p class="gl-foot">Photos stay on this machine and are deleted when the visit ends. One forward pass a photo; '
    "every control answers from what it left.</p>"
)


def build(desk: Desk, samples: Samples, *, welcome: bool) -> gr.Blocks:
    """The whole page; with `welcome` it opens on its first examples."""
    page = gr.Blocks(title="gamlens studio", analytics_enabled=False, delete_cache=(600, 3600))
    with page:
        with gr.Row():
            gr.HTML(TITLE, apply_default_css=False, elem_id="title")
            model = gr.Dropdown(
                desk.shelf.names,
                value=desk.shelf.first,
                label="Model",
                allow_custom_value=desk.shelf.anything,
                elem_id="model",
                scale=0,
                min_width=260,
            )
            gr.Button("Light / dark", size="sm", scale=0, min_width=110, elem_id="dark").click(None, js=style.DARK)
        with gr.Tabs():
            with gr.Tab("Why this class?", id="class"):
                one = _class_tab(desk, samples)
            with gr.Tab("Why similar?", id="pair"):
                two = _pair_tab(desk, samples)
        gr.HTML(FOOT, apply_default_css=False)
        _class_events(desk, samples, one)
        _pair_events(desk, samples, two)
        _model_events(desk, model, one, two)
        if welcome and samples.single and samples.pairs:
            _welcome(page, desk, samples, one, two)

        def leave(request: gr.Request) -> None:
            desk.end(session(request))

        page.unload(leave)
    return page


def _class_tab(desk: Desk, samples: Samples) -> Tab:
    with gr.Row():
        with gr.Column(scale=4, min_width=300, elem_classes="gl-side"):
            photo = parts.drop("Photo", "photo")
            single = [(name, title, [samples.thumb(name)]) for name, title in samples.single.items()]
            picks = parts.examples(single, "class-examples")
            bars = gr.HTML("", js_on_load=style.ACT, apply_default_css=False, elem_id="bars")
            wanted = gr.Dropdown(
                _classes(desk, desk.shelf.first),
                value=None,
                label="Any other class: type a name or a number",
                allow_custom_value=True,
                elem_id="wanted",
            )
        with gr.Column(scale=7, min_width=380, elem_classes="gl-main"):
            stage = parts.stage(ONE, "class")
            controls = parts.controls("class")
            tab = Tab((photo,), stage, controls, controls[2], controls[3], picks, bars, wanted)
            parts.downloads(desk, tab, "class")
    return tab


def _class_events(desk: Desk, samples: Samples, tab: Tab) -> None:
    (photo,), bars, wanted = tab.photos, tab.bars, tab.wanted
    assert bars is not None
    assert wanted is not None

    def look(request: gr.Request, path: str | None, *values: Any) -> tuple[Any, ...]:
        controls = controls_of(values)
        answer = desk.photo(session(request), path, controls)
        return (*tab.shown(answer, controls), gr.skip() if answer.blocks else None)

    def sample(request: gr.Request, event: gr.EventData, *values: Any) -> tuple[Any, ...]:
        controls, path = controls_of(values), samples.files[event.pick]
        return (*tab.shown(desk.photo(session(request), path, controls), controls), str(path))

    def ask(request: gr.Request, event: gr.EventData, *values: Any) -> tuple[Any, ...]:
        answer = desk.ask(session(request), int(event.pick), controls_of(values))
        return answer.stage, answer.bars or gr.skip(), None

    def named(request: gr.Request, name: str | None, *values: Any) -> tuple[Any, ...]:
        if not str(name or "").strip():
            return gr.skip(), gr.skip()
        answer = desk.ask(session(request), str(name), controls_of(values))
        return answer.stage, answer.bars or gr.skip()

    def empty(request: gr.Request, *values: Any) -> tuple[Any, ...]:
        return look(request, None, *values)

    photo.upload(look, [photo, *tab.controls], [*tab.answer, photo], **BUSY)
    photo.clear(empty, tab.controls, [*tab.answer, photo], **BUSY)
    tab.picks.click(sample, tab.controls, [*tab.answer, photo], **BUSY)
    bars.click(ask, tab.controls, [tab.stage, bars, wanted], **QUIET)
    wanted.input(named, [wanted, *tab.controls], [tab.stage, bars], **QUIET)
    parts.turning(tab, desk.turn)


def _pair_tab(desk: Desk, samples: Samples) -> Tab:
    pairs = [(key, title, [samples.thumb(name) for name in pair]) for key, (title, *pair) in samples.pairs.items()]
    with gr.Row():
        photos = parts.drop("First", "x"), parts.drop("Second", "y")
        with gr.Column(scale=2, min_width=300):
            picks = parts.examples(pairs, "pair-examples")
    with gr.Row():
        with gr.Column(scale=8, min_width=520):
            stage = parts.stage(TWO, "pair")
        with gr.Column(scale=4, min_width=300):
            controls = parts.controls("pair")
            tab = Tab(photos, stage, controls, controls[2], controls[3], picks)
            parts.downloads(desk, tab, "pair")
    return tab


def _pair_events(desk: Desk, samples: Samples, tab: Tab) -> None:
    def look(slot: Slot) -> Callable[..., tuple[Any, ...]]:
        def side(request: gr.Request, path: str | None, *values: Any) -> tuple[Any, ...]:
            controls = controls_of(values)
            return tab.shown(desk.side(session(request), slot, path, controls), controls)

        return side

    def empty(slot: Slot) -> Callable[..., tuple[Any, ...]]:
        def nothing(request: gr.Request, *values: Any) -> tuple[Any, ...]:
            return look(slot)(request, None, *values)

        return nothing

    def sample(request: gr.Request, event: gr.EventData, *values: Any) -> tuple[Any, ...]:
        controls, (_, a, b) = controls_of(values), samples.pairs[event.pick]
        paths = samples.files[a], samples.files[b]
        return (*tab.shown(desk.sides(session(request), paths, controls), controls), str(paths[0]), str(paths[1]))

    def point(request: gr.Request, event: gr.EventData, *values: Any) -> str:
        data = event._data
        spot = None if "pick" in data else Spot(data["side"], float(data["x"]), float(data["y"]))
        return desk.point(session(request), spot, controls_of(values)).stage

    slots: tuple[Slot, ...] = ("x", "y")
    for slot, photo in zip(slots, tab.photos, strict=True):
        photo.upload(look(slot), [photo, *tab.controls], tab.answer, **BUSY)
        photo.clear(empty(slot), tab.controls, tab.answer, **BUSY)
    tab.picks.click(sample, tab.controls, [*tab.answer, *tab.photos], **BUSY)
    tab.stage.click(point, tab.controls, tab.stage, **QUIET)
    parts.turning(tab, desk.turn_pair)


def _model_events(desk: Desk, model: gr.Dropdown, one: Tab, two: Tab) -> None:
    cut = len(one.controls)

    def use(request: gr.Request, name: str, *values: Any) -> tuple[Any, ...]:
        controls = controls_of(values[:cut]), controls_of(values[cut:])
        first, second = desk.use(session(request), name, *controls)
        used = desk.model(session(request))
        shown = list(one.shown(first, controls[0]))
        shown[-1] = gr.Dropdown(choices=_classes(desk, used), value=None)
        return (used, *shown, *two.shown(second, controls[1]))

    model.input(use, [model, *one.controls, *two.controls], [model, *one.answer, *two.answer], **BUSY)


def _welcome(page: gr.Blocks, desk: Desk, samples: Samples, one: Tab, two: Tab) -> None:
    """A visit starts with the first example of each tab, so that there is something to turn."""
    cut = len(one.controls)
    single = next(iter(samples.single))
    _, a, b = next(iter(samples.pairs.values()))
    paths = samples.files[a], samples.files[b]

    def start(request: gr.Request, *values: Any) -> tuple[Any, ...]:
        controls = controls_of(values[:cut]), controls_of(values[cut:])
        first = desk.photo(session(request), samples.files[single], controls[0])
        second = desk.sides(session(request), paths, controls[1])
        photos = (str(samples.files[single]), str(paths[0]), str(paths[1]))
        return (*one.shown(first, controls[0]), *two.shown(second, controls[1]), *photos)

    outputs = [*one.answer, *two.answer, *one.photos, *two.photos]
    page.load(start, [*one.controls, *two.controls], outputs, **BUSY)


def _classes(desk: Desk, name: str) -> list[tuple[str, str]]:
    """What the class field offers: names, with their number where two classes share one."""
    lens = desk.shelf.ready(name)
    labels = lens.labels if lens is not None else ()
    often = Counter(labels)
    return [(label if often[label] == 1 else f"{label} ({number})", str(number)) for number, label in enumerate(labels)]
