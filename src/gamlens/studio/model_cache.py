"""The models of a studio: those it was started with, and the last few that visitors asked for by name."""

import threading
from collections import OrderedDict
from collections.abc import Mapping

from gamlens.errors import GamlensError, near
from gamlens.lens import Lens
from gamlens.models import MODELS, from_file

LOADED_MODELS_KEPT = 2


class ModelCache:
    """Lenses by name. Given Lens objects stay in memory; of the models loaded by name the last two stay.

    Args:
        given: The models that the studio was started with, each a Lens, a model's name or `file.py:build`.
        any_name: Whether visitors may also load every other model of MODELS, torchvision, timm and so on by name. A
            Python file is run only if it was given at the start, never because a page asked for it.
    """

    def __init__(self, given: Mapping[str, Lens | str], *, any_name: bool) -> None:
        if not given:
            raise GamlensError("The studio has no model to show: give a Lens or the name of a model.")
        self.given, self.any_name = dict(given), any_name
        self._loaded: OrderedDict[str, Lens] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def first(self) -> str:
        return next(iter(self.given))

    @property
    def names(self) -> list[str]:
        """The model names in the page's list."""
        return list(dict.fromkeys((*self.given, *(MODELS if self.any_name else ()))))

    def loaded(self, name: str) -> Lens | None:
        """The lens of that name if it is in memory, otherwise None."""
        given = self.given.get(name)
        return given if isinstance(given, Lens) else self._loaded.get(name)

    def lens(self, name: str) -> Lens:
        """The lens of that name. It is loaded if it is not in memory."""
        given = self.given.get(name)
        if isinstance(given, Lens):
            return given
        if given is None and not self.any_name:
            raise GamlensError(f"There is no model {name!r} here: {near(name, self.given)}")
        if given is None and ".py:" in name:
            raise GamlensError(
                f"A Python file can only be given at the start, not on the page: gamlens studio --model {name}"
            )
        with self._lock:
            if name not in self._loaded:
                built = from_file(given) if given is not None and ".py:" in given else given or name
                self._loaded[name] = built if isinstance(built, Lens) else Lens(built)
                if len(self._loaded) > LOADED_MODELS_KEPT:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(name)
            return self._loaded[name]
