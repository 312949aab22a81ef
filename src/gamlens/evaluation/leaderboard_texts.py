"""Leaderboards as tables of text, Markdown, CSV and JSON, and what a reader must know about them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from gamlens.evaluation.leaderboard import Agreement, Board, BoardCell, BoardMetric, BoardRow
from gamlens.evaluation.metric_columns import left_out_note
from gamlens.evaluation.row_titles import has_one_row, method_title, row_title
from gamlens.evaluation.run_scores import RESAMPLED
from gamlens.evaluation.table_files import TextTable, comma_separated, markdown
from gamlens.metrics import Interval

TIED_MARK, BELOW_CONTROL_MARK = "≈", "†"
METRICS_PER_TABLE = 4  # more columns than this make a table unreadable on a page
NAMED_PAIRS = 3  # how many pairs of metrics are named that agree most and least
DIFFERENCES, CORRELATION, CONTROLS_TABLE = "Differences to the reference", "Rank correlation", "Controls"
TRIANGLES_NOTE = (
    "Below the diagonal Spearman's rank correlation of the means of methods, above it Kendall's tau-b, both turned so "
    "that 1 means: the two metrics order the methods alike."
)
TIDY_HEADER = (
    "board", "task", "data", "model", "method", "n", "title", "control", "metric", "unit", "better", "mean", "low",
    "high", "items", "rank", "mean rank", "difference", "difference low", "difference high", "tied with best",
    "better than controls", "threshold", "time",
)  # fmt: skip


def metric_groups(board: Board) -> dict[str, list[BoardMetric]]:
    """The metrics by the table that shows them: one table per group, or several where a group has many metrics."""
    groups: dict[str, list[BoardMetric]] = {}
    for metric in sorted(board.metrics, key=lambda metric: metric.is_cost):
        groups.setdefault(metric.group, []).append(metric)
    found: dict[str, list[BoardMetric]] = {}
    for group, own in groups.items():
        parts = math.ceil(len(own) / METRICS_PER_TABLE)
        edges = [round(part * len(own) / parts) for part in range(parts + 1)]
        for part in range(parts):
            name = group if parts == 1 else f"{group} ({part + 1} of {parts})"
            found[name] = own[edges[part] : edges[part + 1]]
    return found


def leaderboard_tables(board: Board) -> dict[str, TextTable]:
    """All tables of a board by their titles: the numbers, the differences, the correlations, controls and cost."""
    groups = metric_groups(board)
    found = {name: number_table(board, own) for name, own in groups.items()}
    for name, own in groups.items():
        found[f"{DIFFERENCES}: {name[0].lower()}{name[1:]}"] = difference_table(board, own)
    if len(board.agreement.names) > 1:
        found[CORRELATION] = correlation_table(board)
    if board.controls:
        found[CONTROLS_TABLE] = control_table(board)
    return found


def summary_table(board: Board) -> TextTable:
    """One line per row for a terminal: its mean rank, the first metric of each group, time and memory; means alone."""
    chosen: list[BoardMetric] = []
    for metric in board.metrics:
        if metric.is_cost or metric.group not in {one.group for one in chosen}:
            chosen.append(metric)
    lines = []
    for place, row in enumerate(board.rows, start=1):
        cells = [_number(row.mean(metric.name), metric) for metric in chosen]
        lines.append((numbered(row, place, blocks=False), _blocks(row), _decimal(row.mean_rank), *cells))
    return ("row", "n", "mean rank", *map(head, chosen)), lines


def number_table(board: Board, metrics: Sequence[BoardMetric]) -> TextTable:
    """One line per row with its mean rank and these metrics: the best is bold, and marks are as in `mark_notes`."""
    lines = []
    for place, row in enumerate(board.rows, start=1):
        cells = [marked(row.cells.get(metric.name), metric) for metric in metrics]
        if row.is_control and not any(cells):  # making a control costs nothing
            continue
        lines.append((numbered(row, place, blocks=False), _blocks(row), _decimal(row.mean_rank), *cells))
    return ("row", "n", "mean rank", *map(head, metrics)), lines


def difference_table(board: Board, metrics: Sequence[BoardMetric], *, bold: bool = True) -> TextTable:
    """One line per row: its paired gain over the reference by these metrics, bold where its interval excludes 0."""
    lines = []
    for place, row in enumerate(board.rows, start=1):
        title = numbered(row, place)
        if row.key == board.reference:
            lines.append((f"{title} (reference)", *(["–"] * len(metrics))))
            continue
        found = [(row.cells.get(metric.name), metric) for metric in metrics]
        gains = [_gain(cell.gain, metric, bold=bold) if cell else "" for cell, metric in found]
        lines += [(title, *gains)] if any(gains) or not row.is_control else []
    return ("row", *(metric.title for metric in metrics)), lines


def correlation_table(board: Board) -> TextTable:
    """Spearman's correlation below the diagonal and Kendall's tau above it, metric by metric; heads are numbers."""
    own = board.agreement
    lines = []
    for a, name in enumerate(own.names):
        cells = [_decimal((own.kendall if b > a else own.spearman)[a][b], 2) for b in range(len(own.names))]
        lines.append((f"{a + 1}. {board.metric(name).title}", *cells))
    return ("metric", *(str(place + 1) for place in range(len(own.names)))), lines


def control_table(board: Board) -> TextTable:
    """For every metric of quality the control that does best, how many methods it beats, and what fools the metric."""
    header = ("metric", "best control", "its value", "best method", "methods it beats", "clearly", "what fools it")
    lines: list[tuple[str, ...]] = []
    for metric in board.quality:
        control = board.best_control(metric.name)
        known = [row for row in board.methods if not math.isnan(row.mean(metric.name))]
        if control is None or not known:
            continue
        best = max(known, key=lambda row: metric.sign * row.mean(metric.name))
        below = [row for row in known if metric.sign * (control.mean(metric.name) - row.mean(metric.name)) > 0]
        gaps = [row.cells[metric.name].over_control for row in known]
        clearly = sum(gap is not None and gap.n > 0 and gap.high < 0 for gap in gaps)
        lines.append(
            (
                head(metric),
                control.title.removesuffix(" (control)"),
                value_text(control.cells[metric.name].value, metric),
                f"{_number(best.mean(metric.name), metric)} ({best.title})",
                f"{len(below)} of {len(known)}",
                str(clearly),
                metric.fooled_by,
            )
        )
    return header, lines


def agreement_sentences(board: Board) -> list[str]:
    """Which metrics order the methods alike, and which do not, as sentences."""
    own = board.agreement
    pairs = own.pairs()
    if not pairs:
        return [f"There are too few methods ({own.rows}) or metrics to say which metrics agree."]
    many = min(NAMED_PAIRS, (len(pairs) + 1) // 2)
    least = list(reversed(pairs[-many:])) if len(pairs) > 1 else []
    word = "disagree most" if least and least[0][2] < 0 else "agree least"
    found = [f"Over {own.rows} methods these metrics agree most: {'; '.join(_pair(board, p) for p in pairs[:many])}."]
    if least:
        found.append(f"These {word}: {'; '.join(_pair(board, pair) for pair in least)}.")
    alone = _loneliest(own)
    if alone and len(own.names) > 2:
        name, mean = alone
        found.append(
            f"{board.metric(name).title} agrees least with the others: its mean Spearman correlation with them is "
            f"{mean:.2f}."
        )
    return found


def front_sentences(board: Board) -> list[str]:
    """Which methods no other beats in both time and quality: by the mean rank, and by the first metric of each group.

    The groups are those of quality.
    """
    time = board.time
    if time is None:
        return []
    found = []
    for name, title in front_metrics(board):
        rows = [f"{row.title} ({_number(row.mean(time.name), time)} {time.unit})" for row in board.pareto_front(name)]
        if rows:
            found.append(f"By {title} and time, no other row is both faster and better than: {'; '.join(rows)}.")
    return found


def front_metrics(board: Board) -> list[tuple[str, str]]:
    """The measures of quality that are set against time, (name, title): the mean rank, "", and one of each group."""
    first = {metric.group: metric for metric in reversed(board.quality)}
    leads = [metric for metric in board.quality if metric is first[metric.group]]
    return [("", "mean rank"), *((metric.name, metric.title) for metric in leads)]


def board_notes(board: Board) -> list[str]:
    """What a reader of a board must know, as sentences: items, intervals, ranks, marks, and what was left out."""
    notes = [items_note(board), _interval_note(board), *_count_notes(board), *_rank_notes(board)]
    notes += [*mark_notes(board), _difference_note(board), left_out_note(board.record.about)]
    if _has_scores(board):
        notes.append(f"Metrics of the model's score read its {board.confidence} where they can read either.")
    return [note for note in notes if note]


def items_note(board: Board) -> str:
    """How many items are compared, and which rows have more or fewer."""
    counts = {row.items for row in board.rows}
    many = _items(board.items, board.clusters, board.unit)
    if board.choice == "all":
        span = f", from {min(counts)} to {max(counts)}" if len(counts) > 1 else ""
        return (
            f"Every row is measured on its own items{span}; differences are over the items that two rows share. "
            f"There are {many} in all."
        )
    if len(counts) == 1 and board.items == max(counts):
        return f"Every row is measured on the same {many}."
    fewest = [row.title for row in board.rows if row.items == min(counts)]
    named = ", ".join(fewest[:3]) + (f" and {len(fewest) - 3} more" if len(fewest) > 3 else "")
    return (
        f"Every row is compared on the same {many}: those that every row has. Rows have {min(counts)} to "
        f"{max(counts)}; the fewest have {named}."
    )


def mark_notes(board: Board) -> list[str]:
    """What bold type and the marks in tables mean."""
    found = [
        f"Bold: the best mean of all methods. {TIED_MARK}: tied with it, as the paired 95 % interval of the difference "
        "contains 0."
    ]
    if board.controls:
        found.append(
            f"{BELOW_CONTROL_MARK}: not shown to be better than the best control, a map that does not depend on the "
            "model: the paired interval of the difference does not lie above 0."
        )
    return found


def leaderboard_markdown(boards: Sequence[tuple[str, Board]]) -> str:
    """Boards, given as (name, board), as Markdown: all tables of each with its notes."""
    parts = []
    for name, board in boards:
        parts.append(f"# Leaderboard: {name}\n\n{lead_sentence(board)}\n")
        for title, table in leaderboard_tables(board).items():
            notes = [TRIANGLES_NOTE, *agreement_sentences(board)] if title == CORRELATION else ()
            parts.append(f"## {title}\n\n{markdown(*_escaped(table), notes)}")
        if fronts := front_sentences(board):
            parts.append("## Quality against time\n\n" + "".join(f"- {line}\n" for line in fronts))
        parts.append("## Notes\n\n" + "".join(f"- {note}\n" for note in board_notes(board)))
    return "\n".join(parts)


def tidy_table(boards: Sequence[tuple[str, Board]]) -> TextTable:
    """One line per board, row and metric with everything that is known about the number; TIDY_HEADER names it."""
    lines = []
    for name, board in boards:
        time = board.time
        for row in board.rows:
            took = _exact(row.mean(time.name)) if time else ""
            for metric in board.metrics:
                if (cell := row.cells.get(metric.name)) is not None:
                    lines.append((name, *board.setting.columns(), *_tidy(row, metric, cell), took))
    return TIDY_HEADER, lines


def leaderboard_csv(boards: Sequence[tuple[str, Board]]) -> str:
    """`tidy_table` as a CSV file."""
    return comma_separated(*tidy_table(boards))


def leaderboard_json(boards: Sequence[tuple[str, Board]]) -> str:
    """Boards with all their numbers as JSON; null stands for what is not known."""
    return json.dumps([board_record(name, board) for name, board in boards], indent=1, allow_nan=False) + "\n"


def board_record(name: str, board: Board) -> dict[str, Any]:
    """A board as plain values for JSON."""
    own = board.agreement
    front = {title: [list(row.key) for row in board.pareto_front(key)] for key, title in front_metrics(board)}
    record = {
        "board": name,
        "about": board.record.about,
        "errors": len(board.record.errors),
        "confidence": board.confidence,
        "items": {"choice": board.choice, "count": board.items, "clusters": board.clusters, "unit": board.unit},
        "reference": list(board.reference),
        "metrics": [
            {"name": m.name, "title": m.title, "better": m.better, "unit": m.unit, "group": m.group, "items": m.items,
             "in mean rank": m.ranked, "fooled by": m.fooled_by}
            for m in board.metrics
        ],
        "rows": [
            {"method": row.method, "n": row.n, "title": row.title, "control": row.is_control, "items": row.items,
             "mean rank": row.mean_rank, "metrics": {key: _cell_record(cell) for key, cell in row.cells.items()}}
            for row in board.rows
        ],
        "agreement": {"metrics": own.names, "spearman": own.spearman, "kendall": own.kendall, "by item": own.by_item},
        "pareto": front if board.time else {},
        "notes": board_notes(board),
    }  # fmt: skip
    return dict(_without_nan(record))


def lead_sentence(board: Board) -> str:
    """The result in a sentence: what was compared on what, and who is ahead."""
    task, data, model = board.setting.columns()
    methods, controls = len(board.methods), len(board.controls)
    first = board.methods[0]
    many = f"{methods} method{'s' * (methods != 1)} and {controls} control{'s' * (controls != 1)}"
    said = f"{many}: `{model}`, {task}, {board.items} items of {data}."
    if math.isnan(first.mean_rank):
        return said
    ranked = sum(metric.ranked for metric in board.metrics)
    return f"{said} The best mean rank over {ranked} metrics has **{first.title}** ({first.mean_rank:.1f})."


def numbered(row: BoardRow, place: int, *, blocks: bool = True) -> str:
    """The title of a row, with n if `blocks`, after its place in the board; controls have no place."""
    title = row.title if blocks else method_title(row.method)
    return title if row.is_control else f"{place}. {title}"


def head(metric: BoardMetric) -> str:
    """The head of a metric's column, with an arrow to the better side."""
    return f"{metric.title} {'↑' if metric.better == 'up' else '↓'}"


def clear_sign(gain: Interval | None) -> int:
    """1 if the interval of a gain lies above 0, -1 if it lies below, and 0 if it contains 0."""
    if gain is None or not gain.n:
        return 0
    return (gain.low > 0) - (gain.high < 0)


def marked(cell: BoardCell | None, metric: BoardMetric) -> str:
    """A number with its interval: bold if it is the best, and with the marks of `mark_notes`."""
    if cell is None or not cell.value.n:
        return ""
    text = value_text(cell.value, metric)
    marks = (TIED_MARK if cell.tied else "") + (BELOW_CONTROL_MARK if cell.beats_controls is False else "")
    return (f"**{text}**" if cell.best else text) + (f" {marks}" if marks else "")


def value_text(value: Interval, metric: BoardMetric) -> str:
    """A mean with its interval, such as `61.20 [58.1, 64.0]`; a cost with as many digits as it needs."""
    if not value.n:
        return ""
    if metric.is_cost:
        return f"{_number(value.mean, metric)} [{_number(value.low, metric)}, {_number(value.high, metric)}]"
    places, ends = metric.places, metric.places - 1
    return f"{value.mean:.{places}f} [{value.low:.{ends}f}, {value.high:.{ends}f}]"


def _number(value: float, metric: BoardMetric) -> str:
    if not metric.is_cost or math.isnan(value):
        return _decimal(value, metric.places)
    return f"{value:,.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"


def _gain(gain: Interval | None, metric: BoardMetric, *, bold: bool) -> str:
    if gain is None or not gain.n:
        return ""
    if metric.is_cost:
        text = f"{gain.mean:+,.1f} [{gain.low:+,.1f}, {gain.high:+,.1f}]"
    else:
        places, ends = metric.places, metric.places - 1
        text = f"{gain.mean:+.{places}f} [{gain.low:+.{ends}f}, {gain.high:+.{ends}f}]"
    return f"**{text}**" if bold and clear_sign(gain) and not metric.is_cost else text


def _decimal(value: float, places: int = 1) -> str:
    return "" if math.isnan(value) else f"{value:.{places}f}"


def _blocks(row: BoardRow) -> str:
    return str(row.n) if row.n and not has_one_row(row.method) else ""


def _items(items: int, clusters: int, unit: str) -> str:
    return f"{items} items" if items == clusters else f"{items} maps of {clusters} {unit}"


def _interval_note(board: Board) -> str:
    percent = "In %, except for time and memory" if len(board.quality) < len(board.metrics) else "In %"
    said = f"{percent}; in brackets 95 % bootstrap intervals, which resample {RESAMPLED[board.unit]}."
    if len(board.quality) == len(board.metrics):
        return said
    return (
        f"{said} Our own methods share one trace, so their time is taken in the first batch of every part alone, and "
        "memory is measured there for all: costs are over fewer items, and the images of a batch share one time, so "
        "that their intervals are too narrow."
    )


def _count_notes(board: Board) -> list[str]:
    """The metrics that count fewer items than are compared, with the reason where it is known."""
    fewer: dict[tuple[int, str], list[str]] = {}
    for metric in board.quality:
        if metric.items < board.items:
            fewer.setdefault((metric.items, metric.why), []).append(metric.title)
    return [
        f"{', '.join(titles)} count{'s' * (len(titles) == 1)} {items} of these items"
        + (f": the others {why}." if why else ": those of which every method has a value.")
        for (items, why), titles in fewer.items()
    ]


def _rank_notes(board: Board) -> list[str]:
    ranked = [metric.title for metric in board.metrics if metric.ranked]
    others = [metric.title for metric in board.quality if not metric.ranked]
    found = []
    if ranked:
        found.append(
            f"The mean rank is that over {', '.join(ranked)}, all with the same weight; equal means share the mean of "
            "their ranks, and controls have no rank. It says who is ahead, not by how much: see the intervals."
        )
    if others:
        found.append(f"Not in the mean rank, because some methods do not have it: {', '.join(others)}.")
    return found


def _difference_note(board: Board) -> str:
    return (
        f"Differences are to {row_title(*board.reference)} on the same items, in points (time and memory in their "
        "units) and turned so that plus is better, with paired 95 % intervals; bold where the interval does not "
        "contain 0."
    )


def _has_scores(board: Board) -> bool:
    return "objective" in str(board.record.about["protocol"]["kind"]).split("+")


def _pair(board: Board, pair: tuple[str, str, float, float, float]) -> str:
    first, second, spearman, kendall, by_item = pair
    single = "" if math.isnan(by_item) else f", item by item {by_item:.2f}"
    return (
        f"{board.metric(second).title} and {board.metric(first).title} (Spearman {spearman:.2f}, Kendall "
        f"{kendall:.2f}{single})"
    )


def _loneliest(own: Agreement) -> tuple[str, float] | None:
    """The metric with the lowest mean correlation with the others."""
    means = []
    for a, name in enumerate(own.names):
        known = [value for b, value in enumerate(own.spearman[a]) if b != a and not math.isnan(value)]
        if known:
            means.append((sum(known) / len(known), name))
    return (min(means)[1], min(means)[0]) if means else None


def _escaped(table: TextTable) -> TextTable:
    """A table whose cells do not break the lines of a Markdown table."""
    header, lines = table
    return header, [tuple(cell.replace("|", "\\|").replace("\n", " ") for cell in line) for line in lines]


def _tidy(row: BoardRow, metric: BoardMetric, cell: BoardCell) -> tuple[str, ...]:
    gain, value = cell.gain, cell.value
    gains = ("", "", "") if gain is None else (_exact(gain.mean), _exact(gain.low), _exact(gain.high))
    beats = cell.beats_controls
    return (
        row.method, str(row.n), row.title, _yes(row.is_control), metric.name, metric.unit, metric.better,
        _exact(value.mean), _exact(value.low), _exact(value.high), str(value.n), _exact(cell.rank),
        _exact(row.mean_rank), *gains, _yes(cell.best or cell.tied), "" if beats is None else _yes(beats),
        "" if cell.threshold is None else f"{cell.threshold:g}",
    )  # fmt: skip


def _exact(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _cell_record(cell: BoardCell) -> dict[str, Any]:
    def ends(found: Interval | None) -> list[float] | None:
        return None if found is None or not found.n else [found.mean, found.low, found.high]

    return {
        "mean": cell.value.mean, "low": cell.value.low, "high": cell.value.high, "n": cell.value.n, "rank": cell.rank,
        "difference": ends(cell.gain), "over best": ends(cell.over_best), "over best control": ends(cell.over_control),
        "best": cell.best, "tied with best": cell.tied, "better than controls": cell.beats_controls,
        "threshold": cell.threshold,
    }  # fmt: skip


def _without_nan(value: Any) -> Any:
    """A nested value with None in place of numbers that are not finite, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
