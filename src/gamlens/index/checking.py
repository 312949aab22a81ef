"""What is damaged in an index: its catalogue, vectors, approximate index, and remembered activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gamlens.errors import GamlensError, attempt, readable
from gamlens.index import vector_file
from gamlens.index.backends import BACKENDS
from gamlens.index.catalogue import Catalogue
from gamlens.index.snapshot import ApproximateFile, blocks_name, check_vectors, chosen_backend, read_rows


def index_problems(catalogue: Catalogue) -> list[str]:
    """Read all of an index and say everything that is damaged; a part that cannot be read does not hide the others."""
    parts: list[Callable[[Catalogue], None]] = [_check_catalogue, _check_vectors, _check_search, _check_activations]
    found = [attempt(part, catalogue) for part in parts]
    return list(dict.fromkeys(str(error) for error in found if error is not None))


def _check_catalogue(catalogue: Catalogue) -> None:
    if problem := catalogue.problem():
        raise catalogue.damaged(f"its catalogue has errors ({problem})")


def _check_vectors(catalogue: Catalogue) -> None:
    settings = catalogue.settings()
    check_vectors(catalogue, settings, *read_rows(catalogue, settings))


def _check_search(catalogue: Catalogue) -> None:
    """Whether the file of the approximate index, if there is one, can be used."""
    settings = catalogue.settings()
    name = chosen_backend(str(settings["backend"]), int(settings["end"]))
    if BACKENDS[name].exact:
        return
    vectors, _, _ = read_rows(catalogue, settings)
    found = ApproximateFile(catalogue.folder, settings, name).loaded(vectors)
    if isinstance(found, GamlensError):
        raise GamlensError(f"{found} `gamlens index update {readable(str(catalogue.folder))}` does so.")


def _check_activations(catalogue: Catalogue) -> None:
    settings = catalogue.settings()
    file = catalogue.folder / blocks_name(settings)
    read = partial(vector_file.read_blocks, file, shape=settings["block_shape"])
    places = {image.block: image.path for image in catalogue.images().values() if image.block is not None}
    bad = [(path, error) for place, path in places.items() if isinstance(error := attempt(read, [place]), GamlensError)]
    if bad:
        raise catalogue.damaged(
            f"the activations of {len(bad)} of {len(places)} images, such as {readable(bad[0][0])!r}, are not what was "
            f"remembered ({bad[0][1]})"
        )
