"""What holds for every entry of METRICS."""

import pkgutil
from pathlib import Path

import pytest
import torch

from gamlens import metrics
from gamlens.errors import GamlensError
from gamlens.metrics import KINDS, METRICS, Metric, MetricInput, StoredColumns

TOOLS = {"aggregate", "masking", "metric", "similarity", "thresholds"}
MAPS = torch.rand(3, 6, 7, generator=torch.Generator().manual_seed(0))
TRUTHS = [torch.tensor([[1.0, 1.0, 4.0, 5.0]])] * 3
MASKS = MAPS > 0.5
INPUTS = {
    "adp": (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 1.0, 1.0])),
    "adp_equal_mass": (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 1.0, 1.0])),
    "pic": (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 1.0, 1.0])),
    "iou": (MAPS, TRUTHS),
    "mask_iou": (MAPS, MASKS),
    "max_box_acc": (metrics.iou_grid(MAPS, TRUTHS),),
    "pointing": (MAPS, TRUTHS),
    "pointing_mask": (MAPS, MASKS),
    "pxap": (MAPS, TRUTHS),
    "insertion": (torch.rand(5, 3),),
    "deletion": (torch.rand(5, 3),),
    "max_box_acc_v2": (metrics.iou_grid(MAPS, TRUTHS),),
    "energy_pointing": (MAPS, TRUTHS),
    "relevance_rank_boxes": (MAPS, TRUTHS),
    "pxap_mask": (MAPS, MASKS),
    "relevance_mass": (MAPS, MASKS),
    "relevance_rank": (MAPS, MASKS),
    "average_gain": (torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.1, 0.1])),
    "road_morf": (torch.rand(5, 3),),
    "road_lerf": (torch.rand(5, 3),),
    "adcc": (torch.rand(3), torch.rand(3), torch.rand(3)),
    "coherency": (MAPS, MAPS.flip(1)),
    "infidelity": (MAPS, torch.rand(4, *MAPS.shape) > 0.5, torch.rand(4, 3)),
    "max_sensitivity": (MAPS, torch.rand(4, *MAPS.shape)),
    "sparseness": (MAPS,),
    "time": (torch.rand(3),),
    "memory": (torch.rand(3),),
}


def test_every_file_is_in_the_registry_or_a_tool():
    files = {module.name for module in pkgutil.iter_modules(metrics.__path__) if not module.name.startswith("_")}
    used = {entry.fn.__module__.removeprefix("gamlens.metrics.") for entry in METRICS.values()}
    assert files == used | TOOLS
    assert all(entry.better in ("up", "down") for entry in METRICS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_metrics_of_different_titles(kind):
    titles = [entry.title for entry in METRICS.values() if kind in entry.kinds]
    assert titles
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", METRICS)
def test_gives_a_value_per_item_that_can_be_averaged(name):
    values = METRICS[name].fn(*INPUTS[name])
    assert len(values) == 3
    assert metrics.bootstrap(values if values.ndim == 1 else values[:, 4]).n == 3


GIVEN = MetricInput(
    maps=MAPS, boxes=TRUTHS, predicted=metrics.boxes_at(MAPS), mask=MASKS, void=torch.zeros_like(MASKS),
    before={"logit": torch.ones(3), "probability": torch.ones(3) / 2},
    after={"logit": torch.zeros(3), "probability": torch.ones(3)},
    equal_mass={"logit": torch.ones(3) / 4, "probability": torch.ones(3)},
    inserted=torch.rand(5, 3), deleted=torch.rand(5, 3), most_removed=torch.rand(9, 3), least_removed=torch.rand(9, 3),
    maps_of_masked=MAPS.flip(1), maps_of_noisy=torch.rand(4, *MAPS.shape),
    hidden=torch.rand(4, *MAPS.shape) > 0.5, hidden_change=torch.rand(4, 3),
    seconds=torch.rand(3), peak_bytes=torch.rand(3),
)  # fmt: skip


@pytest.mark.parametrize("name", METRICS)
def test_what_is_measured_is_what_is_declared_and_gives_a_value_per_item(name):
    """Every metric fills its columns with one value per item, and its table follows from them alone."""
    metric = METRICS[name]
    measured = metric.measure(GIVEN)
    assert measured.keys() >= {*metric.columns, *metric.details}
    assert all(len(values) == 3 for values in measured.values() if values is not None)
    columns = {column: measured[column].double() for column in metric.columns if measured[column] is not None}
    for held in ([False] * 3, [True, False, False], [True] * 3):
        found = metric.value(StoredColumns(columns, torch.tensor(held)))
        counted = 3 if found.counted is None else int(found.counted.sum())
        assert found.values.shape == (3,)
        assert (found.grid is None) == (found.threshold is None)
        assert metrics.bootstrap(found.values).n == 3
        assert found.grid is None or found.counted is not None
        assert counted == (2 if found.counted is not None and sum(held) == 1 else 3)
        assert found.left_out == 3 - counted


def alone_and_together(name, given):
    """The columns of a metric for five items together and for the fourth alone, on two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        return [METRICS[name].measure(given(rows)) for rows in (slice(None), slice(3, 4))]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if "objective" not in metric.kinds])
def test_a_value_does_not_depend_on_the_other_items_to_the_last_bit(name):
    """Also at the size of real maps and on two threads, where a sum over pixels is split in other ways."""
    maps = torch.rand(5, 224, 224, generator=torch.Generator().manual_seed(1))
    mask, boxes = maps.flip(2) > 0.7, [torch.tensor([[20.0, 30.0, 150.5, 200.0]])] * 5
    void = torch.zeros_like(mask)

    def given(rows):
        some = maps[rows]
        return MetricInput(some, boxes[rows], metrics.boxes_at(some), mask=mask[rows], void=void[rows])

    whole, alone = alone_and_together(name, given)
    for column in METRICS[name].columns:
        assert torch.equal(whole[column][3:4], alone[column])


# The area under curves adds float32 values in an order that depends on the batch, as it always did.
OBJECTIVE = [name for name, metric in METRICS.items() if "objective" in metric.kinds and metric.fn is not metrics.auc]


@pytest.mark.parametrize("name", OBJECTIVE)
def test_an_objective_value_does_not_depend_on_the_other_items_to_the_last_bit(name):
    make = torch.Generator().manual_seed(2)
    maps, hidden = torch.rand(5, 224, 224, generator=make), torch.rand(2, 5, 224, 224, generator=make)
    scores, several = torch.rand(2, 5, generator=make), torch.rand(7, 5, generator=make)

    def given(rows):
        one, many = {"probability": scores[0, rows]}, several[:, rows]
        return MetricInput(
            maps[rows], before=one, after={"probability": scores[1, rows]}, equal_mass=one, inserted=many, deleted=many,
            most_removed=many, least_removed=many, maps_of_masked=hidden[0, rows], maps_of_noisy=hidden[:, rows],
            hidden=hidden[:, rows] > 0.5, hidden_change=many[:2], seconds=scores[0, rows], peak_bytes=scores[1, rows],
        )  # fmt: skip

    whole, alone = alone_and_together(name, given)
    found = [column for column in METRICS[name].columns if whole[column] is not None]
    assert found
    for column in found:
        assert torch.equal(whole[column][3:4], alone[column])


def test_what_was_not_asked_for_is_not_measured():
    bare = MetricInput(MAPS, before=GIVEN.before, after=GIVEN.after)
    names = ("road_morf", "road_lerf", "adcc", "coherency", "infidelity", "max_sensitivity", "time", "memory")
    for name in names:
        assert all(values is None for values in METRICS[name].measure(bare).values())


def test_every_metric_says_what_fools_it_and_has_a_unit():
    for metric in METRICS.values():
        assert any(control in metric.fooled_by for control in ("blank", "ones", "centre", "random", "all controls"))
        assert metric.fooled_by.endswith(".")
    units = {name: metric.unit for name, metric in METRICS.items() if metric.unit != "%"}
    assert units == {"time": "ms", "memory": "MB"}


def test_the_page_of_metrics_has_every_metric():
    """The table of docs/metrics.md has the name, title, direction and `fooled_by` of every entry, in the same order."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in page.splitlines() if line[:3] == "| `"]
    found = {row[0].strip("`"): (row[1], row[2], row[6]) for row in rows}
    better = {"up": "higher", "down": "lower"}
    expected = {name: (entry.title, better[entry.better], entry.fooled_by) for name, entry in METRICS.items()}
    assert found == expected
    assert list(found) == list(expected)


def test_a_grid_is_cut_where_the_held_out_items_are_best():
    """IoU: the threshold of the held-out item, the value of the others. MaxBoxAcc: the others' own threshold."""
    grid = torch.tensor([[0.1, 0.9, 0.2], [0.8, 0.3, 0.4], [0.6, 0.2, 0.3]], dtype=torch.float64)
    stored = StoredColumns({"iou": grid}, torch.tensor([True, False, False]))
    iou, hits = (METRICS[name].value(stored) for name in ("iou", "max_box_acc"))
    assert (iou.threshold, iou.values.tolist(), iou.left_out) == (0.1, [90, 30, 20], 1)
    assert (hits.threshold, hits.values.tolist(), hits.left_out) == (0.05, [0, 100, 100], 1)
    assert iou.why == hits.why == "belong to the hold-out"  # which did not choose the threshold of MaxBoxAcc
    for held in (False, True):  # nothing is left out: the threshold is that of all items
        alike = StoredColumns({"iou": grid}, torch.tensor([held] * 3))
        iou = METRICS["iou"].value(alike)
        assert (iou.threshold, iou.left_out, iou.why) == (0.05, 0, "")


def test_the_commonest_metrics_are_one_line():
    boxes = Metric.on_boxes(lambda maps, boxes: torch.tensor([float(len(own)) for own in boxes]), "K", "up", column="k")
    assert boxes.kinds == ("localization",)
    assert boxes.measure(GIVEN)["k"].tolist() == [1, 1, 1]
    masks = Metric.on_masks(lambda maps, mask, void: mask.flatten(1).sum(1), "A", "up", column="a", type="int32")
    assert masks.kinds == ("segmentation",)
    assert masks.measure(GIVEN)["a"].tolist() == MASKS.flatten(1).sum(1).tolist()


def test_a_metric_of_no_kind_or_without_columns_is_an_error():
    with pytest.raises(GamlensError, match=r"'Mine'.*'localisation': did you mean 'localization'"):
        Metric(pytest.fail, "Mine", "up", ("localisation",), {"mine": "float64"}, pytest.fail)
    with pytest.raises(GamlensError, match=r"'Mine' is measured for objective: give it `columns` and `measure`"):
        Metric(pytest.fail, "Mine", "up", ("objective",))


def test_the_table_number_is_100_times_the_mean_of_the_items():
    before, after = torch.tensor([4.0, 2.0, -1.0]), torch.tensor([3.0, 3.0, 0.0])
    # drops 1/4 and 0, the third left out; two of three rise
    assert 100 * metrics.bootstrap(METRICS["adp"].fn(before, after)).mean == 12.5
    assert 100 * metrics.bootstrap(METRICS["pic"].fn(before, after)).mean == pytest.approx(200 / 3)


def test_a_mistyped_name_suggests_a_near_one():
    with pytest.raises(GamlensError, match=r"'mask-iou'.*'mask_iou'"):
        METRICS["mask-iou"]
