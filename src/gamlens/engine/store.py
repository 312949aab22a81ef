"""A folder whose files are written atomically: on this machine, or on any file system that pyarrow supports."""

import uuid
from pathlib import Path, PurePosixPath
from typing import Any

from gamlens.data.reading import import_extra
from gamlens.errors import GamlensError
from gamlens.files import PART, write_whole


class Store:
    """Files in a folder, or below a URI such as s3://bucket/run. A file is always either complete or absent."""

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
            raise GamlensError(
                f"Cannot write {name!r} in {self.place!r}: {error.strerror or error}. Finished files are kept: make "
                "room, then give the same command again."
            ) from error

    def names(self, folder: str) -> list[str]:
        """The names of the complete files in a subfolder, sorted; [] if the subfolder does not exist."""
        if self._files is None:
            inside = Path(self._root, folder)
            found = [file.name for file in inside.iterdir() if file.is_file()] if inside.is_dir() else []
        else:
            from pyarrow.fs import FileSelector, FileType

            listed = self._files.get_file_info(FileSelector(self._path(folder), allow_not_found=True))
            found = [info.base_name for info in listed if info.type == FileType.File]
        return sorted(name for name in found if not name.endswith(PART))

    def remove(self, name: str) -> None:
        """Delete a file if it exists."""
        if self._files is None:
            Path(self._root, name).unlink(missing_ok=True)
        elif self.read(name) is not None:
            self._files.delete_file(self._path(name))

    def sweep(self, folder: str) -> None:
        """Delete temporary files that interrupted writes left in a subfolder."""
        if self._files is None and Path(self._root, folder).is_dir():
            for file in Path(self._root, folder).glob(f"*{PART}"):
                file.unlink(missing_ok=True)

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
    systems = import_extra("pyarrow.fs", repr(place))
    try:
        files, root = systems.FileSystem.from_uri(place)
    except Exception as error:
        raise GamlensError(f"Cannot open {place!r}: {type(error).__name__}: {error} Check the URI.") from error
    return files, str(root)
