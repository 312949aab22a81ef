"""Weights of torchvision by their names: from torch's own cache, without a download."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torchvision import models
from typer.testing import CliRunner

from gamlens import GamlensError, Lens
from gamlens.cli import app
from gamlens.models import load, remote_weights
from gamlens.models.remote_weights import DownloadNeededError, without_downloads

NAME = "squeezenet1_1"  # the smallest network of torchvision whose weights have one version
ENUM = models.SqueezeNet1_1_Weights
TWO_VERSIONS = "mobilenet_v2"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of torch.hub; a request for anything else fails the test."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", lambda *_, **__: pytest.fail("downloaded"))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def cached(hub: Path, weights: models.WeightsEnum, network: str) -> dict[str, torch.Tensor]:
    """Put made weights where torch.hub keeps the file of these weights."""
    tensors: dict[str, torch.Tensor] = models.get_model(network, weights=None).state_dict()
    torch.save(tensors, hub / weights.url.rsplit("/", 1)[1])
    return tensors


@pytest.mark.parametrize("wanted", ["IMAGENET1K_V1", "DEFAULT", "SqueezeNet1_1_Weights.IMAGENET1K_V1"])
def test_the_file_in_the_cache_is_read(hub: Path, wanted: str) -> None:
    torch.manual_seed(3)
    tensors = cached(hub, ENUM.IMAGENET1K_V1, NAME)
    lens = Lens(NAME, weights=wanted)
    assert all(torch.equal(value, tensors[key]) for key, value in lens.model.state_dict().items())
    assert lens.weights == "SqueezeNet1_1_Weights.IMAGENET1K_V1"
    assert len(lens.labels) == 1000


def test_each_version_has_its_own_file_and_its_own_input(hub: Path) -> None:
    enum = models.MobileNet_V2_Weights
    first, second = (cached(hub, version, TWO_VERSIONS) for version in (enum.IMAGENET1K_V1, enum.IMAGENET1K_V2))
    key = "classifier.1.weight"
    assert not torch.equal(first[key], second[key])
    old, new = (load(TWO_VERSIONS, weights=f"IMAGENET1K_V{version}") for version in (1, 2))
    assert torch.equal(old.module.state_dict()[key], first[key])
    assert torch.equal(new.module.state_dict()[key], second[key])
    assert (old.short, new.short) == (256, 232)
    assert (old.weights, new.weights) == ("MobileNet_V2_Weights.IMAGENET1K_V1", "MobileNet_V2_Weights.IMAGENET1K_V2")


def test_offline_the_error_names_the_file_and_where_torch_looks(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_weights, "_unreachable", lambda remote: "no network here")
    with pytest.raises(GamlensError) as caught:
        Lens("resnet101", weights="IMAGENET1K_V1")
    said = str(caught.value)
    assert "--weights resnet101-63fe2227.pth" in said
    assert f"where torch looks for it, {str(hub)!r}" in said


def test_a_forbidden_download_is_of_the_version_that_was_named(hub: Path) -> None:
    with without_downloads(), pytest.raises(DownloadNeededError, match="resnet101 would download about 171 MB"):
        load("resnet101", weights="IMAGENET1K_V1")


@pytest.mark.parametrize(
    ("model", "wanted", "said"),
    [
        ("resnet101", "IMAGENET1K_V9", r"torchvision's resnet101 has no weights 'IMAGENET1K_V9'.*'IMAGENET1K_V1'"),
        ("resnet101", "ResNet50_Weights.IMAGENET1K_V1", "resnet101 has no weights 'ResNet50_Weights.IMAGENET1K_V1'"),
        ("lenet5", "IMAGENET1K_V1", "lenet5 has no weights 'IMAGENET1K_V1': only torchvision's networks .*--weights"),
        ("efficientnet_lite0", "DEFAULT", "efficientnet_lite0 has no weights 'DEFAULT'"),
        ("timm/test_resnet", "DEFAULT", "timm/test_resnet has no weights 'DEFAULT'"),
        ("hf/a/b", "DEFAULT", "hf/a/b has no weights 'DEFAULT'"),
        (torch.nn.Conv2d(3, 4, 1), "DEFAULT", "A module of the class Conv2d has no weights 'DEFAULT'"),
        ("lenet5", "imagenet1k_v1", "There is no weights file 'imagenet1k_v1'"),
    ],
)
def test_a_name_that_does_not_exist(model: str, wanted: str, said: str) -> None:
    with pytest.raises(GamlensError, match=said):
        load(model, weights=wanted)


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = load("lenet5", weights="random").module.state_dict()
    torch.save(made, tmp_path / "DEFAULT")
    network = load("lenet5", weights="DEFAULT")
    assert network.weights == "DEFAULT"
    assert all(torch.equal(value, made[key]) for key, value in network.module.state_dict().items())


def test_the_command_takes_a_name(hub: Path) -> None:
    cached(hub, ENUM.IMAGENET1K_V1, NAME)
    result = CliRunner().invoke(app, ["blocks", NAME, "--weights", "IMAGENET1K_V1"])
    assert result.exit_code == 0, result.output
    assert "embedding" in result.output
    wrong = CliRunner().invoke(app, ["blocks", NAME, "--weights", "IMAGENET1K_V7"])
    assert wrong.exit_code == 1
    assert "has no weights 'IMAGENET1K_V7'" in " ".join(wrong.stderr.split())
