"""Which modules pytest imports to look for examples in docstrings."""

from __future__ import annotations

from pathlib import Path


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out modules without an example: importing some of them, such as the studio's page, takes seconds."""
    return True if collection_path.suffix == ".py" and ">>> " not in collection_path.read_text() else None
