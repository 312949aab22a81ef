"""Fixtures of all tests. Tests that need real data or weights are marked `shared` and skip where these are missing."""

import csv
import gc
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
import torch
from PIL import Image

from gamlens import Lens, Transform

for name in ("COLUMNS", "LINES"):  # `import readline` sets both to 80 x 24 for pytest's worker processes
    os.environ.pop(name, None)
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # all on the CPU: forked processes cannot use a GPU, and digits differ there
torch.set_num_threads(1)  # more threads do not help small tensors, and other runs may share the cores
collect_ignore = ["registry_probe.py"]  # a program that test_registries.py runs
SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_collection_finish() -> None:
    """What is imported by now stays: the collector need not look at it again, and so frees networks sooner."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Random numbers without a generator of their own do not depend on which tests ran before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def pytest_unconfigure() -> None:
    gc.unfreeze()


def _folder(variable: str, name: str) -> Path:
    place = Path(os.environ.get(variable) or SHARED / name)
    if not place.is_dir():
        pytest.skip(f"needs the real {name}: {place} is not there (set {variable})")
    return place


@pytest.fixture(scope="session")
def shared_weights() -> Path:
    """The folder of real weights."""
    return _folder("GAMLENS_WEIGHTS", "weights")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets."""
    return _folder("GAMLENS_DATA", "data")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's chromium, driven by playwright; a failure in CI, a skip elsewhere, where there is none.

    One for all tests of a process, since playwright can run only once in a thread.
    """
    place = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        place = None
    if place is None:
        text = "tests in a browser need chromium and playwright: apt-get install chromium"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(text)
        pytest.skip(text)
    with sync_playwright() as driver:
        quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        chromium = driver.chromium.launch(executable_path=place, args=quiet)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that makes a data folder: photos of two classes with one box each, and one file that is no image.

    items.csv lists them. The function takes the number of photos, the right edge of each box, and the class names.
    """

    def make(images: int, x1: Callable[[int], int], classes: tuple[str, str] = ("ant", "bee")) -> Path:
        folder, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
        with open(folder / "items.csv", "w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["path", "label", "x0", "y0", "x1", "y1"])
            for number in range(images):
                Image.fromarray(draw.integers(0, 255, (80, 100, 3), dtype=np.uint8)).save(folder / f"{number:02d}.png")
                out.writerow([f"{number:02d}.png", classes[number % 2], 10, 8, x1(number), 60])
            (folder / "broken.png").write_bytes(b"no image")
            out.writerow(["broken.png", classes[0], 0, 0, 50, 50])
        return folder

    return make


@pytest.fixture(scope="module")
def lens() -> Lens:
    return Lens(nets.small().float(), transform=Transform((64, 64)))
