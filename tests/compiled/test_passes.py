"""Folded weights against a float64 twin, fused operators against what they stand for."""

from __future__ import annotations

import nets
import pytest
import torch
from torch import nn

from gamlens import compiled as fast
from gamlens.capture import forward as capture
from gamlens.capture.guard import ModelGuard
from gamlens.capture.layer_points import LayerPoint
from gamlens.compiled import ops, program
from gamlens.compiled.folded_weights import Norm, Workshop

X = nets.images(2).float()


@pytest.mark.parametrize(("biased", "affine"), [(True, True), (False, True), (True, False), (False, False)])
def test_a_folded_batch_norm_is_the_two_layers(biased: bool, affine: bool) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, 3, bias=biased).double()
    norm = nn.BatchNorm2d(5, affine=affine).double().eval()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.2, 2)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    shop, bias = Workshop(), conv.bias.detach() if biased else None
    own = (norm.weight.detach(), norm.bias.detach()) if affine else (None, None)
    made = shop.derive(conv.weight.detach(), bias, Norm(*own, norm.running_mean, norm.running_var, norm.eps), None)
    images = torch.randn(2, 3, 9, 9).double()
    for _ in range(2):
        shop.refresh()
        got = torch.conv2d(images, made.made_weight, made.made_bias)
        torch.testing.assert_close(got, norm(conv(images)), rtol=0, atol=1e-12)
        norm.running_mean.mul_(2)


def test_a_folded_batch_norm_by_hand() -> None:
    """w=2, b=1; (y - 3) / sqrt(4) * 6 + 5 = 3y - 4 -> w'=6, b'=-1."""
    one = torch.ones(1)
    shop = Workshop()
    made = shop.derive(2 * one[None, None, None], one, Norm(6 * one, 5 * one, 3 * one, 4 * one, 0.0), torch.bfloat16)
    plain = shop.derive(2 * one[None], 7 * one, None, None)
    shop.refresh()
    assert made.made_bias is not None
    assert (made.made_weight.item(), made.made_bias.item(), made.made_weight.dtype) == (6, -1, torch.bfloat16)
    assert plain.made_bias is not None
    assert (plain.made_weight.item(), plain.made_bias.item()) == (2, 7)


def test_operators_are_what_they_stand_for() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    plain = torch.conv2d(x, weight, bias, (2, 2), (1, 1))
    shape = ([2, 2], [1, 1], [1, 1], 1)
    other = torch.randn_like(plain)
    torch.testing.assert_close(ops.CONV_RELU(x, weight, bias, *shape), plain.relu())
    torch.testing.assert_close(ops.CONV_ADD_RELU(x, other, weight, bias, *shape), (plain + other).relu())
    assert ops.CONV_RELU(x.bfloat16(), weight, bias, *shape).dtype == torch.float32
    mark = ops.MARK(x, 3)
    assert torch.equal(mark, x)
    assert mark.data_ptr() != x.data_ptr()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "last", "count"),
    [(nets.Small, "layer3", 4), (nets.Residual, "layer3", 6), (nets.dense, "features.denseblock2", 5)],
)
def test_fused_operators_in_the_trunk(make, last: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU relu(conv) and relu(conv + other) before the first block become one operator each: the same result."""
    net = nets.seeded(make).float()
    fused = []
    plain = program.fuse_relus
    monkeypatch.setattr(program, "_has_fused_kernels", lambda batch: True)
    monkeypatch.setattr(program, "fuse_relus", lambda graph, nodes: fused.append(plain(graph, nodes)))
    made = fast.build(ModelGuard(net), X, [LayerPoint.parse(last)])
    assert fused == [count]
    ours, theirs = (
        made.run(X, precision=None, grids={}),
        capture.run_forward(ModelGuard(net), X, [LayerPoint.parse(last)]),
    )
    torch.testing.assert_close(ours.blocks[last], theirs.blocks[last], rtol=1e-4, atol=1e-4)


def test_nothing_is_fused_behind_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a gradient is wanted, and the fused kernels have none."""
    net = nets.seeded(nets.Residual).float()
    monkeypatch.setattr(program, "_has_fused_kernels", lambda batch: True)
    made = fast.build(ModelGuard(net), X, [LayerPoint.parse("layer1"), LayerPoint.parse("layer3")])
    code = [getattr(part.call, "call", part.call)._orig_mod.code for part in made.parts]
    assert code[0].count("gamlens.conv") == 2
    assert not any("gamlens.conv" in text for text in code[1:])
