"""Weights on other machines: whether this machine has them already, and what is checked before a download begins."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import torch

from gamlens.data.reading import import_extra
from gamlens.errors import GamlensError
from gamlens.models.checkpoint import OTHERS

REACH_SECONDS = 5.0
PASS_A_FILE = f"Offline, pass a file: that one, downloaded elsewhere, as {OTHERS}"
_allowed: ContextVar[bool] = ContextVar("gamlens_downloads_allowed", default=True)


@dataclass(frozen=True)
class RemoteWeights:
    """The file of a model's pretrained weights on another machine.

    Attributes:
        name: The name of the model.
        url: The address of the file.
        file: The copy on this machine; None if there is none.
        on_hub: Whether the package huggingface_hub downloads it; otherwise torch.hub does.
        megabytes: A function that tells the size of the file, or None if it is not known before the download.
        instead: What the user can do without a network, for the error.
    """

    name: str
    url: str
    file: Path | None
    on_hub: bool
    megabytes: Callable[[], float | None] = lambda: None
    instead: str = PASS_A_FILE


class DownloadNeededError(GamlensError):
    """The weights of a model must be downloaded, which `without_downloads` forbids. Nothing was requested yet."""

    def __init__(self, remote: RemoteWeights) -> None:
        size = remote.megabytes()
        what = "a file of unknown size" if size is None else f"about {max(1, round(size))} MB"
        super().__init__(
            f"{remote.name} would download {what} from {urlsplit(remote.url).netloc}; it is not on this machine."
        )
        self.name = remote.name


@contextmanager
def without_downloads() -> Iterator[None]:
    """In this context and thread, weights are read from this machine only, and the network is not used at all.

    A model whose weights are not on this machine raises DownloadNeededError.
    """
    before = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(before)


def downloads_allowed() -> bool:
    """Whether this code runs outside `without_downloads`."""
    return _allowed.get()


def must_read_copy(remote: RemoteWeights) -> bool:
    """Check, before anything is downloaded, where weights are to be read from.

    The packages that download weights try an address again and again, for up to a minute per file; so the address is
    tried once here, for a few seconds.

    Returns:
        True if the copy on this machine must do: downloads are forbidden, or the other machine cannot be reached.
        False if the other machine answers.

    Raises:
        DownloadNeededError: If there is no copy, and downloads are forbidden.
        GamlensError: If there is no copy, and the other machine cannot be reached.
    """
    if not downloads_allowed():
        if remote.file is None:
            raise DownloadNeededError(remote)
        return True
    problem = _unreachable(remote)
    if problem and remote.file is None:
        raise GamlensError(
            f"The weights of {remote.name} could not be downloaded: they are not on this machine, and {remote.url} "
            f"cannot be reached ({problem}). {remote.instead}"
        )
    return bool(problem)


def at_url(name: str, url: str, megabytes: float | None = None) -> RemoteWeights:
    """A file that torch.hub downloads, into its folder `checkpoints`."""
    copy = Path(torch.hub.get_dir(), "checkpoints", Path(urlsplit(url).path).name)
    instead = (
        f"Offline, pass a file: {copy.name}, downloaded elsewhere, as weights='{copy.name}' or --weights {copy.name}, "
        f"or put it into the folder where torch looks for it, {str(copy.parent)!r}. Another file is given as {OTHERS}"
    )
    here = copy if copy.is_file() else None
    return RemoteWeights(name, url, here, on_hub=False, megabytes=lambda: megabytes, instead=instead)


def on_hub(
    name: str,
    repository: str,
    files: Sequence[str],
    *,
    megabytes: Callable[[], float | None] = lambda: None,
    instead: str = PASS_A_FILE,
) -> RemoteWeights:
    """A file of a repository of the Hugging Face hub.

    Args:
        name: The name of the model.
        repository: `owner/name` or `owner/name@revision`.
        files: The names that the file can have; the first one is wanted most.
        megabytes: Tells the size of the file.
        instead: What the user can do without a network.
    """
    hub = _hub()
    place, _, revision = repository.partition("@")
    found = (hub.try_to_load_from_cache(place, file, revision=revision or None) for file in files)
    copy = next((Path(file) for file in found if isinstance(file, str)), None)
    url = hub.hf_hub_url(place, files[0], revision=revision or None)
    return RemoteWeights(name, url, copy, on_hub=True, megabytes=megabytes, instead=instead)


def _hub() -> Any:
    return import_extra("huggingface_hub", "This model", extra="hf")


def _unreachable(remote: RemoteWeights) -> str:
    """Why the other machine cannot be reached; "" if it answers, whatever it answers.

    The request is made by the package that downloads, with its proxies and certificates. It runs in a thread because
    looking up a host name has no time limit of its own.
    """
    if remote.on_hub and _hub().constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    answers: list[str] = []

    def ask() -> None:
        try:
            (_ask_hub if remote.on_hub else _ask_plainly)(remote.url)
        except Exception as error:  # noqa: BLE001 - each package has its own kinds
            answers.append(f"{type(error).__name__}: {error}")
        else:
            answers.append("")

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(REACH_SECONDS + 1)
    return answers[0] if answers else f"no answer in {REACH_SECONDS:.0f} seconds"


def _ask_hub(url: str) -> None:
    _hub().utils.get_session().head(url, timeout=REACH_SECONDS)


def _ask_plainly(url: str) -> None:
    with suppress(HTTPError):  # an error of the server is an answer
        urlopen(Request(url, method="HEAD"), timeout=REACH_SECONDS).close()
