"""The studio: a page on this machine that shows why. `gamlens.studio.launch(lens)` opens it on a lens of yours."""

from gamlens.studio.server import Studio, launch
