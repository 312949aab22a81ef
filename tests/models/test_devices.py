"""The device "auto": which one is chosen, on the command line, in Python and in the studio, and what is recorded."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import nets
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from gamlens import GamlensError, Lens, Transform
from gamlens.cli import app
from gamlens.cli.common import make_lens
from gamlens.models import devices
from gamlens.studio import launch
from gamlens.studio.model_cache import ModelCache


def have(monkeypatch: pytest.MonkeyPatch, *, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_the_best_device(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, expected: str) -> None:
    have(monkeypatch, cuda=cuda, mps=mps)
    assert devices.best_device().type == expected
    assert devices.chosen_device("auto", torch.device("cpu")) == torch.device(expected)


def test_what_was_asked_for_is_taken_and_a_model_on_a_gpu_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, cuda=True, mps=False)
    assert devices.chosen_device("cpu", torch.device("cpu")) == "cpu"
    assert devices.chosen_device("auto", torch.device("cuda:1")) == torch.device("cuda:1")


def test_a_lens_moves_its_model_only_if_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose best device is "meta", which every build of torch has."""
    monkeypatch.setattr(devices, "best_device", lambda: torch.device("meta"))
    lens = Lens(nets.small().float())
    assert lens.device.type == "cpu"
    assert lens.to("auto").device.type == "meta"


def test_auto_is_the_cpu_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, cuda=False, mps=False)
    lens = Lens(nets.small().float(), device="auto", transform=Transform((32, 32)))
    assert lens.device.type == "cpu"
    result = lens.classify(torch.rand(1, 3, 32, 32))
    assert result.about["device"] == "cpu"


def test_a_gpu_that_cannot_be_used_is_an_error_that_names_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU that can be used")
    have(monkeypatch, cuda=True, mps=False)
    with pytest.raises(GamlensError, match=r"Cannot use the device 'cuda'.*give auto, cpu"):
        Lens(nets.small().float(), device="auto")


def test_every_command_with_a_device_begins_with_auto() -> None:
    found = {
        command.name: parameter.default
        for command in app.registered_commands
        if command.callback is not None
        for name, parameter in inspect.signature(command.callback).parameters.items()
        if name == "device"
    }
    assert {"classify", "compare", "search", "evaluate", "ablate", "figure", "report", "studio"} <= found.keys()
    assert set(found.values()) == {"auto"}


def test_a_lens_of_a_file_is_moved_like_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the best device where none is named: "meta" here, which every build of torch has; and to the named one."""
    (tmp_path / "mine.py").write_text(
        "import nets\nfrom gamlens import Lens, Transform\n"
        "def build():\n    return Lens(nets.small().float(), transform=Transform((32, 32)))\n"
    )
    model = f"{tmp_path / 'mine.py'}:build"
    with monkeypatch.context() as patch:
        patch.setattr(devices, "best_device", lambda: torch.device("meta"))
        assert make_lens(model, None, None, "auto").device.type == "meta"
        assert make_lens(model, None, None, "cpu").device.type == "cpu"
    Image.new("RGB", (32, 32), "red").save(tmp_path / "photo.png")
    asked = ["classify", str(tmp_path / "photo.png"), "-m", model, "-o", str(tmp_path / "o"), "--device", "cpu"]
    done = CliRunner().invoke(app, [*asked, "--json"])
    assert done.exit_code == 0, done.output
    saved = json.loads(next((tmp_path / "o").rglob("explanation.json")).read_text())
    assert saved["about"]["device"] == "cpu"
    wrong = CliRunner().invoke(app, [*asked, "--weights", "random"])
    assert wrong.exit_code == 1
    assert "leave out --weights, --blocks and --embedding" in " ".join(wrong.stderr.split())


def test_the_studio_loads_models_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(Lens, "to", lambda self, device: asked.append(device) or self)
    monkeypatch.setattr("gamlens.studio.model_cache.from_file", lambda name: nets.small().float())
    ModelCache({"a.py:b": "a.py:b"}, any_name=False).lens("a.py:b")
    ModelCache({"a.py:b": "a.py:b"}, any_name=False, device="cpu").lens("a.py:b")
    assert asked == ["auto", "cpu"]
    assert inspect.signature(launch).parameters["device"].default == "auto"
