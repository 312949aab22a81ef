"""Input gradients and guided backpropagation: by hand, beside a plain numpy twin, and what must not change."""

import copy

import naive
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nets import Returns, images, small
from torch import nn

from gamlens import GamlensError, GamlensWarning, Lens

BOTH = ["input_gradient", "guided_backprop"]


class Hand(nn.Module):
    """One pixel at a time: a 1x1 convolution, ReLU, a 1x1 convolution, the mean over pixels, a ReLU in three ways."""

    def __init__(self, how="module"):
        super().__init__()
        self.how = how
        self.first, self.second, self.act = nn.Conv2d(1, 2, 1, bias=False), nn.Conv2d(2, 2, 1, bias=False), nn.ReLU()
        self.first.weight.data = torch.tensor([[1.0], [2.0]])[:, :, None, None]
        self.second.weight.data = torch.tensor([[3.0, -4.0], [-5.0, 1.0]])[:, :, None, None]

    def rectified(self, x):
        if self.how == "module":
            return self.act(x)
        if self.how == "function":
            return F.relu(x)
        if self.how == "method":
            return x.relu()
        x.relu_()
        return x

    def forward(self, x):
        return self.second(self.rectified(self.first(x))).sum(dim=(2, 3))


X = torch.tensor([[[[1.0, -1.0, 2.0]]]])


@pytest.mark.parametrize("how", ["module", "function", "method", "in place"])
def test_by_hand(how):
    # z = (x, 2x); class 0 = 3 relu(x) - 4 relu(2x). Where x > 0 the gradient is 3 - 8 = -5; guided keeps the 3 alone.
    lens = Lens(Hand(how), blocks=["second"])
    plain = lens.trace(X, 0, method="input_gradient")
    assert plain.raw("input_gradient", ":input").tolist() == [[[5.0, 0.0, 5.0]]]
    guided = lens.trace(X, 0, method="guided_backprop")
    assert guided.raw("guided_backprop", ":input").tolist() == [[[3.0, 0.0, 3.0]]]
    # class 1 = -5 relu(x) + relu(2x): -5 + 2 = -3 plain; guided keeps 1 * 2
    assert lens.classify(X, 1, method="guided_backprop").maps.tolist() == [[[1.0, 0.0, 1.0]]]


def twin(net, image, target, *, guided):
    """The gradient by the pixels of convolutions, batch norms, ReLUs, pooling and a linear head, layer by layer."""
    relus, h = [], image[None]
    for stage in (net.stem, net.layer1, net.layer2, net.layer3):
        z = stage[1](stage[0](h))
        relus.append((z > 0).numpy())
        h = z.clamp(min=0)
    area = h.shape[2] * h.shape[3]
    back = np.broadcast_to(net.fc.weight[target].detach().numpy()[:, None, None] / area, h.shape[1:])
    stages = [net.layer3, net.layer2, net.layer1, net.stem]
    sizes = [*[relu.shape[2] for relu in relus[:-1]][::-1], image.shape[1]]
    for stage, seen, size in zip(stages, relus[::-1], sizes, strict=True):
        back = (np.where(back > 0, back, 0) if guided else back) * seen[0]
        norm, convolution = stage[1], stage[0]
        back = back * (norm.weight / (norm.running_var + norm.eps).sqrt()).detach().numpy()[:, None, None]
        back = transposed(back, convolution.weight.detach().numpy(), size)
    return back


def transposed(back, weight, size):
    """The gradient of a 3x3 convolution of stride 2 and padding 1 by what it reads, tap by tap."""
    found = np.zeros((weight.shape[1], size + 2, size + 2))
    for i in range(back.shape[1]):
        for j in range(back.shape[2]):
            found[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] += np.einsum("o,oikl->ikl", back[:, i, j], weight)
    return found[:, 1:-1, 1:-1]


@pytest.mark.parametrize("method", BOTH)
def test_equals_the_float64_twin(method):
    net, batch = small(), images(2, 32)
    found = Lens(net).classify(batch, [3, 7], method=method)
    for row, target in enumerate((3, 7)):
        with torch.no_grad():
            gradient = twin(net, batch[row], target, guided=method == "guided_backprop")
        np.testing.assert_allclose(
            found.maps[row].numpy(), naive.min_max(naive.input_gradient(None, gradient)), rtol=0, atol=1e-6
        )


def test_with_positive_weights_guided_and_plain_agree():
    net = small()
    for parameter in net.parameters():
        parameter.data.abs_()
    lens = Lens(net)
    plain, guided = (lens.classify(images(2), 1, method=method).maps for method in BOTH)
    torch.testing.assert_close(plain, guided)


@pytest.mark.parametrize("method", BOTH)
def test_a_batch_equals_its_items_and_images_stay(method):
    lens, batch = Lens(small()), images(3)
    before = batch.clone()
    whole = lens.classify(batch, [1, 2, 3], method=method).maps
    parts = [lens.classify(batch[row : row + 1], row + 1, method=method).maps for row in range(3)]
    torch.testing.assert_close(whole, torch.cat(parts), rtol=0, atol=1e-6)
    assert torch.equal(batch, before)


@pytest.mark.parametrize("method", BOTH)
def test_the_model_is_left_as_it_was(method):
    net = small(inplace=True).train()
    state = copy.deepcopy(net.state_dict())
    lens = Lens(net)
    first = lens.classify(images(2), method=method).maps
    assert net.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in net.parameters())
    assert all(torch.equal(state[name], tensor) for name, tensor in net.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    plain = lens.classify(images(2)).maps
    assert torch.equal(lens.classify(images(2), method=method).maps, first)
    assert torch.equal(lens.classify(images(2)).maps, plain)


def test_pairs_swap_with_their_sides():
    lens, batch = Lens(small()), images(4)
    for method in BOTH:
        there, back = (lens.compare(x, y, method=method) for x, y in ((batch[:2], batch[2:]), (batch[2:], batch[:2])))
        torch.testing.assert_close(there.x.maps, back.y.maps)
        assert there.x.about["blocks"] == [":input"]
        assert (there.x.maps - there.y.maps).abs().max() > 0.05


def test_views_and_callable_scores_work():
    lens = Lens(small())
    found = lens.classify(images(1), method="guided_backprop", views=("flip", 1.5))
    assert found.maps.shape == (1, 64, 64)
    assert lens.classify(images(1), method="input_gradient", score=lambda output: output.sum(1)).maps.max() == 1


def test_a_trace_of_blocks_says_where_input_methods_are():
    trace = Lens(small()).trace(images(1))
    with pytest.raises(GamlensError, match=r"whole network.*lens\.classify\(\.\.\., method='guided_backprop'\)"):
        trace.explain("guided_backprop")
    with pytest.raises(GamlensError, match=r"whole network"):
        Lens(small()).trace_pair(images(1), images(1, seed=2)).explain("input_gradient")


def test_a_network_without_relu_is_told():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    with pytest.warns(GamlensWarning, match="no ReLU"):
        Lens(net, blocks=["1"]).classify(images(1).float(), method="guided_backprop")


def test_what_a_model_returns_is_picked_as_ever():
    net = Returns(lambda logits: {"logits": logits}).double().eval()
    assert Lens(net, output="logits").classify(images(1), method="input_gradient").maps.max() == 1
