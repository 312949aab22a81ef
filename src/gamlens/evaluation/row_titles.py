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

    An explainer of another library chooses its layers itself: its name stands alone.

    >>> row_title("gam", 2), row_title("blank", 0)
    ('GAM, n=2', 'blank (control)')
    """
    title = method_title(method)
    return f"{title}, n={n}" if n > 0 and not is_external(method) else title


def is_external(method: str) -> bool:
    """Whether a row is of an explainer of another library or of a user's file, such as `captum:IntegratedGradients`."""
    return ":" in method


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
    from gamlens.evaluation import explainers  # here: the explainers may import this module

    find = getattr(explainers, "title_of", None)
    if find is not None:
        with suppress(GamlensError):
            return str(find(spec))
    return spec
