"""Maps with a sign: what raises a score, what lowers it, and the difference of both, on one scale."""

from __future__ import annotations

import nets
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gamlens import METHODS, GamlensError, Lens
from gamlens.explanation import Explanation

X, Y = nets.images(2), nets.images(2, seed=1)
WITH_SIGN = [name for name, entry in METHODS.items() if entry.has_sign and entry.kind == "block"]
WITHOUT = [name for name, entry in METHODS.items() if not entry.has_sign and entry.kind == "block"]


def negated() -> Lens:
    net = nets.small()
    with torch.no_grad():
        net.fc.weight.neg_(), net.fc.bias.neg_()
    return Lens(net)


def three(explain: object, **options: object) -> tuple[Explanation, Explanation, Explanation]:
    found = [explain(sign=sign, **options) for sign in ("positive", "negative", "both")]  # type: ignore[operator]
    return found[0], found[1], found[2]


@pytest.mark.parametrize("method", WITH_SIGN)
@pytest.mark.parametrize("n", [1, 2])
def test_both_is_what_raises_minus_what_lowers(method: str, n: int) -> None:
    trace = Lens(nets.small()).trace(X, 3)
    up, down, both = three(trace.explain, method=method, n=n)
    torch.testing.assert_close(both.maps, up.maps - down.maps)
    assert both.signed
    assert not up.signed
    for block, maps in up.blocks.items():
        largest = torch.maximum(maps.amax(dim=(1, 2)), down.blocks[block].amax(dim=(1, 2)))
        torch.testing.assert_close(largest, torch.ones_like(largest))
    assert min(float(up.maps.min()), float(down.maps.min())) >= 0


@pytest.mark.parametrize("method", WITH_SIGN)
def test_what_lowers_a_score_raises_the_negated_one(method: str) -> None:
    a, b = (lens.trace(X, 3).explain(method, 2, sign=sign) for lens, sign in
            ((Lens(nets.small()), "negative"), (negated(), "positive")))  # fmt: skip
    torch.testing.assert_close(a.maps, b.maps)
    for block in a.scales:
        torch.testing.assert_close(a.scales[block], b.scales[block])


def test_positive_has_the_order_of_the_plain_map() -> None:
    """The plain map is the positive one, stretched to [0,1]; its raw values are map x scale."""
    trace = Lens(nets.small()).trace(X, 3)
    plain, up = trace.explain("gam", 1), trace.explain("gam", 1, sign="positive")
    for row in range(2):
        own = up.maps[row] - up.maps[row].min()
        torch.testing.assert_close(plain.maps[row], own / own.max(), atol=1e-5, rtol=0)


def test_raw_values_are_map_times_scale() -> None:
    trace = Lens(nets.small()).trace(X, 3)
    (block,) = (found := trace.explain("gam", 1, sign="both")).scales
    raw = (trace.activations[block].relu() * trace.gradients[block].relu()).sum(dim=1)
    raw -= (trace.activations[block].relu() * (-trace.gradients[block]).relu()).sum(dim=1)
    mean = (found.maps * found.scales[block][:, None, None]).mean(dim=(1, 2))
    torch.testing.assert_close(mean.double(), raw.mean(dim=(1, 2)), rtol=0.05, atol=0.05 * float(raw.abs().mean()))


@pytest.mark.parametrize("method", [*WITH_SIGN, "vdsn", "vdsn_max"])
def test_pairs(method: str) -> None:
    pair = Lens(nets.small()).trace_pair(X, Y)
    up, down, both = three(pair.explain, method=method, n=1)
    for side in ("x", "y"):
        maps = [getattr(found, side).maps for found in (up, down, both)]
        torch.testing.assert_close(maps[2], maps[0] - maps[1])
        assert float(maps[2].abs().max()) <= 1


@pytest.mark.parametrize("method", [*WITH_SIGN, "vdsn", "vdsn_max"])
def test_swapping_the_images_swaps_the_maps(method: str) -> None:
    lens = Lens(nets.small())
    one, other = (lens.compare(*pair, method=method, n=1, sign="both") for pair in ((X, Y), (Y, X)))
    torch.testing.assert_close(one.x.maps, other.y.maps, rtol=0, atol=1e-6)
    torch.testing.assert_close(one.y.maps, other.x.maps, rtol=0, atol=1e-6)
    assert not torch.allclose(one.x.maps, one.y.maps, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["attention_gam", "chefer", "legrad", "grad_eclip"])
def test_attention(name: str) -> None:
    from torchvision.models import VisionTransformer

    net = nets.seeded(lambda: VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=4))
    nn.init.normal_(net.heads.head.weight)  # type: ignore[union-attr]
    trace = Lens(net).trace(nets.images(1, 32), 1, method=name)
    up, down, both = three(trace.explain, method=name)
    torch.testing.assert_close(both.maps, up.maps - down.maps)
    assert both.maps.any()


def test_views_and_refinement() -> None:
    lens = Lens(nets.small())
    for options in ({"views": ("flip",)}, {"refine": True}):
        up, down, both = three(lambda options=options, **sign: lens.classify(X, 3, method="gam", **options, **sign))
        torch.testing.assert_close(both.maps, up.maps - down.maps, atol=1e-6, rtol=0)
        assert both.maps.any()


def test_raw_values_are_means_over_views() -> None:
    """Values of a larger input count by area: four of its positions are as large as one of the plain input."""
    lens = Lens(nets.small())
    trace = lens.trace(X, 3, n=1, views=("flip", 2.0))
    (block,) = (found := trace.explain("gam", 1, sign="positive")).scales
    raw = []
    for view, mirrored in ((trace, False), *trace.views):
        h, g = view.activations[block], view.gradients[block]
        own = (h.relu() * g.relu()).sum(dim=1)
        own = own.flip(2) if mirrored else own
        sized = F.interpolate(own[:, None], (64, 64), mode="bicubic")[:, 0].clamp(min=0)
        raw.append(sized * own[0].numel() / trace.activations[block][0, 0].numel())
    wanted = torch.stack(raw).mean(dim=0)
    torch.testing.assert_close(found.maps * found.scales[block][:, None, None], wanted.float(), rtol=1e-4, atol=1e-7)


def test_no_further_forward() -> None:
    lens, seen = Lens(nets.small()), []
    pair, trace = lens.trace_pair(X, Y), lens.trace(X, 3)
    lens.model.register_forward_pre_hook(lambda *_: seen.append(1))
    pair.explain(sign="both"), trace.explain(sign="both"), trace.contrast(3, 4).explain(sign="both")
    assert not seen
    lens.compare(X, Y, sign="both")
    signed = len(seen)
    lens.compare(X, Y)
    assert len(seen) == 2 * signed


def test_saved_and_read_back(tmp_path: object) -> None:
    found = Lens(nets.small()).classify(X, 3, sign="both")
    found.save(f"{tmp_path}/a")
    again = Explanation.load(f"{tmp_path}/a")
    assert again.signed
    torch.testing.assert_close(again.maps, found.maps)
    for block, scales in found.scales.items():
        torch.testing.assert_close(again.scales[block], scales)


def test_a_class_rather_than_another() -> None:
    lens = Lens(nets.small(), labels=[f"k{number}" for number in range(10)])
    found = lens.classify(X, "k3", against="k4", method="gam", n=1, sign="both")
    net = nets.small()
    with torch.no_grad():
        net.fc.weight[3] -= net.fc.weight[4]
        net.fc.bias[3] -= net.fc.bias[4]
    twin = Lens(net).classify(X, 3, method="gam", n=1, sign="both")
    torch.testing.assert_close(found.maps, twin.maps)
    torch.testing.assert_close(found.scores, twin.scores)
    assert found.names[0] == "k3 rather than k4"
    with pytest.raises(GamlensError, match="none for a contrast"):
        lens.classify(X, 3, against=4, method="eigen_cam")
    with pytest.warns(match="flat"):
        assert not lens.classify(X, 3, against=3, sign="both").maps.any()


@pytest.mark.parametrize("method", WITHOUT)
def test_methods_without_a_sign(method: str) -> None:
    with pytest.raises(GamlensError, match="has no signed maps"):
        Lens(nets.small()).trace(X, 3).explain(method, sign="both")


def test_unknown_sign() -> None:
    with pytest.raises(GamlensError, match="sign"):
        Lens(nets.small()).trace(X, 3).explain("gam", sign="up")
