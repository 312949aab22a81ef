"""Real weights on real images: the first hundred by file name (the whole is `python benchmarks/real.py`)."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "folder", "right"),
    [
        ("resnet50", "ILSVRC", 65),
        ("efficientnet_lite0", "ILSVRC", 66),
        ("efficientnet_lite1", "ILSVRC", 70),
        ("efficientnet_lite2", "ILSVRC", 67),
        ("densenet201", "imagenette", 92),
    ],
)
def test_top_1(name: str, folder: str, right: int, shared_weights: Path, shared_data: Path) -> None:
    import real

    found = list(real.hits(real.lens(name), real.samples(folder)[:100]))
    assert abs(sum(found) - right) <= 1


@pytest.mark.shared
@pytest.mark.parametrize("name", ["vit_class_token", "vit_mean"])
def test_the_default_of_a_trained_vit_beats_a_centre_prior(name: str, shared_weights: Path, shared_data: Path) -> None:
    """Deletion of 24 photos in three steps: the class vanishes sooner if pixels go in the order of the map.

    Boxes, insertion and ADP of all photos are measured by benchmarks/token_methods.py.
    """
    import real

    from gamlens import metrics
    from gamlens.data import align, load
    from gamlens.evaluation.measure import evaluate
    from gamlens.evaluation.protocol import Protocol, units

    lens = real.lens(name)
    dataset = align(load("ilsvrc", shared_data / "imagenette"), lens.labels)
    protocol = Protocol("objective", methods=(lens.default_method,), n=(12,), curves=3, curve_background="blur")
    with mock.patch.dict(metrics.CONTROLS, {"centre": metrics.CONTROLS["centre"]}, clear=True):
        rows = [row for part in evaluate(lens, units(dataset, protocol)[:240:10], protocol, batch=20) for row in part]
    means = {}
    for method in ("attention_gam", "centre"):
        found = [row["deletion"] for row in rows if row["method"] == method]
        assert len(found) == 24
        means[method] = sum(found) / 24
    assert means["attention_gam"] < means["centre"] - 0.02
