"""Checks on the transformers of timm and torchvision whether gamlens finds the right tokens, grids and pooling.

Reports for each model (random weights, its own input size): the blocks, their grids, the tokens that are no patches,
and the pooling; whether GAM is finite and in [0,1]; whether the model is unchanged afterwards; and whether positions
are right. For the last, two images differ in one patch. In every block, the cell that changed most should be the cell
of that patch, or with convolutions a cell next to it (`cell`). This fails if tokens are transposed, or shifted
because a class token was kept. It may also fail if untrained layers mix all positions without a residual. `peak` says
whether GAM has its maximum there, for a score that separates the two images; untrained weights do not guarantee this.
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
from models import build, native_side, same_state, state
from torch import Tensor, nn

from gamlens import GamlensError, Lens, Transform

MODELS = (
    *("vit_b_32", "swin_t", "swin_v2_t", "maxvit_t"),
    *("timm/beit_base_patch16_224", "timm/cait_xxs24_224", "timm/coat_lite_tiny", "timm/coatnet_pico_rw_224"),
    *("timm/convit_tiny", "timm/crossvit_9_240", "timm/davit_tiny", "timm/deit_tiny_patch16_224"),
    *("timm/deit_tiny_distilled_patch16_224", "timm/edgenext_xx_small", "timm/efficientformer_l1"),
    *("timm/efficientformerv2_s0", "timm/efficientvit_b0", "timm/efficientvit_m0", "timm/eva02_tiny_patch14_224"),
    *("timm/fastvit_t8", "timm/gcvit_xxtiny", "timm/hiera_tiny_224", "timm/iformer_t", "timm/levit_128s"),
    *("timm/maxvit_pico_rw_256", "timm/mixer_s32_224", "timm/mobilevit_xxs", "timm/mvitv2_tiny", "timm/nest_tiny"),
    *("timm/nextvit_small", "timm/pit_ti_224", "timm/poolformer_s12", "timm/pvt_v2_b0", "timm/sam2_hiera_tiny"),
    *("timm/samvit_base_patch16_224", "timm/sequencer2d_s", "timm/shvit_s1", "timm/swiftformer_xs"),
    *("timm/swin_tiny_patch4_window7_224", "timm/swinv2_cr_tiny_224", "timm/swinv2_tiny_window8_256"),
    *("timm/tiny_vit_5m_224", "timm/tnt_s_legacy_patch16_224", "timm/twins_svt_small", "timm/visformer_tiny"),
    *("timm/vit_base_patch16_siglip_224", "timm/vit_base_patch32_clip_224", "timm/vit_medium_patch16_gap_256"),
    *("timm/vit_relpos_small_patch16_224", "timm/vit_small_patch14_reg4_dinov2", "timm/vit_tiny_patch16_224"),
    *("timm/vit_tiny_r_s16_p8_224", "timm/vitamin_small_224", "timm/volo_d1_224", "timm/xcit_nano_12_p16_224"),
)


@dataclass(frozen=True)
class Found:
    """The result for one model, or the reason why there is none."""

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


def spot(size: tuple[int, int], grid: tuple[int, int]) -> tuple[int, int, int, int]:
    """The edges (top, bottom, left, right) of one cell of a grid, away from the diagonal and the middle."""
    row, column = grid[0] // 4, (2 * grid[1]) // 3
    (height, width), (rows, columns) = size, grid
    return (
        *(row * height // rows, (row + 1) * height // rows),
        *(column * width // columns, (column + 1) * width // columns),
    )


def planted(size: tuple[int, int], grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Two images (1,3,H,W) of weak noise; the second one has one coloured cell of the grid."""
    generator = torch.Generator().manual_seed(0)
    plain = 0.1 * torch.randn(1, 3, *size, generator=generator)
    top, bottom, left, right = spot(size, grid)
    other = plain.clone()
    noise = torch.randn(1, 3, bottom - top, right - left, generator=generator)
    other[:, :, top:bottom, left:right] = noise + torch.tensor([2.0, -1.0, 3.0]).view(1, 3, 1, 1)
    return plain, other


def inside(map_: Tensor, size: tuple[int, int], grid: tuple[int, int], *, slack: int = 0) -> bool:
    """Whether the maximum of a map (h,w) lies in the coloured cell, or at most `slack` cells beside it."""
    row, column = divmod(int(map_.argmax()), int(map_.shape[1]))
    top, bottom, left, right = spot(size, grid)
    y, x = (row + 0.5) * size[0] / map_.shape[0], (column + 0.5) * size[1] / map_.shape[1]
    down, across = slack * size[0] / grid[0], slack * size[1] / grid[1]
    return top - down <= y < bottom + down and left - across <= x < right + across


def changed(lens: Lens, plain: Tensor, other: Tensor, *, n: int | None = None) -> dict[str, bool]:
    """For each block: whether the cell that changed most between the two images is the coloured one.

    Convolutions can shift features by a cell, so a neighbouring cell counts, too, if some blocks are convolutional.
    """
    trace = lens.trace(torch.cat([plain, other]), score=first_number, n=n)
    size = (int(plain.shape[2]), int(plain.shape[3]))
    blocks = trace.activations
    grid = tuple(list(blocks.values())[-1].shape[2:])
    slack = 0 if all(name.endswith("tokens") for name in lens.blocks) else 1
    return {name: inside((h[1] - h[0]).float().square().sum(0), size, grid, slack=slack) for name, h in blocks.items()}


def telling(lens: Lens, plain: Tensor, other: Tensor) -> Callable[[Any], Tensor]:
    """A score, linear in the model's output, that separates the second image from the first."""
    with torch.no_grad():
        outputs = [lens.forward(image).output for image in (plain, other)]
    picked = [vector(output, lens) for output in outputs]
    direction = torch.nn.functional.normalize((picked[1] - picked[0]).flatten(1), dim=1)
    return lambda output: (vector(output, lens).flatten(1) * direction).sum(1)


def vector(output: Any, lens: Lens) -> Tensor:
    from gamlens.models import pick

    found = pick(output, lens._hooked.output)
    return found.flatten(1)


def first_number(output: Any) -> Tensor:
    from gamlens.capture.layer_points import tensors

    found = next(tensors(output))
    return found.flatten(1).sum(1)


def lively(module: nn.Module) -> nn.Module:
    """Add a little noise to weights that are all zero, as heads and gates of untrained networks often are."""
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
    lens._hooked.model_blocks(torch.zeros(1, 3, *size))
    grid = lens.layout.stages[-1].shape[1:]
    plain, other = planted(size, grid)
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
        inside(raw, size, grid, slack=1),
    )


def sweep(names: list[str]) -> Iterator[Found]:
    """Examine each model. The result of a model that fails has the reason."""
    for number, name in enumerate(names, 1):
        try:
            found = examine(name)
        except Exception as error:  # noqa: BLE001 - a sweep reports whatever a model does
            found = Found(name, reason=f"{type(error).__name__}: {' '.join(str(error).split())}"[:160])
        said = found.reason or f"{', '.join(found.blocks[-4:])}; {found.pooling}; {found.cell} {found.peak}"
        print(f"{number}/{len(names)} {name}: {said}", file=sys.stderr, flush=True)
        yield found


def markdown(rows: list[Found]) -> str:
    """The table of docs/transformers.md."""
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
    parser.add_argument("--models", nargs="*", help="names; a small one of every family by default")
    parser.add_argument("--markdown", type=Path, help="put the table into this file, between its markers")
    parser.epilog = "example: python benchmarks/token_models.py --models timm/vit_tiny_patch16_224 vit_b_32"
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = options.models or list(MODELS)
    text = markdown(list(sweep(names)))
    if options.markdown:
        from tokens import fill

        fill(options.markdown, "families", text)
    print(text)


if __name__ == "__main__":
    main()
