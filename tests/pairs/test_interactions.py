"""Interactions: the parts of a score add up to it, whatever the embedding; what is missing is measured by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nets
import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_mode
from pair_nets import Head, X, Y, traced, transformer
from torch import Tensor, nn
from torchvision.models import VisionTransformer, resnet18

from gamlens import GamlensError, GamlensWarning, Lens
from gamlens.inputs.frame import Frame
from gamlens.pairs import embedding_parts
from gamlens.pairs.interactions import Interactions
from gamlens.pairs.pair_trace import PairTrace


class GeneralisedMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=1e-6).pow(3).mean(dim=(2, 3), keepdim=True).pow(1 / 3)


def blocks(pair: PairTrace) -> list[Tensor]:
    return [pair._activations(side)[pair.blocks[-1]][0] for side in (0, 1)]


def naive_parts(net: Head, h: Tensor, start: Tensor, steps: int = 400) -> Tensor:
    """The integral of the whole Jacobian by the midpoint rule, (h,w,D): one backward per number of the embedding."""
    total = 0
    for step in range(steps):
        at = start + (step + 0.5) / steps * (h - start)
        jacobian = torch.autograd.functional.jacobian(lambda own: net.embed(own[None])[0], at, vectorize=True)
        total = total + torch.einsum("dcij,cij->ijd", jacobian, h - start) / steps
    return total


def test_by_hand() -> None:
    """Maxima of v and of -v, x = 1 2 and y = 3 5: f = 1 + max is (3, 0) of x, (6, -2) of y, and (1, 1) of zeros."""

    class Brightest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.fc = nn.Conv2d(1, 2, 1, bias=False), nn.Linear(2, 2, bias=False)
            self.block.weight.data = torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.block(x).amax(dim=(2, 3)) + 1)

    lens = Lens(Brightest().double(), blocks=["block"], embedding="fc:input")
    rows = [torch.tensor([[[values]]], dtype=torch.float64) for values in ([1.0, 2.0], [3.0, 5.0])]
    found = lens.trace_pair(*rows).interactions(score="dot", baseline="zeros")
    torch.testing.assert_close(found.matrix.flatten(), torch.tensor([3.0, 0.0, 0.0, 10.0]).double())
    # s(x,b) = 3 + 0, s(b,y) = 6 - 2, s(b,b) = 2.
    assert (found.score, found.remainder) == (18, pytest.approx(3 + 4 - 2))
    assert found.gap == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_mean_pooling_is_exact_and_runs_nothing(score: str) -> None:
    pair = traced("mean")
    x, y = blocks(pair)
    found = pair.interactions(score=score, cells=None)
    length = pair.embeddings[0][0].norm() * pair.embeddings[1][0].norm() if score == "cosine" else 1
    torch.testing.assert_close(found.matrix, torch.einsum("cij,ckl->ijkl", x, y) / 256 / length)
    assert (found.exact, found.forwards, found.steps, found.remainder) == (True, 0, 0, 0)
    assert found.gap == pytest.approx(0, abs=1e-13)


def test_the_integral_gives_the_exact_parts_of_mean_pooling() -> None:
    """With a baseline of zeros that is given, the way of any other embedding is taken."""
    pair = traced("mean")
    exact, found = pair.interactions(), pair.interactions(baseline=torch.zeros(1, dtype=torch.float64), steps=2)
    assert (found.exact, found.baseline) == (False, "given")
    torch.testing.assert_close(found.matrix, exact.matrix, rtol=0, atol=1e-14)
    assert found.remainder == pytest.approx(0, abs=1e-14)


def test_closed_forms_of_max_and_generalised_mean_pooling() -> None:
    """From 0, maxima have the same Jacobian along the whole line, and roots of means one that grows like t^(-2/3)."""
    for pool in ("max", "gem"):
        pair = traced(pool)
        parts = []
        for h in blocks(pair):
            flat = h.flatten(1)
            if pool == "max":
                own = torch.zeros_like(flat).scatter_(1, flat.argmax(dim=1, keepdim=True), 1) * flat
            else:
                assert pair.blocks[-1].endswith(":pow")  # the last block is the cube, of which the mean is taken
                own = flat / (flat.shape[1] * flat.mean(dim=1, keepdim=True) ** (2 / 3))
            parts.append(own)
        found = pair.interactions(score="dot", cells=None, baseline="zeros")
        wanted = torch.einsum("cp,cq->pq", *parts)
        torch.testing.assert_close(found.matrix.flatten(2).flatten(0, 1), wanted, rtol=0, atol=1e-12, msg=pool)
        assert abs(found.gap) < 1e-12


@pytest.mark.parametrize("pool", ["fc", "normalised", "attention"])
def test_twin_by_whole_jacobians(pool: str) -> None:
    """Against a backward per number of the embedding and the midpoint rule, both with a baseline that is given."""
    pair, net = traced(pool, nets.images(1, 32), nets.images(1, 32, seed=1)), nets.seeded(Head, pool)
    start = torch.full((1,), 0.05, dtype=torch.float64)
    found = pair.interactions(score="dot", steps=30, cells=None, baseline=start)
    x, y = (naive_parts(net, h, start) for h in blocks(pair))
    torch.testing.assert_close(found.matrix, torch.einsum("ijd,kld->ijkl", x, y), rtol=0, atol=2e-4)
    x, y = blocks(pair)
    ends = [net.embed(h[None])[0] for h in (x, y, start.expand_as(x))]
    remainder = ends[0] @ ends[2] + ends[2] @ ends[1] - ends[2] @ ends[2]
    assert found.remainder == pytest.approx(float(remainder.detach()), rel=1e-9)


@pytest.mark.parametrize(
    ("pool", "few", "many"),
    [("max", 1e-12, 1e-12), ("gem", 1e-12, 1e-12), ("bias", 1e-12, 1e-12), ("whole", 1e-12, 1e-12),
     ("fc", 0.02, 1e-3), ("normalised", 1e-3, 1e-7), ("layer_norm", 1e-4, 1e-4), ("attention", 1e-3, 1e-9)],
)  # fmt: skip
def test_parts_converge_to_the_score_without_the_remainder(pool: str, few: float, many: float) -> None:
    pair = traced(pool)
    for steps, most in ((4, few), (40, many)):
        found = pair.interactions(steps=steps)
        missing = found.score - found.remainder - float(found.matrix.sum()) - found.aside
        assert found.gap == pytest.approx(missing, abs=1e-12)
        assert abs(missing) <= most, steps
    assert found.score == pytest.approx(float(pair.explain("gam").scores[0]), abs=1e-6)


def test_few_steps_choose_the_baseline_that_they_suffice_for() -> None:
    """A layer that normalises its input jumps at 0: 40 steps from there are enough, 4 are not."""
    pair = traced("layer_norm")
    few, many = pair.interactions(steps=4), pair.interactions(steps=40)
    assert (few.baseline, many.baseline) == ("blank", "zeros")
    assert max(abs(few.gap), abs(many.gap)) < 1e-4
    with pytest.warns(GamlensWarning, match=r"miss 0\.7.* the baseline 'zeros' has not converged in 4 steps"):
        assert abs(pair.interactions(steps=4, baseline="zeros").gap) > 0.1


@pytest.mark.parametrize("pool", ["mean", "gem", "attention"])
def test_swapping_the_images_swaps_the_matrix(pool: str) -> None:
    a, b = traced(pool).interactions(), traced(pool, Y, X).interactions()
    torch.testing.assert_close(a.matrix, b.matrix.permute(2, 3, 0, 1), rtol=0, atol=1e-12)
    torch.testing.assert_close(a.swapped().matrix, b.matrix, rtol=0, atol=1e-12)
    assert (a.remainder, a.aside) == (pytest.approx(b.remainder, abs=1e-12), pytest.approx(b.aside, abs=1e-12))
    assert a.swapped().frames == (a.frames[1], a.frames[0])


def test_one_number_is_no_average_by_chance() -> None:
    """Every number is a multiple of every other, so of embeddings of one number only the average itself is exact."""

    class Largest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.fc = nn.Conv2d(1, 1, 1, bias=False), nn.Linear(1, 2, bias=False)
            self.block.weight.data.fill_(1)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.block(x).amax(dim=(2, 3)))

    lens = Lens(Largest().double(), blocks=["block"], embedding="fc:input")
    rows = [torch.tensor([[[values]]], dtype=torch.float64) for values in ([1.0, 2.0], [3.0, 5.0])]
    found = lens.trace_pair(*rows).interactions(score="dot")
    assert not found.exact
    torch.testing.assert_close(found.matrix.flatten(), torch.tensor([0.0, 0.0, 0.0, 10.0]).double())


def test_cells_take_positions_together() -> None:
    pair = traced("gem")
    fine, coarse = pair.interactions(cells=None), pair.interactions(cells=2)
    assert coarse.matrix.shape == (2, 2, 2, 2)
    summed = fine.matrix.view(2, 2, 2, 2, 2, 2, 2, 2).sum(dim=(1, 3, 5, 7))
    torch.testing.assert_close(coarse.matrix, summed, rtol=0, atol=1e-12)


def test_class_tokens() -> None:
    """The class token adds something of its own, which is reported apart from places."""
    pair = transformer()
    with pytest.warns(GamlensWarning, match="has not converged in 3 steps"):
        few = pair.interactions(steps=3)
    many = pair.interactions(steps=30)
    assert many.matrix.shape == (4, 4, 4, 4)
    assert many.aside != 0
    assert abs(many.gap) < 1e-6
    assert abs(many.gap) < abs(few.gap)


def test_number_of_forwards_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One blank image enters the network however many rows follow; memory bounds the rows that run together."""
    lens = Lens(net := nets.seeded(Head, "gem"), embedding="last")
    pair = lens.trace_pair(X, Y)
    seen: list[tuple[int, int]] = []
    entering = net.stem.register_forward_pre_hook(lambda _, given: seen.append((len(given[0]), 0)))
    leaving = net.last.register_forward_hook(lambda _, given, out: seen.append((0, len(out))))
    found = pair.interactions(steps=20)
    entered, rows = sum(a for a, _ in seen), sum(b for _, b in seen)
    # Of each image: its own row again, the baseline, 20 rows to choose the baseline, and 20 steps x 16 cells.
    assert (entered, found.forwards) == (8, 8)
    assert rows == 2 * (1 + 1 + 20 + 20 * 16)
    seen.clear()
    pair.interactions(steps=20, score="dot"), pair.matches((3, 3)).map
    assert not seen
    monkeypatch.setattr(embedding_parts, "BYTES_AT_ONCE", 10 * blocks(pair)[0].numel() * 8)
    small = pair.interactions(steps=19)
    assert max(b for _, b in seen) == 10
    torch.testing.assert_close(small.matrix, found.matrix, rtol=0, atol=1e-12)
    entering.remove(), leaving.remove()


@pytest.mark.parametrize("head", [[], [nn.Linear(32, 1000)]], ids=["no head", "a head"])
def test_twelve_forwards_for_a_block_as_large_as_that_of_a_resnet(
    head: list[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """7 x 7 positions and 20 steps: 1,960 rows. Channels and memory are 1/64 of 2048 and of what is allowed.

    The weight of a head is larger than the block of one row, but does not grow with the rows.
    """
    monkeypatch.setattr(embedding_parts, "BYTES_AT_ONCE", embedding_parts.BYTES_AT_ONCE // 64)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 32, 1), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), *head)
    seen: list[int] = []
    net[2].register_forward_hook(lambda _, given, out: seen.append(len(out)))
    pair = Lens(net, blocks=["1"], embedding="3").trace_pair(torch.rand(1, 3, 7, 7), torch.rand(1, 3, 7, 7))
    seen.clear()
    found = pair.interactions(steps=20)
    assert found.matrix.shape == (7, 7, 7, 7)
    assert found.forwards == len(seen) <= 12
    assert max(seen) * 32 * 49 * 4 <= embedding_parts.BYTES_AT_ONCE
    assert abs(found.gap) < 1e-5


def test_the_model_is_left_as_it_was() -> None:
    net = nets.seeded(Head, "attention").train()
    net.first.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    flags = {name: value.requires_grad for name, value in net.named_parameters()}
    pair = Lens(net, embedding="last").trace_pair(X, Y)
    pair.interactions(steps=2)
    with pytest.raises(GamlensError, match="A baseline has the shape of the block"):
        pair.interactions(baseline=torch.zeros(7))

    def fails(*_: object) -> None:
        raise RuntimeError("in the middle of a derivative")

    handle = net.last.register_forward_pre_hook(lambda _, given: fails() if _is_dual(given[0]) else None)
    with pytest.raises(GamlensError, match="in the middle of a derivative"):
        pair.interactions(baseline="blank", steps=3)
    handle.remove()
    assert forward_mode._current_level == -1
    assert all(module.training for module in net.modules())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert {name: value.requires_grad for name, value in net.named_parameters()} == flags
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert all(value.grad is None for value in net.parameters())


def _is_dual(tensor: Tensor) -> bool:
    return forward_mode._current_level >= 0 and forward_mode.unpack_dual(tensor).tangent is not None


@pytest.mark.parametrize("pool", [nn.AdaptiveMaxPool2d(1), GeneralisedMean()], ids=["max", "generalised mean"])
def test_other_pooling_of_a_real_network(pool: nn.Module) -> None:
    """A ResNet-18 with its head: the parts add up to the score, and the steps of each image run in two batches."""
    torch.manual_seed(0)
    net = resnet18()
    net.avgpool = pool
    photos = [torch.rand(1, 3, 224, 224) for _ in range(2)]
    found = Lens(net, embedding="fc:input").trace_pair(*photos).interactions(steps=3)
    assert found.matrix.shape == (7, 7, 7, 7)
    assert found.forwards <= 12
    assert not found.exact
    assert abs(found.gap) < 1e-4 * abs(found.score)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pool", ["mean", "max", "fc", "attention"])
def test_a_network_of_half_precision(pool: str, dtype: torch.dtype) -> None:
    """It runs as it is; its parts are float32, and close to those of the same network in float64."""
    pair = Lens(nets.seeded(Head, pool).to(dtype), embedding="last").trace_pair(X.to(dtype), Y.to(dtype))
    for baseline in ("blank", "average"):
        found, twin = pair.interactions(baseline=baseline), traced(pool).interactions(baseline=baseline)
        assert found.matrix.dtype == torch.float32
        assert abs(found.gap) < 0.01
        assert found.remainder == pytest.approx(twin.remainder, abs=0.02)
        assert float((found.map() - twin.map()).abs().max()) < 0.15 * float(twin.map().abs().max()), baseline


def test_an_embedding_that_a_later_layer_writes_to() -> None:
    """The embedding is what the layer gave, before a ReLU in place that follows it, as in the head of VGG."""

    class Written(Head):
        def __init__(self) -> None:
            super().__init__("fc")
            self.after = nn.Sequential(nn.Linear(16, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.after(self.last(self.embed(self.features(x))))

    pair = Lens(nets.seeded(Written), embedding="after.0").trace_pair(X, Y)
    assert bool((pair.embeddings[0] < 0).any())
    found = pair.interactions(steps=100)
    assert abs(found.gap) < 1e-3


def test_a_network_that_joins_a_branch_later_is_an_error() -> None:
    class Joined(nets.Small):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            early = self.layer1(self.stem(x))
            return self.last(self.layer3(self.layer2(early)).amax(dim=(2, 3)).repeat(1, 2)[:, :40] + 5 * early.amax())

    pair = Lens(nets.seeded(Joined), embedding="last").trace_pair(X, Y)
    with pytest.raises(GamlensError, match="joined to it later"):
        pair.interactions()


def test_a_network_that_remembers_the_number_of_images() -> None:
    class Counting(Head):
        def forward(self, x: Tensor) -> Tensor:
            h = self.features(x)
            return self.last(h.view(len(x), 32, 4, 4).amax(dim=(2, 3)))

    pair = Lens(nets.seeded(Counting, "max"), embedding="last").trace_pair(X, Y)
    torch.testing.assert_close(pair.interactions().matrix, traced("max").interactions().matrix)


def made(matrix: Tensor, score: float | None = None) -> Interactions:
    """Interactions of two images of 64 x 64 pixels with this matrix."""
    found = traced("mean").interactions()
    return Interactions(**{**vars(found), "matrix": matrix.double(), "score": score or float(matrix.sum())})


def test_links_are_strongest_first_and_neighbours_are_one() -> None:
    matrix = torch.zeros(4, 4, 4, 4)
    matrix[0, 0, 3, 3], matrix[0, 1, 3, 3] = 0.5, 0.3  # neighbours in x: one link of 0.8
    matrix[3, 3, 0, 0] = -0.6
    matrix[2, 0, 0, 3] = 0.1
    found = made(matrix, 0.8).links()
    assert [link.value for link in found] == pytest.approx([0.8, -0.6, 0.1])
    assert found[0].x_box == (0, 0, 32, 16)
    assert found[0].y_box == (48, 48, 64, 64)
    assert found[0].x == pytest.approx((16 * (0.5 * 0.5 + 1.5 * 0.3) / 0.8, 8))
    assert found[0].share == pytest.approx(1)
    assert len(made(matrix).links(1)) == 1
    assert made(torch.zeros(4, 4, 4, 4), 1.0).links() == []


def test_the_links_are_drawn() -> None:
    pictures = []
    for place in (0, 3):
        matrix = torch.zeros(4, 4, 4, 4)
        matrix[0, 0, place, 3] = 0.5
        pictures.append(made(matrix, 1.0).overlay())
    assert pictures[0].size == pictures[1].size
    assert pictures[0].tobytes() != pictures[1].tobytes()


def test_links_in_the_padding_beside_an_image_are_drawn_without_a_box() -> None:
    """The input of x has 16 rows of padding above and below its image, which is 32 pixels high."""
    matrix = torch.zeros(4, 4, 4, 4)
    matrix[0, 0, 0, 0], matrix[1, 1, 3, 3] = 0.5, -0.2
    found = made(matrix, 1.0)
    padded = Frame((32, 64), (64, 64), (0.0, -16.0, 64.0, 48.0))
    found = Interactions(**{**vars(found), "frames": (padded, found.frames[1])})
    assert [link.x_box for link in found.links()] == [(0, 0, 16, 0), (16, 0, 32, 16)]
    assert found.overlay().width > 64


def test_regions_add_up_and_name_the_match() -> None:
    matrix = torch.zeros(4, 4, 4, 4)
    matrix[:2, :2, 2:, 2:] = 0.71 / 16
    matrix[2:, :, 0, 0] = 0.18 / 8
    matrix[0, 3, 0, 3] = -0.05
    found = made(matrix, 1.0)
    dog, lawn = torch.zeros(64, 64, dtype=torch.bool), torch.zeros(64, 64, dtype=torch.bool)
    dog[32:, 32:], lawn[:16, :16] = True, True
    parts = found.between({"dog": (0, 0, 32, 32), "lawn": (0, 32, 64, 64)}, {"dog": dog, "lawn": lawn})
    wanted = torch.tensor([[0.71, 0, 0], [0, 0.18, 0], [0, 0, -0.05]]).double()
    torch.testing.assert_close(parts.values, wanted, rtol=0, atol=1e-6)
    assert float(parts.values.sum()) == pytest.approx(float(matrix.sum()))
    assert parts.sentences(3) == [
        "dog matches dog: 71 % of the score",
        "lawn matches lawn: 18 % of the score",
        "elsewhere speaks against elsewhere: -5 % of the score",
    ]
    half = found.between({"half": (0, 0, 8, 32)}, {})  # half of the first column of cells
    assert half.values.shape == (2, 1)
    assert float(half.values[0]) == pytest.approx(0.71 / 4)
    regions = found.regions("y", threshold=0.4)
    assert any(bool(mask[40:60, 40:60].all()) for mask in regions.values())


def test_regions_are_where_pairs_raise_the_score_even_if_others_cancel_them() -> None:
    """As from an average baseline: every place adds nothing on the whole, but one of them matches strongly."""
    matrix = torch.zeros(4, 4, 4, 4)
    matrix[1, 1, 2, 2], matrix[1, 1, 0, 0] = 0.5, -0.5
    matrix[3, 3, 3, 3] = 0.01
    regions = made(matrix, 1.0).regions("x")
    assert list(regions) == ["x1"]
    assert bool(regions["x1"][20:28, 20:28].all())


def test_overlapping_regions_share_a_cell() -> None:
    found = traced("mean").interactions()
    twice = found.between({"a": (0, 0, 64, 64), "b": (0, 0, 64, 64)}, {})
    assert float(twice.values[0]) == pytest.approx(float(twice.values[1]))
    assert float(twice.values.sum()) == pytest.approx(found.score)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.interactions(score="euclidean"), "no sum over pairs of positions"),
        (lambda p: p.interactions(pair=5), "There is no pair 5"),
        (lambda p: p.interactions(cells=0), "cells=0"),
        (lambda p: p.interactions(steps=0), "steps=0"),
        (lambda p: p.interactions(steps="many"), "steps='many'"),
        (lambda p: p.interactions(baseline="grey"), "baseline='grey'"),
        (lambda p: p.interactions(baseline=0), "baseline=0: give one of .* or a tensor"),
        (lambda p: p.interactions(pair="0"), "pair='0': give the number of a pair"),
        (lambda p: p.interactions(baseline=np.zeros((2, 2))), "baseline=a ndarray: give one of .* or a tensor"),
        (lambda p: p.interactions().links(0), "most=0"),
        (lambda p: p.interactions().regions("x", most=-1), "most=-1: give a whole number of at least 1"),
        (lambda p: p.interactions().between({}, {}).sentences(0), "most=0"),
        (lambda p: p.interactions().between({"a": (90, 90, 99, 99)}, {}), "empty or outside"),
        (lambda p: p.interactions().between({"a": torch.zeros(64, 64).bool()}, {}), "mask of 'a' is empty"),
        (lambda p: p.interactions().between({"elsewhere": (0, 0, 9, 9)}, {}), "cannot be called"),
        (lambda p: p.interactions().between({"a": torch.ones(3, 3)}, {}), "neither a box"),
        (lambda p: p.interactions().between({"a": "left half"}, {}), "neither a box.*left half"),
        (lambda p: p.interactions().between({"a": None}, {}), "neither a box.*None"),
        (lambda p: p.interactions().between([(0, 0, 9, 9)], {}), "given by name"),
        (lambda p: p.interactions().map("z"), "side= is 'x' or 'y'"),
    ],
)
def test_errors(call: Callable[[PairTrace], object], message: str) -> None:
    with pytest.raises(GamlensError, match=message):
        call(traced("max"))


def test_numbers_of_other_packages() -> None:
    pair = traced("max")
    found = pair.interactions(steps=np.int64(3), cells=np.int64(2))
    assert found.matrix.shape == pair.interactions(steps=3, cells=2).matrix.shape
    assert found.steps == 3
    assert found.links(np.int64(2)) == found.links(2)


def test_the_embedded_network_is_split_exactly() -> None:
    from gamlens.data.photos import photo

    pair = Lens("efficientnet_lite0").trace_pair(photo("cheetah"), photo("cheetah_face"), n=1)
    found = pair.interactions()
    assert (found.exact, found.forwards, found.remainder) == (True, 0, 0)
    assert abs(found.gap) < 1e-5
    assert found.links(1)[0].share > 1 / 49  # the strongest place has more than its share of the face


@pytest.mark.shared
def test_the_class_token_of_a_trained_transformer_converges(shared_weights: Path) -> None:
    module = VisionTransformer(224, 16, 12, 3, 192, 768, num_classes=10)
    lens = Lens(module, weights=shared_weights / "vit_tiny_imagenette_fp16.pth")
    lens.model.double()
    pair = lens.trace_pair(nets.images(1, 224), nets.images(1, 224, seed=1), n=1)
    with pytest.warns(GamlensWarning, match="has not converged in 2 steps"):
        few = pair.interactions(steps=2, cells=2)
    many = pair.interactions(steps=8, cells=2)
    assert many.matrix.shape == (2, 2, 2, 2)
    assert abs(many.gap) < abs(few.gap) / 100
    assert many.remainder == pytest.approx(few.remainder, abs=1e-12)  # measured, not what the integral leaves over


def test_the_average_baseline_by_hand() -> None:
    """x = 1 2 and y = 3 5 average to 2.75: a part is what a place differs from that, and the rest is the remainder."""
    net = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 2)).double()
    net[0].weight.data.fill_(1)
    rows = [torch.tensor([[[values]]], dtype=torch.float64) for values in ([1.0, 2.0], [3.0, 5.0])]
    pair = Lens(net, blocks=["0"]).trace_pair(*rows)
    found = pair.interactions(score="dot", baseline="average")
    own, other = torch.tensor([-1.75, -0.75]).double() / 2, torch.tensor([0.25, 2.25]).double() / 2
    torch.testing.assert_close(found.matrix.view(2, 2), own[:, None] * other[None])
    assert (found.exact, found.forwards, found.baseline) == (True, 0, "average")
    assert found.remainder == pytest.approx(1.5 * 2.75 + 2.75 * 4 - 2.75**2)
    assert found.gap == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(found.map("y", positive=True).flatten(), torch.zeros(2).double())
    torch.testing.assert_close(found.map("y").flatten(), own.sum() * other)


@pytest.mark.parametrize("pool", ["mean", "max", "fc", "layer_norm"])
def test_the_average_baseline_is_the_mean_of_both_images(pool: str) -> None:
    """It gives what the same activations give as a tensor, and its parts add up to the score, too."""
    pair = traced(pool)
    mean = torch.stack([h.mean(dim=(1, 2)) for h in blocks(pair)]).mean(dim=0)
    found, given = pair.interactions(baseline="average"), pair.interactions(baseline=mean[:, None, None])
    torch.testing.assert_close(found.matrix, given.matrix, rtol=0, atol=1e-10)
    assert (found.baseline, given.baseline, found.exact) == ("average", "given", pool == "mean")
    assert found.remainder == pytest.approx(given.remainder, abs=1e-12)
    assert abs(found.gap) < 1e-4
    back = Lens(nets.seeded(Head, pool), embedding="last").trace_pair(Y, X).interactions(baseline="average")
    torch.testing.assert_close(back.swapped().matrix, found.matrix, rtol=0, atol=1e-10)


def test_class_tokens_have_an_average_of_their_own() -> None:
    torch.manual_seed(0)
    net = VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=3).double()
    pair = Lens(net).trace_pair(nets.images(1, size=32), nets.images(1, seed=1, size=32))
    found = pair.interactions(baseline="average", steps=40)
    assert found.baseline == "average"
    assert abs(found.gap) < 1e-4
    layout = embedding_parts.CellLayout((1, 2), torch.eye(1), torch.eye(2), torch.tensor(
        [[[0.0], [1.0], [0.0]], [[0.0], [0.0], [1.0]], [[1.0], [0.0], [0.0]]]), -1)  # fmt: skip
    tokens = torch.tensor([[9.0, 8.0], [1.0, 2.0], [3.0, 6.0]])
    expected = torch.tensor([[9.0, 8.0], [2.0, 4.0], [2.0, 4.0]])
    torch.testing.assert_close(embedding_parts.average_activation(tokens, layout), expected)


def test_an_average_needs_inputs_of_one_size() -> None:
    pair = traced("max", nets.images(1), nets.images(1, seed=1, size=96))
    with pytest.raises(GamlensError, match=r"two sizes.*another baseline"):
        pair.interactions(baseline="average")
