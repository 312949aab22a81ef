"""Contrasts and groups: differences and means of similarities, explained by one forward of each image."""

from __future__ import annotations

import warnings

import nets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from gamlens import GamlensError, GamlensWarning, Lens
from gamlens.pairs import set_trace
from gamlens.trace import Trace

IMAGES = nets.images(4)


@pytest.fixture(scope="module")
def net() -> Lens:
    return Lens(nets.small())


def forwards(lens: Lens) -> tuple[list[int], object]:
    seen: list[int] = []
    return seen, lens.model.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))


def gradients(lens: Lens, number: int, value: object) -> tuple[Tensor, Tensor]:
    """The last block of one image, and the gradient of value(embedding of that image), by plain autograd."""
    h = lens.model.features(IMAGES[number : number + 1]).detach().requires_grad_()
    (g,) = torch.autograd.grad(value(h.mean(dim=(2, 3))[0]), h)  # type: ignore[operator]
    return h.detach(), g


def gam(h: Tensor, g: Tensor) -> Tensor:
    return (h.clamp(min=0) * g.clamp(min=0)).sum(dim=1)


def embeddings(lens: Lens) -> Tensor:
    return lens.model.features(IMAGES).mean(dim=(2, 3)).detach()


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return F.cosine_similarity(a, b, dim=-1)


def test_a_contrast_is_the_map_of_the_difference(net: Lens) -> None:
    """Twin: plain autograd of s(x,a) - s(x,b) for each of the three images."""
    found = net.contrast(*IMAGES[:3].split(1), method="gam", n=1)
    e = embeddings(net)
    assert float(found.scores) == pytest.approx(float(cosine(e[0], e[1]) - cosine(e[0], e[2])))
    assert float(found.score_a) == pytest.approx(float(cosine(e[0], e[1])))
    values = {
        "x": lambda own: cosine(own, e[1]) - cosine(own, e[2]),
        "a": lambda own: cosine(e[0], own) - cosine(e[0], e[2]),
        "b": lambda own: cosine(e[0], e[1]) - cosine(e[0], own),
    }
    for number, (side, value) in enumerate(values.items()):
        h, g = gradients(net, number, value)
        up, down = (F.interpolate(gam(h, own)[None], (64, 64), mode="bicubic")[0].clamp(min=0) for own in (g, -g))
        wanted = (up - down) / max(float(up.max()), float(down.max()))
        torch.testing.assert_close(getattr(found, side).maps.double(), wanted, rtol=0, atol=1e-5, msg=side)


def test_a_contrast_with_itself_is_zero(net: Lens) -> None:
    with pytest.warns(match="flat"):
        found = net.contrast(IMAGES[:1], IMAGES[1:2], IMAGES[1:2], method="gam", n=1)
    assert float(found.scores) == 0
    assert not found.x.maps.any()
    torch.testing.assert_close(found.a.maps, -found.b.maps)


def test_exchanging_a_and_b_changes_the_sign(net: Lens) -> None:
    x, a, b = IMAGES[:3].split(1)
    one, other = net.contrast(x, a, b, method="gam"), net.contrast(x, b, a, method="gam")
    torch.testing.assert_close(one.x.maps, -other.x.maps)
    torch.testing.assert_close(one.a.maps, -other.b.maps)
    torch.testing.assert_close(one.scores, -other.scores)


def test_one_forward_of_each_image(net: Lens) -> None:
    seen, hook = forwards(net)
    net.contrast(*IMAGES[:3].split(1), method="gam")
    assert sum(seen) == 3
    seen.clear()
    several = net.trace_set(IMAGES)
    assert sum(seen) == 4
    several.contrast(0, 1, 2), several.contrast(3, 1, 2, score="dot"), several.group(method="grad_cam_pp")
    assert sum(seen) == 4
    hook.remove()  # type: ignore[attr-defined]


def test_several_contrasts_and_one_image_for_all(net: Lens) -> None:
    found = net.contrast(IMAGES[:1], IMAGES[1:3], IMAGES[3:], method="gam", n=2)
    assert (len(found), len(found.x), len(found.a)) == (2, 2, 2)
    for number in range(2):  # each contrast has its own map on the image that serves for both
        alone = net.contrast(IMAGES[:1], IMAGES[1 + number : 2 + number], IMAGES[3:], method="gam", n=2)
        for side in ("x", "a", "b"):
            torch.testing.assert_close(getattr(found, side).maps[number], getattr(alone, side).maps[0], msg=side)


def test_numbers_of_other_packages_name_images(net: Lens) -> None:
    several = net.trace_set(IMAGES)
    wanted = several.contrast([0, 1], [2, 3], [3, 2], method="gam")
    found = several.contrast(torch.tensor([0, 1]), np.array([2, 3]), [3, np.int64(2)], method="gam")  # type: ignore[arg-type]
    torch.testing.assert_close(found.x.maps, wanted.x.maps, rtol=0, atol=0)
    assert len(several.contrast(torch.tensor(0), np.int64(1), 2, method="gam")) == 1  # type: ignore[arg-type]


def test_an_image_may_have_two_roles(net: Lens) -> None:
    several = net.trace_set(IMAGES)
    with pytest.warns(match="flat"):
        found = several.contrast(0, 1, 1, method="gam", n=1)
    assert not found.x.maps.any()
    torch.testing.assert_close(found.a.maps, -found.b.maps)
    assert found.a.maps.any()
    with pytest.raises(GamlensError, match="give as many"):
        net.contrast(IMAGES[:3], IMAGES[:2], IMAGES[:1])


def test_images_that_are_the_same_by_their_directions_have_no_contrast() -> None:
    """A brighter copy has the same cosine with everything: what is left are rounding errors, not a map of them."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    several = Lens(net, blocks=["1"]).trace_set(torch.cat([IMAGES[:2], 3 * IMAGES[1:2]]).double())
    with pytest.warns(match="flat"):
        found = several.contrast(0, 1, 2, method="gam", n=1)
    assert float(found.scores) == pytest.approx(0, abs=1e-12)
    assert not found.x.maps.any()
    assert several.contrast(0, 1, 2, method="gam", n=1, score="dot").x.maps.any()


def test_contrasts_keep_the_rows_that_they_show(net: Lens, monkeypatch: pytest.MonkeyPatch) -> None:
    """One image against many: the gradients of all other images are dropped at once, not when all turns are done."""
    kept: list[int] = []
    joined = set_trace._joined

    def count(traces: list[Trace], record: object) -> Trace:
        kept.extend(len(gradient) for trace in traces for gradient in trace.gradients.values())
        return joined(traces, record)  # type: ignore[arg-type]

    monkeypatch.setattr(set_trace, "_joined", count)
    net.trace_set(IMAGES).contrast([0, 0], [1, 2], [3, 3], method="gam", n=1)
    assert kept
    assert set(kept) == {3}


def test_a_group_is_the_mean_over_pairs(net: Lens) -> None:
    found = net.group(IMAGES, method="gam", n=1)
    e = embeddings(net)
    table = cosine(e[:, None], e[None])
    torch.testing.assert_close(found.pair_scores, table)
    means = (table.sum(dim=1) - 1) / 3
    torch.testing.assert_close(found.images.scores, means, check_dtype=False)
    assert found.score == pytest.approx(float(means.mean()))
    for number in range(4):
        others = [other for other in range(4) if other != number]
        h, g = gradients(net, number, lambda own, others=others: cosine(own[None], e[others]).mean())
        sized = F.interpolate(gam(h, g)[None], (64, 64), mode="bicubic")[0, 0].clamp(min=0)
        wanted = (sized - sized.min()) / (sized.max() - sized.min())
        torch.testing.assert_close(found.images.maps[number].double(), wanted, rtol=0, atol=1e-5)


def test_a_group_of_two_is_a_pair(net: Lens) -> None:
    group, pair = net.group(IMAGES[:2], method="gam"), net.compare(IMAGES[:1], IMAGES[1:2], method="gam")
    torch.testing.assert_close(group.images.maps[0], pair.x.maps[0])
    torch.testing.assert_close(group.images.maps[1], pair.y.maps[0])


def test_scores_without_a_gradient_are_named() -> None:
    """The cosine of two images that are the same is 1 and has no gradient: a warning says which images they are."""
    lens = Lens(nets.small())
    batch = torch.cat([IMAGES[:2], IMAGES[:1]])
    with pytest.warns(GamlensWarning) as said:
        lens.trace_set(batch).group()
    assert [str(one.message) for one in said] == [
        "image 0 and image 2: both embeddings point the same way or opposite ways, so the cosine is 1 or -1 and has no "
        "gradient; the maps leave this out. The score 'dot' shows what the images share."
    ]
    with pytest.warns(GamlensWarning) as said:
        lens.trace_set(batch).contrast(0, 1, 2, method="gam")
    assert str(said[0].message).startswith("image 0 and image 2: both embeddings")
    with warnings.catch_warnings(action="error"):
        lens.trace_set(IMAGES).group()
        lens.trace_set(batch).group(score="dot")


def test_saved_and_drawn(net: Lens, tmp_path: object) -> None:
    contrast, group = net.contrast(*IMAGES[:3].split(1)), net.group(IMAGES)
    files = contrast.save(f"{tmp_path}/contrast") + group.save(f"{tmp_path}/group")
    assert any(name.endswith("explanation.json") for name in files)
    for picture, images in ((contrast.overlay(), 3), (group.overlay(), 4)):
        assert isinstance(picture, Image.Image)
        assert picture.width >= 64 * images


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda lens: lens.group(IMAGES[:1]), "two images or more"),
        (lambda lens: lens.trace_set(IMAGES).contrast(0, 1, 9), "There is no image 9"),
        (lambda lens: lens.trace_set(IMAGES).contrast([0, 1], 1, 2), "give as many"),
        (lambda lens: lens.trace_set(IMAGES).contrast([], [], []), "No image is named"),
        (lambda lens: lens.trace_set(IMAGES).contrast(0.5, 1, 2), "by their numbers"),
        (lambda lens: lens.contrast(*IMAGES[:3].split(1), sign="up"), "sign"),
        (lambda lens: lens.contrast(*IMAGES[:3].split(1), method="vdsn"), "explains pairs of images only"),
        (lambda lens: lens.group(IMAGES, method="vdsn"), "explains pairs of images only"),
        (lambda lens: lens.contrast(IMAGES[:1], IMAGES[1:2], nets.images(1, 32)), "one size"),
    ],
)
def test_errors(net: Lens, call: object, message: str) -> None:
    with pytest.raises(GamlensError, match=message):
        call(net)  # type: ignore[operator]
