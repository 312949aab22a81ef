"""Which models a studio offers, and which it refuses; how they are loaded while others work."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from studio_kit import small_lens

from gamlens import GamlensError, Lens
from gamlens.errors import warn
from gamlens.studio.model_cache import LOADED_MODELS_KEPT, MOST_LOADS, ModelCache

PATIENCE = 60.0
MODEL_FILE = "from model_gate import GATE\n" + "".join(f"def {name}(): return GATE({name!r})\n" for name in "abcde")


class Gate:
    """The user's code of five models, `a` to `e`: it says when a load begins, and ends it when it is opened."""

    def __init__(self, file: Path) -> None:
        self.given = {name: f"{file}:{name}" for name in "abcde"}
        self.began = {name: threading.Event() for name in "abcde"}
        self.open = {name: threading.Event() for name in "abcde"}
        self.built: list[str] = []
        self.then: dict[str, Callable[[], Any]] = {}

    def __call__(self, name: str) -> Lens:
        self.built.append(name)
        self.began[name].set()
        assert self.open[name].wait(PATIENCE)
        self.then.get(name, bool)()
        return small_lens()

    def let_through(self, names: str) -> None:
        for name in names:
            self.open[name].set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor) -> Iterator[Gate]:
    """The gate, which is opened before the pool waits for its threads."""
    (tmp_path / "gated.py").write_text(MODEL_FILE)
    made = Gate(tmp_path / "gated.py")
    monkeypatch.setitem(sys.modules, "model_gate", SimpleNamespace(GATE=made))
    yield made
    made.let_through("abcde")


def test_models_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import torchvision\ndef build():\n    return torchvision.models.resnet18(num_classes=3)\n")
    cache = ModelCache({f"{file}:build": f"{file}:build"}, any_name=False)
    assert cache.lens(cache.first).name == "ResNet"
    assert cache.lens(cache.first) is cache.lens(cache.first)
    with pytest.raises(GamlensError, match="no model 'resnet18' here"):
        cache.lens("resnet18")
    free = ModelCache({"given": cache.lens(cache.first)}, any_name=True)
    assert free.names[:2] == ["given", "efficientnet_lite0"]
    assert isinstance(free.lens("given"), Lens)
    for name in (f"{file}:build", str(file)):
        with pytest.raises(GamlensError, match="given at the start"):
            free.lens(name)
    with pytest.raises(GamlensError, match="did you mean 'resnet50'"):
        free.lens("resnet5")
    with pytest.raises(GamlensError, match="no model to show"):
        ModelCache({}, any_name=True)


def test_a_load_keeps_nobody_waiting_who_has_a_model(gate: Gate, pool: ThreadPoolExecutor) -> None:
    gate.let_through("a")
    cache = ModelCache({**gate.given, "own": small_lens()}, any_name=False)
    loaded = cache.lens("a")
    slow = pool.submit(cache.lens, "b")
    assert gate.began["b"].wait(PATIENCE)
    assert pool.submit(cache.lens, "a").result(PATIENCE) is loaded
    assert isinstance(pool.submit(cache.lens, "own").result(PATIENCE), Lens)
    gate.let_through("b")
    assert slow.result(PATIENCE) is cache.lens("b")


def test_two_models_load_at_once(gate: Gate, pool: ThreadPoolExecutor) -> None:
    cache = ModelCache(gate.given, any_name=False)
    slow = pool.submit(cache.lens, "a")
    assert gate.began["a"].wait(PATIENCE)
    gate.let_through("b")
    assert isinstance(pool.submit(cache.lens, "b").result(PATIENCE), Lens)
    assert not slow.done()


def test_all_who_ask_for_a_model_share_one_load(gate: Gate, pool: ThreadPoolExecutor) -> None:
    cache, together = ModelCache(gate.given, any_name=False), threading.Barrier(5)

    def ask() -> Future[Lens]:
        together.wait(PATIENCE)
        return cache.load("a")

    asked = [waiting.result(PATIENCE) for waiting in [pool.submit(ask) for _ in range(5)]]
    gate.let_through("a")
    assert len({id(future.result(PATIENCE)) for future in asked}) == 1
    assert gate.built == ["a"]


@pytest.mark.parametrize(
    ("failure", "said"),
    [(RuntimeError("out of luck"), "RuntimeError: out of luck"), (SystemExit(3), r"called sys\.exit\(3\)")],
)
def test_a_failed_load_is_told_to_all_and_tried_again(gate: Gate, failure: BaseException, said: str) -> None:
    def fail() -> None:
        raise failure

    gate.then["a"] = fail
    cache = ModelCache(gate.given, any_name=False)
    asked = [cache.load("a"), cache.load("a")]
    gate.let_through("a")
    for future in asked:
        with pytest.raises(GamlensError, match=said):
            future.result(PATIENCE)
    assert gate.built == ["a"]
    del gate.then["a"]
    assert isinstance(cache.load("a").result(PATIENCE), Lens)


def test_a_load_that_exits_outside_the_users_file_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(3)

    monkeypatch.setattr("gamlens.studio.model_cache._build", leave)
    with pytest.raises(GamlensError, match="'lenet5' could not be loaded: SystemExit: 3"):
        ModelCache({"lenet5": "lenet5"}, any_name=False).load("lenet5").result(PATIENCE)


@pytest.mark.filterwarnings("always::gamlens.GamlensWarning")
def test_a_load_that_warns_succeeds(gate: Gate, recwarn: pytest.WarningsRecorder) -> None:
    gate.then["a"] = lambda: warn("assumed something")
    gate.let_through("a")
    assert isinstance(ModelCache(gate.given, any_name=False).lens("a"), Lens)
    assert "assumed something" in [str(found.message) for found in recwarn]


def test_few_models_are_kept_and_one_in_use_is_not_loaded_twice(gate: Gate) -> None:
    """The first model stays, since every visit begins with it; others go when nobody uses them any more."""
    gate.let_through("abcde")
    cache = ModelCache(gate.given, any_name=False)
    cache.lens("a")
    used = cache.lens("b")
    for name in "cde":
        cache.lens(name)
    gc.collect()
    in_memory = [name for name in "abcde" if cache.loaded(name) is not None]
    assert in_memory == ["a", "b", "e"]
    assert len(in_memory) == LOADED_MODELS_KEPT + 1  # and the one in use
    assert cache.lens("b") is used
    assert gate.built == list("abcde")
    del used
    cache.lens("c")
    gc.collect()
    assert [name for name in "abcde" if cache.loaded(name) is not None] == ["a", "c"]


def test_loads_at_the_same_time_are_few(gate: Gate) -> None:
    cache = ModelCache(gate.given, any_name=False)
    running = [cache.load(name) for name in "abcde"[:MOST_LOADS]]
    with pytest.raises(GamlensError, match=r"'c' cannot be loaded now, because others are being loaded: 'a', 'b'\."):
        cache.load("c").result(PATIENCE)
    gate.let_through("abc")
    assert all(isinstance(future.result(PATIENCE), Lens) for future in running)
    assert isinstance(cache.lens("c"), Lens)


def test_closing_waits_for_no_load(gate: Gate) -> None:
    """Everybody who waits is told, and what is still loading keeps the process from nothing."""
    cache = ModelCache(gate.given, any_name=False)
    waiting = cache.load("a")
    assert gate.began["a"].wait(PATIENCE)
    loader = next(thread for thread in threading.enumerate() if thread.name == "load a")
    cache.close()
    for future in (waiting, cache.load("b")):
        with pytest.raises(GamlensError, match="The studio has ended"):
            future.result(PATIENCE)
    assert loader.daemon
    gate.let_through("a")
    loader.join(PATIENCE)
    assert cache.loaded("a") is None
