"""What commands print: lines and tables that fit the terminal, one JSON document in their place, notes and errors."""

import dataclasses
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from gamlens.errors import printable, readable

out_console = Console()
err_console = Console(stderr=True)
LEAST_LINES = 23  # lines that every screen has, less one for the prompt
LEAST_ROWS = 4  # of a table, before whole tables are left out
INTERVAL_OR_WORD = re.compile(r"\[[^\]]*\]|\S+")  # an interval such as [0.1, 0.2] is kept whole where it can be
WORD_WIDTH = 24  # words that are longer may be broken, so that a table fits


class TableText:
    """A table on its way to the terminal. It may show its first rows only, and then says how many more there are."""

    def __init__(
        self, heads: Sequence[Column], rows: Sequence[Sequence[Text]], title: Text | None, style: Mapping[str, Any]
    ) -> None:
        self.heads, self.rows, self.title, self.style = heads, rows, title, style
        self.shown = len(rows)

    def table(self, width: int, count: int | None = None) -> Table:
        """A rich table of the first `count` rows that is at most `width` characters wide.

        Words are kept whole where this is possible: each column gets the width of its longest word, and columns that
        need more share the rest. Where not even these fit, there is one block of lines per row: its first cell, and
        below it a line for every other column.
        """
        rows = self.rows[:count]
        columns = list(zip(self._names, *([cell.plain for cell in row] for row in rows), strict=True))
        whole = [_widest(column, str.splitlines) for column in columns]
        for split in (INTERVAL_OR_WORD.findall, str.split):
            least = [min(_widest(column, split), WORD_WIDTH) for column in columns]
            spare = width - self._around - sum(least)
            if spare >= 0:
                break
        else:
            return self._blocks(rows, width)
        wide = dict(enumerate(least))
        while spare and (open_ := [at for at, own in wide.items() if own < whole[at]]):
            wide[min(open_, key=lambda at: wide[at])] += 1
            spare -= 1
        heads = [replace(head, width=wide[at], overflow="fold", _cells=[]) for at, head in enumerate(self.heads)]
        table = Table(*heads, title=self.title, **self.style)
        for row in rows:
            table.add_row(*row)
        return table

    @cached_property
    def _names(self) -> list[str]:
        shown = self.style.get("show_header", True)
        return [str(head.header) if shown else "" for head in self.heads]

    @cached_property
    def _around(self) -> int:
        """How many characters of a line are not those of cells: lines between columns, and padding."""
        narrow = (replace(head, header="x", width=1, _cells=[]) for head in self.heads)
        table = Table(*narrow, **{**self.style, "show_header": True})
        return Measurement.get(out_console, out_console.options.update(width=10_000), table).maximum - len(self.heads)

    def _blocks(self, rows: Sequence[Sequence[Text]], width: int) -> Table:
        """One block of lines per row: its first cell, then the name and the value of the other columns."""
        table = Table.grid(padding=(0, 1, 0, 0))
        table.title, table.title_justify, table.title_style = self.title, "left", "bold"
        table.add_column(overflow="fold", max_width=width // 2)
        table.add_column(overflow="fold")
        for row in rows:
            named = [(name, cell) for name, cell in zip(self._names, row, strict=True) if cell.plain]
            for place, (name, cell) in enumerate(named):
                table.add_row(Padding(Text(name), (0, 0, 0, 2 * bool(place))), cell)
        return table

    def lines(self, width: int) -> int:
        """How many lines of the terminal it takes."""
        more = self.shown < len(self.rows)
        return len(out_console.render_lines(self.table(width, self.shown), pad=False)) + more

    def print(self) -> None:
        out_console.print(self.table(out_console.width, self.shown))
        if more := len(self.rows) - self.shown:
            out_console.print(f"… and {more} more; --json prints all", soft_wrap=True, highlight=False)


def _widest(cells: Iterable[str], split: Callable[[str], list[str]]) -> int:
    """The width of the longest part of cells: of a word, or of a line."""
    return max((cell_len(part) for cell in cells for part in split(cell)), default=0)


Printed: TypeAlias = Text | TableText


class Screen:
    """The text of one command: gathered, and printed at its end so that it fits one screen; or its JSON document.

    Args:
        json_: Whether the command prints one JSON document in place of text.
        whole: Whether the text may be longer than a screen, because it is what the command is for.
    """

    def __init__(self, *, json_: bool = False, whole: bool = False) -> None:
        self.json, self.whole = json_, whole
        self.stdout: TextIO = sys.stdout
        self.parts: list[Printed] = []
        self.answered = False

    def add(self, part: Printed) -> None:
        if not self.json:
            self.parts.append(part)

    def flush(self) -> None:
        """Print what was gathered, as much of it as fits a screen."""
        parts, self.parts = self.parts, []
        for part in parts if self.whole else fitted(parts):
            _print(part)

    def answer(self, record: Any) -> None:
        """Print the JSON document; once."""
        if self.json and not self.answered:
            self.answered = True
            text = json.dumps(plain_values(record), indent=2, allow_nan=False)
            self.stdout.write(text + "\n")
            self.stdout.flush()


def fitted(parts: Sequence[Printed]) -> list[Printed]:
    """What of these parts fits a screen, with a line that says what is left out.

    Long tables lose their last rows down to a few, then the last tables go, then further rows, and then lines of text.
    The last part stays: it says where everything is.
    """
    kept, most, width = list(parts), screen_lines(), out_console.width
    for table in _tables(kept):
        table.shown = min(table.shown, most)  # a row takes a line or more: of a long table the rest is not measured
    sizes = {id(part): _lines(part, width) for part in kept}
    left_out = {"tables": 0, "lines": 0}

    def too_long() -> bool:
        return sum(sizes[id(part)] for part in kept) + sum(map(bool, left_out.values())) > most

    def shorten(least: int) -> None:
        while too_long() and (long := [one for one in _tables(kept) if one.shown > least]):
            longest = max(long, key=lambda table: sizes[id(table)])
            longest.shown = max(least, min(longest.shown - 1, most))
            sizes[id(longest)] = _lines(longest, width)

    shorten(LEAST_ROWS)
    while too_long() and len(tables := _tables(kept)) > 1:
        kept = [part for part in kept if part is not tables[-1]]
        left_out["tables"] += 1
    shorten(1)
    while too_long() and len(kept) > 2:
        kept.pop(-2)
        left_out["lines"] += 1
    signs = [Text(f"… and {count} more {what}; --json prints all") for what, count in left_out.items() if count]
    return [*kept[:-1], *signs, *kept[-1:]]


def _tables(parts: Sequence[Printed]) -> list[TableText]:
    return [part for part in parts if isinstance(part, TableText)]


_screens: list[Screen] = []  # that of the running command


@contextmanager
def screen(*, json_: bool = False, whole: bool = False) -> Iterator[Screen]:
    """Gather what is printed while a command runs. With JSON, prints of other packages go to standard error."""
    mine = Screen(json_=json_, whole=whole)
    _screens.append(mine)
    try:
        if json_:
            with redirect_stdout(sys.stderr):
                yield mine
        else:
            yield mine
    finally:
        _screens.remove(mine)
        mine.flush()


def screen_lines() -> int:
    """How many lines a command may print: those of the terminal but one, or of a small terminal."""
    return max(LEAST_LINES, out_console.height - 1) if out_console.is_terminal else LEAST_LINES


def is_json() -> bool:
    """Whether the running command prints JSON."""
    return bool(_screens) and _screens[-1].json


def say(text: str | Text) -> None:
    """Print one line on standard output literally, without rich markup. Words are not broken."""
    _show(_safe(text))


def say_table(
    header: Sequence[str | Column], lines: Iterable[Sequence[str]], *, title: str | None = None, **style: Any
) -> None:
    """Print a table on standard output, its title, heads and cells literally; `style` is passed on to rich's Table."""
    heads = [replace(head) if isinstance(head, Column) else Column(head) for head in header]
    for head in heads:
        head.header = _safe(head.header) if isinstance(head.header, str) else head.header
    rows = [[_safe(cell) for cell in line] for line in lines]
    _show(TableText(heads, rows, None if title is None else _safe(title), style))


def say_rows(header: Sequence[str | Column], lines: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """Print a table without lines between its cells."""
    hidden = not any(str(head.header if isinstance(head, Column) else head) for head in header)
    say_table(header, lines, title=title, title_justify="left", box=None, pad_edge=False, show_header=not hidden)


def say_now(text: str | Text) -> None:
    """Print a line at once, with all that was gathered before."""
    say(text)
    flush()


def flush() -> None:
    """Print what was gathered so far."""
    for one in _screens:
        one.flush()


def say_json(record: Any) -> None:
    """With --json, print the JSON document at once, before the command ends; without it, nothing."""
    for one in _screens:
        one.answer(record)


def tell(kind: str, message: str, style: str) -> None:
    """Print `kind` in the given style, then the message literally, as one line on standard error."""
    err_console.print(Text.assemble((kind, style), "  ", _safe(message)), highlight=False, soft_wrap=True)


def note(message: str) -> None:
    tell("note", message, "yellow")


def complain(message: str) -> None:
    """Print a message on standard error literally."""
    err_console.print(_safe(message), soft_wrap=True)


def plain_values(value: Any) -> Any:
    """A value as JSON has it: numbers that are not finite become null, tensors and sequences lists, records objects.

    >>> plain_values({"score": float("nan"), "file": Path("a.jpg"), "box": (1, 2.5)})
    {'score': None, 'file': 'a.jpg', 'box': [1, 2.5]}
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return readable(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain_values(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {readable(str(name)): plain_values(one) for name, one in value.items()}
    if hasattr(value, "tolist"):  # a tensor, an array, or one number of them
        return plain_values(value.tolist())
    if isinstance(value, Iterable) and not isinstance(value, Path):
        return [plain_values(one) for one in value]
    return readable(str(value))


def _show(part: Printed) -> None:
    if _screens:
        _screens[-1].add(part)
    else:
        _print(part)


def _print(part: Printed) -> None:
    if isinstance(part, TableText):
        part.print()
    else:
        for line in _wrapped(part, out_console.width):
            line.rstrip()
            out_console.print(line, soft_wrap=True)


def _wrapped(text: Text, width: int) -> list[Text]:
    """The lines of a text, broken between words only: a path that is wider than the terminal can still be copied.

    Where no width is known, because a program reads the text, lines are not broken.
    """
    lines = list(text.split("\n", allow_blank=True))
    if not _has_width():
        return lines
    return [part for line in lines for part in line.divide(_breaks(line.plain, width))]


def _has_width() -> bool:
    """Whether lines of text end somewhere: on a terminal, or where COLUMNS says so."""
    return out_console.is_terminal or "COLUMNS" in os.environ


def _breaks(line: str, width: int) -> list[int]:
    """Where a line is broken: before each word that would not fit on its line any more."""
    found, begin = [], 0
    for word in re.finditer(r"\S+", line):
        if line[begin : word.start()].strip() and cell_len(line[begin : word.end()]) > width:
            begin = word.start()
            found.append(begin)
    return found


def _lines(part: Printed, width: int) -> int:
    """How many lines of the terminal something takes."""
    if isinstance(part, TableText):
        return part.lines(width)
    lines = _wrapped(part, width)
    return sum(max(1, math.ceil(line.cell_len / width)) for line in lines) if _has_width() else len(lines)


def _safe(text: str | Text) -> Text:
    """A text for the terminal without control characters, which names of files may hold."""
    plain = text.plain if isinstance(text, Text) else text
    if isinstance(text, Text) and printable(plain) == plain:
        return text
    return Text(printable(plain))
