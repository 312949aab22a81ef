"""Every transformer family of timm, torchvision and transformers: which tokens are read, where they lie, how they pool.

For each model (random weights, its own input size): the blocks, their grids, tokens set aside and pooling; whether GAM
is finite and in [0,1]; whether the model is left as it was; and whether places are right. For the last, two images that
differ in one patch are looked at: in every block that is read, the cell that changed most must be that patch's (`cell`),
and the GAM of the score that tells the two apart should peak there too (`peak`). Both fail where tokens are
transposed or shifted by a class token that was not removed.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from models import build, native_side, same_state, smallest, state
from torch import Tensor, nn

from gamlens import GamlensError, Lens, Transform

TIMM = (
    *("beit", "cait", "coat", "convit", "crossvit", "davit", "deit", "edgenext", "efficientformer"),
    *("efficientformer_v2", "efficientvit_mit", "efficientvit_msra", "eva", "fastvit", "gcvit", "hiera"),
    *("hieradet_sam2", "iformer", "levit", "lowformer", "maxxvit", "metaformer", "mlp_mixer", "mobilevit", "mvitv2"),
    *("naflexvit", "nest", "nextvit", "pit", "pvt_v2", "sequencer", "shvit", "swiftformer", "swin_transformer"),
    *("swin_transformer_v2", "swin_transformer_v2_cr", "tiny_vit", "tnt", "twins", "visformer", "vision_transformer"),
    *("vision_transformer_hybrid", "vision_transformer_relpos", "vision_transformer_sam", "vitamin", "volo", "xcit"),
)
FURTHER = (
    *("timm/deit_tiny_distilled_patch16_224", "timm/vit_small_patch14_reg4_dinov2", "timm/coatnet_pico_rw_224"),
    *("timm/maxvit_pico_rw_256", "timm/vit_base_patch32_clip_224", "timm/vit_base_patch16_siglip_224"),
    *("timm/eva02_tiny_patch14_224", "timm/beitv2_base_patch16_224", "timm/vit_medium_patch16_gap_256"),
)
TORCHVISION = ("vit_b_32", "swin_t", "swin_v2_t", "maxvit_t")
WEAK = 1e-6


@dataclass(frozen=True)
class Found:
    """What was found in one model, or why nothing was."""

    name: str
    blocks: tuple[str, ...] = ()
    shapes: tuple[tuple[int, int, int], ...] = ()
    aside: int = 0
    embedding: str = ""
    pooling: str = ""
    size: tuple[int, int] = (0, 0)
    cell: bool = False
    peak: bool = False
    reason: str = ""


def planted(size: tuple[int, int], cell: tuple[float, float] = (0.21, 0.66), *, part: int = 7) -> tuple[Tensor, Tensor]:
    """Two images (1,3,H,W), flat noise, of which the second has a bright, coloured patch around `cell` (y, x)."""
    generator = torch.Generator().manual_seed(0)
    plain = 0.1 * torch.randn(1, 3, *size, generator=generator)
    top, left = (int(place * side) for place, side in zip(cell, size, strict=True))
    height, width = size[0] // part, size[1] // part
    other = plain.clone()
    patch = torch.randn(1, 3, height, width, generator=generator) + torch.tensor([2.0, -1.0, 3.0]).view(1, 3, 1, 1)
    other[:, :, top : top + height, left : left + width] = patch
    return plain, other


def inside(map_: Tensor, size: tuple[int, int], cell: tuple[float, float] = (0.21, 0.66), *, part: int = 7) -> bool:
    """Whether the largest cell of a map (h,w) touches the planted patch."""
    row, column = divmod(int(map_.argmax()), int(map_.shape[1]))
    spans = []
    for place, side, number, count in zip(cell, size, (row, column), map_.shape, strict=True):
        first = int(place * side)
        spans.append(number * side / count < first + side // part and (number + 1) * side / count > first)
    return all(spans)


def changed(lens: Lens, plain: Tensor, other: Tensor, *, n: int | None = None) -> dict[str, bool]:
    """For each block: whether the cell that changed most between the two images is the planted one."""
    trace = lens.trace(torch.cat([plain, other]), score=first_number, n=n)
    size = (int(plain.shape[2]), int(plain.shape[3]))
    return {
        name: inside((h[1] - h[0]).float().square().sum(0), size) for name, h in trace.rows.activations.items()
    }


def telling(lens: Lens, plain: Tensor, other: Tensor) -> Callable[[Any], Tensor]:
    """The score that tells the second image from the first, linear in the model's output."""
    with torch.no_grad():
        outputs = [lens._look(image, []).output for image in (plain, other)]
    picked = [vector(output, lens) for output in outputs]
    direction = torch.nn.functional.normalize((picked[1] - picked[0]).flatten(1), dim=1)
    return lambda output: (vector(output, lens).flatten(1) * direction).sum(1)


def vector(output: Any, lens: Lens) -> Tensor:
    from gamlens.models import pick

    found = pick(output, lens._output)
    return found.flatten(1)


def first_number(output: Any) -> Tensor:
    from gamlens.points import tensors

    found = next(tensors(output))
    return found.flatten(1).sum(1)


def lively(module: nn.Module) -> nn.Module:
    """Untrained nets often start with zero heads and zero gates: give every such weight a little noise."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.ndim > 1 and not bool(parameter.any()):
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    return module


def examine(name: str, module: nn.Module | None = None, size: tuple[int, int] | None = None) -> Found:
    """Find the blocks of a model and check them."""
    torch.manual_seed(0)
    module = lively(build(name) if module is None else module).eval()
    size = size or (native_side(module),) * 2
    lens = Lens(module, transform=Transform(size))
    lens._bound(torch.zeros(1, 3, *size))
    plain, other = planted(size)
    before = state(module)
    result = lens.classify(torch.cat([plain, other]), n=2)
    if not (bool(result.maps.isfinite().all()) and float(result.maps.min()) >= 0 and float(result.maps.max()) <= 1):
        raise GamlensError("GAM is not finite and in [0,1]")
    if not same_state(before, state(module)):
        raise GamlensError("the model was changed")
    cells = changed(lens, plain, other)
    raw = lens.trace(other, score=telling(lens, plain, other), n=1).raw("gam")[0]
    stages = [stage for stage in lens.layout.stages if stage.chosen]
    return Found(
        name,
        lens.blocks,
        tuple(stage.shape for stage in stages),
        stages[-1].grid.aside if stages[-1].grid is not None else 0,
        lens.embedding,
        lens.layout.pooling,
        size,
        all(cells.values()),
        inside(raw, size),
    )


def sweep(names: list[str]) -> Iterator[Found]:
    """Examine each model; one that fails says why."""
    for number, name in enumerate(names, 1):
        try:
            found = examine(name)
        except Exception as error:  # noqa: BLE001 - a sweep reports whatever a model does
            found = Found(name, reason=f"{type(error).__name__}: {' '.join(str(error).split())}"[:160])
        said = found.reason or f"{', '.join(found.blocks[-4:])}; {found.pooling}; {found.cell} {found.peak}"
        print(f"{number}/{len(names)} {name}: {said}", file=sys.stderr, flush=True)
        yield found


def markdown(rows: list[Found]) -> str:
    """The table of the docs."""
    good, bad = [row for row in rows if not row.reason], [row for row in rows if row.reason]
    lines = [
        "| model, input | blocks read, the last one first | grid | set aside | pooling | cell | peak |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in good:
        names = [f"`{block}`" for block in reversed(row.blocks)]
        blocks = ", ".join(names[:3]) + (f" ... ({len(names)})" if len(names) > 3 else "")
        grids = ", ".join(dict.fromkeys(f"{h} x {w}" for _, h, w in reversed(row.shapes)))
        marks = " | ".join("yes" if mark else "no" for mark in (row.cell, row.peak))
        size = row.size[0] if row.size[0] == row.size[1] else f"{row.size[0]} x {row.size[1]}"
        lines.append(f"| {row.name}, {size} | {blocks} | {grids} | {row.aside} | {row.pooling} | {marks} |")
    if bad:
        lines += ["", "Not found by discovery (name the blocks by hand):", "", "| model | reason |", "| --- | --- |"]
        lines += [f"| {row.name} | {row.reason.replace('|', '/')} |" for row in bad]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", help="names; the smallest of every family by default")
    parser.add_argument("--markdown", type=Path, help="put the table into this file, between its markers")
    parser.epilog = "example: python benchmarks/token_models.py --models timm/vit_tiny_patch16_224 vit_b_32"
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = options.models or [*TORCHVISION, *smallest(TIMM, 1), *FURTHER]
    text = markdown(list(sweep(names)))
    if options.markdown:
        from tokens import fill

        fill(options.markdown, "families", text)
    print(text)


if __name__ == "__main__":
    main()
