"""Any explainer in, any metric out: what a user's own function gets in Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gamlens import GamlensError, GamlensWarning, Lens, bench

IMAGES = 6


@pytest.fixture(scope="module")
def root(boxed: Callable[..., Path]) -> Path:
    return boxed(IMAGES, lambda number: 20 + 5 * number)


def brightness(model: nn.Module, batch: Tensor, targets: Tensor) -> Tensor:
    assert len(targets) == len(batch)
    assert not model.training
    return batch.mean(dim=1)


def test_a_function_is_measured_like_a_method(lens: Lens, root: Path, tmp_path: Path) -> None:
    """Its maps are normalised and measured by every metric, its time stands beside ours, and a board ranks both."""
    protocol = bench.Protocol(
        "objective+localization", methods=("gam", bench.external(brightness)), n=(1,), cost=True, hold_out=3
    )
    run = bench.measure(lens, bench.load("table", root / "items.csv"), protocol, batch=3)
    assert [row["item"] for row in run.errors] == ["broken.png"]
    mine = run.groups["python:brightness", 1]
    first = lens.prepare(str(root / mine["item"][0])).batches[0].mean(dim=1)
    normalised = (first - first.min()) / (first.max() - first.min())
    assert mine["map_mean"][0] == pytest.approx(float(normalised.mean()), abs=1e-5)
    assert (mine["seconds"] > 0).all()
    board = bench.board(run)
    assert {row.key for row in board.methods} == {("gam", 1), ("python:brightness", 1)}
    assert {"iou", "adp", "time", "memory"} <= {metric.name for metric in board.metrics}
    written = bench.write_board(tmp_path, [("small", board)])
    assert "brightness" in (tmp_path / "leaderboard.md").read_text()
    assert all(file.stat().st_size for file in written)


def test_pairs_of_a_function(lens: Lens, root: Path) -> None:
    def both(
        embedder: nn.Module, x: Tensor, y: Tensor, score: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Tensor, ...]:
        assert score(embedder(x), embedder(y)).shape == (len(x),)
        return x.mean(dim=1), -y.mean(dim=1)

    explainer = bench.external(pairs=both)
    protocol = bench.Protocol("objective", "cosine", methods=("gam", explainer), n=(1,), pairs="neighbour")
    run = bench.measure(lens, bench.load("table", root / "items.csv"), protocol)
    assert set(run.groups["python:both", 1]["side"]) == {"x", "y"}
    with pytest.raises(GamlensError, match="does not explain classes"):
        bench.Protocol("objective", methods=(explainer,))


def test_a_function_that_fails_says_which(lens: Lens, root: Path) -> None:
    def broken(model: nn.Module, batch: Tensor, targets: Tensor) -> Tensor:
        raise RuntimeError("no idea")

    data = bench.load("table", root / "items.csv")
    with pytest.raises(GamlensError, match=r"python:broken.*no idea \(test_bench.py, line \d+\)"):
        bench.measure(lens, data, bench.Protocol(methods=(bench.external(broken),)), limit=2)
    assert torch.is_grad_enabled()


def test_a_function_that_cannot_take_batches_is_told_so(lens: Lens, root: Path) -> None:
    """It is measured one image at a time, and a warning says why that is slow."""

    def only_first(model: nn.Module, batch: Tensor, targets: Tensor) -> Tensor:
        return batch.mean(dim=1)[:1]

    protocol = bench.Protocol(methods=(bench.external(only_first),))
    with pytest.warns(GamlensWarning, match=r"A batch of 2 items failed.*python:only_first.*\(2, 64, 64\)"):
        run = bench.measure(lens, bench.load("table", root / "items.csv"), protocol, limit=2)
    assert len(run.groups["python:only_first", 1]["item"]) == 2


def test_mistakes_in_python(lens: Lens) -> None:
    with pytest.raises(GamlensError, match=r"bench\.external\(function\)"):
        bench.Protocol(methods=(brightness,))  # type: ignore[arg-type]
    with pytest.raises(GamlensError, match="give a tuple"):
        bench.Protocol(methods="gam")  # type: ignore[arg-type]
