"""Tables as Markdown, CSV or LaTeX, and a folder of such files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from functools import partial
from operator import methodcaller
from pathlib import Path

from PIL import Image

from gamlens.files import StagedFiles

TextTable = tuple[tuple[str, ...], list[tuple[str, ...]]]  # the header and the lines
ESCAPED = str.maketrans({char: f"\\{char}" for char in "%_&#$"})


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines)) + "\n"


def comma_separated(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows([header, *lines])
    return out.getvalue()


def latex(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    def line(parts: Sequence[str]) -> str:
        return " & ".join(part.translate(ESCAPED) for part in parts) + r" \\"

    body = "\n".join(line(parts) for parts in lines)
    columns = "llll" + "r" * (len(header) - 4)
    head = f"% needs \\usepackage{{booktabs}}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n{line(header)}\n\\midrule\n"
    return f"{head}{body}\n\\bottomrule\n\\end{{tabular}}\n"


def write_files(folder: Path, texts: Mapping[str, str], pictures: Mapping[str, Image.Image]) -> list[Path]:
    """Write texts and PNG pictures by name below a folder, all of them or none; returns the files."""
    with StagedFiles() as staged:
        for name, text in texts.items():
            staged.write(folder / name, methodcaller("write", text.encode()))
        for name, picture in pictures.items():
            staged.write(folder / name, partial(picture.save, format="PNG"))
    return [folder / name for name in (*texts, *pictures)]
