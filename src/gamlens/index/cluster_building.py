"""Embed many files on a Ray cluster, and take the results into an index.

The cluster computes parts of a run folder inside the index (`building/`): the engine's own, which a stopped run
continues, and where a lost worker's part is given to another one. The parts are then taken in one after the other.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gamlens.data.plausible import stored_frame
from gamlens.engine import Job, ResultRow, RunFolder, pieces, run_ray
from gamlens.errors import readable
from gamlens.index.building import BadFile, EmbeddedFile, embedded_files, load_files
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
    names = sha256("\n".join(todo).encode(errors="backslashreplace")).hexdigest()
    about = {
        "kind": "embedding", "identity": writer.settings["identity"], "chunk": chunk, "blocks": writer.keeps_blocks,
        "chunks": len(pieces(todo, chunk)), "files_sha256": names,
    }  # fmt: skip
    place = writer.folder / BUILDING
    make = partial(EmbeddingWorker, make_lens, check, writer.keeps_blocks)
    job = Job(make, encode_files, chunk, batch_size, readable)
    with RunFolder(place, about, suffix=PARTS_SUFFIX, fresh=_is_other(place, about)) as folder:
        done = bad = 0
        for part in run_ray(job, todo, folder, workers=workers, address=address):
            done, bad = done + part.items, bad + part.errors
            status(total.unchanged + done, bad)
        for contents in folder.parts():
            total = total.joined(writer.commit(decode_files(contents)))
    shutil.rmtree(place, ignore_errors=True)
    return total


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


def _is_other(place: Path, about: Mapping[str, Any]) -> bool:
    """Whether the folder holds a run of other files, which an `add` that was stopped has left."""
    try:
        known = json.loads((place / "run.json").read_bytes())
    except (OSError, ValueError):
        return place.exists()
    return any(known.get(name) != value for name, value in about.items())
