"""Checks on convolutional networks of torchvision and timm whether gamlens finds the right blocks.

Reports for each model (random weights, 96 px or its own input size): the blocks, their sizes, whether the last block is
the input of the pooling, whether GAM is finite and in [0,1], and whether the model is unchanged afterwards. The last
block is checked as follows: if a forward of a second image gets the first image's last block in place of its own, it
must give the first image's embedding (`gate`). If the embedding is the mean or the maximum of the last block, it is
compared with that directly.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gamlens import GamlensError, Lens, Transform
from gamlens.capture.forward import ActivationStore, as_map
from gamlens.capture.guard import model_guard
from gamlens.capture.hooks import TensorTap
from gamlens.capture.layer_points import LayerPoint
from gamlens.models.zoo import torchvision as torchvision_zoo

SIDE = 96
LARGE = 299
TRANSFORMERS = ("swin", "maxvit", "vit")
CONVOLUTIONAL = (
    *("byobnet", "convmixer", "convnext", "cspnet", "densenet", "dla", "dpn", "efficientnet", "fasternet", "focalnet"),
    *("ghostnet", "hardcorenas", "hgnet", "hrnet", "inception_next", "inception_resnet_v2", "inception_v3"),
    *("inception_v4", "lcnetv2", "mambaout", "metaformer", "mobilenetv3", "mobilenetv5", "nasnet", "nfnet", "pnasnet"),
    *("rdnet", "regnet", "repghost", "repvit", "res2net", "resnest", "resnet", "resnetv2", "rexnet", "selecsls"),
    *("senet", "sknet", "starnet", "tresnet", "vgg", "vovnet", "xception", "xception_aligned"),
)
INTRODUCTION = """\
# Models

Which blocks does gamlens read in your network, and by which embedding does it compare two images? This page lists what
it finds by itself in {tried} convolutional networks of torchvision and timm; {found} of them need no names from you.
For another network, or your own, type `gamlens blocks MODEL` or `print(gamlens.Lens(model))`. Transformers have
[a page of their own](transformers.md). [Choosing](choosing.md) says what a block is and when to name blocks yourself.
[Data](data.md) says which trained networks the GAM paper used, where their weights are, and how class names come with
a checkpoint.

The networks are all convolutional classifiers of torchvision and the three smallest networks of each convolutional
family of timm. The table was made with random weights by `make models`. Its columns are

- *model*: a name that `Lens` and `--model` take;
- *blocks*: the tensors that maps are made from, in the order in which they run; n counts from the last one;
- *sizes*: the height and width of each block's activation (one number where they are equal), at an input of 96 px, or
  of the network's own size if that is at least 299 px or if 96 is too small. The last size can be larger than the one
  before it where a network joins several resolutions at its end (mobilenetv5);
- *embedding*: the tensor that two images are compared by;
- *pooling*: how the embedding is computed from the last block. `mean` and `max` are global pooling; `pool, then layers`
  means that further layers follow the pooling; `positions matter` means that the head flattens the block, so that the
  embedding depends on where in the image something is. With `mean`, interactions and `matches` are exact and run
  nothing ([what they cost otherwise](pairs.md#what-it-costs)), and the fast way of `compare_many` works ([pairs at
  scale](performance.md#pairs-at-scale)). It was checked that in every case the embedding depends on the image through
  the last block alone.

Networks that skip positions of a block, as the original ResNet does in the first 1 x 1 convolution of a stage, are
explained under [methods](methods.md#blocks-that-are-read-in-part); `gamlens blocks MODEL` prints a line `lattice` for
each of them.

A plain name (`layer4`) is the output of that module, and `fc:input` the input of the module `fc`. `features:relu` is
what the function `relu` makes of the output of `features`, where the network has no module for it; `a:cat:cat` has two
such functions, one after the other. The ending `:nhwc` says that channels come last, and `output` is the output of the
model."""
LIMITATIONS = """
## Networks with limitations

For these networks not everything above was found. The reason says what is missing. Long messages are cut off here, but
not in the error that you get."""


@dataclass(frozen=True)
class Found:
    """The result for one model; `reason` says why there is none."""

    name: str
    blocks: tuple[str, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    embedding: str = ""
    pooling: str = ""
    side: int = 0
    seconds: float = 0.0
    reason: str = ""


class _Replace(ActivationStore):
    """An activation store that replaces the output of a block by a given tensor."""

    given: Tensor

    def take(self, point: LayerPoint, tensor: Tensor, in_place: bool) -> Tensor:
        taken = super().take(point, tensor, in_place)
        return self.given if point in self.points else taken


def build(name: str) -> nn.Module:
    """A model with random weights."""
    if name.startswith("timm/"):
        import timm

        module: nn.Module = timm.create_model(name.removeprefix("timm/"))
        return module
    return torchvision_zoo.build(name, weights="random").module


def examine(name: str, module: nn.Module | None = None) -> Found:
    """Find the blocks of a model and check them, at 96 px or, if that is too small for it, at its own input size."""
    start = time.perf_counter()
    torch.manual_seed(0)
    module = build(name) if module is None else module
    lens = Lens(module, transform=Transform((SIDE, SIDE)))
    own = native_side(module)
    if lens._hooked.known_blocks is None or own >= LARGE or min(lens.layout.stages[-1].shape[1:]) < 3:
        lens = Lens(module, transform=Transform((own, own)))
    batch = torch.randn(2, 3, *lens.transform.size)
    before = state(module)
    result = lens.classify(batch, n=2)
    if not (bool(result.maps.isfinite().all()) and float(result.maps.min()) >= 0 and float(result.maps.max()) <= 1):
        raise GamlensError("GAM is not finite and in [0,1]")
    if not same_state(before, state(module)):
        raise GamlensError("the model was changed")
    shapes = tuple((stage.shape[1], stage.shape[2]) for stage in lens.layout.stages if stage.chosen)
    if len(set(shapes)) < 2:
        raise GamlensError(f"one resolution only, {shapes[0]}: n = 1 works, there is no second stage")
    seconds = time.perf_counter() - start
    pooling = pooled(lens, module, batch)
    return Found(name, lens.blocks, shapes, lens.embedding, pooling, int(batch.shape[-1]), seconds)


def pooled(lens: Lens, module: nn.Module, batch: Tensor) -> str:
    """How the embedding is computed from the last block. Raises an error if it is not a function of the last block."""
    last, place = LayerPoint.parse(lens.blocks[-1]), LayerPoint.parse(lens.embedding)
    first, second = (read(ActivationStore([last], place), module, batch[i : i + 1]) for i in (0, 1))
    block = first.blocks[str(last)].detach()
    plain = as_map(str(last), block, {})
    swapped = _Replace([last], place)
    swapped.given = block
    again = read(swapped, module, batch[1:])
    if not close(again.embedding, first.embedding) or torch.equal(first.embedding, second.embedding):
        raise GamlensError(f"the embedding {lens.embedding} is not a function of the last block {lens.blocks[-1]}")
    for kind, value in (("mean", plain.mean((2, 3))), ("max", plain.amax((2, 3)))):
        if close(value, first.embedding):
            return kind
    shuffled = _Replace([last], place)
    order = torch.randperm(plain[0, 0].numel(), generator=torch.Generator().manual_seed(1))
    mixed = plain.flatten(2)[:, :, order].view_as(plain)
    shuffled.given = mixed.permute(0, 2, 3, 1) if last.channels_last else mixed
    moved = read(shuffled, module, batch[1:])
    return "pool, then layers" if close(moved.embedding, first.embedding) else "positions matter"


def read(keeper: ActivationStore, module: nn.Module, batch: Tensor) -> ActivationStore:
    with model_guard(module), TensorTap(module, keeper.wanted, keeper.take).attached():
        output = module(batch.clone())
    if keeper.embedding is None:
        keeper.embedding = output
    return keeper


def close(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a.numel() != b.numel():
        return False
    a, b = a.detach().flatten(), b.detach().flatten()
    return bool((a - b).abs().max() <= 1e-4 * b.abs().max().clamp(min=1e-6))


def state(module: nn.Module) -> dict[str, Any]:
    values = {name: value.detach().clone() for name, value in module.state_dict().items()}
    hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())
    return {"values": values, "hooks": hooks, "training": [part.training for part in module.modules()]}


def same_state(a: dict[str, Any], b: dict[str, Any]) -> bool:
    same = all(torch.equal(value, b["values"][name]) for name, value in a["values"].items())
    return same and a["hooks"] == b["hooks"] and a["training"] == b["training"]


def native_side(module: nn.Module) -> int:
    config = getattr(module, "pretrained_cfg", None) or {}
    return int(config.get("input_size", (3, 299 if type(module).__name__ == "Inception3" else 224))[1])


def smallest(modules: tuple[str, ...], each: int) -> Iterator[str]:
    """The `each` smallest models of every module of timm, by parameters."""
    import timm

    for family in modules:
        counts = {}
        for name in timm.list_models(module=family):
            with torch.device("meta"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                counts[name] = sum(value.numel() for value in timm.create_model(name).parameters())
        yield from (f"timm/{name}" for name in sorted(counts, key=lambda name: (counts[name], name))[:each])


def sweep(names: list[str]) -> Iterator[Found]:
    """Examine each model. The result of a model that fails has the reason."""
    for number, name in enumerate(names, 1):
        try:
            found = examine(name)
        except Exception as error:  # noqa: BLE001 - a sweep reports whatever a model does
            found = Found(name, reason=f"{type(error).__name__}: {' '.join(str(error).split())}"[:160])
        print(f"{number}/{len(names)} {name}: {found.reason or ', '.join(found.blocks)}", file=sys.stderr, flush=True)
        yield found


def markdown(rows: list[Found]) -> str:
    """The table of docs/models.md: the blocks that were found, then the models that are not supported."""
    good, bad = [row for row in rows if not row.reason], [row for row in rows if row.reason]
    lines = [
        *INTRODUCTION.format(tried=len(rows), found=len(good)).splitlines(),
        "",
        "| model | blocks | sizes | embedding | pooling |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in good:
        sizes = ", ".join(f"{h}x{w}" if h != w else str(h) for h, w in row.sizes)
        blocks = ", ".join(f"`{block}`" for block in row.blocks)
        lines.append(f"| {row.name} | {blocks} | {sizes} at {row.side} | `{row.embedding}` | {row.pooling} |")
    if bad:
        lines += [*LIMITATIONS.splitlines(), "", "| model | reason |", "| --- | --- |"]
        lines += [f"| {row.name} | {row.reason.replace('|', '/')} |" for row in bad]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", help="names; all of torchvision and a choice of timm by default")
    parser.add_argument("--each", type=int, default=3, help="models of each timm family (default 3)")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.epilog = "example: python benchmarks/models.py --models resnet50 timm/regnety_002"
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = options.models
    if not names:
        names = [name for name in torchvision_zoo.names() if not name.startswith(TRANSFORMERS)]
        names += list(smallest(CONVOLUTIONAL, options.each))
    text = markdown(list(sweep(names)))
    if options.markdown:
        options.markdown.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
