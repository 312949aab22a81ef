"""The studio: a web page on this machine that explains photos. `gamlens.studio.launch(lens)` starts it for a lens."""

from gamlens.studio.server import Studio, launch
