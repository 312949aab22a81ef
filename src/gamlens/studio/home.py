"""The folder that gradio may write to while a studio runs: made by the first, removed by the last."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from pathlib import Path

_lock = threading.Lock()
_open: list[int] = []
_before: dict[str, str | None] = {}
_place: list[Path] = []


def enter() -> Path:
    """The folder, and gradio told by the environment, which it reads at every upload, to use it and to stay silent."""
    with _lock:
        if not _open:
            _place[:] = [Path(tempfile.mkdtemp(prefix="gamlens-studio-"))]
            wanted = {"GRADIO_TEMP_DIR": str(_place[0]), "GRADIO_ANALYTICS_ENABLED": "False"}
            _before.update({name: os.environ.get(name) for name in wanted})
            os.environ.update(wanted)
            atexit.register(shutil.rmtree, _place[0], ignore_errors=True)
        _open.append(1)
        return _place[0]


def leave() -> None:
    with _lock:
        _open.pop()
        if _open:
            return
        shutil.rmtree(_place[0], ignore_errors=True)
        for name, value in _before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
