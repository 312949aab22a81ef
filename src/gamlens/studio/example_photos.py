"""The example photos of the page. They come from installed packages and are copied into the studio's own folder."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps

from gamlens.data.photos import photo, scene
from gamlens.errors import GamlensError
from gamlens.inputs.images import open_image
from gamlens.studio.html_fragments import static_file
from gamlens.studio.session import TabName

EXAMPLE_THUMBNAIL = (116, 92)
EXAMPLE_NAMES = (
    *("cheetah", "cheetah_face", "lion", "cat", "coffee", "rocket", "both"),
    *("motorcycle", "tower", "pagoda", "flower"),
)
OfferedPhotos = dict[str, tuple[str, list[Path]]]  # {key: (title, files)}


@dataclass(frozen=True)
class ExamplePhotos:
    """Example photos as {name: file}. Photos whose package is not installed are left out."""

    files: dict[str, Path]

    def of(self, tab: TabName) -> OfferedPhotos:
        """The examples of a tab as {key: (title, files)}: two or three files on the pair tab, one on the others."""
        return {
            key: (title, [self.files[name] for name in names])
            for key, (title, names) in json.loads(static_file("examples.json"))[tab].items()
            if set(names) <= set(self.files)
        }

    @property
    def columns(self) -> dict[str, dict[str, str | int]]:
        """What filters can name of each photo."""
        found: dict[str, dict[str, str | int]] = json.loads(static_file("examples.json"))["columns"]
        return found


def thumbnail(path: Path) -> Image.Image:
    with open_image(path) as image:
        return ImageOps.fit(image.convert("RGB"), EXAMPLE_THUMBNAIL)


def copy_examples(folder: Path) -> ExamplePhotos:
    """Write the available photos into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name in EXAMPLE_NAMES:
        with contextlib.suppress(GamlensError):
            image = scene("cat", "coffee", side=360) if name == "both" else photo(name)
            image.thumbnail((1280, 1280))
            files[name] = folder / f"{name}.jpg"
            image.save(files[name], quality=95)
    return ExamplePhotos(files)
