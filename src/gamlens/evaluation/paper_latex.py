"""A filled table of the paper as LaTeX: a fragment for one's own paper, and a whole document that compiles."""

from collections.abc import Sequence

from gamlens.evaluation.paper_table import FilledLine, FilledTable
from gamlens.evaluation.paper_texts import appendix_cells, heads, notes, pairs_of, second_column
from gamlens.evaluation.table_files import ESCAPED
from gamlens.methods import METHODS

SYMBOLS = {"<": "$<$", ">": "$>$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "†": r"$^\dagger$", "–": "--"}
PACKAGES = r"\usepackage{booktabs,adjustbox,xcolor}"
PAPER = r"\providecommand{\paper}[1]{{\scriptsize\color{gray}#1}}  % a number of the paper"


def escape(text: str) -> str:
    """A text with the characters that LaTeX reads in a special sense written so that they are printed."""
    text = text.replace("\\", "/").translate(ESCAPED).replace("~", r"\textasciitilde{}").replace("^", r"\^{}")
    for symbol, code in SYMBOLS.items():
        text = text.replace(symbol, code)
    return text


def number(text: str) -> str:
    """A number for a cell: a real minus sign, and no space before a percent sign."""
    plain = escape(text.replace(" %", "%"))
    return f"$-${plain[1:]}" if plain.startswith("-") else plain


def fragment(filled: FilledTable, *, height: str = "") -> str:
    """The table for one's own paper: at most as wide as the text, and as high as `height` if that is given."""
    most = "max width=\\textwidth" + (f",max totalheight={height}" if height else "")
    lines = [f"% needs {PACKAGES}", PAPER, f"\\begin{{adjustbox}}{{{most}}}", *_tabular(filled)]
    return "\n".join([*lines, r"\end{adjustbox}"]) + "\n"


def _tabular(filled: FilledTable) -> list[str]:
    per_method = len(filled.n) + filled.has_gain
    groups = "@{\\hskip 1.2em}".join(["c" * per_method] * len(filled.methods))
    names = [f"\\multicolumn{{{per_method}}}{{c}}{{\\textbf{{{escape(METHODS[m].title)}}}}}" for m in filled.methods]
    starts = [3 + place * per_method for place in range(len(filled.methods))]
    rules = " ".join(f"\\cmidrule(lr){{{start}-{start + per_method - 1}}}" for start in starts)
    column = filled.table.column.capitalize()
    lines = [f"\\begin{{tabular}}{{@{{}}ll@{{\\hskip 1.2em}}{groups}@{{}}}}", r"\toprule"]
    lines += [" & ".join([r"\textbf{Task and data}", f"\\textbf{{{column}}}", *names]) + r" \\", rules]
    lines += [" & ".join(["", "", *heads(filled) * len(filled.methods)]) + r" \\"]
    section = None
    for line in filled.lines:
        if line.line.section != section:
            section = line.line.section
            lines += [r"\midrule", f"\\textbf{{{escape(section.title)}}} \\\\"]
        lines += _rows(filled, line)
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _rows(filled: FilledTable, line: FilledLine) -> list[str]:
    """Two rows per line: our numbers, and below them, smaller, the paper's."""
    pairs = pairs_of(filled, line)
    ours = [f"\\textbf{{{number(pair.ours)}}}" if pair.best else number(pair.ours) for pair in pairs]
    paper = [f"\\paper{{({number(pair.paper)})}}" if pair.paper else "" for pair in pairs]
    first = " & ".join([escape(line.line.data), escape(second_column(filled, line)), *ours]) + r" \\"
    return [first] + ([" & ".join(["", "", *paper]) + r" \\[1pt]"] if any(paper) else [])


def document(filled: FilledTable) -> str:
    """A whole document: the table on a page of its own with what a reader must know, then the appendix."""
    said = " ".join(escape(note) for note in notes(filled))
    body = fragment(filled, height="0.82\\textheight")
    return "\n".join([
        r"\documentclass[a4paper,10pt]{article}",
        r"\usepackage[margin=1.5cm]{geometry}",
        r"\usepackage[T1]{fontenc}",
        PACKAGES,
        r"\usepackage{longtable,pdflscape}",
        r"\pagestyle{empty}",
        r"\begin{document}",
        r"\begin{center}",
        f"\\textbf{{Table {filled.table.number}: {escape(filled.table.title)}}}\\par\\medskip",
        body.rstrip(),
        r"\end{center}",
        f"\\noindent{{\\footnotesize {said}\\par}}",
        *_appendix(filled, *appendix_cells(filled, str)),
        r"\end{document}",
        "",
    ])  # fmt: skip


def _appendix(filled: FilledTable, header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """The appendix as a table over several pages across, with each interval below its number."""
    if not lines:
        return []
    names = 5  # columns of names and counts; the others are numbers
    columns = "l" * names + "c" * (len(header) - names)
    head = " & ".join(_stacked(escape(name), " n=") if place >= names else escape(name)
                      for place, name in enumerate(header)) + r" \\"  # fmt: skip
    rows = [
        " & ".join([*map(escape, line[:names]), *(_stacked(escape(cell), " [") for cell in line[names:])]) + r" \\[1pt]"
        for line in lines
    ]
    title = f"Appendix to Table {filled.table.number}: means with 95\\,\\% intervals that resample whole pairs and "
    title += "images, thresholds (@), paired differences, and controls."
    return [
        r"\begin{landscape}\tiny\setlength{\tabcolsep}{2pt}\setlength{\LTcapwidth}{\linewidth}",
        f"\\begin{{longtable}}{{{columns}}}",
        f"\\multicolumn{{{len(header)}}}{{l}}{{\\footnotesize {title}}}\\\\",
        r"\toprule",
        head,
        r"\midrule\endhead",
        *rows,
        r"\bottomrule",
        r"\end{longtable}\end{landscape}",
    ]


def _stacked(text: str, at: str) -> str:
    """A cell of two lines, broken before the last occurrence of `at`."""
    first, found, second = text.rpartition(at)
    return f"\\shortstack{{{first}\\\\{(found + second).strip()}}}" if found else text
