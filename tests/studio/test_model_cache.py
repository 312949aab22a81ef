"""Which models a studio offers, and which it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from gamlens import GamlensError, Lens
from gamlens.studio.model_cache import ModelCache


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
    with pytest.raises(GamlensError, match="given at the start"):
        free.lens(f"{file}:build")
    with pytest.raises(GamlensError, match="did you mean 'resnet50'"):
        free.lens("resnet5")
    with pytest.raises(GamlensError, match="no model to show"):
        ModelCache({}, any_name=True)
