"""The temporary folder of the studio, and the removal of folders that killed studios left behind."""

import contextlib
import os
import shutil
import stat
import sys
import tempfile
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

if sys.platform != "win32":
    import fcntl

FOLDER_PREFIX, LOCK_NAME = "gamlens-studio-", "gamlens-studio.lock"


class SharedTempDir:
    """One temporary folder for all studios of this process.

    While it is in use, the environment, which gradio reads at every upload, tells gradio to write there and to send
    no analytics. `release` by the last user deletes the folder and restores the environment. The folder holds a file
    that this process keeps locked, so that other studios can tell whether the folder is still in use.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._folder: TemporaryDirectory[str] | None = None
        self._locked_file = -1
        self._environment: dict[str, str | None] = {}

    def acquire(self) -> Path:
        with self._lock:
            if self._folder is None:
                remove_abandoned_folders()
                self._folder = TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True)
                self._locked_file = _lock_folder(Path(self._folder.name))
                wanted = {"GRADIO_TEMP_DIR": self._folder.name, "GRADIO_ANALYTICS_ENABLED": "False"}
                self._environment = {name: os.environ.get(name) for name in wanted}
                os.environ.update(wanted)
            self._users += 1
            return Path(self._folder.name)

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._folder is None:
                return
            self._folder.cleanup()
            self._folder = None
            if self._locked_file >= 0:
                os.close(self._locked_file)
            for name, value in self._environment.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def _lock_folder(folder: Path) -> int:
    """Put a locked file into the folder and return its descriptor; -1 on systems without such locks.

    The file gets its name only after it is locked, so that it never looks abandoned.
    """
    if sys.platform == "win32":
        return -1
    unnamed = folder / f"{LOCK_NAME}.new"
    file = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a file system without locks: the folder is never taken for an abandoned one
        os.close(file)
        return -1
    unnamed.rename(folder / LOCK_NAME)
    return file


def remove_abandoned_folders() -> None:
    """Delete the folders of studios of this user that were killed. No folder of another kind is touched."""
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):
        for entry in os.scandir(tempfile.gettempdir()):
            if entry.name.startswith(FOLDER_PREFIX):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(entry.path)


def _remove_if_abandoned(folder: str) -> None:
    """Delete a folder if this user made it, nobody else can write there, and its lock is free. Follows no link."""
    if sys.platform == "win32":
        return
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(opened)
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != 0o700:
            return
        lock = os.open(LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW, dir_fd=opened)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(found, os.lstat(folder)):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
    finally:
        os.close(opened)


TEMP_DIR = SharedTempDir()
