"""The adapters for xaitk-saliency: maps of the size of the reference image, equal to those of the lens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gamlens import GamlensError, Lens, adapters

DRAW = np.random.default_rng(0)
REFERENCE = DRAW.integers(0, 255, (50, 70, 3), dtype=np.uint8)
QUERIES = [DRAW.integers(0, 255, (*size, 3), dtype=np.uint8) for size in ((50, 70), (64, 40), (33, 90))]


def test_similarity(lens: Lens) -> None:
    saliency = adapters.xaitk(lens, method="gam", n=2, score="dot")
    found = saliency.generate(REFERENCE, QUERIES, blackbox=object())
    pair = lens.compare(REFERENCE, QUERIES, method="gam", n=2, score="dot")
    assert isinstance(found, np.ndarray)
    assert (found.shape, found.dtype) == ((3, 50, 70), np.float32)
    assert found.min() >= 0 >= found.min() - 1
    assert 0 < found.max() <= 1
    np.testing.assert_array_equal(found, np.stack([pair.x.full(row).numpy() for row in range(3)]))
    np.testing.assert_array_equal(saliency(REFERENCE, QUERIES), found)


def test_both_sides_and_many_queries(lens: Lens) -> None:
    found = adapters.xaitk(lens, n=1, both=True).generate(REFERENCE, QUERIES * 6)
    assert isinstance(found, tuple)
    ours, theirs = found
    assert ours.shape == (18, 50, 70)
    assert [one.shape for one in theirs] == [(50, 70), (64, 40), (33, 90)] * 6
    pair = lens.compare(REFERENCE, QUERIES, n=1)
    np.testing.assert_allclose(ours[15:], [pair.x.full(row).numpy() for row in range(3)], atol=1e-5)
    np.testing.assert_allclose(theirs[16], pair.y.full(1).numpy(), atol=1e-5)


def test_no_query_gives_no_map(lens: Lens) -> None:
    found = adapters.xaitk(lens).generate(REFERENCE, [])
    assert isinstance(found, np.ndarray)
    assert found.shape == (0, 50, 70)


def test_classes(lens: Lens) -> None:
    found = adapters.xaitk_classifier(lens, classes=[7, 2], n=1)(REFERENCE, object())
    result = lens.classify(REFERENCE, [[7, 2]], n=1)
    assert found.shape == (2, 50, 70)
    np.testing.assert_array_equal(found, np.stack([result.full(0).numpy(), result.full(1).numpy()]))
    grey = adapters.xaitk_classifier(lens, n=1).generate(REFERENCE[:, :, 0])
    assert grey.shape == (10, 50, 70)


@pytest.mark.parametrize(
    "image", [REFERENCE.astype(np.float32), REFERENCE[None], "photo.jpg"], ids=["float", "batch", "path"]
)
def test_what_is_no_image_is_an_error(lens: Lens, image: Any) -> None:
    with pytest.raises(GamlensError, match="uint8"):
        adapters.xaitk(lens).generate(image, QUERIES)
    with pytest.raises(GamlensError, match="uint8"):
        adapters.xaitk(lens).generate(REFERENCE, [image])


@pytest.mark.parametrize("classes", [[], "cat"])
def test_classes_are_a_list(lens: Lens, classes: Any) -> None:
    with pytest.raises(GamlensError, match="a list of at least one class"):
        adapters.xaitk_classifier(lens, classes=classes)
