"""Compiled for the tests: traced, cut and differentiated as ever, run without a C compiler."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from gamlens import maps
from gamlens.compiled import program


@pytest.fixture(autouse=True)
def aot_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "BACKEND", "aot_eager")
    monkeypatch.setattr(maps, "BACKEND", "aot_eager")
    maps._compiled.cache_clear()
    torch._dynamo.reset()
    counters.clear()
