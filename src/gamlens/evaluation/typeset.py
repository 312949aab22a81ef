"""A header and its lines as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

ESCAPED = str.maketrans({char: f"\\{char}" for char in "%_&#$"})


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = " | ".join("---" for _ in header)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule.split(" | "), *lines)) + "\n"


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
