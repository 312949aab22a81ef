"""Models and callers of every kind give the maps of the plain model: grad modes, dtypes, layouts, wrappers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import nets
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from gamlens import Explanation, GamlensError, Lens, Transform

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}
CALLS: dict[str, Callable[[Lens, Tensor], Explanation]] = {
    "classify": lambda lens, x: lens.classify(x, [[1, 2], 3]),
    "trace": lambda lens, x: lens.trace(x).retarget(4).explain("layer_cam"),
    "callable": lambda lens, x: lens.trace(x, score=lambda out: out[:, 0] * 2).explain(),
    "compare": lambda lens, x: lens.compare(x, x.flip(2)).y,
    "pair trace": lambda lens, x: lens.trace_pair(x, x.flip(3)).explain("hires_cam", score="dot").x,
    "two sizes": lambda lens, x: lens.compare(x, x[:, :, :48]).x,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("late", [False, True], ids=["lens before", "lens inside"])
def test_any_caller(call: str, mode: str, late: bool) -> None:
    before = Lens(nets.small())
    expected = CALLS[call](before, nets.images(2))
    net = nets.small()
    with MODES[mode]():
        batch = nets.images(2)
        assert batch.is_inference() == (mode == "inference_mode")
        nets.same(CALLS[call](Lens(net) if late else before, batch), expected)


def test_a_trace_made_in_inference_mode_is_used_outside() -> None:
    lens = Lens(nets.small())
    with torch.inference_mode():
        trace = lens.trace(nets.images(2))
    plain = lens.trace(nets.images(2))
    nets.same(trace.retarget(3).explain(), plain.retarget(3).explain())
    assert trace.explain().overlay().size == (64, 64)


@pytest.mark.parametrize("call", CALLS)
def test_frozen_parameters(call: str) -> None:
    nets.same(
        CALLS[call](Lens(nets.small().requires_grad_(False)), nets.images(2)),
        CALLS[call](Lens(nets.small()), nets.images(2)),
    )


@pytest.mark.parametrize(
    ("dtype", "limit", "atol"),
    [(torch.float16, 0.003, 0.03), (torch.bfloat16, 0.02, 0.2), (torch.float32, 1e-5, 1e-3)],
)
@pytest.mark.parametrize("call", CALLS)
def test_any_dtype(dtype: torch.dtype, limit: float, atol: float, call: str) -> None:
    """Another class or another image differs by 0.1 on average: the limits tell these apart."""
    result = CALLS[call](Lens(nets.small().to(dtype)), nets.images(2).to(dtype))
    expected = CALLS[call](Lens(nets.small()), nets.images(2).to(dtype).double())
    assert result.maps.dtype == result.scores.dtype == torch.float32
    assert float((result.maps - expected.maps).abs().mean()) < limit
    torch.testing.assert_close(result.scores, expected.scores, atol=atol, rtol=atol)


def test_images_are_brought_to_the_models_dtype() -> None:
    nets.same(Lens(nets.small()).classify(nets.images(2).float(), 3), Lens(nets.small()).classify(nets.images(2), 3))


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast_inside(precision: str, dtype: torch.dtype) -> None:
    net, seen = nets.small().float(), []
    plain = Lens(net).classify(nets.images(2), 3)
    lens = Lens(net, precision=precision)
    net.layer3[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    result = lens.classify(nets.images(2), 3)
    assert seen == [dtype]
    assert result.maps.dtype == torch.float32
    assert result.about["precision"] == precision
    assert 0 < float((result.maps - plain.maps).abs().mean()) < 0.005
    pair = lens.compare(nets.images(2), nets.images(2, seed=1))
    expected = Lens(net).compare(nets.images(2), nets.images(2, seed=1))
    assert float((pair.y.maps - expected.y.maps).abs().mean()) < 0.01


def test_float16_gradients_neither_vanish_nor_overflow() -> None:
    """One call with scores whose gradients lie ten orders of magnitude apart: each row keeps its own map."""
    net = nets.small().float()
    weights = torch.logspace(-5, 5, 3)

    def score(output: Tensor) -> Tensor:
        return output[:, 3] * weights

    plain = Lens(net).trace(nets.images(3), score=score)
    half = Lens(net, precision="fp16").trace(nets.images(3), score=score)
    for name, expected in plain.gradients.items():
        found = half.gradients[name]
        error = (found - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
        assert float(error.max()) < 0.01
    pair = Lens(net, precision="fp16").compare(100 * nets.images(2), nets.images(2, seed=1), score="dot")
    expected = Lens(net).compare(100 * nets.images(2), nets.images(2, seed=1), score="dot")
    assert float((pair.x.maps - expected.x.maps).abs().max()) < 0.02
    assert float((pair.y.maps - expected.y.maps).abs().max()) < 0.02


def test_autocast_around() -> None:
    net = nets.small().float()
    plain = Lens(net).classify(nets.images(2), 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = Lens(net).classify(nets.images(2), 3)
    assert result.maps.dtype == torch.float32
    assert float((result.maps - plain.maps).abs().mean()) < 0.005


@pytest.mark.parametrize("call", CALLS)
def test_channels_last(call: str) -> None:
    net = nets.small().to(memory_format=torch.channels_last)
    batch = nets.images(2).to(memory_format=torch.channels_last)
    nets.same(CALLS[call](Lens(net), batch), CALLS[call](Lens(nets.small()), nets.images(2)))
    assert net.layer3[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("channels", [1, 5])
@pytest.mark.parametrize("call", CALLS)
def test_any_number_of_channels(channels: int, call: str) -> None:
    lens = Lens(nets.small(channels=channels))
    result = CALLS[call](lens, nets.images(2, channels=channels))
    assert lens.blocks == ("layer1", "layer2", "layer3")
    assert result.maps.shape[1:] == (64, 64)


def test_a_grey_model_takes_colour_photos() -> None:
    lens = Lens(nets.small(channels=1), transform=Transform((64, 64), (0.5,), (0.5,)))
    grey = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    colour = np.stack([grey] * 3, axis=2)
    tensor = (torch.from_numpy(grey).double()[None] / 255 - 0.5) / 0.5
    for image in (colour, grey, Image.fromarray(colour)):
        nets.same(lens.classify(image, 3), lens.classify(tensor, 3), atol=1e-5)
    assert Lens(nets.small(channels=1)).classify(colour).maps.shape == (1, 224, 224)
    with pytest.raises(GamlensError, match=r"failed on a batch of shape \(1, 3, 224, 224\)"):
        Lens(nets.small(channels=5)).classify(colour)


def never(graph: Any, inputs: Any) -> Any:
    raise AssertionError("compiled after all")


def compiled_inside() -> nn.Module:
    net = nets.small()
    net.layer3 = torch.compile(net.layer3, backend=never)
    net.layer1.compile(backend=never)
    return net


def compiled_in_place() -> nn.Module:
    net = nets.small()
    net.compile(backend=never)
    return net


WRAPPED: dict[str, Callable[[], nn.Module]] = {
    "compiled": lambda: torch.compile(nets.small(), backend=never),
    "compiled in place": compiled_in_place,
    "compiled inside": compiled_inside,
    "parallel": lambda: nn.DataParallel(nets.small()),
    "compiled and parallel": lambda: torch.compile(nn.DataParallel(nets.small()), backend=never),
    "parallel and compiled": lambda: nn.DataParallel(torch.compile(nets.small(), backend=never)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_models(name: str, call: str) -> None:
    lens = Lens(WRAPPED[name]())
    assert lens.name == "Small"
    assert lens.blocks == ("layer1", "layer2", "layer3")
    result, expected = CALLS[call](lens, nets.images(2)), CALLS[call](Lens(nets.small()), nets.images(2))
    torch.testing.assert_close(result.maps, expected.maps, atol=1e-6, rtol=0)
    torch.testing.assert_close(result.scores, expected.scores)


def test_a_model_compiled_in_place_stays_so() -> None:
    calls: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        calls.append(1)
        return graph.forward

    net = nets.small()
    net.compile(backend=backend)
    Lens(net).classify(nets.images(2), 3)
    assert calls == []
    net(nets.images(2))
    assert calls
