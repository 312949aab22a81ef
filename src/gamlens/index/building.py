"""From image files to vectors: read, hash and decode files in threads, run the model once, and say what became of each.

Files whose contents the index has already are not run again: a file that has moved keeps its vector, and a copy of an
indexed file gets the same one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gamlens.errors import GamlensError, attempt, readable
from gamlens.files import check_plain
from gamlens.fuse import at_least_float32
from gamlens.index.catalogue import FileState, IndexedImage
from gamlens.index.vector_file import Array
from gamlens.inputs.batch import ModelInput, join
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.streaming.prefetch import grouped, prefetch

if TYPE_CHECKING:
    from gamlens.lens import Lens

NO_FILE = FileState(-1, 0)
READ_AT_ONCE = 1 << 20
FORWARD_METHOD = "vdsn"  # reads the last block and no gradient, so that no graph is made
KnownContents = Callable[[Sequence[str]], Mapping[str, Sequence[IndexedImage]]]
KnownHashes = Mapping[tuple[str, FileState], str]  # sha256 of files by their paths and states
NO_HASHES: KnownHashes = {}


@dataclass(frozen=True, eq=False)
class EmbeddedFile:
    """A file that has a vector.

    Attributes:
        path: The file.
        state: Its size and time when it was read.
        sha256: The hash of its contents.
        frame: Where the model's input lies in the image; None if `known` has the same contents.
        vector: The embedding (D,), float32; None if `known` has the same contents.
        block: The activations of the last block (C,h,w), if they are wanted.
        known: The images that the index had under the same contents when the file was read.
    """

    path: str
    state: FileState
    sha256: str
    frame: Frame | None = None
    vector: Array | None = None
    block: Array | None = None
    known: Sequence[IndexedImage] = ()


@dataclass(frozen=True)
class BadFile:
    """A file that cannot be read, and why.

    Its state is NO_FILE if the disk did not give its contents, so that it differs from that of any file: it is read
    again at every change.
    """

    path: str
    state: FileState
    reason: str


@dataclass(eq=False)
class LoadedFiles:
    """What threads made of a group of files: those to run, in one batch, and what is known of the others."""

    ready: ModelInput | None
    fresh: list[EmbeddedFile] = field(default_factory=list)
    others: list[EmbeddedFile | BadFile] = field(default_factory=list)


def file_state(path: str | os.PathLike[str]) -> FileState:
    """The size and time of a file; NO_FILE if there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # a name that no file can have
        return NO_FILE
    return FileState(found.st_size, found.st_mtime_ns)


def contents_sha256(path: str | os.PathLike[str]) -> str:
    """The sha256 of a file's contents. A file that cannot be read is a GamlensError."""
    name = readable(os.fspath(path))
    found = hashlib.sha256()
    if name != os.fspath(path):
        raise GamlensError(f"The name of the file '{name}' is not UTF-8: rename the file.")
    try:
        check_plain(path)
        with open(path, "rb") as source:
            while part := source.read(READ_AT_ONCE):
                found.update(part)
    except (OSError, ValueError) as error:
        raise GamlensError(f"Cannot read the file {name!r}: {getattr(error, 'strerror', None) or error}.") from error
    return found.hexdigest()


def embed_files(
    lens: Lens,
    paths: Sequence[str],
    known: KnownContents,
    *,
    hashes: KnownHashes = NO_HASHES,
    blocks: bool,
    batch_size: int,
    workers: int | None = None,
) -> Generator[list[EmbeddedFile | BadFile]]:
    """Embed files: what became of every file of a batch, batch by batch, while threads read the next ones.

    Args:
        lens: The model.
        paths: The files.
        known: sha256 of contents -> what is known of them, for those that are.
        hashes: The sha256 of files that were read already.
        blocks: Whether activations of the last block are kept, too.
        batch_size: How many files are read, and run, at once.
        workers: How many threads read files.
    """
    groups = grouped(paths, batch_size)
    for _, loaded in prefetch(partial(load_files, lens, known, hashes=hashes), groups, workers=workers):
        yield embedded_files(lens, loaded, blocks=blocks)


@torch.inference_mode(False)
@torch.no_grad()
def embed_batch(lens: Lens, ready: ModelInput, *, blocks: bool) -> tuple[Array, Array | None]:
    """One forward: embeddings (B,D) in float32, and with `blocks` the last block (B,C,h,w) in half precision."""
    if lens.device.type == "cpu":  # where convolutions are faster if the channels of a pixel lie together
        batch = ready.batches[0].contiguous(memory_format=torch.channels_last)
        ready = replace(ready, batches=(batch, *ready.batches[1:]))
    record = lens.forward(ready, n=int(blocks), method=FORWARD_METHOD, embedding=True)
    vectors = at_least_float32(record.required_embedding().detach()).float().cpu().numpy()
    if not blocks:
        return vectors, None
    last: Tensor = list(record.activations.values())[-1]
    return vectors, last.detach().half().cpu().numpy()


def load_files(lens: Lens, known: KnownContents, paths: list[str], *, hashes: KnownHashes = NO_HASHES) -> LoadedFiles:
    """Hash a group of files, and decode those whose contents are not known. Called in threads."""
    found, inputs = LoadedFiles(None), []
    hashed: list[tuple[str, FileState, str]] = []
    for path in paths:
        state = file_state(path)
        seen = hashes.get((path, state))
        digest = seen if seen else attempt(contents_sha256, path)
        if isinstance(digest, GamlensError):
            unread = isinstance(digest.__cause__, OSError)  # the fault of the disk or network, perhaps for now
            found.others.append(BadFile(path, NO_FILE if unread else state, str(digest)))
        else:
            hashed.append((path, state, digest))
    there = known([digest for _, _, digest in hashed])
    for path, state, digest in hashed:
        if digest in there:
            found.others.append(EmbeddedFile(path, state, digest, known=there[digest]))
            continue
        ready = attempt(lens.prepare, Picture(Path(path).name, path=path))
        if isinstance(ready, GamlensError):
            found.others.append(BadFile(path, state, str(ready)))
        else:
            inputs.append(ready)
            found.fresh.append(EmbeddedFile(path, state, digest, frame=ready.frames[0]))
    found.ready = join(inputs) if inputs else None
    return found


def embedded_files(lens: Lens, loaded: LoadedFiles, *, blocks: bool) -> list[EmbeddedFile | BadFile]:
    """What became of a group of files: those that threads have decoded are run, in one batch."""
    found: list[EmbeddedFile | BadFile] = list(loaded.others)
    if loaded.ready is None:
        return found
    vectors, kept = embed_batch(lens, loaded.ready, blocks=blocks)
    for number, file in enumerate(loaded.fresh):
        vector = vectors[number]
        if not np.isfinite(vector).all():
            found.append(BadFile(file.path, file.state, "The model gives it an embedding that is not finite."))
            continue
        found.append(replace(file, vector=vector, block=None if kept is None else kept[number]))
    return found
