"""Explanation and PairExplanation, the results of a Lens, and how they are saved."""

from gamlens.explanation.relations import ContrastExplanation, GroupExplanation
from gamlens.explanation.result import NO_CLASS, Explanation, PairExplanation, concat, file_stem
