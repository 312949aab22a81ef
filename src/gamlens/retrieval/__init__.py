"""Images remembered, and pairs of them explained by the thousand."""

from gamlens.retrieval.collect import Ask
from gamlens.retrieval.gallery import Gallery
from gamlens.retrieval.many_pairs import compare_many
from gamlens.retrieval.remember import Depth, Eye, Glance, fingerprint, remember, remember_readable

__all__ = ["Ask", "Depth", "Eye", "Gallery", "Glance", "compare_many", "fingerprint", "remember", "remember_readable"]
