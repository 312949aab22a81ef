"""What the tab "Search" searches: an index that the studio was started with, or the example photos."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from gamlens.errors import GamlensError
from gamlens.index.catalogue import OWN_COLUMNS
from gamlens.index.index import Index
from gamlens.lens import Lens
from gamlens.studio.example_photos import OfferedPhotos
from gamlens.studio.hit_thumbnails import UNREADABLE, small_jpeg
from gamlens.studio.uploads import MOST_BYTES

# A visitor shall not find out by filters in which folders of this machine the photos are.
HIDDEN_COLUMNS = ("image.path",)
QUERIES_OFFERED = 5  # photos of an index that visitors can begin with


class SearchedIndexes:
    """The index of each model. An index that the studio was started with belongs to one model only.

    The example photos are embedded by every model that visitors search them with; such an index lies in memory as long
    as a visitor uses it, and that of the first model until the studio ends.

    Args:
        photos: The example photos by name.
        columns: The columns of each example photo, which filters can name.
        given: The index that the studio was started with, opened with its lens.
    """

    def __init__(
        self,
        photos: Mapping[str, Path],
        columns: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        given: Index | None = None,
    ) -> None:
        self.photos, self.columns, self.given = dict(photos), dict(columns or {}), given
        self._alive: WeakValueDictionary[str, Index] = WeakValueDictionary()
        self._first: Index | None = None
        self._lock = threading.Lock()

    @property
    def column_names(self) -> list[str]:
        """The columns that a filter can name."""
        if self.given is not None:
            own = self.given.catalogue.columns()
        else:
            own = list(dict.fromkeys(column for row in self.columns.values() for column in row))
        return [*own, *(column for column in OWN_COLUMNS if column not in HIDDEN_COLUMNS)]

    @property
    def example_filter(self) -> str:
        """A filter to show in an empty field."""
        return "such as kind = 'animal'" if self.given is None else f"such as {self.column_names[0]} = 'red'"

    def of(self, name: str, lens: Lens, *, first: str) -> Index:
        """The index that a visitor with this model searches.

        Args:
            name: The name of the model.
            lens: The model.
            first: The name of the first model: the given index belongs to it, and its index stays in memory.
        """
        if self.given is not None:
            if lens is not self.given.lens:
                raise GamlensError(
                    f"This index was made by {first}, and its vectors can be searched by that model alone. You have "
                    f"chosen {name}: choose {first} under Model, at the top of the page, to go on searching."
                )
            return self.given
        with self._lock:
            found = self._alive.get(name)
            if found is None or found.lens is not lens:
                found = self._alive[name] = self._of_photos(lens)
            if name == first:
                self._first = found
            return found

    def _of_photos(self, lens: Lens) -> Index:
        if not self.photos:
            raise GamlensError(
                "There is nothing to search: install the example photos (pip install 'gamlens[demo]'), or start the "
                "studio with --index."
            )
        files = [str(file) for file in self.photos.values()]
        made = Index.of_gallery(lens.remember(files), lens)
        columns = {str(file): self.columns[name] for name, file in self.photos.items() if name in self.columns}
        with made.catalogue.transaction() as run:
            made.catalogue.put_metadata(run, columns)
        return made

    def offered(self, folder: Path) -> OfferedPhotos:
        """Photos of the given index that visitors can begin with, as {key: (title, [file])}.

        The files are copied into `folder`, from where the page shows them.
        """
        found: OfferedPhotos = {}
        if self.given is None:
            return found
        images = list(self.given.catalogue.images().values())
        for image in images[:: max(1, len(images) // QUERIES_OFFERED)]:
            number, original = len(found), Path(self.given.hit_of(image, 0.0).file)
            file = folder / f"{number}{original.suffix.lower()}"
            with suppress(*UNREADABLE):
                if number < QUERIES_OFFERED and original.stat().st_size <= MOST_BYTES:
                    small_jpeg(str(original))  # raises an error if it cannot be shown
                    shutil.copyfile(original, file)
                    found[f"photo {number + 1}"] = (f"Photo {number + 1}", [file])
        return found
