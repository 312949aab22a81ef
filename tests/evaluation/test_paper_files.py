"""The files of the paper's tables, against stored ones: `python tests/evaluation/test_paper_files.py` writes these."""

from __future__ import annotations

import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gamlens.evaluation import paper_latex, paper_texts
from gamlens.evaluation.paper_files import table_files
from gamlens.evaluation.paper_layout import PaperLine, paper_table
from gamlens.evaluation.paper_numbers import paper_of
from gamlens.evaluation.paper_runs import MissingLines
from gamlens.evaluation.paper_table import FilledLine, FilledTable
from gamlens.evaluation.tables import Cell, Setting
from gamlens.metrics import Difference, Interval

EXPECTED = Path(__file__).parent / "expected"
METHODS = ("gam", "grad_cam_pp_literal", "grad_cam")
MISSING = (MissingLines("COCO, TResNet-L", "Give the folder of MS-COCO with --coco FOLDER."),)
BETTER = {"ADP": "down", "PIC": "up", "IoU": "up", "Pointing": "up"}


def cell(line: PaperLine, method: str, n: int, value: float) -> Cell:
    setting = Setting(line.section.task, line.network.data, line.subset, "net_50", "")
    gain = Difference(0.5 * n, -0.25, 1.25, 6, 3, 1, 0.5078125) if n == 2 else None
    counted = 0 if math.isnan(value) else 18
    return Cell(
        setting, line.metric, method, n, Interval(value, value - 1.5, value + 1.5, counted), 0.25 if n else None,
        left_out=2, better=BETTER[line.metric], why="belong to the hold-out", base=1 if n else 0, gain=gain,
    )  # fmt: skip


def filled_line(line: PaperLine, place: int) -> FilledLine:
    """Numbers that depend on the place alone: a tie in the second line, none of literal Grad-CAM++ in the third."""
    values = {(method, n): 20 + 3.25 * place - 2 * column + n * (column - 1)
              for column, method in enumerate(METHODS) for n in (1, 2)}  # fmt: skip
    if place == 1:
        values |= {("gam", 1): 10.0, ("grad_cam", 2): 10.0}
    if place == 2:
        values |= {("grad_cam_pp_literal", n): math.nan for n in (1, 2)}
    values |= {("blank", 0): 0.0, ("ones", 0): 12.5}
    where = (line.section.task, line.network.data, line.subset, line.metric, line.network.model)
    papers = {(method, n): paper_of(*where, method, n) for method in METHODS for n in (1, 2)}
    cells = {(method, n): cell(line, method, n, value) for (method, n), value in values.items()}
    known = {key: number for key, number in papers.items() if number is not None}
    return FilledLine(line, BETTER[line.metric], "net_50", cells, known, items=20, errors=place == 0)


def made_up(number: int) -> FilledTable:
    """A table of which the lines of COCO were not measured; its appendix has three lines, and a further metric."""
    table = paper_table(number)
    lines = [filled_line(line, place) for place, line in enumerate(table.lines())]
    appendix = lines[:3]
    further = replace(appendix[0].line, metric="Pointing")
    extra = [filled_line(further, 40)] if number == 2 else []
    empty = [
        replace(line, model="", cells={}, items=0) if line.line.network.short == "COCO" else line for line in lines
    ]
    missing = MISSING if number == 2 else ()
    return FilledTable(
        table, METHODS, (1, 2), tuple(empty), (appendix[0], *extra, *appendix[1:]), missing, "fill=black"
    )


@pytest.mark.parametrize("number", [1, 2])
def test_the_files_are_those_that_are_stored(number: int) -> None:
    made = table_files(made_up(number))
    stem = f"table{number}"
    assert list(made) == [f"{stem}.md", f"{stem}.csv", f"{stem}_appendix.csv", f"{stem}.tex", f"{stem}_page.tex"]
    for name, text in made.items():
        assert text.replace("\r\n", "\n") == (EXPECTED / name).read_text(encoding="utf-8"), name


def test_the_best_of_a_line_is_bold_and_ties_are_all_bold() -> None:
    lines = made_up(1).lines
    assert lines[0].better == "down"
    assert lines[0].best(2) == {("grad_cam", 1)}
    assert lines[1].best(2) == {("gam", 1), ("grad_cam", 2)}
    assert lines[3].best(2) == {("gam", 1)}  # PIC, where higher is better
    assert FilledLine(lines[0].line, "up").best(2) == set()
    close = replace(lines[3], cells={("gam", n): cell(lines[3].line, "gam", n, 10 + 0.001 * n) for n in (1, 2)})
    assert close.best(2) == {("gam", 1), ("gam", 2)}
    assert close.best(3) == {("gam", 2)}


def test_improvements() -> None:
    """By hand: ADP 20 to 18 is better by 10 %, PIC 20 to 18 worse by 10 %; from 0, or to a bound, there is none."""
    assert paper_texts.gain_of(20, 18, "down") == "+10.0 %"
    assert paper_texts.gain_of(20, 18, "up") == "-10.0 %"
    assert paper_texts.gain_of(0, 18, "up") == paper_texts.NOTHING
    assert paper_texts.gain_of(20, 20.001, "down") == "+0.0 %"
    dead = next(line for line in made_up(2).lines if line.line.section.task == "dot")
    assert paper_texts.paper_gain(dead, "grad_cam_pp_literal") == paper_texts.NOTHING
    assert paper_texts.paper_gain(dead, "gam") == "+5.4 %"
    assert paper_texts.paper_gain(dead, "blank") == ""


def test_a_number_of_the_literal_method_is_marked_beside_the_stable_one() -> None:
    table = made_up(1)
    number = table.lines[0].paper["grad_cam_pp_literal", 1]
    line = replace(table.lines[0], paper={("grad_cam_pp", 1): number})
    alone = replace(table, methods=("grad_cam_pp",), lines=(line, *table.lines[1:]))
    assert paper_texts.pairs_of(alone, line)[0].paper == "17.62†"
    assert any(note.startswith("†") for note in paper_texts.notes(alone))
    assert not any("†" in note for note in paper_texts.notes(table))


def test_a_table_of_a_part_of_the_items_says_so() -> None:
    said = "At most 4 items per line (--limit): not the paper's data."
    table = made_up(1)
    whole, part = table_files(table), table_files(replace(table, limit=4))
    assert not any("At most" in text for text in whole.values())
    assert part["table1.md"].count(said) == 1
    for name in ("table1.tex", "table1_page.tex"):
        assert part[name].count(paper_latex.escape(said)) == 1, name
    assert part["table1.tex"].startswith(whole["table1.tex"])


def test_pairs_that_share_images_are_said() -> None:
    table = made_up(1)
    line = next(line for line in table.lines if line.line.section.task == "cosine")
    shared = {key: replace(cell, sharing=7, unit="pairs") for key, cell in line.cells.items()}
    assert not any("share an image" in note for note in paper_texts.notes(table))
    made = table_files(replace(table, appendix=(*table.appendix, replace(line, cells=shared))))
    assert made["table1.md"].count("Some pairs share an image with another pair (7 pairs of cosine, ilsvrc") == 1
    assert "'gamlens table -{}-linked-pairs'" in made["table1_page.tex"]


def test_names_are_written_so_that_latex_prints_them() -> None:
    assert paper_latex.escape("a_b & 5 % #1 $2 < ↑ x^2 ~ \\") == (
        r"a\_b \& 5 \% \#1 \$2 $<$ $\uparrow$ x\^{}2 \textasciitilde{} /"
    )
    assert paper_latex.escape("--coco {FOLDER}") == r"-{}-coco \{FOLDER\}"
    assert paper_latex.number("-3.0 %") == r"$-$3.0\%"
    assert paper_latex.number("–") == "--"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex (Debian: texlive-latex-extra)")
def test_the_page_compiles_and_the_table_fits_it(tmp_path: Path) -> None:
    (tmp_path / "page.tex").write_text(table_files(made_up(2))["table2_page.tex"])
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert "(2 pages" in done.stdout  # the table, and one page of the appendix


if __name__ == "__main__":
    EXPECTED.mkdir(exist_ok=True)
    for number in (1, 2):
        for name, text in table_files(made_up(number)).items():
            (EXPECTED / name).write_text(text.replace("\r\n", "\n"), encoding="utf-8")
