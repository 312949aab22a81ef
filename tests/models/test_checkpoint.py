"""Weights from files: every common wrapping is read, what does not fit is listed, code in a file does not run."""

from __future__ import annotations

import os
import pickle
import signal
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nets
import pytest
import torch
from torch import Tensor, nn

from gamlens import GamlensError, Lens
from gamlens.data import plausible
from gamlens.models import checkpoint

MARK = "ran"


class Bomb:
    """Unpickling it makes a folder."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (MARK,)


class Mine:
    """A user's own class, harmless, but code all the same."""


class Holder(nn.Module):
    """A model whose only child is called `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nets.Small()

    def forward(self, x: Tensor) -> Any:
        return self.module(x)


def weights(seed: int = 7) -> dict[str, Tensor]:
    return nets.seeded(nets.Small, seed=seed).state_dict()


def prefixed(prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{key}": value for key, value in weights().items()}


def fits(lens: Lens) -> None:
    nets.same(lens.classify(nets.images(1), 3), Lens(nets.seeded(nets.Small, seed=7)).classify(nets.images(1), 3))


WRAPPINGS: dict[str, Callable[[], Any]] = {
    "plain": weights,
    "state_dict": lambda: {"state_dict": weights(), "epoch": 3, "optimizer": {"lr": 0.1, "state": {}}},
    "model": lambda: {"model": weights(), "args": None},
    "model_state_dict": lambda: {"model_state_dict": weights(), "loss": torch.tensor(1.0)},
    "net": lambda: {"net": weights(), "acc": 0.9},
    "nested": lambda: {"state_dict": {"model": weights()}},
    "data parallel": lambda: prefixed("module."),
    "compiled": lambda: prefixed("_orig_mod."),
    "parallel, then compiled": lambda: {"state_dict": prefixed("_orig_mod.module.")},
    "compiled, then parallel": lambda: {"state_dict": prefixed("module._orig_mod.")},
    "without counters": lambda: {key: value for key, value in weights().items() if "num_batches" not in key},
    "half": lambda: {key: value.float() for key, value in weights().items()},
}


@pytest.mark.parametrize("name", WRAPPINGS)
def test_wrappings(name: str, tmp_path: Path) -> None:
    found = WRAPPINGS[name]()
    torch.save(found, tmp_path / "weights.pth")
    atol = 1e-4 if name == "half" else 0
    for given in (tmp_path / "weights.pth", str(tmp_path / "weights.pth"), found):
        net = nets.small()
        lens = Lens(net, weights=given)
        for key, value in weights().items():
            if "num_batches" not in key:
                torch.testing.assert_close(net.state_dict()[key], value, atol=atol, rtol=0)
        assert lens.weights == ("state dict" if isinstance(given, dict) else str(given))


def test_safetensors(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file(weights(), tmp_path / "weights.safetensors")
    fits(Lens(nets.small(), weights=tmp_path / "weights.safetensors"))
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "weights.safetensors").read_bytes()[:500])
    with pytest.raises(GamlensError, match=r"Cannot read weights from '.*half\.safetensors'"):
        Lens(nets.small(), weights=tmp_path / "half.safetensors")


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_weights_go_into_a_wrapped_model(wrap: Callable[[nn.Module], nn.Module]) -> None:
    fits(Lens(wrap(nets.small()), weights=weights()))
    fits(Lens(wrap(nets.small()), weights=wrap(nets.seeded(nets.Small, seed=7)).state_dict()))


def test_a_child_called_module_is_not_a_prefix() -> None:
    wanted = nets.seeded(Holder, seed=7).state_dict()
    net = nets.seeded(Holder)
    Lens(net, weights=wanted)
    assert torch.equal(net.module.fc.weight, wanted["module.fc.weight"])


def test_what_does_not_fit_is_listed_and_nothing_is_loaded() -> None:
    net = nets.small()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    wrong = weights() | {"fc.weight": torch.zeros(99, 32), "extra.bias": torch.zeros(3)}
    del wrong["stem.0.weight"]
    with pytest.raises(GamlensError) as caught:
        Lens(net, weights=wrong)
    message = str(caught.value)
    assert "do not fit Small" in message
    assert "1 missing: stem.0.weight" in message
    assert "1 unexpected: extra.bias" in message
    assert "1 of another shape: fc.weight (99, 32) into (10, 32)" in message
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    with pytest.raises(GamlensError, match=r"27? ?\d* missing: .*, \.\.\.; 1 unexpected: other"):
        Lens(nets.small(), weights={"other": torch.zeros(1)})


@pytest.mark.parametrize("inner", [Bomb(), {"state_dict": weights(), "extra": Bomb()}, {"model": Mine()}, nets.small()])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("saved", ["by torch", "by torch, as of old", "by pickle"])
def test_code_in_a_file_does_not_run(inner: Any, saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if saved == "by pickle":
        (tmp_path / "weights.pth").write_bytes(pickle.dumps(inner))
    else:
        torch.save(inner, tmp_path / "weights.pth", _use_new_zipfile_serialization=saved == "by torch")
    told = "not a checkpoint|run code" if saved == "by pickle" else r"more than tensors.*would run code.*state_dict\(\)"
    with pytest.raises(GamlensError, match=told):
        Lens(nets.small(), weights=tmp_path / "weights.pth")
    assert not (tmp_path / MARK).exists()


def test_the_bomb_is_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Bomb()))
    assert (tmp_path / MARK).exists()


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda file: None, r"There is no weights file '.*weights\.pth'"),
    "a folder": (lambda file: file.mkdir(), r"There is no weights file '.*weights\.pth'"),
    "empty": (lambda file: file.touch(), r"Cannot read weights from|not a checkpoint"),
    "half": (lambda file: (torch.save(weights(), file), cut(file)), r"Cannot read weights from .*truncated"),
    "text": (lambda file: file.write_text("<html>404 not found</html>"), r"not a checkpoint"),
    "noise": (lambda file: file.write_bytes(bytes(range(256)) * 40), r"not a checkpoint"),
    "numbers": (lambda file: torch.save({"lr": 0.1}, file), r"holds no tensors by name"),
    "one tensor": (lambda file: torch.save(torch.zeros(3), file), r"holds no tensors by name"),
    "a list": (lambda file: torch.save([torch.zeros(3)], file), r"holds no tensors by name"),
}


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_holds_no_weights(name: str, tmp_path: Path) -> None:
    make, message = BROKEN[name]
    make(tmp_path / "weights.pth")
    with pytest.raises(GamlensError, match=message) as caught:
        checkpoint.read(tmp_path / "weights.pth")
    assert "run code" not in str(caught.value)


@pytest.fixture
def limited() -> Iterator[None]:
    """Ends a test that runs for more than 20 seconds."""

    def late(*_: object) -> None:
        raise TimeoutError("still running after 20 seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def endless() -> dict[str, Any]:
    """A state dict that contains itself, by way of another dict."""
    inner: dict[str, Any] = {}
    outer = {"model": inner}
    inner["state_dict"] = outer
    return outer


def deep() -> dict[str, Any]:
    found: dict[str, Any] = weights()
    for _ in range(500):
        found = {"model": found}
    return found


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("make", [endless, deep])
def test_wrappings_without_end(make: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(GamlensError, match=r"'state dict' .*inside each other, or a dict that contains itself.*give"):
        Lens(nets.small(), weights=make())
    if make is endless:
        torch.save(make(), tmp_path / "weights.pth")
        with pytest.raises(GamlensError, match=r"weights\.pth' .*a dict that contains itself"):
            Lens(nets.small(), weights=tmp_path / "weights.pth")


@pytest.mark.usefixtures("limited")
def test_no_tensors_have_no_prefix() -> None:
    assert checkpoint.without_prefixes({}, weights()) == {}
    with pytest.raises(GamlensError, match=r"do not fit Small: \d+ missing"):
        checkpoint.fill(nets.small(), {}, source="'empty'")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"state_dict": 3}, r"holds no tensors by name"),
        ({"state_dict": [torch.zeros(3)]}, r"holds no tensors by name"),
        ({1: torch.zeros(3), None: torch.zeros(3)}, r"2 unexpected: 1, None"),
    ],
)
def test_wrappings_and_names_of_other_types(given: dict[Any, Any], told: str) -> None:
    with pytest.raises(GamlensError, match=told):
        Lens(nets.small(), weights=given)


def test_many_prefixes() -> None:
    fits(Lens(nets.small(), weights=prefixed("module." * 1000)))


def rezipped(path: Path, pickled: bytes | None = None, method: int = zipfile.ZIP_DEFLATED) -> None:
    """Write a torch file again, compressed or not, perhaps with another pickle in it."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in parts.items():
            archive.writestr(name, pickled if pickled is not None and name.endswith("data.pkl") else data)


FILLS = b"\x80\x02cbuiltins\nbytearray\nJ" + (2**30).to_bytes(4, "little") + b"\x85R."  # bytearray(2**30)


def write_bomb(kind: str, path: Path) -> None:
    """A small file that takes, or makes a network take, much memory."""
    if kind == "older bytearray":
        path.write_bytes(FILLS)
        return
    made = {
        "zeros": lambda: torch.zeros(2**21),
        "repeated": lambda: torch.zeros(1).expand(10**6, 10**6),
        "meta": lambda: torch.zeros(10**6, device="meta"),
    }.get(kind, lambda: torch.zeros(1))
    torch.save({"fc.weight": made()}, path)
    rezipped(path, FILLS if kind == "bytearray" else None)


@pytest.mark.parametrize("kind", ["zeros", "repeated", "bytearray", "older bytearray", "meta"])
def test_a_small_file_that_takes_much_memory_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plausible, "ALWAYS_PLAUSIBLE", 2**20)
    write_bomb(kind, tmp_path / "bomb.pth")
    if kind not in ("repeated", "meta"):
        monkeypatch.setattr(torch, "load", None)
    with pytest.raises(GamlensError, match=r"bomb\.pth' has .* more than 100 times as many|device 'meta'"):
        checkpoint.read(tmp_path / "bomb.pth")


@pytest.mark.parametrize("new", [True, False])
def test_bytes_beside_the_weights_are_read(new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plausible, "ALWAYS_PLAUSIBLE", 2**10)
    made = {"state_dict": weights(), "vocabulary": bytearray(b"abc"), "more": bytearray(b"abc")}
    torch.save(made, tmp_path / "a.pth", _use_new_zipfile_serialization=new)
    assert checkpoint.read(tmp_path / "a.pth").keys() == weights().keys()


def test_a_compressed_file_of_real_weights_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plausible, "ALWAYS_PLAUSIBLE", 2**10)
    torch.save(weights(), tmp_path / "a.pth")
    rezipped(tmp_path / "a.pth")
    assert torch.equal(checkpoint.read(tmp_path / "a.pth")["fc.weight"], weights()["fc.weight"])


def test_a_tar_file_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.pth", "w") as archive:
        archive.addfile(tarfile.TarInfo("pickle"))
    with pytest.raises(GamlensError, match=r"a\.pth' is a tar file.*newer format"):
        checkpoint.read(tmp_path / "a.pth")


@pytest.mark.parametrize("shape", [(10**12, 0), (10**6, 1)])
def test_a_head_of_another_width_builds_no_large_network(shape: tuple[int, int]) -> None:
    given = {**weights(), "fc.weight": torch.zeros(shape), "fc.bias": torch.zeros(()).expand(shape[0])}
    asked: list[int] = []

    def make(classes: int) -> nn.Module:
        asked.append(classes)
        return nets.seeded(nets.Small)

    with pytest.raises(GamlensError, match="2 of another shape: fc"):
        checkpoint.build("small", make, nets.CLASSES, given)
    assert asked == [nets.CLASSES]
