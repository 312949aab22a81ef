"""Embed many files on a Ray cluster, and take the results into an index.

The cluster computes parts of a run folder inside the index (`building/`): the engine's own, where a lost worker's part
is given to another one. The parts are then taken in one after the other. Those of a run that was stopped are taken in
first, and a new run has what is left.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gamlens.data.plausible import stored_frame
from gamlens.engine import Job, ResultRow, RunFolder, pieces, run_ray
from gamlens.errors import readable
from gamlens.index.building import BadFile, EmbeddedFile, embedded_files, file_state, load_files
from gamlens.index.catalogue import FileState
from gamlens.index.changes import IndexChanges, Status
from gamlens.index.writing import IndexWriter

if TYPE_CHECKING:
    from gamlens.lens import Lens

BUILDING = "building"
PARTS_SUFFIX = ".npz"
CHUNK = 512  # files per part


@dataclass
class EmbeddingWorker:
    """The worker of a run: makes the lens once per process, reads files and embeds them.

    Attributes:
        make_lens: Makes the lens.
        check: Raises an error if the lens is not that of the index.
        blocks: Whether activations are kept.
    """

    make_lens: Callable[[], Lens]
    check: Callable[[Lens], None]
    blocks: bool
    lens: Lens = field(init=False)

    def __post_init__(self) -> None:
        self.lens = self.make_lens()
        self.check(self.lens)

    def load(self, items: Sequence[str]) -> Any:
        return load_files(self.lens, lambda hashes: {}, list(items))

    def work(self, loaded: Any) -> list[ResultRow]:
        return [_row(file) for file in embedded_files(self.lens, loaded, blocks=self.blocks)]


def add_on_cluster(
    writer: IndexWriter,
    files: Sequence[str],
    make_lens: Callable[[], Lens],
    check: Callable[[Lens], None],
    *,
    recheck: bool,
    batch_size: int,
    chunk: int = CHUNK,
    workers: int | None,
    address: str | None,
    status: Status,
) -> IndexChanges:
    """Embed the files that are new or have changed on a cluster, and take them in.

    Args:
        writer: Changes the index.
        files: The files, as absolute paths that every machine of the cluster can read. The folder of the index must be
            on a disk that every machine can write to.
        make_lens: Makes the lens; it must be picklable.
        check: Raises an error if a lens is not that of the index; picklable, too.
        recheck: Whether files that have not changed are read again, too.
        batch_size: How many images are run together.
        chunk: How many files a part has; a run that is stopped repeats at most this many per worker.
        workers: The number of workers; by default one per GPU.
        address: The address of the cluster; by default one is started on this machine.
        status: Called with the number of files that are done, and of those that cannot be read.
    """
    todo, total = writer.unfinished(files, recheck=recheck)
    status(total.unchanged, 0)
    if not todo:
        return total
    todo, renamed = writer.follow_renames(todo, writer.hashes_of_displaced(todo))
    total = total.joined(renamed)
    place = writer.folder / BUILDING
    todo, before = _taken_from_stopped_run(writer, place, todo)
    total = total.joined(before)
    start = len(set(files)) - len(todo)
    status(start, 0)
    names = sha256("\n".join(todo).encode(errors="backslashreplace")).hexdigest()
    about = {
        **_about(writer), "chunk": chunk, "chunks": len(pieces(todo, chunk)), "files_sha256": names,
    }  # fmt: skip
    make = partial(EmbeddingWorker, make_lens, check, writer.keeps_blocks)
    job = Job(make, encode_files, chunk, batch_size, readable)
    if todo:
        with RunFolder(place, about, suffix=PARTS_SUFFIX, fresh=True) as folder:
            done = bad = 0
            for part in run_ray(job, todo, folder, workers=workers, address=address):
                done, bad = done + part.items, bad + part.errors
                status(start + done, bad)
            for contents in folder.parts():
                total = total.joined(writer.commit(decode_files(contents)))
    shutil.rmtree(place, ignore_errors=True)
    return total


def _taken_from_stopped_run(writer: IndexWriter, place: Path, todo: Sequence[str]) -> tuple[list[str], IndexChanges]:
    """Take in what an `add_on_cluster` that was stopped has embedded already, of files that are as they were then.

    Returns:
        The files that are left, and the change.
    """
    total, left = IndexChanges(), dict.fromkeys(todo)
    try:
        about = json.loads((place / "run.json").read_bytes())
        of_this_index = all(about[name] == value for name, value in _about(writer).items())
    except (OSError, ValueError, KeyError, TypeError):
        return list(left), total
    if of_this_index:
        with RunFolder(place, about, suffix=PARTS_SUFFIX) as folder:
            folder.drop(folder.find_damaged())
            for contents in folder.parts():
                good = [file for file in decode_files(contents) if isinstance(file, EmbeddedFile)]
                same = [file for file in good if file.path in left and file.state == file_state(file.path)]
                total = total.joined(writer.commit(same))
                for file in same:
                    del left[file.path]
    return list(left), total


def _about(writer: IndexWriter) -> dict[str, Any]:
    """What two runs must have in common, so that the results of one are those of the other."""
    return {"kind": "embedding", "identity": writer.settings["identity"], "blocks": writer.keeps_blocks}


def encode_files(rows: Sequence[ResultRow]) -> bytes:
    """What became of some files as one .npz file: their vectors, activations, and all else as JSON."""
    good = [row for row in rows if not row["error"]]
    arrays: dict[str, Any] = {"vectors": np.stack([row["vector"] for row in good]) if good else np.zeros((0, 0))}
    if good and good[0]["block"] is not None:
        arrays["blocks"] = np.stack([row["block"] for row in good])
    known = [{name: value for name, value in row.items() if name not in ("vector", "block")} for row in rows]
    arrays["record"] = np.frombuffer(json.dumps(known).encode(), dtype=np.uint8)
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def decode_files(contents: bytes) -> list[EmbeddedFile | BadFile]:
    """Read back what `encode_files` wrote."""
    with np.load(io.BytesIO(contents), allow_pickle=False) as arrays:
        vectors, blocks = arrays["vectors"], arrays.get("blocks")
        rows = json.loads(arrays["record"].tobytes())
    found: list[EmbeddedFile | BadFile] = []
    number = 0
    for row in rows:
        state = FileState(row["bytes"], row["modified"])
        if row["error"]:
            found.append(BadFile(row["path"], state, row["error"]))
            continue
        block = None if blocks is None else blocks[number]
        frame = stored_frame({"name": row["path"], **row["frame"]}, tuple(row["frame"]["size"]))
        found.append(EmbeddedFile(row["path"], state, row["sha256"], frame, vectors[number], block))
        number += 1
    return found


def _row(file: EmbeddedFile | BadFile) -> ResultRow:
    known = {"path": file.path, "bytes": file.state.bytes, "modified": file.state.modified}
    if isinstance(file, BadFile):
        return {**known, "error": file.reason}
    frame = vars(file.frame) if file.frame is not None else {}
    return {**known, "error": "", "sha256": file.sha256, "frame": frame, "vector": file.vector, "block": file.block}
