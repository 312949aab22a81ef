"""The tables of the tests of pairs as text, Markdown, CSV and JSON, and what a reader must know about them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from gamlens.evaluation.pair_tests.pair_numbers import SEVERAL, MeasuredGroup, PairNumber, PairResults
from gamlens.evaluation.pair_tests.pair_plan import PATCHES, PHOTO_PAIRS, SCENES, PairPlan
from gamlens.evaluation.table_files import TextTable, comma_separated, markdown
from gamlens.metrics import Difference, Interval

BETTER_MARK, WORSE_MARK = "▲", "▼"
LEAST_MARKED = 6  # cases: with fewer, no difference is clear by the sign test
CHANCE_TITLE, EXACT_TITLE = "by chance", "the network itself"
TEST_TITLES = {
    "curves": "Insertion and deletion", "objects": "Shared object among several", "patch": "Copied patch",
    "partner": "Another partner", "boxes": "Boxes",
}  # fmt: skip
PAIR_HEADER = (
    "test", "group", "measure", "better", "explainer", "n", "title", "control", "mean", "low", "high", "cases",
    "difference", "difference low", "difference high", "won", "lost", "tied", "p", "chance", "exact", "exact low",
    "exact high", "threshold", "seconds",
)  # fmt: skip


def said_of(test: str, plan: PairPlan) -> str:
    """What a test does and how its numbers are read."""
    hidden = "a blurred image" if plan.curve_background == "blur" else f"the {plan.fill} colour"
    found = {
        "curves": "Pixels of one image appear (insertion) or vanish (deletion) in the order of its map, in "
        f"{plan.curves} steps over {hidden}, while the other image stays whole; the number is the area under the "
        "similarity, the mean of both directions. A good map makes the similarity rise early and fall early.",
        "objects": "Two scenes of k objects on a canvas of the mean colour share exactly one class, shown by two "
        "different photos. **Hit**: the map is strongest on the shared object (ties are split). **Share**: how much of "
        "the map's mass in objects lies on it. **Link hit**: of all k x k pairs of objects, the shared one is the "
        "strongest; interactions link positions themselves, and for maps the score of a link is the product of the "
        "masses at both ends. Interactions (average) compare every place with what both images have on average. **As "
        "the network**: the map is strongest on the object that the network itself finds most similar to the other "
        f"scene. The line '{EXACT_TITLE}' shows each object alone to the network and takes "
        "the most similar one: where it is low, the network does not recognise the shared class, and no honest "
        "explanation can.",
        "patch": "A square of x around its object, 1/9 to 1/4 of the image, is copied to another place of a photo of "
        "another class. **Peak in patch**: the map's maximum lies in the patch, the mean of both images. **Peak in "
        "both**: it does so in x and in y. **Energy / area**: the patch's share of the map's mass divided by its share "
        "of the image, 1 by chance. **Pixel AUC**: how often a pixel of the patch has a higher value than another one. "
        "Objects of photos are often in the middle, and so are patches of x: compare with the control 'centre'.",
        "partner": "The map of x with a partner of its own class is compared with the map of x with a partner of "
        "another class: 1 - Spearman's correlation. 0 means that the map ignores its partner; more is not better in "
        "itself, since noise changes, too.",
        "boxes": "Both maps of pairs of one class against the ground-truth boxes: IoU of the tight box around all "
        f"pixels above a threshold, which is the best one on held-out pairs (every {plan.hold_out}th), left out here."
        if plan.hold_out
        else "Both maps of pairs of one class against the ground-truth boxes: IoU of the tight box around all pixels "
        "above the threshold that is best on these pairs.",
    }
    return found[test]


def time_words(results: PairResults) -> str:
    """What the times are."""
    return (
        f"Median seconds per pair, both maps; a plain forward of the two images takes {results.forward:.3g} s. Methods "
        "that read blocks share one traced forward: the time of each is that forward, the backward where it reads "
        "gradients, and its own maps, as if it were called alone."
    )


def notes(results: PairResults) -> list[str]:
    """What the marks and brackets of tables mean."""
    reference = results.title(results.reference)
    kinds = {PHOTO_PAIRS: "pairs of photos", SCENES: "pairs of scenes", PATCHES: "pairs with a copied patch"}
    counts = ", ".join(f"{count} {kinds[kind]}" for kind, count in results.cases.items())
    return [
        f"Means over {counts}; brackets are 95 % bootstrap intervals over cases.",
        f"{BETTER_MARK} and {WORSE_MARK}: better and worse than {reference}, where the paired 95 % interval of the "
        "difference does not contain 0.",
    ]


def main_groups(results: PairResults, test: str) -> list[MeasuredGroup]:
    """The measures that the first table of a test shows: of scenes on those with several objects, if there are any."""
    own = results.of(test)
    names = [group.group for group in own]
    main = SEVERAL if SEVERAL in names else names[-1] if names else ""
    return [group for group in own if group.group == main]


def title_of_test(results: PairResults, test: str) -> str:
    """The title of a test's first table, with the scenes that it is about."""
    group = main_groups(results, test)[0].group
    return f"{TEST_TITLES[test]} ({group} objects)" if group else TEST_TITLES[test]


def number_table(results: PairResults, test: str, part: slice = slice(None)) -> TextTable:
    """The explainers by the measures of a test, with chance and the network itself; scenes with several objects.

    `part` takes only some of the measures, so that a table fits a terminal.
    """
    groups = main_groups(results, test)[part]
    header = ("explainer", *(group.measure.head for group in groups))
    lines = _guides(groups)
    for row in results.rows:
        lines.append((results.title(row), *(_cell(group.numbers[row.key], group) for group in groups)))
    return header, lines


def objects_table(results: PairResults, measure: str) -> TextTable:
    """One measure of scenes by the number of objects: means alone."""
    groups = [group for group in results.of("objects") if group.measure.name == measure and group.group != SEVERAL]
    lines = [
        (title, *cells)
        for title, cells in (
            (CHANCE_TITLE, [_number(group.chance, group) for group in groups]),
            (EXACT_TITLE, [_number(group.exact.mean if group.exact else None, group) for group in groups]),
        )
        if any(cells)
    ]
    for row in results.rows:
        lines.append((results.title(row), *(_number(g.numbers[row.key].interval.mean, g) for g in groups)))
    return ("explainer", *(f"{group.group} ({_cases(group)})" for group in groups)), lines


def difference_table(results: PairResults, test: str) -> TextTable:
    """The paired differences to the first explainer by the measures of a test, with intervals."""
    groups = main_groups(results, test)
    lines = []
    for row in results.rows:
        gaps = [(group.numbers[row.key].difference, group) for group in groups]
        if any(gap is not None for gap, _ in gaps):
            lines.append((results.title(row), *(_gap(gap, group) for gap, group in gaps)))
    return ("explainer", *(group.measure.head for group in groups)), lines


def time_table(results: PairResults) -> TextTable:
    """The median time per pair of every explainer."""
    lines: list[tuple[str, ...]] = [("plain forward of both", f"{results.forward:.3f}", "1.0")]
    for row in results.rows:
        if (taken := results.seconds.get(row.key)) is not None:
            lines.append((results.title(row), f"{taken:.3f}", f"{taken / results.forward:.1f}"))
    return ("explainer", "seconds per pair", "plain forwards"), lines


def tables_of_test(results: PairResults, test: str) -> dict[str, TextTable]:
    """The tables of one test by their titles: its numbers first, and its differences to the first explainer last."""
    found = {title_of_test(results, test): number_table(results, test)}
    if test == "objects":
        titles = {group.measure.name: group.measure.title for group in results.of(test)}
        found |= {f"{title} by the number of objects, %": objects_table(results, n) for n, title in titles.items()}
    if len(results.rows) > 1:
        found[f"{title_of_test(results, test)}: difference to {results.title(results.reference)}"] = difference_table(
            results, test
        )
    return found


def tables_of(results: PairResults) -> dict[str, TextTable]:
    """All tables by their titles."""
    found: dict[str, TextTable] = {}
    for test in results.tests():
        found |= tables_of_test(results, test)
    return {**found, "Time": time_table(results)}


def pairs_markdown(results: PairResults) -> str:
    """All tables with their explanations, ready for a page of documentation."""
    about = results.about
    lines = [
        f"# Tests of pairs: {about['model']} ({about['weights']}), {about['data']}, {results.plan.task}\n",
        "".join(f"- {note}\n" for note in notes(results)),
    ]
    said = {title_of_test(results, test): said_of(test, results.plan) for test in results.tests()}
    said["Time"] = time_words(results)
    for title, table in tables_of(results).items():
        lines.append(f"{'##' if title in said else '###'} {title}\n")
        if title in said:
            lines.append(f"{said[title]}\n")
        lines.append(markdown(*table))
    return "\n".join(lines)


def pairs_csv(results: PairResults) -> str:
    """One line per test, group, measure and explainer."""
    lines = [[_plain_text(value) for value in one.values()] for one in _records(results)]
    return comma_separated(PAIR_HEADER, lines)


def pairs_json(results: PairResults) -> str:
    """All numbers, with the description of the run."""
    own = {"forward_seconds": results.forward, "cases": dict(results.cases), "numbers": _records(results)}
    errors = [{"case": row["case"], "error": row["error"]} for row in results.errors]
    return json.dumps({"about": dict(results.about), **own, "errors": errors}, indent=1, ensure_ascii=False)


def _records(results: PairResults) -> list[dict[str, Any]]:
    found = []
    for group in results.groups:
        for row in results.rows:
            number = group.numbers[row.key]
            mean, gap, exact = number.interval, number.difference, group.exact
            values = (
                group.measure.test, group.group, group.measure.name, group.measure.better, row.name, row.n or None,
                results.title(row), row.control, *_ends(mean), mean.n, *_ends(gap),
                *((gap.wins, gap.losses, gap.ties, gap.p) if gap else (None,) * 4), group.chance, *_ends(exact),
                number.threshold, results.seconds.get(row.key),
            )  # fmt: skip
            found.append(dict(zip(PAIR_HEADER, values, strict=True)))
    return found


def _ends(found: Interval | Difference | None) -> tuple[float | None, ...]:
    values = (None,) * 3 if found is None else (found.mean, found.low, found.high)
    return tuple(None if value is None or math.isnan(value) else value for value in values)


def _guides(groups: Sequence[MeasuredGroup]) -> list[tuple[str, ...]]:
    """The lines of chance and of the network itself, where a measure has them."""
    found = []
    if any(group.chance is not None for group in groups):
        found.append((CHANCE_TITLE, *(_number(group.chance, group) for group in groups)))
    if any(group.exact is not None for group in groups):
        found.append((EXACT_TITLE, *("" if g.exact is None else _interval(g.exact, g) for g in groups)))
    return found


def _cell(number: PairNumber, group: MeasuredGroup) -> str:
    marked = number.difference is not None and group.measure.ranked
    mark = _mark(number.difference, group.measure.better) if marked and number.difference else ""
    at = "" if number.threshold is None else f" at {number.threshold:g}"
    return f"{_interval(number.interval, group)}{at}{mark}"


def _mark(gap: Difference, better: str) -> str:
    if gap.wins + gap.losses + gap.ties < LEAST_MARKED or not (gap.low > 0 or gap.high < 0):
        return ""
    return f" {BETTER_MARK if (gap.low > 0) == (better == 'up') else WORSE_MARK}"


def _interval(found: Interval, group: MeasuredGroup) -> str:
    if found.n == 0:
        return ""
    return f"{_number(found.mean, group)} [{_number(found.low, group)}, {_number(found.high, group)}]"


def _gap(gap: Difference | None, group: MeasuredGroup) -> str:
    if gap is None or math.isnan(gap.mean):
        return ""
    places = _places(group)
    return f"{gap.mean:+.{places}f} [{gap.low:+.{places}f}, {gap.high:+.{places}f}]"


def _number(value: float | None, group: MeasuredGroup) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{_places(group)}f}"


def _places(group: MeasuredGroup) -> int:
    return 1 if group.measure.percent else 3


def _cases(group: MeasuredGroup) -> int:
    return max((number.interval.n for number in group.numbers.values()), default=0)


def _plain_text(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
