"""The notebooks of docs/tutorials: what they store is whole, small and of this code, and they run again."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the extra docs")
nbclient = pytest.importorskip("nbclient", reason="needs the extra docs")

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 2_500_000  # of all notebooks together
WAIT = 60  # seconds that a kernel has to end
MACHINE_PATH = re.compile(r"/(?:work|home|tmp|root|Users|var)/|[A-Z]:\\\\|site-packages")
TIME = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d")
PICTURES = {"image/jpeg", "image/png", "text/html"}


def module(path: Path) -> ModuleType:
    """A program of docs as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


run = module(ROOT / "docs" / "tutorials" / "run.py")
notebooks = pytest.mark.parametrize("name", run.NAMES)


def kinds(notebook: Any) -> list[list[tuple[str, ...]]]:
    """For every code cell the kinds of what it shows: MIME types, or the name of a stream."""
    return [
        [tuple(sorted(output.data)) if "data" in output else (output.name,) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def texts(notebook: Any) -> list[str]:
    """All that cells print, without digits: rounding may differ from machine to machine."""
    streams = (out.text for cell in notebook.cells for out in cell.get("outputs", ()) if out.output_type == "stream")
    return [re.sub(r"[\d.]+", "0", text) for text in streams]


def test_every_notebook_is_listed() -> None:
    assert sorted(path.stem for path in run.FOLDER.glob("*.ipynb")) == sorted(run.NAMES)
    assert sum(run.path_of(name).stat().st_size for name in run.NAMES) < MOST_BYTES


@notebooks
def test_outputs_are_stored_and_belong_to_the_code(name: str) -> None:
    notebook = run.read(run.path_of(name))
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert notebook.metadata.gamlens.sources == run.sources(notebook), f"run docs/tutorials/run.py {name}"
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(cell.outputs for cell in code if isinstance(ast.parse(cell.source).body[-1], ast.Expr))
    assert notebook.cells[0].source.startswith("# ")
    assert "pip install '.[demo]'" in notebook.cells[0].source
    shown = {kind for cell in kinds(notebook) for output in cell for kind in output}
    assert shown <= {*run.KEPT, "stdout"}
    assert shown & PICTURES
    assert set(notebook.metadata) == {"gamlens", "kernelspec", "language_info"}
    assert all(not cell.metadata for cell in notebook.cells)


@notebooks
def test_nothing_of_a_machine_is_stored(name: str) -> None:
    notebook = run.read(run.path_of(name))
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            written = [output.get("text", ""), *(str(v) for k, v in output.get("data", {}).items() if k[:5] == "text/")]
            for text in written:
                plain = re.sub(r"base64,[\w+/=]+", "", text)
                assert not MACHINE_PATH.search(plain), plain
                assert not TIME.search(plain), plain
                assert "Warning" not in plain
                assert " at 0x" not in plain


@pytest.mark.slow
@notebooks
def test_a_notebook_runs_again(name: str) -> None:
    stored = run.read(run.path_of(name))
    done = run.execute(stored)
    assert run.sources(done) == run.sources(stored)
    assert [cell.source for cell in done.cells] == [cell.source for cell in stored.cells]
    assert kinds(done) == kinds(stored)
    assert texts(done) == texts(stored)


def notebook_of(*cells: str) -> Any:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def ended(process: int) -> bool:
    """Whether a process ends within a minute."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


TELL = "import os, pathlib; pathlib.Path({!r}).write_text(str(os.getpid()))"


@pytest.mark.slow
@pytest.mark.parametrize(("last", "error"), [("1 / 0", "CellExecutionError"), ("while True: pass", "CellTimeoutError")])
def test_the_kernel_ends_when_a_cell_fails(last: str, error: str, tmp_path: Path) -> None:
    note = tmp_path / "process"
    with pytest.raises(getattr(nbclient.exceptions, error)):
        run.execute(notebook_of(TELL.format(str(note)), last), timeout=WAIT if last == "1 / 0" else 5)
    assert ended(int(note.read_text()))


@pytest.mark.slow
def test_what_a_cell_shows_is_kept_once_and_warnings_are_errors() -> None:
    done = run.execute(
        notebook_of("from PIL import Image\nImage.linear_gradient('L').convert('RGB')", "print(1)", "x = 1")
    )
    assert [len(outputs) for outputs in kinds(done)] == [1, 1, 0]
    assert len(PICTURES.intersection(kinds(done)[0][0])) == 1
    with pytest.raises(ValueError, match="wrote to stderr"):
        run.execute(notebook_of("import warnings; warnings.warn('old')"))


def test_the_state_of_widgets_is_left_out() -> None:
    notebook = notebook_of("1")
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "a"}}
    notebook.cells[0].outputs = [
        nbformat.v4.new_output("execute_result", {**view, "text/html": "<b>1</b>", "text/plain": "1"})
    ]
    notebook.metadata.widgets = {"state": {}}
    assert kinds(run.tidy(notebook)) == [[("text/html", "text/plain")]]
    assert "widgets" not in run.tidy(notebook).metadata
    notebook.cells[0].outputs[0].data = view
    with pytest.raises(ValueError, match="shows nothing but"):
        run.tidy(notebook)


def test_what_was_printed_in_parts_is_one_output() -> None:
    notebook = notebook_of("1")
    parts = [nbformat.v4.new_output("stream", text=text) for text in ("a\n", "b\n", "c\n")]
    shown = nbformat.v4.new_output("display_data", {"text/plain": "1"})
    notebook.cells[0].outputs = [*parts[:2], shown, parts[2]]
    found = run.tidy(notebook).cells[0].outputs
    assert [output.get("text") for output in found] == ["a\nb\n", None, "c\n"]
    assert parts[1].text == "b\n"


@pytest.mark.parametrize("known", [True, False])
def test_a_notebook_with_outputs_of_other_code_is_not_published(known: bool, tmp_path: Path) -> None:
    """`make docs` fails: its outputs were stored for other code, or nothing says for which."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    notebook, hook = run.tidy(notebook_of("1")), ROOT / "docs" / "hooks" / "notebooks.py"
    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text(f"{{site_name: a, use_directory_urls: false, plugins: [], hooks: ['{hook}']}}")

    def publish() -> subprocess.CompletedProcess[str]:
        nbformat.write(notebook, tmp_path / "docs" / "a.ipynb")
        words = [sys.executable, "-m", "mkdocs", "build", "--quiet"]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert publish().returncode == 0
    assert (tmp_path / "site" / "a.html").is_file()
    if known:
        notebook.cells[0].source = "2"
    else:
        del notebook.metadata["gamlens"]
    failed = publish()
    assert failed.returncode == 1
    assert "The stored outputs of a.ipynb belong to older code: run `make notebooks`." in failed.stderr


def test_only_stale_notebooks_run_for_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make docs` runs those of which the code, or the version of gamlens, has changed since they ran."""
    ran: list[str] = []
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setattr(run, "NAMES", ("fresh", "changed", "older", "never"))
    monkeypatch.setattr(run, "execute", lambda notebook: ran.append(notebook.cells[0].source) or run.tidy(notebook))
    monkeypatch.setattr(sys, "argv", ["run.py", "--stale"])
    for name in run.NAMES:
        with monkeypatch.context() as patch:
            if name == "older":
                patch.setattr(run, "VERSION", "0.1")
            notebook = run.tidy(notebook_of(name))
        if name == "changed":
            notebook.cells[0].source += "_"
        if name == "never":
            del notebook.metadata["gamlens"]
        nbformat.write(notebook, run.path_of(name))
    run.main()
    assert ran == ["changed_", "older", "never"]
    run.main()
    assert len(ran) == 3
    assert "tutorials/run.py --stale" in (ROOT / "Makefile").read_text()


def test_a_notebook_becomes_a_page() -> None:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    hook = module(ROOT / "docs" / "hooks" / "notebooks.py")
    text, pictures = hook.markdown(run.read(run.path_of("class")), "class_files")
    assert text.startswith("# Why this class?")
    assert pictures
    for name, content in pictures.items():
        assert f": the picture that the code above makes](class_files/{name})" in text
        assert content[:3] in (b"\xff\xd8\xff", b"\x89PN")
    for block in re.findall(r"^<div>\n.*?^</div>", text, flags=re.DOTALL | re.MULTILINE):
        assert "\n\n" not in block
    assert "cheetah    85" in text
