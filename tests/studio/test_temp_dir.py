"""The folder for uploads, and the environment while it is in use."""

from __future__ import annotations

import os

import pytest

from gamlens.studio.temp_dir import SharedTempDir


def test_made_by_the_first_and_removed_by_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedTempDir()
    monkeypatch.setenv("GRADIO_TEMP_DIR", "/before")
    monkeypatch.delenv("GRADIO_ANALYTICS_ENABLED", raising=False)
    first, second = shared.acquire(), shared.acquire()
    assert first == second
    assert os.environ["GRADIO_TEMP_DIR"] == str(first)
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    shared.release()
    assert first.is_dir()
    shared.release()
    assert not first.exists()
    assert os.environ["GRADIO_TEMP_DIR"] == "/before"
    assert "GRADIO_ANALYTICS_ENABLED" not in os.environ
