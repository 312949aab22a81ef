"""Networks by name: the paper's models, public checkpoint layouts, timm, torchvision, and a user's own file."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

import pytest
import torch
from public_layouts import public_chexnet, public_tresnet
from typer.testing import CliRunner

from gamlens import MODELS, GamlensError, Lens
from gamlens.cli import app
from gamlens.data.class_names import CHEST_FINDINGS, COCO_CLASSES, VOC_CLASSES
from gamlens.models import PREFIXED, Network, from_file, load, zoo

runner = CliRunner()


def test_every_file_of_the_zoo_is_registered() -> None:
    builders = [getattr(builder, "func", builder) for builder in (*MODELS.values(), *PREFIXED.values())]
    files = {module.name for module in pkgutil.iter_modules(zoo.__path__)}
    assert {builder.__module__.rpartition(".")[2] for builder in builders} == files - {from_file.__name__}


def test_chexnet_reads_the_public_layout(tmp_path: Path) -> None:
    torch.manual_seed(1)
    source = load("chexnet", weights="random").module
    public = public_chexnet(source.state_dict())
    assert "module.densenet121.features.denseblock1.denselayer1.norm.1.weight" in public
    assert "module.densenet121.features.denseblock1.denselayer1.conv.2.weight" in public
    assert "module.densenet121.classifier.0.weight" in public
    torch.save({"epoch": 1, "state_dict": public, "best_loss": 0.5}, tmp_path / "model.pth.tar")
    lens = Lens("chexnet", weights=str(tmp_path / "model.pth.tar"))
    batch = torch.randn(1, 3, 224, 224)
    trace = lens.trace(batch, [["Infiltrate", "Hernia", 3]])
    with torch.no_grad():
        assert torch.allclose(trace.output, source(batch), atol=1e-5)
    assert trace.targets.tolist() == [3, 13, 3]
    assert len(lens.labels) == 14
    assert lens.labels == CHEST_FINDINGS
    assert lens.blocks[-1] == "features:relu"
    guess = trace.top(1)[0][0]
    assert guess.probability == pytest.approx(torch.sigmoid(torch.tensor(guess.score)).item(), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "labels", "wrapping"), [(80, COCO_CLASSES, "model"), (20, VOC_CLASSES, "state_dict"), (7, (), "")]
)
def test_tresnet_reads_the_public_layout(classes: int, labels: tuple[str, ...], wrapping: str, tmp_path: Path) -> None:
    import timm

    torch.manual_seed(2)
    source = timm.create_model("tresnet_m", num_classes=classes).eval()
    public = public_tresnet(source.state_dict())
    assert "body.conv1.0.weight" in public
    torch.save({wrapping: public} if wrapping else public, tmp_path / "tresnet.pth")
    network = load("tresnet_m", weights=str(tmp_path / "tresnet.pth"))
    mine = network.module.state_dict()
    assert network.labels == labels
    assert network.multi_label
    for key, value in source.state_dict().items():
        expected = value.abs() + 1e-5 if key.endswith("bn.weight") else value
        assert torch.equal(mine[key], expected), key


def test_tresnet_sizes() -> None:
    assert {name for name in MODELS if name.startswith("tresnet")} == {"tresnet_m", "tresnet_l", "tresnet_xl"}
    assert load("tresnet_m", weights="random").size == (448, 448)


@pytest.mark.parametrize("side", [28, 32])
def test_lenet5_takes_both_sizes(side: int) -> None:
    torch.manual_seed(0)
    lens = Lens("lenet5", weights="random")
    result = lens.classify(torch.rand(2, 1, side, side), target="seven")
    assert result.maps.shape == (2, side, side)
    assert result.targets.tolist() == [7, 7]


def test_lenet5_reads_grey_photos() -> None:
    lens = Lens("lenet5", weights="random")
    import numpy as np

    result = lens.classify(np.full((56, 40), 128, np.uint8) + np.arange(40, dtype=np.uint8))
    assert result.full(0).shape == (56, 40)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"blocks": "layer4"}, "blocks and labels are tuples"),
        ({"labels": "cat"}, "blocks and labels are tuples"),
        ({"size": (128,)}, r"found size \(128,\)"),
        ({"mean": (0.5,)}, "1 and 3 numbers"),
    ],
)
def test_a_network_that_is_put_together_wrongly_says_so(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(GamlensError, match=f"The network 'mine': .*{said}"):
        Network(torch.nn.Identity(), "mine", "given", **wrong)


@pytest.mark.parametrize("name", ["chexnet", "tresnet_l", "lenet5"])
def test_a_model_without_weights_says_which_file_to_pass(name: str) -> None:
    with pytest.raises(GamlensError, match=rf"{name} has no weights of its own here: pass .*--weights file\.pth"):
        load(name)


@pytest.mark.parametrize(
    ("name", "size", "blocks"),
    [
        ("efficientnet_lite1", (240, 240), ("blocks.1", "blocks.2", "blocks.4", "bn2")),
        ("efficientnet_lite2", (260, 260), ("blocks.1", "blocks.2", "blocks.4", "bn2")),
        ("timm/regnety_002", (224, 224), ("s1", "s2", "s3", "s4")),
        ("resnet18", (224, 224), ("layer1", "layer2", "layer3", "layer4")),
    ],
)
def test_names(name: str, size: tuple[int, int], blocks: tuple[str, ...]) -> None:
    lens = Lens(name, weights="random")
    assert lens.transform.size == size
    assert lens.blocks == blocks
    assert lens.weights == "random"
    assert len(lens.labels) == 1000


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet5", r"did you mean 'resnet50'"),
        ("timm/regnety_0002", r"timm has no model 'regnety_0002': did you mean 'timm/regnety_002'"),
        ("timm/nonsense", r"timm has no model 'nonsense': did you mean 'timm/senet154', .*timm\.list_models"),
        ("timm/resnet18.a1", r"timm has no model 'resnet18\.a1': did you mean .*'timm/resnet18\.a1_in1k'"),
        ("chexnett", r"did you mean 'chexnet'"),
        ("none.py", r"There is no file 'none\.py'"),
        ("mine.py:build", r"'mine\.py:build' is a function in a Python file: call it"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(GamlensError, match=message):
        load(name, weights="random")


def test_as_many_classes_as_the_weights_have(tmp_path: Path) -> None:
    from torchvision.models import resnet18

    torch.save(resnet18(num_classes=10).state_dict(), tmp_path / "ten.pth")
    lens = Lens("resnet18", weights=str(tmp_path / "ten.pth"))
    assert lens.trace(torch.rand(1, 3, 64, 64)).output.shape == (1, 10)
    assert lens.labels == ()
    with pytest.raises(
        GamlensError, match=r"do not fit ResNet: 2 of another shape: fc\.weight \(10, 512\) into \(1000, 512\)"
    ):
        Lens(resnet18(), weights=str(tmp_path / "ten.pth"))


USER = """
import torch
from torch import nn
from gamlens import Lens

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, 4), nn.ReLU(), nn.Conv2d(4, 8, 3, 2), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))

def lens():
    return Lens(build(), labels=["ant", "bee", "cow"])

def fails():
    raise RuntimeError("no such thing")

def nothing():
    build()

def leaves():
    raise SystemExit(4)
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(USER)
    return tmp_path / "mine.py"


@pytest.mark.parametrize(("function", "name"), [("build", "class "), ("lens", "bee")])
def test_a_users_own_file_on_the_command_line(user_file: Path, function: str, name: str, tmp_path: Path) -> None:
    from gamlens.data.photos import path

    arguments = [
        "classify",
        str(path("lion")),
        "--model",
        f"{user_file}:{function}",
        "-t",
        "1",
        "-o",
        str(tmp_path / "o"),
    ]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    assert name in result.stdout
    listed = runner.invoke(app, ["blocks", f"{user_file}:build"])
    assert "3" in listed.stdout
    assert "6:input" in listed.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mine.py:bild", "has no function 'bild': did you mean 'build'"),
        ("mine.py:fails", "RuntimeError: no such thing"),
        ("mine.py:nothing", "returned None: let the function return"),
        ("mine.py:leaves", r"called sys\.exit\(4\): let it return a model"),
        ("none.py:build", "There is no file"),
    ],
)
def test_a_users_file_that_does_not_work(user_file: Path, text: str, message: str) -> None:
    with pytest.raises(GamlensError, match=message):
        from_file(str(user_file.parent / text))


def test_a_python_file_without_a_function_names_its_functions(user_file: Path) -> None:
    """The file is read, not run."""
    user_file.write_text(USER + "\nraise RuntimeError('it was run')\n")
    with pytest.raises(GamlensError, match=r"as in .*mine\.py:build\. It has build, lens, fails, nothing, leaves\."):
        load(str(user_file))
