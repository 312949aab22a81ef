"""compile=True: the same maps from compiled parts, no graph breaks, the user's model untouched."""

from __future__ import annotations

import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import nets
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torchvision import models

from gamlens import GamlensError, GamlensWarning, Lens
from gamlens import compiled as fast
from gamlens.capture.guard import ModelGuard
from gamlens.capture.layer_points import LayerPoint
from gamlens.compiled import split


def transformer() -> nn.Module:
    return models.VisionTransformer(64, 16, 2, 2, 32, 64, num_classes=nets.CLASSES)


X, Y = nets.images(2).float(), nets.images(2, seed=1).float()


def lenses(make: Callable[[], nn.Module], **options: Any) -> tuple[Lens, Lens]:
    net = nets.seeded(make).float()
    if isinstance(net, models.VisionTransformer):
        nn.init.normal_(net.heads[-1].weight)
    return Lens(net, **options), Lens(net, compile=True, **options)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (nets.Small, {}),
        pytest.param(nets.Residual, {"output": "logits"}, marks=pytest.mark.slow),
        pytest.param(nets.dense, {}, marks=pytest.mark.slow),
        pytest.param(transformer, {"transform": "squash"}, marks=pytest.mark.slow),
    ],
)
def test_the_same_maps(make: Callable[[], nn.Module], options: dict[str, Any]) -> None:
    plain, compiled = lenses(make, **options)
    plain.classify(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # of what other tests left open
        ours, theirs = (lens.classify(X, [0, 1], method="gam", n=2) for lens in (compiled, plain))
        nets.same(ours, theirs, atol=1e-5)
        ours, theirs = (lens.compare(X, Y, method="gam") for lens in (compiled, plain))
    nets.same(ours.x, theirs.x, atol=2e-5)
    nets.same(ours.y, theirs.y, atol=2e-5)
    assert not counters["graph_break"]
    assert all(made is not None for made in compiled._hooked._programs.values())
    assert len(compiled._hooked._programs) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*(grad_cam|Grad-CAM):gamlens.GamlensWarning")
def test_everything_a_trace_can_do() -> None:
    """Many targets, other targets later, every method, any n, a callable score, another number of images."""
    plain, compiled = lenses(nets.Small)
    classes = [[1, 2], 3]
    a, b = compiled.trace(X, classes, n=3), plain.trace(X, classes, n=3)
    for method in ("gam", "grad_cam", "grad_cam_pp", "xgrad_cam"):
        nets.same(a.explain(method, 2), b.explain(method, 2), atol=1e-5)
    nets.same(a.explain(fuse=[1.0, 2.0]), b.explain(fuse=[1.0, 2.0]), atol=1e-5)
    nets.same(a.retarget(5).explain("gam", 3), b.retarget(5).explain("gam", 3), atol=1e-5)
    score = {"score": lambda output: output[:, 0] ** 2}
    nets.same(compiled.trace(X, n=3, **score).explain(), plain.trace(X, n=3, **score).explain(), atol=1e-5)
    for count in (1, 5):
        images = nets.images(count, seed=4).float()
        nets.same(compiled.trace(images, 1, n=3).explain(), plain.trace(images, 1, n=3).explain(), atol=1e-5)
    assert len(compiled._hooked._programs) == 2, "one image is a program of its own"
    with pytest.warns(GamlensWarning, match="flat"):
        compiled.trace(X, n=3, score=lambda output: output[:, 0] * 0).explain()


@pytest.mark.slow
def test_a_new_number_of_images_is_compiled_for_but_once() -> None:
    """The second number makes everything compile for any, so that a folder's last batch does not cost as much again."""
    plain, compiled = lenses(nets.Small)
    made = []
    for count in (3, 5, 4, 7, 2):
        images = nets.images(count, seed=count).float()
        nets.same(compiled.classify(images, 1), plain.classify(images, 1), atol=1e-5)
        made.append(counters["stats"]["unique_graphs"])
    assert made[0] < made[1] == made[2] == made[3] == made[4]


@pytest.mark.slow
def test_parts_are_cut_at_the_wanted_blocks_alone() -> None:
    net = nets.seeded(nets.Small).float()
    for names in (["layer3"], ["layer1", "layer3"], ["layer1", "layer2", "layer3"]):
        made = fast.build(ModelGuard(net), X, [LayerPoint.parse(name) for name in names])
        assert len(made.parts) == len(names) + 1
        assert list(made.blocks) == names
        tail = made.run(X, precision=None, grids={})
        assert [block.is_leaf for block in tail.blocks.values()] == [True, *[False] * (len(names) - 1)]
    assert made.batch is None


class ChangesEarlier(nets.Small):
    """Changes what layer2 has read in place afterwards."""

    def features(self, x: Tensor) -> Tensor:
        y = self.layer1(self.stem(x))
        z = self.layer2(y)
        y.neg_()
        return self.layer3(z)


def test_maps_are_refined_by_the_same_blocks() -> None:
    """Their values, outside of the graph and as they were before they were changed; by a program of its own."""
    plain, compiled = lenses(ChangesEarlier, blocks=["layer2:input", "layer2", "layer3"])
    targets = [[0, 3], 1]
    assert compiled.trace(X, targets, n=1).earlier == {}
    theirs, ours = (lens.trace(X, targets, n=1, refine=2) for lens in (plain, compiled))
    assert list(ours.earlier) == list(theirs.earlier) == ["layer2:input", "layer2"]
    for name, h in ours.earlier.items():
        torch.testing.assert_close(h, theirs.earlier[name], atol=1e-5, rtol=1e-5)
        assert not h.requires_grad
    nets.same(ours.explain(n=1, refine=2), theirs.explain(n=1, refine=2), atol=2e-5)
    nets.same(ours.retarget(5).explain(n=1, refine=1), theirs.retarget(5).explain(n=1, refine=1), atol=2e-5)
    programs = list(compiled._hooked._programs.values())
    assert [len(program.parts) for program in programs if program] == [2, 2], "cut at the last block alone"


def bytes_kept(lens: Lens) -> int:
    """Bytes autograd keeps in a call, without the model's own tensors and what is made of them."""
    kept: dict[int, int] = {}
    made = [item for part in lens._hooked._programs.values() if part for item in part.workshop.items]
    own = {t.untyped_storage().data_ptr() for t in (*lens.model.parameters(), *lens.model.buffers())}
    own |= {
        t.untyped_storage().data_ptr() for item in made for t in (item.made_weight, item.made_bias) if t is not None
    }

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        lens.trace(X, 0, n=2)
    return sum(kept.values())


def test_no_more_is_kept_than_by_the_plain_model() -> None:
    plain, compiled = lenses(nets.Residual, output="logits")
    compiled.trace(X, 0, n=2)
    assert 0 < bytes_kept(compiled) <= bytes_kept(plain)


@pytest.mark.slow
def test_weights_are_followed() -> None:
    """An optimizer's steps, `.data`, statistics of a batch norm, new tensors, new layers: all are seen."""
    net = nets.seeded(nets.Small).float()
    plain, compiled = Lens(net), Lens(net, compile=True)

    def changed(change: Callable[[], object]) -> None:
        before = compiled.classify(X, 0).scores.clone()
        change()
        nets.same(compiled.classify(X, 0), plain.classify(X, 0), atol=1e-5)
        assert not torch.allclose(compiled.classify(X, 0).scores, before)

    def step() -> None:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(1.1)

    changed(step)
    changed(lambda: net.layer3[0].weight.data.mul_(1.5))
    changed(lambda: net.layer3[1].running_mean.add_(0.3))
    changed(lambda: net.load_state_dict({k: v * 1.1 for k, v in net.state_dict().items()}, assign=True))
    changed(lambda: setattr(net, "fc", nn.Linear(32, nets.CLASSES)))
    changed(lambda: setattr(net.layer3, "2", nn.GELU()))


@pytest.mark.slow
def test_the_model_is_left_as_it_was() -> None:
    net = nets.seeded(nets.Small).float().train()
    before = {name: (id(tensor), tensor.clone()) for name, tensor in net.state_dict(keep_vars=True).items()}
    hooks = {name: len(module._forward_hooks) for name, module in net.named_modules()}
    Lens(net, compile=True).classify(X, 0)
    for name, tensor in net.state_dict(keep_vars=True).items():
        assert id(tensor) == before[name][0]
        assert torch.equal(tensor, before[name][1])
        assert tensor.grad is None
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert all(module.training for module in net.modules())
    assert hooks == {name: len(module._forward_hooks) for name, module in net.named_modules()}


class Moody(nets.Small):
    """What runs depends on the image: there is no one graph."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        return self.fc((h if float(h.detach().sum()) > 0 else h * 2).mean(dim=(2, 3)))


class Reaches(nets.Small):
    """Work behind a block writes to a tensor made before it."""

    def features(self, x: Tensor) -> Tensor:
        early = self.layer1(self.stem(x))
        h = self.layer2(early)
        early.add_(h.mean())
        return self.layer3(h) + early.mean()


class Rectified(torch.autograd.Function):
    """A backward that is not its forward's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.relu()


class Guided(nets.Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(Rectified.apply(self.features(x)).mean(dim=(2, 3)))


class Remembers(nets.Small):
    """Leaves a tensor on itself in every forward."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.features(x)
        return self.fc(self.last.mean(dim=(2, 3)))


class Guarded(nets.Small):
    """A gate that gradients do not pass."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        with torch.no_grad():
            gate = h.mean(dim=1, keepdim=True)
        return self.fc((h * gate).mean(dim=(2, 3)))


class Scaled(nets.Small):
    """A parameter among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": super().forward(x), "scale": self.scale}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "options"), [(Guarded, {}), (Scaled, {"output": "logits"})])
def test_what_a_graph_can_hold(make: type[nn.Module], options: dict[str, Any]) -> None:
    plain, compiled = lenses(make, blocks=["layer2", "layer3"], **options)
    nets.same(compiled.classify(X, 0), plain.classify(X, 0), atol=1e-5)
    assert None not in compiled._hooked._programs.values()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("rule", [lambda n: n == 1, lambda n: n > 3, lambda n: n % 2, float])
def test_a_model_that_counts_its_images(rule: Callable[[int], float], count: int) -> None:
    """What was traced for two images is not taken for any number of them."""

    class Counting(nets.Small):
        def forward(self, x: Tensor) -> Tensor:
            h = self.features(x)
            factor = rule(x.shape[0])
            return self.fc(((h * h * factor) if factor else h).mean(dim=(2, 3)))

    plain, compiled = lenses(Counting, blocks=["layer2", "layer3"])
    compiled.classify(X, 0)
    images = nets.images(count, seed=4).float()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*depends on the number of images")
        nets.same(compiled.classify(images, 0), plain.classify(images, 0), atol=1e-5)


def doubles(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


def rectifies(module: nn.Module, gradients: Any, above: Any) -> tuple[Tensor]:
    return (gradients[0].relu(),)


@pytest.mark.slow
@pytest.mark.parametrize("add", ["register_forward_hook", "register_full_backward_hook"])
def test_hooks_of_the_user_run_in_every_call(add: str) -> None:
    """They see real tensors, also where they came after the model was compiled."""
    plain, compiled = lenses(nets.Small)
    before = compiled.classify(X, 0)
    handle = getattr(compiled.model.dropout, add)(doubles if add == "register_forward_hook" else rectifies)
    with pytest.warns(GamlensWarning, match="there are hooks on it"):
        found = compiled.classify(X, 0)
    nets.same(found, plain.classify(X, 0))
    changed = (found.maps - before.maps).abs().max() + (found.scores - before.scores).abs().max()
    assert changed > 1e-2, "and it makes a difference"
    handle.remove()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Moody, "cannot be traced"),
        (Reaches, "writes to"),
        (Guided, "Rectified has a backward of its own"),
        (Remembers, "assigned during export"),
    ],
)
def test_a_model_that_cannot_be_compiled_runs_as_it_is(make: type[nn.Module], why: str) -> None:
    net = nets.seeded(make).float()
    plain, compiled = Lens(net, blocks=["layer2", "layer3"]), Lens(net, blocks=["layer2", "layer3"], compile=True)
    with pytest.warns(GamlensWarning, match=f"runs as it is, not compiled: .*{why}"):
        first = compiled.classify(X, 0)
    nets.same(first, plain.classify(X, 0))
    assert Rectified.apply(X).equal(X), "functions are as they were"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # of what other tests left open
        nets.same(compiled.classify(X, 0), first)


def test_the_one_number_of_images_a_model_is_made_for() -> None:
    class Fixed(nets.Small):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).view(2, nets.CLASSES)

    net = nets.seeded(Fixed).float()
    made = fast.build(ModelGuard(net), X, [LayerPoint.parse("layer3")])
    assert made.batch == 2
    assert made.fits(X)
    assert not made.fits(X[:1])


@pytest.mark.slow
def test_a_lens_that_is_sent_elsewhere_compiles_there() -> None:
    _, compiled = lenses(nets.Small)
    expected = compiled.classify(X, 0)
    other = pickle.loads(pickle.dumps(compiled))
    assert not other._hooked._programs
    nets.same(other.classify(X, 0), expected)


@pytest.mark.slow
def test_an_earlier_trace_stays_good() -> None:
    """Other images in between do not matter, other weights do."""
    plain, compiled = lenses(nets.Small)
    first = compiled.trace(X, 0)
    compiled.trace(Y, 1)
    nets.same(first.retarget(2).explain(), plain.trace(X, 2).explain(), atol=1e-5)
    with torch.no_grad():
        compiled.model.layer3[0].weight.mul_(1.5)
    with pytest.raises(GamlensError, match="changed since the forward"):
        first.retarget(3)


@pytest.mark.slow
def test_several_threads_on_one_model() -> None:
    """Two look through the compiled lens, two through a plain one, whose hooks must not be taken for the user's."""
    plain, compiled = lenses(nets.Small)
    expected, found = [plain.classify(X, c) for c in range(4)], {}

    def look(number: int) -> None:
        for _ in range(3):
            found[number] = (compiled if number < 2 else plain).classify(X, number)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        nets.same(found[number], expected[number], atol=1e-5)
    assert None not in compiled._hooked._programs.values()


@pytest.mark.slow
def test_half_precision_stays_near() -> None:
    plain, compiled = lenses(nets.Small, precision="bf16")
    a, b = compiled.classify(X, [0, 1]), plain.classify(X, [0, 1])
    assert a.maps.dtype == torch.float32
    assert float((a.maps - b.maps).abs().mean()) < 0.02
    (made,) = compiled._hooked._programs.values()
    assert made is not None
    assert {item.made_weight.dtype for item in made.workshop.items} == {torch.bfloat16}
    assert split.BACKEND == "aot_eager"
