"""Write files atomically: a reader sees the whole new file or the old one, never a part.

A file is first written under a temporary name in the same folder and then renamed. Temporary files that a killed
process left are deleted by the next one that writes into the folder.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from gamlens.errors import GamlensError, readable

PART = ".part"  # the suffix of a temporary file
PART_NAME = re.compile(r"\.gamlens-([0-9a-f]{32})-(?:lock|\d+-.*)\.part", re.DOTALL)  # the group: who writes it
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WriteInto = Callable[[IO[bytes]], Any]


class TemporaryFiles:
    """Names of temporary files of one writer, in any folders.

    In each folder the writer holds a lock on one more temporary file for as long as it works. If that file can be
    locked by somebody else, the writer is gone, and `sweep` deletes what it left. A name holds only the end of the
    final name, since it may have at most 255 bytes.
    """

    def __init__(self) -> None:
        self.writer = uuid.uuid4().hex
        self.made: list[Path] = []
        self._locks: dict[Path, IO[bytes]] = {}

    def beside(self, file: Path) -> Path:
        """Return a new temporary name in the folder of `file`."""
        folder = file.parent
        if folder not in self._locks:
            sweep(folder)
            self._locks[folder] = _locked_file(self._name(folder, "lock"))
        end = file.name.encode("utf-8", "surrogateescape")[-80:].decode("utf-8", "ignore")
        self.made.append(self._name(folder, f"{len(self.made)}-{end}"))
        return self.made[-1]

    def remove(self) -> None:
        """Delete all temporary files that are still there; the locks go last."""
        for file in self.made:
            file.unlink(missing_ok=True)
        for folder, lock in self._locks.items():
            self._name(folder, "lock").unlink(missing_ok=True)
            lock.close()
        self._locks.clear()

    def _name(self, folder: Path, what: str) -> Path:
        return folder / f".gamlens-{self.writer}-{what}{PART}"


def sweep(folder: Path) -> None:
    """Delete the temporary files in a folder whose writers are gone, and no file of another kind of name."""
    writers: dict[str, list[Path]] = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if (found := PART_NAME.fullmatch(entry.name)) and entry.is_file(follow_symlinks=False):
                writers.setdefault(found[1], []).append(folder / entry.name)
    for writer, files in writers.items():
        with suppress(OSError):
            lock = folder / f".gamlens-{writer}-lock{PART}"
            with open(lock, "ab") as held:
                if _try_lock(held.fileno()):
                    for file in {*files, lock}:
                        file.unlink(missing_ok=True)


def write_whole(file: Path, write: WriteInto) -> None:
    """Write one file atomically. The data is synced to disk before the rename; on an error the old file stays.

    Args:
        file: Where the file goes. Its folder must exist.
        write: Called with the temporary file, open for writing in binary mode.
    """
    temporary = TemporaryFiles()
    try:
        beside = temporary.beside(file)
        with open(beside, "wb") as out:
            write(out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(beside, file)
    finally:
        temporary.remove()


class StagedFiles:
    """Write several files as one unit: all of them are renamed into place at the end of the `with` block.

    If the block raises, no file is changed, and folders that were made for the files are removed. If a rename fails,
    the files that were there before are put back.

        with StagedFiles() as staged:
            staged.write(folder / "a.png", image.save)
            staged.write(folder / "a.json", lambda out: out.write(data))
    """

    def __init__(self) -> None:
        self.moves: list[tuple[Path, Path]] = []  # (temporary file, its final place)
        self._temporary = TemporaryFiles()
        self._folders: list[Path] = []

    @property
    def files(self) -> list[str]:
        """The final paths of all files, in the order they were written."""
        return [str(file) for _, file in self.moves]

    def __enter__(self) -> StagedFiles:
        return self

    def write(self, file: Path, write: WriteInto) -> None:
        """Call `write` with a temporary file that becomes `file` later. A missing folder is created."""
        self._folders += make_folder(file.parent)
        try:
            beside = self._temporary.beside(file)
            self.moves.append((beside, file))
            with open(beside, "wb") as out:
                write(out)
        except OSError as error:
            raise _unwritable(file, error) from error

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None:
                self._move()
        finally:
            self._temporary.remove()
            remove_empty(self._folders)

    def _move(self) -> None:
        """Rename all temporary files, and undo the renames if one fails. Replaced files are copied before."""
        copies: dict[Path, Path] = {}
        moved: list[Path] = []
        try:
            for beside, file in self.moves:
                if file.exists():
                    copies[file] = self._temporary.beside(file)
                    shutil.copy2(file, copies[file])
                os.replace(beside, file)
                moved.append(file)
        except OSError as error:
            for file in moved:
                if file in copies:
                    shutil.move(copies[file], file)
                else:
                    file.unlink(missing_ok=True)
            raise _unwritable(self.moves[len(moved)][1], error) from error


def check_plain(file: str | os.PathLike[str]) -> None:
    """Raise a GamlensError if there is a pipe or a device at this path, because reading one may never end."""
    mode = os.stat(file).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        name = readable(os.fspath(file))
        raise GamlensError(f"{name!r} is a pipe or a device, not a file: give the path of a file.")


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a folder for one command that writes its results there; a second command is refused meanwhile.

    The folder is made if it is missing, and removed at the end if nothing was written. Temporary files that a killed
    command left in it or in one of its subfolders are deleted.
    """
    made = make_folder(folder)
    try:
        with _held(folder):
            for place in (folder, *(Path(found) for found in _subfolders(folder))):
                sweep(place)
            yield
    finally:
        remove_empty(made)


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and its missing parents. Returns those that were missing, for `remove_empty`."""
    missing = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        remove_empty(missing)
        raise no_folder(folder, error) from error
    return missing


def remove_empty(folders: list[Path]) -> None:
    """Remove those of the folders that are empty, the deepest first."""
    for folder in sorted(folders, key=lambda place: -len(place.parts)):
        with suppress(OSError):
            folder.rmdir()


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error was caused by a full disk, a full quota, or a limit on the size of files."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_IS_FULL:
            return True
        error = error.__cause__
    return False


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock a folder, after a test that files can be written in it."""
    temporary = TemporaryFiles()
    try:
        temporary.beside(folder / "test")
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise GamlensError(
            f"Cannot write into the folder {str(folder)!r}: {error.strerror or error}. Give another folder, or make "
            "this one writable."
        ) from error
    finally:
        temporary.remove()
    try:
        if _try_lock(handle) is False:
            raise GamlensError(
                f"Another gamlens command is writing into {str(folder)!r}: wait for it to end, or give another folder."
            )
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool | None:
    """Lock an open file or folder without waiting. Returns whether it worked, or None where there are no locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def _locked_file(file: Path) -> IO[bytes]:
    """Create a file and lock it. If `sweep` of another process deleted it between the two steps, do it again."""
    while True:
        held = open(file, "ab")  # noqa: SIM115 - it stays open while the writer works
        _try_lock(held.fileno())
        if file.exists():
            return held
        held.close()


def _subfolders(folder: Path) -> list[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _unwritable(file: Path, error: OSError) -> GamlensError:
    if not file.parent.is_dir():
        return no_folder(file.parent, error)
    if file.is_dir():
        return GamlensError(f"Cannot write {str(file)!r}: it is a folder. Give the name of a file.")
    return GamlensError(f"Cannot write {str(file)!r}: {error.strerror or error}.")


def no_folder(folder: Path, error: Exception) -> GamlensError:
    """Say why a folder cannot be made. The usual reason is a file of that name, or of the name of a parent folder."""
    reason = f"{getattr(error, 'strerror', None) or error}"
    for place in (folder, *folder.parents):
        with suppress(OSError, ValueError):
            if place.is_file():
                reason = f"{str(place)!r} is a file"
            elif place.is_symlink() and not place.exists():
                reason = f"{str(place)!r} is a link to {os.readlink(place)!r}, which does not exist"
            else:
                continue
            break
    return GamlensError(f"Cannot make the folder {str(folder)!r}: {reason}. Give another folder.")
