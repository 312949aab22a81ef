"""Runs on disk from rows in memory."""

from pathlib import Path
from typing import Any

from gamlens.engine import RunFolder
from gamlens.evaluation import results
from gamlens.metrics import METRICS

ON_REQUEST = {
    "insertion", "deletion", "road_morf", "road_lerf", "adcc", "coherency", "infidelity", "max_sensitivity", "seconds",
    "peak_bytes",
}  # fmt: skip


def titles(*kinds: str) -> dict[str, str]:
    """{title: name} of the metrics that these kinds of evaluation measure, in the order of tables.

    Without those that are measured only if they are asked for.
    """
    return {
        metric.title: name
        for name, metric in METRICS.items()
        if not {*kinds}.isdisjoint(metric.kinds) and metric.columns.keys().isdisjoint(ON_REQUEST)
    }


def write_run(place: Path, about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """A finished run of one part."""
    with RunFolder(place, {**about, "chunks": 1}, suffix=".parquet", fresh=True) as folder:
        folder.write(0, results.encode(rows))
        folder.finish({"items": about["items"], "errors": sum(bool(row["error"]) for row in rows), "resumed_at": 0})
