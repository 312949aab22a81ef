"""Explanation maps and controls."""

import itertools
import math
import zlib

import numpy as np
import pytest
import torch
import torchvision
from scipy.stats import rankdata

from gamlens.errors import GamlensError
from gamlens.metrics import CONTROLS, blurred, centre, centre_prior, chance, equal_mass, explain_mask

MEAN, STD = (0.5, 0.4, 0.2), (0.25, 0.2, 0.1)


def images(n=2, height=4, width=5):
    return torch.rand(n, 3, height, width, generator=torch.Generator().manual_seed(0))


def test_by_hand():
    image = torch.tensor([1.0, 0.8, 0.5]).view(1, 3, 1, 1)
    half = torch.tensor([[[0.5]]])
    # black: (0.5 - 0.5)/0.25, (0.4 - 0.4)/0.2, (0.25 - 0.2)/0.1; mean: half of (2, 2, 3)
    black = explain_mask(image, half, mean=MEAN, std=STD, fill="black").flatten()
    torch.testing.assert_close(black, torch.tensor([0.0, 0.0, 0.5]), atol=1e-6, rtol=0)
    mean = explain_mask(image, half, mean=MEAN, std=STD, fill="mean").flatten()
    torch.testing.assert_close(mean, torch.tensor([1.0, 1.0, 1.5]), atol=1e-6, rtol=0)


def test_black_is_the_default_and_equals_torchvision():
    raw, maps = images(), torch.rand(2, 4, 5)
    expected = torchvision.transforms.functional.normalize(raw * maps[:, None], list(MEAN), list(STD))
    assert torch.equal(explain_mask(raw, maps, mean=MEAN, std=STD), expected)


@pytest.mark.parametrize("fill", ["black", "mean"])
def test_ones_show_the_image_whatever_the_fill(fill):
    raw = images()
    expected = torchvision.transforms.functional.normalize(raw, list(MEAN), list(STD))
    assert torch.equal(explain_mask(raw, torch.ones(2, 4, 5), mean=MEAN, std=STD, fill=fill), expected)


def test_blank_shows_black_or_the_mean_colour():
    black = explain_mask(images(), torch.zeros(2, 4, 5), mean=MEAN, std=STD, fill="black")
    torch.testing.assert_close(black[0, :, 0, 0], torch.tensor([-2.0, -2.0, -2.0]))
    assert (explain_mask(images(), torch.zeros(2, 4, 5), mean=MEAN, std=STD, fill="mean") == 0).all()


def test_bool_maps_no_item_and_input_left_alone():
    raw, mask = images(), torch.rand(2, 4, 5) < 0.5
    copies = raw.clone(), mask.clone()
    hidden = explain_mask(raw, mask, mean=MEAN, std=STD, fill="mean")
    assert torch.equal(hidden, explain_mask(raw, mask.float(), mean=MEAN, std=STD, fill="mean"))
    assert torch.equal(raw, copies[0])
    assert torch.equal(mask, copies[1])
    assert explain_mask(images(0), torch.ones(0, 4, 5), mean=MEAN, std=STD).shape == (0, 3, 4, 5)


def test_centre_prior_by_hand():
    # four pixels, sigma 1: centres at -1.5, -0.5, 0.5, 1.5; the corner is the least, the middle the most
    side = [math.exp(-(x**2) / 2) for x in (-1.5, -0.5, 0.5, 1.5)]
    low, high = side[0] ** 2, side[1] ** 2
    expected = torch.tensor([[(a * b - low) / (high - low) for b in side] for a in side])
    torch.testing.assert_close(centre_prior(4, 4), expected)
    assert centre_prior(4, 4)[[0, 1], [0, 1]].tolist() == [0, 1]


@pytest.mark.parametrize(("height", "width"), [(224, 224), (5, 9), (1, 3), (30, 12)])
def test_centre_prior_is_symmetric_and_min_maxed(height, width):
    prior = centre_prior(height, width)
    assert prior.shape == (height, width)
    assert (prior.min(), prior.max()) == (0, 1)
    torch.testing.assert_close(prior, prior.flip(0))
    torch.testing.assert_close(prior, prior.flip(1))
    torch.testing.assert_close(prior.T, centre_prior(width, height))


@pytest.mark.parametrize("name", CONTROLS)
def test_every_control_is_a_map_an_item(name):
    for n in (0, 1, 3):
        maps = CONTROLS[name]([f"item {number}" for number in range(n)], 6, 4)
        assert maps.shape == (n, 6, 4)
        assert maps.dtype == torch.float32
    assert explain_mask(images(3, 6, 4), maps, mean=MEAN, std=STD).isfinite().all()
    assert torch.equal(centre(3, 6, 4)[2], centre_prior(6, 4))


def test_a_random_control_follows_from_the_name_of_the_item():
    """7 x 7 values drawn with the name as seed: the same in every batch, others for another name, from 0 to 1."""
    a, b, again = chance(["a.jpg", "b.jpg", "a.jpg"], 224, 200)
    torch.testing.assert_close(chance(["a.jpg"], 224, 200)[0], a, rtol=0, atol=0)
    assert torch.equal(a, again)
    assert (a - b).abs().max() > 0.5
    assert a.aminmax() == (0, 1)
    cells = torch.rand(7, 7, generator=torch.Generator().manual_seed(zlib.crc32(b"a.jpg")))
    wide = torch.nn.functional.interpolate(cells[None, None], size=(224, 200), mode="bicubic")[0, 0]
    torch.testing.assert_close(a, (wide - wide.min()) / (wide.max() - wide.min()))


def test_maps_of_equal_mass_are_ranks():
    """By hand: values 0.3, 0.1, 0.3, 0.9 have the ranks 1.5, 0, 1.5, 3 of 3; a flat map is 1/2 everywhere."""
    maps = torch.tensor([[[0.3, 0.1], [0.3, 0.9]], [[0.2, 0.2], [0.2, 0.2]]])
    before = maps.clone()
    expected = torch.tensor([[[0.5, 0.0], [0.5, 1.0]], [[0.5, 0.5], [0.5, 0.5]]])
    torch.testing.assert_close(equal_mass(maps), expected)
    assert torch.equal(maps, before)
    assert equal_mass(torch.tensor([[[0.7]]])).tolist() == [[[0.5]]]


def test_maps_of_equal_mass_do_not_depend_on_brightness():
    maps = torch.rand(3, 9, 5, generator=torch.Generator().manual_seed(0)).mul(8).round().div(8)  # with equal values
    expected = [rankdata(one.flatten().numpy()).reshape(9, 5) - 1 for one in maps]
    torch.testing.assert_close(equal_mass(maps).double(), torch.from_numpy(np.stack(expected)) / 44)
    assert torch.equal(equal_mass(maps.sqrt()), equal_mass(maps))
    torch.testing.assert_close(equal_mass(maps).mean(dim=(1, 2)), torch.full((3,), 0.5))


@pytest.mark.parametrize(("height", "width"), [(2, 2), (0, 5), (1, 1)])
def test_a_centre_needs_room(height, width):
    with pytest.raises(GamlensError, match=f"{height} x {width}"):
        centre_prior(height, width)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"maps": torch.ones(2, 5, 4)}, r"\(2, 5, 4\)"),
        ({"images": torch.ones(3, 4, 5)}, r"\(3, 4, 5\)"),
        ({"images": images() * 4 - 2}, "Raw images lie between 0 and 1"),
        ({"maps": torch.full((2, 4, 5), 3.0)}, "Maps lie between 0 and 1"),
        ({"maps": torch.full((2, 4, 5), math.nan)}, "Maps lie between 0 and 1"),
        ({"mean": (0.5,)}, "one number per channel, 3; found 1 and 3"),
        ({"fill": "white"}, "'white'"),
    ],
)
def test_bad_input_is_an_error(change, found):
    arguments = {"images": images(), "maps": torch.ones(2, 4, 5), "mean": MEAN, "std": STD} | change
    with pytest.raises(GamlensError, match=found):
        explain_mask(arguments.pop("images"), arguments.pop("maps"), **arguments)


def naive_blur(image, kernel, sigma):
    """A Gaussian blur of one channel (H,W), pixel by pixel; beyond the border the image is mirrored."""
    height, width = image.shape
    half = kernel // 2

    def inside(place, size):
        return -place if place < 0 else 2 * (size - 1) - place if place >= size else place

    found = np.zeros_like(image)
    for i, j in np.ndindex(image.shape):
        total = weights = 0.0
        for a, b in itertools.product(range(-half, half + 1), repeat=2):
            weight = math.exp(-(a * a + b * b) / (2 * sigma * sigma))
            total += weight * image[inside(i + a, height), inside(j + b, width)]
            weights += weight
        found[i, j] = total / weights
    return found


def test_a_blur_by_hand():
    """exp(-1 / (2 sigma^2)) = 1/2, so that a row is weighted 1/4, 1/2, 1/4."""
    dot = torch.zeros(1, 1, 5, 5)
    dot[0, 0, 2, 2] = 16.0
    sigma = math.sqrt(1 / (2 * math.log(2)))
    expected = [[0, 0, 0, 0, 0], [0, 1, 2, 1, 0], [0, 2, 4, 2, 0], [0, 1, 2, 1, 0], [0, 0, 0, 0, 0]]
    torch.testing.assert_close(blurred(dot, kernel=3, sigma=sigma)[0, 0], torch.tensor(expected).float())


@pytest.mark.parametrize(("kernel", "sigma"), [(3, 0.7), (5, 2.0), (11, 5.0)])
def test_a_blur_against_a_loop(kernel, sigma):
    images = torch.rand(2, 3, 9, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = blurred(images, kernel=kernel, sigma=sigma)
    for item, channel in itertools.product(range(2), range(3)):
        expected = naive_blur(images[item, channel].numpy(), kernel, sigma)
        np.testing.assert_allclose(found[item, channel].numpy(), expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(blurred(images[1:], kernel=kernel, sigma=sigma), found[1:])


@pytest.mark.parametrize(
    ("size", "kernel", "sigma", "said"),
    [
        (9, 4, 1.0, "an odd number of pixels"),
        (9, 1, 1.0, "an odd number of pixels"),
        (9, 3, 0.0, "a sigma above 0"),
        (9, 3, math.nan, "a sigma above 0"),
        (25, 51, 10.0, "give a smaller kernel"),
    ],
)
def test_blurs_that_cannot_be(size, kernel, sigma, said):
    with pytest.raises(GamlensError, match=said):
        blurred(torch.rand(1, 3, size, size), kernel=kernel, sigma=sigma)


def test_a_background_shows_where_the_map_is_low():
    """Pixel by pixel: 1 shows the image, 0 the background, 1/4 a quarter of the one and the rest of the other."""
    image, background = torch.tensor([[[[0.8, 0.8, 0.8]]]]), torch.tensor([[[[0.4, 0.4, 0.4]]]])
    found = explain_mask(image, torch.tensor([[[1.0, 0.0, 0.25]]]), mean=[0.5], std=[0.1], background=background)
    torch.testing.assert_close(found, torch.tensor([[[[3.0, -1.0, 0.0]]]]))
    with pytest.raises(GamlensError, match="has the shape of the images"):
        explain_mask(image, torch.ones(1, 1, 3), mean=[0.5], std=[0.1], background=background[..., :2])
