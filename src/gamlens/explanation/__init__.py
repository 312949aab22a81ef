"""The result of an explanation and what it can do."""

from gamlens.explanation.result import NO_CLASS, Explanation, PairExplanation, concat, file_stem
