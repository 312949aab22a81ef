"""Images without end: decoded ahead in threads, looked at in batches, given back one by one as they come."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gamlens.ahead import ahead, grouped
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation
from gamlens.prepare import Prepared, join
from gamlens.trace import Guess, Trace

Load = Callable[[Any], Prepared]
Look = Callable[[Prepared], Trace]
Explain = Callable[[Trace], Explanation]


@dataclass(frozen=True, eq=False)
class Seen:
    """What came of one image: its explanation (a row a class) and the model's best classes, or an error."""

    number: int
    image: Any
    explanation: Explanation | None = None
    top: tuple[Guess, ...] = ()
    error: str = ""


def stream(
    images: Iterable[Any], load: Load, look: Look, explain: Explain, *, batch: int, threads: int | None, top: int = 5
) -> Iterator[Seen]:
    """A Seen for each image, in order. A bad one is an error of its own; one that fails on every image is raised."""
    if isinstance(images, str | os.PathLike) or not isinstance(images, Iterable):
        raise GamlensError(f"A stream takes many images, found {images!r:.80}: give a list or a generator of them.")
    numbered = enumerate(images)
    good = 0
    for group, loaded in ahead(lambda group: [_loaded(load, image) for _, image in group],
                               grouped(numbered, batch), threads=threads):  # fmt: skip
        for seen in look_at(group, loaded, look, explain, strict=good == 0, top=top):
            good += not seen.error
            yield seen


def look_at(
    group: list[tuple[int, Any]],
    loaded: list[Prepared | GamlensError],
    look: Look,
    explain: Explain,
    *,
    strict: bool,
    top: int,
) -> list[Seen]:
    """Images of one size together; where that fails, one by one. `strict`: an error if all of them fail."""
    found: dict[int, Seen] = {}
    sizes: dict[Any, list[int]] = {}
    for place, ((number, image), ready) in enumerate(zip(group, loaded, strict=True)):
        if isinstance(ready, GamlensError):
            found[place] = Seen(number, image, error=str(ready))
        else:
            sizes.setdefault(ready.batches[0].shape[1:], []).append(place)
    failures: list[GamlensError] = []
    for places in sizes.values():
        try:
            seen = _together(group, loaded, places, look, explain, top)
        except GamlensError:
            seen = {}
            for place in places:
                try:
                    seen |= _together(group, loaded, [place], look, explain, top)
                except GamlensError as error:
                    failures.append(error)
                    seen[place] = Seen(*group[place], error=str(error))
        found |= seen
    if strict and failures and len(failures) == sum(map(len, sizes.values())):
        raise failures[0]
    return [found[place] for place in range(len(group))]


def _loaded(load: Load, image: Any) -> Prepared | GamlensError:
    try:
        return load(image)
    except GamlensError as error:
        return error


def _together(
    group: list[tuple[int, Any]], loaded: list[Any], places: list[int], look: Look, explain: Explain, top: int
) -> dict[int, Seen]:
    trace = look(join([loaded[place] for place in places]))
    results = explain(trace).cpu().each()
    guesses = trace.top(top) if trace.output is not None else [[] for _ in places]
    return {place: Seen(*group[place], results[at], tuple(guesses[at])) for at, place in enumerate(places)}
