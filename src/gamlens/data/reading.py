"""What readers of data sets share: finding and reading files, with errors that name the file and say what to do."""

import csv
import importlib.util
import io
import json
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gamlens.data.plausible import check_pixels
from gamlens.data.sample import Box
from gamlens.errors import GamlensError, Registry, attempt, near, needs_package, reworded
from gamlens.files import check_plain
from gamlens.inputs.images import IMAGE_EXTENSIONS, open_image

AnyPath = str | os.PathLike[str]
Entry = TypeVar("Entry")
CORNERS = ("xmin", "ymin", "xmax", "ymax")
TURNED = (5, 6, 7, 8)  # EXIF orientations that swap width and height


@dataclass(frozen=True)
class Annotation:
    """The annotation of one image, from a file in VOC's XML format or from another list.

    Attributes:
        size: (H,W) of the image that boxes were drawn on; None if the annotation does not say.
        objects: The class name and the box (x0, y0, x1, y1) of each object.
    """

    size: tuple[int, int] | None = None
    objects: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def boxes(self, index: Mapping[str, int], where: str) -> tuple[Box, ...]:
        """The objects as boxes; `index` is {class name: class index}, and `where` is the file that an error names."""
        return tuple(Box(class_index(name, index, where), *corners) for name, corners in self.objects)


def class_index(name: str, index: Mapping[str, int], where: str) -> int:
    """Find the index of a class by its name. The error for an unknown name begins with `where`, such as the file."""
    if name not in index:
        raise GamlensError(f"{where} has the class {name!r}, not one of the {len(index)} known: {near(name, index)}")
    return index[name]


def first(places: Iterable[Path], what: str, todo: str) -> Path:
    """Return the first of several paths that exists.

    Args:
        places: The paths, in the order in which they are tried.
        what: What is looked for, such as "list of images". It and all paths are named in the error if none exists.
        todo: The sentence at the end of that error: what the user can do.
    """
    tried = list(dict.fromkeys(places))
    found = next((place for place in tried if place.exists()), None)
    if found is None:
        listed = " or ".join(repr(str(place)) for place in tried)
        raise GamlensError(f"There is no {what}: expected at {listed}. {todo}")
    return found


def dataset_folder(root: AnyPath) -> Path:
    """Return the root of a data set as a Path. Raises a GamlensError if it is not a folder."""
    path = Path(root)
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise GamlensError(
            f"A data set is a folder: found {found} at {str(path)!r}. Give the folder that holds its files."
        )
    return path


def import_extra(module: str, why: str, *, extra: str = "eval") -> ModuleType:
    """Import a module that an extra of gamlens installs. The error says what needs it (`why`) and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise GamlensError(needs_package(why, package, extra=extra, found=str(error))) from error


def package_file(package: str, pattern: str, missing: str) -> Path:
    """Find the first file of an installed package that matches a glob pattern, without importing the package.

    `missing` is the error message if there is no such file.
    """
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    files = (file for place in places or () for file in sorted(Path(place).glob(pattern)) if file.is_file())
    found = next(files, None)
    if found is None:
        raise GamlensError(missing)
    return found


def own_json(name: str) -> Any:
    """The contents of a JSON file in the same folder as this module."""
    return json.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def cut(items: Sequence[Entry], limit: int | None) -> Sequence[Entry]:
    """The first `limit` items; all of them where `limit` is None."""
    if limit is not None and limit < 1:
        raise GamlensError(f"A limit must be a number of samples from 1 up, or None for all; found {limit!r}.")
    return items if limit is None else items[:limit]


def images_in(path: Path) -> list[str]:
    """The names of the image files in a folder, sorted."""
    with reworded(f"Expected a folder of images at {str(path)!r}", OSError), os.scandir(path) as entries:
        return sorted(e.name for e in entries if is_image(e.name) and not e.is_dir(follow_symlinks=False))


def is_image(name: str) -> bool:
    """Whether a file name has the extension of an image and is not hidden: macOS puts hidden files into archives."""
    return name.lower().endswith(IMAGE_EXTENSIONS) and not name.startswith(".")


def folders_in(path: Path) -> list[str]:
    """The names of the folders in a folder, sorted, without hidden ones."""
    with os.scandir(path) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def all_there(names: Sequence[str], have: Iterable[str], where: Path, listed_in: Path) -> None:
    """Raise a GamlensError if image files that a list names are missing.

    Args:
        names: The file names in the list, relative to the folder of the images.
        have: The file names that exist in that folder, such as `images_in(where)`.
        where: The folder of the images.
        listed_in: The file that holds the list.
    """
    known = set(have)
    missing = [name for name in names if name not in known]
    if missing:
        raise GamlensError(
            f"{len(missing)} of {len(names)} images that {str(listed_in)!r} lists are missing, the first expected at "
            f"{str(where / missing[0])!r}. Complete the images, or take the others out of the list."
        )


def image_size(path: AnyPath) -> tuple[int, int]:
    """(H,W) of an image file as it is shown, with its EXIF rotation; only its header is read."""
    errors = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
    with read_as("an image", path, *errors), open_image(path) as image:
        width, height = image.size
        turned = image.getexif().get(0x0112, 1) in TURNED
    return (width, height) if turned else (height, width)


def mask_pixels(path: AnyPath, convert: str | None = None) -> tuple[str, NDArray[Any]]:
    """Decode a mask file: Pillow's mode of the file, and its values (H,W), converted to the mode `convert` if given."""
    errors = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
    with read_as("a mask", path, *errors), open_image(path) as image:
        check_pixels(image.height, image.width, f"The mask {str(path)!r}")
        return image.mode, np.asarray(image.convert(convert) if convert else image)


def size_if_readable(path: AnyPath) -> tuple[int, int] | None:
    """Return `image_size`, or None if the file cannot be read: the error is raised later, when its pixels are read."""
    size = attempt(image_size, path)
    return None if isinstance(size, GamlensError) else size


def read_as(kind: str, path: AnyPath, *errors: type[Exception]) -> AbstractContextManager[None]:
    """A context that turns errors of these types into a GamlensError that says: cannot read this file as `kind`.

    A pipe or a device is an error, too: reading it may never end.
    """
    if not os.path.exists(path):
        raise GamlensError(f"There is no file {str(path)!r}: check the path.")
    check_plain(path)
    return reworded(f"Cannot read {str(path)!r} as {kind}", *errors, todo=". Download or write the file again.")


def text(path: Path) -> str:
    """The contents of a text file in UTF-8, with or without a byte order mark."""
    with read_as("text", path, OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8-sig")


def rows(path: Path) -> list[list[str]]:
    """The rows of a CSV file, the header among them, without empty lines."""
    with read_as("CSV", path, csv.Error):
        found = list(csv.reader(io.StringIO(text(path), newline=""), strict=True))
    return [row for row in found if any(cell.strip() for cell in row)]


def lines_by_id(path: Path, columns: str, convert: Callable[[str], Entry]) -> Registry[tuple[Entry, ...]]:
    """Read a text file whose lines begin with an id, as many data sets publish their lists: {id: the other columns}.

    Args:
        path: The file. Empty lines are skipped.
        columns: What a line holds, such as "id x y w h", for counting the columns and for errors. Columns are separated
            by spaces or tabs; the last one is the rest of its line, so it may hold spaces.
        convert: Makes a value of each column after the id: str, int or float.

    Returns:
        The lines in the order of the file. Asking for an id that has no line is a GamlensError that names the file.
    """
    count, found = len(columns.split()), dict[str, tuple[Entry, ...]]()
    for number, line in enumerate(text(path).splitlines(), start=1):
        if not line.strip():
            continue
        where = f"Line {number} of {str(path)!r}"
        with reworded(f"{where} is not `{columns}`: found {line.strip()!r}", ValueError):
            key, *cells = line.strip().split(maxsplit=count - 1)
            if len(cells) != count - 1:
                raise ValueError(f"{count} columns are needed")
            values = tuple(map(convert, cells))
        if key in found:
            raise GamlensError(f"{where} has the id {key!r} of an earlier line: each id must occur once.")
        found[key] = values
    return Registry(f"line in {str(path)!r} for the id", found)


def read_json(path: Path) -> Any:
    """The contents of a JSON file."""
    with read_as("JSON", path, ValueError, RecursionError):  # numbers of too many digits, lists in lists in lists ...
        return json.loads(text(path))


def read_xml(path: Path) -> Annotation:
    """Read an annotation in VOC's XML format. Its numbers are kept unchanged, whether they count from 0 or from 1.

    XML can define entities that stand for each other many times over, so that a small file expands to gigabytes.
    Annotations have none.
    """
    with read_as("an annotation", path, ElementTree.ParseError, OSError, ValueError, ArithmeticError):
        contents = path.read_bytes()
        if b"<!ENTITY" in contents.replace(b"\0", b""):  # in UTF-16, there are zeros between the letters
            raise ValueError("it defines entities, which an annotation does not need")
        tree = ElementTree.fromstring(contents)
        height, width = (int(float(tree.findtext(f"size/{side}", "0"))) for side in ("height", "width"))
        objects = tuple(
            ((thing.findtext("name") or "").strip(), tuple(_number(thing, f"bndbox/{side}") for side in CORNERS))
            for thing in tree.findall("object")
        )
    return Annotation((height, width) if min(height, width) > 0 else None, objects)


def _number(node: ElementTree.Element, path: str) -> float:
    """The number in an element below `node`."""
    value = node.findtext(path)
    if value is None:
        raise ValueError(f"<{node.tag}> has no <{path}>")
    return float(value)
