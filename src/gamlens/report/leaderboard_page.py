"""The page of `gamlens leaderboard`, for one board or several, and the folder of its files."""

import math
from collections.abc import Sequence
from pathlib import Path

from gamlens import render
from gamlens._version import __version__
from gamlens.errors import GamlensError
from gamlens.evaluation import leaderboard_texts as texts
from gamlens.evaluation.leaderboard import Board, BoardMetric, BoardRow, Matrix
from gamlens.evaluation.row_titles import is_external, row_title, without_variants
from gamlens.evaluation.table_files import TextTable, write_files
from gamlens.render import Block, Chart, Charts, Heading, Page, Section, Series, Table, TableCell, Text
from gamlens.report import evaluation_sections as parts

BOARD_FILES = ("leaderboard.html", "leaderboard.md", "leaderboard.csv", "leaderboard.json")
OUR_FAMILY, OUR_VARIANTS = "gamlens", "gamlens, refined or views"
FRONT_NAME = "no other row is both faster and better"
GAIN_SHADE = 0.45  # of differences that are clear
BoardTopic = tuple[str, list[Block]]


def page(boards: Sequence[tuple[str, Board]], *, title: str = "Leaderboard") -> Page:
    """Make the page of boards, given as (name, board): one section per topic for one board, else one per board."""
    if not boards:
        raise GamlensError("There is no board to show: name folders that gamlens evaluate made.")
    footer = f"Made by gamlens {__version__} (`gamlens leaderboard`)."
    if len(boards) == 1:
        name, own = boards[0]
        sections = [Section(head, tuple(blocks)) for head, blocks in _topics(own)]
        return Page(f"{title}: {name}", texts.lead_sentence(own), tuple(sections), footer)
    sections = [_together(boards)]
    for name, own in boards:
        blocks = [block for head, found in _topics(own) for block in (Heading(head), *found)]
        sections.append(Section(name, tuple(blocks), texts.lead_sentence(own)))
    lead = f"{len(boards)} boards: {', '.join(name for name, _ in boards)}."
    return Page(title, lead, tuple(sections), footer)


def write_board(folder: str | Path, boards: Sequence[tuple[str, Board]], *, title: str = "Leaderboard") -> list[Path]:
    """Write the files of boards (BOARD_FILES) into a folder: all of them, or none if one cannot be written."""
    made = page(boards, title=title)
    contents = (
        render.html(made),
        texts.leaderboard_markdown(boards),
        texts.leaderboard_csv(boards),
        texts.leaderboard_json(boards),
    )
    return write_files(Path(folder), dict(zip(BOARD_FILES, contents, strict=True)), {})


def _topics(board: Board) -> list[BoardTopic]:
    found: list[BoardTopic] = [("Ranks", _ranks(board)), ("Numbers", _numbers(board))]
    if charts := _against_time(board):
        found.append(("Quality against time", charts))
    if len(board.agreement.names) > 1:
        found.append(("Which metrics agree", _agreement_blocks(board)))
    if board.controls:
        found.append(("Controls", _controls(board)))
    found.append((f"Differences to {row_title(*board.reference)}", _differences(board)))
    found += [("Notes", _notes(board)), ("Errors", parts.errors(board.record))]
    return [*found, ("How it was measured", parts.protocol(board.record))]


def _ranks(board: Board) -> list[Block]:
    """A shaded table of the rank of every method by every metric."""
    metrics, many = [metric for metric in board.metrics if board.methods], len(board.methods)
    lines: list[tuple[TableCell, ...]] = []
    shades: list[tuple[float, ...]] = []
    for place, row in enumerate(board.methods, start=1):
        ranks = [row.cells[metric.name].rank if metric.name in row.cells else math.nan for metric in metrics]
        lines.append((texts.numbered(row, place), _place(row.mean_rank, 1), *map(_place, ranks)))
        shades.append((0.0, _rank_shade(row.mean_rank, many), *(_rank_shade(rank, many) for rank in ranks)))
    header = ("row", "mean rank", *(metric.title for metric in metrics))
    costs = [metric.title for metric in metrics if metric.is_cost]
    words = f"1 is the best of {many}; blue is better, orange worse. Click a column head to sort."
    if costs:
        words += f" The mean rank does not count {' and '.join(costs)}."
    table = Table(header, tuple(lines), tuple(shades), pinned=True, upright=True)
    return [table, Text(words), Text(texts.items_note(board))]


def _numbers(board: Board) -> list[Block]:
    blocks: list[Block] = []
    for name, metrics in texts.metric_groups(board).items():
        blocks += [Heading(name), _table(texts.number_table(board, metrics))]
    return [*blocks, *map(Text, texts.mark_notes(board))]


def _differences(board: Board) -> list[Block]:
    blocks: list[Block] = [
        Text(
            "Plus is better, in points (time and memory in their units), with paired 95 % intervals on the same "
            "items. Blue is better and orange worse; cells without colour have an interval that contains 0."
        )
    ]
    for name, metrics in texts.metric_groups(board).items():
        header, lines = texts.difference_table(board, metrics, bold=False)
        shown = board.rows[: len(lines)]  # controls, the last rows, are left out where they have no number
        shades = tuple((0.0, *(_gain_shade(row, metric) for metric in metrics)) for row in shown)
        blocks += [Heading(name), Table(header, tuple(lines), shades, pinned=True)]
    return blocks


def _against_time(board: Board) -> list[Block]:
    """Charts of quality against time on a logarithmic axis, with the numbers of rows beside the points."""
    time = board.time
    if time is None or not any(row.mean(time.name) > 0 for row in board.methods):
        return []
    charts = tuple(_time_chart(board, time, name, title) for name, title in texts.front_metrics(board))
    key = "; ".join(f"**{place}** {row.title}" for place, row in enumerate(board.methods, start=1))
    said = [f"The numbers are the places in the board: {key}.", *texts.front_sentences(board)]
    pairs = [Charts(charts[at : at + 2]) for at in range(0, len(charts), 2)]  # two side by side stay readable
    return [*pairs, *map(Text, said)]


def _time_chart(board: Board, time: BoardMetric, name: str, title: str) -> Chart:
    """One measure of quality, "" for the mean rank, against the time per image; `names` label powers of ten."""
    timed = [(place, row) for place, row in enumerate(board.methods, start=1) if row.mean(time.name) > 0]
    powers = [math.log10(row.mean(time.name)) for _, row in timed]
    first, last = math.floor(min(powers)), math.ceil(max(powers))

    def point(row: BoardRow) -> tuple[float, float]:
        return math.log10(row.mean(time.name)) - first, row.mean(name) if name else row.mean_rank

    tones = _tones(board)
    families = {name: [(place, row) for place, row in timed if _family(row) == name] for name in tones}
    series = [
        Series(
            family, tuple(point(row) for _, row in own), "marks", tones[family],
            labels=tuple(str(place) for place, _ in own),
        )
        for family, own in families.items()
        if own
    ]  # fmt: skip
    front = tuple(point(row) for row in board.pareto_front(name) if row.mean(time.name) > 0)
    if len(front) > 1:
        series.insert(0, Series(FRONT_NAME, front, "dotted", 0))
    down = not name or board.metric(name).better == "down"
    better = "lower is better" if down else "higher is better"
    labels = tuple(f"{10.0**power:g}" for power in range(first, max(last, first + 1) + 1))
    unit = "" if not name else f", {board.metric(name).unit}"
    return Chart(f"{title} against time", f"{time.unit} per image", f"{title}{unit} ({better})", tuple(series),
                 names=labels)  # fmt: skip


def _agreement_blocks(board: Board) -> list[Block]:
    own = board.agreement
    blocks: list[Block] = [
        *map(Text, texts.agreement_sentences(board)),
        _matrix(board, own.spearman, own.kendall),
        Text(f"{texts.TRIANGLES_NOTE} Blue: alike; orange: opposite. The columns have the numbers of the lines."),
    ]
    if any(not math.isnan(value) for line in own.by_item for value in line):
        blocks += [
            Heading("Item by item"),
            Text(
                "Spearman's correlation over the methods for every item by itself, averaged over the items. It is "
                "mostly weaker than that of the means, because the order of methods on one image is noisy."
            ),
            _matrix(board, own.by_item, own.by_item),
        ]
    return blocks


def _matrix(board: Board, below: Matrix, above: Matrix) -> Table:
    """A shaded table of correlations with one matrix below the diagonal and another above it."""
    names = board.agreement.names
    lines: list[tuple[TableCell, ...]] = []
    shades: list[tuple[float, ...]] = []
    for a, name in enumerate(names):
        values = [math.nan if a == b else (above if b > a else below)[a][b] for b in range(len(names))]
        cells = ["" if math.isnan(value) else f"{value:.2f}" for value in values]
        lines.append((f"{a + 1}. {board.metric(name).title}", *cells))
        shades.append((0.0, *values))
    return Table(("metric", *(str(place + 1) for place in range(len(names)))), tuple(lines), tuple(shades), pinned=True)


def _controls(board: Board) -> list[Block]:
    lead = (
        "A control is a map that does not depend on the model. A metric that ranks one above many methods does not "
        "show, by itself, that a map explains anything. A control beats a method clearly if the paired 95 % interval "
        "of their difference does not contain 0."
    )
    header, lines = texts.control_table(board)
    table = Table(
        header[:-1], tuple(line[:-1] for line in lines), pinned=True
    )  # its last column is long: see the notes
    return [Text(lead), table]


def _notes(board: Board) -> list[Block]:
    fooled = [f"**{metric.title}**: {metric.fooled_by}" for metric in board.quality if metric.fooled_by]
    blocks: list[Block] = [*map(Text, texts.board_notes(board))]
    return [*blocks, Heading("What fools which metric"), *map(Text, fooled)] if fooled else blocks


def _together(boards: Sequence[tuple[str, Board]]) -> Section:
    """The mean ranks of all rows on all boards, in the order of their mean over the boards that have the row."""
    keys = dict.fromkeys(row.key for _, own in boards for row in own.methods)
    found = []
    for key in keys:
        ranks = [next((row.mean_rank for row in own.methods if row.key == key), math.nan) for _, own in boards]
        known = [rank for rank in ranks if not math.isnan(rank)]
        found.append((sum(known) / len(known) if known else math.nan, len(known), row_title(*key), ranks))
    found.sort(key=lambda one: (-one[1], math.isnan(one[0]), one[0]))
    sizes = [len(own.methods) for _, own in boards]
    lines = [(title, _place(mean, 1), *(_place(rank, 1) for rank in ranks)) for mean, _, title, ranks in found]
    shades = [
        (0.0, 0.0, *(_rank_shade(rank, many) for rank, many in zip(ranks, sizes, strict=True))) for *_, ranks in found
    ]
    table = Table(("row", "mean", *(name for name, _ in boards)), tuple(lines), tuple(shades), pinned=True)
    note = "Mean ranks over the metrics of each board, and their mean. Rows that every board has come first."
    return Section("All boards", (table, Text(note)))


def _table(table: TextTable) -> Table:
    header, lines = table
    return Table(header, tuple(lines), pinned=True)


def _family(row: BoardRow) -> str:
    """Which points of a chart have one colour: our methods, their variants, and the explainers of each library."""
    base, words = without_variants(row.method)
    return base.partition(":")[0] if is_external(base) else OUR_VARIANTS if words else OUR_FAMILY


def _tones(board: Board) -> dict[str, int]:
    """A colour for each family, the same in all charts of a board."""
    names = sorted({_family(row) for row in board.methods}, key=lambda name: (name != OUR_FAMILY, name))
    return {name: tone for tone, name in enumerate(names, start=1)}


def _place(rank: float, places: int | None = None) -> str:
    """A rank as text: without decimals if it is whole, or with as many as given."""
    if math.isnan(rank):
        return ""
    return f"{rank:g}" if places is None else f"{rank:.{places}f}"


def _gain_shade(row: BoardRow, metric: BoardMetric) -> float:
    """The shade of a difference to the reference: none if its interval contains 0."""
    cell = row.cells.get(metric.name)
    return GAIN_SHADE * texts.clear_sign(cell.gain) if cell else 0.0


def _rank_shade(rank: float, many: int) -> float:
    """The shade of a rank: 1 for the first, -1 for the last of many."""
    return math.nan if many < 2 else 1 - 2 * (rank - 1) / (many - 1)
