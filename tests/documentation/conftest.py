"""The site, built once for all tests of this folder, and a folder in which the Python lines of its pages run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site as `make docs` builds it; a warning is an error."""
    pytest.importorskip("mkdocs", reason="the site needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    made = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert made.returncode == 0, made.stderr
    assert "WARNING" not in made.stderr
    return folder
