"""Methods against each other, item by item, from the values of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from gamlens.evaluation.results import Run
from gamlens.evaluation.row_titles import has_one_row, method_title
from gamlens.evaluation.run_scores import RESAMPLED, Setting, check_real, resampled, scores
from gamlens.metrics import Difference

CONTEST_NOTE = (
    "The difference is the mean of the method minus the other on the same maps, in points, with its paired 95 % "
    "interval. Intervals, won, lost, tied and p (two-sided sign test) are by {}."
)


def contest_note(runs: Sequence[Run], *, linked: bool = False) -> str:
    """What the columns of `contest_rows` are."""
    units = dict.fromkeys(RESAMPLED[resampled(run.about, linked=linked)] for run in runs)
    return CONTEST_NOTE.format(" or ".join(units))


@dataclass(frozen=True)
class Contest:
    """One method against another, item by item, at the same n. Wins and losses count whole images or whole pairs.

    `other_n` is 0 for a control. Explainers of other packages, which choose their layers themselves, and methods that
    read the pixels have one row, which stands against every n.
    """

    setting: Setting
    metric: str
    n: int
    method: str
    other: str
    difference: Difference
    other_n: int = 1


def contests(run: Run, *, first: str = "gam", confidence: str = "logit", linked: bool = False) -> list[Contest]:
    """Compare `first` item by item with every other method at the same n, and with every explainer and control.

    With `linked`, groups of pairs that share images count in place of pairs; see `run_scores.clusters`.
    """
    check_real(run)
    measured = {
        key: {score.metric.title: score for score in scores(run, columns, confidence=confidence, linked=linked)}
        for key, columns in run.groups.items()
    }
    found = []
    for (method, n), mine in measured.items():
        for (other, m), theirs in measured.items() if method == first else ():
            alone = m == 1 and (other, n) not in measured and has_one_row(other)
            if other != first and (m in (n, 0) or alone):
                for title in (title for title in mine if title in theirs):
                    difference = mine[title].minus(theirs[title])
                    found.append(Contest(Setting.of(run.about), title, n, method, other, difference, other_n=m))
    return found


def contest_rows(found: Sequence[Contest]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line per contest: the mean difference and its interval, wins, losses, ties and p of the sign test."""
    header = ("task", "data", "model", "metric", "n", "method", "against", "difference", "won", "lost", "tied", "p")
    lines = []
    for contest in found:
        d = contest.difference
        names = [
            method_title(name) if number else name
            for name, number in ((contest.method, 1), (contest.other, contest.other_n))
        ]
        shown = f"{d.mean:+.2f} [{d.low:+.2f}, {d.high:+.2f}]"
        counts = (str(d.wins), str(d.losses), str(d.ties), f"{d.p:.2g}")
        lines.append((*contest.setting.columns(), contest.metric, str(contest.n), *names, shown, *counts))
    return header, lines
