"""The page: its gradio layout, and the action that each event calls. This module imports gradio."""

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import gradio as gr
from anyio import CapacityLimiter, to_thread

from gamlens.lens import Lens
from gamlens.studio import html_fragments, search_tab, widgets
from gamlens.studio.actions import Actions
from gamlens.studio.controls import BOTH_SIGNS, CONTROL_NAMES, Controls
from gamlens.studio.example_photos import ExamplePhotos
from gamlens.studio.search_actions import SearchActions
from gamlens.studio.search_tab import SearchTab
from gamlens.studio.session import OPTIONAL_SLOTS, SLOTS, ModelChoice, Slot
from gamlens.studio.shared_events import (
    NO_PROGRESS,
    PHOTO_EVENT,
    WITH_PROGRESS,
    control_events,
    download_buttons,
    point_events,
    session_id,
    split_events,
)
from gamlens.studio.widgets import Tab

PAGE_TITLE = '<div class="gl-title"><h1>gamlens studio</h1><p>Why does a vision model think so?</p></div>'
PAGE_FOOTER = (
    '<p class="gl-foot">Photos stay on the machine that runs the studio and are deleted when you leave. The model runs '
    "only when a photo is new; changing a control does not run it again.</p>"
)
TOGGLE_DARK = "() => { document.body.classList.toggle('dark'); }"
# A second choice while the first one loads is sent, too.
MODEL_EVENT: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "multiple", "api_visibility": "private"}


def build_page(actions: Actions, search: SearchActions, examples: ExamplePhotos, *, welcome: bool) -> gr.Blocks:
    """Build the whole page. With `welcome` each tab shows its first example when the page opens.

    The tab "Search" shows its first example when it is opened.
    """
    page = gr.Blocks(title="gamlens studio", analytics_enabled=False)
    with page:
        with gr.Row():
            gr.HTML(PAGE_TITLE, apply_default_css=False, elem_id="title")
            model = gr.Dropdown(
                actions.models.names,
                value=actions.models.first,
                label="Model",
                allow_custom_value=actions.models.any_name,
                elem_id="model",
                scale=0,
                min_width=260,
            )
            gr.Button("Light / dark", size="sm", scale=0, min_width=110, elem_id="dark").click(None, js=TOGGLE_DARK)
        notice = widgets.clickable_html("", "model-notice")
        with gr.Tabs():
            with gr.Tab("Why this class?", id="class"):
                class_tab = _class_tab(actions, examples)
            with gr.Tab("Why similar?", id="pair"):
                pair_tab = _pair_tab(actions, examples)
            with gr.Tab("Search", id="search") as opened:
                found_tab = search_tab.search_tab(search)
        gr.HTML(PAGE_FOOTER, apply_default_css=False)
        for tab in (class_tab, pair_tab):
            for slot, place in zip(_slots(tab), tab.photos, strict=True):
                _photo_events(actions, tab, slot, place)
            _example_events(page, actions, examples, tab, welcome=welcome)
            control_events(actions, tab)
        _target_events(actions, class_tab)
        point_events(actions, pair_tab)
        split_events(actions, pair_tab)
        search_tab.search_events(search, found_tab, opened)
        _model_events(actions, model, notice, (class_tab, pair_tab), (search, found_tab))

        def leave(request: gr.Request) -> None:
            actions.sessions.end(session_id(request))

        page.unload(leave)
    return page


def _class_tab(actions: Actions, examples: ExamplePhotos) -> Tab:
    with gr.Row():
        with gr.Column(scale=4, min_width=300, elem_classes="gl-side"):
            photo = widgets.photo_drop("Photo", "photo")
            picks = widgets.example_buttons(examples.of("class"), "class")
            bars = widgets.clickable_html("", "bars")
            classes = _class_choices(actions.models.lens(actions.models.first))
            other_class = gr.Dropdown(
                classes,
                value=None,
                label="Explain another class: type its name or number",
                allow_custom_value=True,
                elem_id="wanted",
            )
            against = gr.Dropdown(
                classes,
                value=None,
                label="Rather than this class (optional)",
                allow_custom_value=True,
                elem_id="against",
            )
        with gr.Column(scale=7, min_width=380, elem_classes="gl-main"):
            stage = widgets.stage("class")
            tab = Tab("class", (photo,), picks, stage, widgets.control_widgets("class"), (bars, other_class, against))
            download_buttons(actions, tab)
    return tab


def _pair_tab(actions: Actions, examples: ExamplePhotos) -> Tab:
    with gr.Row():
        photos = (
            widgets.photo_drop("First photo", "x"),
            widgets.photo_drop("Second photo", "y"),
            widgets.photo_drop("Rather than", "rather", "Optional: drop a third photo"),
        )
        with gr.Column(scale=2, min_width=300):
            picks = widgets.example_buttons(examples.of("pair"), "pair")
    with gr.Row():
        with gr.Column(scale=8, min_width=520):
            stage = widgets.stage("pair")
        with gr.Column(scale=4, min_width=300):
            tab = Tab("pair", photos, picks, stage, widgets.control_widgets("pair"))
            download_buttons(actions, tab)
    return tab


def _photo_events(actions: Actions, tab: Tab, slot: Slot, place: gr.Image) -> None:
    """Connect the events of a visitor who drops a photo into a slot or removes it."""
    outputs = [*tab.outputs, place] if tab.name == "class" else tab.outputs

    def photo(request: gr.Request, path: str | None, *values: Any) -> tuple[Any, ...]:
        controls = Controls.from_values(values)
        if slot in OPTIONAL_SLOTS[tab.name] and path:
            controls = replace(controls, sign=BOTH_SIGNS)  # a contrast speaks for one photo or for the other
        update = actions.set_photos(session_id(request), {slot: path}, controls)
        shown = tab.values(update, controls)
        if tab.name == "pair":
            return shown
        return (*shown, gr.skip() if update.blocks else None)  # remove a photo that could not be explained

    def no_photo(request: gr.Request, *values: Any) -> tuple[Any, ...]:
        return photo(request, None, *values)

    place.upload(photo, [place, *tab.inputs], outputs, **WITH_PROGRESS)
    place.clear(no_photo, tab.inputs, outputs, **WITH_PROGRESS)


def _example_events(page: gr.Blocks, actions: Actions, examples: ExamplePhotos, tab: Tab, *, welcome: bool) -> None:
    """Connect clicks on examples. With `welcome` the tab shows its first example when the page opens."""
    offered, outputs = examples.of(tab.name), [*tab.outputs, *tab.photos]

    def show(request: gr.Request, key: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
        controls, (_, files) = Controls.from_values(values), offered[key]
        if len(files) > len(SLOTS[tab.name]):
            controls = replace(controls, sign=BOTH_SIGNS)
        photos = dict(zip_longest(_slots(tab), files))
        update = actions.set_photos(session_id(request), photos, controls)
        return (*tab.values(update, controls), *(file and str(file) for file in photos.values()))

    def example(request: gr.Request, event: gr.EventData, *values: Any) -> tuple[Any, ...]:
        return show(request, event.pick, values)

    def first_example(request: gr.Request, *values: Any) -> tuple[Any, ...]:
        return show(request, next(iter(offered)), values)

    tab.examples.click(example, tab.inputs, outputs, **WITH_PROGRESS)
    if welcome and offered:
        page.load(first_example, tab.inputs, outputs, **WITH_PROGRESS)


def _target_events(actions: Actions, tab: Tab) -> None:
    """Connect the two ways to choose another class, a click on its bar, or its name or number, and a class to compare
    it with.
    """
    bars, other_class, against = tab.class_choice

    def clicked_class(request: gr.Request, event: gr.EventData, *values: Any) -> tuple[Any, ...]:
        update = actions.set_target(session_id(request), int(event.pick), Controls.from_values(values))
        return update.stage, update.bars or gr.skip(), None

    def named_class(request: gr.Request, name: str | None, *values: Any) -> tuple[Any, ...]:
        if not str(name or "").strip():
            return gr.skip(), gr.skip()
        update = actions.set_target(session_id(request), str(name), Controls.from_values(values))
        return update.stage, update.bars or gr.skip()

    def rather_than(request: gr.Request, name: str | None, *values: Any) -> str:
        return actions.set_against(session_id(request), str(name or ""), Controls.from_values(values)).stage

    against.input(rather_than, [against, *tab.inputs], tab.stage, **NO_PROGRESS)
    bars.click(clicked_class, tab.inputs, [tab.stage, bars, other_class], **NO_PROGRESS)
    other_class.input(named_class, [other_class, *tab.inputs], [tab.stage, bars], **NO_PROGRESS)


def _model_events(
    actions: Actions,
    model: gr.Dropdown,
    notice: gr.HTML,
    two_tabs: tuple[Tab, Tab],
    searched: tuple[SearchActions, SearchTab],
) -> None:
    """Connect the choice of a model, and the answer to the question whether it may be downloaded.

    While a model loads, the visitor goes on with the old one. Waiting takes no thread of the server and no place in
    its queue, and so keeps nobody else waiting.
    """
    class_tab, pair_tab = two_tabs
    tabs = [*class_tab.outputs, *pair_tab.outputs]

    def choose_model(request: gr.Request, name: str | None) -> tuple[Any, ...]:
        return _choose(actions, request, str(name or ""), download=False)

    def answer_question(request: gr.Request, event: gr.EventData) -> tuple[Any, ...]:
        return _choose(actions, request, event.pick, download=True)

    few_at_once = CapacityLimiter(PHOTO_EVENT["concurrency_limit"])

    async def use_model(request: gr.Request, *values: Any) -> tuple[Any, ...]:
        session = actions.sessions.find(session_id(request))
        choice = session.choice if session is not None else None
        if choice is None:
            return (gr.skip(),) * (2 + len(tabs))
        await asyncio.gather(asyncio.wrap_future(choice.lens), return_exceptions=True)
        return await to_thread.run_sync(shown, request, choice, values, limiter=few_at_once)

    def shown(request: gr.Request, choice: ModelChoice, values: tuple[Any, ...]) -> tuple[Any, ...]:
        controls = [Controls.from_values(part) for part in (values, values[len(CONTROL_NAMES) :])]
        update = actions.use_model(session_id(request), choice, *controls)
        if update.class_update is None or update.pair_update is None:
            notice_html = gr.skip() if update.notice is None else update.notice
            return (notice_html, *(gr.skip(),) * (1 + len(tabs)))
        name, lens = actions.model(session_id(request))
        *class_values, _, _ = class_tab.values(update.class_update, controls[0])
        other_class, against = (gr.Dropdown(choices=_class_choices(lens), value=None) for _ in range(2))
        return ("", name, *class_values, other_class, against, *pair_tab.values(update.pair_update, controls[1]))

    inputs, outputs = [*class_tab.inputs, *pair_tab.inputs], [notice, model, *tabs]
    for chosen in (
        model.input(choose_model, model, [notice, model], **MODEL_EVENT),
        notice.click(answer_question, None, [notice, model], **MODEL_EVENT),
    ):
        used = chosen.then(use_model, inputs, outputs, queue=False, **MODEL_EVENT)  # the queue has few places
        search_tab.renew_events(*searched, used)


def _choose(actions: Actions, request: gr.Request, name: str, *, download: bool) -> tuple[str, str]:
    """Begin to load a model. Returns the notice, and the name of the model that is still in use; "" leaves that one."""
    visitor = session_id(request)
    used, _ = actions.model(visitor)
    if not name.strip():
        return "", used
    choice = actions.choose_model(visitor, name, download=download)
    if choice.lens.done():
        return "", used
    text = f"{choice.name} is being loaded. You can go on with {used} meanwhile."
    return html_fragments.message(text, kind="note"), used


def _slots(tab: Tab) -> tuple[Slot, ...]:
    """The slots of the photos of a tab, in the order of its places."""
    return (*SLOTS[tab.name], *OPTIONAL_SLOTS[tab.name])


def _class_choices(lens: Lens) -> list[tuple[str, str]]:
    """The choices of the class field: (label, number) per class. Labels that occur twice include the number."""
    often = Counter(lens.labels)
    return [
        (label if often[label] == 1 else f"{label} ({number})", str(number)) for number, label in enumerate(lens.labels)
    ]
