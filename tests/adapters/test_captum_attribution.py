"""The adapter for captum: attributions of the inputs' shape, and its metrics against computations by hand."""

from __future__ import annotations

from typing import Any

import nets
import pytest
import torch
from torch import Tensor

from gamlens import GamlensError, Lens, adapters

INPUTS = nets.images(2).float()


def maps(lens: Lens, images: Tensor, target: Any) -> Tensor:
    return lens.classify(images, target, method="gam", n=2).maps


def adapter(lens: Lens, **options: Any) -> adapters.LensAttribution:
    return adapters.captum(lens, **{"method": "gam", "n": 2, **options})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_channels_share_the_map(lens: Lens, dtype: torch.dtype) -> None:
    images = INPUTS.to(dtype).requires_grad_()
    found = adapter(lens).attribute(images, target=3)
    assert (found.shape, found.dtype, found.requires_grad) == (images.shape, dtype, False)
    torch.testing.assert_close(found.sum(dim=1), maps(lens, INPUTS, 3).to(dtype), atol=1e-6, rtol=0)
    assert torch.equal(found[:, 0], found[:, 2])


@pytest.mark.parametrize("target", [[3, 5], torch.tensor([3, 5]), torch.tensor([3, 5]).numpy()])
def test_one_target_per_image(lens: Lens, target: Any) -> None:
    found = adapter(lens).attribute(INPUTS, target=target).sum(dim=1)
    torch.testing.assert_close(found, maps(lens, INPUTS, [3, 5]), atol=1e-6, rtol=0)


def test_other_forms_of_a_target(lens: Lens) -> None:
    one = adapter(lens)
    for target in (torch.tensor(3), torch.tensor([3]), [3]):
        assert torch.equal(one.attribute(INPUTS, target=target), one.attribute(INPUTS, target=3))
    torch.testing.assert_close(one.attribute(INPUTS).sum(dim=1), maps(lens, INPUTS, None), atol=1e-6, rtol=0)
    (same,) = one.attribute((INPUTS,), target=3)
    assert torch.equal(same, one.attribute(INPUTS, target=3))
    assert one.has_convergence_delta() is False


def test_options_of_one_call(lens: Lens) -> None:
    found = adapter(lens).attribute(INPUTS, target=3, method="layer_cam", n=1, score="softmax")
    expected = lens.classify(INPUTS, 3, method="layer_cam", n=1, score="softmax").maps
    torch.testing.assert_close(found.sum(dim=1), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": (0, 3)}, "Tuples"),
        ({"target": [3, 4, 5]}, "class of each"),
        ({"target": [[3, 4], [5]]}, "class of each"),
        ({"target": 10}, "no class 10"),
        ({"target": 3, "additional_forward_args": 1}, "images alone"),
        ({"target": 3, "baselines": 0}, "no option 'baselines'"),
        ({"target": 3, "inputs": (INPUTS, INPUTS)}, "a tuple of 2"),
        ({"target": 3, "inputs": INPUTS[0]}, r"found \(3, 64, 64\)"),
    ],
)
def test_what_is_not_supported_is_an_error(lens: Lens, given: dict[str, Any], message: str) -> None:
    with pytest.raises(GamlensError, match=message):
        adapter(lens).attribute(**{"inputs": INPUTS, **given})


def test_sensitivity(lens: Lens) -> None:
    """The largest change of the map under perturbations, relative to its norm."""
    metrics = pytest.importorskip("captum.metrics")
    noise = 0.3 * torch.randn(3, *INPUTS.shape[1:], generator=torch.Generator().manual_seed(1))

    def perturb(images: Tensor) -> Tensor:
        return images + noise.repeat(len(images) // len(noise), 1, 1, 1)

    found = metrics.sensitivity_max(adapter(lens).attribute, INPUTS, perturb, n_perturb_samples=3, target=[3, 5])
    expected = []
    for image, label in zip(INPUTS, (3, 5), strict=True):
        own = maps(lens, image[None], label).double()
        moved = maps(lens, image + noise, label).double()
        expected.append(((moved - own).flatten(1).norm(dim=1) / own.norm()).max())
    torch.testing.assert_close(found.double(), torch.stack(expected), atol=1e-5, rtol=1e-4)
    assert found.min() > 0


@pytest.mark.parametrize("normalize", [False, True])
def test_infidelity(lens: Lens, normalize: bool) -> None:
    """The mean squared difference of <perturbation, attribution> and the change of the score."""
    metrics = pytest.importorskip("captum.metrics")
    noise = 0.3 * torch.randn(4, *INPUTS.shape[1:], generator=torch.Generator().manual_seed(1))

    def perturb(images: Tensor) -> tuple[Tensor, Tensor]:
        own = noise.repeat(len(images) // len(noise), 1, 1, 1)
        return own, images - own

    shares = adapter(lens).attribute(INPUTS, target=3)
    model = lens.model.eval()
    found = metrics.infidelity(model, perturb, INPUTS, shares, target=3, n_perturb_samples=4, normalize=normalize)
    expected = []
    with torch.no_grad():
        for image, own in zip(INPUTS, maps(lens, INPUTS, 3), strict=True):
            products = (noise.sum(dim=1) * own).sum(dim=(1, 2)) / 3  # each of 3 channels has a third of the map
            changes = model(image[None])[:, 3] - model(image - noise)[:, 3]
            scale = (products * changes).mean() / (products**2).mean() if normalize else 1.0
            expected.append(((scale * products - changes) ** 2).mean())
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-3)
