"""Blocks before the wanted ones, whose values are kept for refining: the model's own, outside of any graph."""

from __future__ import annotations

import nets
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gamlens import GamlensError, Lens

X = nets.images(2)


@torch.no_grad()
def own_blocks(net: nn.Module, batch: Tensor = X) -> dict[str, Tensor]:
    """The first blocks of `Small`, as the model computes them without hooks."""
    first = net.layer1(net.stem(batch))
    return {"layer1": first, "layer2": net.layer2(first)}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("method", ["gam", "eigen_cam"])
def test_earlier_blocks_have_the_models_values_and_no_graph(inplace: bool, grad: bool, method: str) -> None:
    lens = Lens(nets.small(inplace=inplace))
    with torch.set_grad_enabled(grad):
        record = lens.forward(X, n=1, method=method, refine=2)
    assert list(record.blocks) == ["layer3"]
    assert list(record.earlier) == list(record.earlier_activations) == ["layer1", "layer2"]
    for name, expected in own_blocks(lens.model).items():
        for kept in (record.earlier[name], record.earlier_activations[name]):
            assert torch.equal(kept, expected)
            assert not kept.requires_grad
            assert kept.grad_fn is None
    assert record.blocks["layer3"].requires_grad == (method == "gam")
    assert record.network_blocks == lens.blocks == ("layer1", "layer2", "layer3")
    later = record.without_graph()
    assert later.earlier is record.earlier
    assert later.network_blocks == record.network_blocks


def test_a_model_that_records_a_graph_itself_gives_it_to_nobody() -> None:
    class Records(nets.Small):
        def features(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                return super().features(x)

    kept = Lens(nets.seeded(Records)).forward(X, n=1, refine=2).earlier
    assert not any(h.requires_grad for h in kept.values())
    for name, expected in own_blocks(nets.small()).items():
        assert torch.equal(kept[name], expected)


def test_the_output_and_the_gradients_are_those_without_earlier_blocks() -> None:
    lens = Lens(nets.small())
    plain, refined = lens.trace(X, [3, 4], n=1), lens.trace(X, [3, 4], n=1, refine=2)
    assert torch.equal(plain.output, refined.output)
    assert torch.equal(plain.gradients["layer3"], refined.gradients["layer3"])


def test_nothing_is_kept_for_nothing() -> None:
    lens = Lens(nets.small())
    for record in (lens.forward(X, n=1), lens.forward(X, n=3, refine=2), lens.forward(X, n=0, refine=2)):
        assert record.earlier == {}


def test_a_function_that_no_module_computes_is_an_earlier_block() -> None:
    class Tail(nets.DenseLike):
        def __init__(self) -> None:
            super().__init__(inplace=True)
            self.last = nets.stage(32, 24)
            self.classifier = nn.Linear(24, nets.CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.classifier(self.last(F.relu(self.features(x), inplace=True)).mean(dim=(2, 3)))

    net = nets.seeded(Tail)
    record = Lens(net, blocks=["features:relu", "last"]).forward(X, n=1, refine=True)
    assert torch.equal(record.earlier["features:relu"], net.features(X).detach().relu())


def test_an_earlier_block_may_be_the_embedding() -> None:
    net = nets.small()
    lens = Lens(net, embedding="layer2")
    record = lens.forward(X, n=1, refine=2, embedding=True)
    expected = own_blocks(net)["layer2"]
    assert torch.equal(record.earlier["layer2"], expected)
    torch.testing.assert_close(record.required_embedding().detach().flatten(1), expected.flatten(1))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_kept_as_it_is(precision: str) -> None:
    lens = Lens(nets.small().float(), precision=precision)
    trace = lens.trace(X.float(), 3, n=1, refine=2)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert {h.dtype for h in trace.earlier.values()} == {dtype}
    found, plain = (each.classify(X.float(), 3, n=1, refine=2).maps for each in (lens, Lens(nets.small())))
    assert found.dtype == torch.float32
    assert float((found - plain).abs().mean()) < 0.02


class Twice(nets.Small):
    """Its first stage runs twice."""

    def features(self, x: Tensor) -> Tensor:
        self.layer1(self.stem(x))
        return super().features(x)


def test_an_earlier_block_runs_once() -> None:
    lens = Lens(nets.seeded(Twice), blocks=["layer1", "layer2", "layer3"])
    assert len(lens.classify(X, 3, n=1, refine=1)) == 2
    with pytest.raises(GamlensError, match="Block 'layer1' runs more than once in one forward"):
        lens.classify(X, 3, n=1, refine=2)
    assert not any(module._forward_hooks for module in lens.model.modules())


def test_an_earlier_block_that_is_no_map_says_so() -> None:
    class Flat(nets.Small):
        def __init__(self) -> None:
            super().__init__()
            self.flat = nn.Flatten()

        def features(self, x: Tensor) -> Tensor:
            h = self.layer2(self.layer1(self.stem(x)))
            return self.layer3(self.flat(h).view_as(h))

    lens = Lens(nets.seeded(Flat), blocks=["flat", "layer3"])
    with pytest.raises(GamlensError, match=r"Block 'flat' gives \(2, 1536\)"):
        lens.classify(X, 3, n=1, refine=True)
