"""Checks that travel with a result: nothing waits for the device inside a call, and nothing is missed afterwards."""

from __future__ import annotations

import pickle
import warnings

import nets
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gamlens import GamlensError, GamlensWarning, Lens, scores
from gamlens.capture import nonblocking
from gamlens.capture.nonblocking import Check, Checks

WAITS = ("aten._local_scalar_dense", "aten.item", "aten.is_nonzero", "aten.nonzero", "aten.equal", "aten.masked_select")


class Waits(TorchDispatchMode):
    """Counts what would make a host wait for its device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func).startswith(WAITS):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every tensor were on an accelerator."""
    monkeypatch.setattr(nonblocking, "HOST", "none")
    monkeypatch.setattr(scores, "HOST", "none")


@pytest.mark.parametrize("method", ["gam", "grad_cam", "grad_cam_pp", "layer_cam"])
def test_a_call_waits_for_nothing(far: None, method: str) -> None:
    lens, images = Lens(nets.small().float()), nets.images(3).float()
    lens.classify(images, [0, 1, 2])
    with Waits() as seen:
        lens.classify(images, [0, 1, 2], method=method)
        lens.classify(images, method=method)
        lens.classify(images, [None, 1, [2, None]], method=method)
        lens.compare(images, images.flip(3), method=method, score="dot")
        lens.compare(images, images.flip(3), method=method)
    assert seen.found == []


def test_float16_waits_for_nothing(far: None) -> None:
    lens, images = Lens(nets.small().float(), precision="fp16"), nets.images(3).float()
    lens.classify(images, [0, 1, 2])
    with Waits() as seen:
        lens.classify(images, [0, 1, 2])
        lens.compare(images, images.flip(3), score="dot")
    assert seen.found == []


def test_refining_waits_for_nothing(far: None) -> None:
    lens, images = Lens(nets.small().float()), nets.images(3).float()
    lens.classify(images, [0, 1, 2], views="flip")
    with Waits() as seen:
        lens.classify(images, [0, 1, 2], n=1, refine=2)
        lens.classify(images, [None, 1, [2, None]], refine=True, views="flip")
        lens.compare(images, images.flip(3), score="dot", refine=True)
        lens.compare(images, images.flip(3), method="vdsn", score="dot", refine=True)
    assert seen.found == []


def broken() -> Lens:
    net = nets.small().float()
    with torch.no_grad():
        next(net.parameters()).fill_(float("nan"))
    return Lens(net)


@pytest.mark.parametrize(
    "read",
    [
        lambda r: r.cpu(), lambda r: r.numpy(), lambda r: r[0], lambda r: r.full(), lambda r: r.boxes(),
        lambda r: r.overlay(), lambda r: r.check(), pickle.dumps,
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_when_the_result_is_read(far: None, read) -> None:
    result = broken().classify(nets.images(2).float(), [0, 1])
    with pytest.raises(GamlensError, match="values that are not finite"):
        read(result)


def test_warnings_come_once(far: None) -> None:
    lens = Lens(nets.small().float())
    same = nets.images(1).float()
    pair = lens.compare(same, same)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        pair.x.check()
    assert {str(one.message).split(":")[0] for one in told} == {"Pair 0", "gam"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair.x.check()


def test_on_the_cpu_it_is_said_at_once() -> None:
    with pytest.raises(GamlensError, match="values that are not finite"):
        broken().classify(nets.images(2).float(), [0, 1])


def test_errors_come_before_warnings() -> None:
    yes, no = torch.tensor(True), torch.tensor(False)
    found = (
        Check(yes.any, lambda: "odd", fatal=False),
        Check(no.any, lambda: "fine"),
        Check(yes.any, lambda: "wrong"),
    )
    with pytest.raises(GamlensError, match="wrong"):
        Checks(found).resolve()
    with pytest.warns(GamlensWarning, match="odd"):
        Checks(found[:2]).resolve()
    Checks().resolve()


def test_numbers_on_a_device() -> None:
    assert nonblocking.indices_on((0, 1, 2), torch.device("cpu")).tolist() == [0, 1, 2]
    assert nonblocking.indices_on([3, 1], torch.device("cpu")).tolist() == [3, 1]
    assert nonblocking.indices_on([], torch.device("cpu")).shape == (0,)
