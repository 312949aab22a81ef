"""A folder whose files are written atomically: on this machine, or on any file system that pyarrow supports."""

import errno
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from gamlens.data.reading import import_extra
from gamlens.errors import GamlensError
from gamlens.files import PART, check_plain, sweep, write_whole

FULL = (errno.ENOSPC, errno.EDQUOT)  # the errors of a write for which there is no room


class Store:
    """Files in a folder, or below a URI such as s3://bucket/run. A file is always either complete or absent.

    A file:// URI is the folder that it names: it has the same lock and the same temporary files as the plain path.
    """

    def __init__(self, place: str | Path) -> None:
        self.place = str(place)
        self._files: Any = None
        self._root = self.place
        if "://" in self.place:
            self._files, self._root = _remote(self.place)

    @property
    def local(self) -> Path | None:
        """The folder, or None if it is not on this machine."""
        return Path(self._root) if self._files is None else None

    def read(self, name: str) -> bytes | None:
        """The contents of a file, or None if it does not exist."""
        try:
            if self._files is None:
                check_plain(Path(self._root, name))
                return Path(self._root, name).read_bytes()
            with self._files.open_input_stream(self._path(name)) as file:
                return bytes(file.read())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise GamlensError(f"Cannot read {name!r} in {self.place!r}: {error.strerror or error}.") from error

    def write(self, name: str, contents: bytes) -> None:
        """Write a file under a temporary name and then rename it. If that fails, the old file stays as it was."""
        try:
            if self._files is None:
                path = Path(self._root, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, lambda file: file.write(contents))
            else:
                self._write_remote(name, contents)
        except OSError as error:
            todo = "make room" if error.errno in FULL else "mend this"
            raise GamlensError(
                f"Cannot write {name!r} in {self.place!r}: {error.strerror or error}. Finished files are kept: {todo}, "
                "then give the same command again."
            ) from error

    def names(self, folder: str) -> list[str]:
        """The names of the complete files in a subfolder, sorted; [] if the subfolder does not exist."""
        return [name for name in self._listed(folder) if not name.endswith(PART)]

    def remove(self, name: str) -> None:
        """Delete a file if it exists."""
        with self._changing(name):
            if self._files is None:
                Path(self._root, name).unlink(missing_ok=True)
            elif self._info(self._path(name)) is not None:
                self._files.delete_file(self._path(name))

    def remove_all(self, folder: str, names: Iterable[str]) -> None:
        """Delete these files of a subfolder, and the subfolder if nothing else is in it."""
        wanted = set(names)
        if self._files is not None and wanted.issuperset(self._listed(folder)):
            with self._changing(folder):  # one call for thousands of files
                if wanted:
                    self._files.delete_dir(self._path(folder))
            return
        for name in sorted(wanted):
            self.remove(f"{folder}/{name}")
        if self._files is None and Path(self._root, folder).is_dir() and not any(Path(self._root, folder).iterdir()):
            Path(self._root, folder).rmdir()

    def sweep(self, folder: str, ours: Callable[[str], bool]) -> None:
        """Delete temporary files that interrupted writes left in a subfolder; "" is the folder itself.

        `ours` says of a file name whether this program writes such files. Temporary files of others are left alone.
        """
        if self._files is None:
            sweep(Path(self._root, folder))
        for name in self._listed(folder):
            whole = name.removesuffix(PART).rpartition(".")[0]  # the temporary name is [.]NAME.RANDOM.part
            if name.endswith(PART) and whole and ours(whole.removeprefix(".") if not ours(whole) else whole):
                self.remove(str(PurePosixPath(folder, name)))

    def age(self, name: str) -> float | None:
        """Seconds since a remote file was written, by the clock of its file system; None if that cannot be known.

        The time "now" is that of a temporary file which is written for the purpose, so the clock of this machine does
        not matter.
        """
        beside = self._path(f"{name}.{uuid.uuid4().hex}{PART}")
        with self._changing(name):
            written = self._info(self._path(name))
            with self._files.open_output_stream(beside) as file:
                file.write(b"now")
            now = self._info(beside)
            self._files.delete_file(beside)
        if written is None or now is None or written.mtime is None or now.mtime is None:
            return None
        return float((now.mtime - written.mtime).total_seconds())

    def _info(self, path: str) -> Any:
        """pyarrow's description of a remote file, or None if there is no such file."""
        from pyarrow.fs import FileType

        info = self._files.get_file_info(path)
        return info if info.type == FileType.File else None

    def _listed(self, folder: str) -> list[str]:
        try:
            if self._files is None:
                inside = Path(self._root, folder)
                return sorted(file.name for file in inside.iterdir() if file.is_file()) if inside.is_dir() else []
            from pyarrow.fs import FileSelector, FileType

            listed = self._files.get_file_info(FileSelector(self._path(folder), allow_not_found=True))
            return sorted(info.base_name for info in listed if info.type == FileType.File)
        except OSError as error:
            raise GamlensError(f"Cannot list {folder!r} in {self.place!r}: {error.strerror or error}.") from error

    @contextmanager
    def _changing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise GamlensError(f"Cannot change {name!r} in {self.place!r}: {error.strerror or error}.") from error

    def _path(self, name: str) -> str:
        return str(PurePosixPath(self._root, name))

    def _write_remote(self, name: str, contents: bytes) -> None:
        """Write a file under a temporary name, then move it: only object stores hide unfinished files by themselves."""
        path = self._path(name)
        self._files.create_dir(str(PurePosixPath(path).parent), recursive=True)
        beside = f"{path}.{uuid.uuid4().hex}{PART}"
        with self._files.open_output_stream(beside) as file:
            file.write(contents)
        self._files.move(beside, path)


def _remote(place: str) -> tuple[Any, str]:
    """The file system of a URI, and the path in it. For a folder of this machine, None and the path."""
    systems = import_extra("pyarrow.fs", repr(place))
    try:
        files, root = systems.FileSystem.from_uri(place)
    except Exception as error:
        raise GamlensError(f"Cannot open {place!r}: {type(error).__name__}: {error} Check the URI.") from error
    return None if isinstance(files, systems.LocalFileSystem) else files, str(root)
