"""Changes of an index: files are taken in batch by batch, every few hundred of them in one commit.

Vectors are written to their file first; the transaction of the catalogue that names their rows makes them part of the
index. A row is never used twice, so that readers, and approximate indexes made of these rows, are never wrong: when
many rows belong to no image any more, all files are written anew under other names.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gamlens.errors import GamlensError, attempt, readable
from gamlens.files import write_whole
from gamlens.index import vector_file
from gamlens.index.backends import BACKENDS
from gamlens.index.building import NO_FILE, BadFile, EmbeddedFile, contents_sha256, embed_files, file_state
from gamlens.index.catalogue import Catalogue, FileState, IndexedImage
from gamlens.index.changes import IndexChanges, Status
from gamlens.index.image_listing import absolute, find_images, lies_below
from gamlens.index.snapshot import ApproximateFile, blocks_name, check_vectors, chosen_backend, vectors_name
from gamlens.streaming.prefetch import prefetch

if TYPE_CHECKING:
    from gamlens.lens import Lens

COMMIT_EVERY = 512  # images; an `add` that is killed repeats at most these
COMMIT_SECONDS = 20.0
MOST_HOLES = 1 / 3  # the share of rows of the vector file that belong to no image, from which it is written anew
FEW_HOLES = 1024
COPIED_AT_ONCE = 4096
OWN_FILE = re.compile(  # the names that `vectors_name`, `blocks_name` and `ApproximateFile` give
    rf"vectors-([1-9]\d*)\.f32|activations-([1-9]\d*)\.bin|(?:{'|'.join(BACKENDS)})-([1-9]\d*)\.ann"
)


class IndexWriter:
    """Changes one index. Whoever uses it holds the lock of the index's folder.

    Args:
        folder: The folder of the index.
        catalogue: Its catalogue.
        lens: The model; None if no image is embedded.
        sources: The folders and files that are being added. They are noted with the first files, so that `update`
            continues an `add` that was killed.
    """

    def __init__(self, folder: Path, catalogue: Catalogue, lens: Lens | None, *, sources: Sequence[str] = ()) -> None:
        self.folder, self.catalogue, self.lens, self.sources = folder, catalogue, lens, sources
        self.settings = catalogue.settings()
        self.followed: dict[str, str] = {}  # what `follow_move` found: {old folder: new one}
        self._drop_leftovers()

    # Taking files in

    def take_in(
        self, files: Sequence[str], *, recheck: bool, batch_size: int, workers: int | None, status: Status
    ) -> IndexChanges:
        """Embed files (absolute paths) that are new or have changed, and commit them as they come."""
        if batch_size < 1:
            raise GamlensError(f"batch_size={batch_size}: give at least 1.")
        todo, total = self.unfinished(files, recheck=recheck)
        done = total.unchanged
        status(done, 0)
        if not todo:
            return total
        if self.lens is None:
            raise GamlensError("This index was opened without a lens: Index.open(folder, lens) can embed images.")
        hashes = self.hashes_of_displaced(todo, workers=workers)
        todo, renamed = self.follow_renames(todo, hashes)
        total = total.joined(renamed)
        done += renamed.moved
        status(done, 0)
        waiting: list[EmbeddedFile | BadFile] = []
        since = time.monotonic()
        batches = embed_files(
            self.lens, todo, self.catalogue.by_contents, hashes=hashes, blocks=self.keeps_blocks,
            batch_size=batch_size, workers=workers,
        )  # fmt: skip
        with closing(batches):
            for batch in batches:
                waiting += batch
                if len(waiting) >= COMMIT_EVERY or time.monotonic() - since > COMMIT_SECONDS:
                    total = total.joined(self.commit(waiting))
                    waiting, since = [], time.monotonic()
                done += len(batch)
                status(done, len(total.bad) + sum(isinstance(file, BadFile) for file in waiting))
        return total.joined(self.commit(waiting))

    @property
    def keeps_blocks(self) -> bool:
        """Whether activations are remembered."""
        return bool(self.settings["activations"])

    def unfinished(self, files: Sequence[str], *, recheck: bool) -> tuple[list[str], IndexChanges]:
        """The files (absolute paths) that are new or have changed, and how many have not."""
        known, files = ({} if recheck else self.catalogue.states()), list(dict.fromkeys(files))
        todo = [file for file in files if known.get(file) != file_state(file)]
        again, bad = set(todo), self.catalogue.bad()
        return todo, IndexChanges(unchanged=sum(file not in again and file not in bad for file in files))

    def hashes_of_displaced(
        self, todo: Sequence[str], *, workers: int | None = None
    ) -> dict[tuple[str, FileState], str]:
        """The sha256 of those files that may hold the contents of an image whose own file has others now, or is gone.

        Such a file has as many bytes as that image. {(path, state): sha256}, or "" of a file that cannot be read.
        """
        known = self.catalogue.by_path(todo)
        if not known:  # files at new paths alone displace no image
            return {}
        sizes: dict[int, bool] = {}
        asked: list[tuple[str, FileState]] = []
        for path in todo:
            state = file_state(path)
            if state.bytes not in sizes:
                alike = self.catalogue.of_size(state.bytes)
                sizes[state.bytes] = any(image.path in known or not os.path.exists(image.path) for image in alike)
            if sizes[state.bytes]:
                asked.append((path, state))
        hashed = prefetch(lambda file: attempt(contents_sha256, file[0]), asked, workers=workers)
        return {file: digest if isinstance(digest, str) else "" for file, digest in hashed}

    def follow_renames(
        self, todo: Sequence[str], hashes: Mapping[tuple[str, FileState], str]
    ) -> tuple[list[str], IndexChanges]:
        """Give images the paths where their contents are now, if files were renamed onto each other.

        An image whose own file has other contents now, or is gone, goes with its columns to a file of `todo` that has
        its contents, and whose own image had others. That one goes elsewhere by the same rule, or is removed. All of
        this is one commit, before files are taken in, since an image and the one that takes its place may be far apart.

        Args:
            todo: The files that are new or have changed.
            hashes: What `hashes_of_displaced` found.

        Returns:
            The files that are left to be taken in, and the change.
        """
        here = self.catalogue.by_path(todo)
        now = {path: digest for (path, _), digest in hashes.items()}
        states = dict(hashes.keys())
        places: dict[str, list[str]] = {}
        for path, digest in now.items():
            if digest and (path not in here or here[path].sha256 != digest):
                places.setdefault(digest, []).append(path)
        moved: dict[str, tuple[str, FileState]] = {}
        for digest, images in self.catalogue.by_contents(places).items():
            lost = [
                image.path
                for image in images
                if (now.get(image.path) not in (digest, "") if image.path in here else not os.path.exists(image.path))
            ]
            free = sorted(places[digest], key=here.__contains__)  # a path that no image has before one that has
            moved |= {old: (new, states[new]) for old, new in zip(lost, free, strict=False)}
        taken = {new for new, _ in moved.values()}
        with self.catalogue.transaction() as run:
            removed = self.catalogue.remove(run, [path for path in taken if path in here and path not in moved])
            self.catalogue.move(run, moved)
        return [path for path in todo if path not in taken], IndexChanges(moved=len(moved), removed=removed)

    def commit(self, files: Sequence[EmbeddedFile | BadFile]) -> IndexChanges:
        """Make what became of some files part of the index: all of it, or nothing.

        A file with the contents of an image whose own file is gone has that image's place: it was moved. Other files
        with the contents of an image get a copy of its vector. Images are looked up again here, because earlier commits
        may have changed them since the files were read.
        """
        here = self.catalogue.by_path([file.path for file in files])
        alike = self.catalogue.by_contents([file.sha256 for file in files if isinstance(file, EmbeddedFile)])
        gone: dict[str, list[IndexedImage]] = {}
        bad: dict[str, tuple[FileState, str]] = {}
        reasons: dict[str, str] = {}
        moved: dict[str, tuple[str, FileState]] = {}
        touched: dict[str, tuple[str, FileState]] = {}
        entries: list[tuple[EmbeddedFile, IndexedImage | None]] = []
        for file in files:
            if isinstance(file, BadFile):
                reasons[file.path] = file.reason
                if file.state != NO_FILE or file.path not in here:  # else the image, and its columns, may be back soon
                    bad[file.path] = (file.state, file.reason)
                continue
            own = alike.get(file.sha256, [])
            if file.sha256 not in gone:
                gone[file.sha256] = [image for image in own if not os.path.exists(image.path)]
            if file.path in here and here[file.path].sha256 == file.sha256:
                touched[file.path] = (file.path, file.state)
            elif file.path not in here and gone[file.sha256]:
                moved[gone[file.sha256].pop(0).path] = (file.path, file.state)
            else:
                entries.append((file, next(iter((*own, *file.known)), None)))
        images = self._append(entries)
        with self.catalogue.transaction() as run:
            self.catalogue.move(run, touched | moved)
            self.catalogue.put(run, images)
            self.catalogue.put_bad(run, bad)
            self.catalogue.put_sources(run, self.sources)
            self.catalogue.set(run, {name: self.settings[name] for name in ("end", "blocks_end")})
        changed = sum(image.path in here for image in images)
        return IndexChanges(
            added=len(images) - changed,
            changed=changed,
            moved=len(moved),
            unchanged=len(touched),
            bad=reasons,
            forwards=sum(isinstance(file, EmbeddedFile) and file.vector is not None for file in files),
        )

    def _append(self, entries: Sequence[tuple[EmbeddedFile, IndexedImage | None]]) -> list[IndexedImage]:
        """Write the vectors and activations of files behind all others. They count when the catalogue says so.

        A file that comes with an image of the same contents gets a copy of its vector, and shares its activations.
        """
        if not entries:
            return []
        slot, place = int(self.settings["end"]), int(self.settings["blocks_end"])
        vectors = np.stack([np.asarray(file.vector if own is None else self._vector_of(own)) for file, own in entries])
        if vectors.shape[1] != self.settings["dimension"]:
            raise GamlensError(
                f"The model's embeddings have {vectors.shape[1]} numbers, and those of the index "
                f"{self.settings['dimension']}: make another index with this model."
            )
        try:
            crcs = vector_file.append_vectors(self.folder / vectors_name(self.settings), slot, vectors)
        except vector_file.CutOffError as error:
            raise self.catalogue.damaged(str(error)) from error
        packed, images = [], []
        for number, (file, known) in enumerate(entries):
            block = known.block if known is not None else None
            if known is None and file.block is not None:
                packed.append(vector_file.packed_block(file.block))
                block = (place, len(packed[-1]), vector_file.crc32(packed[-1]))
                place += len(packed[-1])
            height, width = file.frame.original if file.frame is not None else (0, 0)
            frame = vars(file.frame) if file.frame is not None else {}
            image = IndexedImage(
                file.path, file.sha256, file.state, width, height, frame, slot + number, crcs[number], block
            )
            if known is not None:
                image = replace(image, width=known.width, height=known.height, frame=known.frame)
            images.append(image)
        if packed:
            start = int(self.settings["blocks_end"])
            try:
                vector_file.append_at(self.folder / blocks_name(self.settings), start, b"".join(packed))
            except vector_file.CutOffError as error:
                raise self.catalogue.damaged(str(error)) from error
        self.settings |= {"end": slot + len(entries), "blocks_end": place}
        return images

    def _vector_of(self, image: IndexedImage) -> Any:
        """A copy of the vector of an image that the index has."""
        vector = self._vectors(self.settings)[image.slot].copy()
        if vector_file.crc32(vector) != image.crc:
            raise self.catalogue.damaged(f"row {image.slot} of {vectors_name(self.settings)!r} is not what was written")
        return vector

    def _vectors(self, settings: Mapping[str, Any]) -> vector_file.Array:
        try:
            return vector_file.open_vectors(
                self.folder / vectors_name(settings), int(settings["end"]), int(settings["dimension"])
            )
        except GamlensError as error:
            raise self.catalogue.damaged(str(error)) from error

    # What was added before

    def listed(self) -> tuple[list[str], list[str]]:
        """The files of everything that was added, and those folders and globs that are not there any more.

        A source that is not there and is an image of the index itself was a single file: it is no missing folder.
        """
        files: dict[str, None] = {}
        missing = []
        known = self.catalogue.states()
        for source in self.catalogue.sources():
            found = attempt(find_images, [source])
            if isinstance(found, GamlensError):  # no image in it
                missing.append(source)
            elif os.path.exists(source) or glob.has_magic(source):
                files |= dict.fromkeys(map(absolute, found))
            elif source not in known:
                missing.append(source)
        return [file for file in files if os.path.exists(file)], missing

    def vanished(self, files: Sequence[str], missing: Sequence[str]) -> list[str]:
        """Images and bad files of the catalogue that are gone, but for those below folders that are `missing`."""
        there = set(files)
        candidates = (path for path in self.catalogue.states() if path not in there and not os.path.exists(path))
        return [path for path in candidates if not any(_is_of(path, source) for source in missing)]

    def follow_move(self) -> None:
        """If the index was moved together with its images, give them their new paths.

        This is so if the index is in another folder than when it was changed last, and a folder that was added is not
        there any more, but is in the same place beside the index.
        """
        before, now = str(self.settings.get("place", "")), str(self.folder.absolute())
        if not before or before == now:
            return
        known = {image.path: image.state for image in self.catalogue.images().values()}
        with self.catalogue.transaction() as run:
            for source in self.catalogue.sources():
                place = _fixed_part(source)
                new = beside(place, before, now)
                if os.path.exists(place) or not os.path.exists(new):
                    continue
                for path in [path for path in known if lies_below(path, place)]:
                    renamed = new + path[len(place) :]
                    if renamed not in known:  # else it was added at its new place meanwhile
                        known[renamed] = known.pop(path)
                        self.catalogue.move(run, {path: (renamed, known[renamed])})
                self.catalogue.remove_sources(run, [source])
                self.catalogue.put_sources(run, [new + source[len(place) :]])
                self.followed[place] = new
            self.catalogue.set(run, {"place": now})
        self.settings |= {"place": now}  # which a compaction writes

    def now(self, path: str) -> str:
        """Where a path is after `follow_move`, of a user who knows it from before."""
        old = next((old for old in self.followed if lies_below(path, old)), "")
        return self.followed[old] + path[len(old) :] if old else path

    # Keeping the files small and searchable

    def tidy(self, status: Callable[[str], None] = lambda doing: None) -> None:
        """Write the files anew if many rows belong to no image, and bring the approximate index up to date."""
        holes = int(self.settings["end"]) - len(self.catalogue)
        if holes > max(FEW_HOLES, MOST_HOLES * int(self.settings["end"])):
            status("compacting")
            self._compact()
        name = chosen_backend(str(self.settings["backend"]), int(self.settings["end"]))
        if not BACKENDS[name].exact:
            status(f"building the {BACKENDS[name].title} index")
            slots, crcs = self.catalogue.slots()
            check = partial(check_vectors, self.catalogue, self.settings, self._vectors(self.settings), slots, crcs)
            ApproximateFile(self.folder, self.settings, name, check).bring_up_to_date()

    def _compact(self) -> None:
        """Copy the rows in use to new files, and switch to these in one transaction."""
        old, new = self.settings, self.settings | {"generation": int(self.settings["generation"]) + 1}
        images = list(self.catalogue.images().values())
        vectors = self._vectors(old)
        slots = np.array([image.slot for image in images], dtype=np.int64)
        parts = (slots[start : start + COPIED_AT_ONCE] for start in range(0, len(slots), COPIED_AT_ONCE))
        blocks: dict[tuple[int, int, int], int] = {}
        places = dict.fromkeys(image.block for image in images if image.block is not None)
        try:
            write_whole(
                self.folder / vectors_name(new),
                lambda out: [out.write(np.ascontiguousarray(vectors[part]).tobytes()) for part in parts],
            )
            if places:
                write_whole(
                    self.folder / blocks_name(new),
                    lambda out: blocks.update(vector_file.copy_blocks(self.folder / blocks_name(old), places, out)),
                )
        except vector_file.CutOffError as error:
            raise self.catalogue.damaged(str(error)) from error
        except OSError as error:
            raise GamlensError(
                f"The index was changed, but {readable(str(self.folder))!r} could not be made smaller: "
                f"{error.strerror or error}. Free some space; the next change tries it again."
            ) from error
        self.settings = new | {
            "end": len(images),
            "blocks_end": sum(length for _, length, _ in blocks),
        }
        with self.catalogue.transaction() as run:
            self.catalogue.renumber(run, images, blocks)
            self.catalogue.set(run, self.settings)
        self._drop_leftovers()

    def _drop_leftovers(self) -> None:
        """Delete the files of other generations, which a compaction has left."""
        generation = int(self.settings["generation"])
        for file in self.folder.iterdir():
            found = OWN_FILE.fullmatch(file.name)  # other files are a user's
            if found and int(found[found.lastindex or 0]) != generation:
                with suppress(OSError):
                    file.unlink()


def _is_of(path: str, source: str) -> bool:
    """Whether a file is one of a source: below a folder, or one that a glob matches."""
    if lies_below(path, source) or not glob.has_magic(source):
        return lies_below(path, source)
    patterns = (source, source.replace(f"**{os.sep}", ""))  # ** stands for no folder, too
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _fixed_part(source: str) -> str:
    """The part of a glob before its first folder with a wildcard; a source that is none, as it is.

    >>> _fixed_part("/photos/2024-*/a.jpg"), _fixed_part("/photos/cats")
    ('/photos', '/photos/cats')
    """
    while glob.has_magic(source) and not os.path.exists(source):
        source = os.path.dirname(source)
    return source


def beside(source: str, before: str, now: str) -> str:
    """Where a path is if it moved together with the index: in the same place beside the index's folder.

    >>> beside("/old/photos/a.jpg", "/old/shop.gamlens", "/new/place/shop.gamlens")
    '/new/place/photos/a.jpg'
    """
    return os.path.normpath(os.path.join(now, os.path.relpath(source, before)))
