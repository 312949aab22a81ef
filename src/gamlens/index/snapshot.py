"""What a reader sees of an index between two changes: the rows in use, their vectors, and how they are searched."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gamlens.errors import GamlensError
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
            self.slots, crcs = catalogue.slots()
            end = int(self.settings["end"])
            try:
                if (vectors := given) is None:
                    file = catalogue.folder / vectors_name(self.settings)
                    vectors = vector_file.open_vectors(file, end, int(self.settings["dimension"]))
            except GamlensError as error:
                raise catalogue.damaged(str(error)) from error
        self.vectors = vectors
        if len(self.slots) and not (int(self.slots[0]) >= 0 and int(self.slots[-1]) < end):
            raise catalogue.damaged(f"images have the rows {int(self.slots[0])} to {int(self.slots[-1])} of {end}")
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


def check_vectors(
    catalogue: Catalogue, settings: Mapping[str, Any], vectors: Array, slots: Array, crcs: Array, start: int = 0
) -> None:
    """Raise an error if a vector of a row in use, from row `start` on, does not have its checksum."""
    fresh = slots >= start
    if bad := vector_file.damaged_vectors(vectors, slots[fresh], crcs[fresh]):
        raise catalogue.damaged(
            f"{len(bad)} vectors in {vectors_name(settings)!r} are not what was written (row {bad[0]})"
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
        """The approximate index of all rows; rows that the file does not have yet are added in memory."""
        score = str(self.settings["score"])
        if not self.path.exists():
            self.check(0)
            return self.backend.make(vectors, score)
        try:
            found = self.backend.load(self.path, vectors, score)
        except GamlensError:
            self.check(0)
            raise
        self.check(found.rows)
        found.add(vectors)
        return found

    def bring_up_to_date(self) -> None:
        """Write the file anew if it does not have all rows."""
        end, dimension = int(self.settings["end"]), int(self.settings["dimension"])
        vectors = vector_file.open_vectors(self.folder / vectors_name(self.settings), end, dimension)
        score = str(self.settings["score"])
        found: VectorSearch | None = None
        if self.path.exists() and self.backend.installed:
            with suppress(GamlensError):  # a file that cannot be read is made anew
                found = self.backend.load(self.path, vectors, score)
        if found is not None and found.rows == end:
            return
        self.check(0 if found is None else found.rows)
        if found is None:
            found = self.backend.make(vectors, score)
        else:
            found.add(vectors)
        found.save(self.path)
