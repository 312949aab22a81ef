"""ADP and PIC."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gamlens.errors import GamlensError
from gamlens.metrics import bootstrap, drop, increase

Y = torch.tensor([10.0, 4.0, 2.0, 0.0, -3.0])
O = torch.tensor([7.0, 5.0, -1.0, 1.0, -4.0])  # noqa: E741
SCORES = st.floats(-50, 50, allow_subnormal=False)


def test_by_hand():
    # (10 - 7)/10 = 0.3; a gain drops nothing; (2 + 1)/2 = 1.5; Y = 0 and Y = -3 have nothing to lose
    torch.testing.assert_close(drop(Y, O), torch.tensor([0.3, 0.0, 1.5, math.nan, math.nan]), equal_nan=True)
    result = bootstrap(drop(Y, O))
    assert result.n == 3
    assert result.mean == pytest.approx((0.3 + 0 + 1.5) / 3)


def test_pic_counts_every_item_the_left_out_too():
    # 5 > 4 and 1 > 0: two of five, not one of the three that ADP uses
    assert increase(Y, O).tolist() == [False, True, False, True, False]
    assert bootstrap(increase(Y, O).double()).mean == 0.4


def test_an_equal_score_neither_drops_nor_rises():
    same = torch.tensor([1.0, 0.5])
    assert drop(same, same).tolist() == [0, 0]
    assert increase(same, same).tolist() == [False, False]


def test_nothing_to_average_is_nan():
    none = torch.empty(0)
    assert drop(none, none).shape == increase(none, none).shape == (0,)
    assert math.isnan(bootstrap(drop(none, none)).mean)
    negative = bootstrap(drop(torch.tensor([-1.0]), torch.tensor([2.0])))
    assert math.isnan(negative.mean)
    assert negative.n == 0


def test_one_item():
    assert drop(torch.tensor([4.0]), torch.tensor([1.0])).tolist() == [0.75]


def test_input_is_left_alone():
    before, after = Y.clone(), O.clone()
    drop(before, after)
    increase(before, after)
    assert torch.equal(before, Y)
    assert torch.equal(after, O)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=12))
def test_equals_a_loop(pairs):
    before, after = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    drops = [max(0.0, y - o) / y for y, o in pairs if y > 0]
    result = bootstrap(drop(before, after), samples=1)
    assert result.n == len(drops)
    if drops:
        assert result.mean == pytest.approx(sum(drops) / len(drops), rel=1e-12)
    assert increase(before, after).tolist() == [o > y for y, o in pairs]


@pytest.mark.parametrize("function", [drop, increase])
@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (torch.ones(3), torch.ones(2), r"\(3,\) and \(2,\)"),
        (torch.ones(2, 2), torch.ones(2, 2), r"\(2, 2\)"),
        (torch.tensor([1.0, math.nan]), torch.ones(2), "NaN"),
        (torch.ones(1), torch.tensor([math.inf]), "infinity"),
    ],
)
def test_bad_scores_are_an_error(function, before, after, found):
    with pytest.raises(GamlensError, match=found):
        function(before, after)
