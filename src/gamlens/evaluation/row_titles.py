"""What the rows of tables are called: our methods and their variants, explainers of other libraries, and controls."""

from contextlib import suppress

from gamlens.errors import GamlensError
from gamlens.methods import METHODS
from gamlens.metrics import CONTROLS

VARIANT_WORDS = {"refine": "refined", "views": "views"}  # what a suffix of a method's name is called: "gam+refine"
REFINED_ENDING = "_refined"  # of the name of a control whose maps were refined


def method_title(method: str) -> str:
    """The name that people read, of a method, a variant of it, an explainer of another library, or a control.

    >>> method_title("gam+refine+views")
    'GAM, refined, views'
    >>> method_title("centre_refined")
    'centre, refined (control)'
    """
    base, words = without_variants(method)
    plain = base.removesuffix(REFINED_ENDING)
    if plain in CONTROLS:
        return ", ".join([plain, *(["refined"] if plain != base else []), *words]) + " (control)"
    title = METHODS[base].title if base in METHODS else _external_title(base)
    return ", ".join([title, *words])


def row_title(method: str, n: int) -> str:
    """The name of a row: the method's, and the number of blocks it used; a control (n = 0) has no blocks.

    An explainer of another library chooses its layers itself, and some methods read the pixels: these have no n.

    >>> row_title("gam", 2), row_title("blank", 0), row_title("input_gradient", 1)
    ('GAM, n=2', 'blank (control)', 'Input gradient')
    """
    title = method_title(method)
    return f"{title}, n={n}" if n > 0 and not has_one_row(method) else title


def has_one_row(method: str) -> bool:
    """Whether a method that is no control has one row, whatever n: it does not read the last n blocks."""
    return is_external(method) or reads_pixels(method)


def is_external(method: str) -> bool:
    """Whether a row is of an explainer of another library or of a user's file, such as `captum:IntegratedGradients`."""
    return ":" in method


def reads_pixels(method: str) -> bool:
    """Whether a row is of a method of ours that reads the pixels in place of blocks: it has one row for all n."""
    return method in METHODS and METHODS[method].kind == "input"


def without_variants(method: str) -> tuple[str, list[str]]:
    """Split a name into the method and the words of its variants, which are known suffixes after a `+`.

    >>> without_variants("captum:Saliency+views")
    ('captum:Saliency', ['views'])
    """
    words: list[str] = []
    base, mark, last = method.rpartition("+")
    while mark and last in VARIANT_WORDS:
        words.insert(0, VARIANT_WORDS[last])
        method = base
        base, mark, last = method.rpartition("+")
    return method, words


def _external_title(spec: str) -> str:
    """The title that `explainers` has for a spec; the spec itself if it has none, or if its file is no longer there."""
    from gamlens.evaluation.explainers import title_of  # here: only tables with such rows need the explainers

    with suppress(GamlensError):
        return title_of(spec)
    return spec
