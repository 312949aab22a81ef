"""Images remembered, and pairs of them explained by the thousand."""

from gamlens.gallery.look import Depth, Eye, Glance, fingerprint, remember, remember_readable
from gamlens.gallery.many import compare_many
from gamlens.gallery.record import Gallery
from gamlens.gallery.sink import Ask

__all__ = ["Ask", "Depth", "Eye", "Gallery", "Glance", "compare_many", "fingerprint", "remember", "remember_readable"]
