"""The tab "Search": its gradio layout, and the action that each of its events calls. This module imports gradio."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from gamlens.studio import html_fragments, widgets
from gamlens.studio.controls import Controls
from gamlens.studio.search_actions import HITS_AT_FIRST, MOST_HITS, Asked, SearchActions, SearchUpdate
from gamlens.studio.session import MarkedRegion
from gamlens.studio.shared_events import (
    NO_PROGRESS,
    WITH_PROGRESS,
    control_events,
    download_buttons,
    point_events,
    session_id,
    split_events,
)
from gamlens.studio.widgets import Tab

DRAWS = widgets.CLICKS + html_fragments.static_file("draw_box.js")
QUERY_HEIGHT = 130
FILTER_INFO = "Only photos whose columns fit. Press Enter to search."


@dataclass(frozen=True)
class SearchTab:
    """The components of the tab.

    Attributes:
        tab: Those that the other tabs have, too; its stage shows the chosen hit beside the photo.
        query: The photo that is searched for, to draw on.
        where: The field for a filter.
        columns: What is below that field.
        top: How many hits.
        hits: What was found.
    """

    tab: Tab
    query: gr.HTML
    where: gr.Textbox
    columns: gr.HTML
    top: gr.Slider
    hits: gr.HTML

    @property
    def inputs(self) -> list[Any]:
        return [self.where, self.top, *self.tab.inputs]

    @property
    def outputs(self) -> list[Any]:
        """The components that a SearchUpdate changes."""
        return [self.query, self.hits, self.columns, *self.tab.outputs]

    def values(self, update: SearchUpdate, controls: Controls) -> tuple[Any, ...]:
        """The values of `outputs` for an update."""
        columns = gr.skip() if update.columns is None else update.columns
        return (update.query, update.hits, columns, *self.tab.values(update.pair, controls))


def search_tab(search: SearchActions) -> SearchTab:
    with gr.Row():
        with gr.Column(scale=4, min_width=300):
            photo = widgets.photo_drop("Search for", "query", height=QUERY_HEIGHT)
            picks = widgets.example_buttons(search.examples, "search")
            query = gr.HTML("", js_on_load=DRAWS, apply_default_css=False, elem_id="search-query")
        with gr.Column(scale=7, min_width=300):
            with gr.Row():
                where = gr.Textbox(
                    label="Filter (optional)",
                    info=FILTER_INFO,
                    placeholder=search.indexes.example_filter,
                    max_length=1000,
                    submit_btn=True,
                    elem_id="search-where",
                    scale=5,
                    min_width=260,
                )
                top = gr.Slider(
                    1, MOST_HITS, value=HITS_AT_FIRST, step=1, label="Hits", buttons=[], elem_id="search-top",
                    scale=2, min_width=120,
                )  # fmt: skip
            columns = gr.HTML(search.columns_html(), apply_default_css=False, elem_id="search-columns")
            hits = widgets.clickable_html("", "search-hits")
    with gr.Row():
        with gr.Column(scale=8, min_width=300):
            stage = widgets.stage("search")
        with gr.Column(scale=4, min_width=300):
            tab = Tab("search", (photo,), picks, stage, widgets.control_widgets("search"))
            download_buttons(search.actions, tab)
    return SearchTab(tab, query, where, columns, top, hits)


def search_events(search: SearchActions, shown: SearchTab, opened: gr.Tab) -> None:
    """Connect all events of the tab. With an example, it shows hits when it is opened for the first time."""
    tab, (photo,) = shown.tab, shown.tab.photos
    _query_events(search, shown, photo)
    _hit_events(search, shown)
    _first_example(search, shown, photo, opened)
    control_events(search.actions, tab)
    point_events(search.actions, tab)
    split_events(search.actions, tab)


def _query_events(search: SearchActions, shown: SearchTab, photo: gr.Image) -> None:
    """Connect what changes the search: another photo, a region of it, a filter, and how many hits."""

    def query(request: gr.Request, path: str | None, where: Any, top: Any, *values: Any) -> tuple[Any, ...]:
        asked, controls = Asked.from_values(where, top), Controls.from_values(values)
        update = search.set_query(session_id(request), path, asked, controls)
        kept = gr.skip() if path is None or search.has_query(session_id(request)) else None
        return (*shown.values(update, controls), kept)  # a photo that could not be read is removed

    def no_query(request: gr.Request, where: Any, top: Any, *values: Any) -> tuple[Any, ...]:
        return query(request, None, where, top, *values)

    def region(request: gr.Request, event: gr.EventData, where: Any, top: Any, *values: Any) -> tuple[Any, ...]:
        data, controls = event._data, Controls.from_values(values)
        marked = None if "pick" in data else MarkedRegion(*map(float, data["region"]))
        update = search.set_region(session_id(request), marked, Asked.from_values(where, top), controls)
        return shown.values(update, controls)

    def search_again(request: gr.Request, where: Any, top: Any, *values: Any) -> tuple[Any, ...]:
        controls = Controls.from_values(values)
        update = search.search_again(session_id(request), Asked.from_values(where, top), controls)
        return shown.values(update, controls)

    photo.upload(query, [photo, *shown.inputs], [*shown.outputs, photo], **WITH_PROGRESS)
    photo.clear(no_query, shown.inputs, [*shown.outputs, photo], **WITH_PROGRESS)
    latest = {**WITH_PROGRESS, "trigger_mode": "always_last"}
    shown.query.click(region, shown.inputs, shown.outputs, **latest)
    gr.on([shown.where.submit, shown.top.input], search_again, shown.inputs, shown.outputs, **latest)


def _hit_events(search: SearchActions, shown: SearchTab) -> None:
    def choose(request: gr.Request, event: gr.EventData, *values: Any) -> tuple[Any, ...]:
        controls = Controls.from_values(values)
        update = search.choose_hit(session_id(request), int(event.pick), controls)
        return shown.values(update, controls)

    shown.hits.click(choose, shown.tab.inputs, shown.outputs, **WITH_PROGRESS)


def _first_example(search: SearchActions, shown: SearchTab, photo: gr.Image, opened: gr.Tab) -> None:
    """Connect clicks on examples; the first one is shown when the tab is opened, so that there are hits at once."""
    outputs = [*shown.outputs, photo]

    def show(request: gr.Request, key: str, where: Any, top: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
        (file,), controls = search.examples[key][1], Controls.from_values(values)
        update = search.set_query(session_id(request), file, Asked.from_values(where, top), controls)
        return (*shown.values(update, controls), str(file))

    def search_example(request: gr.Request, event: gr.EventData, where: Any, top: Any, *values: Any) -> tuple[Any, ...]:
        return show(request, event.pick, where, top, values)

    def first_search(request: gr.Request, where: Any, top: Any, *values: Any) -> tuple[Any, ...]:
        if search.has_query(session_id(request)) or not search.examples:
            return (gr.skip(),) * len(outputs)
        return show(request, next(iter(search.examples)), where, top, values)

    shown.tab.examples.click(search_example, shown.inputs, outputs, **WITH_PROGRESS)
    opened.select(first_search, shown.inputs, outputs, **WITH_PROGRESS)


def renew_events(search: SearchActions, shown: SearchTab, after: Any) -> None:
    """Search again with the model that was chosen, after the event that changed it."""

    def renew(request: gr.Request, where: Any, top: Any, *values: Any) -> tuple[Any, ...]:
        controls = Controls.from_values(values)
        update = search.renewed(session_id(request), Asked.from_values(where, top), controls)
        return (gr.skip(),) * len(shown.outputs) if update is None else shown.values(update, controls)

    after.then(renew, shown.inputs, shown.outputs, **{**NO_PROGRESS, **WITH_PROGRESS})
