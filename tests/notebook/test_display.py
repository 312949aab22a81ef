"""How results are displayed: an interactive view in a kernel, pictures elsewhere and without anywidget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from studio_kit import noise, small_lens

from gamlens import GamlensError, Lens
from gamlens.notebook import display

VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The result of a class and of a pair."""
    folder, lens = tmp_path_factory.mktemp("photos"), small_lens()
    photos = [str(noise(folder / f"{seed}.png", seed=seed)) for seed in range(2)]
    return [lens.classify(photos), lens.compare(*photos)]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a Jupyter kernel ran this code."""
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", shell)


def test_a_kernel_is_given_view_and_pictures(results: list[Any], kernel: None) -> None:
    pytest.importorskip("anywidget")
    for result in results:
        bundle = result._repr_mimebundle_(include=None, exclude=None)
        assert bundle["text/html"] == result._repr_html_()
        assert bundle["text/plain"] == repr(result)
        assert bundle[VIEW]["model_id"]


@pytest.mark.parametrize("shell", [None, SimpleNamespace(), SimpleNamespace(kernel=None)])
def test_elsewhere_there_are_pictures_alone(results: list[Any], monkeypatch: pytest.MonkeyPatch, shell: object) -> None:
    """In a plain script, and in IPython's terminal."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    for result in results:
        assert set(result._repr_mimebundle_()) == {"text/plain", "text/html"}
    monkeypatch.delitem(sys.modules, "IPython")
    assert not display.runs_in_kernel()


def test_without_anywidget_there_are_pictures_and_an_error_that_names_the_extra(
    results: list[Any], kernel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    for result in results:
        assert set(result._repr_mimebundle_()) == {"text/plain", "text/html"}
        assert "<img" in result._repr_html_()
        with pytest.raises(GamlensError, match=r"pip install 'gamlens\[notebook\]'"):
            result.view()


def test_an_error_of_the_view_is_not_swallowed(
    results: list[Any], kernel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("anywidget")

    def fails(*args: object) -> None:
        raise GamlensError("broken")

    monkeypatch.setattr("gamlens.notebook.result_view.ViewedResult", fails)
    with pytest.raises(GamlensError, match="broken"):
        results[0]._repr_mimebundle_()


def test_parts_are_shown_too(results: list[Any], kernel: None) -> None:
    pytest.importorskip("anywidget")
    for part in (results[0][0], results[1].x):
        assert VIEW in part._repr_mimebundle_()
        assert part.view().menus["fixed"]


@pytest.mark.slow
def test_importing_gamlens_loads_no_widget() -> None:
    code = (
        "import sys, json, gamlens, gamlens.notebook;"
        "print(json.dumps(sorted({'anywidget', 'ipywidgets', 'IPython', 'traitlets'} & set(sys.modules))))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(said.stdout) == []


def test_the_page_asks_for_nothing_outside() -> None:
    """It is one module without imports, and a style sheet without addresses."""
    folder = Path(display.__file__).parent
    texts = [(folder / name).read_text() for name in ("view.js", "view.css")]
    for text in texts:
        for word in ("http:", "https:", "//cdn", "import(", "import ", "fetch(", "url(", "@import", "innerHTML"):
            assert word not in text, word


@pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
def test_a_lens_of_unknown_blocks_can_be_viewed(tmp_path: Path, kernel: None) -> None:
    pytest.importorskip("anywidget")
    lens: Lens = small_lens()
    free = Lens(lens.model, transform=lambda image: lens.transform(image)[0])
    assert VIEW in free.classify(str(noise(tmp_path / "a.png", seed=3)))._repr_mimebundle_()
