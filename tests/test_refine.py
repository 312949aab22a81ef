"""Refinement by self-similarity: the formula by hand and against its twin, its invariants, and what it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import lattice_nets
import naive
import nets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from gamlens import GamlensError, Lens, Refinement, methods, refine
from gamlens.inputs.batch import ViewList
from gamlens.refine import MOST_POSITIONS, SHARP_VIEWS, SPREAD_FACTOR, carried, carry, preset

quiet = pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
SIZE = (24, 32)
TARGETS = [[1, 4, 2], [3]]  # two images, four rows


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def row(*values: float) -> Tensor:
    """One map of one row: (1,1,1,N)."""
    return torch.tensor([[[values]]], dtype=torch.float64)


def block(*positions: Sequence[float]) -> Tensor:
    """The activation of one image at these positions, (1,C,1,N)."""
    return torch.tensor(positions, dtype=torch.float64).T[None, :, None]


def twin(maps: Tensor, views: Sequence[tuple[Sequence[Tensor], bool]], keep: float = 0.5) -> Tensor:
    """Refined maps of one image, (T,H,W), by the loops of `naive`. A view has blocks (C,h,w) and may be mirrored."""
    arrays = [([h.double().numpy() for h in blocks], mirrored) for blocks, mirrored in views]
    return torch.from_numpy(
        np.stack([naive.refined(own.double().numpy(), arrays, SPREAD_FACTOR, keep) for own in maps])
    )


# By hand


def test_one_position_keeps_its_value_and_a_flat_map_becomes_zeros() -> None:
    one = random(1, 3, 1, 1)
    assert carry(row(0.7), one).tolist() == [[[[pytest.approx(0.7)]]]]
    assert carried(row(0.7), [one]).tolist() == [[[[0]]]]
    assert carried(torch.rand(1, 2, 4, 6), [random(1, 3, 1, 1)]).abs().max() == 0


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -7.3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_positions_that_are_all_alike_have_the_mean(value: float, dtype: torch.dtype) -> None:
    """So the carried map is flat, and becomes zeros."""
    maps, alike = torch.rand(2, 3, 20, 15).double(), torch.full((2, 7, 20, 15), value, dtype=dtype)
    expected = maps.mean(dim=(2, 3), keepdim=True).expand_as(maps)
    torch.testing.assert_close(carry(maps, alike).double(), expected, atol=1e-5, rtol=0)
    assert carried(maps, [alike]).abs().max() == 0


def test_a_position_at_the_mean_up_to_rounding_is_like_no_other() -> None:
    """Of the last five positions only rounding is left, which is no direction: they share their own mean."""
    centre, away = 10 * random(1, 9, 1, 1).float(), random(1, 9, 1, 20, seed=1).float()
    activation = torch.cat([centre + away, centre - away, centre.expand(-1, -1, -1, 5)], dim=3)
    assert bool((activation.mean(dim=3, keepdim=True) != centre).any())
    maps = random(1, 1, 1, 45).abs().float()
    torch.testing.assert_close(carry(maps, activation)[..., 40:], maps[..., 40:].mean().expand(1, 1, 1, 5))


def test_groups_keep_their_own_means() -> None:
    """Two groups are opposite to each other once the mean is taken away; four in a plane have right angles, too."""
    two = block((1, 0), (0, 1), (1, 0), (0, 1))
    torch.testing.assert_close(carry(row(1, 2, 4, 8), two), row(2.5, 5, 2.5, 5))
    east, north = (3.0, 0.0), (0.0, 0.5)
    four = block(east, north, (-3, 0), (0, -0.5), east, north, (-3, 0), (0, -0.5))
    torch.testing.assert_close(carry(row(0, 1, 2, 3, 4, 6, 8, 10), four), row(2, 3.5, 5, 6.5, 2, 3.5, 5, 6.5))


def test_a_position_at_the_mean_is_like_no_other() -> None:
    """It has no direction; two of them share their mean."""
    found = carry(row(1, 2, 3, 4), block((5, 1), (5, -1), (5, 0), (5, 0)))
    torch.testing.assert_close(found, row(1, 2, 3.5, 3.5))


def test_three_positions_by_hand() -> None:
    """Without their mean, (5, -7), they are (2, 1), (2, -1), (-4, 0).

    Similarities: 3/5 between the first two, -2/sqrt(5) of both with the third. The mean square over the six pairs is
    (2 * 0.36 + 4 * 0.8) / 6.
    """
    gamma = SPREAD_FACTOR * math.sqrt(3.92 / 6)
    assert gamma > 1
    weight = 0.6**gamma
    expected = row((0.2 + weight * 1.0) / (1 + weight), (1.0 + weight * 0.2) / (1 + weight), 0.5)
    torch.testing.assert_close(carry(row(0.2, 1.0, 0.5), block((7, -6), (7, -8), (1, -7))), expected)


def test_the_exponent_is_at_least_one() -> None:
    """In each of 100 planes a, b with <a,b> = 1/2, -a and -b: 400 positions, whose spread is 0.06."""
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([0.5, math.sqrt(0.75)])
    activation = torch.block_diag(*[torch.stack([a, b, -a, -b]).T] * 100).double()[None, :, None]
    assert SPREAD_FACTOR * math.sqrt((0.25 + 1 + 0.25) / 399) < 1
    maps = row(*torch.rand(400).tolist())
    one, other = maps.view(100, 4)[:, [0, 1, 2, 3]], maps.view(100, 4)[:, [1, 0, 3, 2]]
    torch.testing.assert_close(carry(maps, activation).view(100, 4), (one + 0.5 * other) / 1.5, atol=1e-6, rtol=0)


def test_the_result_is_the_weighted_mean_of_both_maps() -> None:
    """The carried map of the docstring is 1, 1, 0, 0; a quarter of the map is kept."""
    lens = Lens(nn.Sequential(nn.Sequential(nn.Conv2d(2, 2, 1)), nn.Sequential(nn.Conv2d(2, 2, 1))), blocks=["0", "1"])
    with torch.no_grad():
        lens.model[0][0].weight.copy_(torch.eye(2)[:, :, None, None])
    photo = block((1, 0), (1, 0), (0, 1), (0, 1))
    trace = lens.trace(photo.float(), score=lambda output: output.sum(dim=(1, 2, 3)), n=1, refine=1)
    maps = torch.tensor([[[1.0, 0.0, 0.2, 0.2]]])
    torch.testing.assert_close(
        trace.refine(maps, Refinement(1, 0.25)), 0.25 * maps + 0.75 * torch.tensor([[[1.0, 1.0, 0.0, 0.0]]])
    )
    assert trace.refine(maps, False) is maps


# The twin


@pytest.mark.parametrize(
    ("size", "grids"),
    [
        ((12, 17), [(4, 6)]),
        ((12, 17), [(3, 4), (6, 8), (7, 9)]),
        ((6, 5), [(9, 5), (2, 3)]),  # blocks that are larger than the input, or that come back to a coarser grid
        ((5, 5), [(5, 5)]),
        ((16, 16), [(1, 7), (3, 5)]),
    ],
)
def test_random_maps_equal_the_twin(size: tuple[int, int], grids: list[tuple[int, int]]) -> None:
    maps = random(2, 3, *size).abs()
    blocks = [random(2, 4 + number, *grid, seed=number) + 2 for number, grid in enumerate(grids)]
    found = carried(maps, blocks)
    assert found.shape == maps.shape
    for image in range(2):
        expected = twin(maps[image], [([h[image] for h in blocks], False)], keep=0.0)
        torch.testing.assert_close(found[image], expected, atol=1e-10, rtol=0)


@pytest.fixture(scope="module")
def lens() -> Lens:
    return Lens(nets.small())


@pytest.fixture(scope="module")
def batch() -> Tensor:
    return nets.images(2, SIZE, seed=6)


@torch.no_grad()
def earlier(net: Any, batch: Tensor, count: int = 2) -> list[Tensor]:
    """The blocks that a map of `Small` is carried to, computed without hooks: layer2, then layer1."""
    first = net.layer1(net.stem(batch))
    return [net.layer2(first), first][:count]


def same_as_twin(maps: Tensor, plain: Tensor, index: Tensor, views: Any, keep: float = 0.5) -> None:
    """Refined maps (R,H,W) are those of the twin, made of the plain maps and of every view's blocks (B,C,h,w)."""
    for number, image in enumerate(index.tolist()):
        own = [([h[image] for h in blocks], mirrored) for blocks, mirrored in views]
        expected = twin(plain[number : number + 1], own, keep)[0]
        torch.testing.assert_close(maps[number].double(), expected, atol=2e-5, rtol=0)


@quiet
@pytest.mark.parametrize("method", methods.names("block"))
def test_every_method_equals_the_twin(lens: Lens, batch: Tensor, method: str) -> None:
    for n in (1, 2, 3):
        trace = lens.trace(batch, TARGETS, n=n, method=method, refine=2)
        assert trace.index.tolist() == [0, 0, 0, 1]
        found, plain = trace.explain(method, n, refine=2), trace.explain(method, n)
        same_as_twin(found.maps, plain.maps, trace.index, [(earlier(lens.model, batch), False)])
        assert found.blocks.keys() == plain.blocks.keys()
        for name, maps in plain.blocks.items():
            assert torch.equal(found.blocks[name], maps)


@pytest.mark.parametrize("fusion", ["max", "product", [1.0, 3.0]])
@pytest.mark.parametrize("how", [1, True, Refinement(2, 0.2)])
def test_every_fusion_equals_the_twin(
    lens: Lens, batch: Tensor, fusion: str | list[float], how: bool | int | Refinement
) -> None:
    found = lens.classify(batch, TARGETS, n=2, fuse=fusion, refine=how)
    plain = lens.classify(batch, TARGETS, n=2, fuse=fusion)
    chosen = Refinement.parse(how)
    assert chosen is not None
    blocks = earlier(lens.model, batch, chosen.blocks)
    same_as_twin(found.maps, plain.maps, found.index, [(blocks, False)], chosen.keep)


@pytest.mark.parametrize("views", [("flip",), (1.5,), ("flip", 1.5)])
def test_views_equal_the_twin(lens: Lens, batch: Tensor, views: ViewList) -> None:
    found = lens.classify(batch, TARGETS, n=1, views=views, refine=2)
    plain = lens.classify(batch, TARGETS, n=1, views=views)
    seen = []
    for scale in (1.0, 1.5) if 1.5 in views else (1.0,):
        wanted = [round(side * scale) for side in SIZE]
        scaled = F.interpolate(batch, size=wanted, mode="bicubic") if scale != 1 else batch
        for mirrored in (False, True) if "flip" in views else (False,):
            seen.append((earlier(lens.model, scaled.flip(3) if mirrored else scaled), mirrored))
    same_as_twin(found.maps, plain.maps, found.index, seen)


@pytest.mark.parametrize("lattice", ["read", "keep"])
def test_all_positions_of_a_lattice_count(lattice: str) -> None:
    model = lattice_nets.skipping().double()
    lens, photos = lattice_nets.lens_of(model), lattice_nets.images(2, (20, 24)).double()
    assert lens.trace(photos, 1).lattices
    blocks = [model[0](photos).detach()]
    for n in (1, 2):
        found = lens.classify(photos, 1, n=n, lattice=lattice, refine=True)
        plain = lens.classify(photos, 1, n=n, lattice=lattice)
        same_as_twin(found.maps, plain.maps, found.index, [(blocks, False)])


class Tokens(nn.Module):
    """Patches of 8 x 8 pixels as tokens behind a class token, two layers that mix them, a head on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.first = nn.Conv2d(3, 12, 8, 8), nn.Parameter(torch.ones(1, 1, 12))
        self.one, self.two = (nn.Sequential(nn.Linear(12, 12), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(12, nets.CLASSES)

    def layers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        one = self.one(torch.cat([self.first.expand(len(x), -1, -1), tokens], dim=1))
        return one, self.two(one + one.mean(1, keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[1].mean(1))


def test_tokens_lie_where_their_patches_lie() -> None:
    """Five rows of eight patches, and a class token that belongs to none."""
    net, photos = nets.seeded(Tokens), nets.images(2, (40, 64))
    lens = Lens(net, blocks=["one:tokens", "two:tokens"])
    one = net.layers(photos)[0].detach()[:, 1:].transpose(1, 2).reshape(2, 12, 5, 8)
    found, plain = (lens.classify(photos, TARGETS, n=1, refine=how) for how in (1, False))
    same_as_twin(found.maps, plain.maps, found.index, [([one], False)])
    (name,) = found.about["refine"]["blocks"]
    torch.testing.assert_close(lens.trace(photos, n=1, refine=1).earlier[name], one)


def test_a_vision_transformer() -> None:
    net = nets.seeded(VisionTransformer, 32, 8, 4, 4, 16, 32, num_classes=nets.CLASSES)
    nn.init.normal_(net.heads[-1].weight)
    lens, photos, seen = Lens(net), nets.images(2, 32), []
    found, plain = (lens.classify(photos, TARGETS, n=1, refine=how) for how in (True, False))
    names = found.about["refine"]["blocks"]
    assert names == list(lens.blocks[-2:-4:-1])
    for name in names:
        module = net.get_submodule(name.removesuffix(":tokens"))
        handle = module.register_forward_hook(lambda module, args, output: seen.append(output.detach()))
        net(photos)
        handle.remove()
    blocks = [tokens[:, 1:].transpose(1, 2).reshape(2, 16, 4, 4) for tokens in seen]
    same_as_twin(found.maps, plain.maps, found.index, [(blocks, False)])


# Invariants


@pytest.fixture(scope="module")
def some() -> tuple[Tensor, Tensor]:
    """Two maps each for three images, and a block of 6 x 9 positions."""
    return random(3, 2, 6, 9).abs(), random(3, 8, 6, 9, seed=1)


@pytest.mark.parametrize("factor", [1e-12, 1e-3, 40.0, 1e12])
def test_a_positive_factor_on_the_activations_changes_nothing(some: tuple[Tensor, Tensor], factor: float) -> None:
    maps, activation = some
    torch.testing.assert_close(carry(maps, factor * activation), carry(maps, activation))
    single = carry(maps.float(), (factor * activation).float())
    torch.testing.assert_close(single.double(), carry(maps, activation), atol=1e-4, rtol=0)


def test_a_vector_added_to_all_activations_changes_nothing(some: tuple[Tensor, Tensor]) -> None:
    maps, activation = some
    torch.testing.assert_close(carry(maps, activation + random(1, 8, 1, 1)), carry(maps, activation))


def test_channels_and_positions_may_change_places(some: tuple[Tensor, Tensor]) -> None:
    maps, activation = some
    expected = carry(maps, activation)
    torch.testing.assert_close(carry(maps, activation[:, torch.randperm(8)]), expected)
    torch.testing.assert_close(carry(maps.flip(2, 3), activation.flip(2, 3)), expected.flip(2, 3))
    order = torch.randperm(54)
    moved = carry(*(tensor.flatten(2)[:, :, order].view_as(tensor) for tensor in some))
    torch.testing.assert_close(moved, expected.flatten(2)[:, :, order].view_as(expected))


def test_a_batch_equals_its_items_and_its_groups(some: tuple[Tensor, Tensor]) -> None:
    maps, activation = some
    expected = carry(maps, activation)
    for image in range(3):
        for number in range(2):
            own = (slice(image, image + 1), slice(number, number + 1))
            torch.testing.assert_close(carry(maps[own], activation[own[:1]]), expected[own])
    for at_once in (1, 54**2, 2 * 54**2, 2 * 54**2 + 1):
        torch.testing.assert_close(carry(maps, activation, at_once=at_once), expected)


def test_maps_mix_as_they_are_mixed(some: tuple[Tensor, Tensor]) -> None:
    """m' is a weighted mean of m: linear, between the minimum and the maximum, and a constant stays one."""
    maps, activation = some
    one, other = carry(maps, activation).unbind(1)
    torch.testing.assert_close(carry(maps[:, :1] + 3 * maps[:, 1:], activation)[:, 0], one + 3 * other)
    assert bool((one <= maps[:, 0].amax()).all())
    assert bool((one >= maps[:, 0].amin()).all())
    torch.testing.assert_close(carry(torch.full_like(maps, 0.3), activation), torch.full_like(maps, 0.3))


def test_inputs_are_not_modified_and_need_no_layout(some: tuple[Tensor, Tensor]) -> None:
    maps, activation = (tensor.clone() for tensor in some)
    kept = [tensor.clone() for tensor in some]
    expected = carried(maps, [activation, activation])
    last = activation.contiguous(memory_format=torch.channels_last)
    part = torch.cat([activation, activation], dim=1)[:, ::2]
    torch.testing.assert_close(carried(maps, [last, last]), expected)
    torch.testing.assert_close(carry(maps, part), carry(maps, part.contiguous()))
    for tensor, before in zip((maps, activation), kept, strict=True):
        assert torch.equal(tensor, before)


@pytest.mark.parametrize(("dtype", "near"), [(torch.float16, 0.005), (torch.bfloat16, 0.05)])
def test_half_precision_is_close(some: tuple[Tensor, Tensor], dtype: torch.dtype, near: float) -> None:
    maps, activation = some
    found = carried(maps.to(dtype), [activation.to(dtype)])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), carried(maps, [activation]), atol=near, rtol=0)
    large = carried(maps.float(), [(activation * 6e3).clamp(-6e4, 6e4).to(torch.float16)])
    assert bool(large.isfinite().all())


def test_float64_stays_and_float32_is_close(some: tuple[Tensor, Tensor]) -> None:
    maps, activation = some
    found = carried(maps, [activation])
    assert found.dtype == torch.float64
    single = carried(maps.float(), [activation.float()])
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), found, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_extreme_activations_give_finite_maps(dtype: torch.dtype) -> None:
    maps, wide = torch.rand(1, 1, 8, 8), random(1, 3, 4, 4)
    lonely = torch.zeros(1, 3, 4, 4)
    lonely[0, 1, 2, 3] = 1
    for activation in (torch.zeros(1, 3, 4, 4), lonely, wide * torch.finfo(dtype).max / 10, wide * 1e-30):
        found = carried(maps, [activation.to(dtype)])
        assert bool(found.isfinite().all())
        assert found.min() >= 0
        assert found.max() <= 1


def test_only_the_image_with_nan_is_lost(some: tuple[Tensor, Tensor]) -> None:
    maps, activation = some
    broken = activation.clone()
    broken[1, 0, 0, 0] = torch.nan
    found = carried(maps, [broken])
    torch.testing.assert_close(found[[0, 2]], carried(maps, [activation])[[0, 2]])
    assert found[1].abs().max() == 0


# Many positions


@pytest.mark.parametrize("grid", [(41, 40), (60, 80), (128, 128), (1, 5000), (2, 3000), (300, 7)])
def test_a_large_block_is_pooled_to_a_grid_of_about_its_shape(grid: tuple[int, int]) -> None:
    found = carry(torch.rand(1, 1, 16, 16), torch.randn(1, 2, *grid))
    height, width = found.shape[-2:]
    assert height <= grid[0]
    assert width <= grid[1]
    assert 0.45 * MOST_POSITIONS < height * width <= MOST_POSITIONS
    factor = math.sqrt(MOST_POSITIONS / (grid[0] * grid[1]))
    assert abs(height - max(1, grid[0] * factor)) <= 1
    assert abs(width - min(grid[1] * factor, MOST_POSITIONS)) <= 1


def test_a_block_of_the_most_positions_is_not_pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refine, "MOST_POSITIONS", 30)
    assert carry(torch.rand(1, 1, 9, 9), random(1, 2, 5, 6)).shape == (1, 1, 5, 6)
    assert carry(torch.rand(1, 1, 9, 9), random(1, 2, 5, 7)).shape == (1, 1, 4, 6)


def test_pooling_a_smooth_block_changes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations and a map without details: the pooled grid of 12 x 18 holds nearly all that one of 20 x 30 does."""
    maps = F.interpolate(random(2, 2, 3, 4).abs(), (40, 60), mode="bicubic")
    activation = F.interpolate(random(2, 6, 3, 4, seed=1), (20, 30), mode="bicubic")
    whole = carried(maps, [activation])
    monkeypatch.setattr(refine, "MOST_POSITIONS", 12 * 18)
    pooled = carried(maps, [activation])
    assert pooled.min() >= 0
    assert pooled.max() <= 1
    assert not torch.equal(pooled, whole)
    assert float((pooled - whole).abs().mean()) < 0.04
    torch.testing.assert_close(pooled, carried(maps, [F.adaptive_avg_pool2d(activation, (12, 18))]))


def test_a_network_with_large_blocks(monkeypatch: pytest.MonkeyPatch, lens: Lens, batch: Tensor) -> None:
    """The first block has 6 x 8 positions; 4 x 6 remain."""
    monkeypatch.setattr(refine, "MOST_POSITIONS", 24)
    found, plain = lens.classify(batch, TARGETS, n=1, refine=2), lens.classify(batch, TARGETS, n=1)
    second, first = earlier(lens.model, batch)
    small = F.adaptive_avg_pool2d(first, (int(6 * math.sqrt(0.5)), int(8 * math.sqrt(0.5))))
    same_as_twin(found.maps, plain.maps, found.index, [([second, small], False)])


# What can be asked for


@pytest.mark.parametrize("views", [(), ("flip", 1.5)])
def test_keep_from_nothing_to_everything(lens: Lens, batch: Tensor, views: ViewList) -> None:
    trace = lens.trace(batch, TARGETS, refine=2, views=views)
    plain, whole = trace.explain(), trace.explain(refine=Refinement(2, 0))
    assert torch.equal(trace.explain(refine=Refinement(2, 1)).maps, plain.maps)
    assert not torch.allclose(whole.maps, plain.maps, atol=0.05)
    if not views:
        assert torch.equal(whole.maps.amax(dim=(1, 2)), torch.ones(4))
        assert whole.maps.amin() == 0
    for keep in (0.25, 0.5):
        mixed = trace.explain(refine=Refinement(2, keep)).maps
        torch.testing.assert_close(mixed, keep * plain.maps + (1 - keep) * whole.maps, atol=1e-6, rtol=0)


@pytest.mark.parametrize("nothing", [False, 0, None])
def test_no_refinement_is_the_plain_map(lens: Lens, batch: Tensor, nothing: bool | int | None) -> None:
    found = lens.classify(batch, 1, refine=nothing)
    assert torch.equal(found.maps, lens.classify(batch, 1).maps)
    assert "refine" not in found.about
    trace = lens.trace(batch, 1, refine=nothing)
    assert trace.earlier == {}
    assert trace.refining_blocks(nothing) == ()


def test_true_stands_for_two_blocks_and_half(lens: Lens, batch: Tensor) -> None:
    found = lens.classify(batch, TARGETS, refine=True)
    for same in (2, Refinement(), Refinement(2, 0.5)):
        assert torch.equal(lens.classify(batch, TARGETS, refine=same).maps, found.maps)
    assert torch.equal(lens.classify(batch, TARGETS, sharp=True).maps, found.maps)
    assert found.about["refine"] == {"blocks": ["layer2", "layer1"], "keep": 0.5}
    assert lens.classify(batch, refine=Refinement(1, 1)).about["refine"] == {"blocks": ["layer2"], "keep": 1.0}


def test_sharp_views_are_refined_views(lens: Lens, batch: Tensor) -> None:
    expected = lens.classify(batch, 1, refine=True, views=SHARP_VIEWS)
    found = lens.classify(batch, 1, sharp="views")
    assert torch.equal(found.maps, expected.maps)
    assert found.about == expected.about
    other = batch.flip(2)
    for calls in (
        (lens.compare(batch, other, sharp="views"), lens.compare(batch, other, refine=True, views=SHARP_VIEWS)),
        (lens.compare(batch, other, sharp=True), lens.compare(batch, other, refine=True)),
    ):
        assert torch.equal(calls[0].x.maps, calls[1].x.maps)
        assert torch.equal(calls[0].y.maps, calls[1].y.maps)


def test_presets() -> None:
    assert preset(False, 3, "flip") == (3, "flip")
    assert preset(True, False, (1.5,)) == (True, (1.5,))
    assert preset("views", False, ()) == (True, SHARP_VIEWS)
    assert preset("views", 0, []) == (True, SHARP_VIEWS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"refine": 3},
            r"refine=3 blocks were asked for, and the model has 2 before the last \(layer1, layer2\): give at most 2",
        ),
        ({"refine": -1}, "refine=-1: give the number of blocks to refine by, 1 or more"),
        ({"refine": 1.5}, r"refine=1\.5: give the number of blocks"),
        ({"refine": "2"}, "refine='2': give the number of blocks"),
        ({"refine": True, "method": "input_gradient"}, r"reads the pixels, not blocks.*leave refine out"),
        ({"refine": True, "method": "guided_backprop"}, r"reads the pixels, not blocks.*leave refine out"),
        ({"sharp": True, "method": "guided_backprop"}, r"reads the pixels, not blocks"),
        ({"sharp": True, "refine": True}, "sharp= stands for refine=True: leave one of them out"),
        ({"sharp": "views", "refine": 1}, "sharp= stands for refine=True: leave one of them out"),
        ({"sharp": "views", "views": "flip"}, r"sharp='views' sets the views: leave views out, or give sharp=True"),
        ({"sharp": "views", "views": (2.0,)}, "sharp='views' sets the views"),
        ({"sharp": "nonsense"}, "sharp='nonsense': give True or False, or 'views'"),
    ],
)
@pytest.mark.parametrize("call", ["classify", "compare"])
def test_what_cannot_be_asked_for(lens: Lens, batch: Tensor, options: dict[str, Any], said: str, call: str) -> None:
    with pytest.raises(GamlensError, match=said):
        getattr(lens, call)(batch, **({"y": batch.flip(2)} if call == "compare" else {}), **options)


@pytest.mark.parametrize("keep", [-0.1, 1.01, math.nan, math.inf, "0.5", None])
def test_a_weight_outside_of_its_range(keep: Any) -> None:
    with pytest.raises(GamlensError, match=r"keep=.*lies between 0 and 1"):
        Refinement(2, keep)


@pytest.mark.parametrize("blocks", [0, -2, True, 2.0, None])
def test_a_number_of_blocks_that_is_none(blocks: Any) -> None:
    with pytest.raises(GamlensError, match="give the number of blocks to refine by"):
        Refinement(blocks)


def test_a_model_of_one_block(batch: Tensor) -> None:
    alone = Lens(nets.small(), blocks=["layer3"])
    for call in (lambda: alone.classify(batch, n=1, refine=True), lambda: alone.trace(batch, n=1).explain(refine=1)):
        with pytest.raises(GamlensError, match=r"this model has one block only: leave refine out, or name earlier"):
            call()
    assert alone.classify(batch, n=1).maps.shape == (2, *SIZE)


def test_a_model_of_two_blocks(batch: Tensor) -> None:
    two = Lens(nets.small(), blocks=["layer2", "layer3"])
    usual, one = (two.classify(batch, TARGETS, n=1, refine=how) for how in (True, 1))
    assert torch.equal(usual.maps, one.maps)
    assert usual.about["refine"] == one.about["refine"] == {"blocks": ["layer2"], "keep": 0.5}
    with pytest.raises(GamlensError, match=r"refine=3 blocks were asked for, and the model has 1 before the last"):
        two.classify(batch, refine=3)


def test_blocks_are_counted_backwards_from_the_one_before_the_last() -> None:
    for count, expected in ((1, "c"), (2, "cb"), (3, "cba")):
        assert Refinement(count).choose(tuple("abcd")) == tuple(expected)


class Mended(nets.Small):
    """NaN in the first block, which the network then replaces by zeros."""

    def features(self, x: Tensor) -> Tensor:
        return self.layer3(self.layer2(self.layer1(self.stem(x)).nan_to_num()))


@pytest.mark.parametrize("calls", ["classify", "compare", "remember"])
def test_nan_in_an_earlier_block_alone_is_an_error(batch: Tensor, calls: str) -> None:
    net = nets.seeded(Mended)
    with torch.no_grad():
        net.layer1[1].bias[0] = torch.nan
    lens = Lens(net, blocks=["layer1", "layer2", "layer3"])
    call: dict[str, Callable[[int], object]] = {
        "classify": lambda how: lens.classify(batch, 1, n=1, refine=how),
        "compare": lambda how: lens.compare(batch, batch.flip(2), n=1, refine=how),
        "remember": lambda how: lens.remember(batch, refine=how),
    }
    for how in (0, 1):
        call[calls](how)
    with pytest.raises(GamlensError, match="Block 'layer1' of Mended has values that are not finite"):
        call[calls](2)
