"""The part of the command `evaluate` that tests explanations of pairs: `gamlens evaluate pairs`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rich import box
from typer import Context, Option

from gamlens import GamlensError, Lens
from gamlens.cli.common import exit_with_failures
from gamlens.cli.terminal import note, out_console, say, say_table
from gamlens.cli.waiting import ItemProgress, steps, waiting
from gamlens.data import Dataset
from gamlens.evaluation.pair_tests import pair_texts as texts
from gamlens.evaluation.pair_tests.pair_cases import pair_cases, read_cases
from gamlens.evaluation.pair_tests.pair_explainers import PairExplainers
from gamlens.evaluation.pair_tests.pair_numbers import PairResults, pair_results
from gamlens.evaluation.pair_tests.pair_page import PAIRS_PAGE, write_pairs
from gamlens.evaluation.pair_tests.pair_pictures import case_pictures, chosen_cases
from gamlens.evaluation.pair_tests.pair_plan import MOST_OBJECTS, PAIR_KIND, PAIR_TESTS, PairPlan
from gamlens.evaluation.pair_tests.pair_runs import read_rows, run_pair_tests

TITLE_WIDTH, NUMBER_WIDTH = 24, 26  # characters of a table's first column, and of each number with its interval
CASES_PER_FILE = 4  # the default of --chunk: a case takes seconds
# Parameters of `evaluate` that the tests of pairs have; all others but their own belong to the other kinds.
COMMON = {
    *(
        "kind",
        "root",
        "out",
        "data",
        "split",
        "model",
        "weights",
        "blocks",
        "embedding",
        "task",
        "methods",
        "n",
        "fill",
    ),
    *("seed", "hold_out_", "curves", "curve_background", "blur_kernel", "blur_sigma", "limit", "chunk", "workers"),
    *("fresh", "device", "json_"),
}
DRAWING = {"seed", "objects", "limit", "hold_out_"}
OWN = {"tests", "objects", "window", "stride", "cases"}
PAIR_HELP = (
    f"'{PAIR_KIND}' tests explanations of pairs of images, on cases that are built from data with labels and boxes "
    f"({', '.join(PAIR_TESTS)}): see --tests"
)
INSTEAD = {
    "refine": "write gam+refine among --methods", "sharp": "write gam+refine among --methods",
    "keep": "write gam+refine among --methods", "pairs_per_class": "--limit is the number of cases",
    "cost": "times are always measured",
}  # fmt: skip

TestNames = Annotated[
    str,
    Option(
        help="With pairs: what to test, comma separated. curves: insertion and deletion of one image of a pair while "
        "the other stays whole. objects: scenes of several objects that share one class; is the shared object found, "
        "and the link? patch: a patch of one image is copied into another; is it found in both? partner: does the map "
        "change with the partner? boxes: IoU with the true boxes. --limit is the number of cases of each (100)."
    ),
]
ObjectCounts = Annotated[
    str, Option(help=f"With pairs: the numbers of objects per scene, 1 to {MOST_OBJECTS}, comma separated.")
]
WindowSide = Annotated[
    float, Option(help="With pairs: the side of the window of the method 'occlusion', as a share of the input.")
]
WindowStride = Annotated[
    float, Option(help="With pairs: the step of that window, as a share of the input. Half of it takes 4 x as long.")
]

CasesFile = Annotated[
    Path | None,
    Option(
        help="With pairs: measure the cases of this file, the cases.json of another run, in place of drawing them.",
        show_default=False,
    ),
]


def given_options(context: Context) -> set[str]:
    """The parameters of a command that the user gave, by the names of the function's parameters."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and not source.name.startswith("DEFAULT")}


def check_options(kind: str, given: set[str]) -> None:
    """Raise a GamlensError if an option was given that does not belong to the kind of evaluation."""
    if kind == PAIR_KIND:
        wrong = sorted(given - COMMON - OWN)
        if wrong:
            instead = f" ({INSTEAD[wrong[0]]})" if wrong[0] in INSTEAD else ""
            raise GamlensError(
                f"evaluate {PAIR_KIND} has no {_dashed(wrong[0])}{instead}: leave it out. It has "
                f"{', '.join(_dashed(name) for name in sorted((COMMON | OWN) - {'kind'}))}."
            )
        if "cases" in given and (drawing := sorted(given & DRAWING)):
            raise GamlensError(f"{_dashed(drawing[0])} says how cases are drawn, and --cases names them: drop one.")
    elif wrong := sorted(given & OWN):
        raise GamlensError(
            f"{_dashed(wrong[0])} belongs to evaluate {PAIR_KIND}: leave it out, or measure {PAIR_KIND} in place of "
            f"{kind}."
        )


def chosen_plan(given: set[str], options: Mapping[str, Any], hold_out: str) -> PairPlan:
    """The plan that the options ask for: those that were given, and else the defaults of a PairPlan."""
    asked = {name: value for name, value in options.items() if name in given}
    if "hold_out_" in given:
        if not hold_out.isdecimal():
            raise GamlensError(
                f"evaluate {PAIR_KIND} takes a number as --hold-out (0: hold out nothing, 10: every tenth pair), found "
                f"{hold_out!r}."
            )
        asked["hold_out"] = int(hold_out)
    return PairPlan(**asked)


def evaluate_pairs(
    lens: Lens,
    dataset: Dataset,
    plan: PairPlan,
    out: str,
    *,
    given: Path | None,
    chunk: int | None,
    fresh: bool,
    workers: int | None,
) -> dict[str, Any]:
    """Run the tests of pairs into the folder `out`, print their tables, and write its files.

    The cases are those of the file `given`, or drawn.
    """
    if "://" in out:
        raise GamlensError(f"evaluate {PAIR_KIND} writes a page: --out is a folder of this machine, found {out!r}.")
    with waiting("building the cases"):
        cases = pair_cases(dataset, plan) if given is None else read_cases(given, dataset, plan)
    with ItemProgress(f"{PAIR_KIND}, {plan.task}", len(cases)) as progress:
        done = run_pair_tests(
            lens, dataset, cases, plan, out, chunk=chunk or CASES_PER_FILE, fresh=fresh, workers=workers,
            status=progress,
        )  # fmt: skip
    if not done["measured"]:
        note(f"this run was already finished; nothing was measured again ({out})")
    with waiting("reading the results"):
        about, rows = read_rows(out)
        results, chosen = pair_results(about, rows), chosen_cases(cases, rows)
    with steps("drawing cases", len(chosen)) as status:
        samples = {sample.name: sample for sample in dataset}
        maker = PairExplainers(lens, plan)
        pictures = case_pictures(maker, samples, chosen, rows, dataset.classes, status=status)
    with waiting("writing the page"):
        written = write_pairs(Path(out), results, pictures)
    page = Path(out) / PAIRS_PAGE
    record = {"page": page, "items": done["items"], **json.loads(texts.pairs_json(results))}
    _show(results)
    say(f"{done['items']} cases; {len(written)} files with all numbers and differences; open {page}")
    if done["errors"]:
        first = [f"  {row['case']}: {row['error']}" for row in results.errors[:5]]
        exit_with_failures("\n".join((f"{done['errors']} cases could not be measured:", *first)), record)
    return record


def _show(results: PairResults) -> None:
    """Print the tables of each test, folded so that they fit the terminal, and the times."""
    columns = max(1, (out_console.width - TITLE_WIDTH) // NUMBER_WIDTH)
    for test in results.tests():
        for start in range(0, len(texts.main_groups(results, test)), columns):
            table = texts.number_table(results, test, slice(start, start + columns))
            say_table(*table, title=texts.title_of_test(results, test), box=box.SIMPLE)
    say_table(*texts.time_table(results), title="Time", box=box.SIMPLE)
    for line in texts.notes(results):
        say(line)


def _dashed(name: str) -> str:
    return f"--{name.strip('_').replace('_', '-')}"
