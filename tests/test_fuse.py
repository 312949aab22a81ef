"""RSZ, NRM and the fusion of blocks, Eq. 2."""

import warnings

import naive
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gamlens.errors import GamlensError, GamlensWarning
from gamlens.fuse import FUSIONS, fuse, min_max, normalize, resize

A = torch.tensor([[[0.0, 1.0], [0.5, 0.25]]])
B = torch.tensor([[[1.0, 0.5], [0.5, 0.75]]])
NAN, INF = float("nan"), float("inf")


def random(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("small", "size"),
    [
        ((7, 7), (56, 56)),
        ((3, 5), (17, 11)),
        ((1, 1), (4, 3)),
        ((1, 6), (9, 13)),
        ((2, 3), (2, 3)),
        ((9, 8), (4, 5)),
        ((14, 14), (37, 50)),
    ],
)
def test_resize_equals_its_loop_twin(small, size):
    maps = random((3, *small))
    found = resize(maps, size)
    expected = np.stack([naive.resize(plane, size) for plane in maps.numpy()])
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


def test_resize_by_hand():
    # Two pixels to four: the centres lie at -0.25, 0.25, 0.75, 1.25, the border is repeated: .. 0 0 1 1 ..
    # -0.25 reads 0 0 0 1, so w(1.25) = -0.75*(1.25^3 - 5*1.25^2 + 8*1.25 - 4).
    # 0.25 reads 0 0 1 1, so w(0.75) + w(1.75) = 0.26171875 - 0.03515625.
    step = torch.tensor([[[0.0, 1.0]]], dtype=torch.float64)
    low, rise = -0.10546875, 0.2265625
    assert resize(step, (1, 4)).tolist() == [[[low, rise, 1 - rise, 1 - low]]]
    assert resize(step.mT, (4, 1)).flatten().tolist() == [low, rise, 1 - rise, 1 - low]


def test_resize_of_a_batch_equals_its_items_and_leaves_it():
    maps = random((3, 4, 5))
    before = maps.clone()
    found = resize(maps, (11, 7))
    torch.testing.assert_close(found, torch.cat([resize(maps[row : row + 1], (11, 7)) for row in range(3)]))
    assert torch.equal(maps, before)


def test_normalize_by_hand():
    maps = torch.tensor([[[-2.0, 0.0], [1.0, 2.0]], [[5.0, 6.0], [7.0, 9.0]]])
    expected = [[[0.0, 0.5], [0.75, 1.0]], [[0.0, 0.25], [0.5, 1.0]]]
    assert normalize(maps).tolist() == expected
    assert maps[0, 0, 0] == -2


@pytest.mark.parametrize(
    "plane",
    [
        [[0.0, 0.0], [0.0, 0.0]],
        [[3.5, 3.5], [3.5, 3.5]],
        [[NAN, 1.0], [2.0, 3.0]],
        [[INF, 1.0], [2.0, 3.0]],
        [[-INF, 1.0], [2.0, 3.0]],
        [[INF, INF], [INF, INF]],
        [[NAN, NAN], [NAN, NAN]],
        [[3e38, -3e38], [0.0, 1.0]],
    ],
)
def test_a_flat_or_broken_map_becomes_zeros_with_a_warning_and_others_stand(plane):
    maps = torch.tensor([[[1.0, 2.0], [3.0, 5.0]], plane])
    found, flat = min_max(maps)
    assert flat.tolist() == [False, True]
    assert found.tolist() == [[[0.0, 0.25], [0.5, 1.0]], [[0.0, 0.0], [0.0, 0.0]]]
    with pytest.warns(GamlensWarning, match=r"row 1\."):
        assert torch.equal(normalize(maps), found)


def test_every_bad_row_is_named():
    with pytest.warns(GamlensWarning, match="row 0, 2"):
        normalize(torch.stack([torch.zeros(2, 2), A[0], torch.ones(2, 2)]))


def test_a_healthy_map_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        normalize(A)


def test_one_pixel_is_a_flat_map():
    with pytest.warns(GamlensWarning):
        assert normalize(torch.tensor([[[4.0]]])).tolist() == [[[0.0]]]


def test_the_range_is_0_to_1_though_bicubic_undershoots():
    spike = torch.zeros(1, 5, 5)
    spike[0, 2, 2] = 1.0
    large = resize(spike, (40, 40))
    assert large.min() < -0.05
    found = normalize(large)
    assert (found.min(), found.max()) == (0.0, 1.0)
    expected = naive.min_max(naive.resize(spike[0].double().numpy(), (40, 40)))
    np.testing.assert_allclose(found[0].numpy(), expected, atol=1e-6)


def test_min_max_equals_its_twin():
    maps = random((4, 6, 5))
    expected = np.stack([naive.min_max(plane) for plane in maps.numpy()])
    np.testing.assert_allclose(min_max(maps)[0].numpy(), expected, rtol=0, atol=1e-14)


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=12),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_whatever_comes_in_what_goes_out_is_finite_and_within_0_and_1(values, dtype):
    maps = torch.tensor(values, dtype=dtype).view(1, 1, -1)
    found, flat = min_max(maps)
    assert found.isfinite().all()
    assert found.min() >= 0
    if bool(flat):
        assert (found == 0).all()
    else:
        assert (found.min(), found.max()) == (0, 1)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("mean", [[0.5, 0.75], [0.5, 0.5]]),
        ("max", [[1.0, 1.0], [0.5, 0.75]]),
        ("product", [[0.0, 0.5], [0.25, 0.1875]]),
        ([1, 1], [[0.5, 0.75], [0.5, 0.5]]),
        ((3.0, 1.0), [[0.25, 0.875], [0.5, 0.375]]),
        ([0, 5], [[1.0, 0.5], [0.5, 0.75]]),
        (torch.tensor([0.25, 0.75]), [[0.75, 0.625], [0.5, 0.625]]),
    ],
)
def test_fuse_by_hand(how, expected):
    maps = [A.clone(), B.clone()]
    assert fuse(maps, how).tolist() == [expected]
    assert torch.equal(maps[0], A)
    assert torch.equal(maps[1], B)


def test_the_default_is_the_mean_and_is_not_normalised_again():
    assert fuse([A, A * 0.5]).tolist() == [[[0.0, 0.75], [0.375, 0.1875]]]


@pytest.mark.parametrize("how", [*FUSIONS, [2.0]])
def test_one_block_is_itself_but_no_view_of_it(how):
    maps = A.clone()
    found = fuse([maps], how)
    assert torch.equal(found, A)
    found.zero_()
    assert torch.equal(maps, A)


def test_a_batch_equals_its_items():
    parts = [random((3, 4, 5), seed) for seed in range(3)]
    for how in (*FUSIONS, (1.0, 2.0, 4.0)):
        rows = [fuse([part[row : row + 1] for part in parts], how) for row in range(3)]
        torch.testing.assert_close(fuse(parts, how), torch.cat(rows), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "weights", [[], [1.0], [1.0, 2.0, 3.0], [0.0, 0.0], [1.0, -0.1], [NAN, 1.0], [[1.0, 2.0]]], ids=str
)
def test_bad_weights_are_an_error(weights):
    with pytest.raises(GamlensError, match=r"one weight per block.*2 blocks"):
        fuse([A, B], weights)


def test_an_unknown_fusion_is_an_error_with_a_near_name():
    with pytest.raises(GamlensError, match=r"'meen'.*'mean'"):
        fuse([A, B], "meen")


def test_nothing_to_fuse_is_an_error():
    with pytest.raises(GamlensError, match="no map"):
        fuse([])
