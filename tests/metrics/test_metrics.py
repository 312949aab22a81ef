"""What holds for every entry of METRICS."""

import pkgutil

import pytest
import torch

from gamlens import metrics
from gamlens.errors import GamlensError
from gamlens.metrics import METRICS

TOOLS = {"aggregate", "masking", "similarity"}
MAPS = torch.rand(3, 6, 7, generator=torch.Generator().manual_seed(0))
TRUTHS = [torch.tensor([[1.0, 1.0, 4.0, 5.0]])] * 3
MASKS = MAPS > 0.5
INPUTS = {
    "adp": (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 1.0, 1.0])),
    "pic": (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 1.0, 1.0])),
    "iou": (MAPS, TRUTHS),
    "mask_iou": (MAPS, MASKS),
    "max_box_acc": (metrics.iou_grid(MAPS, TRUTHS),),
    "pointing": (MAPS, TRUTHS),
    "pointing_mask": (MAPS, MASKS),
    "insertion": (torch.rand(5, 3),),
    "deletion": (torch.rand(5, 3),),
}


def test_every_file_is_in_the_registry_or_a_tool():
    files = {module.name for module in pkgutil.iter_modules(metrics.__path__) if not module.name.startswith("_")}
    used = {entry.fn.__module__.removeprefix("gamlens.metrics.") for entry in METRICS.values()}
    assert files == used | TOOLS
    assert len({entry.title for entry in METRICS.values()}) == len(METRICS)
    assert all(entry.better in ("up", "down") for entry in METRICS.values())


@pytest.mark.parametrize("name", METRICS)
def test_gives_a_value_an_item_that_can_be_averaged(name):
    values = METRICS[name].fn(*INPUTS[name])
    assert len(values) == 3
    assert metrics.bootstrap(values if values.ndim == 1 else values[:, 4]).n == 3


def test_the_table_number_is_100_times_the_mean_of_the_items():
    before, after = torch.tensor([4.0, 2.0, -1.0]), torch.tensor([3.0, 3.0, 0.0])
    # drops 1/4 and 0, the third left out; two of three rise
    assert 100 * metrics.bootstrap(METRICS["adp"].fn(before, after)).mean == 12.5
    assert 100 * metrics.bootstrap(METRICS["pic"].fn(before, after)).mean == pytest.approx(200 / 3)


def test_a_mistyped_name_suggests_a_near_one():
    with pytest.raises(GamlensError, match=r"'mask-iou'.*'mask_iou'"):
        METRICS["mask-iou"]
