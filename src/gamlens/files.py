"""Write files atomically: a reader sees the whole new file or the old one, never a part.

A file is first written under a temporary name in the same folder and then renamed.
"""

from __future__ import annotations

import os
import shutil
import stat
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from gamlens.errors import GamlensError, readable

PART = ".part"  # the suffix of a temporary file
WriteInto = Callable[[IO[bytes]], Any]


def write_whole(file: Path, write: WriteInto) -> None:
    """Write one file atomically. The data is synced to disk before the rename; on an error the old file stays.

    Args:
        file: Where the file goes. Its folder must exist.
        write: Called with the temporary file, open for writing in binary mode.
    """
    beside = _beside(file)
    try:
        with open(beside, "wb") as out:
            write(out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)


class StagedFiles:
    """Write several files as one unit: all of them are renamed into place at the end of the `with` block.

    If the block raises, no file is changed. If a rename fails, the files that were there before are put back.

        with StagedFiles() as staged:
            staged.write(folder / "a.png", image.save)
            staged.write(folder / "a.json", lambda out: out.write(data))
    """

    def __init__(self) -> None:
        self.moves: list[tuple[Path, Path]] = []  # (temporary file, its final place)

    @property
    def files(self) -> list[str]:
        """The final paths of all files, in the order they were written."""
        return [str(file) for _, file in self.moves]

    def __enter__(self) -> StagedFiles:
        return self

    def write(self, file: Path, write: WriteInto) -> None:
        """Call `write` with a temporary file that becomes `file` later. A missing folder is created."""
        beside = _beside(file)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self.moves.append((beside, file))
            with open(beside, "wb") as out:
                write(out)
        except OSError as error:
            raise _unwritable(file, error) from error

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        kept: list[tuple[Path, Path]] = []
        try:
            if kind is None:
                self._move(kept)
        finally:
            for beside in (*(move[0] for move in self.moves), *(old for old, _ in kept)):
                beside.unlink(missing_ok=True)

    def _move(self, kept: list[tuple[Path, Path]]) -> None:
        """Rename all temporary files, and undo the renames if one fails.

        A copy of every file that is about to be replaced is appended to `kept` as (copy, original path), so that the
        caller can delete the copies.
        """
        moved: list[Path] = []
        try:
            for beside, file in self.moves:
                if file.exists():
                    old = _beside(file)
                    shutil.copy2(file, old)
                    kept.append((old, file))
                os.replace(beside, file)
                moved.append(file)
        except OSError as error:
            for new in moved:
                new.unlink(missing_ok=True)
            for old, place in kept:
                if not place.exists():
                    os.rename(old, place)
            raise _unwritable(self.moves[len(moved)][1], error) from error


def check_plain(file: str | os.PathLike[str]) -> None:
    """Raise a GamlensError if there is a pipe or a device at this path, because reading one may never end."""
    mode = os.stat(file).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        name = readable(os.fspath(file))
        raise GamlensError(f"{name!r} is a pipe or a device, not a file: give the path of a file.")


def _beside(file: Path) -> Path:
    """Return a temporary name in the same folder; the random part keeps processes on several machines apart."""
    return file.with_name(f".{file.name}.{uuid.uuid4().hex[:12]}{PART}")


def _unwritable(file: Path, error: OSError) -> GamlensError:
    if not file.parent.is_dir():
        return no_folder(file.parent, error)
    if file.is_dir():
        return GamlensError(f"Cannot write {str(file)!r}: it is a folder. Give the name of a file.")
    return GamlensError(f"Cannot write {str(file)!r}: {error.strerror or error}.")


def no_folder(folder: Path, error: OSError) -> GamlensError:
    """Say why a folder cannot be made. The usual reason is a file of that name, or of the name of a parent folder."""
    for place in (folder, *folder.parents):
        if place.is_file():
            return GamlensError(
                f"Cannot make the folder {str(folder)!r}: {str(place)!r} is a file. Give another folder."
            )
    return GamlensError(f"Cannot make the folder {str(folder)!r}: {error.strerror or error}. Give another folder.")
