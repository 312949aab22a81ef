"""Saliency methods, one file a paper. Each is a pure function from tensors to an unnormalised map (B,h,w)."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from gamlens.errors import Registry
from gamlens.methods.gam import gam
from gamlens.methods.grad_cam import evidence, grad_cam
from gamlens.methods.grad_cam_pp import grad_cam_pp, grad_cam_pp_literal
from gamlens.methods.guided_backprop import Guided, guided_backprop
from gamlens.methods.hires_cam import hires_cam
from gamlens.methods.input_gradient import input_gradient
from gamlens.methods.layer_cam import layer_cam
from gamlens.methods.vdsn import vdsn
from gamlens.methods.xgrad_cam import xgrad_cam

Kind = Literal["block", "pair", "input"]


@dataclass(frozen=True)
class Method:
    """An entry of METHODS.

    `block` methods take (activation, gradient), and the score too where `reads_score`; `pair` methods take the
    last activations of the two images; `input` methods take (pixels, gradient by the pixels), which need a pass of
    their own through the whole network, under the context that `during` makes.
    """

    fn: Callable[..., Tensor]
    kind: Kind
    title: str = ""
    reads_score: bool = False
    during: Callable[[], AbstractContextManager[Any]] = nullcontext


METHODS: dict[str, Method] = Registry(
    "method",
    {
        "gam": Method(gam, "block", "GAM"),
        "grad_cam": Method(grad_cam, "block", "Grad-CAM"),
        "grad_cam_pp": Method(grad_cam_pp, "block", "Grad-CAM++"),
        "grad_cam_pp_literal": Method(grad_cam_pp_literal, "block", "Grad-CAM++ (literal)", reads_score=True),
        "layer_cam": Method(layer_cam, "block", "LayerCAM"),
        "hires_cam": Method(hires_cam, "block", "HiResCAM"),
        "xgrad_cam": Method(xgrad_cam, "block", "XGrad-CAM"),
        "vdsn": Method(vdsn, "pair", "VDSN"),
        "input_gradient": Method(input_gradient, "input", "Input gradient"),
        "guided_backprop": Method(guided_backprop, "input", "Guided backprop", during=Guided),
    },
)


def find(name: str) -> Method:
    """The method of that name, or an error with near matches."""
    return METHODS[name]
