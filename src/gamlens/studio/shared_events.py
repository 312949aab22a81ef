"""The events that tabs share: controls, clicked points, splits of a score, and downloads. It imports gradio."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr
from anyio import to_thread

from gamlens.errors import GamlensError
from gamlens.studio import html_fragments
from gamlens.studio.access_rules import network_of
from gamlens.studio.actions import Actions
from gamlens.studio.controls import Controls
from gamlens.studio.security import ARRIVED
from gamlens.studio.session import ClickedPoint, SessionId
from gamlens.studio.widgets import Tab

NO_PROGRESS: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
# Photos are decoded at their full size, which takes much memory: only a few at once.
PHOTO_EVENT: dict[str, Any] = {"concurrency_id": "photos", "concurrency_limit": 2, "api_visibility": "private"}
WITH_PROGRESS: dict[str, Any] = {"show_progress": "minimal", **PHOTO_EVENT}
SPLIT_NEWS_SECONDS = 1.0


def session_id(request: gr.Request) -> str:
    arrived = getattr(request.state, ARRIVED, None)
    return SessionId(str(request.session_hash), network_of(request.client.host), arrived)


def control_events(actions: Actions, tab: Tab) -> None:
    """Connect the controls: a change draws the stage again from the existing trace, without a forward."""

    def redraw(request: gr.Request, *values: Any) -> str:
        return actions.redraw(session_id(request), tab.name, Controls.from_values(values)).stage

    gr.on([control.input for control in tab.inputs], redraw, tab.inputs, tab.stage, **NO_PROGRESS)


def point_events(actions: Actions, tab: Tab) -> None:
    """Connect clicks on the photos of a pair, and on the button that returns to the maps."""

    def point(request: gr.Request, event: gr.EventData, *values: Any) -> str:
        data = event._data
        if data.get("pick") == "stop":
            return actions.stop_split(session_id(request), Controls.from_values(values), tab=tab.name).stage
        clicked = None if "pick" in data else ClickedPoint(data["side"], float(data["x"]), float(data["y"]))
        return actions.set_point(session_id(request), clicked, Controls.from_values(values), tab=tab.name).stage

    tab.stage.click(point, tab.inputs, tab.stage, **NO_PROGRESS)


def split_events(actions: Actions, tab: Tab) -> None:
    """Connect the button that splits the score of a pair where this takes long: the stage says how far it is.

    The score is split in a thread of its own. Waiting for it takes no thread of the server and keeps nobody waiting.
    """

    async def split(request: gr.Request, *values: Any) -> AsyncIterator[Any]:
        visitor, running = session_id(request), True
        controls = Controls.from_values(values)
        update = await to_thread.run_sync(lambda: actions.start_split(visitor, controls, tab=tab.name))
        yield update.stage
        while running:
            await asyncio.sleep(SPLIT_NEWS_SECONDS)
            running, news = await to_thread.run_sync(lambda: actions.split_news(visitor, tab=tab.name))
            yield gr.skip() if news is None else news.stage

    tab.stage.submit(split, tab.inputs, tab.stage, concurrency_limit=None, **NO_PROGRESS)


def download_buttons(actions: Actions, tab: Tab) -> None:
    with gr.Row():
        for what, title in (("picture", "Save overlay"), ("maps", "Save raw map"), ("json", "Save JSON")):
            _download_button(actions, tab, what, title)


def _download_button(actions: Actions, tab: Tab, what: str, title: str) -> None:
    """A button that sends a file to the browser. The server writes nothing to its disk."""

    def download(request: gr.Request, *values: Any) -> str:
        try:
            file = actions.download(session_id(request), tab.name, what, Controls.from_values(values))
        except GamlensError as error:
            gr.Warning(str(error))
            return ""
        return json.dumps({**file._asdict(), "data": base64.b64encode(file.data).decode()})

    button = gr.Button(title, size="sm", elem_id=f"{tab.name}-{what}", min_width=90)
    payload = gr.Textbox(visible=False)
    saved = button.click(download, tab.inputs, payload, **PHOTO_EVENT)
    saved.then(None, payload, js=html_fragments.static_file("save_file.js"))
