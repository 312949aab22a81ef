"""What a reader sees of an index between two changes: the rows in use, their vectors, and how they are searched."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gamlens.errors import GamlensError, attempt, readable, warn
from gamlens.index import vector_file
from gamlens.index.backends import BACKENDS, VectorSearch, automatic_backend
from gamlens.index.catalogue import Catalogue
from gamlens.index.vector_file import Array

AUTO_BACKEND = "auto"
MASKS_KEPT = 8


def chosen_backend(setting: str, rows: int) -> str:
    """The name of the backend that searches an index of so many rows, by its setting."""
    return automatic_backend(rows) if setting == AUTO_BACKEND else setting


def vectors_name(settings: Mapping[str, Any]) -> str:
    """The file of the vectors."""
    return f"vectors-{settings['generation']}.f32"


def blocks_name(settings: Mapping[str, Any]) -> str:
    """The file of the remembered activations."""
    return f"activations-{settings['generation']}.bin"


class Snapshot:
    """The images of an index as they are now. It stays as it is; `is_current` says whether a newer one is wanted.

    Attributes:
        settings: The settings of the index.
        slots: The rows in use, ascending, (N,).
        vectors: All rows, those that are in no use included, (end,D).
        alive: Which rows are in use, bool (end,).
        backend: The name of the backend that searches them.
        search: The backend.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        given: Array | None = None,
        *,
        checked: bool = True,
        before: Snapshot | None = None,
    ) -> None:
        with catalogue.at_one_moment():  # until its end no compaction can delete the file of the vectors
            self.version = catalogue.version()
            self.settings = catalogue.settings()
            vectors, self.slots, crcs = read_rows(catalogue, self.settings, given)
        self.vectors, end = vectors, len(vectors)
        self.alive = np.zeros(end, dtype=bool)
        self.alive[self.slots] = True
        self.backend = chosen_backend(str(self.settings["backend"]), end)
        self._masks: OrderedDict[str, Array] = OrderedDict()
        known = before if before is not None and before.is_continued_by(self) else None
        exact = BACKENDS[self.backend].exact
        check = partial(check_vectors, catalogue, self.settings, vectors, self.slots, crcs)
        if checked and (exact or known is not None):
            check(len(known.alive) if known is not None else 0)
        score = str(self.settings["score"])
        if known is not None:
            self.search: VectorSearch = known.search
            self.search.add(vectors)
        elif exact:
            self.search = BACKENDS[self.backend].make(vectors, score)
        else:
            file_check = check if given is None else no_check
            self.search = ApproximateFile(catalogue.folder, self.settings, self.backend, file_check).read(vectors)

    def is_continued_by(self, other: Snapshot) -> bool:
        """Whether another snapshot, with its vectors, only has further rows, so that the same search can be extended.

        Rows are never used twice, so the old ones are the same.
        """
        same = all(self.settings[name] == other.settings[name] for name in ("generation", "score"))
        return same and self.backend == other.backend and len(self.alive) <= len(other.alive)

    def matching(self, catalogue: Catalogue, where: str) -> Array:
        """Which rows a filter lets through, bool (end,). The last few filters are remembered."""
        if where not in self._masks:
            mask = np.zeros_like(self.alive)
            slots = catalogue.matching(where)
            mask[slots[slots < len(mask)]] = True
            self._masks[where] = mask & self.alive
            while len(self._masks) > MASKS_KEPT:
                self._masks.popitem(last=False)
        return self._masks[where]

    def is_current(self, catalogue: Catalogue) -> bool:
        """Whether nobody has changed the index since."""
        return self.version == catalogue.version()


def read_rows(
    catalogue: Catalogue, settings: Mapping[str, Any], given: Array | None = None
) -> tuple[Array, Array, Array]:
    """All vectors (end,D), which rows of them are in use, ascending (N,), and the CRC-32 of each of these (N,)."""
    slots, crcs = catalogue.slots()
    end = int(settings["end"])
    try:
        file = catalogue.folder / vectors_name(settings)
        vectors = vector_file.open_vectors(file, end, int(settings["dimension"])) if given is None else given
    except GamlensError as error:
        raise catalogue.damaged(str(error)) from error
    if len(slots) and not (int(slots[0]) >= 0 and int(slots[-1]) < end):
        raise catalogue.damaged(f"images have the rows {int(slots[0])} to {int(slots[-1])} of {end}")
    return vectors, slots, crcs


def check_vectors(
    catalogue: Catalogue, settings: Mapping[str, Any], vectors: Array, slots: Array, crcs: Array, start: int = 0
) -> None:
    """Raise an error if a vector of a row in use, from row `start` on, does not have its checksum."""
    fresh = slots >= start
    if bad := vector_file.damaged_vectors(vectors, slots[fresh], crcs[fresh]):
        raise catalogue.damaged(
            f"{len(bad)} of {len(slots)} vectors in {vectors_name(settings)!r} are not what was written (row {bad[0]})"
        )


def no_check(start: int = 0) -> None:
    """Check nothing."""


class ApproximateFile:
    """The file of an approximate index. It is made of the vectors alone, and can be deleted at any time.

    Args:
        folder: The folder of the index.
        settings: Its settings.
        name: The backend.
        check: Raises an error if vectors of the row `start` or later ones are damaged; called before they are given to
            the backend, and if the file does not fit the vectors.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], name: str, check: Callable[[int], None] = no_check
    ) -> None:
        self.backend, self.settings = BACKENDS[name], settings
        self.folder, self.check = folder, check
        self.path = folder / f"{name}-{settings['generation']}.ann"

    def read(self, vectors: Array) -> VectorSearch:
        """The approximate index of all rows; rows that the file does not have yet are added in memory.

        Without a file that can be used, all of it is built in memory.
        """
        found = self.loaded(vectors)
        if found is not None and not isinstance(found, GamlensError):
            self.check(found.rows)
            found.add(vectors)
            return found
        self.check(0)
        made = self.backend.make(vectors, str(self.settings["score"]))
        if found is not None:
            warn(
                f"{found} This was done in memory now, and is done whenever the index is opened, until `gamlens index "
                f"update {readable(str(self.folder))}` has written the file."
            )
        return made

    def loaded(self, vectors: Array) -> VectorSearch | GamlensError | None:
        """What the file holds; the error if it cannot be used, and None if there is no file."""
        if not self.path.exists():
            return None
        return attempt(self.backend.load, self.path, vectors, str(self.settings["score"]))

    def bring_up_to_date(self) -> None:
        """Write the file anew if it does not have all rows."""
        end, dimension = int(self.settings["end"]), int(self.settings["dimension"])
        vectors = vector_file.open_vectors(self.folder / vectors_name(self.settings), end, dimension)
        score = str(self.settings["score"])
        found = self.loaded(vectors)
        if found is None or isinstance(found, GamlensError):  # a file that cannot be used is made anew
            self.check(0)
            found = self.backend.make(vectors, score)
        elif found.rows < end:
            self.check(found.rows)
            found.add(vectors)
        else:
            return
        found.save(self.path)
