"""What happens when a visitor does something on the page, and the HTML that the page then shows. No gradio here."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Concatenate, NamedTuple, ParamSpec

from gamlens.errors import GamlensError
from gamlens.inputs.images import Picture
from gamlens.lens import Lens
from gamlens.models.remote_weights import DownloadNeededError
from gamlens.pairs.pair_trace import PairTrace
from gamlens.pairs.set_trace import SetTrace
from gamlens.scores import PAIR_SCORES
from gamlens.studio import html_fragments as html
from gamlens.studio.controls import LINKS, Controls
from gamlens.studio.downloads import Download, download
from gamlens.studio.freed_memory import return_freed_memory
from gamlens.studio.model_cache import ModelCache
from gamlens.studio.result_images import (
    Shown,
    StageImage,
    blocks_of,
    first_pair,
    guesses,
    notes,
    shows_third,
    stage_images,
)
from gamlens.studio.score_split import ScoreSplit, splits_at_once
from gamlens.studio.session import (
    OPTIONAL_SLOTS,
    SLOTS,
    ClickedPoint,
    DrawnTab,
    ModelChoice,
    Session,
    Sessions,
    Slot,
    TabName,
    TraceName,
)
from gamlens.studio.uploads import Photo
from gamlens.trace import Trace

log = logging.getLogger("gamlens.studio")

HINTS: dict[TabName, str] = {
    "class": "Drop a photo, or click an example: the model's best guesses and the reasons for them appear here.",
    "pair": "Give two photos, or click an example: how similar the model finds them, and why, appears here.",
    "search": "Click a hit to see which pixels of both photos made it one.",
}
HOW_TO_READ = "A map shows which pixels the score comes from, not how high the score is."
HOW_TO_READ_SIGNS = "Red pixels raise the score, blue ones lower it; the bar below a photo says by how much."
# These continue the headline, such as "Cosine similarity 0.83".
ABOUT_POINTS = "is a sum over pairs of positions, one in each photo. Shown are the terms of the position you clicked."
ABOUT_SPLIT_POINTS = (
    "is a sum over pairs of positions, one in each photo, and a remainder: the view of links says how large that is. "
    "Shown are the terms of the position you clicked."
)
ABOUT_LINKS = "is split over pairs of places, one in each photo. A line joins two places; dashed ones lower the score."
SPLIT_TAKES_LONG = (
    "The embedding of {model} is no average over positions, so which place matches which has to be computed: its last "
    "layers run on a few thousand variants of both photos. This takes seconds on a GPU, and up to some minutes on a "
    "CPU. It is done once for these two photos, and you can go on with everything else meanwhile."
)
Given = ParamSpec("Given")


class TabUpdate(NamedTuple):
    """What an action changes on its tab.

    Attributes:
        stage: The HTML of the stage, the large area with the pictures.
        bars: The HTML of the best guesses; class tab only.
        blocks: The block names of the model; empty where nothing could be explained.
    """

    stage: str
    bars: str = ""
    blocks: tuple[str, ...] = ()

    def with_error(self, error: GamlensError) -> TabUpdate:
        return self._replace(stage=html.message(str(error)) + self.stage)


class ModelUpdate(NamedTuple):
    """What a change of the model changes on the page: nothing but the notice, if the old model stays.

    Attributes:
        notice: The HTML of the notice about models; "" removes it, and None leaves it.
        class_update: The change of the class tab; None if there is none.
        pair_update: The change of the pair tab; None if there is none.
    """

    notice: str | None = None
    class_update: TabUpdate | None = None
    pair_update: TabUpdate | None = None


def _with_session(
    action: Callable[Concatenate[Actions, Session, Given], TabUpdate],
) -> Callable[Concatenate[Actions, str, Given], TabUpdate]:
    """Let an action be called with a session id: run it with that session locked, and show errors as messages."""

    @functools.wraps(action)
    def run(self: Actions, session_id: str, /, *args: Given.args, **options: Given.kwargs) -> TabUpdate:
        session = self.sessions.get(session_id)
        try:
            with session.lock:
                return action(self, session, *args, **options)
        except GamlensError as error:
            return TabUpdate(html.message(str(error)))
        except Exception as error:
            log.exception("an action of the studio failed")
            return TabUpdate(html.message(unforeseen(error)))

    return run


def unforeseen(error: Exception) -> str:
    """What a visitor reads about an error that nobody foresaw; the log has its traceback."""
    return f"This failed: {type(error).__name__}: {error}. The terminal of the studio shows the details."


@dataclass(frozen=True, eq=False)
class Actions:
    """The actions of all visitors. Each visitor has a session id; visitors share the models and nothing else."""

    models: ModelCache
    sessions: Sessions = field(default_factory=Sessions)

    @_with_session
    def set_photos(self, session: Session, photos: Mapping[Slot, str | Path | None], controls: Controls) -> TabUpdate:
        """Set or remove (None) photos of one tab. When the tab has all its photos, the model runs one forward."""
        for slot, path in photos.items():
            if slot == "rather":
                _keep_pair(session)
            try:
                session.set_photo(slot, path)
            except GamlensError as error:
                if slot not in OPTIONAL_SLOTS["pair"]:
                    raise
                return self.show(session, "pair", controls).with_error(error)
        return self.show(session, "class" if "photo" in photos else "pair", controls)

    @_with_session
    def redraw(self, session: Session, tab: TabName, controls: Controls) -> TabUpdate:
        """Draw a tab again after a control was changed; this needs no forward.

        A pair may show the match of a clicked point. It returns to the maps if a control was changed that affects only
        maps, or if the chosen score is not a sum over positions, so that points have no match.
        """
        if tab == "search" and "pair" not in session.searching.pair.traces:
            return TabUpdate(html.message(HINTS["search"], kind="hint"))
        session, tab, controls = self._drawn_in(session, tab, controls)
        if tab == "pair" and session.point:
            same = session.point.map_settings == controls.map_settings
            if not (same and PAIR_SCORES[controls.score].sums_over_positions):
                session.point = None
        return self.show(session, tab, controls)

    @_with_session
    def set_target(self, session: Session, target: str | int, controls: Controls) -> TabUpdate:
        """Explain another class of the same photo. This needs one short backward and no forward."""
        try:
            if isinstance(trace := session.traces.get("class"), Trace):
                session.traces["class"] = trace.retarget(target.strip() if isinstance(target, str) else target)
                session.traces.pop("against", None)
        except GamlensError as error:
            return self.show(session, "class", controls).with_error(error)
        return self.show(session, "class", controls)

    @_with_session
    def set_against(self, session: Session, against: str, controls: Controls) -> TabUpdate:
        """Explain the class rather than another one, by number or name, or by itself (""). It needs no forward."""
        session.set_against(None)
        try:
            if against.strip() and isinstance(trace := session.traces.get("class"), Trace):
                session.set_against(int(trace.retarget(against.strip()).targets[0]))
        except GamlensError as error:
            return self.show(session, "class", controls).with_error(error)
        return self.show(session, "class", controls)

    @_with_session
    def set_point(
        self, session: Session, point: ClickedPoint | None, controls: Controls, *, tab: TabName = "pair"
    ) -> TabUpdate:
        """Show what matches a point of one photo in the other photo, or the maps again (None). It needs no forward."""
        session, _, controls = self._drawn_in(session, tab, controls)
        session.point = None if point is None else point._replace(map_settings=controls.map_settings)
        return self.show(session, "pair", controls)

    @_with_session
    def start_split(self, session: Session, controls: Controls, *, tab: TabName = "pair") -> TabUpdate:
        """Begin to split the score of the pair over positions, for a model where this takes long; return at once."""
        session, _, controls = self._drawn_in(session, tab, controls)
        if session.split is None and len(self._pictures(session, "pair")) == len(SLOTS["pair"]):
            session.split = ScoreSplit(self.lens(session), self._pictures(session, "pair"), controls.score)
        return self.show(session, "pair", controls)

    @_with_session
    def stop_split(self, session: Session, controls: Controls, *, tab: TabName = "pair") -> TabUpdate:
        """Give up splitting the score of the pair."""
        session, _, controls = self._drawn_in(session, tab, controls)
        session.stop_split()
        return self.show(session, "pair", controls)

    def split_news(self, session_id: str, *, tab: TabName = "pair") -> tuple[bool, TabUpdate | None]:
        """Whether a visitor's pair is still being split, and what its tab now shows if it waits for that."""
        session = self.sessions.find(session_id)
        if session is None:
            return False, None
        with session.lock:
            drawn, _ = session.drawn_in(tab)
            split, controls = drawn.split, drawn.pair_controls
            running = split is not None and not split.done
            waits = controls is not None and (drawn.point is not None or controls.view == LINKS)
            if split is None or controls is None or not waits:
                return running, None
        return running, self.redraw(session_id, tab, controls)

    def choose_model(self, session_id: str, name: str, *, download: bool = False) -> ModelChoice:
        """Begin to load another model, and return at once. `use_model` changes to it when it is loaded.

        Args:
            session_id: The visitor.
            name: The name of the model.
            download: Whether the visitor has agreed that its weights are downloaded.
        """
        choice = ModelChoice(name.strip(), self.models.load(name.strip(), download=download))
        self.sessions.get(session_id).choice = choice
        return choice

    def use_model(
        self, session_id: str, choice: ModelChoice, class_controls: Controls, pair_controls: Controls
    ) -> ModelUpdate:
        """Change to a model that was chosen, with one forward per tab that has photos; wait if it is still loading.

        If it cannot be loaded, the old model stays, and a notice says why. Nothing happens if the visitor has left or
        has chosen another model meanwhile.
        """
        failed = choice.lens.exception()
        session = self.sessions.find(session_id)
        if session is None or session.choice is not choice:
            return ModelUpdate()
        session.choice = None
        if isinstance(failed, DownloadNeededError):
            return ModelUpdate(html.question(str(failed), choice.name))
        if failed is not None:
            return ModelUpdate(html.message(str(failed)))
        class_update = self._change_model(session_id, choice, class_controls)
        return ModelUpdate("", class_update, self.redraw(session_id, "pair", pair_controls))

    @_with_session
    def _change_model(self, session: Session, choice: ModelChoice, controls: Controls) -> TabUpdate:
        session.model, session.lens = choice.name, choice.lens.result()
        session.forget_traces("class", "pair")
        return self.show(session, "class", controls)

    def model(self, session_id: str) -> tuple[str, Lens]:
        """The name of the model that this session uses, and the model."""
        session = self.sessions.get(session_id)
        return self.model_name(session), self.lens(session)

    def model_name(self, session: Session) -> str:
        """The name of the model that a session uses."""
        return session.model or self.models.first

    def lens(self, session: Session) -> Lens:
        """The model that a session uses."""
        return session.lens or self.models.lens(self.models.first)

    def download(self, session_id: str, tab: TabName, what: str, controls: Controls) -> Download:
        """Make a file of what a tab shows; for `what` see `downloads`. Raises GamlensError if it shows nothing."""
        session = self.sessions.get(session_id)
        with session.lock:
            session, tab, controls = self._drawn_in(session, tab, controls)
            if len(self._pictures(session, tab)) < len(SLOTS[tab]):
                raise GamlensError("There is nothing to save yet: give a photo first.")
            shown = self._shown(session, tab, controls)
            if shown.split is None and (shown.shows_links or shown.point is not None):
                raise GamlensError("There is nothing to save yet: what matches what was not computed.")
            return download(what, shown)

    @staticmethod
    def _drawn_in(session: Session, tab: TabName, controls: Controls) -> tuple[Session, DrawnTab, Controls]:
        """The session whose pictures a tab shows, how they are drawn, and how they are explained.

        A hit is explained by the score by which it was found. Raises GamlensError if there is no hit.
        """
        drawn, drawn_as = session.drawn_in(tab)
        if tab == "search":
            if session.searching.index is None or "pair" not in drawn.traces:
                raise GamlensError("There is no hit yet: give a photo, and click a hit.")
            controls = replace(controls, score=session.searching.index.score)
        return drawn, drawn_as, controls

    @staticmethod
    def _pictures(session: Session, tab: DrawnTab) -> list[Picture]:
        return [session.photos[slot].picture for slot in SLOTS[tab] if slot in session.photos]

    def show(self, session: Session, tab: DrawnTab, controls: Controls) -> TabUpdate:
        """The current contents of a tab. If a clicked point has no match, the maps come back with the reason."""
        if tab == "pair":
            session.pair_controls = controls
        try:
            return self._contents(session, tab, controls)
        except GamlensError as error:
            if tab != "pair" or session.point is None:
                raise
            session.point = None
            return self._contents(session, tab, controls).with_error(error)

    def _contents(self, session: Session, tab: DrawnTab, controls: Controls) -> TabUpdate:
        """The current contents of a tab. Photos that were not traced yet are traced first."""
        pictures = self._pictures(session, tab)
        if len(pictures) < len(SLOTS[tab]):
            return TabUpdate(
                html.message("One more photo is needed: a pair has two." if pictures else HINTS[tab], kind="hint")
            )
        shown = self._shown(session, tab, controls)
        if shown.split is None and (shown.shows_links or shown.point is not None):
            return TabUpdate(self._split_state(session, shown), "", shown.blocks)
        update = _update(shown)
        if tab == "class" and session.against is not None and "against" not in session.traces:
            error = GamlensError("A class is compared with another one: choose two different classes.")
            return update.with_error(error)
        return update

    def _shown(self, session: Session, tab: DrawnTab, controls: Controls) -> Shown:
        """What a tab shows. Raises GamlensError if the chosen similarity has no links."""
        third = tab == "pair" and "rather" in session.photos
        point, split = session.point if tab == "pair" else None, None
        slots = [*SLOTS[tab]]
        source: Trace | PairTrace | SetTrace
        if third and point is None and shows_third(controls):
            slots += OPTIONAL_SLOTS[tab]
            source = self._traced(session, "set", slots)
        else:
            source = self._traced(session, tab, slots)
        if isinstance(source, Trace):
            source = self._against(session, source)
        lens = self.lens(session)
        default = lens.default_method if isinstance(source, SetTrace) else source.default_method
        fitting = controls.for_trace(blocks_of(source), default)
        if isinstance(source, PairTrace) and (point is not None or controls.view == LINKS):
            split = _split_trace(session, source, fitting)
        photos: list[Photo] = [session.photos[slot] for slot in slots]
        return Shown(source, photos, fitting, point, split, has_third=third)

    def _traced(self, session: Session, name: TraceName, slots: Sequence[Slot]) -> Trace | PairTrace | SetTrace:
        """A trace of the photos in `slots`, which is made if there is none yet."""
        if name == "pair":
            _keep_pair(session)
        if name not in session.traces:
            lens, pictures = self.lens(session), [session.photos[slot].picture for slot in slots]
            # All blocks are captured, so every control, `sharp` among them, finds what it needs without a forward.
            if name == "set":
                session.traces[name] = lens.trace_set(pictures, n=None)
            else:
                trace = lens.trace_pair if len(slots) > 1 else lens.trace
                session.traces[name] = trace(*pictures, n=None)
            return_freed_memory()
        return session.traces[name]

    @staticmethod
    def _against(session: Session, trace: Trace) -> Trace:
        """The trace of the class rather than the one that it is compared with, if that is another class."""
        if session.against is None or session.against == int(trace.targets[0]):
            return trace
        if "against" not in session.traces:
            session.traces["against"] = trace.contrast(int(trace.targets[0]), session.against)
        found = session.traces["against"]
        assert isinstance(found, Trace)
        return found

    def _split_state(self, session: Session, shown: Shown) -> str:
        """The stage of a pair whose score has to be split first: a question, or how far this is."""
        point = shown.point is not None
        if session.split is None:
            name = self.model_name(session)
            return html.split_question(SPLIT_TAKES_LONG.format(model=name), point=point)
        if session.split.begun is None:
            text = "This waits until the pair of another visitor is done."
        else:
            runs, seconds = session.split.runs, session.split.seconds
            text = (
                f"Which place matches which is being computed: {seconds:.0f} s so far, the model has run {runs} times."
            )
        return html.split_progress(text, point=point)


def _keep_pair(session: Session) -> None:
    """Make the trace of the pair from that of three photos, if there is one: the model has run on these two."""
    several = session.traces.get("set")
    if "pair" not in session.traces and isinstance(several, SetTrace):
        session.traces["pair"] = first_pair(several)


def _split_trace(session: Session, pair: PairTrace, controls: Controls) -> PairTrace | None:
    """The trace of which the score can be split at once; None if it has to be computed first."""
    if not PAIR_SCORES[controls.score].sums_over_positions:
        names = " or ".join(score.title for score in PAIR_SCORES.values() if score.sums_over_positions)
        raise GamlensError(
            f"The similarity {PAIR_SCORES[controls.score].title} is no sum over pairs of positions, so it has no links "
            f"between places: choose {names}."
        )
    if splits_at_once(pair, controls.score):
        return pair
    if session.split is None or not session.split.done:
        return None
    try:
        return session.split.pair()
    except GamlensError:
        session.split = None
        raise


def _update(shown: Shown) -> TabUpdate:
    source, controls, images = shown.source, shown.controls, stage_images(shown)
    if isinstance(source, Trace):
        return _class_update(source, shown, images)
    if isinstance(source, SetTrace):
        return _contrast_update(shown, images)
    score = PAIR_SCORES[controls.score]
    title = f"{score.title} similarity {float(shown.traces[0].scores[0]):.3g}"
    if shown.point is not None:
        about = ABOUT_POINTS if shown.split is source else ABOUT_SPLIT_POINTS
        return TabUpdate(html.stage(title, about, images, columns=2, points="shown"), "", source.blocks)
    if shown.shows_links:
        stage = html.stage(title, ABOUT_LINKS, images, notes(shown), columns=1, links=shown.links.rows)
        return TabUpdate(stage, "", source.blocks)
    columns, lead = 3 if controls.view == "evidence" else 2, f"for {_model(shown)}. {_how_to_read(shown)}"
    asks = score.sums_over_positions and not shown.has_third
    stage = html.stage(title, lead, images, notes(shown), columns=columns, points="ask" if asks else "")
    return TabUpdate(stage, "", source.blocks)


def _class_update(trace: Trace, shown: Shown, images: Sequence[StageImage]) -> TabUpdate:
    found, target = guesses(trace), int(trace.targets[0])
    chosen = next(guess for guess in found if guess.index == target)
    name, about = chosen.name, f"{100 * chosen.probability:.1f} % likely, says {_model(shown)}."
    if other := shown.results[0].about.get("against"):
        name, difference = f"{name} rather than {other}", float(trace.scores[0])
        about = f"Its score is {abs(difference):.3g} {'above' if difference >= 0 else 'below'} that of {other}."
    stage = html.stage(f"Why {name}?", f"{about} {_how_to_read(shown)}", images, notes(shown), columns=len(images))
    return TabUpdate(stage, html.bars(found, target), trace.blocks)


def _contrast_update(shown: Shown, images: Sequence[StageImage]) -> TabUpdate:
    """Which of two photos the first one is more like, and why."""
    x, a, b = (photo.name for photo in shown.photos)
    for_a, for_b = shown.scores
    than = "more like" if for_a > for_b else "less like" if for_a < for_b else "as much like"
    short = next((form for form in (".3g", ".5g") if f"{for_a:{form}}" != f"{for_b:{form}}"), ".3g")
    title = f"{x} is {than} {a} ({for_a:{short}}) {'as' if for_a == for_b else 'than'} like {b} ({for_b:{short}})"
    score = PAIR_SCORES[shown.controls.score].title.lower()
    read = "Red pixels speak for the second photo, blue ones for the third." if shown.signed else HOW_TO_READ
    lead = f"by the {score} similarity, for {_model(shown)}. Explained is the difference. {read}"
    return TabUpdate(html.stage(title, lead, images, notes(shown), columns=3), "", shown.blocks)


def _model(shown: Shown) -> str:
    return str(shown.about["model"])


def _how_to_read(shown: Shown) -> str:
    return HOW_TO_READ_SIGNS if shown.signed else HOW_TO_READ
