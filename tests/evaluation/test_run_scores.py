"""Numbers of runs whose rows are not independent: two maps of a pair, several labels of an image."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from gamlens import metrics
from gamlens.evaluation import results, tables
from gamlens.evaluation.contests import contest_note
from gamlens.evaluation.protocol import Protocol
from gamlens.evaluation.run_scores import linked_pairs, sharing_pairs
from gamlens.evaluation.table_files import comma_separated, latex, markdown
from gamlens.evaluation.table_notes import GAIN_NOTE, table_notes

PAIRS, IMAGES = 20, 12
GROUPS = (("gam", 1), ("gam", 2), ("gam", 3), ("grad_cam", 2), ("centre", 0))


def row(item: str, image: str, side: str, place: int, held: bool, draw: random.Random, hard: float) -> dict[str, Any]:
    level = min(1.0, 0.6 * hard + 0.2 * draw.random())
    iou = [level * (1 - abs(t - 0.3)) for t in metrics.THRESHOLDS]
    return {"item": item, "image": image, "label": place % 3, "held_out": held, "side": side, "map_mean": 0.2,
            "area": 0.3, "iou": iou, "pointing": float(draw.random() < level), "pxap": level, "error": ""}  # fmt: skip


def made(protocol: Protocol, groups: tuple[tuple[str, int], ...] = GROUPS) -> results.Run:
    """Pairs of two maps, or images of one to three labels; rows of one pair or image are alike."""
    pairs, draw, rows = protocol.task != "classification", random.Random(0), []
    for method, n in groups:
        for place in range(PAIRS if pairs else IMAGES):
            hard, held = draw.random(), place % 10 == 0
            if pairs:
                names = [(f"{place:02d}~{place + 1:02d}", f"/d/{place + at:02d}.jpg", "xy"[at]) for at in (0, 1)]
            else:
                names = [(f"{place:02d}.jpg#{at}", f"/d/{place:02d}.jpg", "") for at in range(1 + place % 3)]
            rows += [{**row(*name, place, held, draw, hard), "method": method, "n": n} for name in names]
    about = {"model": "Small", "weights": "file.pth", "data": "table", "items": PAIRS, "protocol": protocol.record()}
    return results.collect(about, rows)


def values(run: results.Run, method: str, n: int, column: str) -> tuple[torch.Tensor, list[str]]:
    """A column in percent, and the cluster of each row, read from the rows one by one."""
    mine = [r for r in run.rows if (r["method"], r["n"]) == (method, n)]
    names = [r["item"] if r["side"] else r["item"].split("#")[0] for r in mine]
    return 100 * torch.tensor([r[column] for r in mine], dtype=torch.float64), names


@pytest.mark.parametrize(("task", "count"), [("cosine", PAIRS), ("classification", IMAGES)])
def test_intervals_resample_whole_pairs_and_whole_images(task: str, count: int) -> None:
    run = made(Protocol(task=task))
    cell = next(c for c in tables.cells(run) if (c.method, c.n, c.metric) == ("gam", 2, "PxAP"))
    own, names = values(run, "gam", 2, "pxap")
    assert len(set(names)) == count
    assert cell.value == metrics.bootstrap(own, clusters=names)
    assert (cell.clusters, cell.unit) == (count, "pairs" if task == "cosine" else "images")
    plain = metrics.bootstrap(own)
    assert cell.value.mean == plain.mean
    assert cell.value.high - cell.value.low > 1.1 * (plain.high - plain.low)
    contest = next(c for c in tables.contests(run) if (c.metric, c.n, c.other) == ("PxAP", 2, "grad_cam"))
    assert contest.difference == metrics.paired(own, values(run, "grad_cam", 2, "pxap")[0], clusters=names)
    assert contest.difference.wins + contest.difference.losses + contest.difference.ties == count


def test_pairs_that_share_an_image_can_be_one() -> None:
    """The pairs 00~01, 01~02, ... are one chain; without 09~10 they are two, and 20 pairs less one share an image."""
    assert linked_pairs(["c~d", "a~b", "b~c", "x~y", "d~d", "x~y"]) == ("a", "a", "a", "x", "a", "x")
    assert sharing_pairs(["c~d", "a~b", "b~c", "x~y", "x~y"]) == 3
    run = made(Protocol(task="cosine"))
    keep = {key: [at for at, item in enumerate(c["item"]) if item != "09~10"] for key, c in run.groups.items()}
    cut = results.Run(
        run.about,
        {k: {n: [v[at] for at in keep[k]] if isinstance(v, list) else v[keep[k]] for n, v in c.items()}
         for k, c in run.groups.items()},
    )  # fmt: skip
    (cell,) = (c for c in tables.cells(cut, linked=True) if (c.method, c.n, c.metric) == ("gam", 2, "PxAP"))
    own, names = values(cut, "gam", 2, "pxap")
    assert cell.value == metrics.bootstrap(own, clusters=[int(name[:2]) > 9 for name in names])
    assert (cell.clusters, cell.unit, cell.sharing) == (2, "groups of pairs", 19)
    contest = next(c for c in tables.contests(cut, linked=True) if (c.metric, c.n) == ("PxAP", 2))
    assert contest.difference.wins + contest.difference.losses == 2
    assert "38 maps of 2 groups of pairs" in table_notes([cell])[-1]
    usual = next(c for c in tables.cells(cut) if c.metric == "PxAP")
    assert "19 pairs of cosine" in table_notes([usual])[-1]
    assert "groups of pairs that share images" in contest_note([cut], linked=True)
    assert "by whole pairs" in contest_note([cut])


def test_a_run_without_images_is_resampled_by_items() -> None:
    run = made(Protocol())
    bare = results.Run(run.about, {k: {n: v for n, v in c.items() if n != "image"} for k, c in run.groups.items()})
    cell = next(c for c in tables.cells(bare) if c.metric == "PxAP")
    assert cell.clusters == cell.value.n == 24


def test_each_n_is_compared_with_the_smallest() -> None:
    run = made(Protocol(task="cosine"))
    found = {(c.method, c.n, c.metric): c for c in tables.cells(run)}
    one, names = values(run, "gam", 1, "pxap")
    for n in (2, 3):
        assert found["gam", n, "PxAP"].base == 1
        assert found["gam", n, "PxAP"].gain == metrics.paired(values(run, "gam", n, "pxap")[0], one, clusters=names)
    for key in (("gam", 1), ("grad_cam", 2), ("centre", 0)):
        assert found[*key, "PxAP"].gain is None
    header, lines = tables.rows_of(list(found.values()))
    assert header[6:10] == ("GAM n=1", "GAM n=2", "GAM n=3", "Impr.")
    assert header[10:13] == ("GAM n=2 vs n=1", "GAM n=3 vs n=1", "paper")
    line = next(line for line in lines if line[3] == "PxAP")
    gain = found["gam", 3, "PxAP"].gain
    assert gain is not None
    assert line[11] == f"{gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"
    assert line[17:19] == ("", "")  # Grad-CAM has no n=1 to compare its n=2 with
    head, narrow = tables.tall(list(found.values()))
    assert line[11] in next(line for line in narrow if line[:2] == ("PxAP", "GAM"))
    assert all(len(line) == len(head) for line in narrow)


def test_a_gain_is_positive_where_lower_is_better() -> None:
    """ADP falls from 50 to 25 %: the gain is +25 points."""
    protocol, rows = Protocol("objective"), []
    for n, after in ((1, 1.0), (2, 1.5)):
        for place in range(4):
            rows.append({"item": str(place), "image": str(place), "label": 0, "held_out": False, "side": "",
                         "map_mean": 0.2, "error": "", "method": "gam", "n": n, "before_logit": 2.0,
                         "after_logit": after})  # fmt: skip
    about = {"model": "Small", "weights": "file.pth", "data": "table", "items": 4, "protocol": protocol.record()}
    cells = {(c.metric, c.n): c for c in tables.cells(results.collect(about, rows))}
    gain = cells["ADP", 2].gain
    assert gain is not None
    assert (gain.mean, gain.low, gain.high, gain.wins) == (25, 25, 25, 4)


def test_gains_of_other_runs_fill_a_shared_line() -> None:
    """A run of n = 1, 2 and one of n = 2, 3 share a line: n=2 keeps its gain over n=1, whichever comes first."""
    whole = made(Protocol())
    parts = [{k: c for k, c in whole.groups.items() if k in keys} for keys in (GROUPS[:2], GROUPS[1:3])]
    runs = [results.Run({**whole.about, "batch": at}, part) for at, part in enumerate(parts)]
    for order in (runs, runs[::-1]):
        header, lines = tables.rows_of([cell for run in order for cell in tables.cells(run)])
        line = dict(zip(header, next(line for line in lines if line[3] == "PxAP"), strict=True))
        assert line["GAM n=2 vs n=1"].count("[") == 1
        assert line["GAM n=3 vs n=1"] == ""


def test_notes_say_what_is_resampled_and_what_rows_count() -> None:
    pairs, images = (tables.cells(made(Protocol(task=task))) for task in ("cosine", "classification"))
    interval, gain, counts, sharing = table_notes(pairs)
    assert "(20 pairs of cosine, table, Small), yet the intervals take pairs for independent" in sharing
    assert "whole pairs (both maps of a pair together)" in interval
    assert "images" not in interval
    assert gain == GAIN_NOTE
    assert counts == (
        "Rows of this table count different items. IoU, MaxBoxAcc, MaxBoxAccV2 count 36 maps of 18 pairs (4 belong to "
        "the hold-out and are left out); Pointing, PxAP count 40 maps of 20 pairs."
    )
    both = table_notes([*pairs, *images])
    assert "whole images (all labels of an image together) or, for pairs, whole pairs" in both[0]
    assert "classification, table, Small: IoU, MaxBoxAcc, MaxBoxAccV2 count 21 maps of 10 images (3 belong" in both[2]
    alike = [cell for cell in images if cell.metric == "PxAP" and cell.n < 2]
    assert table_notes(alike)[1:] == ["PxAP counts 24 maps of 12 images."]
    assert table_notes([]) == []


def test_files_have_the_notes() -> None:
    found = tables.cells(made(Protocol(task="cosine")))
    table, notes = tables.rows_of(found), table_notes(found)
    assert markdown(*table, notes).endswith("".join(f"- {note}\n" for note in notes))
    assert markdown(*table) == markdown(*table, notes).split("\n\n")[0] + "\n"
    tex = latex(*table, notes)
    assert tex.split("\\end{tabular}\n")[1] == "".join(f"% {note}\n" for note in notes)
    assert "n=2 vs n=1" in comma_separated(*table).splitlines()[0]
