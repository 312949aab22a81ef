"""The tools that `cost.py` and `gpu.py` measure: a plain forward, gamlens, and other packages.

Other packages are called as in their documentation. Every tool is a callable (batch, targets) -> maps. All tools use
the blocks that gamlens finds, set and remove their hooks in each call, and return maps of the size of the image.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gamlens import Lens
from gamlens.methods import METHODS

MODELS = ("resnet50", "resnet101", "densenet201", "efficientnet_lite0")
Run = Callable[[Tensor, list[int]], Any]
Reshape = Callable[[Tensor], Tensor]
PEERS = {"captum": "captum.attr", "torchcam": "torchcam.methods", "grad-cam": "pytorch_grad_cam"}
MODULE_OF = {"features:relu": "features.norm5"}


@dataclass(frozen=True)
class Tool:
    """One row of the table. `run` takes a batch (B,C,H,W) and one class per image."""

    name: str
    blocks: str
    run: Run


def build(name: str, device: str) -> Lens:
    """A lens on a model. Weights are random, which costs the same as trained ones; efficientnet_lite0 has its own."""
    torch.manual_seed(0)
    return Lens(name, weights=None if name == "efficientnet_lite0" else "random", device=device)


def plain(model: nn.Module) -> Run:
    """The plain forward that all tools are compared with."""

    def run(batch: Tensor, targets: list[int]) -> Any:
        with torch.no_grad():
            return model(batch)

    return run


def sketch(model: nn.Module, layers: list[nn.Module], dtype: torch.dtype | None = None) -> Run:
    """GAM in 20 lines, without checks, names or errors: a graph from the earliest block on, and the maps."""

    def run(batch: Tensor, targets: list[int]) -> Any:
        kept: list[Tensor] = []

        def keep(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            torch.set_grad_enabled(True)
            kept.append(output if kept else output.detach().requires_grad_(True))
            return kept[-1].clone()

        handles = [layer.register_forward_hook(keep) for layer in layers]
        with torch.no_grad(), torch.autocast(batch.device.type, dtype=dtype, enabled=dtype is not None):
            output = model(batch)
        for handle in handles:
            handle.remove()
        chosen = torch.tensor(targets, device=batch.device)[:, None]
        gradients = torch.autograd.grad(output.float().gather(1, chosen).sum(), kept)
        maps = []
        for h, g in zip(kept, gradients, strict=True):
            raw = (h.detach().float().relu() * g.float().relu()).sum(1, keepdim=True)
            large = F.interpolate(raw, tuple(batch.shape[2:]), mode="bicubic")[:, 0]
            low, high = large.amin((1, 2), keepdim=True), large.amax((1, 2), keepdim=True)
            maps.append((large - low) / (high - low).clamp(min=1e-12))
        return torch.stack(maps).mean(dim=0)

    return run


def every_method(lens: Lens) -> Run:
    """One trace, then every block method on its last two blocks."""
    names = [name for name, method in METHODS.items() if method.kind == "block"]

    def run(batch: Tensor, targets: list[int]) -> Any:
        trace = lens.trace(batch, targets, n=2)
        return [trace.explain(name, n=2) for name in names]

    return run


def captum(attr: Any, model: nn.Module, layers: list[nn.Module]) -> Run:
    """captum: one pass per layer, as it has no call for several. Maps are detached, as each would keep its graph."""

    def run(batch: Tensor, targets: list[int]) -> Any:
        maps = []
        for layer in layers:
            low = attr.LayerGradCam(model, layer).attribute(batch, targets, relu_attributions=True).detach()
            maps.append(attr.LayerAttribution.interpolate(low, tuple(batch.shape[2:]), "bilinear"))
        return torch.stack(maps).mean(dim=0)

    return run


def captum_tokens(attr: Any, model: nn.Module, layers: list[nn.Module]) -> Run:
    """captum on tokens: LayerGradientXActivation summed over channels, with one pass per layer.

    captum's LayerGradCam takes dimension 1 as the channels. For tokens (B,N,C) it averages the gradient over the
    channels and sums over the tokens, which gives (B,1,C) and no map.
    """

    def run(batch: Tensor, targets: list[int]) -> Any:
        maps = []
        for layer in layers:
            found = attr.LayerGradientXActivation(model, layer).attribute(batch, targets).detach()
            low = patches(found).sum(dim=1, keepdim=True)
            maps.append(attr.LayerAttribution.interpolate(low, tuple(batch.shape[2:]), "bilinear"))
        return torch.stack(maps).mean(dim=0)

    return run


def patches(tokens: Tensor) -> Tensor:
    """Turn tokens (B,1+hh,C), class token first, into (B,C,h,h): the reshape_transform of both packages' docs."""
    side = math.isqrt(tokens.shape[1] - 1)
    return tokens[:, 1:].reshape(len(tokens), side, side, -1).permute(0, 3, 1, 2)


def torchcam(method: Any, model: nn.Module, layers: list[nn.Module], reshape: Reshape | None = None) -> Run:
    """torchcam: one pass for all layers, fused by its own `fuse_cams`."""
    options = {"reshape_transform": reshape} if reshape else {}

    def run(batch: Tensor, targets: list[int]) -> Any:
        with method(model, layers, **options) as extractor:
            maps = extractor(targets, model(batch))
            fused = extractor.fuse_cams(maps)
        return F.interpolate(fused[:, None], tuple(batch.shape[2:]), mode="bilinear")[:, 0]

    return run


def grad_cam(
    method: Any, target: Any, model: nn.Module, layers: list[nn.Module], reshape: Reshape | None = None
) -> Run:
    """grad-cam: one pass for all layers, fused by their mean; returns NumPy arrays."""

    def run(batch: Tensor, targets: list[int]) -> Any:
        with method(model=model, target_layers=layers, reshape_transform=reshape) as cam:
            return cam(input_tensor=batch, targets=[target(number) for number in targets])

    return run


def find_peers() -> tuple[dict[str, Any], list[str]]:
    """The other packages that are installed, by name, and a note for each that is not."""
    found, notes = {}, []
    for name, module in PEERS.items():
        try:
            found[name] = importlib.import_module(module)
        except ImportError as error:
            notes.append(f"{name} is not installed and was left out ({error}): pip install 'gamlens[bench]'")
    return found, notes


def tools_of(lens: Lens, peers: dict[str, Any]) -> list[Tool]:
    """All tools for one model, the plain forward first."""
    model, modules = lens.model, dict(lens.model.named_modules())
    two = [modules[MODULE_OF.get(name, name)] for name in lens.blocks[-2:]]
    one = two[-1:]
    tools = [Tool("plain forward", "-", plain(model))]
    tools += [Tool("gamlens GAM", f"{n}", partial(lens.classify, n=n)) for n in (1, 2, 4)]
    tools += [Tool("gamlens GAM, refined by 2 blocks", f"{n}", partial(lens.classify, n=n, refine=2)) for n in (1, 2)]
    tools.append(Tool("gamlens, every method", "2", every_method(lens)))
    if attr := peers.get("captum"):
        tools += [Tool("captum LayerGradCam", f"{len(use)}", captum(attr, model, use)) for use in (one, two)]
    if cams := peers.get("torchcam"):
        tools.append(Tool("torchcam GradCAM", "1", torchcam(cams.GradCAM, model, one)))
        tools.append(Tool("torchcam LayerCAM", "2", torchcam(cams.LayerCAM, model, two)))
    if cams := peers.get("grad-cam"):
        target = importlib.import_module("pytorch_grad_cam.utils.model_targets").ClassifierOutputTarget
        tools.append(Tool("grad-cam GradCAM", "1", grad_cam(cams.GradCAM, target, model, one)))
        tools.append(Tool("grad-cam LayerCAM", "2", grad_cam(cams.LayerCAM, target, model, two)))
    return tools
