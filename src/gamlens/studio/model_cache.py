"""The models of a studio: those it was started with, and the last few that visitors asked for by name."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import nullcontext, suppress
from weakref import WeakValueDictionary

from gamlens.errors import GamlensError, near
from gamlens.lens import Lens
from gamlens.models import MODELS, from_file, is_python_file
from gamlens.models.devices import AUTO
from gamlens.models.remote_weights import without_downloads

LOADED_MODELS_KEPT = 2
MOST_LOADS = 2  # at the same time
log = logging.getLogger("gamlens.studio")


class ModelCache:
    """Lenses by name. Given Lens objects stay in memory; of the models loaded by name the last two stay.

    The first model, with which every visit begins, is always one of these. A model that is no longer kept stays in
    memory as long as a visitor uses it, and is shared with others who ask for it meanwhile.

    Each model is loaded once, in a thread of its own, however many visitors wait for it; no lock is held meanwhile. A
    load that failed is not remembered: the next request tries again.

    Args:
        given: The models that the studio was started with, each a Lens, a model's name or `file.py:build`.
        any_name: Whether visitors may also load every other model of MODELS, torchvision, timm and so on by name. A
            Python file is run only if it was given at the start, never because a page asked for it.
        device: Where models that are loaded by name run, as Lens(device=...) takes it.
    """

    def __init__(self, given: Mapping[str, Lens | str], *, any_name: bool, device: str = AUTO) -> None:
        if not given:
            raise GamlensError("The studio has no model to show: give a Lens or the name of a model.")
        self.given, self.any_name, self.device = dict(given), any_name, device
        self._kept: OrderedDict[str, Lens] = OrderedDict()
        self._alive: WeakValueDictionary[str, Lens] = WeakValueDictionary()
        self._loading: dict[str, Future[Lens]] = {}
        self._lock = threading.Lock()  # held for moments only, never while a model is loaded
        self._closed = False

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
        return given if isinstance(given, Lens) else self._alive.get(name)

    def lens(self, name: str) -> Lens:
        """The lens of that name. If it is not in memory, wait until it is loaded, after a download where needed."""
        return self.load(name, download=True).result()

    def load(self, name: str, *, download: bool = False) -> Future[Lens]:
        """Begin to load a model, and return at once. The result of the future is the lens, or a GamlensError.

        Args:
            name: The name of the model.
            download: Whether its weights may be downloaded. Otherwise, weights that are not on this machine are a
                DownloadNeededError. If the model is being loaded already, this changes nothing.
        """
        found: Future[Lens] = Future()
        found.set_running_or_notify_cancel()  # a visitor who leaves cannot cancel what others wait for
        try:
            self._check(name)
            with self._lock:
                lens = self.loaded(name)
                if lens is not None:
                    self._keep(name, lens)
                    found.set_result(lens)
                    return found
                if name in self._loading:
                    return self._loading[name]
                self._check_room(name)
                self._loading[name] = found
        except GamlensError as error:
            found.set_exception(error)
            return found
        # A daemon does not keep the process from ending.
        threading.Thread(target=self._load, args=(name, download, found), name=f"load {name}", daemon=True).start()
        return found

    def close(self) -> None:
        """Tell everybody who waits for a model that the studio has ended. Loads that still run lead to nothing."""
        with self._lock:
            self._closed = True
            waiting = list(self._loading.values())
            self._loading.clear()
        for future in waiting:
            with suppress(InvalidStateError):
                future.set_exception(GamlensError("The studio has ended."))

    def _check(self, name: str) -> None:
        """Raise an error if visitors may not have a model of this name."""
        if name not in self.given and not self.any_name:
            raise GamlensError(f"There is no model {name!r} here: {near(name, self.given)}")
        if name not in self.given and is_python_file(name):
            raise GamlensError(
                f"A Python file can only be given at the start, not on the page: gamlens studio --model {name}"
            )

    def _check_room(self, name: str) -> None:
        """Raise an error if no other load may begin now."""
        if self._closed:
            raise GamlensError("The studio has ended.")
        if len(self._loading) >= MOST_LOADS:
            busy = ", ".join(map(repr, self._loading))
            raise GamlensError(
                f"{name!r} cannot be loaded now, because others are being loaded: {busy}. Choose it again when they "
                "are ready."
            )

    def _load(self, name: str, download: bool, found: Future[Lens]) -> None:
        """Load a model, and tell everybody who waits for it, also if the user's code ends with SystemExit."""
        lens: Lens | None = None
        failed: GamlensError | None = None
        try:
            with nullcontext() if download else without_downloads():
                lens = _build(self.given.get(name, name), self.device)
        except GamlensError as error:
            failed = error
        except BaseException as error:  # somebody waits for the answer, even after SystemExit
            log.exception("the model %r could not be loaded", name)
            failed = GamlensError(f"{name!r} could not be loaded: {type(error).__name__}: {error}.")
        with self._lock:
            self._loading.pop(name, None)
            if lens is not None and not self._closed:
                self._keep(name, lens)
        with suppress(InvalidStateError):  # the studio has ended meanwhile, and said so
            found.set_exception(failed) if lens is None else found.set_result(lens)

    def _keep(self, name: str, lens: Lens) -> None:
        """Keep a lens that was loaded by name as the last one used; the least recently used one goes. Hold the lock."""
        if self.given.get(name) is lens:
            return
        self._alive[name] = self._kept[name] = lens
        self._kept.move_to_end(name)
        while len(self._kept) > LOADED_MODELS_KEPT:
            del self._kept[next(other for other in self._kept if other != self.first)]


def _build(model: Lens | str, device: str) -> Lens:
    built = from_file(model) if isinstance(model, str) and ".py:" in model else model
    return built if isinstance(built, Lens) else Lens(built, device=device)
