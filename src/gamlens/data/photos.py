"""Photos that come with installed packages; the packages are not imported to find them."""

from contextlib import suppress
from pathlib import Path

from PIL import Image, ImageOps

from gamlens.data.reading import own_json, package_file
from gamlens.errors import GamlensError, needs_package
from gamlens.inputs.images import upright

PHOTOS: dict[str, tuple[str, str]] = own_json("photos.json")  # {name: (package, file in it)}


def path(name: str) -> Path:
    """The file of the photo of that name on this machine."""
    package, file = PHOTOS[name]
    extra = "bench" if package == "sklearn" else "demo"
    return package_file(package, file, needs_package(f"The photo {name!r}", package, extra=extra))


def installed() -> list[str]:
    """The names of the photos that are on this machine: those of packages that are not installed are left out."""
    found = []
    for name in PHOTOS:
        with suppress(GamlensError):
            path(name)
            found.append(name)
    return found


def photo(name: str) -> Image.Image:
    """The photo of that name in RGB."""
    return upright(path(name))


def scene(left: str, right: str, *, side: int = 320) -> Image.Image:
    """Two photos side by side as one picture with two objects; each is `side` pixels wide and high."""
    picture = Image.new("RGB", (2 * side, side))
    for place, name in enumerate((left, right)):
        picture.paste(ImageOps.fit(photo(name), (side, side)), (place * side, 0))
    return picture
