"""Examples to click: photos that installed packages ship, copied into the studio's own folder."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps

from gamlens.data.photos import photo, scene
from gamlens.errors import GamlensError

SINGLE = {"cheetah": "Cheetah", "lion": "Lion", "cat": "Cat", "coffee": "Coffee", "both": "Cat and coffee"}
PAIRS = {
    "cheetahs": ("Two cheetahs", "cheetah", "cheetah_face"),
    "cats": ("Cheetah and lion", "cheetah", "lion"),
    "apart": ("Cat and rocket", "cat", "rocket"),
}
THUMB = (116, 92)


@dataclass(frozen=True)
class Samples:
    """Photos by name as files of ours; those whose package is not installed are left out."""

    files: dict[str, Path]

    @property
    def single(self) -> dict[str, str]:
        return {name: title for name, title in SINGLE.items() if name in self.files}

    @property
    def pairs(self) -> dict[str, tuple[str, str, str]]:
        return {name: pair for name, pair in PAIRS.items() if {*pair[1:]} <= set(self.files)}

    def thumb(self, name: str) -> Image.Image:
        with Image.open(self.files[name]) as image:
            return ImageOps.fit(image.convert("RGB"), THUMB)


def collect(folder: Path) -> Samples:
    """Write the photos that are at hand into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name in ("cheetah", "cheetah_face", "lion", "cat", "coffee", "rocket", "both"):
        with contextlib.suppress(GamlensError):
            image = scene("cat", "coffee", side=360) if name == "both" else photo(name)
            image.thumbnail((1280, 1280))
            files[name] = folder / f"{name}.jpg"
            image.save(files[name], quality=95)
    return Samples(files)
