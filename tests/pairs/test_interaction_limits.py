"""Interactions at their limits: negative scores, several threads, little memory, baselines that change."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from pair_nets import traced, transformer
from torch import Tensor, nn

from gamlens import GamlensError, Lens
from gamlens.capture import tail
from gamlens.capture.tail import NetworkTail
from gamlens.inputs.frame import Frame
from gamlens.pairs import embedding_parts
from gamlens.pairs.interactions import Interactions
from gamlens.pairs.pair_trace import PairTrace


def made(x: list[list[float]], y: list[list[float]]) -> PairTrace:
    """A pair whose network is an average of the pixels, (channels, columns) of a single row."""
    channels = len(x)
    net = nn.Sequential(nn.Identity(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2)).double()
    rows = [torch.tensor(own, dtype=torch.float64)[None, :, None] for own in (x, y)]
    return Lens(net, blocks=["0"], embedding="2").trace_pair(*rows)


def test_shares_of_a_negative_score_have_the_signs_of_their_values() -> None:
    """x = 2 and -1, y = -3: the score is 1/2 x -3; the first place lowers it by 3, the second raises it by 1.5."""
    found = made([[2.0, -1.0]], [[-3.0, -3.0]]).interactions(score="dot")
    assert found.score == pytest.approx(-1.5)
    torch.testing.assert_close(found.map().flatten(), torch.tensor([-3.0, 1.5]).double())
    for link in found.links(4):
        assert link.share == pytest.approx(link.value / 1.5)
    parts = found.between({"left": (0, 0, 1, 1)}, {"all": (0, 0, 2, 1)})
    assert parts.sentences(2) == [
        "left speaks against all: -200 % of the size of the negative score",
        "elsewhere matches all: 100 % of the size of the negative score",
    ]


def test_a_region_of_cells_that_pixels_do_not_divide() -> None:
    """Five pixels in two cells: the pixel in the middle belongs half to each, as the cells of positions have it."""
    ones = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    frame = Frame.whole((1, 5), (1, 5))
    found = Interactions(
        matrix=ones, score=2.0, remainder=0.0, aside=0.0, gap=0.0, exact=True, steps=0, baseline="zeros", forwards=0,
        pictures=(None, None), frames=(frame, frame),  # type: ignore[arg-type]
    )  # fmt: skip
    parts = found.between({"left": (0, 0, 2, 1), "middle": (2, 0, 3, 1)}, {})
    torch.testing.assert_close(parts.values[:, 0], torch.tensor([0.8, 0.4, 0.8]).double())


def test_several_threads() -> None:
    """Forward-mode derivatives and the kernels of attention are settings of the process."""
    before = torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()
    wanted = transformer().interactions(baseline="blank").matrix
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(transformer().interactions, baseline="blank") for _ in range(8)]
        for run in runs:
            torch.testing.assert_close(run.result().matrix, wanted)
    assert (torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()) == before


def rows_run(monkeypatch: pytest.MonkeyPatch, most: int | None = None) -> list[int]:
    """The numbers of rows of each forward-mode derivative from now on; more than `most` do not fit the memory."""
    seen: list[int] = []
    jvp = NetworkTail.jvp

    def counted(self: NetworkTail, rows: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        if most is not None and len(rows) > most:
            raise torch.OutOfMemoryError("no memory")
        seen.append(len(rows))
        return jvp(self, rows, tangents)

    monkeypatch.setattr(NetworkTail, "jvp", counted)
    return seen


def test_memory_is_bounded_by_the_largest_tensor_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attention of 17 tokens in 8 heads is 8 x 17 x 17 numbers, and the block itself 17 x 16."""
    pair = transformer(heads=8)
    wanted = pair.interactions(steps=8)
    network, block, _ = pair._tail_of_side(0, 0, None)
    network.embed_measured(block[None])
    assert network.row_bytes == 8 * 17 * 17 * block.element_size() > 8 * block.nbytes
    seen = rows_run(monkeypatch)
    monkeypatch.setattr(embedding_parts, "BYTES_AT_ONCE", 5 * network.row_bytes)
    found = transformer(heads=8).interactions(steps=8)
    assert max(seen) == 5
    torch.testing.assert_close(found.matrix, wanted.matrix)


def test_half_as_many_rows_where_the_memory_does_not_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = traced("gem").interactions(steps=5)
    seen = rows_run(monkeypatch, most=7)
    found = traced("gem").interactions(steps=5)
    assert 1 < max(seen) <= 7
    assert sum(seen) == 2 * (5 + 5 * 16)
    torch.testing.assert_close(found.matrix, wanted.matrix)
    rows_run(monkeypatch, most=0)
    with pytest.raises(torch.OutOfMemoryError):
        traced("gem").interactions(steps=5)


def test_matches_of_a_point_need_one_row_of_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = traced("max")
    whole = pair.interactions()
    monkeypatch.setattr(Interactions, "from_parts", None)
    for side, matrix in (("x", whole.matrix), ("y", whole.matrix.permute(2, 3, 0, 1))):
        found = pair.matches((40, 20), side=side)  # type: ignore[arg-type]
        torch.testing.assert_close(found.map, matrix[found.cell])
        assert found.map.untyped_storage().nbytes() == found.map.nbytes


def test_a_baseline_that_was_changed_is_another_one() -> None:
    pair, start = traced("max"), torch.zeros(1, dtype=torch.float64)
    first = pair.interactions(baseline=start).matrix
    start += 0.2
    assert not torch.equal(pair.interactions(baseline=start).matrix, first)


def test_a_baseline_of_inference_mode() -> None:
    """Such a tensor does not know whether it was changed, so nothing is reused for it."""
    pair = traced("max")
    wanted = pair.interactions(baseline=torch.zeros(1, dtype=torch.float64))
    with torch.inference_mode():
        baseline = torch.zeros(1, dtype=torch.float64)
        inside = pair.interactions(baseline=baseline)
    for found in (inside, pair.interactions(baseline=baseline)):
        torch.testing.assert_close(found.matrix, wanted.matrix)
    with torch.inference_mode():
        baseline += 1
    assert not torch.allclose(pair.interactions(baseline=baseline).matrix, wanted.matrix)


@pytest.fixture
def _errors() -> Iterator[None]:
    with warnings.catch_warnings(action="error"):
        yield


@pytest.mark.usefixtures("_errors")
def test_what_torch_says_of_itself_is_hidden() -> None:
    """It does so once per process, when the derivatives are loaded: here in its place, with its words."""
    with tail._without_torch_warnings():
        warnings.warn("`torch.jit.script` is deprecated. Please switch to `torch.compile`", FutureWarning, stacklevel=1)
    with pytest.raises(FutureWarning), tail._without_torch_warnings():
        warnings.warn("Something else is deprecated.", FutureWarning, stacklevel=1)


def test_a_score_that_is_no_product_has_no_matches() -> None:
    with pytest.raises(GamlensError, match="has no matches"):
        traced("max").matches((3, 3), score="euclidean")
