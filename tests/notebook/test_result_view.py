"""The widget: what the browser asks for is answered, errors too, and a closed view lets its trace go."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from studio_kit import noise, small_lens

from gamlens import GamlensError

pytest.importorskip("anywidget")


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    return [str(noise(tmp_path / f"{seed}.png", seed=seed, size=(96 + 4 * seed, 64))) for seed in range(2)]


def ask(view: Any, **changes: Any) -> dict[str, Any]:
    """What the page does when a control is changed; returns the answer."""
    number = view.asked["number"] + 1
    view.asked = {**view.asked, "point": None, **changes, "number": number}
    assert number in (view.shown["number"], view.failed.get("number"))
    return dict(view.shown)


def test_asking_and_answering(photos: list[str]) -> None:
    lens = small_lens()
    view = lens.classify(photos, n=2).view()
    first = dict(view.shown)
    changed = ask(view, n=1)
    assert changed["sides"][0]["values"] != first["sides"][0]["values"]
    assert ask(view, n=2)["sides"] == first["sides"]
    assert view.photos[0]["size"] == [96, 64]
    assert ask(view, row=1)["title"] != ""
    assert view.photos[0]["size"] == [100, 64]
    assert len(view.shown["sides"][0]["values"]) == 2 * 100 * 64
    assert ask(view, row=0)["sides"] == first["sides"]
    assert view.photos[0]["name"] == "0.png"


def test_an_error_is_shown_and_the_next_answer_clears_it(photos: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    view = small_lens().compare(*photos).view()
    first = dict(view.shown)
    assert ask(view, method="gamm") == first
    assert "did you mean 'gam'" in view.failed["text"]
    ask(view, row=7)
    assert "no row 7" in view.failed["text"]
    ask(view, row=0, method="layer_cam")
    assert view.failed == {}

    def breaks(self: object, asked: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("gamlens.notebook.viewed_result.ViewedResult.shown", breaks)
    ask(view, n=1)
    assert view.failed["text"] == "ZeroDivisionError: by zero"


def test_files_that_are_gone(photos: list[str]) -> None:
    result = small_lens().classify(photos)
    view = result.view()
    Path(photos[0]).unlink()
    ask(view, method="layer_cam")
    assert "There is no file" in view.failed["text"]
    assert ask(view, row=1)["title"] != ""
    assert view.failed == {}


def test_a_closed_view_lets_its_trace_go(photos: list[str]) -> None:
    lens = small_lens()
    view, runs = lens.compare(*photos).view(), []
    hook = lens.model.register_forward_hook(lambda module, args, output: runs.append(1))
    ask(view, point={"side": "x", "x": 0.5, "y": 0.5})
    ask(view, method="layer_cam")
    assert len(runs) == 1
    view._handle_custom_msg({"closed": True}, [])
    ask(view, method="hires_cam")
    hook.remove()
    assert len(runs) == 2


def test_close_lets_the_result_and_the_lens_go(photos: list[str]) -> None:
    """Until then ipywidgets keeps every view."""
    lens = small_lens()
    result = lens.compare(*photos)
    view, kept = result.view(), [weakref.ref(lens), weakref.ref(result.x)]
    ask(view, method="layer_cam")
    del lens, result
    view._handle_custom_msg({"closed": True}, [])
    gc.collect()
    assert all(one() is not None for one in kept)
    view.close()
    del view
    gc.collect()
    assert [one() for one in kept] == [None, None]


def test_state_has_no_lens_and_all_bytes(photos: list[str]) -> None:
    """What is sent, and saved with the notebook: plain values and bytes only."""
    state = small_lens().compare(*photos).view().get_state()

    def check(value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                assert isinstance(key, str)
                check(item)
        elif isinstance(value, list | tuple):
            for item in value:
                check(item)
        else:
            assert value is None or isinstance(value, bool | int | float | str | bytes), type(value)

    for name in ("menus", "asked", "photos", "shown", "failed", "opacity", "threshold"):
        check(state[name])


def test_nothing_to_view(photos: list[str]) -> None:
    with pytest.raises(GamlensError, match="nothing to view"):
        small_lens().classify(photos)[[]].view()
