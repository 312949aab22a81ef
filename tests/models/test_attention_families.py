"""The attention of the families of torchvision, timm and transformers: read exactly, each token where it belongs."""

from __future__ import annotations

import pytest
import timm
import torch
import transformers
from cells import hits, spots, taught
from token_families import SMALL, TABLE, WHOLE, look, quiet, vit
from token_models import lively, planted
from tokens import MeanViT
from torchvision.models import VisionTransformer

from gamlens import GamlensWarning, Lens, Transform, methods

LAYERS = {  # how many attention layers are read; 0 where attention is within windows or stages, or there is none
    "torchvision vit": 4, "vit, wide image": 3, "vit, registers": 3, "vit, mean": 3, "siglip": 2, "deit, distilled": 3,
    "beit": 2, "eva": 2, "mixer": 0, "cait": 2, "levit": 0, "hiera": 0, "swin": 0, "hf vit": 4, "hf dinov2": 4,
    "hf dinov2, registers": 4, "hf dinov3": 4, "hf beit": 4, "hf swin": 0, "hf hiera": 0, "hf segformer": 0,
    "hf clip": 4, "hf siglip": 4,
}  # fmt: skip
READ_FROM = {"deit, distilled": 2, "hf dinov2": 65}  # tokens that the score is read from, where not one and not all


def by_speed(names: list[str]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in WHOLE else name for name in names]


def test_every_family_is_looked_at() -> None:
    assert LAYERS.keys() == TABLE.keys()


@pytest.mark.parametrize("name", by_speed([name for name in LAYERS if LAYERS[name]]))
@quiet
def test_attention_layers_and_a_planted_patch(name: str) -> None:
    """The value that the first layer has at each token changes most where a patch was planted."""
    make, size, _, shape, aside, pooling = TABLE[name]
    lens = look(make, size)
    assert len(lens.attention_layers) == LAYERS[name]
    assert lens.default_method == "attention_gam"
    plain, other = planted(size, shape[1:])
    score = None if lens.text is None and lens.embedding != "output" else (lambda output: output.flatten(1)[:, 0])
    trace = lens.trace(torch.cat([plain, other]), score=score or "logit")
    first = trace.attention.layers[0]
    tensors, grid = trace.attention.values[first], trace.attention.grid
    assert (grid.height, grid.width) == shape[1:]
    assert grid.aside == aside
    torch.testing.assert_close(tensors["attention"].sum(dim=-1), torch.ones_like(tensors["attention"][..., 0]))
    value = tensors["value"]
    apart = (value[0] - value[1]).norm(dim=-1).sum(dim=0)  # (N,)
    cell = int(grid.image(apart[None, :, None])[0, 0].argmax())
    moved = (plain - other).abs().sum(dim=1)[0]
    rows, columns = size[0] // shape[1], size[1] // shape[2]
    cells = moved[: rows * shape[1], : columns * shape[2]].view(shape[1], rows, shape[2], columns).sum(dim=(1, 3))
    assert cell == int(cells.argmax())
    pooled = trace.attention.gradients[first]["pooled"]
    count = READ_FROM.get(name, 1 if pooling == "class token" and name != "cait" else grid.count)
    if name not in ("beit", "hf beit", "vit, mean", "eva"):  # the mean leaves out a class token there
        assert int((pooled[0] > 0).sum()) == count
    for method in methods.names("attention"):
        if method != "legrad" or lens._hooked.known_blocks.own_tokens:
            assert bool(trace.explain(method).maps.isfinite().all())


@pytest.mark.parametrize("name", by_speed([name for name in LAYERS if not LAYERS[name]]))
@quiet
def test_families_without_attention_of_all_tokens_are_read_by_blocks(name: str) -> None:
    make, size, *_ = TABLE[name]
    lens = look(make, size)
    assert lens.attention_layers == ()
    assert lens.default_method == "gam"


def test_a_mixer_says_that_it_has_no_attention_to_read() -> None:
    make, size, *_ = TABLE["mixer"]
    with pytest.warns(GamlensWarning, match="The attention of MlpMixer cannot be read"):
        assert look(make, size).default_method == "gam"


@quiet
def test_the_attention_of_timm_is_what_its_plain_code_computes() -> None:
    torch.manual_seed(0)
    net = lively(timm.create_model("vit_tiny_patch16_224", depth=2, img_size=64, num_classes=7)).eval()
    x, seen = torch.randn(2, 3, 64, 64), []
    assert all(block.attn.fused_attn for block in net.blocks)
    trace = Lens(net, transform=Transform((64, 64))).trace(x)
    assert all(block.attn.fused_attn for block in net.blocks)
    for block in net.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    net(x)
    for tensors, expected in zip(trace.attention.values.values(), seen, strict=True):
        torch.testing.assert_close(tensors["attention"], expected, rtol=1e-5, atol=1e-6)


@quiet
@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_the_attention_of_transformers_is_what_it_returns_itself(how: str) -> None:
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SMALL)
    config._attn_implementation = how
    net = lively(transformers.ViTForImageClassification(config)).eval()
    x = torch.randn(2, 3, 64, 64)
    trace = Lens(net, transform=Transform((64, 64))).trace(x)
    assert net.config._attn_implementation == how
    net.set_attn_implementation("eager")
    expected = net(x, output_attentions=True).attentions
    for tensors, own in zip(trace.attention.values.values(), expected, strict=True):
        torch.testing.assert_close(tensors["attention"], own, rtol=1e-5, atol=1e-6)


@quiet
def test_the_attention_of_torchvision_is_what_its_module_returns() -> None:
    torch.manual_seed(0)
    net, seen = lively(vit()).eval(), []
    x = torch.randn(2, 3, 64, 64)
    trace = Lens(net, transform=Transform((64, 64))).trace(x)
    for layer in net.encoder.layers:
        layer.self_attention.register_forward_pre_hook(lambda module, args: seen.append((module, args[0].detach())))
    net(x)
    for tensors, (module, tokens) in zip(trace.attention.values.values(), seen[:4], strict=True):
        expected = module.forward(tokens, tokens, tokens, need_weights=True, average_attn_weights=False)[1]
        torch.testing.assert_close(tensors["attention"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least"), [(VisionTransformer, 5), (MeanViT, 24)])
@quiet
def test_attention_gam_peaks_at_the_planted_patch(kind: type[VisionTransformer], least: int) -> None:
    """A ViT that learned in seconds to tell red from blue cells: the map points at the cell, one of 40.

    With a class token it often does not: docs/transformers.md has the numbers. Chance is 0.8 of 32.
    """
    net = taught(kind, 4)
    images, colours, cells = spots(32)
    trace = Lens(net, transform=Transform((40, 64))).trace(images, colours.tolist(), method="attention_gam")
    layers = [trace.raw("attention_gam", name) for name in trace.attention.layers]
    assert hits(sum(own / own.amax(dim=(1, 2), keepdim=True) for own in layers), cells) >= least
