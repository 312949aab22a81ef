"""The pictures of the stage, drawn from a trace and the controls. Nothing here runs the model or keeps state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image

from gamlens.capture.forward import BY_NETWORK
from gamlens.capture.guard import outside_inference_mode
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation
from gamlens.figures import draw_evidence, scaled_frame
from gamlens.fuse import Fusion, at_least_float32
from gamlens.inputs.images import Picture
from gamlens.methods import METHODS
from gamlens.pairs.correspondence import Matches
from gamlens.pairs.pair_trace import PairTrace
from gamlens.pairs.set_trace import SetTrace
from gamlens.scores import PAIR_SCORES
from gamlens.studio.controls import BOTH_SIGNS, CONTRAST_VIEWS, LINKS, MEAN_OF_N, Controls
from gamlens.studio.link_images import DrawnLinks, draw_links, where
from gamlens.studio.session import ClickedPoint
from gamlens.studio.signed_drawing import SignBar, SignWords, draw_map, sign_bar, strongest
from gamlens.studio.uploads import Photo
from gamlens.trace import HIDDEN_SHARE, Guess, Trace

EVIDENCE_TITLES = ("P: adds", "N: takes away", "Hidden: |N| ≥ P")
FLAT_MAP = "The map is flat: {} marks no pixel here."
FIRST_TWO_ONLY = "This view is about the first two photos. The view One map compares the first one with both others."
CLASS_SIGNS, PAIR_SIGNS = SignWords("speaks for it", "speaks against it"), SignWords("raises it", "lowers it")
# Of the difference of two similarities, on the photo that is compared, and on each of the others.
CONTRAST_SIGNS = (
    SignWords("for the second", "for the third"),
    SignWords("like the first", "unlike it"),
    SignWords("unlike the first", "like it"),
)
CONTRAST_TITLES = ("First photo", "Second photo", "Rather than this one")


@dataclass(frozen=True, eq=False)
class StageImage:
    """A picture of the stage.

    Attributes:
        image: The picture.
        title: The bold text below it.
        alt: A description for people who do not see it.
        caption: Further text below it.
        side: "x" or "y" for a photo of a pair, which can be clicked; otherwise "".
        dot: A mark at (x, y), as fractions of width and height.
        cell: A marked rectangle (left, top, width, height), as fractions of width and height.
        bar: The colour bar of a signed map.
    """

    image: Image.Image
    title: str
    alt: str
    caption: str = ""
    side: str = ""
    dot: tuple[float, float] | None = None
    cell: tuple[float, float, float, float] | None = None
    bar: SignBar | None = None


@dataclass(frozen=True, eq=False)
class Shown:
    """Everything that determines what a tab shows.

    Attributes:
        source: What the model gave: for a class of one photo, for a pair, or for a pair and a third photo.
        photos: The photos of `source`.
        controls: The controls, as they fit to the model.
        point: The point of a pair that was clicked; None if maps are shown.
        split: The trace of the pair whose score can be split over positions without waiting; None if there is none.
        has_third: Whether there is a third photo beside a pair, which this view may leave out.
    """

    source: Trace | PairTrace | SetTrace
    photos: Sequence[Photo]
    controls: Controls
    point: ClickedPoint | None = None
    split: PairTrace | None = None
    has_third: bool = False

    @cached_property
    def each(self) -> tuple["Shown", ...]:
        """The same once per method that the view shows; most views show one."""
        if self.controls.methods == (self.controls.method,):
            return (self,)
        return tuple(replace(self, controls=replace(self.controls, method=name)) for name in self.controls.methods)

    @property
    def signed(self) -> bool:
        """Whether at least one of the maps that the view shows has a sign."""
        return self.controls.view in CONTRAST_VIEWS and any(one.controls.signed for one in self.each)

    @property
    def about(self) -> Mapping[str, Any]:
        """What is known about the model: its name, its weights and so on."""
        return (self.source.provenances[0] if isinstance(self.source, PairTrace) else self.source.provenance).about

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks that were captured."""
        return blocks_of(self.source)

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The trace of the class, or the two traces of the pair for the chosen score; none with a third photo."""
        if isinstance(self.source, SetTrace):
            return ()
        return (self.source,) if isinstance(self.source, Trace) else self.source.sides(self.controls.score)

    @cached_property
    def results(self) -> list[Explanation]:
        """The explanation of the class, those of x and y, or those of all three photos.

        Maps are the mean of the last n blocks, or one block's. With the control `sharp` they are refined, also the map
        of one block. With the control `sign` they are signed if the method has signed maps.
        """
        method, block, blocks = self.controls.method, self.controls.block, self.blocks
        single = block != MEAN_OF_N and METHODS[method].kind == "block"
        if single and block not in blocks:
            raise GamlensError(f"This model has no block {block!r}: choose one of {', '.join(blocks)}.")
        n = len(blocks) - blocks.index(block) if single else min(self.controls.n, len(blocks))
        fuse: Fusion = "mean"
        if single:  # all weight on the first of these n blocks
            fuse = [1.0, *(0.0,) * (n - 1)]
        refine, sign, score = self.controls.sharp, "both" if self.controls.signed else None, self.controls.score
        depth: int | str = BY_NETWORK if METHODS[method].kind == "attention" else n  # attention: all layers
        if isinstance(self.source, Trace):
            return [self.source.explain(method, depth, fuse, refine=refine, sign=sign)]
        if isinstance(self.source, SetTrace):
            if METHODS[method].kind == "pair":
                raise GamlensError(
                    f"{METHODS[method].title} compares two photos: choose another method, or remove the third photo."
                )
            contrast = self.source.contrast(
                0, 1, 2, score=score, method=method, n=depth, fuse=fuse, refine=refine, sign=sign
            )
            return [contrast.x, contrast.a, contrast.b]
        both = self.source.explain(method, depth, fuse, score=score, refine=refine, sign=sign)
        return [both.x, both.y]

    @cached_property
    def scores(self) -> tuple[float, ...]:
        """The score of the class or of the pair, or the similarities of the first photo to both others."""
        if not isinstance(self.source, SetTrace):
            return (float(self.traces[0].scores[0]),)
        rule, e = PAIR_SCORES[self.controls.score].fn, self.source.embeddings
        a, b = rule(e[[0, 0]], e[[1, 2]]).tolist()
        return a, b

    @cached_property
    def links(self) -> DrawnLinks:
        """The links between the photos of the pair."""
        assert self.split is not None
        return draw_links(self.split, self.photos, self.controls)

    @property
    def shows_links(self) -> bool:
        return self.controls.view == LINKS and isinstance(self.source, PairTrace) and self.point is None

    def words(self, number: int) -> SignWords:
        """What the signs of the map of photo `number` mean."""
        if isinstance(self.source, SetTrace):
            return CONTRAST_SIGNS[number]
        if isinstance(self.source, PairTrace):
            return PAIR_SIGNS
        other = self.about.get("against")
        return CLASS_SIGNS._replace(negative=f"speaks for {other}") if other else CLASS_SIGNS


def first_pair(several: SetTrace) -> PairTrace:
    """The first two photos of a set as a pair, from the forward of the set."""
    record, about = several.record, several.provenance
    with outside_inference_mode(), torch.enable_grad():
        x, y = (record.required_embedding()[number : number + 1] for number in (0, 1))
    sides = [replace(about, pictures=(about.pictures[i],), frames=(about.frames[i],)) for i in (0, 1)]
    return PairTrace((record,), (x, y), (sides[0], sides[1]))


def blocks_of(source: Trace | PairTrace | SetTrace) -> tuple[str, ...]:
    """The blocks that a trace captured."""
    return tuple(source.record.blocks) if isinstance(source, SetTrace) else source.blocks


def shows_third(controls: Controls) -> bool:
    """Whether the chosen view compares the first photo with both others, if there is a third one."""
    return controls.view in CONTRAST_VIEWS


def stage_images(shown: Shown) -> list[StageImage]:
    """The pictures of the chosen view, or of a clicked point and its match. The photos of a pair alternate."""
    source, controls = shown.source, shown.controls
    if shown.point is not None and shown.split is not None:
        return _point_images(shown.split, shown.photos, controls, shown.point)
    if shown.shows_links:
        return [_links_image(shown)]
    reason = "why similar" if isinstance(source, PairTrace) else "why more like the second photo than the third"
    reason = f"why {source.explain('gam', 1).names[0]}" if isinstance(source, Trace) else reason
    clickable = isinstance(source, PairTrace) and PAIR_SCORES[controls.score].sums_over_positions
    sides = ("x", "y") if clickable and not shown.has_third else ("",) * len(shown.photos)
    images = []
    for one in shown.each:
        for number, (side, photo, result) in enumerate(zip(sides, shown.photos, one.results, strict=True)):
            frame = scaled_frame(result.frames[0], photo.shown)
            small = replace(result, pictures=(Picture(photo.name, pixels=photo.shown),), frames=(frame,))
            if controls.view == "evidence":
                images += _evidence_images(one.traces[number], small, controls, reason, side)
            else:
                images.append(_map_image(small, one, number, reason, side))
    return images


def _map_image(result: Explanation, shown: Shown, number: int, reason: str, side: str) -> StageImage:
    controls = shown.controls
    title = METHODS[controls.method].title
    blocks = controls.block
    if blocks == MEAN_OF_N:
        blocks = f"last {len(result.blocks)} blocks" if len(result.blocks) > 1 else "last block"
    if METHODS[controls.method].kind == "attention":
        blocks = f"{result.about['n']} attention layers"
    sharp = ", sharp" if controls.sharp else ""
    full, bar = result.full(0).cpu().numpy(), None
    found = _peak(full)
    if result.signed:
        words = shown.words(number)
        bar = sign_bar(result, controls, words) if strongest(result) else None
        found = f"{words.positive}: {_peak(full.clip(min=0))}, {words.negative}: {_peak((-full).clip(min=0))}"
    alt = f"{result.pictures[0].name}: {title}{sharp}, {reason}, {found}"
    caption = blocks + sharp
    if isinstance(shown.source, SetTrace):
        title, caption = CONTRAST_TITLES[number], f"{title}, {caption}"
    return StageImage(draw_map(result, controls), title, alt, caption, side, bar=bar)


def _links_image(shown: Shown) -> StageImage:
    x, y = (photo.name for photo in shown.photos)
    drawn = shown.links
    places = "; ".join(f"{row.share} {row.places}" for row in drawn.rows[:3])
    alt = f"{x} and {y} side by side with {len(drawn.rows)} lines between places that match; strongest: {places}"
    return StageImage(drawn.image, "Links", alt, drawn.text)


def _evidence_images(trace: Trace, result: Explanation, controls: Controls, reason: str, side: str) -> list[StageImage]:
    """Three pictures of Eq. 4: P and |N| on one scale, and the pixels that Grad-CAM hides, dimmed and outlined."""
    found = trace.evidence(None if controls.block == MEAN_OF_N else controls.block)
    cmaps, name = (controls.cmap, "ocean"), result.pictures[0].name
    drawn = draw_evidence(found, result.image(0), result.frames[0], opacity=controls.opacity, cmaps=cmaps)
    words = [f"{title} {reason}, {_peak(full)}" for title, full in zip(EVIDENCE_TITLES, drawn.maps, strict=False)]
    share = f"{100 * float(found.hidden_share[0]):.0f} % of the positive evidence"
    words.append(f"Grad-CAM hides {share}, dimmed here")
    return [
        StageImage(image, title, f"{name}: {text}", caption, side)
        for image, title, text, caption in zip(drawn[:3], EVIDENCE_TITLES, words, ("", "", share), strict=True)
    ]


def _point_images(
    pair: PairTrace, photos: Sequence[Photo], controls: Controls, point: ClickedPoint
) -> list[StageImage]:
    """Two pictures, x first: the clicked point on its photo, and what matches it on the other photo."""
    number = "xy".index(point.side)
    here, there = photos[number], photos[1 - number]
    match = point_match(pair, photos, controls, point)
    frame = scaled_frame(match.frame, there.shown)
    shown = replace(match, frame=frame, picture=Picture(there.name, pixels=there.shown))
    image = shown.overlay(opacity=controls.opacity, cmap=controls.cmap)
    x, y = shown.best[0] / image.width, shown.best[1] / image.height
    best = (min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0))
    alt = f"{here.name} with a mark {where(point.x, point.y)}"
    count = f"one of {match.cells[0]} × {match.cells[1]} positions"
    cell = pair.provenances[number].frames[0].cell_box(match.cell, match.cells)
    asked = StageImage(here.shown, "The spot you clicked", alt, count, point.side, (point.x, point.y), cell)
    share = (
        f"adds {match.part:.3g} of {match.score:.3g} ({100 * match.part / match.score:.1f} %)" if match.score else ""
    )
    alt = f"{there.name}: the best match is {where(*best)}"
    answer = StageImage(image, "What matches it", alt, share, side="yx"[number], dot=best)
    return [asked, answer] if point.side == "x" else [answer, asked]


def point_match(pair: PairTrace, photos: Sequence[Photo], controls: Controls, point: ClickedPoint) -> Matches:
    """The matches of the clicked point for the chosen score, in pixels of the original photos."""
    width, height = photos["xy".index(point.side)].size
    return pair.matches((point.x * width, point.y * height), side=point.side, score=controls.score)


def notes(shown: Shown) -> list[str]:
    """Remarks that a visitor should read before trusting the pictures."""
    traces, controls, said = shown.traces, shown.controls, []
    if shown.about.get("weights") == "random":
        said.append("The model's weights are random: it has learned nothing, and its maps mean nothing.")
    if shown.has_third and isinstance(shown.source, PairTrace):
        said.append(FIRST_TWO_ONLY)
    if shown.shows_links:
        return said
    flat = [one for one in shown.each if any(float(result.maps.abs().max()) == 0 for result in one.results)]
    if flat:
        said.append(_no_gradient(shown) or FLAT_MAP.format(" and ".join(map(_title, flat))))
    hides = max((float(trace.evidence().hidden_share[0]) for trace in traces), default=0.0)
    hiding = [METHODS[name].title for name in controls.methods if METHODS[name].hides_evidence]
    if hiding and controls.view != "evidence" and hides > HIDDEN_SHARE:
        under = "of the positive evidence under negative gradients"
        said.append(f"{hiding[0]} hides {100 * hides:.0f} % {under}: see Eq. 4, or use GAM.")
    if controls.sharp and controls.view == "evidence":
        said.append("Sharp refines maps. These pictures show the parts that Grad-CAM adds up, which stay as they are.")
    if controls.sign == BOTH_SIGNS and controls.view != "evidence":
        said += [
            f"{METHODS[name].title} does not tell what raises the score from what lowers it: its map has no sign."
            for name in controls.methods
            if not METHODS[name].has_sign
        ]
    return said


def _title(shown: Shown) -> str:
    return METHODS[shown.controls.method].title


def _no_gradient(shown: Shown) -> str:
    """Why the score of a pair has no gradient, and what to look at instead; empty where it has one."""
    if not isinstance(shown.source, PairTrace):
        return ""
    score = PAIR_SCORES[shown.controls.score]
    x, y = (at_least_float32(embedding.detach()) for embedding in shown.source.embeddings)
    if not bool(score.saturated_pairs(shown.traces[0].scores, x, y).any()):
        return ""
    because = f"The map is flat: {score.saturated_because}."
    return f"{because} Choose the similarity {PAIR_SCORES[score.instead].title}." if score.instead else because


def guesses(trace: Trace, most: int = 5) -> list[Guess]:
    """The `most` best classes, and the explained class if it is not among them."""
    best, target = trace.top(most)[0], int(trace.targets[0])
    if all(guess.index != target for guess in best):
        every = trace.top(trace.output.shape[1] if trace.output is not None else most)[0]
        best += [guess for guess in every if guess.index == target]
    return best


def _peak(full: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> str:
    """Where a map (H,W) has its maximum, in words."""
    if float(full.max()) == 0:
        return "flat"
    row, column = divmod(int(full.argmax()), full.shape[1])
    return f"strongest {where(column / full.shape[1], row / full.shape[0])}"
