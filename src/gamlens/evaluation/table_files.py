"""Tables as Markdown, CSV or LaTeX, sheets of charts, and a folder of such files."""

import csv
import io
from collections.abc import Mapping, Sequence
from functools import partial
from operator import methodcaller
from pathlib import Path

from PIL import Image

from gamlens import render
from gamlens.files import StagedFiles

TextTable = tuple[tuple[str, ...], list[tuple[str, ...]]]  # the header and the lines
ESCAPED = str.maketrans({char: f"\\{char}" for char in "%_&#$"})


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """A Markdown table, and the notes as a list below it."""
    rule = ["---"] * len(header)
    table = "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines)) + "\n"
    return table + ("\n" + "".join(f"- {note}\n" for note in notes) if notes else "")


def comma_separated(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows([header, *lines])
    return out.getvalue()


def latex(header: Sequence[str], lines: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """A LaTeX tabular for booktabs, and the notes as comments below it."""

    def line(parts: Sequence[str]) -> str:
        return " & ".join(part.translate(ESCAPED) for part in parts) + r" \\"

    body = "\n".join(line(parts) for parts in lines)
    columns = "llll" + "r" * (len(header) - 4)
    head = f"% needs \\usepackage{{booktabs}}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n{line(header)}\n\\midrule\n"
    return f"{head}{body}\n\\bottomrule\n\\end{{tabular}}\n" + "".join(f"% {note}\n" for note in notes)


def draw_charts(rows: Mapping[str, Sequence[render.Chart]], heads: Sequence[str], *, cell: int) -> Image.Image:
    """Charts in a grid with one common key: one row per label, one column per head, each `cell` pixels wide."""
    panels = tuple(tuple(render.Panel(render.draw_chart(chart)) for chart in row) for row in rows.values())
    keys = next(iter(rows.values()))[0].series
    return render.draw(render.Grid(panels, tuple(heads), tuple(rows), keys=keys), cell=cell)


def write_files(
    folder: Path,
    texts: dict[str, str],
    pictures: dict[str, Image.Image],
    tables: dict[str, TextTable] | None = None,
    notes: Sequence[str] = (),
) -> list[Path]:
    """Write all files of a result below a folder, or none of them if one cannot be written.

    Args:
        folder: The folder.
        texts: {file name: text}.
        pictures: {file name: picture}, written as PNG.
        tables: {file name: table}, each written as a CSV file, and all together as table.md.
        notes: Sentences about the tables, at the end of table.md.

    Returns:
        The files.
    """
    if tables:
        texts = texts | {name: comma_separated(*table) for name, table in tables.items()}
        made = [markdown(*table) for table in tables.values()]
        texts["table.md"] = "\n".join([*made, "".join(f"- {note}\n" for note in notes)] if notes else made)
    with StagedFiles() as staged:
        for name, text in texts.items():
            staged.write(folder / name, methodcaller("write", text.encode()))
        for name, picture in pictures.items():
            staged.write(folder / name, partial(render.write_png, picture))
    return [folder / name for name in (*texts, *pictures)]
