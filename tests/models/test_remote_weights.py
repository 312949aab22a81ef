"""Weights that are not on this machine: without a network, one clear error within seconds; forbidden downloads."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from gamlens import GamlensError, Lens
from gamlens.cli import app
from gamlens.models import load, remote_weights
from gamlens.models.remote_weights import DownloadNeededError, without_downloads

TINY_TIMM = "timm/test_resnet"


def through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: int) -> None:
    """Send all requests to a port of this machine, and begin with empty caches."""
    from huggingface_hub.utils import close_session

    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waits before it tries again"))
    close_session()


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Requests go to a proxy that is not there."""
    from huggingface_hub.utils import close_session

    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    through(monkeypatch, tmp_path, port)
    yield
    close_session()


def copy_of(tmp_path: Path, repository: str, file: str) -> Path:
    """An empty place in the hub's cache for a file, as a download would leave it."""
    folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    return folder / "snapshots" / ("0" * 40) / file


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("name", "tried"),
    [
        ("resnet18", r"https://download\.pytorch\.org/models/resnet18-\w+\.pth cannot .*pass a file: .*--weights"),
        (
            "timm/resnet18",
            r"https://huggingface\.co/timm/resnet18\.\w+/resolve/main/model\.safetensors cannot .*--weights",
        ),
        ("hf/google/vit-base-patch16-224", r"https://huggingface\.co/google/.*/config\.json cannot .*give hf/FOLDER"),
    ],
)
def test_without_a_network_there_is_one_error_within_seconds(name: str, tried: str) -> None:
    with pytest.raises(GamlensError, match=rf"The weights of {name} could not be downloaded.*{tried}"):
        load(name)


@pytest.mark.usefixtures("no_network")
def test_the_command_says_which_file_to_pass(tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    Image.new("RGB", (32, 32)).save(photo)
    result = CliRunner().invoke(app, ["classify", str(photo), "--model", "resnet18", "-o", str(tmp_path / "o")])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "--weights file.pth" in " ".join(result.stderr.split())


def test_a_network_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(remote_weights, "REACH_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        through(monkeypatch, tmp_path, silent.getsockname()[1])
        for name in ("resnet18", "timm/resnet18"):
            with pytest.raises(GamlensError, match="cannot be reached"):
                load(name)


def test_a_hub_that_is_switched_off_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(remote_weights, "_ask_hub", lambda url: pytest.fail("asked"))
    with pytest.raises(GamlensError, match="HF_HUB_OFFLINE is set"):
        load("timm/resnet18")


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("forbidden", [False, True])
def test_the_copy_on_this_machine_is_used_without_a_network(forbidden: bool, tmp_path: Path) -> None:
    """Where the hub cannot be reached, and where it must not be."""
    import timm
    from safetensors.torch import save_file

    tensors = timm.create_model("test_resnet").state_dict()
    repository = timm.get_pretrained_cfg("test_resnet").hf_hub_id
    save_file(tensors, copy_of(tmp_path, repository, "model.safetensors"))
    if forbidden:
        with without_downloads():
            network = load(TINY_TIMM)
    else:
        network = load(TINY_TIMM)
    assert all(torch.equal(value, tensors[key]) for key, value in network.module.state_dict().items())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet18", "resnet18 would download about 45 MB from download.pytorch.org; it is not on this machine."),
        ("timm/resnet18", "timm/resnet18 would download about 47 MB from huggingface.co; it is not on this machine."),
        ("hf/a/b", "hf/a/b would download a file of unknown size from huggingface.co; it is not on this machine."),
    ],
)
def test_a_forbidden_download_says_what_it_would_be(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(remote_weights, "_unreachable", lambda remote: pytest.fail("asked"))
    with without_downloads(), pytest.raises(DownloadNeededError) as caught:
        load(name)
    assert str(caught.value) == said
    with without_downloads():
        assert Lens("lenet5", weights="random").weights == "random"


def test_a_download_prints_nothing_where_results_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchvision.models import resnet18

    def download(url: str, place: str, *_: object, **__: object) -> None:
        torch.save(resnet18().state_dict(), place)

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(remote_weights, "_unreachable", lambda remote: "")
    monkeypatch.setattr("torch.hub.download_url_to_file", download)
    assert load("resnet18").name == "resnet18"
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Downloading https://download.pytorch.org/models/resnet18" in printed.err
