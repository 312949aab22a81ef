"""Galleries of remembered images, and pairs explained by the thousand."""

from gamlens.retrieval.gallery import Gallery
from gamlens.retrieval.many_pairs import compare_many
from gamlens.retrieval.remember import remember, remember_readable
from gamlens.retrieval.select import PairOptions

__all__ = ["Gallery", "PairOptions", "compare_many", "remember", "remember_readable"]
