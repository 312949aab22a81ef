"""Compiled for the tests: traced, cut and differentiated as ever, run without a C compiler."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from gamlens.compiled import maps, split


@pytest.fixture(autouse=True)
def aot_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "BACKEND", "aot_eager")
    maps._compiled.cache_clear()
    torch._dynamo.reset()
    counters.clear()
