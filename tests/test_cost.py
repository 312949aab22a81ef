"""What a look costs, by counting: forwards, bytes kept for the backward, floating point operations."""

from __future__ import annotations

from collections.abc import Callable

import nets
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from gamlens import Lens, methods

quiet = pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
X, Y, Z = nets.images(2), nets.images(2, seed=1), nets.images(2, 80, seed=2)


class Counter:
    """How often the stem of a net has run, and on how many images."""

    def __init__(self, net: nn.Module) -> None:
        self.sizes: list[int] = []
        net.stem.register_forward_hook(lambda module, args, output: self.sizes.append(len(output)))


@pytest.fixture
def counted() -> tuple[Lens, Counter]:
    lens = Lens(nets.small())
    return lens, Counter(lens.model)


@quiet
@pytest.mark.parametrize(
    ("call", "sizes"),
    [
        (lambda lens: lens.trace(X, n=None), [2]),
        (lambda lens: lens.trace(X, [[1, 2, 3], [4, 5]]), [2]),
        (lambda lens: lens.trace(X, score=lambda output: output[:, 0]), [2]),
        (lambda lens: lens.classify(X, [[1, 2], 3], method="grad_cam_pp", n=3), [2]),
        (lambda lens: lens.classify(X, batch_size=1), [1, 1]),
        (lambda lens: lens.compare(X, Y), [4]),
        (lambda lens: lens.compare(X, Y, method="vdsn", score="dot"), [4]),
        (lambda lens: lens.compare(X, Z), [2, 2]),
        (lambda lens: lens.trace_pair(X, Z, n=None), [2, 2]),
        (lambda lens: lens.classify(X, [[1, 2], 3], n=1, refine=2), [2]),
        (lambda lens: lens.classify(X, n=1, sharp=True, views="flip"), [2, 2]),
        (lambda lens: lens.compare(X, Y, n=1, refine=2), [4]),
        (lambda lens: lens.compare(X, Z, method="vdsn", score="dot", refine=2), [2, 2]),
    ],
)
def test_forwards(counted: tuple[Lens, Counter], call: Callable[[Lens], object], sizes: list[int]) -> None:
    lens, counter = counted
    call(lens)
    assert counter.sizes == sizes


@quiet
def test_nothing_runs_again_for_another_method_number_or_target(counted: tuple[Lens, Counter]) -> None:
    lens, counter = counted
    trace, pair = lens.trace(X, n=3), lens.trace_pair(X, Y, n=3)
    counter.sizes.clear()
    for method in methods.names("block"):
        for n in (1, 2, 3):
            trace.explain(method, n)
            pair.explain(method, n)
            pair.explain(method, n, score="dot")
        trace.explain(method, 1, refine=2)
        pair.explain(method, 1, refine=2)
    for method in methods.names("pair"):
        pair.explain(method)
    trace.retarget([[1, 2], None]).explain()
    trace.evidence()
    trace.top()
    assert counter.sizes == []


def test_explaining_runs_no_backward() -> None:
    trace = Lens(nets.small()).trace(X, n=3)
    with FlopCounterMode(display=False) as flops:
        trace.explain("gam", 3)
    assert flops.get_total_flops() == 0


def test_refining_runs_no_forward_and_no_backward() -> None:
    """Two products per block of N positions and C channels: the similarities, and the means of one map per target."""
    trace = Lens(nets.small()).trace(X, [[1, 2, 3], 4], n=1, refine=2)
    with FlopCounterMode(display=False) as flops:
        trace.explain("gam", 1, refine=2)
    counted = flops.get_flop_counts()["Global"]
    assert set(counted) == {torch.ops.aten.bmm}
    # Two images with three columns of maps each, and a column and a channel of our own.
    assert sum(counted.values()) == sum(
        2 * 2 * count**2 * ((c + 1) + (3 + 1)) for count, c in ((8**2, 24), (16**2, 16))
    )


def test_no_graph_before_the_earliest_block() -> None:
    lens, seen = Lens(nets.small()), {}
    for name, module in lens.model.named_children():
        module.register_forward_hook(lambda m, args, output, name=name: seen.update({name: output.requires_grad}))
    lens.trace(X, n=1)
    assert seen == {"stem": False, "layer1": False, "layer2": False, "layer3": False, "dropout": True, "fc": True}
    lens.compare(X, Y, n=2)
    assert (seen["layer1"], seen["layer2"], seen["layer3"]) == (False, False, True)


def test_targets_share_backwards() -> None:
    """All targets of all images go back together, as long as they fit."""
    lens, runs = Lens(nets.small()), []
    lens.model.layer3[0].register_full_backward_hook(lambda module, grad_in, grad_out: runs.append(1))
    lens.trace(X, [[1, 2, 3], [4, 5]], n=2)
    assert len(runs) == 1
    runs.clear()
    lens.trace(X.repeat(20, 1, 1, 1), [[1, 2, 3]] * 40, n=2)
    assert len(runs) == 3
    runs.clear()
    lens.trace(X, [7, 8], n=2)
    assert len(runs) == 1


def bytes_for_backward(model: nn.Module, call: Callable[[], object]) -> int:
    """Bytes of the distinct storages autograd keeps during a call, without the model's own tensors."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("net", ["small", "resnet18"])
@pytest.mark.parametrize("n", [1, 2])
def test_refining_keeps_nothing_for_the_backward(net: str, n: int) -> None:
    lens = Lens(nets.small().float()) if net == "small" else nets.zoo(net)
    batch = X.float()
    plain = bytes_for_backward(lens.model, lambda: lens.trace(batch, 0, n=n))
    refined = bytes_for_backward(lens.model, lambda: lens.trace(batch, 0, n=n, refine=2).explain(n=n, refine=2))
    assert refined == plain > 0
    if net == "small":
        assert plain < bytes_for_backward(lens.model, lambda: lens.trace(batch, 0, n=3)), (
            "blocks in the graph cost more"
        )


@pytest.mark.slow
def test_resnet50_keeps_at_most_8_mib_an_image() -> None:
    lens, batch = nets.zoo("resnet50"), torch.randn(2, 3, 224, 224)
    ours = bytes_for_backward(lens.model, lambda: lens.trace(batch, 0, n=2)) / len(batch)
    whole = bytes_for_backward(lens.model, lambda: lens.model(batch[:1]))
    assert 0.5 * 2**20 < ours <= 8 * 2**20
    assert ours < whole / 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n", "limit"),
    [("resnet50", 1, 1.01), ("resnet50", 2, 1.25), ("resnet101", 2, 1.15), ("densenet201", 2, 1.2)],
)
def test_operations_beside_a_plain_forward(name: str, n: int, limit: float) -> None:
    lens, batch = nets.zoo(name), torch.randn(1, 3, 64, 64)
    with FlopCounterMode(display=False) as plain, torch.no_grad():
        lens.model(batch)
    with FlopCounterMode(display=False) as ours:
        lens.trace(batch, 0, n=n)
    assert 1 <= ours.get_total_flops() / plain.get_total_flops() <= limit


@pytest.mark.slow
@pytest.mark.parametrize(("n", "each"), [(1, 0.1 / 20), (2, 1.25 * 0.2)])
def test_operations_of_twenty_targets(n: int, each: float) -> None:
    """Beside one target's, in plain forwards: 0.1 for twenty at n = 1, 1.25 times the floor of 0.2 each at n = 2."""
    lens, batch = nets.zoo("resnet50"), torch.randn(1, 3, 224, 224)
    with FlopCounterMode(display=False) as plain, torch.no_grad():
        lens.model(batch)
    with FlopCounterMode(display=False) as ours:
        lens.trace(batch, [list(range(20))], n=n)
    extra = ours.get_total_flops() / plain.get_total_flops() - 1
    assert 0 < extra <= 20 * each


@pytest.mark.slow
def test_operations_of_a_refined_map() -> None:
    """The whole map of one class from the last block, refined by two: 1.046 plain forwards of ResNet-101."""
    lens, batch = nets.zoo("resnet101"), torch.randn(1, 3, 224, 224)
    with FlopCounterMode(display=False) as plain, torch.no_grad():
        lens.model(batch)
    with FlopCounterMode(display=False) as ours:
        lens.classify(batch, 0, n=1, refine=2)
    assert 1 < ours.get_total_flops() / plain.get_total_flops() <= 1.05
