"""Many pairs at once: the same maps as one pair at a time, each image run once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nets
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gamlens import GamlensError, GamlensWarning, Lens, PairExplanation, Refinement, methods
from gamlens.retrieval.embedding_form import LINEAR_FORM, OTHER_FORM, UNIT_FORM
from gamlens.retrieval.many_pairs import gradient_of
from gamlens.retrieval.pair_maps import PairMaps
from gamlens.retrieval.remember import gather
from gamlens.retrieval.select import score_gradients

quiet = pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
X, Y, WIDE = nets.images(2), nets.images(5, seed=1), nets.images(3, (80, 112), seed=2)


class Head(nets.Small):
    """Small with another way from the last block to the embedding."""

    def __init__(self, pool: str) -> None:
        super().__init__()
        self.pool, self.last, self.fc1 = pool, nn.Identity(), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        mean = h.mean(dim=(2, 3))
        pooled = {
            "mean": lambda: mean,
            "sum": lambda: h.sum(dim=(2, 3)),
            "bias": lambda: mean + 0.1,
            "negative": lambda: -3 * mean,
            "unit": lambda: F.normalize(mean),
            "max": lambda: h.amax(dim=(2, 3)),
            "fc": lambda: torch.relu(self.fc1(mean)),
            "square": lambda: mean.square(),
            "swap": lambda: mean.flip(1),
            "weighted": lambda: (h * torch.arange(16).reshape(4, 4)).mean(dim=(2, 3)),
            "whole": lambda: h.flatten(1),
        }[self.pool]()
        return self.last(pooled)


LINEAR, OTHER = ("mean", "sum", "bias", "negative"), ("max", "fc", "square", "swap", "weighted", "whole")


def head(pool: str) -> Lens:
    return Lens(nets.seeded(Head, pool), embedding="last", blocks=["layer2", "layer3"])


class Counter:
    """How many images the stem of a net has seen."""

    def __init__(self, net: nn.Module) -> None:
        self.images = 0
        net.stem.register_forward_hook(self._forward)

    def _forward(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.images += len(output)


def same(many: PairExplanation, lens: Lens, x: Tensor, y: Tensor, *, atol: float = 1e-6, **options: Any) -> None:
    """Row by row what `compare` says of that pair."""
    for row, (a, b) in enumerate(zip(many.x.index.tolist(), many.y.index.tolist(), strict=True)):
        one = lens.compare(x[a : a + 1], y[b : b + 1], **options)
        torch.testing.assert_close(many.scores[row], one.scores[0], atol=atol, rtol=1e-6)
        for mine, other in ((many.x, one.x), (many.y, one.y)):
            assert list(mine.blocks) == list(other.blocks)
            torch.testing.assert_close(mine.maps[row], other.maps[0], atol=atol, rtol=0)
            for name in mine.blocks:
                torch.testing.assert_close(mine.blocks[name][row], other.blocks[name][0], atol=atol, rtol=0)


@quiet
@pytest.mark.parametrize("score", ["cosine", "dot"])
@pytest.mark.parametrize("method", methods.names("block", "pair"))
def test_every_method_at_one_block(method: str, score: str) -> None:
    lens = Lens(nets.small())
    many = lens.compare_many(X, lens.remember(WIDE), method=method, score=score, batch_size=4)
    assert many.x.index.tolist() == [0, 0, 0, 1, 1, 1]
    assert many.y.index.tolist() == [0, 1, 2, 0, 1, 2]
    assert many.x.maps.shape == (6, 64, 64)
    assert many.y.maps.shape == (6, 80, 112)
    same(many, lens, X, WIDE, method=method, score=score, n=1)


@pytest.mark.parametrize("pool", [*LINEAR, "unit", *OTHER])
@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_every_embedding(pool: str, score: str) -> None:
    """The form is found, or found to be another; the maps are those of autograd in every case."""
    lens = head(pool)
    gallery = lens.remember(Y, batch_size=3)
    assert gallery.law == (LINEAR_FORM if pool in LINEAR else UNIT_FORM if pool == "unit" else OTHER_FORM)
    many = lens.compare_many(lens.remember(X), gallery, score=score, n=1, method="hires_cam")
    same(many, lens, X, Y, score=score, n=1, method="hires_cam")


@pytest.mark.parametrize("pool", [*LINEAR, "unit"])
@pytest.mark.parametrize("score", ["cosine", "dot", lambda x, y: -(x - y).square().sum(dim=1)])
def test_written_down_gradients_equal_autograd(pool: str, score: Any) -> None:
    """ds/dh of both images in float64, to 1e-10 of its largest value."""
    lens = head(pool)
    x, y = lens.remember(X), lens.remember(Y[:2])
    value, vectors, _ = score_gradients(score, x.embeddings, y.embeddings, torch.tensor([[0, 0], [1, 1]]))
    pair = lens.trace_pair(X, Y[:2], n=1)
    torch.testing.assert_close(value, pair.sides(score)[0].scores, rtol=1e-12, atol=0)
    for side, v, rows in zip((x, y), vectors, pair.sides(score), strict=True):
        found = gradient_of(side, [0, 1], v)
        expected = rows.gradients["layer3"]
        assert float((found - expected).abs().max()) <= 1e-10 * float(expected.abs().max())


def test_cosine_by_equation_5() -> None:
    """c (f_y / (|f_x| |f_y|) - s f_x / |f_x|^2) at every position."""
    lens = Lens(nets.small())
    fx, fy = lens.remember(X[:1]).embeddings, lens.remember(Y[:1]).embeddings
    value, (gx, _), _ = score_gradients("cosine", fx, fy, torch.tensor([[0, 0]]))
    expected = fy / (fx.norm() * fy.norm()) - value * fx / fx.norm() ** 2
    torch.testing.assert_close(gx, expected, rtol=1e-12, atol=1e-15)


@quiet
@pytest.mark.parametrize("remembered", [False, True])
@pytest.mark.parametrize(
    "options", [{"n": 2}, {"n": 3, "fuse": "max", "method": "layer_cam"}, {"method": "input_gradient"}]
)
def test_several_blocks_and_pixels(options: dict[str, Any], remembered: bool) -> None:
    lens = Lens(nets.small())
    sides = [lens.remember(side) if remembered else side for side in (X, WIDE)]
    many = lens.compare_many(*sides, batch_size=2, **options)
    assert many.x.index.tolist() == [0, 0, 0, 1, 1, 1]
    same(many, lens, X, WIDE, **{"n": 1, **options})


@pytest.mark.parametrize(
    ("call", "images"),
    [
        (lambda lens, x, y: lens.compare_many(X, Y), 7),
        (lambda lens, x, y: lens.compare_many(X, Y, batch_size=2), 7),
        (lambda lens, x, y: lens.compare_many(X, y), 2),
        (lambda lens, x, y: lens.compare_many(X, Y, n=2), 7),
        (lambda lens, x, y: lens.compare_many(X, Y, n=2, batch_size=2), 7),
        (lambda lens, x, y: lens.compare_many(x, y, n=2), 7),
        (lambda lens, x, y: lens.compare_many(x, y, n=2, pairs=[(0, 3), (1, 3)]), 3),
        (lambda lens, x, y: lens.compare_many(x, Y, n=2, top=5), 12),
    ],
)
def test_each_image_runs_once(call: Callable[..., Any], images: int) -> None:
    """At most once a call, once more for `top` where there is no gallery and the gradients need the network."""
    lens = Lens(nets.small())
    x, y = lens.remember(X), lens.remember(Y)
    counter = Counter(lens.model)
    call(lens, x, y)
    assert counter.images == images


@quiet
@pytest.mark.parametrize("options", [{}, {"top": 2}, {"score": "dot", "method": "layer_cam"}, {"method": "vdsn"}])
def test_remembered_pairs_run_nothing(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """At one block: no forward, and no backward through the network."""
    lens = Lens(nets.small())
    x, y = lens.remember(X), lens.remember(Y)
    for place in ("forward.run_forward", "backward.gradients", "backward._together"):
        monkeypatch.setattr(f"gamlens.capture.{place}", lambda *args, **options: pytest.fail("the network ran"))
    assert len(lens.compare_many(x, y, **options)) == (4 if "top" in options else 10)


@pytest.mark.parametrize("pool", ["fc", "whole"])
def test_vdsn_whatever_the_embedding(pool: str) -> None:
    lens = head(pool)
    same(lens.compare_many(X, lens.remember(Y), method="vdsn"), lens, X, Y, method="vdsn")


@pytest.mark.parametrize("pool", ["fc", "whole"])
def test_each_image_runs_once_whatever_the_embedding(pool: str) -> None:
    lens = head(pool)
    counter = Counter(lens.model)
    lens.compare_many(X, Y, n=1, batch_size=3)
    assert counter.images == 7


@pytest.mark.parametrize("n", [1, 2])
def test_no_more_pairs_at_a_time_than_a_batch(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations and gradients are of one batch; one block's map is kept once."""
    lens, seen, add = Lens(nets.small()), [], PairMaps.add
    monkeypatch.setattr(PairMaps, "add", lambda *args, **options: seen.append(args[3:]) or add(*args, **options))
    many = lens.compare_many(X, Y, n=n, batch_size=3)
    assert sum(len(index) for index, *_ in seen) == 20
    assert max(len(g) for _, _, _, _, gradients, *_ in seen for g in gradients.values()) == 3
    assert max(len(h) for _, _, _, activations, *_ in seen for h in activations.values()) <= 3
    assert (many.x.blocks["layer3"] is many.x.maps) == (n == 1)


def test_top() -> None:
    """Best first, and the maps of those pairs."""
    lens = Lens(nets.small())
    gallery = lens.remember(Y)
    every = lens.compare_many(X, gallery)
    best = lens.compare_many(X, gallery, top=2)
    table = every.scores.reshape(2, 5)
    assert best.y.index.reshape(2, 2).tolist() == table.argsort(dim=1, descending=True)[:, :2].tolist()
    assert best.x.index.tolist() == [0, 0, 1, 1]
    same(best, lens, X, Y, n=1)
    assert len(lens.compare_many(X, gallery, top=99)) == 10
    deep = lens.compare_many(X, Y, top=2, n=2)
    assert deep.y.index.tolist() == best.y.index.tolist()
    same(deep, lens, X, Y, n=2)


def test_pairs_in_any_order() -> None:
    lens = Lens(nets.small())
    for n in (1, 2):
        many = lens.compare_many(X, Y, pairs=[(1, 4), (0, 2), (1, 0), (1, 4)], n=n, batch_size=2)
        assert many.x.index.tolist() == [1, 0, 1, 1]
        assert many.y.index.tolist() == [4, 2, 0, 4]
        same(many, lens, X, Y, n=n)
    assert len(many[1:].x.pictures) == 2


@quiet
def test_an_image_and_itself() -> None:
    """The cosine of an image with itself has no gradient: empty maps and one warning that names the pairs."""
    lens = Lens(nets.small())
    for n in (1, 2):
        with pytest.warns(GamlensWarning, match="Pair 0, 3: both embeddings point the same way"):
            many = lens.compare_many(X, X, n=n)
        assert many.x.maps[0].abs().max() == 0
        assert many.x.maps[1].max() > 0.5


@quiet
def test_half_precision() -> None:
    lens = Lens(nets.small().float(), precision="bf16")
    gallery = lens.remember(Y.float())
    assert (gallery.law, gallery.activations.dtype) == (LINEAR_FORM, torch.bfloat16)
    same(lens.compare_many(X.float(), gallery), lens, X.float(), Y.float(), n=1, atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 1, "pairs": [(0, 0)]}, "not both"),
        ({"top": 0}, "top=0"),
        ({"pairs": [(0, 5)]}, "2 queries and 5 images"),
        ({"pairs": [0, 1]}, "list of"),
        ({"pairs": []}, "list of"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"n": 9}, "n=9"),
        ({"score": "cosin"}, "did you mean 'cosine'"),
        ({"method": "gamm"}, "did you mean 'gam'"),
    ],
)
def test_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GamlensError, match=message):
        Lens(nets.small()).compare_many(X, Y, **options)


def test_an_embedding_of_zeros() -> None:
    lens = head("mean")
    nn.init.zeros_(lens.model.layer3[1].weight)
    nn.init.constant_(lens.model.layer3[1].bias, -1)
    with pytest.raises(GamlensError, match=r"queries\[0\] is all zeros"):
        lens.compare_many(X, Y)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("options", [{}, {"pairs": [(0, 0), (1, 4), (0, 3)]}, {"top": 1}])
def test_an_embedding_of_zeros_is_named_by_its_number(n: int, options: dict[str, Any]) -> None:
    """Whichever pair or batch it comes in."""
    lens, images = head("mean"), Y.clone()
    images[3] = 0
    with torch.no_grad():
        for stage in (lens.model.stem, lens.model.layer1, lens.model.layer2, lens.model.layer3):
            for tensor in (stage[0].bias, stage[1].bias, stage[1].running_mean):
                tensor.zero_()
    with pytest.raises(GamlensError, match=r"gallery\[3\] is all zeros"):
        lens.compare_many(X, images, n=n, batch_size=2, **options)


@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_float32_networks(name: str) -> None:
    lens, x, y = nets.zoo(name), nets.images(1).float(), nets.images(3, seed=1).float()
    gallery = lens.remember(y)
    assert gallery.law == LINEAR_FORM
    same(lens.compare_many(x, gallery), lens, x, y, n=1, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2])
def test_in_inference_mode(n: int) -> None:
    lens = Lens(nets.small())
    with torch.inference_mode():
        many = lens.compare_many(X.clone(), lens.remember(Y.clone()), n=n)
    same(many, lens, X, Y, n=n)


def test_the_model_is_left_as_it_was() -> None:
    lens = Lens(nets.small())
    lens.model.train()
    lens.compare_many(X, lens.remember(Y), n=2)
    assert all(module.training for module in lens.model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in lens.model.modules())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in lens.model.parameters())


def test_checks_of_every_part_travel_with_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a check is read later: those of later batches are not lost, and a row is the number of its pair."""
    monkeypatch.setattr("gamlens.capture.nonblocking.HOST", "none")

    def score(x: Tensor, y: Tensor) -> Tensor:
        value = (x * y).sum(dim=1)
        return torch.where(value == value.min(), torch.nan, value) if len(value) == 1 else value

    lens = Lens(nets.small())
    many = lens.compare_many(X, Y, pairs=[(0, 0), (0, 1), (1, 2), (1, 3), (0, 4)], score=score, batch_size=2)
    with pytest.raises(GamlensError, match="The score of row 4 is nan"):
        many.x.check()
    assert len(many.y.checks) == 3


# Refined


def held(lens: Lens, images: Tensor, kind: str) -> Any:
    """Images as they are, or remembered with the blocks before the last, or with none or one of them."""
    options = {"with": {"refine": 2}, "without": {}, "with one": {"refine": 1}}
    return images if kind == "images" else lens.remember(images, **options[kind])


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("kinds", "runs"),
    [
        (("images", "images"), 5),
        (("images", "with"), 2),
        (("with", "with"), 0),
        (("with", "images"), 3),
        (("with", "without"), 5),
        (("images", "without"), 5),
        (("with one", "with"), 5),
    ],
)
def test_refined_pairs_from_images_and_galleries(kinds: tuple[str, str], runs: int, n: int) -> None:
    """Row by row what `compare` says. Images run only if a block that refining needs was not remembered, or n > 1."""
    lens = Lens(nets.small())
    x, y = held(lens, X, kinds[0]), held(lens, WIDE, kinds[1])
    counter = Counter(lens.model)
    many = lens.compare_many(x, y, n=n, refine=2, batch_size=4)
    assert counter.images == (5 if n == 2 else runs)
    assert many.x.about["refine"] == many.y.about["refine"] == {"blocks": ["layer2", "layer1"], "keep": 0.5}
    same(many, lens, X, WIDE, n=n, refine=2)


@quiet
@pytest.mark.parametrize("method", ["eigen_cam", "vdsn", "vdsn_max", "grad_cam_pp"])
@pytest.mark.parametrize("remembered", ["images", "with one", "without"])
def test_refined_pairs_of_other_methods(method: str, remembered: str) -> None:
    lens, how = Lens(nets.small()), Refinement(1, 0.2)
    sides = [held(lens, side, remembered) for side in (X, WIDE)]
    many = lens.compare_many(*sides, method=method, score="dot", refine=how, batch_size=4)
    same(many, lens, X, WIDE, method=method, score="dot", n=1, refine=how)


@pytest.mark.parametrize("pool", ["unit", "fc"])
@pytest.mark.parametrize("options", [{"top": 2}, {"pairs": [(1, 4), (0, 2), (1, 0), (1, 4)]}])
def test_refined_pairs_of_any_embedding_and_choice(pool: str, options: dict[str, Any]) -> None:
    lens = head(pool)
    for n in (1, 2):
        many = lens.compare_many(X, Y, n=n, refine=1, batch_size=3, **options)
        same(many, lens, X, Y, n=n, refine=1)
        assert (many.y.index.tolist() == [4, 2, 0, 4]) == ("pairs" in options)


def test_the_map_of_a_single_block_stays_beside_the_refined_one() -> None:
    lens = Lens(nets.small())
    refined, plain = (lens.compare_many(X, Y, pairs=[(0, 1), (1, 2)], sharp=sharp) for sharp in (True, False))
    assert torch.equal(refined.x.blocks["layer3"], plain.x.maps)
    assert not torch.allclose(refined.x.maps, plain.x.maps, atol=0.05)
    assert "refine" not in plain.x.about


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refine": 5}, "refine=5 blocks were asked for"),
        ({"refine": True, "method": "input_gradient"}, "leave refine out"),
        ({"refine": True, "sharp": True}, "sharp= stands for refine=True"),
        ({"sharp": "views"}, "sharp='views': many pairs are explained without views: give sharp=True"),
        ({"sharp": "nonsense"}, "sharp='nonsense'"),
    ],
)
@pytest.mark.parametrize("remembered", [False, True])
def test_errors_of_refined_pairs(options: dict[str, Any], message: str, remembered: bool) -> None:
    lens = Lens(nets.small())
    with pytest.raises(GamlensError, match=message):
        lens.compare_many(lens.remember(X) if remembered else X, Y, **options)


class OneSize(nets.Small):
    """Takes images of 64 x 64 only, so that its blocks are not known before the first of them comes."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2:] != (64, 64):
            raise ValueError("64 pixels only")
        return super().forward(x)


@pytest.mark.parametrize("how", [0, 2])
def test_galleries_of_a_lens_that_does_not_know_its_blocks_yet(how: int) -> None:
    gallery, fresh = Lens(nets.seeded(OneSize)).remember(Y, refine=2), Lens(nets.seeded(OneSize))
    assert not fresh.knows_blocks
    many = fresh.compare_many(gallery[:2], gallery, pairs=[(0, 3), (1, 4)], refine=how)
    same(many, fresh, Y, Y, n=1, refine=how)


def test_what_refining_needs_is_not_kept_where_only_embeddings_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """For `top` at n = 2, all images run once for their embeddings; those that are chosen run again."""
    joined = []
    monkeypatch.setattr("gamlens.retrieval.many_pairs.gather", lambda *args: joined.append(gather(*args)) or joined[-1])
    lens = Lens(nets.small())
    same(lens.compare_many(X, Y, n=2, top=1, refine=2), lens, X, Y, n=2, refine=2)
    assert [list(gallery.earlier) for gallery in joined] == [[]]
