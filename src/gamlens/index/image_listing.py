"""Find the image files that a user names: files, folders and globs, without pictures that gamlens wrote itself."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from gamlens.data.reading import is_image
from gamlens.errors import GamlensError, readable
from gamlens.explanation.storage import is_saved
from gamlens.inputs.images import IMAGE_EXTENSIONS
from gamlens.render import is_marked_png


def find_images(places: Sequence[str], *, skip: Path | None = None, twice: bool = False) -> list[str]:
    """List the image files that the user named, in order.

    Args:
        places: Files, folders and globs. A file is taken whatever its extension is. A folder stands for all images in
            it and its subfolders, by their extensions, but for hidden files.
        skip: A folder of results: files below it are not taken from folders and globs. If the folder that the user
            names lies in it, only what gamlens wrote is left out. Pictures with its mark are left out everywhere.
        twice: Whether a file that is named twice is listed twice.
    """
    found: list[str] = []
    for place in places:
        path = Path(place)
        if path.is_dir():
            inside = (str(file) for file in path.rglob("*") if is_image(file.name))
            nothing = f"The folder {place!r} holds no image ({', '.join(IMAGE_EXTENSIONS)})."
        elif path.exists() or not glob.has_magic(place):
            found.append(place)
            continue
        else:
            inside = (match for match in glob.glob(place, recursive=True) if Path(match).is_file())
            nothing = f"Nothing matches {place!r}."
        skipped = skip if skip is not None and not _lies_in(str(path / "any"), skip) else None
        files = sorted(file for file in inside if not _is_result(file, skipped))
        if not files:
            raise GamlensError(nothing)
        found += files
    return found if twice else list(dict.fromkeys(found))


def check_there(places: Sequence[str]) -> None:
    """Raise an error if the user named files or folders that are not there; a glob is none."""
    missing = [place for place in places if not os.path.exists(place) and not glob.has_magic(place)]
    if missing:
        count = f", and {len(missing) - 1} more paths do not exist" if len(missing) > 1 else ""
        raise GamlensError(f"There is no file or folder {readable(missing[0])!r}{count}: check the name.")


def _is_result(file: str, skip: Path | None) -> bool:
    """Whether a file was written by gamlens: below `skip`, in the folder of an explanation, or with a mark."""
    folder = Path(file).parent
    return (
        (skip is not None and _lies_in(file, skip))
        or any(is_saved(str(place)) for place in (folder, folder / "x"))
        or (file.lower().endswith(".png") and is_marked_png(Path(file), whole=False))
    )


def _lies_in(file: str, folder: Path) -> bool:
    """Whether a file lies below a folder, links followed; a link to itself is taken as it is."""
    return Path(os.path.realpath(folder)) in Path(os.path.realpath(file)).parents


def absolute(path: str | os.PathLike[str]) -> str:
    """The path by which an index knows a file: absolute, without links followed."""
    return os.path.abspath(os.fspath(path))


def lies_below(path: str, place: str) -> bool:
    """Whether an absolute path is `place` or lies below it."""
    return path == place or path.startswith(place.rstrip(os.sep) + os.sep)
