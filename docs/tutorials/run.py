"""Run the tutorials and store what they show: `python docs/tutorials/run.py`, or `make notebooks`.

With `--stale`, as in `make docs`, only those run whose code, or the version of gamlens, is not that of their outputs.

Every notebook of this folder, or those that are named, runs from top to bottom in a kernel of its own, without network
and in an empty folder, and is written back with its outputs. What differs between two runs or two machines (times,
versions, the state of widgets) is left out, so that a diff of a notebook shows what has really changed. A notebook that
fails, or warns, is not written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import runpy
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parent
VERSION = runpy.run_path(str(FOLDER.parents[1] / "src" / "gamlens" / "_version.py"))["__version__"]
NAMES = ("class", "pair", "search", "evaluate")  # in the order in which they are read
TIMEOUT = 600  # seconds that a cell may take
KEPT = ("image/jpeg", "image/png", "text/html", "text/markdown", "text/plain")  # a widget's state is not stored
NOWHERE = "http://127.0.0.1:9"  # a proxy that nobody answers at: a download fails at once
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def path_of(name: str) -> Path:
    """The file of the tutorial of that name."""
    return FOLDER / f"{name}.ipynb"


def read(path: Path) -> NotebookNode:
    """A notebook from its file."""
    return nbformat.read(path, as_version=4)


def sources(notebook: NotebookNode) -> str:
    """The sha256 of the version of gamlens and of a notebook's code. The outputs are stored with it."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps([VERSION, *code]).encode()).hexdigest()


def is_stale(notebook: NotebookNode) -> bool:
    """Whether the stored outputs belong to older code or to another version of gamlens."""
    return bool(notebook.metadata.get("gamlens", {}).get("sources") != sources(notebook))


def execute(notebook: NotebookNode, *, timeout: int = TIMEOUT) -> NotebookNode:
    """Run a notebook and return a tidy copy with its outputs. The kernel ends in every case.

    Args:
        notebook: The notebook. Outputs that it has are ignored.
        timeout: The seconds that each of its cells may take.
    """
    found = nbformat.from_dict(notebook)
    with tempfile.TemporaryDirectory(prefix="tutorial-") as folder:
        environment = dict(os.environ) | {
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "HTTP_PROXY": NOWHERE,
            "HTTPS_PROXY": NOWHERE,
            "IPYTHONDIR": folder,  # no settings and no history of the user
            "OMP_NUM_THREADS": "1",
        }
        place = Path(folder, "work")
        place.mkdir()
        client = NotebookClient(
            found,
            timeout=timeout,
            kernel_name=KERNEL["name"],
            extra_arguments=["--log-level=ERROR"],
            store_widget_state=False,
            resources={"metadata": {"path": str(place)}},
        )
        client.execute(env=environment)
    return tidy(found)


def tidy(notebook: NotebookNode) -> NotebookNode:
    """The notebook with no more than its cells and what they show."""
    cells = []
    for number, cell in enumerate(notebook.cells):
        kept = {"cell_type": cell.cell_type, "id": f"cell-{number:02d}", "metadata": {}, "source": cell.source}
        if cell.cell_type == "code":
            kept |= {"execution_count": cell.execution_count, "outputs": _outputs(cell.outputs)}
        cells.append(kept)
    about = {"kernelspec": KERNEL, "language_info": {"name": "python"}, "gamlens": {"sources": sources(notebook)}}
    return nbformat.from_dict({"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5})


def _outputs(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """The outputs of a cell. What it printed in several parts, whose number depends on the time, becomes one output."""
    kept: list[NotebookNode] = []
    for output in map(_output, outputs):
        if kept and kept[-1].output_type == output.output_type == "stream":
            output = nbformat.from_dict({**output, "text": kept.pop().text + output.text})
        kept.append(output)
    return kept


def _output(output: NotebookNode) -> NotebookNode:
    """An output without metadata; of a picture that came in two formats the smaller one."""
    if output.output_type == "stream":
        if output.name != "stdout":
            raise ValueError(f"A cell wrote to {output.name}: {output.text}")
        return output
    data = {kind: output.data[kind] for kind in KEPT if kind in output.data}
    pictures = sorted((kind for kind in data if kind.startswith("image/")), key=lambda kind: len(data[kind]))
    for larger in pictures[1:]:
        del data[larger]
    if not data:
        raise ValueError(f"A cell shows nothing but {', '.join(output.data)}, which is not stored.")
    return nbformat.from_dict({**output, "data": data, "metadata": {}})


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the tutorials and store what they show.")
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="by default all of them")
    parser.add_argument("--stale", action="store_true", help="only those whose outputs belong to older code")
    given = parser.parse_args()
    for name in given.names or NAMES:
        notebook = read(path_of(name))
        if given.stale and not is_stale(notebook):
            continue
        done = execute(notebook)
        nbformat.write(done, path_of(name))
        print(f"{name}: {len(done.cells)} cells, {path_of(name).stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
