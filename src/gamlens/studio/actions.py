"""What happens when a visitor does something on the page, and the HTML that the page then shows. No gradio here."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Concatenate, NamedTuple, ParamSpec

from gamlens.errors import GamlensError
from gamlens.lens import Lens
from gamlens.models.remote_weights import DownloadNeededError
from gamlens.scores import PAIR_SCORES
from gamlens.studio import html_fragments as html
from gamlens.studio.controls import Controls
from gamlens.studio.downloads import Download, download
from gamlens.studio.freed_memory import return_freed_memory
from gamlens.studio.model_cache import ModelCache
from gamlens.studio.result_images import Shown, guesses, notes, stage_images
from gamlens.studio.session import SLOTS, ClickedPoint, ModelChoice, Session, Sessions, Slot, TabName
from gamlens.trace import Trace

log = logging.getLogger("gamlens.studio")

HINTS: dict[TabName, str] = {
    "class": "Drop a photo, or click an example: the model's best guesses and the reasons for them appear here.",
    "pair": "Give two photos, or click an example: how similar the model finds them, and why, appears here.",
}
HOW_TO_READ = "A map shows which pixels the score comes from, not how high the score is."
# Continues the headline, such as "Cosine similarity 0.83".
ABOUT_POINTS = "is a sum over pairs of positions, one in each photo. Shown are the terms of the position you clicked."
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
            return TabUpdate(
                html.message(
                    f"This failed: {type(error).__name__}: {error}. The terminal of the studio shows the details."
                )
            )

    return run


@dataclass(frozen=True, eq=False)
class Actions:
    """The actions of all visitors. Each visitor has a session id; visitors share the models and nothing else."""

    models: ModelCache
    sessions: Sessions = field(default_factory=Sessions)

    @_with_session
    def set_photos(self, session: Session, photos: Mapping[Slot, str | Path | None], controls: Controls) -> TabUpdate:
        """Set or remove (None) photos of one tab. When the tab has all its photos, the model runs one forward."""
        for slot, path in photos.items():
            session.set_photo(slot, path)
        return self._show(session, "class" if "photo" in photos else "pair", controls)

    @_with_session
    def redraw(self, session: Session, tab: TabName, controls: Controls) -> TabUpdate:
        """Draw a tab again after a control was changed; this needs no forward.

        The pair tab may show the match of a clicked point. It returns to the maps if a control was changed that affects
        only maps, or if the chosen score is not a sum over positions, so that points have no match.
        """
        if tab == "pair" and session.point:
            same = session.point.map_settings == controls.map_settings
            if not (same and PAIR_SCORES[controls.score].sums_over_positions):
                session.point = None
        return self._show(session, tab, controls)

    @_with_session
    def set_target(self, session: Session, target: str | int, controls: Controls) -> TabUpdate:
        """Explain another class of the same photo. This needs one short backward and no forward."""
        try:
            if isinstance(trace := session.traces.get("class"), Trace):
                session.traces["class"] = trace.retarget(target.strip() if isinstance(target, str) else target)
        except GamlensError as error:
            return self._show(session, "class", controls).with_error(error)
        return self._show(session, "class", controls)

    @_with_session
    def set_point(self, session: Session, point: ClickedPoint | None, controls: Controls) -> TabUpdate:
        """Show what matches a point of one photo in the other photo, or the maps again (None). It needs no forward."""
        session.point = None if point is None else point._replace(map_settings=controls.map_settings)
        try:
            return self._show(session, "pair", controls)
        except GamlensError as error:
            session.point = None
            return self._show(session, "pair", controls).with_error(error)

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
        return self._show(session, "class", controls)

    def model(self, session_id: str) -> tuple[str, Lens]:
        """The name of the model that this session uses, and the model."""
        session = self.sessions.get(session_id)
        return session.model or self.models.first, self._lens(session)

    def _lens(self, session: Session) -> Lens:
        return session.lens or self.models.lens(self.models.first)

    def download(self, session_id: str, tab: TabName, what: str, controls: Controls) -> Download:
        """Make a file of what a tab shows; for `what` see `downloads`. Raises GamlensError if it shows nothing."""
        session = self.sessions.get(session_id)
        with session.lock:
            if tab not in session.traces:
                raise GamlensError("There is nothing to save yet: give a photo first.")
            return download(what, _shown(session, tab, controls))

    def _show(self, session: Session, tab: TabName, controls: Controls) -> TabUpdate:
        """The current contents of a tab. Photos that were not traced yet are traced first."""
        pictures = [session.photos[slot].picture for slot in SLOTS[tab] if slot in session.photos]
        if len(pictures) < len(SLOTS[tab]):
            return TabUpdate(
                html.message("One more photo is needed: a pair has two." if pictures else HINTS[tab], kind="hint")
            )
        if tab not in session.traces:
            lens = self._lens(session)
            # All blocks are captured, so every control, `sharp` among them, finds what it needs without a forward.
            trace = lens.trace(*pictures, n=None) if tab == "class" else lens.trace_pair(*pictures, n=None)
            session.traces[tab] = trace
            return_freed_memory()
        return _update(_shown(session, tab, controls))


def _shown(session: Session, tab: TabName, controls: Controls) -> Shown:
    photos, trace = [session.photos[slot] for slot in SLOTS[tab]], session.traces[tab]
    fitting = controls.for_trace(trace.blocks, trace.default_method)
    return Shown(trace, photos, fitting, session.point if tab == "pair" else None)


def _update(shown: Shown) -> TabUpdate:
    source, controls, images = shown.source, shown.controls, stage_images(shown)
    model = shown.results[0].about["model"]
    if isinstance(source, Trace):
        found, target = guesses(source), int(source.targets[0])
        chosen = next(guess for guess in found if guess.index == target)
        lead = f"{100 * chosen.probability:.1f} % likely, says {model}. {HOW_TO_READ}"
        stage = html.stage(f"Why {chosen.name}?", lead, images, notes(shown), columns=len(images))
        return TabUpdate(stage, html.bars(found, target), source.blocks)
    score = PAIR_SCORES[controls.score]
    title = f"{score.title} similarity {float(shown.traces[0].scores[0]):.3g}"
    if shown.point is not None:
        return TabUpdate(html.stage(title, ABOUT_POINTS, images, columns=2, points="shown"), "", source.blocks)
    columns, lead = 3 if controls.view == "evidence" else 2, f"for {model}. {HOW_TO_READ}"
    stage = html.stage(
        title, lead, images, notes(shown), columns=columns, points="ask" if score.sums_over_positions else ""
    )
    return TabUpdate(stage, "", source.blocks)
