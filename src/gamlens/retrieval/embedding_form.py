"""How an embedding is computed from the last block, for the forms whose gradient can be written down.

Let h (C,u,v) be the last block of an image, m = 1/(uv) sum_p h_p its average over positions, and J the Jacobian of its
embedding e (D,) with respect to h. If s is the score of this image and another, the chain rule gives ds/dh = J^T v with
v = ds/de, where ^T means transposed.

linear: e = a m + b with a number a and a vector b, as with average pooling (a = 1) and sum pooling (a = uv). Every
    position has the same weight in the average, so de/dh_p = a/(uv) I at every position p, and (J^T v)_p = c v with
    c = a/(uv).
unit: e = m/|m|. The Jacobian of m/|m| with respect to m is (I - e e^T)/|m|, and dm/dh_p = I/(uv), so
    (J^T v)_p = c (v - <v,e> e) with c = 1/(uv |m|). The part of v along e would change only the length of e, which is
    always 1, so it is subtracted.

In both forms J^T v is the same vector at every position: one vector (D,) per image and pair is the whole gradient, and
a pair needs neither a forward nor a backward. For the cosine s of linear embeddings f_x and f_y, v is Eq. 5 of the GAM
paper: ds/df_x = f_y / (|f_x| |f_y|) - s f_x / |f_x|^2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens.capture import backward
from gamlens.capture.forward import ForwardRecord
from gamlens.capture.guard import outside_inference_mode
from gamlens.fuse import at_least_float32, without_autocast

EMBEDDING_FORMS = LINEAR_FORM, UNIT_FORM, OTHER_FORM = "linear", "unit", "other"
FORM_TOLERANCE = 0.02  # how far the gradient may be from that of the formula, relative to its length


def find_form(record: ForwardRecord, embeddings: Tensor) -> tuple[str, Tensor]:
    """Find the form of embeddings (B,D) by comparing the result of one backward with both formulas.

    The backward computes J^T v for one vector v per image. v is the sum of a random direction and the direction of e.
    The two formulas differ only along e; the random part makes it very unlikely that an embedding of any other form
    agrees with one of them.

    Returns:
        The form, and its factors c (B,). The form "other" has factors of zero. It is also returned if the record has no
        graph: such a record was made for a method that needs no gradient, and so needs no form.
    """
    e = at_least_float32(embeddings.detach())
    if not record.has_graph:
        return OTHER_FORM, e.new_zeros(len(e))
    noise = torch.randn(e.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(e)
    v = F.normalize(noise) + F.normalize(e)
    with without_autocast(e), outside_inference_mode(), torch.enable_grad():
        along = (at_least_float32(embeddings) * v).sum(dim=1)
    (found,) = backward.gradients(along, [record], keep_graph=True)
    name, gradient = list(found.items())[-1]
    coarse = max(torch.finfo(t.dtype).eps for t in (record.blocks[name], embeddings))
    if gradient.shape[1] == e.shape[1]:
        with torch.no_grad(), without_autocast(e):
            g = at_least_float32(gradient)
            length = g.flatten(1).norm(dim=1).clamp(min=torch.finfo(g.dtype).tiny)
            for form in (LINEAR_FORM, UNIT_FORM):
                expected = block_gradient(form, v, e)
                scale = (g.mean(dim=(2, 3)) * expected).sum(dim=1) / expected.square().sum(dim=1)
                off = (g - (scale[:, None] * expected)[:, :, None, None]).flatten(1).norm(dim=1) / length
                if bool((off <= min(100 * coarse, FORM_TOLERANCE)).all()):
                    return form, scale
    return OTHER_FORM, e.new_zeros(len(e))


def block_gradient(form: str, v: Tensor, e: Tensor) -> Tensor:
    """J^T v at any position, without the factor c: gradients v (P,D) and embeddings e (P,D) -> (P,D)."""
    return v - (v * e).sum(dim=1, keepdim=True) * e if form == UNIT_FORM else v
