"""A filled table of the paper as Markdown and CSV files; `paper_latex` writes the LaTeX."""

from gamlens.evaluation import paper_latex
from gamlens.evaluation.paper_table import FilledTable
from gamlens.evaluation.paper_texts import (
    APPENDIX_NAMES,
    APPENDIX_NOTE,
    NOTHING,
    NumberPair,
    appendix_heads,
    appendix_lines,
    heads,
    notes,
    our_gain,
    pairs_of,
    second_column,
)
from gamlens.evaluation.table_files import TextTable, comma_separated, markdown
from gamlens.evaluation.tables import Cell
from gamlens.methods import METHODS


def table_files(filled: FilledTable) -> dict[str, str]:
    """The files of a table: {file name: text}."""
    stem = f"table{filled.table.number}"
    header, lines = appendix_rows(filled)
    return {
        f"{stem}.md": to_markdown(filled),
        f"{stem}.csv": comma_separated(*paper_rows(filled)),
        f"{stem}_appendix.csv": comma_separated(header, lines),
        f"{stem}.tex": paper_latex.fragment(filled),
        f"{stem}_page.tex": paper_latex.document(filled),
    }


def to_markdown(filled: FilledTable) -> str:
    """The table, what is missing, and the appendix."""
    first = ["Task and data", filled.table.column.capitalize()]
    header = first + [f"{METHODS[method].title} {head}" for method in filled.methods for head in heads(filled)]
    rows: list[list[str]] = []
    for line in filled.lines:
        title = f"**{line.line.section.title}**"
        if title not in [row[0] for row in rows]:
            rows.append([title, *[""] * (len(header) - 1)])
        rows.append([line.line.data, *map(_both, [second_column(filled, line), *pairs_of(filled, line)])])
    text = f"# Table {filled.table.number}: {filled.table.title}\n\n{markdown(header, rows)}\n"
    text += "".join(f"- {note}\n" for note in notes(filled))
    text += f"\n## Appendix: intervals, controls and further metrics\n\n{APPENDIX_NOTE}\n\n"
    titles = [f"{METHODS[method].title} {head}" for method in filled.methods for head in appendix_heads(filled)]
    lines = [
        (*line.names, *(f"{number}<br>{below}" if below else number for number, below in line.numbers))
        for line in appendix_lines(filled)
    ]
    return text + markdown([*APPENDIX_NAMES, *titles, *filled.controls], lines)


def _both(pair: NumberPair) -> str:
    ours = f"**{pair.ours}**" if pair.best else pair.ours
    return f"{ours} <sub>({pair.paper})</sub>" if pair.paper else ours


def paper_rows(filled: FilledTable) -> TextTable:
    """The table as plain numbers: for each method its n, its improvement, and the paper's numbers."""
    header = ["section", "data", "model", "metric", "better", "items"]
    for method in filled.methods:
        header += [f"{method} {head}" for head in heads(filled)] + [f"{method} n={n}, paper" for n in filled.n]
    rows = []
    for line in filled.lines:
        row = [line.line.section.title, line.line.data, line.model, line.line.metric, line.better, str(line.items)]
        for method in filled.methods:
            row += [_plain(line.cells.get((method, n))) for n in filled.n]
            row += [our_gain(line, method).replace(NOTHING, "")] if filled.has_gain else []
            row += [str(line.paper.get((method, n), "")) for n in filled.n]
        rows.append(tuple(row))
    return tuple(header), rows


def _plain(cell: Cell | None) -> str:
    return "" if cell is None or not cell.value.n else f"{cell.value.mean:.4f}"


def appendix_rows(filled: FilledTable) -> TextTable:
    """One row per line, metric, method and n, with everything that is known about the number."""
    header = (
        "section", "data", "subset", "model", "metric", "better", "method", "n", "value", "low", "high", "counted",
        "items", "errors", "left out", "why", "threshold", "gain", "gain low", "gain high", "p", "paper",
    )  # fmt: skip
    rows = []
    for line in filled.appendix:
        for (method, n), cell in line.cells.items():
            where, gain = line.line, line.gain(method) if n == 2 else None
            row = [where.section.title, where.network.short, where.subset, line.model, where.metric, line.better]
            row += [method, str(n) if n else "", *(f"{v:.4f}" for v in (cell.value.mean, cell.value.low))]
            row += [f"{cell.value.high:.4f}", str(cell.value.n), str(line.items), str(line.errors), str(cell.left_out)]
            row += [cell.why, "" if cell.threshold is None else f"{cell.threshold:.2f}"]
            row += [f"{v:.4f}" for v in (gain.mean, gain.low, gain.high)] if gain else ["", "", ""]
            rows.append((*row, f"{gain.p:.2g}" if gain else "", str(line.paper.get((method, n), ""))))
    return header, rows
