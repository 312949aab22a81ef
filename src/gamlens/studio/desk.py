"""The studio without its page: what each action of a visitor does, and the HTML that answers it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gamlens.errors import GamlensError
from gamlens.lens import Lens
from gamlens.pairs.pair_trace import PairTrace
from gamlens.studio import files, markup
from gamlens.studio.shelf import Shelf
from gamlens.studio.spots import spot_shots
from gamlens.studio.state import Slot, Spot, Visit, Visits
from gamlens.studio.views import MEAN, Controls, Shot, class_shots, guesses, notes, pair_shots, picked
from gamlens.trace import Trace

log = logging.getLogger("gamlens.studio")

ONE = "Drop a photo, or click an example: the model's best guesses and its reasons will be here."
TWO = "Give two photos, or click an example: how similar the model finds them, and why, will be here."
READ = "A map shows where the score comes from, not how much it is."


class Answer(NamedTuple):
    """The stage with its pictures, the bars beside it (a class's), and the blocks that can be chosen."""

    stage: str
    bars: str = ""
    blocks: tuple[str, ...] = ()


class Desk:
    """Actions of visitors, each known by a session. One lens a model is shared; everything else is a visit's own."""

    def __init__(self, shelf: Shelf, visits: Visits | None = None) -> None:
        self.shelf = shelf
        self.visits = visits if visits is not None else Visits()

    # Why this class?

    def photo(self, session: str, path: str | Path | None, controls: Controls) -> Answer:
        """A new photo: one forward, and the top class explained."""

        def work(visit: Visit) -> Answer:
            visit.give("photo", path)
            if path is not None:
                visit.trace = self._lens(visit).trace(visit.photos["photo"].picture, n=None)
            return _class(visit, controls)

        return self._answer(session, work)

    def ask(self, session: str, target: str | int, controls: Controls) -> Answer:
        """Another class of the same photo: only the tail's backward."""

        def work(visit: Visit) -> Answer:
            if visit.trace is None:
                return Answer(markup.message(ONE, kind="hint"))
            try:
                visit.trace = visit.trace.retarget(target.strip() if isinstance(target, str) else target)
            except GamlensError as error:
                answer = _class(visit, controls)
                return answer._replace(stage=markup.message(str(error)) + answer.stage)
            return _class(visit, controls)

        return self._answer(session, work)

    def turn(self, session: str, controls: Controls) -> Answer:
        """A control was turned: the same trace, no forward."""
        return self._answer(session, lambda visit: _class(visit, controls))

    # Why similar?

    def side(self, session: str, slot: Slot, path: str | Path | None, controls: Controls) -> Answer:
        """A new photo of a pair; one forward as soon as there are two."""

        def work(visit: Visit) -> Answer:
            visit.give(slot, path)
            self._pair(visit)
            return _pair(visit, controls)

        return self._answer(session, work)

    def sides(self, session: str, paths: tuple[Path, Path], controls: Controls) -> Answer:
        """Both photos of an example at once."""

        def work(visit: Visit) -> Answer:
            visit.give("x", paths[0])
            visit.give("y", paths[1])
            self._pair(visit)
            return _pair(visit, controls)

        return self._answer(session, work)

    def point(self, session: str, spot: Spot | None, controls: Controls) -> Answer:
        """A spot of one photo, or none: what matches it in the other, no forward."""

        def work(visit: Visit) -> Answer:
            visit.spot = None if spot is None else spot._replace(maps=_maps(controls))
            try:
                return _pair(visit, controls)
            except GamlensError as error:
                visit.spot = None
                answer = _pair(visit, controls)
                return answer._replace(stage=markup.message(str(error)) + answer.stage)

        return self._answer(session, work)

    def turn_pair(self, session: str, controls: Controls) -> Answer:
        """A control of a pair was turned: no forward. One that matches do not have leads back to the maps."""

        def work(visit: Visit) -> Answer:
            if visit.spot is not None and visit.spot.maps != _maps(controls):
                visit.spot = None
            return _pair(visit, controls)

        return self._answer(session, work)

    # Both

    def use(self, session: str, model: str, controls: Controls, pair: Controls) -> tuple[Answer, Answer]:
        """Another model: both tabs are looked at anew."""

        def first(visit: Visit) -> Answer:
            lens = self.shelf.lens(model.strip())
            visit.model, visit.trace, visit.pair, visit.spot = model.strip(), None, None, None
            if "photo" in visit.photos:
                visit.trace = lens.trace(visit.photos["photo"].picture, n=None)
            return _class(visit, controls)

        def second(visit: Visit) -> Answer:
            if visit.pair is None:
                self._pair(visit)
            return _pair(visit, pair)

        return self._answer(session, first), self._answer(session, second)

    def model(self, session: str) -> str:
        """The model that this visit looks through."""
        return self.visits.of(session).model or self.shelf.first

    def file(self, session: str, tab: str, kind: str, controls: Controls) -> files.File:
        """A download of what is shown. A GamlensError where nothing is."""
        visit = self.visits.of(session)
        with visit.lock:
            source: Trace | PairTrace | None = visit.trace if tab == "class" else visit.pair
            if source is None:
                raise GamlensError("There is nothing to download yet: give a photo first.")
            slots: tuple[Slot, ...] = ("photo",) if tab == "class" else ("x", "y")
            photos = tuple(visit.photos[slot] for slot in slots)
            if kind == "maps":
                return files.maps(photos, source, controls)
            if kind == "json":
                return files.record(photos, source, controls, visit.spot if tab == "pair" else None)
            shots = _class_shots(visit, controls) if tab == "class" else _pair_shots(visit, controls)
            return files.picture(photos, source, controls, shots)

    def end(self, session: str) -> None:
        self.visits.end(session)

    # The steps

    def _answer(self, session: str, work: Callable[[Visit], Answer]) -> Answer:
        """What `work` says, or a message for people."""
        visit = self.visits.of(session)
        try:
            with visit.lock:
                return work(visit)
        except GamlensError as error:
            return Answer(markup.message(str(error)))
        except Exception as error:
            log.exception("an action of the studio failed")
            return Answer(markup.message(f"This failed: {type(error).__name__}: {error}. The terminal says more."))

    def _lens(self, visit: Visit) -> Lens:
        return self.shelf.lens(visit.model or self.shelf.first)

    def _pair(self, visit: Visit) -> None:
        if "x" in visit.photos and "y" in visit.photos:
            x, y = visit.photos["x"].picture, visit.photos["y"].picture
            visit.pair = self._lens(visit).trace_pair(x, y, n=None)


def _class(visit: Visit, controls: Controls) -> Answer:
    if visit.trace is None:
        return Answer(markup.message(ONE, kind="hint"))
    trace, controls = visit.trace, _fit(controls, visit.trace.blocks)
    results = picked(trace, controls)
    found, target = guesses(trace), int(trace.targets[0])
    chosen = next(guess for guess in found if guess.index == target)
    small = f"{100 * chosen.probability:.1f} % likely, says {results[0].about['model']}. {READ}"
    shots = _class_shots(visit, controls)
    stage = markup.stage(
        markup.headline(f"Why {chosen.name}?", small), shots, notes([trace.rows], results, controls), columns=len(shots)
    )
    return Answer(stage, markup.bars(found, target), trace.blocks)


def _fit(controls: Controls, blocks: tuple[str, ...]) -> Controls:
    """Controls that were set for another model: a block that this one lacks is left out."""
    return controls if controls.block in (MEAN, *blocks) else replace(controls, block=MEAN)


def _maps(controls: Controls) -> tuple[object, ...]:
    """What only maps depend on, and matches do not."""
    return controls.view, controls.method, controls.n, controls.block, controls.outline, controls.threshold


def _class_shots(visit: Visit, controls: Controls) -> list[Shot]:
    assert visit.trace is not None
    return class_shots(visit.trace, visit.photos["photo"], controls)


def _pair(visit: Visit, controls: Controls) -> Answer:
    if visit.pair is None:
        one = "One more photo: a pair has two." if {"x", "y"} & set(visit.photos) else TWO
        return Answer(markup.message(one, kind="hint"))
    pair, controls = visit.pair, _fit(controls, visit.pair.blocks)
    rows = pair.sides(controls.score)
    value = float(rows[0].scores[0])
    shots = _pair_shots(visit, controls)
    model = rows[0].origin.about["model"]
    small, tip = f"for {model}. {READ}", "Click a spot in either photo to see what matches it in the other."
    told = notes(rows, picked(pair, controls), controls)
    if visit.spot is not None:
        small, tip, told = "is a sum over pairs of positions, one of each photo. Here are the parts of one.", "", []
    head = markup.headline(f"{controls.score.capitalize()} similarity {value:.3g}", small, back=visit.spot is not None)
    columns = 3 if controls.view == "evidence" and visit.spot is None else 2
    return Answer(markup.stage(head, shots, told, columns=columns, tip=tip), "", pair.blocks)


def _pair_shots(visit: Visit, controls: Controls) -> list[Shot]:
    assert visit.pair is not None
    photos = (visit.photos["x"], visit.photos["y"])
    if visit.spot is not None:
        return spot_shots(visit.pair, photos, controls, visit.spot)
    return pair_shots(visit.pair, photos, controls)
