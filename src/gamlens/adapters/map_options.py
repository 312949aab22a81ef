"""How the maps that an adapter hands out are made: the options that classes and pairs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gamlens.capture.forward import BY_NETWORK
from gamlens.fuse import Fusion
from gamlens.inputs.batch import ViewList, Views
from gamlens.methods import METHODS
from gamlens.refine import Refine, Sharp, preset


@dataclass(frozen=True)
class MapOptions:
    """How maps are made. `Lens.classify` and `Lens.compare` take these options, and their docstrings explain them.

    Unknown names are an error when the options are made, before any image is explained.

    >>> options = MapOptions(method="layer_cam", n=1)
    >>> options.changed({"n": 2, "device": "cpu"}).n  # names that are no options are left alone
    2
    """

    method: str = BY_NETWORK
    n: int | str = BY_NETWORK
    fuse: Fusion = "mean"
    lattice: str = "read"
    refine: Refine = False
    sharp: Sharp = False
    views: ViewList = ()

    def __post_init__(self) -> None:
        if self.method != BY_NETWORK:
            METHODS[self.method]
        Views.parse(preset(self.sharp, self.refine, self.views)[1])

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the options."""
        return tuple(field.name for field in fields(cls))

    def changed(self, given: Mapping[str, Any]) -> MapOptions:
        """A copy with those of the options changed that `given` names."""
        own = {name: given[name] for name in self.names() if name in given}
        return replace(self, **own) if own else self

    def keywords(self) -> dict[str, Any]:
        """The options as keyword arguments for `Lens.classify` and `Lens.compare`."""
        return dict(vars(self))
