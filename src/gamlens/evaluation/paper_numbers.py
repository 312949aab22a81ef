"""The numbers of the paper (Tables 1 and 2), from `paper_numbers.csv`, which has a column per method and n."""

import csv
from functools import cache
from importlib import resources

WHERE = ("task", "data", "subset", "metric", "model")


@cache
def paper_numbers() -> dict[tuple[str, ...], float]:
    """{(task, data, subset, metric, model, "gam n=1"): the paper's number}"""
    lines = resources.files(__package__).joinpath("paper_numbers.csv").read_text(encoding="utf-8").splitlines()
    return {
        (*(row[name] for name in WHERE), column): float(value)
        for row in csv.DictReader(lines)
        for column, value in row.items()
        if column not in WHERE and value
    }


def paper_of(
    task: str, data: str, subset: str, metric: str, model: str, method: str, n: int
) -> tuple[str, float] | None:
    """Return a number of the paper and the model that it belongs to, or None if there is none.

    The model is the given one if the paper measured it, else the last model in the file with this task, data, subset
    and metric.
    """
    own = [key[4] for key in paper_numbers() if model.lower().startswith(key[4])]
    others = [key[4] for key in paper_numbers() if key[:4] == (task, data, subset, metric)]
    for name in (*own, *others[-1:]):
        value = paper_numbers().get((task, data, subset, metric, name, f"{method} n={n}"))
        if value is not None:
            return name, value
    return None
