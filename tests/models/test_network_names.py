"""A Network that names its own blocks and embedding: who uses the names, and what a wrong name says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import nets
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from gamlens import MODELS, GamlensError, Lens
from gamlens.cli import app
from gamlens.data import load
from gamlens.data.photos import path as photo_path
from gamlens.evaluation.protocol import Protocol
from gamlens.evaluation.results import describe
from gamlens.models import Network
from gamlens.models.checkpoint import LoadedWeights

runner = CliRunner()


class Bypassed(nets.Small):
    """A path from the image to the score goes past every layer, so discovery finds no block."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean(dim=(1, 2, 3))[:, None]


def small(module: nn.Module) -> Network:
    return Network(module.float().eval(), "made_up", "random", size=(64, 64))


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[Network], None]:
    """Put a network into MODELS as "made_up"."""

    def put(network: Network) -> None:
        def build(*, weights: LoadedWeights = None) -> Network:
            return network

        monkeypatch.setitem(MODELS, "made_up", build)

    return put


NAMED = ("layer1", "layer2.0")


def rows(stdout: str) -> dict[str, tuple[str, ...]]:
    """The table of `gamlens blocks`: {block: (stride, channels, size, read)}."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in stdout.splitlines() if line.startswith("│")]
    return {name: tuple(others) for name, *others in cells}


def test_the_names_reach_every_result(register: Callable[[Network], None], tmp_path: Path, boxed) -> None:
    register(replace(small(nets.small()), blocks=NAMED, embedding="layer2"))
    lens = Lens("made_up")
    assert (lens.blocks, lens.embedding) == (NAMED, "layer2")
    batch = torch.rand(2, 3, 64, 64)
    found = lens.classify(batch, 1, n=2)
    assert torch.equal(found.maps, Lens(nets.small().float(), blocks=NAMED).classify(batch, 1, n=2).maps)
    assert not torch.equal(found.maps, Lens(nets.small().float()).classify(batch, 1, n=2).maps)
    about = describe(lens, load("table", boxed(2, lambda _: 50) / "items.csv"), Protocol(), 2)
    assert (about["blocks"], about["embedding"]) == (list(NAMED), "layer2")
    out = ["--out", str(tmp_path / "o"), "--json"]
    done = runner.invoke(app, ["classify", str(photo_path("lion")), "--model", "made_up", *out])
    assert done.exit_code == 0, done.stderr


def test_a_user_names_others(register: Callable[[Network], None]) -> None:
    register(replace(small(nets.small()), blocks=NAMED, embedding="layer2"))
    lens = Lens("made_up", blocks=["layer3"], embedding="fc:input")
    assert (lens.blocks, lens.embedding) == (("layer3",), "fc:input")


def test_blocks_prints_what_is_read(register: Callable[[Network], None]) -> None:
    """Named blocks are measured, and discovery's other blocks are listed as not read."""
    register(replace(small(nets.small()), blocks=NAMED, embedding="layer2"))
    shown = runner.invoke(app, ["blocks", "made_up"])
    assert rows(shown.stdout) == {
        "layer1": ("4", "16", "16 x 16", "yes"),
        "layer2.0": ("8", "24", "8 x 8", "yes"),
        "stem": ("2", "12", "32 x 32", ""),
        "layer2": ("8", "24", "8 x 8", ""),
        "layer3": ("16", "32", "4 x 4", ""),
    }
    assert f"embedding  layer2  ({24 * 8 * 8} numbers)" in shown.stdout


def test_blocks_takes_names(register: Callable[[Network], None]) -> None:
    register(small(nets.small()))
    shown = runner.invoke(app, ["blocks", "made_up", "--blocks", "layer3,layer1", "--embedding", "dropout"])
    read = {name: cells[-1] for name, cells in rows(shown.stdout).items()}
    assert read == {"stem": "", "layer1": "yes", "layer2": "", "layer3": "yes"}
    assert "embedding  dropout  (32 numbers)" in shown.stdout
    wrong = runner.invoke(app, ["blocks", "made_up", "--blocks", "layer9"])
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    assert "did you mean 'layer3'" in wrong.stderr
    flat = runner.invoke(app, ["blocks", "made_up", "--blocks", "fc"])
    assert flat.exit_code == 1
    assert "Block 'fc' gives (1, 10)" in flat.stderr


USER = """
import nets
from gamlens import Lens, Transform
def lens():
    return Lens(nets.small().float(), blocks=["layer2"], embedding="fc", transform=Transform((32, 48)))
"""


def test_blocks_of_a_lens_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USER)
    shown = runner.invoke(app, ["blocks", f"{tmp_path / 'mine.py'}:lens"])
    found = rows(shown.stdout)
    assert {name: cells[-1] for name, cells in found.items()} == {
        "stem": "",
        "layer1": "",
        "layer2": "yes",
        "layer3": "",
    }
    assert found["layer2"] == ("8", "24", "4 x 6", "yes")
    assert "embedding  fc  (10 numbers)" in shown.stdout


def test_names_where_discovery_finds_nothing(register: Callable[[Network], None]) -> None:
    network = small(Bypassed())
    register(network)
    assert "No block was found" in runner.invoke(app, ["blocks", "made_up"]).stderr
    register(replace(network, blocks=("layer3",)))
    shown = runner.invoke(app, ["blocks", "made_up"])
    assert rows(shown.stdout) == {"layer3": ("16", "32", "4 x 4", "yes")}
    assert "embedding  not found: name it with --embedding" in shown.stdout
    register(replace(network, blocks=("layer3",), embedding="fc:input"))
    assert "embedding  fc:input  (32 numbers)" in runner.invoke(app, ["blocks", "made_up"]).stdout


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"blocks": ("layer1", "layr3")}, r"The network 'made_up' names .*'layer1', 'layr3'.*did you mean 'layer3'"),
        ({"blocks": ("layer1", "layer1")}, r"The network 'made_up' names .*none twice"),
        ({"embedding": "fcc"}, r"The network 'made_up' names 'fcc' as its embedding.*did you mean 'fc'"),
    ],
)
def test_a_wrong_name_says_whose_it_is(register: Callable[[Network], None], names, message: str) -> None:
    register(replace(small(nets.small()), **names))
    with pytest.raises(GamlensError, match=message):
        Lens("made_up")
