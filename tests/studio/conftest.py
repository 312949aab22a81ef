"""One small lens, one studio with the embedded model, one browser for all of the studio's tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

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


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's chromium, driven by playwright; a failure in CI, a skip elsewhere, where there is none."""
    place = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        place = None
    if place is None:
        text = "the studio's browser tests need chromium and playwright: apt-get install chromium"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(text)
        pytest.skip(text)
    with sync_playwright() as driver:
        quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        chromium = driver.chromium.launch(executable_path=place, args=quiet)
        yield chromium
        chromium.close()
