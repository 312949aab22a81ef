"""Files that are there whole or not at all: each is written beside its place first and then moved there."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from gamlens.errors import GamlensError

PART = ".part"  # how the name of a file ends that is not whole yet
WriteInto = Callable[[IO[bytes]], Any]


def write_whole(file: Path, write: WriteInto) -> None:
    """Write one file and have it on the disk before it takes its place. An OSError leaves what was there before."""
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
    """Several files that are moved to their places together, at the end of a `with`; a failure puts back what was
    there before.
    """

    def __init__(self) -> None:
        self.moves: list[tuple[Path, Path]] = []

    @property
    def files(self) -> list[str]:
        return [str(file) for _, file in self.moves]

    def __enter__(self) -> StagedFiles:
        return self

    def write(self, file: Path, write: WriteInto) -> None:
        """Let `write` fill `file`, whose folder is made where it is missing."""
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


def _beside(file: Path) -> Path:
    """A name that no other process, on whichever machine, gives to the same file."""
    return file.with_name(f".{file.name}.{uuid.uuid4().hex[:12]}{PART}")


def _unwritable(file: Path, error: OSError) -> GamlensError:
    what = "make the folder" if not file.parent.is_dir() else "write"
    place = file.parent if what == "make the folder" else file
    return GamlensError(f"Cannot {what} {str(place)!r}: {error.strerror or error}.")
