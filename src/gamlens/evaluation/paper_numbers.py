"""The numbers of the paper (Tables 1 and 2), from `paper_numbers.csv`, which has a column per method and n.

The paper's Grad-CAM++ is the published formula with exp(s) in it, so its numbers stand under `grad_cam_pp_literal`. A
value such as `<1` is an upper bound: the paper prints no more than that.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from gamlens.evaluation.paper_layout import instead_of

WHERE = ("task", "data", "subset", "metric", "model")


@dataclass(frozen=True)
class PaperNumber:
    """A number of the paper.

    Attributes:
        value: The number, or the bound that it lies below.
        below: Whether the paper says only that the number lies below `value`.
        model: The model that it was measured with.
        method: The method that it was measured with.
    """

    value: float
    below: bool
    model: str
    method: str

    def __str__(self) -> str:
        return f"<{self.value:g}" if self.below else f"{self.value:g}"


@cache
def paper_numbers() -> dict[tuple[str, ...], str]:
    """{(task, data, subset, metric, model, "gam n=1"): the paper's number as it stands in the file}"""
    lines = resources.files(__package__).joinpath("paper_numbers.csv").read_text(encoding="utf-8").splitlines()
    return {
        (*(row[name] for name in WHERE), column): value
        for row in csv.DictReader(lines)
        for column, value in row.items()
        if column not in WHERE and value
    }


def paper_of(task: str, data: str, subset: str, metric: str, model: str, method: str, n: int) -> PaperNumber | None:
    """Return a number of the paper, or None if there is none.

    Its model is the given one if the paper measured it, else the last model in the file with this task, data, subset
    and metric. Its method is the given one if the paper ran it, else the one that `instead_of` names.
    """
    own = [key[4] for key in paper_numbers() if model.lower().startswith(key[4])]
    others = [key[4] for key in paper_numbers() if key[:4] == (task, data, subset, metric)]
    for name in (*own, *others[-1:]):
        for measured in (method, instead_of(method)):
            text = paper_numbers().get((task, data, subset, metric, name, f"{measured} n={n}"))
            if measured is not None and text is not None:
                return PaperNumber(float(text.removeprefix("<")), text.startswith("<"), name, measured)
    return None
