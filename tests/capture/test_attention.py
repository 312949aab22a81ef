"""The attention of transformers: read exactly, differentiated exactly, and the model left as it was."""

import copy
import threading

import attention_nets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attention_nets import HEADS, images, transformer
from torch import nn

from gamlens import GamlensError, GamlensWarning, Lens, Transform, methods
from gamlens.fuse import min_max
from gamlens.methods import METHODS

SIZE = (attention_nets.GRID * attention_nets.PATCH,) * 2
ATTENTION = methods.names("attention")
WAYS = ("fused", "plain", "multi_head")


def lens_of(model, **options):
    return Lens(model, transform=Transform(SIZE), **options)


class ByHand:
    """The toy in numpy-like steps of its own, in which any attention can be replaced."""

    def __init__(self, net):
        self.net = net

    def start(self, x):
        tokens = self.net.patches(x).flatten(2).transpose(1, 2)
        if not self.net.mean:
            tokens = torch.cat([self.net.token.expand(len(x), -1, -1), tokens], dim=1)
        return tokens + self.net.places

    def layer(self, number, tokens, attention=None):
        """The tokens after one layer, and its attention and heads; computed from `attention` where it is given."""
        layer = self.net.layers[number]
        normed = layer.norm1(tokens)
        weight, bias = layer.attention.qkv.weight, layer.attention.qkv.bias
        q, k, v = (normed @ w.T + b for w, b in zip(weight.chunk(3), bias.chunk(3), strict=True))
        heads = []
        for part in (q, k, v):
            heads.append(torch.stack(part.chunk(HEADS, dim=2), dim=1))
        q, k, v = heads
        if attention is None:
            scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
            attention = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)
        output = torch.einsum("bhij,bhjd->bhid", attention, v)
        tokens = tokens + layer.attention.proj(torch.cat(list(output.unbind(1)), dim=2))
        return tokens + layer.mlp(layer.norm2(tokens)), attention, (q, k, v, output)

    def score(self, tokens):
        normed = self.net.norm(tokens)
        return self.net.head(normed.mean(dim=1) if self.net.mean else normed[:, 0])[:, 1]

    def run(self, x, replaced=None, at=None):
        """The score if the attention of layer `at` is `replaced`; and the tokens and attention of every layer."""
        tokens, seen = self.start(x), []
        for number in range(len(self.net.layers)):
            given = replaced if number == at else None
            tokens, attention, heads = self.layer(number, tokens, given)
            seen.append((tokens, attention, heads))
        return self.score(tokens), seen


def numerical(function, point, step=1e-6):
    """Central differences of a function (1,H,N,N) -> () at every entry."""
    found = torch.zeros_like(point)
    for place in np.ndindex(*point.shape):
        up, down = point.clone(), point.clone()
        up[place] += step
        down[place] -= step
        found[place] = (function(up) - function(down)) / (2 * step)
    return found


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("how", WAYS)
def test_attention_and_its_gradients_are_those_computed_by_hand(how, mean):
    """Every gradient of both layers against finite differences in which the attention is replaced, in float64."""
    x, hand = images(1), ByHand(transformer("plain", mean=mean))
    trace = lens_of(transformer(how, mean=mean)).trace(x, 1)
    with torch.no_grad():
        score, seen = hand.run(x)
        last = seen[-1][0]
        slope = torch.autograd.functional.jacobian(lambda z: hand.score(z)[0], last)
        for number, name in enumerate(trace.attention.layers):
            values, found = trace.attention.values[name], trace.attention.gradients[name]
            tokens, attention, (q, k, v, _) = seen[number]
            before = seen[number - 1][0] if number else hand.start(x)
            for what, expected in (("attention", attention), ("query", q), ("key", k), ("value", v)):
                if what != "query" or how == "plain":
                    torch.testing.assert_close(values[what], expected, rtol=1e-12, atol=1e-12)

            def through(changed, number=number, before=before):
                return hand.layer(number, before, changed)[0]

            whole = numerical(lambda a, number=number: hand.run(x, a, number)[0][0], attention)
            direct = numerical(lambda a, run=through: (run(a) * slope).sum(), attention)
            own = numerical(lambda a, run=through: hand.score(run(a))[0], attention)
            close = {"rtol": 1e-5, "atol": 1e-8}
            torch.testing.assert_close(found["attention_gradient"], whole, **close)
            torch.testing.assert_close(found["direct_gradient"], direct, **close)
            torch.testing.assert_close(found["own_gradient"], own, **close)
            # What a token adds through the attention is linear in it: A G summed over keys is <output, its gradient>.
            inner = (values["value"] @ found["output_gradient"].transpose(-2, -1)).transpose(-2, -1)
            torch.testing.assert_close(inner, whole, **close)
            assert tokens.shape == last.shape
    torch.testing.assert_close(trace.scores, score)
    count = last.shape[1]
    expected = [[1 / count] * count] if mean else [[1.0] + [0.0] * (count - 1)]
    pooled = trace.attention.gradients[name]["pooled"]
    torch.testing.assert_close(pooled, torch.tensor(expected, dtype=pooled.dtype))


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("name", ATTENTION)
def test_maps_are_the_same_however_attention_is_computed(name, mean):
    x = images()
    found = [lens_of(transformer(how, mean=mean)).classify(x, 1, method=name).maps for how in WAYS]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-5)
    assert float(found[0].max()) > 0.5


def test_the_model_is_left_as_it_was_also_after_an_error():
    model = transformer("fused", dtype=torch.float32).train()
    before = copy.deepcopy(model.state_dict())
    look = lens_of(model)
    look.trace(images(dtype=torch.float32))
    model.layers[1].mlp.register_forward_hook(_fail)
    with pytest.raises(GamlensError, match="broken on purpose"):
        look.classify(images(dtype=torch.float32), method="legrad")
    for name, module in model.named_modules():
        assert module.training
        assert "forward" not in vars(module)
        assert len(module._forward_hooks) == (name == "layers.1.mlp")
        assert not module._forward_pre_hooks
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        assert parameter.requires_grad
        assert torch.equal(parameter, before[name])
    assert not torch.overrides._get_current_function_mode_stack()


def _fail(module, args, output):
    raise ValueError("broken on purpose")


@pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")  # a map of random weights may be flat
@pytest.mark.parametrize(("name", "forwards"), [("attention_gam", 1), ("chefer", 1), ("grad_eclip", 1), ("legrad", 2)])
def test_one_forward_is_run(name, forwards):
    """LeGrad applies the head to every layer's tokens in a second call of the model, in which no layer runs."""
    model = transformer("fused", dtype=torch.float32)
    look, runs = lens_of(model), []
    model.layers[0].mlp.register_forward_hook(lambda *_: runs.append(1))
    model.calls = 0
    look.classify(images(dtype=torch.float32), method=name)
    assert (model.calls, len(runs)) == (forwards, 1)


def test_only_what_a_method_reads_is_kept_and_attention_takes_the_memory_that_is_stated():
    trace = lens_of(transformer("fused", dtype=torch.float32)).trace(images(3, torch.float32), method="attention_gam")
    values, gradients = trace.attention.values, trace.attention.gradients
    assert {*values["layers.1:attention"]} == {"attention"}
    assert {*gradients["layers.1:attention"]} == {"direct_gradient"}
    kept = [
        tensor.numel() * tensor.element_size()
        for part in (values, gradients)
        for t in part.values()
        for tensor in t.values()
    ]
    assert sum(kept) == 2 * 2 * 3 * HEADS * 10 * 10 * 4  # two tensors, layers x images x heads x tokens^2 x 4 bytes
    with pytest.raises(GamlensError, match="trace the images again with method='chefer'"):
        trace.explain("chefer")
    with pytest.raises(GamlensError, match="captured attention layers alone"):
        trace.explain("gam")


def test_rollout_keeps_no_graph_before_the_last_tokens():
    record = lens_of(transformer()).forward(images(), n=None, method="attention_rollout")
    first = record.attention.layers["layers.0:attention"]
    assert not first.attention.requires_grad
    assert record.attention.layers["layers.1:attention"].tokens.requires_grad


@pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")  # a map of random weights may be flat
def test_several_targets_equal_single_ones():
    look, x = lens_of(transformer()), images()
    trace = look.trace(x, [[0, 2], [1]])
    for row, (image, target) in enumerate([(0, 0), (0, 2), (1, 1)]):
        for name in ATTENTION:
            alone = look.classify(x[image : image + 1], target, method=name)
            torch.testing.assert_close(trace.explain(name).maps[row], alone.maps[0], rtol=1e-6, atol=1e-6)
    again = trace.retarget([[2, 0], [1]]).explain()
    torch.testing.assert_close(again.maps[[1, 0, 2]], trace.explain().maps)


def test_a_callable_score_is_explained_like_the_class_it_picks():
    look, x = lens_of(transformer()), images()
    for name in ATTENTION:
        by_class = look.classify(x, 1, method=name).maps
        torch.testing.assert_close(look.classify(x, score=lambda out: out[:, 1], method=name).maps, by_class)


def test_pairs_have_both_maps_and_swap():
    look, x = lens_of(transformer(mean=True)), images()
    for name in ATTENTION:
        there, back = look.compare(x[:1], x[1:], method=name), look.compare(x[1:], x[:1], method=name)
        torch.testing.assert_close(there.x.maps, back.y.maps)
        torch.testing.assert_close(there.y.maps, back.x.maps)
        torch.testing.assert_close(there.scores, back.scores)
    several = look.trace_pair(x, x.flip(0))
    single = look.compare(x[:1], x[1:])
    torch.testing.assert_close(several.explain().x.maps[:1], single.x.maps)
    assert single.x.about["method"] == "attention_gam"


def test_legrad_of_a_pair_holds_the_other_image_as_it_is():
    """The own gradient of x, against differences of the cosine of x's own tokens with the whole embedding of y."""
    net, x = transformer("plain"), images()
    pair = lens_of(net).trace_pair(x[:1], x[1:], method="legrad")
    own = pair.sides("cosine")[0].attention.gradients["layers.0:attention"]["own_gradient"]
    hand = ByHand(net)
    with torch.no_grad():
        other = net.norm(hand.run(x[1:])[1][-1][0])[:, 0]
        start = hand.start(x[:1])
        attention = hand.layer(0, start)[1]

        def similarity(changed):
            return F.cosine_similarity(net.norm(hand.layer(0, start, changed)[0])[:, 0], other)[0]

        torch.testing.assert_close(own, numerical(similarity, attention), rtol=1e-5, atol=1e-8)


def test_captions_on_a_dual_encoder_with_known_answers():
    """Red patches speak for one caption, blue ones for the other; the class token only gathers what patches hold."""
    torch.manual_seed(0)
    net = _ColourReader()
    look = Lens(net, embedding="output", transform=Transform((32, 32)), text=lambda words: torch.eye(4)[:2])
    x = torch.zeros(1, 3, 32, 32)
    x[0, 0, 0:8, 8:16] = 1.0  # a red patch in row 0, column 1
    x[0, 2, 24:32, 16:24] = 1.0  # a blue patch in row 3, column 2
    for name in ("attention_gam", "legrad", "chefer", "grad_eclip"):
        found = look.trace_text(x, ["red", "blue"], method=name)
        raw = found.raw(name)
        assert [divmod(int(cells.argmax()), 4) for cells in raw.flatten(1)] == [(0, 1), (3, 2)], name
    result = look.compare_text(x, ["red", "blue"])
    assert result.names == ["red", "blue"]
    assert result.about["method"] == "attention_gam"


class _Gather(nn.Module):
    """A layer in which the class token reads all tokens nearly alike, and every token keeps what it has."""

    def __init__(self):
        super().__init__()
        self.register_buffer("first", torch.eye(17)[:1].T)
        self.register_buffer("colours", torch.tensor([0.01, 0.01, 0.0, 0.0]))  # what every query asks for, faintly

    def forward(self, tokens):
        value = tokens[:, None]
        found = F.scaled_dot_product_attention(0 * value + self.colours, value, value)[:, 0]
        return tokens + found * self.first


class _ColourReader(nn.Module):
    """Tokens hold (red, blue, 1, 0); the embedding is the class token."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 4, 8, 8, bias=True)
        with torch.no_grad():
            self.patches.weight.zero_()
            self.patches.bias.copy_(torch.tensor([0.0, 0.0, 1.0, 0.0]))
            self.patches.weight[0, 0], self.patches.weight[1, 2] = 1 / 64, 1 / 64
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.layers = nn.ModuleList([_Gather(), _Gather()])

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], dim=1)
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens[:, 0]


@pytest.mark.parametrize("name", ATTENTION)
def test_a_mirrored_view_of_a_symmetric_network_adds_the_mirrored_map(name):
    look, x = lens_of(transformer(mean=True, dtype=torch.float32)), images(1, torch.float32)
    trace = look.trace(x, 0, views=("flip",))
    plain, sized = trace.release(), trace.views[0][0].explain(name).maps.flip(2)
    alone = look.trace(x, 0).explain(name).maps
    if METHODS[name].joins_layers:  # one map: the mean of both views, each normalised
        torch.testing.assert_close(plain.explain(name).maps, (alone + sized) / 2, rtol=1e-4, atol=1e-4)
    assert plain.explain(name).maps.shape == alone.shape


def test_one_layer_and_all_layers():
    look, x = lens_of(transformer()), images()
    trace = look.trace(x, 1)
    both, last = trace.explain("attention_gam"), trace.explain("attention_gam", 1)
    assert (both.about["n"], last.about["n"]) == (2, 1)
    assert list(both.blocks) == ["layers.0:attention", "layers.1:attention"]
    torch.testing.assert_close(both.maps, min_max(torch.stack(list(both.blocks.values())).mean(dim=0))[0])
    assert both.maps.amax(dim=(1, 2)).tolist() == [1, 1]
    torch.testing.assert_close(last.maps, both.blocks["layers.1:attention"])
    with pytest.raises(GamlensError, match="n=3 blocks were asked for, but there are 2"):
        trace.explain("attention_gam", 3)
    assert trace.explain("gam", 1).about["blocks"] == ["layers.1.norm1:tokens"]


def test_the_default_follows_from_the_network_and_the_result_says_which():
    model = transformer()
    assert lens_of(model).classify(images()).about["method"] == "attention_gam"
    named = lens_of(model, blocks=["layers.0"])
    assert named.default_method == "gam"
    assert named.classify(images(), n=1).about["method"] == "gam"
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    assert Lens(net).default_method == "gam"
    with pytest.raises(GamlensError, match=r"Attention GAM reads the attention.*no transformer layers"):
        Lens(net).classify(torch.rand(1, 3, 64, 64), method="attention_gam")


class _Mixed(nn.Module):
    """A layer without attention."""

    def __init__(self):
        super().__init__()
        self.mlp = nn.Linear(attention_nets.WIDTH, attention_nets.WIDTH)

    def forward(self, x):
        return x + self.mlp(x.flip(1))


def test_a_network_whose_attention_cannot_be_read_says_so_and_falls_back():
    model = transformer(mean=True, dtype=torch.float32)
    model.layers = nn.ModuleList([_Mixed(), _Mixed()])
    look = lens_of(model)
    with pytest.warns(GamlensWarning, match=r"attention of Transformer cannot be read: .*softmax.*'gam'"):
        found = look.classify(images(dtype=torch.float32))
    assert found.about["method"] == "gam"
    assert look.attention_layers == ()
    with pytest.raises(GamlensError, match=r"Chefer.*cannot be read"):
        look.classify(images(dtype=torch.float32), method="chefer")


@pytest.mark.parametrize("precision", ["bf16"])
def test_half_precision_stays_close(precision):
    model, x = transformer(dtype=torch.float32), images(dtype=torch.float32)
    whole, half = lens_of(model).classify(x, 1), lens_of(model, precision=precision).classify(x, 1)
    correlation = torch.corrcoef(torch.stack([whole.maps.flatten(), half.maps.flatten()]))[0, 1]
    assert float(correlation) > 0.98


def test_nan_weights_are_an_error():
    model = transformer(dtype=torch.float32)
    look = lens_of(model)
    with torch.no_grad():
        model.layers[0].mlp[0].weight[0, 0] = float("nan")
    with pytest.raises(GamlensError, match="not finite"):
        look.classify(images(dtype=torch.float32))


def test_two_threads_on_one_lens():
    look, x = lens_of(transformer(dtype=torch.float32)), images(4, torch.float32)
    expected = [look.classify(x[i : i + 1], method=name).maps for i, name in enumerate(ATTENTION[:4])]
    found = [None] * 4

    def work(i):
        for _ in range(3):
            found[i] = look.classify(x[i : i + 1], method=ATTENTION[i]).maps

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


class _InPlace(attention_nets.Layer):
    """The same layer on half of its input, which it halves in place or not."""

    in_place = True

    def forward(self, x):
        x = x.mul_(0.5) if self.in_place else x * 0.5
        return super().forward(x)


class _HalfFirst(_InPlace):
    in_place = False


class _Breaks(attention_nets.Layer):
    """A layer that changes in place what its own backward needs."""

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        x += self.mlp(self.norm2(x))
        return x


@pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")  # a map of random weights may be flat
def test_layers_that_work_in_place_give_the_same_maps_or_an_error_that_says_so():
    model, traces = transformer(), []
    for kind in (_HalfFirst, _InPlace):
        for layer in model.layers:
            layer.__class__ = kind
        traces.append(lens_of(model).trace(images(), 1, method=ATTENTION))
    for name in ATTENTION:
        torch.testing.assert_close(traces[1].explain(name).maps, traces[0].explain(name).maps, rtol=1e-6, atol=1e-6)
    for layer in model.layers:
        layer.__class__ = _Breaks
    with pytest.raises(GamlensError, match="replace the in-place call"):
        lens_of(model).classify(images(), 1)


def test_compile_runs_attention_methods_as_they_are():
    model, x = transformer(dtype=torch.float32), images(dtype=torch.float32)
    torch.testing.assert_close(lens_of(model, compile=True).classify(x, 1).maps, lens_of(model).classify(x, 1).maps)


def test_many_pairs_refuse_attention_methods():
    look, x = lens_of(transformer(mean=True, dtype=torch.float32)), images(dtype=torch.float32)
    with pytest.raises(GamlensError, match="use compare for single pairs"):
        look.compare_many(x[:1], x, method="chefer")


def test_refined_maps_of_attention_take_blocks_along():
    look, x = lens_of(transformer(mean=True, dtype=torch.float32)), images(dtype=torch.float32)
    found = look.classify(x, 0, refine=1)
    assert found.about["refine"]["blocks"] == ["layers.0:tokens"]
    assert not torch.allclose(found.maps, look.classify(x, 0).maps)
