"""Half precision beside fp32: the embedded model's maps of real photos stay within the bounds that were measured."""

from __future__ import annotations

import functools
from pathlib import Path

import precision
import pytest
import torch
from torch import Tensor

from gamlens import Lens
from gamlens.data.photos import photo

PHOTOS = ("cheetah", "cheetah_face")


@functools.cache
def looked(name: str) -> tuple[dict[str, Tensor], Tensor]:
    """Class maps of fp32's top class and both maps of a pair, n = 1 and 2; and the top classes."""
    lens = Lens("efficientnet_lite0", precision=name)
    batch = precision.prepare([photo(name) for name in PHOTOS], lens.transform, precision.Views()).batches[0]
    return precision.maps_of(lens, batch, None if name == "fp32" else looked("fp32")[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n", "rank", "apart"),
    [("bf16", 1, 0.999, 0.06), ("bf16", 2, 0.99, 0.2), ("fp16", 1, 0.9999, 0.01), ("fp16", 2, 0.998, 0.1)],
)
def test_maps_stay_near_those_of_fp32(name: str, n: int, rank: float, apart: float) -> None:
    """The worst map of a class or pair; the bounds leave at least twice what was measured."""
    for what in (f"class, n = {n}", f"pair, n = {n}"):
        found = precision.differences(looked("fp32")[0][what], looked(name)[0][what])
        assert found["spearman"].min() >= rank
        assert 0 < found["largest"].max() <= apart
    assert torch.equal(looked(name)[1], looked("fp32")[1])


def test_differences_by_hand() -> None:
    """Ranks 1 2 3 4 beside 1.5 1.5 3 4; the box at 0.25 loses a column of two."""
    a, b = torch.tensor([[[0.1, 0.2], [0.3, 1.0]]]), torch.tensor([[[0.1, 0.1], [0.2, 1.0]]])
    found = precision.differences(a, b)
    assert found["spearman"].item() == pytest.approx(4.5 / (5 * 4.5) ** 0.5)
    assert found["largest"].item() == pytest.approx(0.1)
    assert found["mean"].item() == pytest.approx(0.05)
    assert found["iou"].item() == pytest.approx(0.5)


def test_summary_takes_the_worst_of_each_and_counts_flat_maps() -> None:
    a = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))
    b = torch.stack([a[0], a[1].flip(0), torch.zeros(8, 8)])
    row = precision.summary(precision.differences(a, b))
    assert (row["maps"], row["flat"]) == (3, 1)
    assert row["spearman"][1] < 0.5
    assert row["largest"] == [pytest.approx((a[1] - b[1]).abs().max().item()), pytest.approx(a[2].max().item())]
    assert row["iou"][1] == 0


def test_tf32_is_switched_and_put_back() -> None:
    before = (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
    for on in (True, False):
        with precision.tf32(on):
            assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (on, on)
    with precision.tf32(None):
        assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == before
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == before


def test_images_are_spread_over_the_folder(tmp_path: Path) -> None:
    for number in range(7):
        (tmp_path / f"{number}.JPEG").touch()
    assert [Path(file).stem for file in precision.files(tmp_path, 3)] == ["0", "2", "4"]
    assert len(precision.files(tmp_path, None)) == len(precision.files(tmp_path, 99)) == 7
    with pytest.raises(SystemExit, match="no images below"):
        precision.files(tmp_path / "none", 3)
