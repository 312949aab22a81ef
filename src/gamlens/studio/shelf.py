"""The models on offer: given ones stay, those asked for by name are loaded once and let go when others come."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from gamlens.errors import GamlensError, near
from gamlens.lens import Lens
from gamlens.models import MODELS, from_file

KEPT = 2
FILE = ".py:"


class Shelf:
    """Lenses by name. `anything` lets a visitor ask for every model that has a name, beside those given.

    A file of Python is run only where it was given at the start, never because a page asked for it.
    """

    def __init__(self, given: Mapping[str, Lens | str], *, anything: bool) -> None:
        if not given:
            raise GamlensError("The studio has no model to show: give a Lens or a name.")
        self.given, self.anything = dict(given), anything
        self._loaded: OrderedDict[str, Lens] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def first(self) -> str:
        return next(iter(self.given))

    @property
    def names(self) -> list[str]:
        """What the page's list shows."""
        return list(dict.fromkeys((*self.given, *(MODELS if self.anything else ()))))

    def ready(self, name: str) -> Lens | None:
        """The lens of that name where it is loaded."""
        given = self.given.get(name)
        return given if isinstance(given, Lens) else self._loaded.get(name)

    def lens(self, name: str) -> Lens:
        """The lens of that name, loaded now or before."""
        given = self.given.get(name)
        if isinstance(given, Lens):
            return given
        if given is None and not self.anything:
            raise GamlensError(f"There is no model {name!r} here: {near(name, self.given)}")
        if given is None and FILE in name:
            raise GamlensError(f"A file is given at the start, not here: gamlens studio --model {name}")
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = load(given or name)
                if len(self._loaded) > KEPT:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(name)
            return self._loaded[name]


def load(text: str) -> Lens:
    """A Lens from a registered name or from `file.py:build`, which gives a model or a whole Lens."""
    built = from_file(text) if FILE in text else text
    return built if isinstance(built, Lens) else Lens(built)
