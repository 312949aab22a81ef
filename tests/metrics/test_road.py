"""ROAD: the imputation of removed pixels, and the mean over the shares that were removed."""

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
import torch.nn.functional as F

from gamlens.errors import GamlensError
from gamlens.metrics import impute, road

WEIGHTS = {(dy, dx): 1 / 6 if dy == 0 or dx == 0 else 1 / 12 for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx}


def naive(image, removed):
    """One equation per removed pixel, pixel by pixel, solved by scipy: (C,H,W), bool (H,W) -> (C,H,W) float64."""
    image = image.double().numpy().copy()
    height, width = removed.shape
    number = {place: i for i, place in enumerate(zip(*np.nonzero(removed.numpy()), strict=True))}
    matrix, right = scipy.sparse.lil_matrix((len(number), len(number))), np.zeros((len(number), len(image)))
    for (y, x), row in number.items():
        near = {(y + dy, x + dx): w for (dy, dx), w in WEIGHTS.items() if 0 <= y + dy < height and 0 <= x + dx < width}
        matrix[row, row] = sum(near.values())
        for place, weight in near.items():
            if place in number:
                matrix[row, number[place]] = -weight
            else:
                right[row] += weight * image[:, *place]
    found = scipy.sparse.linalg.spsolve(matrix.tocsc(), right).reshape(right.shape)
    for place, row in number.items():
        image[:, *place] = found[row]
    return image


def blobs(seed, items, height, width, cells=4):
    values = torch.rand(items, 1, cells, cells, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(values, (height, width), mode="bicubic")[:, 0]


def highest(maps, share):
    return maps >= maps.flatten(1).quantile(1 - share, dim=1)[:, None, None]


def test_by_hand():
    """The middle of 3x3 is the weighted mean of all; a corner weighs its three neighbours 2 : 2 : 1."""
    image = torch.arange(9.0).view(1, 1, 3, 3) ** 2
    removed = torch.zeros(1, 3, 3, dtype=torch.bool)
    removed[0, 1, 1] = True
    beside, diagonal = 1 + 9 + 25 + 49, 0 + 4 + 36 + 64
    assert impute(image, removed)[0, 0, 1, 1].item() == pytest.approx(beside / 6 + diagonal / 12, abs=1e-4)
    corner = torch.zeros(1, 3, 3, dtype=torch.bool)
    corner[0, 0, 0] = True
    assert impute(image, corner)[0, 0, 0, 0].item() == pytest.approx((2 * 1 + 2 * 9 + 16) / 5, abs=1e-4)


@pytest.mark.parametrize(("height", "width"), [(24, 31), (33, 16), (1, 90), (2, 2), (5, 40), (2, 33)])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_equals_scipy(height, width, share):
    make = torch.Generator().manual_seed(height)
    images = torch.rand(3, 2, height, width, generator=make)
    maps = torch.cat([blobs(1, 2, height, width), torch.rand(1, height, width, generator=make)])
    removed = highest(maps, share)
    removed[:, 0, 0] = False
    found = impute(images, removed)
    for image, mask, own in zip(images, removed, found, strict=True):
        assert np.abs(own.double().numpy() - naive(image, mask)).max() < 1e-5
        assert torch.equal(own[:, ~mask], image[:, ~mask])


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_equals_scipy_at_the_size_of_real_images(share):
    images, removed = torch.rand(1, 1, 112, 112), highest(blobs(3, 1, 112, 112, 7), share)
    assert np.abs(impute(images, removed)[0].double().numpy() - naive(images[0], removed[0])).max() < 1e-5


def test_few_known_pixels():
    """One pixel is known: all others have its value. Two corners: values between them."""
    images = torch.rand(2, 3, 40, 40)
    removed = torch.ones(2, 40, 40, dtype=torch.bool)
    removed[:, 3, 5] = False
    removed[1, 39, 39] = False
    found = impute(images, removed)
    assert (found[0] - images[0, :, 3:4, 5:6]).abs().max() < 1e-5
    assert np.abs(found[1].double().numpy() - naive(images[1], removed[1])).max() < 1e-5


def test_nothing_and_everything_removed():
    images = torch.rand(3, 3, 8, 8)
    removed = torch.zeros(3, 8, 8, dtype=torch.bool)
    removed[1] = True
    removed[2, 2, 2] = True
    before = images.clone()
    found = impute(images, removed, colour=(0.1, 0.2, 0.3))
    assert torch.equal(found[0], images[0])
    assert found[1, :, 4, 4].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert found[1].flatten(1).std(dim=1).tolist() == [0, 0, 0]
    assert impute(images, removed)[1].abs().max() == 0
    assert torch.equal(images, before)
    assert impute(images[:0], removed[:0]).shape == (0, 3, 8, 8)


def test_a_constant_and_a_ramp_stay():
    """Where neighbours lie on all sides, a plane is its own mean; far values keep their digits."""
    ramp = torch.linspace(0, 1, 30, dtype=torch.float64).expand(1, 1, 30, 30) + 1000
    removed = torch.zeros(1, 30, 30, dtype=torch.bool)
    removed[0, 5:25, 4:26] = True
    for image in (ramp, torch.full((1, 1, 30, 30), 7.0, dtype=torch.float64)):
        assert (impute(image, removed) - image).abs().max() < 1e-5


def test_an_image_does_not_depend_on_the_others():
    """To the last bit, among images that take more and fewer steps."""
    images, maps = torch.rand(4, 3, 64, 64), blobs(5, 4, 64, 64, 7)
    removed = torch.cat([highest(own[None], share) for own, share in zip(maps, (0.1, 0.9, 0.5, 0.97), strict=True)])
    whole = impute(images, removed)
    for i in range(4):
        assert torch.equal(impute(images[i : i + 1], removed[i : i + 1])[0], whole[i])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_dtypes(dtype):
    images, removed = torch.rand(1, 3, 16, 16).to(dtype), highest(blobs(7, 1, 16, 16), 0.5)
    found = impute(images, removed)
    assert found.dtype == dtype
    assert np.abs(found[0].double().numpy() - naive(images[0], removed[0])).max() < (
        1e-5 if dtype == torch.float64 else 1e-3
    )


def test_road_is_the_mean_over_shares():
    assert road(torch.tensor([[0.2, 1.0], [0.4, 0.0], [0.6, 0.5]])).tolist() == pytest.approx([0.4, 0.5])


def test_bad_input_is_an_error():
    images, removed = torch.rand(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.bool)
    with pytest.raises(GamlensError, match=r"bool \(N,H,W\), found"):
        impute(images, removed.float())
    with pytest.raises(GamlensError, match="floats"):
        impute(images.int(), removed)
    with pytest.raises(GamlensError, match="one number per channel, 3; found 2"):
        impute(images, removed, colour=(0, 0))
    with pytest.raises(GamlensError, match=r"\(P,N\)"):
        road(torch.rand(3))
