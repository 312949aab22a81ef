"""Bootstrap, paired differences, relative improvement."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from gamlens.errors import GamlensError
from gamlens.metrics import Interval, aggregate, bootstrap, improvement, paired, sign_test


def normal(n, seed=0, scale=1.0):
    return scale * torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_bootstrap_leaves_nan_out():
    result = bootstrap(torch.tensor([1.0, math.nan, 3.0]))
    assert (result.mean, result.n) == (2, 2)
    # two items: every resampled mean is 1, 2 or 3
    assert (result.low, result.high) == (1, 3)


def test_one_item_none_and_bools():
    assert bootstrap(torch.tensor([0.25])) == Interval(0.25, 0.25, 0.25, 1)
    for nothing in (torch.empty(0), torch.tensor([math.nan])):
        empty = bootstrap(nothing)
        assert empty.n == 0
        assert all(math.isnan(value) for value in (empty.mean, empty.low, empty.high))
    assert bootstrap(torch.tensor([True, False, True, True])).mean == 0.75


def test_bootstrap_equals_the_normal_interval_on_many_items():
    values = normal(2000)
    result = bootstrap(values, samples=4000)
    half = 1.96 * values.std().item() / math.sqrt(2000)
    assert result.low == pytest.approx(result.mean - half, abs=0.06 * half)
    assert result.high == pytest.approx(result.mean + half, abs=0.06 * half)


def test_bootstrap_agrees_with_numpy():
    values = torch.rand(60, generator=torch.Generator().manual_seed(1)) ** 3
    draw = np.random.default_rng(0).integers(0, 60, (20_000, 60))
    expected = np.quantile(values.double().numpy()[draw].mean(axis=1), [0.05, 0.95])
    result = bootstrap(values, samples=20_000, level=0.9)
    np.testing.assert_allclose([result.low, result.high], expected, rtol=0.02)


def test_bootstrap_is_seeded_and_leaves_the_global_generator_alone(monkeypatch):
    state = torch.get_rng_state()
    values = normal(50)
    assert bootstrap(values, seed=3) == bootstrap(values, seed=3)
    assert bootstrap(values, seed=3) != bootstrap(values, seed=4)
    monkeypatch.setattr(aggregate, "INDICES_AT_ONCE", 120)
    chunked = bootstrap(values, seed=3)
    assert chunked.low < chunked.mean < chunked.high
    assert torch.equal(torch.get_rng_state(), state)


def test_a_wider_level_is_a_wider_interval():
    narrow, wide = (bootstrap(normal(40), level=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_paired_by_hand():
    a = torch.tensor([3.0, 2.0, 5.0, 1.0, math.nan, 4.0])
    b = torch.tensor([1.0, 2.0, 1.0, 2.0, 0.0, math.nan])
    result = paired(a, b)
    # differences 2, 0, 4, -1; p = 2 (1 + 3)/8 = 1
    assert (result.mean, result.wins, result.losses, result.ties, result.p) == (1.25, 2, 1, 1, 1)
    assert result.low < 1.25 < result.high
    down = paired(a, b, better="down")
    assert (down.mean, down.wins, down.losses, down.ties) == (1.25, 1, 2, 1)


def test_swapping_the_pair_turns_the_difference():
    a, b = normal(30, 1), normal(30, 2) + 0.3
    one, other = paired(a, b), paired(b, a)
    assert (one.wins, one.losses, one.p) == (other.losses, other.wins, other.p)
    assert one.mean == pytest.approx(-other.mean)
    assert (one.low, one.high) == (pytest.approx(-other.high), pytest.approx(-other.low))


def test_pairing_sees_what_two_intervals_do_not():
    hard = normal(200, scale=10)
    a, b = hard + 0.5 + normal(200, 1, 0.1), hard
    assert bootstrap(a).low < bootstrap(b).high
    assert paired(a, b).low > 0.4
    assert paired(a, b).p < 1e-40


# Rows of three clusters: "b" has three values (one of them NaN), "a" two, "c" one; "d" has none that is not NaN.
GROUPED = torch.tensor([1.0, 2.0, 4.0, math.nan, 3.0, 10.0, math.nan], dtype=torch.float64)
NAMES = ["b", "a", "a", "b", "b", "c", "d"]


def by_loop(values, clusters, *, samples=1000, seed=0, level=0.95):
    """The same draws, cluster by cluster and value by value."""
    names = sorted({c for c, v in zip(clusters, values, strict=True) if not math.isnan(v)})
    make, means = torch.Generator().manual_seed(seed), []
    for drawn in torch.randint(len(names), (samples, len(names)), generator=make).tolist():
        own = []
        for place in drawn:
            for cluster, value in zip(clusters, values, strict=True):
                if cluster == names[place] and not math.isnan(value):
                    own.append(value)
        means.append(sum(own) / len(own))
    return np.quantile(means, [(1 - level) / 2, (1 + level) / 2])


def test_whole_clusters_by_hand():
    # clusters of 1 and 3 items with means 8 and 0: a resample has the mean 8, (8 + 0) / 4 = 2 or 0, by chances of
    # 1/4, 1/2, 1/4; the mean of the two means, 4, is never one of them
    values, names = torch.tensor([0.0, 0.0, 8.0, 0.0]), [7, 7, 3, 7]
    wide = bootstrap(values, clusters=names, level=0.6)
    assert wide == Interval(2, 0, 8, 4)
    middle = bootstrap(values, clusters=names, level=0.4)
    assert middle == Interval(2, 2, 2, 4)


def test_clusters_equal_a_plain_loop():
    values = normal(60)
    values[[3, 17, 18]] = math.nan
    names = torch.randint(0, 13, (60,), generator=torch.Generator().manual_seed(5))
    for data, ids in ((values, names), (values, [f"image {one:02d}" for one in names]), (GROUPED, NAMES)):
        found = bootstrap(data, clusters=ids, samples=300, seed=2, level=0.8)
        plain = ids.tolist() if isinstance(ids, torch.Tensor) else ids
        expected = by_loop(data.tolist(), plain, samples=300, seed=2, level=0.8)
        np.testing.assert_allclose([found.low, found.high], expected, rtol=1e-12)
        assert found.mean == pytest.approx(float(data.nanmean()))
        assert found.n == int((~data.isnan()).sum())


def test_clusters_of_one_item_are_the_plain_bootstrap():
    values, other = normal(50), normal(50, 3)
    values[4] = math.nan
    assert bootstrap(values, clusters=range(50), seed=1) == bootstrap(values, seed=1)
    assert paired(values, other, clusters=range(50)) == paired(values, other)


def test_the_order_of_rows_does_not_matter():
    order = torch.tensor([6, 2, 5, 0, 4, 1, 3])
    one = bootstrap(GROUPED, clusters=NAMES)
    other = bootstrap(GROUPED[order], clusters=[NAMES[place] for place in order])
    assert (other.low, other.high) == (pytest.approx(one.low, rel=1e-12), pytest.approx(one.high, rel=1e-12))


def test_copies_of_rows_add_nothing_where_clusters_say_so():
    values, names = normal(80), [f"{place // 2:02d}" for place in range(80)]
    once, twice = bootstrap(values, clusters=names), bootstrap(torch.cat([values, values]), clusters=[*names, *names])
    assert (twice.low, twice.high) == (pytest.approx(once.low, rel=1e-12), pytest.approx(once.high, rel=1e-12))
    assert (once.n, twice.n) == (80, 160)
    # taken for independent, the copies would make the interval narrower, by sqrt(2)
    wrong, right = bootstrap(values.repeat(2)), bootstrap(values)
    assert wrong.high - wrong.low < 0.85 * (right.high - right.low)


def test_a_nan_row_is_as_no_row():
    keep = (~GROUPED.isnan()).nonzero()[:, 0].tolist()
    whole, cut = bootstrap(GROUPED, clusters=NAMES), bootstrap(GROUPED[keep], clusters=[NAMES[k] for k in keep])
    assert whole == cut
    assert math.isnan(bootstrap(torch.tensor([math.nan]), clusters=["a"]).low)


def test_the_sign_test_counts_clusters(monkeypatch):
    # differences of "a": 2, -1 (won by its mean); "b": -3 (lost); "c": 1, -1 (tied); "d": NaN (not counted)
    a = torch.tensor([3.0, 0.0, 1.0, 2.0, 0.0, math.nan])
    b = torch.tensor([1.0, 1.0, 4.0, 1.0, 1.0, 0.0])
    names = ["a", "a", "b", "c", "c", "d"]
    up, down = (paired(a, b, clusters=names, better=better) for better in ("up", "down"))
    assert (up.mean, up.wins, up.losses, up.ties, up.p) == (pytest.approx(-0.4), 1, 1, 1, 1)
    assert (down.wins, down.losses, down.ties) == (1, 1, 1)
    many = paired(torch.ones(12), torch.zeros(12), clusters=[place // 2 for place in range(12)])
    assert (many.wins, many.p) == (6, sign_test(6, 0))
    monkeypatch.setattr(aggregate, "INDICES_AT_ONCE", 7)
    assert bootstrap(GROUPED, clusters=NAMES).n == 5


def test_nothing_to_pair():
    result = paired(torch.empty(0), torch.empty(0))
    assert math.isnan(result.mean)
    assert (result.wins, result.losses, result.ties, result.p) == (0, 0, 0, 1)


@pytest.mark.parametrize(("wins", "losses"), [(0, 1), (5, 0), (3, 17), (7, 7), (8, 7), (430, 520), (0, 300)])
def test_sign_test_equals_scipy(wins, losses):
    assert sign_test(wins, losses) == pytest.approx(stats.binomtest(wins, wins + losses).pvalue, rel=1e-9)
    assert sign_test(wins, losses) == sign_test(losses, wins)


def test_improvement():
    # the paper's rows: PIC 38.12 to 39.53 is up 3.7 %, ADP 17.47 to 17.22 is better by 1.4 %
    assert improvement(38.12, 39.53, "up") == pytest.approx(3.699, abs=1e-3)
    assert improvement(17.47, 17.22, "down") == pytest.approx(1.431, abs=1e-3)
    assert improvement(50.0, 40.0, "up") == -20
    assert improvement(10.0, 15.0, "down") == -50
    assert improvement(-2.0, -1.0, "up") == 50
    assert math.isnan(improvement(0.0, 1.0, "up"))


@pytest.mark.parametrize(
    "call",
    [
        lambda: bootstrap(torch.ones(2, 2)),
        lambda: bootstrap(torch.ones(2), samples=0),
        lambda: bootstrap(torch.ones(2), level=1.0),
        lambda: bootstrap(torch.ones(2), clusters=["a"]),
        lambda: bootstrap(torch.ones(2), clusters=["a", 1]),
        lambda: bootstrap(torch.ones(2), clusters=[0.5, 1.0]),
        lambda: paired(torch.ones(2), torch.ones(3)),
        lambda: paired(torch.ones(2), torch.ones(2), better="higher"),
        lambda: improvement(1.0, 2.0, "higher"),
    ],
)
def test_bad_input_is_an_error(call):
    with pytest.raises(GamlensError, match=r"found|not 'higher'"):
        call()
