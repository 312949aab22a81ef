"""What a reader of a table must know: what its intervals resample, what its gains are, and which items rows count."""

from collections.abc import Sequence

from gamlens.evaluation.run_scores import RESAMPLED, WHOLE_PAIRS
from gamlens.evaluation.tables import Cell

GAIN_NOTE = (
    "n=2 vs n=1 (in general: an n against the smallest n that the run measured) is the mean difference on the same "
    "maps, in points and turned so that plus is better, with its paired 95 % interval, which resamples the same way. "
    "If that interval contains 0, the data do not show which n is better."
)


def table_notes(found: Sequence[Cell]) -> list[str]:
    """The notes of a table of these numbers, as sentences."""
    return [*general_notes(found), *([counts_note(found)] if found else []), *sharing_notes(found)]


def general_notes(found: Sequence[Cell]) -> list[str]:
    """The notes that do not name numbers: what the intervals are, and what the gains are, if there are any."""
    gains = [GAIN_NOTE] if any(cell.gain is not None for cell in found) else []
    return [interval_note(found), *gains] if found else []


def interval_note(found: Sequence[Cell]) -> str:
    """What the intervals of these numbers resample."""
    units = {cell.unit for cell in found}
    whole = [words for name, words in RESAMPLED.items() if name in units]
    return f"In %; in brackets 95 % bootstrap intervals, which resample {' or, for pairs, '.join(whole)}."


def sharing_notes(found: Sequence[Cell]) -> list[str]:
    """A note if pairs share images and are yet resampled one by one; empty if none do."""
    many = {cell.setting: cell.sharing for cell in found if cell.sharing and cell.unit == WHOLE_PAIRS}
    if not many:
        return []
    named = "; ".join(f"{sharing} pairs of {', '.join(setting.columns())}" for setting, sharing in many.items())
    return [
        f"Some pairs share an image with another pair ({named}), yet the intervals take pairs for independent and may "
        "be too narrow: `gamlens table --linked-pairs` resamples such pairs together."
    ]


def counts_note(found: Sequence[Cell]) -> str:
    """How many items each metric counts, and why others are left out; says so if rows count different items."""
    counts = {(cell.value.n, cell.clusters) for cell in found}
    said = []
    settings = list(dict.fromkeys(cell.setting for cell in found))
    for setting in settings:
        titles: dict[str, list[str]] = {}
        for metric in dict.fromkeys(cell.metric for cell in found if cell.setting == setting):
            own = [cell for cell in found if (cell.setting, cell.metric) == (setting, metric)]
            titles.setdefault(" or ".join(dict.fromkeys(map(_counted, own))), []).append(metric)
        where = f"{', '.join(setting.columns())}: " if len(settings) > 1 else ""
        said.append(
            where
            + "; ".join(f"{', '.join(names)} count{'s' * (len(names) == 1)} {words}" for words, names in titles.items())
        )
    differ = "Rows of this table count different items. " if len(counts) > 1 else ""
    return f"{differ}{'. '.join(said)}."


def _counted(cell: Cell) -> str:
    """The items of a number in words: `1350 maps of 675 pairs (150 belong to the hold-out and are left out)`."""
    unit = cell.unit
    many = (
        f"{cell.value.n} {unit}" if cell.value.n == cell.clusters else f"{cell.value.n} maps of {cell.clusters} {unit}"
    )
    return many + (f" ({cell.left_out} {cell.why} and are left out)" if cell.left_out else "")
