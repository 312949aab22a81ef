"""Which failures belong to single images of a stream, and which would hit every image."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from gamlens.errors import GamlensError
from gamlens.inputs.batch import ModelInput

OUT_OF_MEMORY = MemoryError, torch.OutOfMemoryError
FoundT = TypeVar("FoundT")


@dataclass
class Witness:
    """Tells whether a failure belongs to some images, or would hit every image, as wrong options or a broken model do.

    It is asked when all decoded images of a group fail. If no image has been explained before, the failure would hit
    every image. Otherwise an image that was explained before is explained again: if it fails now, too, the failure
    would hit every image.

    Attributes:
        explained: Whether any image has been explained, by this stream or by an interrupted one that it continues.
        ready: The first image that this stream explained.
    """

    explained: bool = False
    ready: ModelInput | None = None

    def saw(self, ready: ModelInput) -> None:
        """Remember a copy of an explained image, if it is the first."""
        self.explained = True
        if self.ready is None:
            self.ready = replace(ready, batches=tuple(batch.clone() for batch in ready.batches))

    def general(self, errors: Sequence[Exception], explain: Callable[[ModelInput], Any]) -> Exception | None:
        """Return the error that would hit every image, or None if there is none.

        Args:
            errors: The errors of all decoded images of a group.
            explain: Explains one image.
        """
        if not self.explained or (self.ready is not None and isinstance(tried(explain, self.ready), Exception)):
            return errors[0]
        return None


def tried(call: Callable[..., FoundT], *args: Any) -> FoundT | Exception:
    """Return what call(*args) returns, or the exception that it raises, but raise KeyboardInterrupt and its like.

    An exception holds the local variables of the functions that it passed. If memory is short, they are let go.
    """
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001 - it becomes the error of an image, or `Witness` has it raised
        chain = _chain(error)
        if any(isinstance(one, OUT_OF_MEMORY) for one in chain):
            for one in chain:
                traceback.clear_frames(one.__traceback__)
        return error


def _chain(error: BaseException | None) -> list[BaseException]:
    """An exception, the one that caused it, and so on."""
    return [] if error is None else [error, *_chain(error.__cause__)]


def worded(error: Exception) -> str:
    """The text of an error for a result; that of another library's exception begins with its type."""
    return str(error) if isinstance(error, GamlensError) else f"{type(error).__name__}: {error}"
