"""What a change of an index did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

Status = Callable[[int, int], None]  # called with the number of files that are done, and of those that are bad


@dataclass(frozen=True)
class IndexChanges:
    """What a change of an index did.

    Attributes:
        added, changed, moved, removed: How many images are new, have new contents, have another path, are gone.
        unchanged: How many files were looked at and are as they were.
        bad: The files that cannot be read, with the reason.
        annotated: How many images got columns of a table.
        missing: Folders that were added once and are not there, or hold no image any more. Their images stay.
        forwards: How many images were run through the model.
        seconds: How long it took.
    """

    added: int = 0
    changed: int = 0
    moved: int = 0
    removed: int = 0
    unchanged: int = 0
    bad: Mapping[str, str] = field(default_factory=dict)
    annotated: int = 0
    missing: tuple[str, ...] = ()
    forwards: int = 0
    seconds: float = 0.0

    def joined(self, other: IndexChanges) -> IndexChanges:
        """What this change and another one did together."""
        both: dict[str, Any] = {}
        for own in fields(self):
            one, two = getattr(self, own.name), getattr(other, own.name)
            both[own.name] = {**one, **two} if isinstance(one, Mapping) else one + two
        return IndexChanges(**both)

    @property
    def record(self) -> dict[str, Any]:
        """The change as JSON."""
        found = {own.name: getattr(self, own.name) for own in fields(self)}
        return {**found, "bad": dict(self.bad), "missing": list(self.missing)}

    def __str__(self) -> str:
        named = ("added", "changed", "moved", "removed", "unchanged")
        said = [f"{getattr(self, name)} {name}" for name in named if getattr(self, name)]
        said += [f"{len(self.bad)} cannot be read"] if self.bad else []
        said += [f"{self.annotated} annotated"] if self.annotated else []
        return ", ".join(said) or "nothing to do"
