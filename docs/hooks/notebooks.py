"""A hook of MkDocs: every stored notebook of the docs becomes a page, with its pictures as files beside the page.

The notebooks are not run: `docs/tutorials/run.py` has stored what they show, and a notebook whose code has changed
since, or which another version of gamlens ran, stops the build. A page is named like its notebook, so that a link to
`tutorials/class.ipynb` works in the site as it does in the repository.
"""

from __future__ import annotations

import base64
import re
import runpy
from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbformat import NotebookNode

SUFFIX = ".ipynb"
PICTURES = {"image/jpeg": "jpg", "image/png": "png"}
is_stale = runpy.run_path(str(Path(__file__).resolve().parents[1] / "tutorials" / "run.py"))["is_stale"]
FENCE = "````"  # longer than a fence that code or its output may have inside


class NotebookFile(File):
    """A notebook that MkDocs treats as the source of a page."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take every notebook as the source of a page, and add its pictures and the notebook itself as files."""
    for file in [file for file in files if file.src_uri.endswith(SUFFIX)]:
        files.remove(file)
        page = NotebookFile(file.src_uri, config.docs_dir, config.site_dir, config.use_directory_urls)
        files.append(page)
        text = Path(file.abs_src_path or "").read_text("utf-8")
        folder = file.src_uri.removesuffix(SUFFIX) + "_files"
        notebook = nbformat.reads(text, as_version=4)
        if is_stale(notebook):
            raise PluginError(f"The stored outputs of {file.src_uri} belong to older code: run `make notebooks`.")
        _, pictures = markdown(notebook, Path(folder).name)
        for name, content in pictures.items():
            files.append(File.generated(config, f"{folder}/{name}", content=content))
        files.append(File.generated(config, f"{folder}/{Path(file.src_uri).name}", content=text))
    return files


def on_page_read_source(page: Page, config: MkDocsConfig) -> str | None:
    """The Markdown of a page that a notebook is the source of; None for all others."""
    if not page.file.src_uri.endswith(SUFFIX):
        return None
    name = Path(page.file.src_uri)
    notebook = nbformat.read(page.file.abs_src_path, as_version=4)
    text, _ = markdown(notebook, f"{name.stem}_files")
    download = f"[Download this notebook]({name.stem}_files/{name.name}){{ download }} and run it with your own images."
    return f"{text}\n\n---\n\n{download}\n"


def markdown(notebook: NotebookNode, folder: str) -> tuple[str, dict[str, bytes]]:
    """A stored notebook as Markdown.

    Args:
        notebook: The notebook.
        folder: The folder of its pictures, as the Markdown names it.

    Returns:
        The Markdown, and its pictures: {file name: contents}.
    """
    blocks: list[str] = []
    pictures: dict[str, bytes] = {}
    heading = ""
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            blocks.append(cell.source)
            heading = next(reversed(re.findall(r"^#+ (.*)$", cell.source, re.MULTILINE)), heading)
        elif cell.cell_type == "code":
            blocks.append(f"{FENCE}python\n{cell.source}\n{FENCE}")
            for place, output in enumerate(cell.outputs):
                blocks.append(_output(output, f"{folder}/{number:02d}-{place}", heading, pictures))
    return "\n\n".join(blocks), pictures


def _output(output: NotebookNode, stem: str, heading: str, pictures: dict[str, bytes]) -> str:
    """One output as Markdown: a picture, HTML as it is, or text. A picture is added to `pictures`."""
    if output.output_type == "stream":
        return _text(output.text)
    if output.output_type == "error":
        raise ValueError(f"A stored notebook has an error: {output.ename}: {output.evalue}")
    for kind, ending in PICTURES.items():
        if kind in output.data:
            place = f"{stem}.{ending}"
            pictures[Path(place).name] = base64.b64decode(output.data[kind])
            return f"![{heading}: the picture that the code above makes]({place})"
    if "text/html" in output.data:
        lines = (line for line in output.data["text/html"].splitlines() if line.strip())  # an empty line ends HTML
        return "\n".join(["<div>", *lines, "</div>"])
    return str(output.data["text/markdown"]) if "text/markdown" in output.data else _text(output.data["text/plain"])


def _text(text: str) -> str:
    return f"{FENCE}{{ .text .output }}\n{text.rstrip()}\n{FENCE}"
