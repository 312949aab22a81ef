"""The folder that gradio may write to while a studio runs: made for the first studio, removed after the last."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from pathlib import Path


class SharedTempDir:
    """One temporary folder for all studios of this process.

    While it is in use, the environment, which gradio reads at every upload, tells gradio to write there and to send
    no analytics. `release` by the last user deletes the folder and restores the environment.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._folder = Path()
        self._environment: dict[str, str | None] = {}

    def acquire(self) -> Path:
        with self._lock:
            if not self._users:
                self._folder = Path(tempfile.mkdtemp(prefix="gamlens-studio-"))
                wanted = {"GRADIO_TEMP_DIR": str(self._folder), "GRADIO_ANALYTICS_ENABLED": "False"}
                self._environment = {name: os.environ.get(name) for name in wanted}
                os.environ.update(wanted)
                atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
            self._users += 1
            return self._folder

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            shutil.rmtree(self._folder, ignore_errors=True)
            for name, value in self._environment.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


TEMP_DIR = SharedTempDir()
