"""`Index`: a visual search index that stays on disk, grows, filters, and says why it found what it found."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gamlens.errors import GamlensError, near, needs_package, readable, reworded
from gamlens.explanation import PairExplanation
from gamlens.files import claimed, make_folder, sweep
from gamlens.index.backends import BACKENDS
from gamlens.index.building import NO_FILE, contents_sha256, file_state
from gamlens.index.catalogue import CATALOGUE, Catalogue, DescribedImage, IndexedImage, check_column, check_value
from gamlens.index.changes import IndexChanges, Status
from gamlens.index.checking import index_problems
from gamlens.index.cluster_building import CHUNK, add_on_cluster
from gamlens.index.explained_hits import explain_by_traces, remembered_gallery
from gamlens.index.grouped_hits import cluster_hits, duplicate_hits
from gamlens.index.hits import Hit, Hits
from gamlens.index.image_listing import absolute, check_there, find_images, lies_below
from gamlens.index.index_settings import check_identity, check_settings, new_settings
from gamlens.index.queries import PixelBox, PixelPoint, Query, caption_query, combined_query, image_query
from gamlens.index.region_pair import region_pair
from gamlens.index.snapshot import AUTO_BACKEND, Snapshot, chosen_backend
from gamlens.index.writing import IndexWriter, beside
from gamlens.inputs.images import Picture
from gamlens.pairs.pair_trace import PairTrace
from gamlens.refine import Refine
from gamlens.retrieval import Gallery
from gamlens.retrieval.embedding_form import LINEAR_FORM, UNIT_FORM
from gamlens.retrieval.gallery import join_galleries
from gamlens.scores import PAIR_SCORES

if TYPE_CHECKING:
    from gamlens.lens import Lens

INDEX_SUFFIX = ".gamlens"
SEARCHES = 3  # tries of a search while others change the index, before it makes them wait
BATCH_ON_CPU, BATCH_ON_GPU = 8, 32  # images that run together; larger batches do not fit the caches of a CPU


def _no_status(done: int, bad: int) -> None:
    """Tell nobody."""


class Index:
    """Images that were embedded by one model, in a folder on disk, to be searched. Made by `create` or `open`.

    The index is that of one model with its weights and its preprocessing; a lens with others is refused. Any number of
    processes may search while one changes it.

    Example:
        >>> import gamlens, tempfile; folder = tempfile.mkdtemp()
        >>> for name in ("a", "b", "c"): other.rotate(90 * ord(name)).save(f"{folder}/{name}.png")
        >>> index = gamlens.Index.create(f"{folder}/photos.gamlens", lens)
        >>> index.add(folder, metadata={f"{folder}/a.png": {"price": 10}}).added
        3
        >>> hits = index.search(photo, top=2)
        >>> len(hits), index.search(photo, where="price < 20")[0].path.endswith("a.png")
        (2, True)
        >>> index.explain(hits).x.maps.shape
        torch.Size([2, 224, 224])
    """

    def __init__(
        self, folder: Path, catalogue: Catalogue, lens: Lens | None, *, gallery: Gallery | None = None
    ) -> None:
        self.folder, self.catalogue = folder, catalogue
        self._lens, self._gallery = lens, gallery
        self._settings = catalogue.settings()
        self._snapshot: Snapshot | None = None
        self._lock = threading.RLock()

    # Making and opening

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        lens: Lens,
        *,
        activations: bool = False,
        score: str = "cosine",
        backend: str = AUTO_BACKEND,
        made_with: Mapping[str, Any] | None = None,
    ) -> Index:
        """Make a new, empty index.

        Args:
            folder: A folder that does not exist yet, or is empty. Its name usually ends in .gamlens.
            lens: The model.
            activations: Whether the last block of every image is remembered, in half precision, so that hits are
                explained without their files. It takes about as much disk as the images.
            score: By which score images are ranked, a name of PAIR_SCORES, such as "cosine".
            backend: How vectors are searched: a name of `BACKENDS`, or "auto": exactly up to 100,000 images, by
                usearch beyond that.
            made_with: How to make the lens again; the command line notes its options here.
        """
        place = Path(folder)
        PAIR_SCORES[score]  # an unknown name is an error
        if backend != AUTO_BACKEND and not BACKENDS[backend].installed:
            entry = BACKENDS[backend]
            raise GamlensError(needs_package(f"The backend {backend!r}", entry.package, extra=entry.extra))
        if (place / CATALOGUE).exists():
            raise GamlensError(f"{readable(str(place))!r} is an index already: open it, or name another folder.")
        sweep(place)  # what an `add` that was killed has left
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise GamlensError(f"{readable(str(place))!r} exists and is no index: name a folder that does not exist.")
        settings = new_settings(
            lens, activations=activations, score=score, backend=backend, place=place, made_with=made_with or {}
        )
        existed = place.exists()
        make_folder(place)
        try:
            with claimed(place):
                return cls(place, Catalogue.create(place, settings), lens)
        except BaseException:
            if not existed:
                shutil.rmtree(place, ignore_errors=True)
            raise

    @classmethod
    def open(cls, folder: str | os.PathLike[str], lens: Lens | None = None) -> Index:
        """Open an index. Without a lens it can be searched by vectors and changed by `remove`, but not explained."""
        place = Path(folder)
        found = cls(place, Catalogue.open(place), lens)
        try:
            check_settings(found.catalogue, found._settings)
            if lens is not None:
                found.check_lens(lens)
        except BaseException:
            found.close()
            raise
        return found

    @classmethod
    def of_gallery(cls, gallery: Gallery, lens: Lens, *, score: str = "cosine") -> Index:
        """A temporary index of remembered images, in memory: searched and explained as any other."""
        settings = {
            "dimension": gallery.embeddings.shape[1],
            "score": score,
            "backend": AUTO_BACKEND,
            "generation": 1,
            "end": len(gallery),
            "activations": True,
            "place": "",
        }
        catalogue, images, seen = Catalogue.temporary(settings), [], Counter[str]()
        for slot, (picture, frame) in enumerate(zip(gallery.pictures, gallery.frames, strict=True)):
            path = picture.path if picture.path is not None else picture.name
            seen[path] += 1
            state = file_state(path) if picture.path is not None else NO_FILE
            unique = path if seen[path] == 1 else f"{path} ({seen[path]})"
            height, width = frame.original
            images.append(IndexedImage(unique, "", state, width, height, {}, slot, 0))
        with catalogue.transaction() as run:
            catalogue.put(run, images)
        return cls(Path(), catalogue, lens, gallery=gallery)

    def close(self) -> None:
        """Let go of the files of the index."""
        self._snapshot = None
        self.catalogue.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.catalogue)

    def __repr__(self) -> str:
        return f"<Index of {len(self)} images by {self.identity.get('model', '?')}: {readable(str(self.folder))}>"

    @property
    def identity(self) -> dict[str, str]:
        """Which model, weights and preprocessing made the vectors."""
        return dict(self._settings.get("identity", {}))

    @property
    def score(self) -> str:
        """The name of the score by which images are ranked."""
        return str(self._settings["score"])

    @property
    def lens(self) -> Lens:
        """The lens that the index was opened with."""
        if self._lens is None:
            raise GamlensError("This index was opened without a lens: Index.open(folder, lens) can embed and explain.")
        return self._lens

    def check_lens(self, lens: Lens) -> None:
        """Raise an error if the lens has another model, other weights or another preprocessing than the index."""
        check_identity(str(self.folder), self.identity, lens)

    def sources(self) -> list[str]:
        """The folders and files that were added, which `update` looks at again."""
        return self.catalogue.sources()

    # Changing

    def add(
        self,
        images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
        recheck: bool = False,
        batch_size: int | None = None,
        workers: int | None = None,
        status: Status = _no_status,
        skip: Path | None = None,
    ) -> IndexChanges:
        """Add image files. Files that are there already, and have not changed, are not read again.

        Every few hundred images are committed together, so that an `add` that was stopped is continued by the same
        call. Files that cannot be read are listed in the result and in the index.

        Args:
            images: A folder, a file, a glob, or a list of these. `update` looks at them again later.
            metadata: Columns that filters can name: {path: {column: value}}; values are numbers, texts or None.
            recheck: Whether files with the same size and time are read again, too.
            batch_size: How many images are run together; by default 8 on a CPU and 32 on a GPU.
            workers: How many threads read files.
            status: Called with the number of files that are done, and of those that cannot be read.
            skip: A folder of results, of which nothing is taken.
        """
        places = _places(images)
        check_there(places)
        files = [absolute(file) for file in find_images(places, skip=skip)]
        checked = self._checked_metadata(metadata or {})
        with self._changing(sources=places) as (writer, started):
            found = writer.take_in(
                files, recheck=recheck, batch_size=self._batch(batch_size), workers=workers, status=status
            )
            with self.catalogue.transaction() as run:
                self.catalogue.put_sources(run, writer.sources)
                annotated = self.catalogue.put_metadata(run, checked)
            writer.tidy()
        return replace(found, annotated=annotated, seconds=time.monotonic() - started)

    def add_on_cluster(
        self,
        images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        make_lens: Callable[[], Lens],
        *,
        address: str | None = None,
        workers: int | None = None,
        recheck: bool = False,
        batch_size: int | None = None,
        chunk: int = CHUNK,
        status: Status = _no_status,
        skip: Path | None = None,
    ) -> IndexChanges:
        """Add image files as `add` does, embedded by several workers: several GPUs, or a Ray cluster (extra `cluster`).

        An `add_on_cluster` that was stopped is continued by the same call. Every machine must be able to read the files
        and to write into the folder of the index.

        Args:
            images: As `add` takes them.
            make_lens: Makes the lens in every worker, such as `functools.partial(Lens, "resnet50")`; it is pickled.
            address: The address of a Ray cluster. By default one is started on this machine.
            workers: How many workers; by default one per GPU.
            recheck, batch_size, status, skip: As `add` takes them.
            chunk: How many files a part of the work has.
        """
        places = _places(images)
        check_there(places)
        files = [absolute(file) for file in find_images(places, skip=skip)]
        with self._changing(sources=places) as (writer, started):
            check = partial(check_identity, str(self.folder), self.identity)
            found = add_on_cluster(
                writer, files, make_lens, check, recheck=recheck, batch_size=self._batch(batch_size), chunk=chunk,
                workers=workers, address=address, status=status,
            )  # fmt: skip
            with self.catalogue.transaction() as run:
                self.catalogue.put_sources(run, writer.sources)
            writer.tidy()
        return replace(found, seconds=time.monotonic() - started)

    def update(
        self,
        *,
        recheck: bool = False,
        batch_size: int | None = None,
        workers: int | None = None,
        status: Status = _no_status,
    ) -> IndexChanges:
        """Look at everything that was added again: take in new and changed files, take out those that are gone.

        A file that was renamed or moved is known by its contents: it keeps its vector and its metadata. If a folder is
        not there, or holds no image any more, its images stay, and `missing` names it: a disk may not be mounted.
        """
        with self._changing() as (writer, started):
            listed, missing = writer.listed()
            found = writer.take_in(
                listed, recheck=recheck, batch_size=self._batch(batch_size), workers=workers, status=status
            )
            with self.catalogue.transaction() as run:
                removed = self.catalogue.remove(run, writer.vanished(listed, missing))
            writer.tidy()
        removed += found.removed
        return replace(found, removed=removed, missing=tuple(missing), seconds=time.monotonic() - started)

    def remove(
        self, images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (), *, where: str | None = None
    ) -> IndexChanges:
        """Take images out of the index; their files stay. `update` takes a file in again if its folder was added.

        Args:
            images: Files, or folders, of which all images are taken out. A folder that was added is forgotten, too.
            where: Take out those that this filter lets through.
        """
        places = [absolute(place) for place in _places(images)]
        if not places and where is None:
            raise GamlensError("Say what to remove: files, folders, or where=.")
        with self._changing() as (writer, started):
            known = list(self.catalogue.states())
            places = [writer.now(place) for place in places]
            chosen: dict[str, None] = {}
            for place in places:
                own = [path for path in known if lies_below(path, place)]
                if not own and place not in self.catalogue.sources():
                    raise GamlensError(f"There is no image {readable(place)!r} in the index: {near(place, known)}")
                chosen |= dict.fromkeys(own)
            if where is not None:
                slots = self.catalogue.matching(where)
                chosen |= dict.fromkeys(image.path for image in self.catalogue.images(slots.tolist()).values())
            with self.catalogue.transaction() as run:
                removed = self.catalogue.remove(run, chosen)
                self.catalogue.remove_sources(run, places)
            writer.tidy()
        return IndexChanges(removed=removed, seconds=time.monotonic() - started)

    def annotate(self, metadata: Mapping[str, Mapping[str, Any]]) -> int:
        """Set columns of images, {path: {column: value}}, that filters can name. Returns of how many images."""
        checked = self._checked_metadata(metadata)
        with self._changing() as (writer, _), self.catalogue.transaction() as run:
            return self.catalogue.put_metadata(run, {writer.now(path): row for path, row in checked.items()})

    def follow_move(self) -> None:
        """If the index was moved together with its images, write down their new paths, as every change does first."""
        with self._changing():
            pass

    @contextmanager
    def _changing(self, *, sources: Sequence[str] = ()) -> Iterator[tuple[IndexWriter, float]]:
        """Hold the index for one change; another process, or thread, that changes it is refused meanwhile.

        If the index was moved together with its images, they have their new paths first. `sources` are being added.
        """
        if self._gallery is not None:
            raise GamlensError("This index is a temporary one, of a gallery in memory: make one by Index.create.")
        started = time.monotonic()
        with claimed(self.folder):
            if self._lens is not None:
                self.check_lens(self._lens)
            writer = IndexWriter(
                self.folder, self.catalogue, self._lens, sources=[absolute(place) for place in sources]
            )
            writer.follow_move()
            yield writer, started
            self._settings = self.catalogue.settings()

    def _batch(self, size: int | None) -> int:
        """How many images run together."""
        if size is None:
            return BATCH_ON_GPU if self._lens is not None and self._lens.device.type != "cpu" else BATCH_ON_CPU
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise GamlensError(f"batch_size={size!r}: give a whole number of images, at least 1.")
        return int(size)

    def _checked_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        found = {
            absolute(path): {
                column: value.item() if isinstance(value, np.generic) else value for column, value in row.items()
            }
            for path, row in metadata.items()
        }
        columns = list(dict.fromkeys(column for row in found.values() for column in row))
        for column in columns:
            check_column(column, [*columns, *self.catalogue.columns()])
        for path, row in found.items():
            for column, value in row.items():
                check_value(value, f"The value of {readable(column)!r} for {readable(path)!r}")
        return found

    # Searching

    def query(
        self,
        image: Any = None,
        *,
        text: str | None = None,
        box: PixelBox | None = None,
        point: PixelPoint | None = None,
        refine: Refine = False,
    ) -> Query:
        """What to search for: an image, a region of it, or a caption. Runs the model once.

        Args:
            image: One image, as `Lens` takes it.
            text: A caption, for a model that has a text half. Give an image or a caption.
            box: A region of the image, x0,y0,x1,y1 in pixels of the original.
            point: A point of the image, x,y: the position of the last block that lies there.
            refine: By which earlier blocks maps of the query will be refined.
        """
        if (image is None) == (text is None):
            raise GamlensError("A query is an image or text=: give one of them.")
        if text is not None:
            return caption_query(self.lens, text)
        return image_query(self.lens, image, box=box, point=point, refine=refine)

    def search(
        self,
        query: Any = None,
        *,
        plus: Sequence[Any] = (),
        minus: Sequence[Any] = (),
        text: str | None = None,
        box: PixelBox | None = None,
        point: PixelPoint | None = None,
        top: int = 10,
        where: str | None = None,
        with_self: bool = False,
    ) -> Hits:
        """Find the images that are most similar to a query.

        Args:
            query: One image, as `Lens` takes it, or what `query` returned.
            plus: Further images or queries that hits shall be like.
            minus: Images or queries that hits shall be unlike.
            text: A caption that hits shall fit, for a model that has a text half.
            box, point: A region of the first image to search for, as `query` takes it.
            top: How many hits at most.
            where: A filter on the columns of the table that was added, such as "price < 50 and colour = 'red'".
                image.path, image.name, image.width, image.height and image.bytes can be named, too.
            with_self: Whether files with the same contents as the query may be hits.
        """
        if isinstance(top, bool) or not isinstance(top, int | np.integer) or top < 1:
            raise GamlensError(f"top={top!r}: give the number of hits wanted, at least 1.")
        if query is None and (box is not None or point is not None):
            raise GamlensError("box= and point= belong to an image: give one as the query.")
        first = [self._as_query(query, box=box, point=point)] if query is not None else []
        speak_for = [*first, *map(self._as_query, plus), *([self.query(text=text)] if text is not None else [])]
        whole = combined_query(speak_for, [self._as_query(one) for one in minus], score=self.score)
        return self._nearest(whole, top=int(top), where=where, with_self=with_self)

    def _as_query(self, one: Any, **region: Any) -> Query:
        if not isinstance(one, Query):
            return self.query(one, **region)
        if any(part is not None for part in region.values()):
            raise GamlensError("box= and point= belong to an image: make the query of this region by `query`.")
        return one

    def _nearest(self, query: Query, *, top: int, where: str | None, with_self: bool) -> Hits:
        """The hits at one moment: if another process changes rows of them meanwhile, it is searched again."""
        started = time.perf_counter()
        search = partial(self._nearest_now, query, top=top, where=where, with_self=with_self)
        found, tries = search(), 1
        while found is None and tries < SEARCHES:
            found, tries = search(), tries + 1
        if found is None:
            with self._lock, self.catalogue.at_one_moment():  # until its end no change is committed
                found = search()
        assert found is not None
        return replace(found, seconds=time.perf_counter() - started)

    def _has_rows_of(self, now: Snapshot) -> bool:
        """Whether rows still have the numbers of a snapshot: another process may have compacted the index meanwhile."""
        return bool(self.catalogue.generation() == now.settings["generation"])

    def _nearest_now(self, query: Query, *, top: int, where: str | None, with_self: bool) -> Hits | None:
        """The hits; None if the index was changed meanwhile so that rows of them are gone or belong to others."""
        now = self.snapshot()
        if len(query.vector) != now.vectors.shape[1]:
            raise GamlensError(
                f"The query has {len(query.vector)} numbers, and the vectors of the index have {now.vectors.shape[1]}: "
                "search with the model that made the index."
            )
        PAIR_SCORES[self.score].require_defined(torch.from_numpy(query.vector)[None], "query", (0,))
        allowed = now.alive if where is None else now.matching(self.catalogue, where)
        own = {} if with_self else self._same_contents(query.files)
        if own:
            allowed = allowed.copy()
            allowed[[slot for slot in own if slot < len(allowed)]] = False
        many = int(np.count_nonzero(allowed))
        found, values = now.search.search(
            query.vector[None], min(top, many) or 1, None if many == now.search.rows else allowed
        )
        ranked = [(int(slot), float(value)) for slot, value in zip(found[0], values[0], strict=True) if slot >= 0]
        images = self.catalogue.described([slot for slot, _ in ranked])
        if len(images) < len(ranked) or not self._has_rows_of(now):
            return None
        hits = tuple(self._hit(images[slot], slot, value) for slot, value in ranked)
        return Hits(query, hits, self.score, many, tuple(own.values()))

    def hit_of(self, image: IndexedImage, value: float) -> Hit:
        """An image of the index as a hit without metadata, where its file is now."""
        known = DescribedImage(image.id, image.path, image.width, image.height, {}, image.state, image.sha256)
        return self._hit(known, image.slot, value)

    def _hit(self, image: DescribedImage, slot: int, value: float) -> Hit:
        moved = ""
        before, now = str(self._settings.get("place", "")), str(self.folder.absolute())
        if before and before != now and not os.path.exists(image.path):
            other = beside(image.path, before, now)
            moved = other if os.path.exists(other) else ""
        return Hit(
            image.path, value, image.metadata, image.width, image.height, slot, image.id, moved, image.state,
            image.sha256,
        )  # fmt: skip

    def _same_contents(self, files: Sequence[str]) -> dict[int, str]:
        """The slots and paths of images whose files have the same contents as one of `files`."""
        found: dict[int, str] = {}
        for file in files:
            state = file_state(file)
            alike = self.catalogue.of_size(state.bytes) if state.bytes >= 0 else []
            if alike:
                digest = contents_sha256(file)
                for image in alike:
                    own = image.sha256 or (contents_sha256(image.path) if os.path.isfile(image.path) else "")
                    if own == digest:
                        found[image.slot] = image.path
        return found

    def snapshot(self) -> Snapshot:
        """The rows and vectors as they are now; read again only if somebody has changed the index."""
        with self._lock:
            if self._snapshot is None or not self._snapshot.is_current(self.catalogue):
                given = None
                if self._gallery is not None:
                    given = self._gallery.embeddings.detach().float().cpu().numpy()
                self._snapshot = Snapshot(self.catalogue, given, checked=given is None, before=self._snapshot)
                self._settings = self._snapshot.settings
            return self._snapshot

    # Explaining

    def explain(
        self,
        hits: Hits,
        *,
        method: str = "gam",
        n: int = 1,
        fuse: Any = "mean",
        lattice: str = "read",
        refine: Refine = False,
        sign: str | None = None,
        side: int = 0,
    ) -> PairExplanation:
        """Both maps of the query and each hit, one row per hit, in their order.

        With n = 1, neither a forward nor a backward is run for hits whose activations the index remembers, if the
        embedding is an average over positions; other hits are read from their files and run once.

        Args:
            hits: What `search` found, or a Hits with some of it. One whose file has changed since it was indexed is an
                error; `Hit.changed` tells.
            method, n, fuse, lattice, refine: As `Lens.compare_many` takes them.
            sign: As `Lens.compare` takes it: maps with a sign, by a forward of the query and each hit. So are the maps
                of a region if n is more than 1, or if they are refined.
            side: Of a query that consists of several images, which one: 0 is the first that speaks for it.
        """
        if not hits.query.sides:
            raise GamlensError("A caption has no map of its own: Lens.compare_text explains the hits by it.")
        if not 0 <= side < len(hits.query.sides):
            raise GamlensError(f"side={side}: the query consists of {len(hits.query.sides)} images.")
        if not len(hits):
            raise GamlensError("There is no hit to explain.")
        whole = hits.query.region_of(side) is None
        if sign is not None or not (
            whole or (n == 1 and not refine)
        ):  # only a trace knows the region in earlier blocks
            return explain_by_traces(
                self, hits, side, sign, method=method, n=n, fuse=fuse, lattice=lattice, refine=refine
            )
        while True:
            now = self.snapshot()
            found = self.gallery(self.slots_now(hits), refine=refine)
            if self._has_rows_of(now):
                break
        return self.lens.compare_many(
            hits.query.sides[side],
            found,
            pairs=[(0, number) for number in range(len(hits))],
            score=self.score,
            method=method,
            n=n,
            fuse=fuse,
            lattice=lattice,
            refine=refine,
        )

    def trace(
        self,
        hits: Hits,
        number: int = 0,
        *,
        side: int = 0,
        n: int | None = None,
        method: Any = "gam",
        refine: Refine = False,
    ) -> PairTrace:
        """The query and one hit as a pair, by a forward of both: for signed maps, matches of points, interactions.

        If the query is a region, the pair is that of this region and the hit.
        """
        if not hits.query.sides:
            raise GamlensError("A caption is no image, so it is half of no pair.")
        x, y = hits.query.sides[side].pictures[0], self.picture_of(self.slots_now([hits[number]])[0])
        found = self.lens.trace_pair(x, y, n=n, method=method, refine=refine)
        return region_pair(found, hits.query, side)

    def slots_now(self, hits: Sequence[Hit]) -> list[int]:
        """The rows of hits as they are now; a compaction of the index since the search has changed them."""
        if self._gallery is not None:
            return [hit.slot for hit in hits]
        images = self.catalogue.by_id([hit.id for hit in hits])
        if lost := [hit for hit in hits if hit.id not in images]:
            raise GamlensError(f"{readable(lost[0].path)!r} is not in the index any more: search again.")
        return [images[hit.id].slot for hit in hits]

    def gallery(self, slots: Sequence[int], *, refine: Refine = False) -> Gallery:
        """Images of the index as a Gallery, in the order of `slots`: as it remembers them, or run from their files."""
        if self._gallery is not None:
            return self._gallery[list(slots)]
        parts: dict[int, Gallery] = {}
        with self._lock, self.catalogue.at_one_moment():  # until its end no compaction can delete a file
            images = self.catalogue.images(slots)
            if lost := [slot for slot in slots if slot not in images]:
                raise GamlensError(f"Row {lost[0]} of the index belongs to no image any more: search again.")
            known = [slot for slot in slots if images[slot].block is not None and not refine]
            if known and self._settings["law"] in (LINEAR_FORM, UNIT_FORM):
                remembered = remembered_gallery(self, [images[slot] for slot in known])
                parts = {slot: remembered[number] for number, slot in enumerate(known)}
        rest = [slot for slot in dict.fromkeys(slots) if slot not in parts]
        if rest:
            files = [self._file_of(images[slot]) for slot in rest]
            run = self.lens.remember(files, refine=refine)
            parts |= {slot: run[number] for number, slot in enumerate(rest)}
        return join_galleries([parts[slot].to(self.lens.device) for slot in slots])

    def picture_of(self, slot: int) -> Picture:
        """The image of a row, by its file."""
        if self._gallery is not None:
            return self._gallery.pictures[slot]
        images = self.catalogue.images([slot])
        if slot not in images:
            raise GamlensError(f"Row {slot} of the index belongs to no image any more: search again.")
        return self._file_of(images[slot])

    def _file_of(self, image: IndexedImage) -> Picture:
        """The file of an image. One that has changed is an error: no map of it would say why the image was found."""
        hit = self.hit_of(image, 0.0)
        if hit.changed:
            raise GamlensError(
                f"{readable(hit.file)!r} has changed since it was indexed: run `gamlens index update "
                f"{readable(str(self.folder))}`, and search again."
            )
        return Picture(Path(hit.file).name, path=hit.file)

    @property
    def is_temporary(self) -> bool:
        """Whether this index is of a gallery in memory."""
        return self._gallery is not None

    @property
    def made_with(self) -> dict[str, Any]:
        """How to make the lens again, as `create` was told."""
        return dict(self._settings.get("made_with", {}))

    # Groups

    def duplicates(self, threshold: float = 0.97, *, status: Status = _no_status) -> list[list[Hit]]:
        """Groups of images that are nearly the same, largest first.

        Two images are in one group if a chain of images leads from one to the other, each of which has a cosine of at
        least `threshold` with the next. The score of an image is its largest cosine with another one of the group.
        """
        return duplicate_hits(self, threshold, status=status)

    def clusters(self, count: int, *, seed: int = 0, status: Status = _no_status) -> list[list[Hit]]:
        """Divide the images into groups by the directions of their vectors (spherical k-means), largest first.

        In a group the image that is nearest to the middle comes first; scores are cosines with the middle.
        """
        return cluster_hits(self, count, seed=seed, status=status)

    # About the index

    def info(self) -> dict[str, Any]:
        """What the index is and holds, as JSON."""
        settings = self.catalogue.settings()
        sizes = {file.name: file.stat().st_size for file in sorted(self.folder.iterdir()) if file.is_file()}
        return {
            "folder": str(self.folder),
            "images": len(self),
            "bad": self.catalogue.bad(),
            "sources": self.catalogue.sources(),
            "columns": self.catalogue.columns(),
            "dimension": settings["dimension"],
            "score": settings["score"],
            "backend": chosen_backend(str(settings["backend"]), int(settings["end"])),
            "activations": settings["activations"],
            "embedding_form": settings["law"],
            "made_with": settings["made_with"],
            "identity": self.identity,
            "bytes": sum(sizes.values()),
            "files": sizes,
        }

    def check(self) -> list[str]:
        """Read everything and say what is damaged: files, vectors and activations that are not what was written."""
        return index_problems(self.catalogue)


def _places(images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    with reworded("An index holds image files: give paths", TypeError):
        given = [images] if isinstance(images, str | os.PathLike) else list(images)
        return [os.fspath(place) for place in given]
