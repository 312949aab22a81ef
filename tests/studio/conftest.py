"""One small lens and one studio with the embedded model for all of the studio's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from studio_kit import small_lens

from gamlens.studio import Studio, launch
from gamlens.studio.actions import Actions
from gamlens.studio.model_cache import ModelCache


@pytest.fixture
def actions() -> Actions:
    return Actions(ModelCache({"small": small_lens()}, any_name=False))


@pytest.fixture(scope="session")
def studio() -> Iterator[Studio]:
    """The studio as `gamlens studio` opens it."""
    with launch() as running:
        yield running
