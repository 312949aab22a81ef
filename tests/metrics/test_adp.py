"""ADP and PIC."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gamlens.errors import GamlensError
from gamlens.metrics import Adp, adp, drop, increase, pic

Y = torch.tensor([10.0, 4.0, 2.0, 0.0, -3.0])
O = torch.tensor([7.0, 5.0, -1.0, 1.0, -4.0])  # noqa: E741
SCORES = st.floats(-50, 50, allow_subnormal=False)


def test_by_hand():
    # (10 - 7)/10 = 0.3; a gain drops nothing; (2 + 1)/2 = 1.5; Y = 0 and Y = -3 have nothing to lose
    torch.testing.assert_close(drop(Y, O), torch.tensor([0.3, 0.0, 1.5, math.nan, math.nan]), equal_nan=True)
    result = adp(Y, O)
    assert (result.n, result.left_out) == (3, 2)
    assert result.value == pytest.approx(100 * (0.3 + 0 + 1.5) / 3)


def test_pic_counts_every_item_the_left_out_too():
    # 5 > 4 and 1 > 0: two of five, not one of the three that ADP uses
    assert increase(Y, O).tolist() == [False, True, False, True, False]
    assert pic(Y, O) == 40


def test_an_equal_score_neither_drops_nor_rises():
    same = torch.tensor([1.0, 0.5])
    assert drop(same, same).tolist() == [0, 0]
    assert adp(same, same) == Adp(0.0, 2, 0)
    assert pic(same, same) == 0


def test_nothing_to_average_is_nan():
    none = torch.empty(0)
    assert drop(none, none).shape == increase(none, none).shape == (0,)
    assert math.isnan(adp(none, none).value)
    assert math.isnan(pic(none, none))
    negative = adp(torch.tensor([-1.0]), torch.tensor([2.0]))
    assert math.isnan(negative.value)
    assert (negative.n, negative.left_out) == (0, 1)


def test_one_item():
    assert adp(torch.tensor([4.0]), torch.tensor([1.0])) == Adp(75.0, 1, 0)


def test_input_is_left_alone():
    before, after = Y.clone(), O.clone()
    adp(before, after)
    pic(before, after)
    assert torch.equal(before, Y)
    assert torch.equal(after, O)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=12))
def test_equals_a_loop(pairs):
    before, after = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    drops = [max(0.0, y - o) / y for y, o in pairs if y > 0]
    result = adp(before, after)
    assert (result.n, result.left_out) == (len(drops), len(pairs) - len(drops))
    if drops:
        assert result.value == pytest.approx(100 * sum(drops) / len(drops), rel=1e-12)
    assert pic(before, after) == pytest.approx(100 * sum(o > y for y, o in pairs) / len(pairs), rel=1e-12)


@pytest.mark.parametrize("function", [drop, adp, increase, pic])
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
