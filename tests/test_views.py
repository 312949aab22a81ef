"""Views: maps averaged over scales and mirrored copies."""

from __future__ import annotations

import nets
import pytest
import torch
from PIL import Image
from torch import Tensor

from gamlens import GamlensError, Lens, Transform, fuse
from gamlens.inputs.batch import Views


def block_maps(lens: Lens, batch: Tensor, target: int, n: int, size: tuple[int, int], flip: bool) -> list[Tensor]:
    """Each block's normalised map of one view, resized straight to `size` and mirrored back, by hand."""
    trace = lens.trace(batch, target, n=n)
    raws = [trace.raw("gam", name) for name in trace.blocks]
    return [fuse.normalize(fuse.resize(raw.flip(2) if flip else raw, size)) for raw in raws]


@pytest.mark.parametrize(
    ("views", "scales", "flips"), [(("flip",), (1.0,), 2), (("flip", 1.5), (1.0, 1.5), 2), ((2,), (1.0, 2.0), 1)]
)
def test_a_map_is_the_mean_over_views(views: tuple[str | float, ...], scales: tuple[float, ...], flips: int) -> None:
    lens, batch = Lens(nets.small()), nets.images(2, seed=4)
    size = (int(batch.shape[2]), int(batch.shape[3]))
    seen = []
    for scale in scales:
        wanted = [round(side * scale) for side in size]
        scaled = torch.nn.functional.interpolate(batch, size=wanted, mode="bicubic") if scale != 1 else batch
        for flip in (False, True)[:flips]:
            seen.append(block_maps(lens, scaled.flip(3) if flip else scaled, 3, 2, size, flip))
    blocks = [torch.stack(maps).mean(0) for maps in zip(*seen, strict=True)]
    expected = torch.stack(blocks).mean(0).float()
    result = lens.classify(batch, 3, views=views)
    torch.testing.assert_close(result.maps, expected, atol=1e-6, rtol=0)
    assert torch.equal(result.scores, lens.classify(batch, 3).scores)
    assert result.about["views"] == {"scales": list(scales), "mirrored": flips == 2}


def test_no_views_is_the_plain_map() -> None:
    lens, batch = Lens(nets.small()), nets.images(2)
    assert torch.equal(lens.classify(batch, views=()).maps, lens.classify(batch).maps)
    assert "views" not in lens.classify(batch).about


def test_a_mirrored_image_has_the_mirrored_map() -> None:
    """With its mirrored copy among the views, an image and its mirror image have maps that mirror one another."""
    lens, batch = Lens(nets.small()), nets.images(2)
    plain, turned = (lens.classify(images, 1, views="flip").maps for images in (batch, batch.flip(3)))
    torch.testing.assert_close(plain, turned.flip(2), atol=1e-6, rtol=0)


def test_views_of_a_pair() -> None:
    lens, x, y = Lens(nets.small()), nets.images(2), nets.images(2, seed=9)
    pair = lens.compare(x, y, views=("flip",), n=1)
    plain, turned = lens.compare(x, y, n=1), lens.compare(x.flip(3), y.flip(3), n=1)
    for side in ("x", "y"):
        expected = (getattr(plain, side).maps + getattr(turned, side).maps.flip(2)) / 2
        torch.testing.assert_close(getattr(pair, side).maps, expected, atol=1e-5, rtol=0)
    assert torch.equal(pair.scores, plain.scores)


def test_the_top_class_of_the_plain_view_is_explained_in_every_view() -> None:
    lens, batch = Lens(nets.small()), nets.images(3)
    trace = lens.trace(batch, views=("flip", 0.75))
    assert all(torch.equal(view.targets, trace.targets) for view, _ in trace.views)
    other = trace.retarget(2).explain()
    torch.testing.assert_close(other.maps, lens.classify(batch, 2, views=("flip", 0.75)).maps, atol=1e-6, rtol=0)


def test_one_forward_a_view() -> None:
    lens, counted = Lens(nets.small()), []
    lens.model.register_forward_pre_hook(lambda module, args: counted.append(tuple(args[0].shape[2:])))
    lens.classify(nets.images(2), views=("flip", 0.5))
    assert counted == [(64, 64), (64, 64), (32, 32), (32, 32)]


def test_a_photo_is_decoded_at_each_scale() -> None:
    """A larger view is made from the photo, not from the small input."""
    lens = Lens(nets.small(), transform=Transform((64, 64)))
    photo = Image.effect_noise((200, 160), 80).convert("RGB")
    trace = lens.trace(photo, 0, views=(2.0,))
    big = Lens(nets.small(), transform=Transform((128, 128))).trace(photo, 0)
    name = trace.blocks[-1]
    torch.testing.assert_close(trace.views[0][0].activations[name], big.activations[name])


@pytest.mark.parametrize("views", [("mirror",), (0.0,), (100,), (None,)])
def test_bad_views(views: tuple[object, ...]) -> None:
    with pytest.raises(GamlensError, match="views= takes 'flip' and scales"):
        Views.parse(views)  # type: ignore[arg-type]
