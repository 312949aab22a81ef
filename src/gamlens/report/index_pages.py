"""The pages about groups of an index: near duplicates and clusters, and what the images of each group share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence

from gamlens.errors import GamlensError, GamlensWarning, attempt, printable
from gamlens.explanation import GroupExplanation
from gamlens.figures.panels import is_empty
from gamlens.index.hits import Hit
from gamlens.index.index import Index
from gamlens.index.short_text import short
from gamlens.render import Grid, Page, Panel, ScaleKey, Section, thumbnail
from gamlens.report.image_files import limited_page, small_overlay

MEMBER_SIDE, MEMBERS_ACROSS = 300, 6
LOST_NAMED = 3  # files of a group that are named because they cannot be shown
SHARED_KEYS = (ScaleKey("What makes it like the others", "least", "most", over=True),)


def groups_page(
    index: Index,
    groups: Sequence[Sequence[Hit]],
    *,
    title: str,
    lead: str,
    what: str,
    members: int,
    total: int,
    status: Callable[[int], None] = lambda done: None,
) -> Page:
    """A page with one section per group: its first images, and on each of them what makes it like the others.

    Args:
        index: The index that was divided into groups.
        groups: The groups that are shown.
        title, lead: Of the page.
        what: What a group is called, such as "cluster".
        members: How many images of a group are shown, from its first on.
        total: How many groups there are in all.
        status: Called with the number of groups that are done.
    """
    sections = []
    for number, group in enumerate(groups, 1):
        sections.append(_section(index, group, f"{what.capitalize()} {number}: {len(group)} images", members))
        status(number)
    return limited_page(title, lead, sections, limit=len(groups), count=total, what=f"{what}s")


def _section(index: Index, group: Sequence[Hit], title: str, members: int) -> Section:
    shown: list[Hit] = []
    lost: list[Hit] = []
    for hit in group:
        if len(shown) == members:
            break
        (lost if hit.fault else shown).append(hit)
    if not shown:
        return Section(title, (), f"{_about_lost(lost)} Nothing can be shown.")
    if len(shown) == 1:
        alone = f"`{printable(shown[0].file)}`"
        return Section(title, (), f"{alone}, alone." if len(group) == 1 else f"{alone}. {_about_lost(lost)}")
    text = f"{len(shown)} of {len(group)} images are shown." if len(group) > len(shown) else ""
    text = " ".join(filter(None, (text, _about_lost(lost))))
    found = attempt(_explained, index, shown)
    if isinstance(found, GamlensError):
        return Section(title, (), f"It cannot be explained: {found}")
    panels = []
    for row, hit in enumerate(shown):
        same = is_empty(found.images, row)  # a map of what is the same everywhere shows nothing
        picture = found.images.image(row) if same else small_overlay(found.images, row, side=MEMBER_SIDE)
        words = "the same to the model" if same else "what makes it like the others"
        value = f"mean {index.score} {float(found.images.scores[row]):.3f}" + (f", {words}" if same else "")
        name = short(os.path.basename(hit.file))
        panels.append(Panel(thumbnail(picture, MEMBER_SIDE), name, value, f"{name}: {words}"))
    rows = tuple(tuple(panels[at : at + MEMBERS_ACROSS]) for at in range(0, len(panels), MEMBERS_ACROSS))
    return Section(title, (Grid(rows, keys=SHARED_KEYS),), text)


def _about_lost(lost: Sequence[Hit]) -> str:
    """That files of a group cannot be shown, because they are gone or have other contents now; "" if there is none."""
    said = []
    for fault, one, several in (
        ("gone", "is gone", "are gone"),
        ("changed", "has changed since it was indexed", "have changed since they were indexed"),
    ):
        own = [f"`{short(os.path.basename(hit.file))}`" for hit in lost if hit.fault == fault]
        if own:
            more = f" and {len(own) - LOST_NAMED} more" if len(own) > LOST_NAMED else ""
            files = "The file" if len(own) == 1 else f"The files of {len(own)} images"
            said.append(f"{files} {one if len(own) == 1 else several}: {', '.join(own[:LOST_NAMED])}{more}.")
    return " ".join([*said, "Run `gamlens index update`."] if said else said)


def _explained(index: Index, shown: Sequence[Hit]) -> GroupExplanation:
    with warnings.catch_warnings(action="ignore", category=GamlensWarning):  # the page says which maps are empty
        return index.lens.group([hit.file for hit in shown], score=index.score, method="gam", n=1)
