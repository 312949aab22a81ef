"""The same numbers as Captum, Quantus and pytorch-grad-cam, where these are installed. Importing them takes seconds, so
everything that needs them is in this file.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gamlens.metrics import impute, infidelity, max_sensitivity, relevance_mass, relevance_rank, sparseness

MAKE = torch.Generator().manual_seed(0)
IMAGES = torch.rand(2, 3, 8, 8, generator=MAKE)
WEIGHT = torch.randn(3 * 64, generator=MAKE)


def library(name, package):
    return pytest.importorskip(name, reason=f"{package} is not installed: its numbers are not compared")


def model(images):
    return (images.flatten(1) @ WEIGHT / 8).sigmoid()


def saliency(images):
    """A map without a gradient that depends on the image: (N,3,H,W) -> (N,3,H,W)."""
    return (images * WEIGHT.view(3, 8, 8)).tanh()


def test_infidelity_of_captum():
    metrics = library("captum.metrics", "captum")
    maps, sets = torch.rand(2, 8, 8, generator=MAKE), 6
    hidden = torch.rand(sets, 2, 8, 8, generator=MAKE) > 0.5

    def perturb(inputs):  # every image `sets` times in a row
        masks = hidden.transpose(0, 1).flatten(0, 1)[:, None].expand_as(inputs).float()
        return masks, inputs * (1 - masks)

    attribution = maps[:, None].expand_as(IMAGES) / 3
    expected = metrics.infidelity(model, perturb, IMAGES, attribution, n_perturb_samples=sets, normalize=True)
    after = torch.stack([model(IMAGES * ~own[:, None]) for own in hidden])
    found = infidelity(maps, hidden, model(IMAGES) - after)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert found.min() > 1e-4


def test_max_sensitivity_of_captum():
    metrics = library("captum.metrics", "captum")
    noise = 0.02 * torch.randn(5, 2, 3, 8, 8, generator=MAKE)
    noisy = IMAGES + noise

    def maps(images):
        return saliency(images).sum(dim=1)

    expected = metrics.sensitivity_max(
        lambda inputs: (maps(inputs[0]),) if isinstance(inputs, tuple) else maps(inputs),
        IMAGES,
        perturb_func=lambda inputs: noisy.transpose(0, 1).flatten(0, 1),
        n_perturb_samples=5,
    )
    found = max_sensitivity(maps(IMAGES), torch.stack([maps(own) for own in noisy]))
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert found.min() > 1e-3


def test_sparseness_and_relevance_of_quantus():
    quantus = library("quantus", "quantus")
    maps, truth = torch.rand(4, 1, 16, 16, generator=MAKE), torch.rand(4, 1, 16, 16, generator=MAKE) > 0.7
    own = {"abs": False, "normalise": False, "disable_warnings": True}

    def theirs(metric, **given):
        return metric(**own).evaluate_batch(a_batch=maps.numpy().copy(), **given)

    expected = theirs(quantus.Sparseness, x_batch=maps.numpy())
    assert sparseness(maps[:, 0]).tolist() == pytest.approx(list(expected), abs=1e-5)
    expected = theirs(quantus.RelevanceMassAccuracy, s_batch=truth.numpy())
    assert relevance_mass(maps[:, 0], truth[:, 0]).tolist() == pytest.approx(list(expected), abs=1e-5)
    expected = theirs(quantus.RelevanceRankAccuracy, s_batch=truth.numpy())
    assert relevance_rank(maps[:, 0], truth[:, 0]).tolist() == pytest.approx(list(expected), abs=1e-5)


@pytest.fixture
def holes():
    """Images and removed pixels in blobs, at the border too: (2,3,30,26), bool (2,30,26)."""
    values = F.interpolate(torch.rand(2, 1, 5, 5, generator=MAKE), (30, 26), mode="bicubic")[:, 0]
    return torch.rand(2, 3, 30, 26, generator=MAKE), values > values.flatten(1).median(dim=1).values[:, None, None]


def test_imputation_of_quantus(holes):
    functions = library("quantus.functions.perturb_func", "quantus")
    images, removed = holes
    found = impute(images, removed)
    for image, mask, own in zip(images, removed, found, strict=True):
        places = np.flatnonzero(mask.numpy())
        expected = functions.noisy_linear_imputation(image.numpy(), places, noise=0)
        assert np.abs(own.numpy() - expected.reshape(own.shape)).max() < 1e-5


def test_imputation_of_grad_cam(holes):
    theirs = library("pytorch_grad_cam.metrics.road", "grad-cam")
    images, removed = holes
    found = impute(images, removed)
    for image, mask, own in zip(images, removed, found, strict=True):
        expected = theirs.NoisyLinearImputer(noise=0)(image, (~mask).float())
        assert (own - expected).abs().max() < 1e-5
