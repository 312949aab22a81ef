"""What a name among the methods of an evaluation stands for: how one row of maps is made."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gamlens import methods
from gamlens.errors import GamlensError
from gamlens.evaluation.explainers.explainer import Explainer
from gamlens.scores import PAIR_SCORES

VARIANTS = ("refine", "views")  # the suffixes that a name of METHODS may have, after a "+" each
PACKAGE_MARK = ":"  # stands between a package, or a file, and what is taken from it


@dataclass(frozen=True)
class MapRow:
    """How the maps of one name are made.

    Attributes:
        name: The name in results: "gam", "gam+refine", "captum:IntegratedGradients".
        method: For our own methods the name in METHODS; "" for an explainer.
        variant: The suffixes of the name, in the order of VARIANTS.
        explainer: An Explainer, or its spec; None for our own methods.
    """

    name: str
    method: str = ""
    variant: tuple[str, ...] = ()
    explainer: Explainer | str | None = None

    @classmethod
    def parse(cls, given: str | Explainer) -> MapRow:
        """Read a name.

        >>> MapRow.parse("gam+views").variant
        ('views',)
        """
        if isinstance(given, Explainer):
            return cls(given.name, explainer=given)
        if not isinstance(given, str):
            raise GamlensError(
                f"A method is a name or an Explainer, found {given!r:.80}: wrap a function by bench.external(function)."
            )
        if PACKAGE_MARK in given:
            return cls(given, explainer=given)
        method, *suffixes = given.split("+")
        methods.find(method)
        if wrong := [one for one in suffixes if one not in VARIANTS]:
            known = " and ".join(f"+{one}" for one in VARIANTS)
            raise GamlensError(
                f"The method {given!r} ends in +{wrong[0]}, which means nothing here: there are {known}."
            )
        variant = tuple(one for one in VARIANTS if one in suffixes)
        return cls("+".join((method, *variant)), method, variant)

    def check(self, task: str) -> None:
        """Raise a GamlensError if this cannot be measured for a task: classes, or pairs by a score."""
        if isinstance(self.explainer, Explainer):
            fits = self.explainer.classes if task == "classification" else self.explainer.pairs
            if not fits:
                what = "classes" if task == "classification" else "pairs"
                raise GamlensError(
                    f"The explainer {self.name!r} does not explain {what}: leave it out for task {task}."
                )
        if self.method:
            kind = methods.find(self.method).kind
            if kind == "pair" and task == "classification":
                raise GamlensError(f"Method {self.method!r} explains pairs only: use task {' or '.join(PAIR_SCORES)}.")
            if self.variant and kind == "input":
                raise GamlensError(f"{self.name!r}: {self.method} reads the pixels, not blocks: it has no variants.")
            if "views" in self.variant and kind == "pair":
                raise GamlensError(
                    f"{self.name!r}: {self.method} compares the blocks of two images in their plain view alone: leave "
                    "+views out."
                )

    def resolved(self) -> MapRow:
        """The same row with the explainer that its spec names, which imports the package."""
        if not isinstance(self.explainer, str):
            return self
        from gamlens.evaluation.explainers import find

        return replace(self, explainer=find(self.explainer))

    @property
    def reads_blocks(self) -> bool:
        """Whether the row is made of a trace that all such rows share, once for every n."""
        return bool(self.method) and methods.find(self.method).kind != "input"
