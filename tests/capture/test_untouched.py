"""The model is left as it was found, whatever happens, and many threads may look through one lens."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import nets
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.models import DenseNet

from gamlens import GamlensError, Lens

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def state(net: nn.Module) -> dict[str, Any]:
    """All that a user could notice: tensors, gradients, flags, hooks, grad mode, the random numbers to come."""
    return {
        "tensors": {name: (id(value), value._version, value.clone()) for name, value in net.state_dict().items()},
        "grad": {name: None if p.grad is None else (id(p.grad), p.grad.clone()) for name, p in net.named_parameters()},
        "requires_grad": {name: p.requires_grad for name, p in net.named_parameters()},
        "training": {name: module.training for name, module in net.named_modules()},
        "hooks": {(name, kind): len(getattr(m, kind)) for name, m in net.named_modules() for kind in HOOKS},
        "attributes": {name: sorted(vars(module)) for name, module in net.named_modules()},
        "mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        "random": torch.get_rng_state(),
    }


def resident() -> int:
    """Bytes of memory this process holds."""
    try:
        import psutil
    except ImportError:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return int(psutil.Process().memory_info().rss)


def unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    for part, value in before.items():
        if part in ("tensors", "grad"):
            assert value.keys() == after[part].keys()
            for name, old in value.items():
                new = after[part][name]
                assert (old is None) == (new is None), name
                assert old is None or torch.equal(old[-1], new[-1]), name
                assert part == "grad" or old[1] == new[1], f"{name} was written to"
        elif part == "random":
            assert torch.equal(value, after[part])
        else:
            assert value == after[part], part


class Raises(nets.Small):
    """Small, but layer3 raises what it is told to."""

    error: BaseException | None = None

    def features(self, x: Tensor) -> Tensor:
        h = self.layer2(self.layer1(self.stem(x)))
        if self.error is not None:
            raise self.error
        return self.layer3(h)


def lived_in(make: Callable[..., nn.Module] = Raises) -> nn.Module:
    """A model in the middle of a user's work: mixed modes, frozen parts, gradients, own hooks."""
    net = nets.seeded(make)
    net.train()
    net.layer1.eval()
    net.layer2[1].eval()
    net.stem.requires_grad_(False)
    net.fc.weight.grad = torch.full_like(net.fc.weight, 3)
    net.layer2.register_forward_hook(lambda module, args, output: None)
    net.layer3[0].register_forward_pre_hook(lambda module, args: None)
    net.layer3[0].register_full_backward_hook(lambda module, grad_in, grad_out: None)
    return net


CALLS: dict[str, Callable[[Lens], object]] = {
    "classify": lambda lens: lens.classify(nets.images(2), [[1, 2], 3]),
    "trace": lambda lens: lens.trace(nets.images(2), n=3).retarget(4).explain("layer_cam", 3),
    "callable": lambda lens: lens.trace(nets.images(2), score=lambda output: output[:, 0]),
    "compare": lambda lens: lens.compare(nets.images(2), nets.images(2, seed=3)),
    "two sizes": lambda lens: lens.compare(nets.images(2), nets.images(2, 80)),
    "lens": lambda lens: Lens(lens.model, blocks=["layer3", "layer1"]).classify(nets.images(1)),
    "refine": lambda lens: lens.classify(nets.images(2), [[1, 2], 3], n=1, refine=2, views="flip"),
}
FAILURES: dict[str, Callable[[Lens], object]] = {
    "class": lambda lens: lens.classify(nets.images(2), 99),
    "n": lambda lens: lens.classify(nets.images(2), n=9),
    "nan": lambda lens: lens.classify(nets.images(2) * float("nan")),
    "score": lambda lens: lens.trace(nets.images(2), score=lambda output: output),
    "detached": lambda lens: lens.trace(nets.images(2), score=lambda output: output[:, 0].detach()),
    "channels": lambda lens: lens.classify(nets.images(2, channels=4)),
    "block": lambda lens: Lens(lens.model, blocks=["fc"]).classify(nets.images(1)),
    "refine": lambda lens: lens.classify(nets.images(2), n=1, refine=9),
    "not captured": lambda lens: lens.trace(nets.images(2), n=1).explain(n=1, refine=2),
    "an earlier block": lambda lens: Lens(lens.model, blocks=["fc", "layer3"]).classify(nets.images(1), refine=1),
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_changes_nothing(name: str, grad: bool) -> None:
    net = lived_in()
    with torch.set_grad_enabled(grad):
        before = state(net)
        CALLS[name](Lens(net))
        unchanged(before, state(net))


@pytest.mark.parametrize("name", FAILURES)
def test_a_gamlens_error_changes_nothing(name: str) -> None:
    net = lived_in()
    lens = Lens(net)
    before = state(net)
    with pytest.raises(GamlensError):
        FAILURES[name](lens)
    unchanged(before, state(net))


@pytest.mark.parametrize("bound", [True, False], ids=["capturing", "discovering"])
@pytest.mark.parametrize(
    "error", [ValueError("inside"), KeyboardInterrupt(), SystemExit(3)], ids=lambda e: type(e).__name__
)
def test_an_exception_in_the_forward_changes_nothing(error: BaseException, bound: bool) -> None:
    net = lived_in()
    lens = Lens(net)
    net.error = error
    before = state(net)
    with pytest.raises(GamlensError if isinstance(error, Exception) else type(error)) as caught:
        (lens if bound else Lens(net)).compare(nets.images(2), nets.images(2, seed=3))
    assert caught.value is error or caught.value.__cause__ is error
    unchanged(before, state(net))
    net.error = None
    assert len(lens.classify(nets.images(2))) == 2


def test_an_exception_after_the_earlier_blocks_changes_nothing() -> None:
    """They are kept by then, and their hooks are still there."""
    net = lived_in()
    lens = Lens(net)
    expected = lens.classify(nets.images(2), 3, n=1, refine=2)
    net.error = ValueError("inside")
    before = state(net)
    with pytest.raises(GamlensError) as caught:
        lens.classify(nets.images(2), 3, n=1, refine=2)
    assert caught.value.__cause__ is net.error
    unchanged(before, state(net))
    net.error = None
    nets.same(lens.classify(nets.images(2), 3, n=1, refine=2), expected)


def test_a_model_in_train_mode_is_looked_at_in_eval_mode() -> None:
    net = nets.small(dropout=0.9)
    expected = Lens(net).classify(nets.images(2), 3)
    net.train()
    statistics = net.layer1[1].running_mean.clone()
    nets.same(Lens(net).classify(nets.images(2), 3), expected)
    assert all(module.training for module in net.modules())
    assert torch.equal(net.layer1[1].running_mean, statistics)
    assert int(net.layer1[1].num_batches_tracked) == 0


class Checkpointed(nets.Small):
    """Its last stage is computed again in the backward."""

    def features(self, x: Tensor) -> Tensor:
        return checkpoint(self.layer3, self.layer2(self.layer1(self.stem(x))), use_reentrant=False)


def dense() -> nn.Module:
    return DenseNet(4, (2, 2, 2, 2), 8, num_classes=5, memory_efficient=True)


@pytest.mark.parametrize("make", [Checkpointed, dense])
def test_activation_checkpointing_in_train_mode_changes_nothing(make: Callable[..., nn.Module]) -> None:
    net = nets.seeded(make)
    lens = Lens(net)
    expected = lens.classify(nets.images(2), 3)
    net.train()
    before = state(net)
    nets.same(lens.classify(nets.images(2), 3), expected)
    nets.same(lens.trace(nets.images(2)).retarget(3).explain(), expected)
    lens.trace(nets.images(2), score=lambda output: output[:, 3])
    lens.compare(nets.images(2), nets.images(2, seed=3))
    lens.trace_pair(nets.images(2), nets.images(2, 80)).explain(score="dot")
    unchanged(before, state(net))


class Writes(nets.Small):
    """Changes its input in place, and takes one size only where it is told to."""

    only: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.only not in (None, x.shape[2]):
            raise ValueError(f"{self.only} pixels only")
        return super().forward(x.sub_(0.1).mul_(3))


def test_inputs_are_not_written_to() -> None:
    batch = nets.images(2).requires_grad_(True)
    kept = batch.detach().clone()
    lens = Lens(nets.seeded(Writes))
    first = lens.classify(batch)
    lens.compare(batch, batch.flip(2))
    assert torch.equal(batch, kept)
    assert batch.grad is None
    nets.same(lens.classify(kept), first)


def test_one_against_many_of_another_size_may_be_written_to() -> None:
    lens, one, many = Lens(nets.seeded(Writes)), nets.images(1, 80), nets.images(2)
    nets.same(lens.compare(many, one).x, lens.compare(many, torch.cat([one, one])).x)


@pytest.mark.parametrize("inference", [False, True])
def test_looking_for_blocks_does_not_write_to_the_first_image(inference: bool) -> None:
    net = nets.seeded(Writes)
    net.only = 64
    lens = Lens(net)
    with torch.inference_mode(inference):
        first = lens.classify(nets.images(2), 3)
    nets.same(lens.classify(nets.images(2), 3), first)


@pytest.mark.parametrize("workers", [2, 8])
@pytest.mark.parametrize("training", [False, True])
def test_threads_get_what_one_would(workers: int, training: bool) -> None:
    net = nets.small().train(training)
    lens = Lens(net)
    batches = [nets.images(2, seed=seed) for seed in range(12)]

    def look(job: int) -> Any:
        target = [[job % 10, (job + 3) % 10], (job + 1) % 10]
        if job % 3 == 0:
            return lens.compare(batches[job], batches[job - 1]).y
        if job % 3 == 1:
            return lens.trace(batches[job]).retarget(target).explain()
        return lens.classify(batches[job], target)

    alone = [look(job) for job in range(12)]
    with ThreadPoolExecutor(workers) as pool:
        for ours, theirs in zip(pool.map(look, range(12)), alone, strict=True):
            nets.same(ours, theirs)
    assert all(module.training == training for module in net.modules())
    assert not any(module._forward_hooks for module in net.modules())


def test_two_threads_refine_through_one_lens() -> None:
    lens, batches = Lens(nets.small()), [nets.images(2, seed=seed) for seed in range(6)]

    def look(job: int) -> Any:
        if job % 3 == 2:
            return lens.compare(batches[job], batches[job - 1], n=1, refine=2).y
        return lens.classify(batches[job], [[1, 2], job], n=1, refine=2 if job % 3 else False)

    alone = [look(job) for job in range(6)]
    with ThreadPoolExecutor(2) as pool:
        for ours, theirs in zip(pool.map(look, range(6)), alone, strict=True):
            nets.same(ours, theirs)
    assert not any(module._forward_hooks for module in lens.model.modules())


class Visited(nets.Small):
    """Another thread runs the whole model while the first one is between layer2 and layer3."""

    visitor: Callable[[], None] | None = None

    def features(self, x: Tensor) -> Tensor:
        h = self.layer2(self.layer1(self.stem(x)))
        if (visitor := self.visitor) is not None:
            self.visitor = None
            thread = threading.Thread(target=visitor)
            thread.start()
            thread.join()
        return self.layer3(h)


@pytest.mark.parametrize("when", ["discovering", "capturing", "comparing"])
def test_a_foreign_thread_runs_the_plain_model_meanwhile(when: str) -> None:
    net = nets.seeded(Visited)
    lens, batch, seen = Lens(net), nets.images(2, seed=5), []
    expected, plain = lens.compare(batch, nets.images(2)), net(batch)

    def visit() -> None:
        output = net(batch)
        seen.append((output, output.requires_grad))

    net.visitor = visit
    if when == "discovering":
        assert Lens(net).blocks == lens.blocks
    elif when == "capturing":
        nets.same(lens.classify(batch, 3), Lens(nets.small()).classify(batch, 3))
    else:
        nets.same(lens.compare(batch, nets.images(2)).y, expected.y)
    assert len(seen) == 1
    assert torch.equal(seen[0][0], plain)
    assert seen[0][1]


@pytest.mark.slow
def test_a_thousand_calls_do_not_grow_memory() -> None:
    lens, batch = Lens(nets.small().float()), nets.images(2, 32).float()

    def look(times: int) -> tuple[int, int]:
        for _ in range(times):
            lens.classify(batch, [[1, 2], 3])
            lens.trace(batch).retarget(4)
            lens.compare(batch, batch.flip(2))
        gc.collect()
        return len(gc.get_objects()), resident()

    look(40)
    objects, rss = look(10)
    more_objects, more_rss = look(334)
    assert more_objects - objects < 300
    assert more_rss - rss < 24 * 2**20


@pytest.mark.parametrize("name", CALLS)
def test_a_result_is_freed_without_the_garbage_collector(name: str) -> None:
    """On a GPU nothing calls the collector when memory runs out: no cycle may hold activations."""
    lens, alive = Lens(nets.small()), []
    lens.model.fc.register_forward_hook(lambda module, args, output: alive.append(weakref.ref(output)))
    CALLS[name](lens)
    gc.collect()
    alive.clear()
    gc.disable()
    try:
        CALLS[name](lens)
        assert alive
        assert not [reference for reference in alive if reference() is not None]
    finally:
        gc.enable()
