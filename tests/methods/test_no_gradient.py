"""Methods that need no gradient: no graph, no backward, and the same maps as from a full trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nets
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from gamlens import METHODS, GamlensError, Lens, PairExplanation, Transform
from gamlens.compiled import maps, split
from gamlens.data import load
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.protocol import Protocol, units
from gamlens.methods import Method

quiet = pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
X, Y, WIDE = nets.images(2), nets.images(3, seed=1), nets.images(2, (80, 112), seed=2)
CAPTIONS = torch.randn(3, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
VIEWS = ("flip", 1.5)
HEAD = nn.Linear(nets.CLASSES, 1).double()  # a score with parameters of its own, which have gradients


def length(activation: Tensor) -> Tensor:
    """The length of the vector of channels at each position: (B,C,h,w) -> (B,h,w)."""
    return activation.square().sum(dim=1).sqrt()


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "length", Method(length, "block", "Length", needs_gradient=False))


@pytest.fixture
def lens() -> Lens:
    return Lens(nets.small())


class Cost:
    """How many tensors autograd kept, and how many backwards ran."""

    def __init__(self) -> None:
        self.kept = self.backwards = 0

    def pack(self, tensor: Tensor) -> Tensor:
        self.kept += 1
        return tensor

    @contextmanager
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cost]:
        real = torch.autograd.grad

        def grad(*args: Any, **options: Any) -> Any:
            self.backwards += 1
            return real(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(torch.autograd, "grad", grad)
            with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor):
                yield self


BLOCK_CALLS: dict[str, Callable[[Lens, str], Any]] = {
    "classify": lambda lens, method: lens.classify(X, [[1, 2], 3], method=method, n=3),
    "probability": lambda lens, method: lens.classify(X, method=method, score="probability"),
    "callable score": lambda lens, method: lens.classify(X, method=method, score=lambda out: HEAD(out)[:, 0]),
    "batches": lambda lens, method: lens.classify(list(X), method=method, batch_size=1),
    "views": lambda lens, method: lens.classify(X, 4, method=method, views=VIEWS),
    "stream": lambda lens, method: list(lens.stream(X, method=method, batch_size=2)),
    "trace": lambda lens, method: lens.trace(X, method=method).explain(method, 1),
    "text": lambda lens, method: lens.compare_text(X, ["a", "b", "c"], method=method, embeddings=CAPTIONS, views=VIEWS),
}
PAIR_CALLS: dict[str, Callable[[Lens, str], Any]] = {
    "compare": lambda lens, method: lens.compare(X, Y[:2], method=method),
    "compare sizes": lambda lens, method: lens.compare(X, WIDE, method=method, score="dot"),
    "compare views": lambda lens, method: lens.compare(X, Y[:2], method=method, views=VIEWS),
    "compare one": lambda lens, method: lens.compare(X[:1], Y, method=method, score=lambda x, y: (x * y).sum(1) ** 2),
    "trace_pair": lambda lens, method: lens.trace_pair(X, Y[:2], method=method).explain(method),
    "compare_many": lambda lens, method: lens.compare_many(X, Y, method=method),
    "compare_many top": lambda lens, method: lens.compare_many(X, Y, method=method, top=2, score="dot", batch_size=2),
    "compare_many n": lambda lens, method: lens.compare_many(X, Y, method=method, n=2, pairs=[(0, 2), (1, 0)]),
}
CASES = [(call, "length") for call in BLOCK_CALLS] + [(call, m) for m in ("length", "vdsn") for call in PAIR_CALLS]


@quiet
@pytest.mark.parametrize(("call", "method"), CASES)
def test_nothing_is_kept_for_a_backward_and_none_runs(
    lens: Lens, call: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = {**BLOCK_CALLS, **PAIR_CALLS}[call]
    with Cost().counted(monkeypatch) as cost:
        run(lens, method)
    assert (cost.kept, cost.backwards) == (0, 0)
    with Cost().counted(monkeypatch) as usual:
        run(lens, "gam")
    assert usual.kept > 0
    assert usual.backwards > 0


@quiet
@pytest.mark.parametrize("method", ["length", "vdsn"])
@pytest.mark.parametrize("views", [(), VIEWS])
def test_a_trace_of_pairs_runs_its_backward_only_for_methods_that_need_one(
    lens: Lens, method: str, views: tuple[str | float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = lens.trace_pair(X, Y[:2], views=views)
    with Cost().counted(monkeypatch) as cost:
        before = pair.explain(method, score="dot")
    assert cost.backwards == 0
    with Cost().counted(monkeypatch) as cost:
        pair.explain("gam", score="dot")
    assert cost.backwards == len(pair.views) + 1
    same_pairs(before, pair.explain(method, score="dot"))
    same_pairs(before, pair.release().explain(method, score="dot"))


@quiet
@pytest.mark.parametrize("task", ["classification", "cosine"])
def test_an_evaluation_of_such_methods_alone_runs_no_backward(
    boxed: Callable[..., Path], task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = boxed(4, lambda number: 40)
    lens = Lens(nets.small().float(), transform=Transform((64, 64)))
    rows = {}
    for methods, backwards in ((("length",), False), (("gam", "length"), True)):
        protocol = Protocol("localization", task, methods, (1, 2))
        with Cost().counted(monkeypatch) as cost:
            items = units(load("table", root / "items.csv"), protocol)
            found = [row for part in evaluate(lens, items, protocol) for row in part]
        assert (cost.backwards > 0) == backwards
        rows[methods] = [row for row in found if row["method"] == "length"]
    assert rows["length",] == rows["gam", "length"]
    assert rows["length",]


def test_remembered_images_cost_no_backward_either(lens: Lens, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = lens.remember(Y)
    for method in ("length", "vdsn"):
        with Cost().counted(monkeypatch) as cost:
            many = lens.compare_many(X, gallery, method=method)
        assert (cost.kept, cost.backwards) == (0, 0)
        same_pairs(many, lens.compare_many(X, Y, method=method))


def test_operations_are_those_of_a_plain_forward() -> None:
    lens, batch = nets.zoo("resnet50"), torch.randn(1, 3, 64, 64)
    with FlopCounterMode(display=False) as plain, torch.no_grad():
        lens.model(batch)
    with FlopCounterMode(display=False) as ours:
        lens.classify(batch, 0, method="length", n=2)
    assert ours.get_total_flops() == plain.get_total_flops()


def same_pairs(a: PairExplanation, b: PairExplanation, *, atol: float = 0) -> None:
    nets.same(a.x, b.x, atol=atol)
    nets.same(a.y, b.y, atol=atol)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("options", [{}, {"views": VIEWS}, {"score": "probability"}])
def test_the_maps_are_those_of_a_full_trace(lens: Lens, n: int, options: dict[str, Any]) -> None:
    target = [[1, 2], None]
    full = lens.trace(X, target, n=3, **options)
    nets.same(lens.classify(X, target, method="length", n=n, **options), full.explain("length", n), atol=0)
    expected = torch.stack([length(full.activations["layer3"])[image] for image in (0, 0, 1)])
    assert torch.equal(full.raw("length"), expected)


@pytest.mark.parametrize("method", ["length", "vdsn"])
@pytest.mark.parametrize("score", ["cosine", "dot", lambda x, y: (x - y).norm(dim=1)])
@pytest.mark.parametrize("y", [Y[:2], WIDE])
def test_pairs_are_those_of_a_full_trace(lens: Lens, method: str, score: Any, y: Tensor) -> None:
    same_pairs(lens.compare(X, y, method=method, score=score), lens.trace_pair(X, y).explain(method, score=score))
    many = lens.compare_many(X, y, method=method, score=score, n=2, pairs=[(0, 0), (1, 1)])
    one = lens.compare(X, y, method=method, score=score, n=2)
    torch.testing.assert_close(many.x.maps, one.x.maps, atol=1e-6, rtol=0)
    torch.testing.assert_close(many.y.maps, one.y.maps, atol=1e-6, rtol=0)
    torch.testing.assert_close(many.scores, one.scores)


def test_text_is_that_of_a_full_trace(lens: Lens) -> None:
    captions = ["a", "b", "c"]
    found = lens.compare_text(X, captions, method="length", embeddings=CAPTIONS)
    nets.same(found, lens.trace_text(X, captions, embeddings=CAPTIONS).explain("length"), atol=0)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision(precision: str) -> None:
    lens = Lens(nets.small().float(), precision=precision)
    nets.same(lens.classify(X, 3, method="length"), lens.trace(X, 3).explain("length"), atol=0)
    same_pairs(lens.compare(X, Y[:2], method="vdsn"), lens.trace_pair(X, Y[:2]).explain("vdsn"))


@quiet
@pytest.mark.slow
def test_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program serves both, with a graph and without, in either order."""
    monkeypatch.setattr(split, "BACKEND", "aot_eager")
    maps._compiled.cache_clear()
    torch._dynamo.reset()
    net = nets.small().float()
    plain, compiled = Lens(net), Lens(net, compile=True)
    for method in ("length", "gam", "length"):
        compiled.classify(X, [1, 2], method=method)  # tracing and compiling keep tensors of their own
        with Cost().counted(monkeypatch) as cost:
            found = compiled.classify(X, [1, 2], method=method)
        assert (cost.backwards > 0) == (cost.kept > 0) == (method == "gam")
        nets.same(found, plain.classify(X, [1, 2], method=method), atol=1e-5)
    for method in ("vdsn", "length"):
        same_pairs(compiled.compare(X, Y[:2], method=method), plain.compare(X, Y[:2], method=method), atol=1e-5)
    assert all(made is not None for made in compiled._hooked._programs.values())
    assert len(compiled._hooked._programs) == 2


def test_a_trace_without_gradients_says_what_it_cannot_do(lens: Lens) -> None:
    trace = lens.trace(X, [3, 4], method="length", n=3)
    assert trace.blocks == lens.blocks[-3:]
    assert trace.gradients == {}
    assert trace.top(1)[0][0].index == int(lens.outputs(X)[0].argmax())
    assert "2 images" in repr(trace)
    trace.release().explain("length", 2)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: trace.explain("gam"), "'gam'"),
        (lambda: trace.raw("grad_cam"), "'grad_cam'"),
        (lambda: trace.sums(), "sums"),
        (lambda: trace.evidence(), "evidence"),
        (lambda: trace.retarget(1), "retarget"),
    ]
    for call, what in calls:
        with pytest.raises(GamlensError, match=f"needs no gradient.*{what}: trace again without method="):
            call()
    with pytest.raises(GamlensError, match="reads the pixels"):
        trace.explain("input_gradient")
    with pytest.raises(GamlensError, match="'layer9' was not captured"):
        trace.raw("length", "layer9")


def test_a_pair_trace_without_gradients_has_any_score(lens: Lens, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = lens.trace_pair(X, Y[:2], method="vdsn")
    with Cost().counted(monkeypatch) as cost:
        for score in ("cosine", "dot", lambda x, y: -(x - y).square().sum(dim=1)):
            torch.testing.assert_close(pair.sides(score)[0].scores, lens.trace_pair(X, Y[:2]).sides(score)[0].scores)
            pair.explain("length", score=score)
    assert cost.backwards == 3  # of the full traces
    assert pair.matches((10, 10)).map.shape == (4, 4)
    with pytest.raises(GamlensError, match=r"needs no gradient.*trace again without method="):
        pair.explain("gam")


@quiet
def test_equal_images_have_maps(lens: Lens) -> None:
    """At a cosine of 1 there is no gradient; a method that reads none has its map nevertheless."""
    found = lens.compare(X, X, method="vdsn")
    many = lens.compare_many(X, X, method="length", pairs=[(0, 0)])
    assert float(found.x.maps.max()) == float(many.x.maps.max()) == 1


def test_a_method_of_the_pixels_may_need_no_gradient(lens: Lens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "grey", Method(length, "input", "Grey", needs_gradient=False))
    with Cost().counted(monkeypatch) as cost:
        found = lens.classify(X, method="grey")
    assert (cost.kept, cost.backwards) == (0, 0)
    low, high = length(X).amin(dim=(1, 2), keepdim=True), length(X).amax(dim=(1, 2), keepdim=True)
    torch.testing.assert_close(found.maps, ((length(X) - low) / (high - low)).float())


def test_a_method_may_read_the_score_alone_beside_the_activation(lens: Lens, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(activation: Tensor, score: Tensor) -> Tensor:
        return length(activation) * score.abs()[:, None, None]

    entry = Method(scaled, "block", "Scaled", needs_gradient=False, reads_score=True)
    monkeypatch.setitem(METHODS, "scaled", entry)
    trace = lens.trace(X, [3, 4], method="scaled")
    torch.testing.assert_close(trace.raw("scaled"), trace.raw("length") * trace.scores.abs()[:, None, None])


@quiet
@pytest.mark.parametrize("inplace", [False, True])
def test_the_model_is_left_as_it_was(inplace: bool) -> None:
    net = nets.small(inplace=inplace)
    net.train()
    net.fc.eval()
    lens = Lens(net)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    found = lens.classify(X, method="length", n=3)
    lens.compare(X, Y[:2], method="vdsn")
    assert [module.training for module in net.modules()] == modes
    assert all(parameter.grad is None and parameter.requires_grad for parameter in net.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert torch.is_grad_enabled()
    nets.same(found, Lens(nets.small()).classify(X, method="length", n=3))


def test_a_broken_network_is_an_error_here_too() -> None:
    net: nn.Module = nets.small()
    with torch.no_grad():
        net.layer3[0].weight[0] = float("nan")
    with pytest.raises(GamlensError, match="not finite"):
        Lens(net).classify(X, method="length")
