"""The wheel in an environment that holds what it requires and nothing else: a requirement that is missing in
pyproject.toml is missing there, too. The extras that users begin with are used once each."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest
from packaging_kit import ROOT, Built, canonical, closure, environment, link
from PIL import Image

NET = """
import torch
from torch import nn

def build():
    torch.manual_seed(2)
    blocks = [nn.Sequential(nn.Conv2d(i, o, 3, stride=4, padding=1), nn.ReLU()) for i, o in ((3, 8), (8, 16))]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2))
"""
LENS = "from gamlens import Lens\nfrom net import build\nlens = Lens(build(), labels=['cat', 'dog'])\n"

USES = {  # what is done with an extra, in a folder with photo.png, other.png and net.py
    "timm": "from gamlens import Lens\nprint(Lens('timm/resnet10t', weights='random').blocks[-1])",
    "studio": (
        "from urllib.request import urlopen\nimport gamlens.studio\n"
        + LENS
        + "with gamlens.studio.launch({'net': lens}) as studio:\n    print(b'gradio' in urlopen(studio.url).read())"
    ),
    "eval": (
        "import pyarrow, pyarrow.parquet, pycocotools.mask\nfrom gamlens.data import load\n"
        "table = pyarrow.table({'path': ['photo.png'], 'label': ['cat']})\n"
        "pyarrow.parquet.write_table(table, 'items.parquet')\n"
        "print(load('table', 'items.parquet').samples[0].name)"
    ),
    "search": (
        "from gamlens import Index\n" + LENS + "index = Index.create('shop.gamlens', lens, backend='usearch')\n"
        "index.add('other.png')\nprint(index.search('photo.png')[0].path)"
    ),
    "notebook": LENS + "print(type(lens.classify('photo.png').view()).__name__)",
}
SAYS = {"timm": "layer4", "studio": "True", "eval": "photo.png", "search": "other.png", "notebook": "ResultView"}
DISTRIBUTIONS = {"faiss": "faiss-cpu", "grpc": "grpcio", "pytorch_grad_cam": "grad-cam"}  # where it is not the module


@pytest.fixture(scope="module")
def programs(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("empty") / "venv", built)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    Image.radial_gradient("L").convert("RGB").save(tmp_path / "photo.png")
    Image.linear_gradient("L").convert("RGB").save(tmp_path / "other.png")
    return tmp_path


def run(folder: Path, *command: str | Path, extra: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program in `folder`, with the linked packages of an extra if one is given."""
    places = [str(place) for place in (folder, extra) if place]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV", "PYTEST"))}
    changed = {"PYTHONPATH": os.pathsep.join(places), "GRADIO_ANALYTICS_ENABLED": "False", "COLUMNS": "100"}
    return subprocess.run(command, cwd=folder, env=own | changed, capture_output=True, text=True, check=False)


def test_an_environment_without_extras(programs: Path, folder: Path) -> None:
    code = LENS + (
        "import gamlens\nresult = lens.classify('photo.png')\nresult.save('why')\n"
        "print(gamlens.__file__, gamlens.__version__, tuple(result.maps.shape))"
    )
    found = run(folder, programs / "python", "-c", code)
    assert found.returncode == 0, found.stderr
    place, version, shape = found.stdout.strip().split(" ", 2)
    assert programs.parent in Path(place).parents
    assert version == installed_version(programs)
    assert shape == "(1, 224, 224)"
    assert (folder / "why" / "explanation.json").exists()


def installed_version(programs: Path) -> str:
    """The version that pip has installed there."""
    (described,) = programs.parent.glob("lib/python*/site-packages/gamlens-*.dist-info")
    return described.name.removeprefix("gamlens-").removesuffix(".dist-info")


def test_the_command_without_its_extra(programs: Path, folder: Path) -> None:
    found = run(folder, programs / "gamlens", "--help")
    assert found.returncode == 1
    assert "The command line needs the package 'typer'" in found.stderr
    assert found.stderr.endswith("pip install 'gamlens[cli]'.\n")
    assert "Traceback" not in found.stderr


@pytest.mark.slow
def test_the_command_with_its_extra(programs: Path, built: Built, folder: Path, tmp_path: Path) -> None:
    extra = link(closure(built.requires, ["cli"]), tmp_path / "packages")
    found = run(
        folder, programs / "gamlens", "classify", "photo.png", "--model", "net.py:build", "--out", "why", extra=extra
    )
    assert found.returncode == 0, found.stderr
    assert list((folder / "why").rglob("*.png"))


@pytest.mark.slow
def test_the_demo_with_its_extra(programs: Path, built: Built, folder: Path, tmp_path: Path) -> None:
    """What `make demo` runs. The example photos and the weights come with packages: nothing is downloaded."""
    extra = link(closure(built.requires, ["demo"]), tmp_path / "packages")
    found = run(folder, programs / "gamlens", "demo", "--out", "demo", extra=extra)
    assert found.returncode == 0, found.stderr
    assert "Found, and why" in (folder / "demo" / "index.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_an_extra(name: str, programs: Path, built: Built, folder: Path, tmp_path: Path) -> None:
    extra = link(closure(built.requires, [name]), tmp_path / "packages")
    found = run(folder, programs / "python", "-c", USES[name], extra=extra)
    assert found.returncode == 0, found.stderr
    assert SAYS[name] in found.stdout


def asked() -> list[tuple[str, str, str]]:
    """(file, module, extra) of every call of import_extra in the package, where both are written in the call."""
    found = []
    for path in sorted((ROOT / "src" / "gamlens").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_extra":
                extra = next((word.value for word in node.keywords if word.arg == "extra"), ast.Constant("eval"))
                if isinstance(node.args[0], ast.Constant) and isinstance(extra, ast.Constant):
                    found.append((path.name, str(node.args[0].value), str(extra.value)))
    return found


def test_the_extra_of_an_error_installs_the_package(built: Built) -> None:
    calls = [(file, module.partition(".")[0], extra) for file, module, extra in asked()]
    assert len(calls) > 15
    wrong = [
        (file, module, extra)
        for file, module, extra in calls
        if DISTRIBUTIONS.get(module, canonical(module)) not in closure(built.requires, [extra])
    ]
    assert wrong == []


def test_a_closure_leaves_out_what_is_not_asked_for(built: Built) -> None:
    plain, command = closure(built.requires), closure(built.requires, ["cli"])
    assert {"torch", "torchvision", "numpy", "pillow"} <= plain
    assert not plain & {"typer", "rich", "gradio", "timm", "pytest"}
    assert command - plain >= {"typer", "rich"}
    assert "gradio" not in command
    assert "gradio" in closure(built.requires, ["studio"])
