"""What a search found, and why: both maps of the query and each hit, from remembered activations or from the files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from gamlens.errors import attempt
from gamlens.index.building import NO_FILE, contents_sha256, file_state
from gamlens.index.catalogue import FileState
from gamlens.index.queries import Query


@dataclass(frozen=True)
class Hit:
    """An image that a search found.

    Attributes:
        path: Its file.
        score: Its similarity to the query.
        metadata: Its columns of the table that was added.
        width, height: Of the upright image, in pixels.
        slot: The row of its vector in the index when it was found; a compaction of the index changes it.
        id: Its number in the catalogue, which never changes.
        moved: Where its file is now, if it moved together with the index; "" if it did not.
        state: The size and time of the file when it was indexed.
        sha256: The hash of its contents then; "" if it is not known, as in a temporary index.
    """

    path: str
    score: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
    width: int = 0
    height: int = 0
    slot: int = -1
    id: int = 0
    moved: str = ""
    state: FileState = NO_FILE
    sha256: str = ""

    @property
    def file(self) -> str:
        """Where the file is looked for."""
        return self.moved or self.path

    @property
    def exists(self) -> bool:
        """Whether the file is there, so that it can be shown."""
        return os.path.isfile(self.file)

    @property
    def changed(self) -> bool:
        """Whether the file has other contents than those that were indexed. It is read if its time alone differs."""
        now = file_state(self.file)
        if not self.sha256 or now in (NO_FILE, self.state):
            return False
        if now.bytes != self.state.bytes:
            return True
        digest = attempt(contents_sha256, self.file)
        return isinstance(digest, str) and digest != self.sha256

    @property
    def fault(self) -> str:
        """Why the file cannot be shown as what was found: "gone", or "changed"; "" if it can."""
        if not self.exists:
            return "gone"
        return "changed" if self.changed else ""

    @property
    def record(self) -> dict[str, Any]:
        """The hit as JSON."""
        found = {"file": self.file, "score": self.score, "width": self.width, "height": self.height}
        return {**found, "metadata": dict(self.metadata)}


@dataclass(frozen=True, eq=False)
class Hits(Sequence[Hit]):
    """The hits of one query, best first. A slice, such as `hits[:3]`, is a Hits, too, which `Index.explain` takes.

    Attributes:
        query: What was searched for.
        found: The hits.
        score: The name of the score.
        searched: Among how many images: those that the filter lets through, without the query's own.
        left_out: Files that are left out, because their contents are those of the query.
        seconds: How long the search took, without embedding the query.

    Example:
        >>> from gamlens import Index
        >>> hits = Index.of_gallery(lens.remember([photo, other]), lens).search(photo.rotate(90), top=1)
        >>> len(hits), hits.searched, hits.score
        (1, 2, 'cosine')
    """

    query: Query
    found: tuple[Hit, ...]
    score: str
    searched: int
    left_out: tuple[str, ...] = ()
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.found)

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> Hits: ...
    def __getitem__(self, place: int | slice) -> Hit | Hits:
        return replace(self, found=self.found[place]) if isinstance(place, slice) else self.found[place]

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.found)

    def __repr__(self) -> str:
        best = f", best {self.found[0].score:.4g}" if self.found else ""
        return f"<{len(self)} hits of {self.query.title} by {self.score} among {self.searched}{best}>"
