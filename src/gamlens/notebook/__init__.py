"""The interactive view of a result in a Jupyter notebook (extra `gamlens[notebook]`); a picture where there is none."""

from gamlens.notebook.display import mime_bundle, open_view
