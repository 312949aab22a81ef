"""Every transformer family of timm and torchvision: blocks and shapes as written down, places by a planted patch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import token_models

from gamlens import GamlensError

FAMILIES = json.loads((Path(__file__).parent / "families.json").read_text())
MIXED = ("maxvit_t", "timm/mvitv2_tiny", "timm/tiny_vit_5m_224")  # untrained layers that mix places: not promised


def test_every_family_is_written_down() -> None:
    assert set(FAMILIES) == set(token_models.MODELS)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
def test_family(name: str) -> None:
    """Exact shapes and names; the cell that changed most between two images is the one that was changed."""
    expected = FAMILIES[name]
    if expected is None:
        with pytest.raises(GamlensError, match="No block was found"):
            token_models.examine(name)
        return
    found = token_models.examine(name)
    assert list(found.blocks) == expected["blocks"]
    assert [list(shape) for shape in found.shapes] == expected["shapes"]
    assert (found.aside, found.pooling) == (expected["aside"], expected["pooling"])
    assert found.cell or name in MIXED
