"""What an answer of the studio changes in the controls of a tab."""

from __future__ import annotations

from collections.abc import Iterator

import gradio as gr
import pytest

from gamlens.studio import widgets
from gamlens.studio.actions import TabUpdate
from gamlens.studio.controls import CONTROL_NAMES, Controls
from gamlens.studio.session import TabName
from gamlens.studio.widgets import ABOUT_SHARP, ONE_BLOCK_ONLY, Tab

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio")


@pytest.fixture(params=["class", "pair"])
def tab(request: pytest.FixtureRequest) -> Iterator[Tab]:
    name: TabName = request.param
    with gr.Blocks(analytics_enabled=False):
        place = gr.HTML()
        yield Tab(name, (), place, place, widgets.control_widgets(name), (place,) * 3 if name == "class" else ())


def test_sharp_is_off_at_first_and_beside_the_method(tab: Tab) -> None:
    switch = tab.controls["sharp"]
    assert (switch.label, switch.value) == ("Sharp", False)
    assert tab.controls["method"].parent is tab.controls["n"].parent is switch.parent
    assert switch in tab.inputs
    assert Controls.from_values([component.value for component in tab.inputs]) == Controls()
    assert tuple(tab.controls) == CONTROL_NAMES


def test_sharp_can_be_used_where_a_model_has_two_blocks(tab: Tab) -> None:
    asked = Controls(sharp=True)
    for blocks, on, can, said in (
        (("layer2", "layer3"), True, True, ABOUT_SHARP),
        (("layer3",), False, False, ONE_BLOCK_ONLY),
    ):
        changed = dict(zip(tab.outputs, tab.values(TabUpdate("", "", blocks), asked), strict=True))
        switch = changed[tab.controls["sharp"]]
        assert (switch.value, switch.interactive, switch.info) == (on, can, said)
    values = tab.values(TabUpdate("nothing to show"), asked)
    assert len(values) == len(tab.outputs)
    assert not isinstance(values[tab.outputs.index(tab.controls["sharp"])], gr.Checkbox)
