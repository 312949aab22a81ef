"""A filled table of the paper as LaTeX: a fragment for one's own paper, and a whole document that compiles."""

from collections.abc import Sequence

from gamlens.evaluation.paper_table import FilledLine, FilledTable
from gamlens.evaluation.paper_texts import (
    APPENDIX_NAMES,
    APPENDIX_NOTE,
    appendix_heads,
    appendix_lines,
    heads,
    limit_note,
    notes,
    pairs_of,
    second_column,
)
from gamlens.evaluation.table_files import ESCAPED
from gamlens.methods import METHODS

PRINTED = {  # how LaTeX prints characters that it reads in a special sense or does not know
    **ESCAPED,
    **str.maketrans({"\\": "/", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\^{}"}),
    **str.maketrans(
        {"<": "$<$", ">": "$>$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "†": r"$^\dagger$", "–": "--", "`": "'"}
    ),
}
PACKAGES = r"\usepackage{booktabs,adjustbox,xcolor}"
ROWS_PER_PAGE = 26  # of the appendix
PAPER = r"\providecommand{\paper}[1]{{\scriptsize\color{black!70}#1}}  % the paper's number; an interval"


def escape(text: str) -> str:
    """A text with the characters that LaTeX reads in a special sense written so that they are printed."""
    return "-{}-".join(part.translate(PRINTED) for part in text.split("--"))


def number(text: str) -> str:
    """A number for a cell: a real minus sign, and no space before a percent sign."""
    plain = escape(text.replace(" %", "%"))
    return f"$-${plain[1:]}" if text[:1] == "-" else plain


def fragment(filled: FilledTable) -> str:
    """The table for one's own paper, at most as wide as the text, and below it whether it is of a part of the items."""
    said = escape(limit_note(filled))
    return _boxed(filled) + (f"\\par\\smallskip{{\\footnotesize {said}\\par}}\n" if said else "")


def _boxed(filled: FilledTable, *, height: str = "") -> str:
    """The table alone: at most as wide as the text, and as high as `height` if that is given."""
    most = "max width=\\textwidth" + (f",max totalheight={height}" if height else "")
    lines = [f"% needs {PACKAGES}", PAPER, f"\\begin{{adjustbox}}{{{most}}}", *_tabular(filled)]
    return "\n".join([*lines, r"\end{adjustbox}"]) + "\n"


def _tabular(filled: FilledTable) -> list[str]:
    each, gap = len(heads(filled)), "@{\\hskip 1.2em}"
    groups = gap.join(["c" * each] * len(filled.methods))
    over = _spans([(METHODS[method].title, each) for method in filled.methods], 2)
    names = [r"\textbf{Task and data}", f"\\textbf{{{filled.table.column.capitalize()}}}"]
    lines = [f"\\begin{{tabular}}{{@{{}}ll{gap}{groups}@{{}}}}", r"\toprule", *over]
    lines += [" & ".join([*names, *heads(filled) * len(filled.methods)]) + r" \\"]
    section = None
    for line in filled.lines:
        if line.line.section != section:
            section = line.line.section
            lines += [r"\midrule", f"\\textbf{{{escape(section.title)}}} \\\\[1pt]"]
        lines += _rows(filled, line)
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _rows(filled: FilledTable, line: FilledLine) -> list[str]:
    """Our numbers, and below them, smaller, the paper's; these alone if the line was not measured."""
    pairs = [second_column(filled, line), *pairs_of(filled, line)]
    ours = [f"\\textbf{{{number(pair.ours)}}}" if pair.best else number(pair.ours) for pair in pairs]
    paper = [f"\\paper{{({number(pair.paper)})}}" if pair.paper else "" for pair in pairs]
    if not line.model:
        alone = [escape(line.line.data), paper[0] or ours[0], *paper[1:]]
        return [" & ".join(alone) + r" \\[1pt]"]
    first = " & ".join([escape(line.line.data), *ours]) + r" \\"
    return [first] + ([" & ".join(["", *paper]) + r" \\[1pt]"] if any(paper) else [])


def document(filled: FilledTable) -> str:
    """A whole document: the table on a page of its own with what a reader must know, then the appendix."""
    said = " ".join(escape(note) for note in notes(filled))
    body = _boxed(filled, height="0.82\\textheight")
    return "\n".join([
        r"\documentclass[a4paper,10pt]{article}",
        r"\usepackage[margin=1.5cm]{geometry}",
        PACKAGES,
        r"\usepackage{pdflscape}",
        PAPER,
        r"\pagestyle{empty}",
        r"\begin{document}",
        r"\begin{center}",
        f"\\textbf{{Table {filled.table.number}: {escape(filled.table.title)}}}\\par\\medskip",
        body.rstrip(),
        r"\end{center}",
        f"\\noindent{{\\footnotesize {said}\\par}}",
        *_appendix(filled),
        r"\end{document}",
        "",
    ])  # fmt: skip


def _appendix(filled: FilledTable) -> list[str]:
    """The appendix on pages across, with each interval below its number."""
    lines, names = appendix_lines(filled), len(APPENDIX_NAMES)
    each, pages = len(appendix_heads(filled)), []
    gap = "@{\\hskip 1.5em}"
    groups = gap.join(["c" * each] * len(filled.methods))
    columns = f"@{{}}{'l' * names}{gap}{groups}{gap}{'c' * len(filled.controls)}@{{}}"
    spans = [(METHODS[method].title, each) for method in filled.methods] + [("Controls", len(filled.controls))]
    heads = [*APPENDIX_NAMES, *appendix_heads(filled) * len(filled.methods), *filled.controls]
    said = escape(f"Appendix to Table {filled.table.number}. {APPENDIX_NOTE}")
    for start in range(0, len(lines), ROWS_PER_PAGE):
        pages += [r"\begin{landscape}", f"\\noindent{{\\footnotesize {said}\\par}}\\medskip\\noindent"]
        pages += [r"\begin{adjustbox}{max width=\linewidth,max totalheight=0.88\textheight}"]
        pages += [f"\\begin{{tabular}}{{{columns}}}", r"\toprule", *_spans(spans, names)]
        pages += [" & ".join(map(escape, heads)) + r" \\", r"\midrule"]
        for line in lines[start : start + ROWS_PER_PAGE]:
            above, below = zip(*line.numbers, strict=True)
            pages.append(" & ".join([*map(escape, line.names), *map(number, above)]) + r" \\")
            pages.append(" & ".join([*[""] * names, *(f"\\paper{{{number(text)}}}" for text in below)]) + r" \\[1pt]")
        pages += [r"\bottomrule", r"\end{tabular}", r"\end{adjustbox}", r"\end{landscape}"]
    return pages


def _spans(spans: Sequence[tuple[str, int]], first: int) -> list[str]:
    """A row of heads over several columns each, after the `first` columns, and a rule below each of them."""
    heads, rules, at = [""] * first, [], first + 1
    for title, width in spans:
        heads.append(f"\\multicolumn{{{width}}}{{c}}{{\\textbf{{{escape(title)}}}}}")
        rules.append(f"\\cmidrule(lr){{{at}-{at + width - 1}}}")
        at += width
    return [" & ".join(heads) + r" \\", " ".join(rules)]
