"""Compare the sizes that a file claims with its size on disk, before anything of these sizes is allocated.

A compressed file of a few kilobytes can claim gigabytes of zeros, and reading it would fill the memory. There is no
limit for large files: real numbers hardly shrink, so a file of gigabytes may claim as much.
"""

import math
import os
import zipfile
from collections.abc import Callable, Container
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gamlens.errors import GamlensError
from gamlens.files import check_plain
from gamlens.inputs.frame import Frame

ALWAYS_PLAUSIBLE = 2**28  # bytes that any file may expand to, however small it is: flat maps are all zeros
MOST_EXPANSION = 100  # how many times its size on disk a larger file may expand to
BYTES_PER_VALUE = 8  # what a value of a table takes in a Python list, at least
PADDING = 2  # how many times the largest allowed area a padded window may have
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def check_expansion(name: str, claimed: int, on_disk: int) -> None:
    """Raise a GamlensError if a file claims implausibly many bytes.

    Args:
        name: What the error calls the file, such as its path in quotes.
        claimed: How many bytes of memory its contents take, as the file says.
        on_disk: The size of the file in bytes.
    """
    if claimed > max(ALWAYS_PLAUSIBLE, MOST_EXPANSION * on_disk):
        raise GamlensError(
            f"{name} has {on_disk:,} bytes and claims to hold {claimed:,}, more than {MOST_EXPANSION} times as "
            "many: it is damaged, or made to fill the memory, and was not read. Write or download the file again."
        )


def check_zip(path: str | os.PathLike[str]) -> None:
    """Raise a GamlensError if the members of a zip file expand to implausibly many bytes."""
    with zipfile.ZipFile(path) as archive:
        check_expansion(repr(str(path)), sum(m.file_size for m in archive.infolist()), os.path.getsize(path))


def read_arrays(path: str | os.PathLike[str], wanted: Callable[[str], bool]) -> dict[str, NDArray[Any]]:
    """Read arrays of an .npz file: {name: array}. What is not `wanted` is not read, whatever its size.

    Nothing in the file is run. What cannot be read, such as an array of Python objects, is a ValueError or an error
    of zipfile or zlib.
    """
    check_plain(path)
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{str(path)!r} is not an .npz file, or its end is missing")
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        chosen = {name: member for member in members if wanted(name := member.filename.removesuffix(".npy"))}
        check_expansion(repr(str(path)), sum(m.file_size for m in chosen.values()), os.path.getsize(path))
        return {name: _array(archive, member) for name, member in chosen.items()}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """One array, after comparing the shape in its header with the number of its bytes."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"{member.filename} is written in format {version} of .npy files")
        shape, _, dtype = _HEADERS[version](file)
        claimed = file.tell() + dtype.itemsize * math.prod(shape)
    if dtype.hasobject or claimed != member.file_size:
        raise ValueError(f"{member.filename} claims {dtype} {shape} and holds {member.file_size:,} bytes")
    with archive.open(member) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def read_parquet(
    reader: Any, source: Any, name: str, on_disk: int, wanted: Container[str] | None = None
) -> tuple[list[str], dict[str, list[Any]]]:
    """Read columns of a Parquet file.

    A value that is repeated takes next to no space in such a file. Values are therefore counted by its metadata, and
    texts are first read as indices of a dictionary, so that the length of all texts is known before they are made.

    Args:
        reader: The module pyarrow.parquet.
        source: The path of the file, or a file object.
        name: What an error calls the file.
        on_disk: The size of the file in bytes.
        wanted: The names of the columns to read; None for all.

    Returns:
        The names of all columns, and {name: values} of those that were read.
    """
    whole = reader.ParquetFile(source)
    names = list(whole.schema_arrow.names)
    chosen = [column for column in names if wanted is None or column in wanted]
    groups = [whole.metadata.row_group(number) for number in range(whole.metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    read = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in chosen]
    sizes = (max(chunk.total_uncompressed_size, BYTES_PER_VALUE * chunk.num_values) for chunk in read)
    check_expansion(name, sum(sizes), on_disk)
    texts = list(dict.fromkeys(chunk.path_in_schema for chunk in read if chunk.physical_type == "BYTE_ARRAY"))
    if nested := [path for path in texts if path not in names]:
        raise ValueError(f"the column {nested[0]!r} holds lists or records of texts, and cells are texts or numbers")
    table = reader.ParquetFile(source, read_dictionary=texts).read(columns=chosen)
    check_expansion(name, sum(_text_bytes(column) for column in table.columns), on_disk)
    return names, {column: table.column(column).to_pylist() for column in table.column_names}


def _text_bytes(column: Any) -> int:
    """How many bytes the texts of a column take together; 0 for other columns."""
    import pyarrow
    import pyarrow.compute

    if not pyarrow.types.is_dictionary(column.type):
        return 0
    lengths = ((pyarrow.compute.binary_length(chunk.dictionary), chunk.indices) for chunk in column.chunks)
    return sum(pyarrow.compute.sum(length.take(indices)).as_py() or 0 for length, indices in lengths)


def check_pixels(height: int, width: int, what: str) -> None:
    """Raise a GamlensError unless this is the size of an image that Pillow would decode; `what` begins the error."""
    most = Image.MAX_IMAGE_PIXELS
    if min(height, width) < 1 or (most is not None and height * width > most):
        raise GamlensError(
            f"{what} is {width} x {height} pixels; an image has 1 to {most or 'any number of'} pixels: correct the "
            "file, or raise PIL.Image.MAX_IMAGE_PIXELS."
        )


def stored_frame(item: dict[str, Any], size: tuple[int, int]) -> Frame:
    """Make the Frame that a saved explanation or gallery records of one image.

    Args:
        item: The record, with original (H,W), size (H,W) and window (x0, y0, x1, y1).
        size: The size (H,W) of the model's input, which that of the record must be.
    """
    (height, width), window = map(whole_number, item["original"]), tuple(map(float, item["window"]))
    check_pixels(height, width, f"The image {item['name']!r}")
    if tuple(item["size"]) != size:
        raise ValueError(f"the image {item['name']!r} has an input of {item['size']}, not of {list(size)}")
    x0, y0, x1, y1 = window
    most = PADDING * (Image.MAX_IMAGE_PIXELS or math.inf)
    if not (x0 < x1 and y0 < y1 and (x1 - x0) * (y1 - y0) <= most and all(map(math.isfinite, window))):
        raise ValueError(f"the image {item['name']!r} has the window {list(window)}, which is no part of an image")
    return Frame((height, width), size, (x0, y0, x1, y1))


def whole_number(value: Any) -> int:
    """The value itself if it is an int; a bool and any other type are a ValueError."""
    if type(value) is not int:
        raise ValueError(f"expected a whole number, found {value!r:.80}")
    return value
