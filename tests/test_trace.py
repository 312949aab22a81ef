"""What a trace promises: any method without another pass, scale-free maps, in-place layers that do not matter."""

from __future__ import annotations

from collections.abc import Callable

import nets
import pytest
import torch
from torch import Tensor, nn

from gamlens import METHODS, GamlensError, GamlensWarning, Lens, Refinement, methods

BLOCK_METHODS = methods.names("block")
SCALE_FREE = [name for name in BLOCK_METHODS if METHODS[name].scales_with_gradient]
quiet = pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")


@pytest.fixture(scope="module")
def lens() -> Lens:
    return Lens(nets.small())


@quiet
@pytest.mark.parametrize("method", BLOCK_METHODS)
@pytest.mark.parametrize("n", [1, 3])
def test_explaining_a_trace_equals_classifying(lens: Lens, method: str, n: int) -> None:
    trace = lens.trace(nets.images(2), [3, 7], n=None)
    nets.same(trace.explain(method, n), lens.classify(nets.images(2), [3, 7], method=method, n=n))


@pytest.mark.parametrize("target", [None, 4, [[1, 2], None], [9, [0, 3, 8]]])
@pytest.mark.parametrize("score", ["logit", "probability", "sigmoid"])
def test_retargeting_equals_a_new_trace(lens: Lens, target: object, score: str) -> None:
    batch = nets.images(2)
    trace = lens.trace(batch, 5, score=score)
    again = trace.retarget(target)
    nets.same(again.explain(), lens.trace(batch, target, score=score).explain())
    nets.same(trace.retarget(5).explain(), trace.explain())
    nets.same(again.retarget(5).explain(), trace.explain())


def test_raw_maps_and_gradients_are_those_of_autograd(lens: Lens) -> None:
    batch, net = nets.images(2), lens.model
    trace = lens.trace(batch, [[3, 6], 1], n=2)
    h = net.layer2(net.layer1(net.stem(batch))).detach().requires_grad_(True)
    logits = net.fc(net.layer3(h).mean(dim=(2, 3)))
    expected = [
        (h[image] * torch.autograd.grad(logits[image, target], h, retain_graph=True)[0][image].relu()).sum(dim=0)
        for image, target in ((0, 3), (0, 6), (1, 1))
    ]
    torch.testing.assert_close(trace.raw("gam", "layer2"), torch.stack(expected), atol=1e-12, rtol=1e-9)
    assert trace.raw().shape == (3, 4, 4)
    assert trace.index.tolist() == [0, 0, 1]


@quiet
@pytest.mark.parametrize("method", SCALE_FREE)
@pytest.mark.parametrize("factor", [1e-3, 7.0])
def test_a_positive_factor_on_a_callable_score_changes_no_map(lens: Lens, method: str, factor: float) -> None:
    batch = nets.images(2)

    def score(output: Tensor) -> Tensor:
        return output[:, 2] - output[:, 8]

    plain = lens.trace(batch, score=score).explain(method)
    scaled = lens.trace(batch, score=lambda output: factor * score(output)).explain(method)
    torch.testing.assert_close(scaled.maps, plain.maps, atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.scores, factor * plain.scores)
    assert plain.targets.tolist() == [-1, -1]
    assert plain.names == ["score", "score"]


@quiet
@pytest.mark.parametrize("method", SCALE_FREE)
def test_a_scaled_head_changes_no_map(lens: Lens, method: str) -> None:
    scaled = nets.small()
    with torch.no_grad():
        scaled.fc.weight *= 12.5
        scaled.fc.bias *= 12.5
    ours, theirs = (at.classify(nets.images(2), 4, method=method) for at in (lens, Lens(scaled)))
    torch.testing.assert_close(theirs.maps, ours.maps, atol=1e-5, rtol=0)
    torch.testing.assert_close(theirs.scores, 12.5 * ours.scores)


@pytest.mark.parametrize("factor", [1e-3, 40.0])
def test_a_positive_factor_on_an_embedding_changes_no_pair_map(lens: Lens, factor: float) -> None:
    x, y = nets.images(2, seed=1), nets.images(2, seed=2)
    plain = lens.trace_pair(x, y).explain(score="dot")
    scaled = lens.trace_pair(x, y).explain(score=lambda a, b: factor * (a * b).sum(dim=1))
    for ours, theirs in ((plain.x, scaled.x), (plain.y, scaled.y)):
        torch.testing.assert_close(theirs.maps, ours.maps, atol=1e-5, rtol=0)


@quiet
@pytest.mark.parametrize("make", [nets.Small, nets.DenseLike])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("method", BLOCK_METHODS)
def test_in_place_layers_change_no_map(make: Callable[..., nn.Module], n: int, method: str) -> None:
    plain, inplace = (Lens(nets.seeded(make, inplace=choice)) for choice in (False, True))
    assert plain.blocks == inplace.blocks
    x, y = nets.images(2, seed=1), nets.images(2, seed=2)
    nets.same(inplace.classify(x, 4, method=method, n=n), plain.classify(x, 4, method=method, n=n))
    ours, theirs = (at.compare(x, y, method=method, n=n) for at in (plain, inplace))
    nets.same(theirs.x, ours.x)
    nets.same(theirs.y, ours.y)


def test_gam_is_the_same_before_and_after_an_in_place_relu() -> None:
    """relu(h) is zero wherever norm5's output and the ReLU's differ."""
    maps = [
        Lens(nets.seeded(nets.DenseLike, inplace=inplace), blocks=[block]).classify(nets.images(2), 4, n=1).maps
        for inplace in (False, True)
        for block in ("features", "features.4", "features:relu")
    ]
    for other in maps[1:]:
        torch.testing.assert_close(other, maps[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("inplace", [False, True])
def test_an_embedding_is_read_before_an_in_place_layer_changes_it(inplace: bool) -> None:
    class TwoLayers(nets.Small):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(32, 16)
            self.act = nn.ReLU(inplace=inplace)
            self.last = nn.Linear(16, nets.CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.act(self.first(self.features(x).mean(dim=(2, 3)))))

    net = nets.seeded(TwoLayers)
    x, y = nets.images(1, seed=1), nets.images(1, seed=2)
    expected = [net.first(net.features(side).mean(dim=(2, 3))).detach() for side in (x, y)]
    found = Lens(net, embedding="first").trace_pair(x, y).embeddings
    assert float(expected[0].min()) < 0
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.detach(), theirs)


@quiet
@pytest.mark.parametrize("method", methods.names("block", "pair"))
@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_swapping_x_and_y_swaps_the_maps(lens: Lens, method: str, score: str) -> None:
    x, y = nets.images(2, seed=1), nets.images(2, seed=2)
    there, back = lens.compare(x, y, method=method, score=score), lens.compare(y, x, method=method, score=score)
    nets.same(there.x, back.y)
    nets.same(there.y, back.x)
    torch.testing.assert_close(there.scores, back.scores)
    assert not torch.allclose(there.x.maps, there.y.maps, atol=0.01)


def test_the_pair_score_is_that_of_the_embeddings(lens: Lens) -> None:
    x, y = nets.images(3, seed=1), nets.images(3, seed=2)
    a, b = (lens.model.features(side).mean(dim=(2, 3)).detach() for side in (x, y))
    cosine = torch.cosine_similarity(a, b).float()
    torch.testing.assert_close(lens.compare(x, y).scores, cosine)
    torch.testing.assert_close(lens.compare(x, y, score="dot").scores, (a * b).sum(dim=1).float())
    torch.testing.assert_close(lens.compare(x, y).y.scores, cosine)


def test_a_pair_trace_serves_several_scores_and_then_lets_go(lens: Lens) -> None:
    x, y = nets.images(2, seed=1), nets.images(2, seed=2)
    pair = lens.trace_pair(x, y, n=3)
    for score in ("cosine", "dot", "cosine"):
        for n in (1, 3):
            nets.same(pair.explain(n=n, score=score).y, lens.compare(x, y, score=score, n=n).y)
    pair.release()
    nets.same(pair.explain("layer_cam", score="dot").x, lens.compare(x, y, score="dot", method="layer_cam").x)
    with pytest.raises(GamlensError, match="released: trace the pair again"):
        pair.explain(score=lambda a, b: (a - b).norm(dim=1))


def test_a_released_trace_explains_but_does_not_retarget(lens: Lens) -> None:
    trace = lens.trace(nets.images(2), 3)
    released = trace.release()
    nets.same(released.explain(), trace.explain())
    with pytest.raises(GamlensError, match=r"released.*Trace the images again"):
        released.retarget(4)


def test_identical_images_have_no_cosine_gradient(lens: Lens) -> None:
    x, y = nets.images(2, seed=1), nets.images(2, seed=1)
    y[1] = nets.images(1, seed=9)[0]
    with pytest.warns(GamlensWarning) as caught:
        result = lens.compare(x, y)
    assert any("Pair 0: both embeddings point the same way" in str(one.message) for one in caught)
    for side in (result.x, result.y):
        assert float(side.maps[0].abs().max()) == 0
        assert float(side.maps[1].max()) > 0.5


def test_top_lists_the_best_classes_with_their_chances(lens: Lens) -> None:
    batch = nets.images(2)
    logits = lens.model(batch).detach()
    for row, guesses in enumerate(lens.trace(batch).top(3)):
        assert [guess.index for guess in guesses] == logits[row].topk(3).indices.tolist()
        chances = [float(logits[row].softmax(dim=0)[guess.index]) for guess in guesses]
        assert [guess.probability for guess in guesses] == pytest.approx(chances, rel=1e-4)
    assert len(lens.trace(batch).top(99)[0]) == nets.CLASSES


def test_evidence_is_grad_cam_split_by_sign(lens: Lens) -> None:
    trace = lens.trace(nets.images(2), 3)
    positive, negative, hidden = trace.evidence()
    torch.testing.assert_close((positive + negative).relu(), trace.raw("grad_cam"))
    assert torch.equal(hidden, negative.abs() >= positive)
    assert bool(((trace.evidence().hidden_share >= 0) & (trace.evidence().hidden_share <= 1)).all())
    torch.testing.assert_close(trace.sums().activation, trace.activations["layer3"].relu().sum(dim=1))


@quiet
@pytest.mark.parametrize("method", BLOCK_METHODS)
def test_a_surrounding_autocast_does_not_blur_the_maps(method: str) -> None:
    trace = Lens(nets.small().float()).trace(nets.images(2), 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = trace.explain(method)
    nets.same(inside, trace.explain(method))


@pytest.mark.parametrize("score", ["softmax", "probability", "sigmoid"])
def test_a_temperature_against_autograd(lens: Lens, score: str) -> None:
    """Scores, gradients and guesses are those of class scores divided by T; T = 1 changes no bit and is not said."""
    batch, net, heat = nets.images(2), lens.model, 3.0
    trace = lens.trace(batch, [3, 6], n=1, score=score, temperature=heat)
    h = net.features(batch).detach().requires_grad_(True)
    logits = net.fc(h.mean(dim=(2, 3))) / heat
    chance = logits.sigmoid() if score == "sigmoid" else logits.softmax(dim=1)
    picked = chance[[0, 1], [3, 6]]
    (gradient,) = torch.autograd.grad(picked.sum(), h)
    torch.testing.assert_close(trace.scores, picked.detach(), atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(trace.gradients["layer3"], gradient, atol=1e-12, rtol=1e-9)
    softened = logits.softmax(dim=1).max(dim=1).values.tolist()
    assert [guesses[0].probability for guesses in trace.top(1)] == pytest.approx(softened, rel=1e-5)
    result = lens.classify(batch, [3, 6], n=1, score=score, temperature=heat)
    assert result.about["temperature"] == heat
    nets.same(result, trace.explain(n=1))
    plain = lens.classify(batch, [3, 6], score=score, temperature=1.0)
    nets.same(plain, lens.classify(batch, [3, 6], score=score))
    assert "temperature" not in plain.about


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": 2.0}, "the score is 'logit'"),
        ({"temperature": 0.0, "score": "softmax"}, "give a number above 0"),
        ({"temperature": 2.0, "score": lambda output: output.sum(dim=1)}, "leave temperature out"),
    ],
)
def test_temperatures_that_cannot_be(lens: Lens, options: dict[str, object], said: str) -> None:
    with pytest.raises(GamlensError, match=said):
        lens.classify(nets.images(1), **options)


def test_a_stream_takes_a_temperature(lens: Lens) -> None:
    photo = torch.randint(0, 255, (64, 64, 3), dtype=torch.uint8).numpy()
    (found,) = lens.stream([photo], score="softmax", temperature=2.0)
    nets.same(found.explanation, lens.classify(photo, score="softmax", temperature=2.0))


@quiet
@pytest.mark.parametrize("method", ["gam", "eigen_cam"])
@pytest.mark.parametrize("views", [(), ("flip",)])
def test_a_refined_map_is_the_same_wherever_its_blocks_were_captured(
    lens: Lens, method: str, views: tuple[str, ...]
) -> None:
    """Among the last n, or before them: by classify, by a trace for it, and by a trace of all blocks."""
    batch, targets = nets.images(2, (32, 48)), [[1, 2], 3]
    for n in (1, 2, 3):
        found = lens.classify(batch, targets, method=method, n=n, refine=2, views=views)
        for captured in ({"n": n, "refine": 2}, {"n": None}):
            trace = lens.trace(batch, targets, views=views, **captured)
            again = trace.explain(method, n, refine=2)
            nets.same(again, found)
            assert again.about["refine"] == {"blocks": ["layer2", "layer1"], "keep": 0.5}
            assert trace.refining_blocks(2) == ("layer2", "layer1")
            assert trace.refining_blocks(1) == ("layer2",)


def test_what_refining_needs_is_captured_and_no_more(lens: Lens) -> None:
    for n, how, blocks, earlier in (
        (1, 2, ["layer3"], ["layer1", "layer2"]),
        (1, 1, ["layer3"], ["layer2"]),
        (2, True, ["layer2", "layer3"], ["layer1"]),
        (2, 1, ["layer2", "layer3"], []),
        (None, 2, ["layer1", "layer2", "layer3"], []),
        (2, False, ["layer2", "layer3"], []),
    ):
        trace = lens.trace(nets.images(1), 1, n=n, refine=how)
        assert (list(trace.activations), list(trace.gradients), list(trace.earlier)) == (blocks, blocks, earlier)
        assert trace.blocks == tuple(blocks)
        assert trace.network_blocks == ("layer1", "layer2", "layer3")


@pytest.mark.parametrize(
    ("n", "how", "missing"),
    [
        (1, 1, r"refine=1 needs layer2, and layer2 was not captured: trace the images again with refine=1, or with a"),
        (2, True, r"refine=2 needs layer2, layer1, and layer1 was not captured: trace the images again with refine=2"),
    ],
)
def test_blocks_that_refining_needs_must_have_been_captured(lens: Lens, n: int, how: int, missing: str) -> None:
    batch = nets.images(2)
    for call in (
        lambda: lens.trace(batch, n=n).explain(n=n, refine=how),
        lambda: lens.trace(batch, n=n, views="flip").explain(n=n, refine=how),
        lambda: lens.trace(batch, n=n, score=lambda output: output[:, 0]).explain(n=n, refine=how),
        lambda: lens.trace(batch, n=n).explain_raw("gam", torch.rand(2, 4, 4), refine=how),
        lambda: lens.trace_pair(batch, nets.images(2, seed=1), n=n).explain(n=n, refine=how),
        lambda: lens.trace_pair(batch, nets.images(2, seed=1), n=n).explain("vdsn", refine=how),
    ):
        with pytest.raises(GamlensError, match=missing):
            call()


def test_maps_of_pixels_are_not_refined(lens: Lens) -> None:
    trace = lens.trace(nets.images(1), 1, method="input_gradient")
    for call in (lambda: trace.explain("input_gradient", refine=True), lambda: trace.refining_blocks(1)):
        with pytest.raises(GamlensError, match=r"are of pixels and cannot be refined: leave refine out"):
            call()
    with pytest.raises(GamlensError, match=r"reads the pixels, not blocks, so its maps cannot be refined"):
        lens.trace(nets.images(1), 1, method="input_gradient", refine=True)


@pytest.mark.parametrize("views", [(), ("flip", 0.75)])
def test_retargeting_and_releasing_keep_what_refines(lens: Lens, views: tuple[str | float, ...]) -> None:
    batch = nets.images(2)
    trace = lens.trace(batch, 5, n=1, refine=2, views=views)
    other = trace.retarget([[1, 2, 3], None])
    expected = lens.classify(batch, [[1, 2, 3], None], n=1, refine=2, views=views)
    nets.same(other.explain(n=1, refine=2), expected)
    nets.same(other.release().explain(n=1, refine=2), expected)
    nets.same(other.retarget(5).explain(n=1, refine=2), trace.explain(n=1, refine=2))
    lean = lens.trace(batch, [[1, 2, 3], None], n=1, refine=2, views=views, keep_graph=False)
    nets.same(lean.explain(n=1, refine=2), expected)


def test_a_callable_score_is_refined_like_a_class(lens: Lens) -> None:
    batch = nets.images(2)
    found = lens.trace(batch, score=lambda output: output[:, 4], n=1, refine=2).explain(n=1, refine=2)
    torch.testing.assert_close(found.maps, lens.classify(batch, 4, n=1, refine=2).maps, atol=1e-6, rtol=0)


def test_refining_changes_nothing_in_the_trace(lens: Lens) -> None:
    trace = lens.trace(nets.images(2), [[1, 2], 3], n=1, refine=2, views="flip")
    plain = trace.explain(n=1)
    held = [{**own.activations, **own.gradients, **own.earlier} for own in (trace, trace.views[0][0])]
    before = [{name: tensor.clone() for name, tensor in own.items()} for own in held]
    one, two = trace.explain(n=1, refine=Refinement(2, 0)), trace.explain(n=1, refine=Refinement(2, 0))
    assert torch.equal(one.maps, two.maps)
    assert torch.equal(trace.explain(n=1).maps, plain.maps)
    for own, kept in zip(held, before, strict=True):
        for name, tensor in own.items():
            assert torch.equal(tensor, kept[name])


def test_maps_from_elsewhere_are_refined_alike(lens: Lens) -> None:
    """`refine` of the plain maps gives what `explain` does; raw maps of another making go the same way."""
    trace = lens.trace(nets.images(2), [[1, 2], 3], n=1, refine=2, views="flip")
    for how in (1, True, Refinement(2, 0.1)):
        found = trace.refine(trace.explain(n=1).maps, how)
        torch.testing.assert_close(found.float(), trace.explain(n=1, refine=how).maps, atol=1e-5, rtol=0)
    alone = lens.trace(nets.images(2), [[1, 2], 3], n=1, refine=2)
    nets.same(alone.explain_raw("gam", alone.raw("gam"), refine=2), alone.explain(n=1, refine=2))


@pytest.mark.parametrize("inference", [False, True])
def test_refining_under_autocast_and_in_inference_mode(inference: bool) -> None:
    lens, batch = Lens(nets.small().float()), nets.images(2).float()
    expected = lens.classify(batch, [[1, 2], 3], n=1, refine=2)
    with torch.inference_mode(inference), torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inference):
        trace = lens.trace(batch, [[1, 2], 3], n=1, refine=2)
        found = trace.explain(n=1, refine=2)
        again = trace.refine(trace.explain(n=1).maps, 2)
    near = 1e-5 if inference else 0.1  # the forward itself runs in bfloat16
    torch.testing.assert_close(found.maps, expected.maps, atol=near, rtol=0)
    torch.testing.assert_close(again, found.maps, atol=1e-5, rtol=0)
