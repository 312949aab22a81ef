"""What all adapters share: nothing of other packages is imported, and wrong options are errors at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gamlens import GamlensError, Lens, adapters

PACKAGES = ("quantus", "captum", "xaitk_saliency", "smqtk_core", "typer", "cv2", "pandas")


def test_nothing_is_imported() -> None:
    code = f"""
import sys, torch, torchvision
before = set(sys.modules)
import gamlens.adapters
new = {{name.split(".")[0] for name in set(sys.modules) - before}}
print(sorted(new & set({PACKAGES})), callable(gamlens.adapters.quantus))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[] True"


@pytest.mark.parametrize("name", ["quantus", "captum", "xaitk", "xaitk_classifier"])
def test_a_wrong_option_is_found_when_the_adapter_is_made(lens: Lens, name: str) -> None:
    make = getattr(adapters, name)
    with pytest.raises(GamlensError, match="did you mean 'grad_cam'"):
        make(lens, method="grad_camm")
    with pytest.raises(GamlensError, match="leave one of them out"):
        make(lens, sharp=True, refine=True)
    with pytest.raises(GamlensError, match="'flip' and scales"):
        make(lens, views=("flop",))


@pytest.mark.slow
def test_the_examples_of_the_page_run() -> None:
    """docs/adapters.md: its Python code, from top to bottom."""
    pytest.importorskip("quantus")
    pytest.importorskip("captum")
    page = (Path(__file__).resolve().parents[2] / "docs/adapters.md").read_text()
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        exec(compile(code, "docs/adapters.md", "exec"), names)
    assert len(names["values"]) == len(names["change"]) == len(names["error"]) == 2
    assert names["attributions"].shape == (2, 3, 224, 224)
    assert len(names["maps"]) == 2
    assert len(names["on_queries"]) == 1
    assert names["score_map"].shape == (224, 224)
