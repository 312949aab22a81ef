"""Saliency methods, one file per paper. Each is a pure function from tensors to an unnormalised map (B,h,w).

An entry of `METHODS` says which tensors the function of a method takes, and which properties its map has.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from gamlens.errors import Registry
from gamlens.fuse import at_least_float32, without_autocast
from gamlens.methods.attention_gam import attention_gam
from gamlens.methods.attention_rollout import attention_rollout
from gamlens.methods.chefer import chefer
from gamlens.methods.eigen_cam import eigen_cam
from gamlens.methods.gam import gam
from gamlens.methods.grad_cam import evidence, grad_cam
from gamlens.methods.grad_cam_pp import grad_cam_pp, grad_cam_pp_literal
from gamlens.methods.grad_eclip import grad_eclip
from gamlens.methods.guided_backprop import Guided, guided_backprop
from gamlens.methods.hires_cam import hires_cam
from gamlens.methods.input_gradient import input_gradient
from gamlens.methods.layer_cam import layer_cam
from gamlens.methods.legrad import legrad
from gamlens.methods.vdsn import vdsn, vdsn_max
from gamlens.methods.xgrad_cam import xgrad_cam

Kind = Literal["block", "attention", "pair", "input"]
Reads = Literal[
    "activation", "gradient", "score", "other", "attention", "attention_gradient", "direct_gradient", "own_gradient",
    "query", "key", "value", "output_gradient", "pooled", "image",
]  # fmt: skip


@dataclass(frozen=True)
class Method:
    """An entry of METHODS: the function of a method, and the properties by which the rest of the package uses it.

    Attributes:
        fn: Tensors of B rows -> a map (B,h,w), neither resized nor normalised. `reads` says which tensors.
        kind: "block": a map of one image from one block, (B,C,h,w). "attention": a map of one image from the attention
            layers of a transformer; `fn` returns one number per token, (B,N). "pair": a map of an image from its last
            block and that of the image it is compared with. "input": a map of one image from the pixels, which needs a
            pass of its own through the whole network.
        title: The name that people read.
        reads_score: Whether `fn` is given the explained score, (B,), too.
        during: Makes the context that the forward of an "input" method runs under.
        needs_gradient: Whether `fn` is given the gradient of the score. If not, images that are traced for this method
            run without a graph and without a backward.
        hides_evidence: Whether the map is relu(P + N) of Eq. 4, so that it is zero wherever the negative part N
            outweighs the positive part P. A result then warns if more than half of P is hidden in this way.
        scales_with_gradient: Whether `fn` is proportional to the gradient: c times the gradient gives c times the map,
            for every c > 0. The normalised map is then the same for any multiple of a score.
        divides: Whether `fn` divides by a number that may be close to zero: a sum of activations or gradients, or the
            difference of two singular values. Rounding errors are then large, and tests allow for that.
        signed: Whether the map may have negative values if the activation has some. Maps of all other methods are
            never negative.
        stable: Whether finite tensors always give a finite map, computed in their own precision. The literal
            Grad-CAM++ always computes in float32, and overflows.
        layer_tensors: For a method of kind "attention": what `fn` is given of an attention layer, as in `reads`.
        joins_layers: For a method of kind "attention": whether `fn` is given all layers at once, each tensor of a layer
            with a first axis for the layers, (L,B,...), and gives one map of them. Otherwise it gives one map per
            layer, and these are fused.
    """

    fn: Callable[..., Tensor]
    kind: Kind
    title: str = ""
    reads_score: bool = False
    during: Callable[[], AbstractContextManager[Any]] = nullcontext
    needs_gradient: bool = True
    hides_evidence: bool = False
    scales_with_gradient: bool = False
    divides: bool = False
    signed: bool = False
    stable: bool = True
    layer_tensors: tuple[Reads, ...] = ()
    joins_layers: bool = False

    @cached_property
    def reads(self) -> tuple[Reads, ...]:
        """What `fn` is given, in this order, one row per map.

        "activation" (B,C,h,w) is the block, or the pixels; "other" (B,C,h',w') is the block of the other image of a
        pair; "gradient" (B,C,h,w) is the gradient of the score with respect to the activation; "score" is (B,).

        Of an attention layer with H heads and N tokens: "attention" (B,H,N,N), queries before keys; its gradient
        (B,H,N,N), of the score ("attention_gradient"), of the score along the residual connections alone, without what
        later layers do ("direct_gradient"), or of the score of the layer's own tokens ("own_gradient"); "query", "key",
        "value" (B,H,N,d); "output_gradient" (B,H,N,d), with respect to what the heads give; "pooled" (B,N), the share
        of each token in what the score is read from; "image" (N,), whether a token is one of the image.
        """
        if self.kind == "attention":
            return self.layer_tensors
        if self.kind == "pair":
            return ("activation", "other")
        gradient: tuple[Reads, ...] = ("gradient",) if self.needs_gradient else ()
        score: tuple[Reads, ...] = ("score",) if self.reads_score else ()
        return ("activation", *gradient, *score)

    @cached_property
    def has_sign(self) -> bool:
        """Whether the map of the negated score shows what lowers the score, so that there are signed maps.

        A map that reads no gradient does not know the sign of the score, except that of a pair, whose raw values are
        negative where a position lowers it. Maps of pixels show the size of the gradient, whatever its sign.
        """
        return self.kind == "pair" or (self.kind != "input" and any("gradient" in what for what in self.reads))

    def of_pair(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Both raw maps of P pairs by a method of kind "pair".

        (P,C,h,w), (P,C,h',w') -> (P,h,w), (P,h',w'), in float32 or wider.
        """
        with torch.no_grad(), without_autocast(x):
            x, y = at_least_float32(x), at_least_float32(y)
            return self.fn(x, y), self.fn(y, x)


METHODS: dict[str, Method] = Registry(
    "method",
    {
        "gam": Method(gam, "block", "GAM", scales_with_gradient=True),
        "grad_cam": Method(grad_cam, "block", "Grad-CAM", hides_evidence=True, scales_with_gradient=True),
        "grad_cam_pp": Method(grad_cam_pp, "block", "Grad-CAM++", divides=True),
        "grad_cam_pp_literal": Method(
            grad_cam_pp_literal, "block", "Grad-CAM++ (literal)", reads_score=True, divides=True, stable=False
        ),
        "layer_cam": Method(layer_cam, "block", "LayerCAM", scales_with_gradient=True),
        "hires_cam": Method(hires_cam, "block", "HiResCAM", scales_with_gradient=True),
        "xgrad_cam": Method(xgrad_cam, "block", "XGrad-CAM", scales_with_gradient=True, divides=True),
        "eigen_cam": Method(eigen_cam, "block", "Eigen-CAM", needs_gradient=False, divides=True, signed=True),
        "attention_gam": Method(
            attention_gam, "attention", "Attention GAM", layer_tensors=("attention", "direct_gradient")
        ),
        "legrad": Method(legrad, "attention", "LeGrad", layer_tensors=("own_gradient",), joins_layers=True),
        "chefer": Method(
            chefer,
            "attention",
            "Chefer et al.",
            layer_tensors=("attention", "attention_gradient", "pooled"),
            joins_layers=True,
        ),
        "grad_eclip": Method(
            grad_eclip,
            "attention",
            "Grad-ECLIP",
            divides=True,
            layer_tensors=("query", "key", "value", "output_gradient", "pooled", "image"),
        ),
        "attention_rollout": Method(
            attention_rollout,
            "attention",
            "Attention rollout",
            layer_tensors=("attention", "pooled"),
            joins_layers=True,
        ),
        "vdsn": Method(vdsn, "pair", "VDSN", needs_gradient=False, signed=True),
        "vdsn_max": Method(vdsn_max, "pair", "VDSN (max pooling)", needs_gradient=False, signed=True),
        "input_gradient": Method(input_gradient, "input", "Input gradient", scales_with_gradient=True),
        "guided_backprop": Method(
            guided_backprop, "input", "Guided backprop", during=Guided, scales_with_gradient=True
        ),
    },
)
PAPER_METHODS = ("gam", "grad_cam_pp", "grad_cam")  # those that the paper compares, in the order of its tables
BLOCK_DEFAULT = "gam"  # the default where a network has blocks ...
ATTENTION_DEFAULT = "attention_gam"  # ... and where its attention can be read
FIGURE_METHODS = tuple(name for name in METHODS if name in PAPER_METHODS)  # the same, in the order of METHODS


def find(name: str) -> Method:
    """The method of that name, or an error with near matches."""
    return METHODS[name]


def names(*kinds: Kind) -> tuple[str, ...]:
    """The names of the methods of these kinds, in the order of METHODS.

    >>> names("pair")
    ('vdsn', 'vdsn_max')
    """
    return tuple(name for name, method in METHODS.items() if method.kind in kinds)
