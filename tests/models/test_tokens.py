"""Token networks: grids and blocks by exact name and shape, and tokens where they belong in the image."""

from __future__ import annotations

import pytest
import timm
import torch
from cells import hits, spots, taught
from token_families import TABLE, WHOLE, look, quiet, vit
from token_models import changed, first_number, planted
from tokens import MeanViT
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from gamlens import METHODS, GamlensError, Lens, Transform
from gamlens.capture.layer_points import LayerPoint, TokenGrid


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in WHOLE else name for name in TABLE]
)
@quiet
def test_blocks_grids_and_places(name: str) -> None:
    """The table, and a planted patch: in each of the last blocks the cell that changed most is the planted one."""
    make, size, blocks, shape, aside, pooling = TABLE[name]
    lens = look(make, size)
    last = lens.layout.stages[-1]
    assert list(lens.blocks[-len(blocks) :]) == blocks
    assert (last.shape, last.grid.aside if last.grid else 0) == (shape, aside)
    assert lens.layout.pooling == pooling
    plain, other = planted(size, shape[1:])
    found = changed(lens, plain, other, n=min(3, len(lens.blocks)))
    mixed = {"levit": ("stages.1:tokens", "stages:tokens")}.get(name, ())  # untrained, its halving mixes all places
    assert all(hit for block, hit in found.items() if block not in mixed), found
    assert bool(lens.classify(torch.cat([plain, other]), n=min(2, len(lens.blocks))).maps.isfinite().all())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "blocks", "least"),
    [(VisionTransformer, ["encoder.layers.encoder_layer_0.ln_1"], 16), (MeanViT, None, 28)],
)
@quiet
def test_the_map_peaks_at_the_planted_patch(
    kind: type[VisionTransformer], blocks: list[str] | None, least: int
) -> None:
    """A ViT that learned in seconds to tell red from blue cells: GAM points at the cell, one of 40, in a wide image."""
    net = taught(kind, 4)
    images, colours, cells = spots(32)
    trace = Lens(net, transform=Transform((40, 64)), blocks=blocks).trace(images, colours.tolist(), n=1)
    assert float((trace.output.argmax(1) == colours).float().mean()) > 0.9
    raw = trace.raw("gam")
    assert raw.shape == (32, 5, 8)
    assert hits(raw, cells) >= least


def test_the_planted_patch_test_can_fail() -> None:
    """Tokens transposed, or shifted by a class token that was kept, are found out."""
    lens = look(vit, (64, 64))
    plain, other = planted((64, 64), (8, 8))
    right, name = lens._hooked.known_blocks.grids, lens.blocks[-1]
    assert right[name].order == tuple(range(1, 65))
    assert changed(lens, plain, other, n=1) == {name: True}
    columns = tuple(1 + 8 * (i % 8) + i // 8 for i in range(64))
    for wrong in (TokenGrid(8, 8, columns, 65), TokenGrid(8, 8, tuple(range(64)), 65)):
        object.__setattr__(lens._hooked.known_blocks, "grids", {**right, name: wrong})
        assert changed(lens, plain, other, n=1) == {name: False}


def test_an_exact_map_from_tokens() -> None:
    """One linear token layer: GAM at the tokens is relu(h) . relu(g), each where its patch is."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.cls = nn.Conv2d(3, 4, 8, 8), nn.Parameter(torch.ones(1, 1, 4))
            self.norm, self.head = nn.Identity(), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            tokens = torch.cat([self.cls.expand(len(x), -1, -1), self.patch(x).flatten(2).transpose(1, 2)], 1)
            return self.head(self.norm(torch.tanh(tokens))[:, 1:].mean(1))

    torch.manual_seed(0)
    net, batch = Plain(), torch.randn(2, 3, 24, 40)
    lens = Lens(net, transform=Transform((24, 40)), blocks=["norm"])
    assert lens.blocks == ("norm:tokens",)
    weight = net.head.weight[1] / 15
    h = torch.tanh(net.patch(batch))
    expected = (h.relu() * weight.relu()[None, :, None, None]).sum(1)
    torch.testing.assert_close(lens.trace(batch, 1, n=1).raw("gam"), expected.detach())


@quiet
def test_every_method_runs_on_tokens() -> None:
    lens = look(vit, (64, 64))
    batch = torch.cat(planted((64, 64), (8, 8)))
    trace = lens.trace(batch, 3, n=3)
    for name, method in METHODS.items():
        if method.kind == "block":
            assert trace.explain(name, 3).maps.shape == (2, 64, 64)
    pair = lens.compare(batch[:1], batch[1:])
    assert pair.x.maps.shape == pair.y.maps.shape == (1, 64, 64)


def test_other_sizes_find_their_own_grid() -> None:
    net = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=7, img_size=64, dynamic_img_size=True).eval()
    lens = Lens(net, transform=Transform((64, 64)))
    for size in ((64, 64), (96, 48), (48, 96)):
        trace = lens.trace(torch.randn(1, 3, *size), n=1)
        assert trace.activations["blocks.1.norm1:tokens"].shape == (1, 192, size[0] // 16, size[1] // 16)
    plain, other = planted((96, 48), (6, 3))
    assert all(changed(lens, plain, other).values())


def test_named_blocks() -> None:
    lens = Lens(vit().eval(), transform=Transform((64, 64)), blocks=["encoder.layers.encoder_layer_2"])
    assert lens.blocks == ("encoder.layers.encoder_layer_2:tokens",)
    with pytest.raises(GamlensError, match="gives no tokens"):
        Lens(vit().eval(), transform=Transform((64, 64)), blocks=["heads.head:tokens"]).trace(torch.zeros(1, 3, 64, 64))


def test_one_forward_and_a_graph_from_the_earliest_block() -> None:
    lens, seen = look(vit, (64, 64)), {}
    for name, module in lens.model.named_modules():
        if name.endswith(("ln_1", "mlp")):
            module.register_forward_hook(
                lambda m, a, out, name=name: seen.setdefault(name, []).append(out.requires_grad)
            )
    lens.trace(torch.randn(2, 3, 64, 64), score=first_number, n=2)
    layer = "encoder.layers.encoder_layer_{}.{}"
    graph = {name: values[0] for name, values in seen.items()}
    assert all(len(values) == 1 for values in seen.values())
    assert [graph[layer.format(i, "mlp")] for i in range(4)] == [False, False, True, True]


def test_an_attention_kernel_without_backward_says_which_switch() -> None:
    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            raise RuntimeError("derivative for aten::_fused_attention_backward is not implemented")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.head = nn.Conv2d(3, 4, 8, 8), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(Fused.apply(self.patch(x)).mean((2, 3)))

    lens = Lens(Net(), transform=Transform((32, 32)), blocks=["patch"])
    with pytest.raises(GamlensError, match=r"set_fused_attn\(False\).*attn_implementation='eager'.*SDPBackend\.MATH"):
        lens.trace(torch.randn(1, 3, 32, 32), n=1)


def test_a_grid_reads_tokens_in_any_order() -> None:
    tokens = torch.arange(2 * 5 * 3.0).view(2, 5, 3)
    image = TokenGrid(2, 2, (4, 1, 2, 3), 5).image(tokens)
    assert image.shape == (2, 3, 2, 2)
    assert image[1, :, 0, 0].tolist() == tokens[1, 4].tolist()
    assert str(LayerPoint.parse("blocks.3:tokens")) == "blocks.3:tokens"
    assert LayerPoint.parse("norm:getitem:tokens") == LayerPoint("norm", chain=("getitem",), tokens=True)
