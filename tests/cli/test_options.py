"""The options that commands share: how maps are refined, and that mistakes are found before a model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from gamlens import GamlensError, Refinement
from gamlens.cli import app, compare_command, explain, group_command, search_command
from gamlens.cli.options import chosen_refinement

runner = CliRunner()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, None),
        ({"sharp": True}, Refinement(2, 0.5)),
        ({"refine": 1}, Refinement(1, 0.5)),
        ({"refine": 3, "keep": 0.0}, Refinement(3, 0.0)),
        ({"sharp": True, "keep": 0.25, "methods": ["gam", "vdsn"]}, Refinement(2, 0.25)),
        ({"methods": ["guided_backprop"]}, None),
    ],
)
def test_what_the_options_ask_for_together(given: dict[str, Any], wanted: Refinement | None) -> None:
    assert chosen_refinement(**{"refine": 0, "keep": None, "sharp": False, **given}) == wanted


def test_one_method_of_pixels_among_others_is_named() -> None:
    with pytest.raises(GamlensError, match=r"^--refine 1: Guided backprop reads the pixels.* choose other methods: "):
        chosen_refinement(refine=1, keep=None, sharp=False, methods=["gam", "guided_backprop"])


COMMANDS = ("classify", "compare", "search", "group")
REFUSED = (
    (["--keep", "0.3"], "--keep 0.3 is a weight in refined maps: give --refine or --sharp, too."),
    (["--sharp", "--refine", "1"], "--sharp stands for --refine 2: leave one of them out"),
    (["--sharp", "--keep", "1.5"], "lies between 0 and 1"),
    (["--refine", "-1"], "the number of blocks to refine by, 1 or more"),
    (["--sharp", "--method", "input_gradient"], "--sharp: Input gradient reads the pixels"),
    (["--refine", "1", "--method", "gm"], "did you mean 'gam'"),
)
VIEWS_REFUSED = (["--views", "flip,mirror"], "Views are 'flip' and scales")


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        *((command, *refused) for command in COMMANDS for refused in REFUSED),
        *(
            (command, *VIEWS_REFUSED) for command in COMMANDS if command in ("classify", "compare")
        ),  # the others have no views
    ],
)
def test_mistakes_are_one_line_before_a_model_is_loaded(
    command: str, words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (explain, compare_command, group_command, search_command):
        monkeypatch.setattr(module, "make_lens", lambda *_, **__: pytest.fail("a model was loaded"))
    file = tmp_path / "photo.png"
    Image.new("RGB", (32, 32)).save(file)
    more = {"classify": [], "compare": [str(file)], "search": ["--in", str(file)], "group": [str(file)]}[command]
    result = runner.invoke(app, [command, str(file), *more, *words, "--out", str(tmp_path / "out")])
    assert result.exit_code == 1, result.output
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
