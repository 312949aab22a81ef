"""Which tensor of a ViT block should be explained? A task with a known answer.

Small ViTs learn whether an image has a red or a blue cell. A good map has its maximum at that cell. The table shows,
for ViTs with a class token or mean pooling and with 2 or 4 blocks, in how many of 32 images this is so (0.8 by chance),
for every tensor of every block that influences the score. Takes seconds on a CPU.
"""

from __future__ import annotations

import argparse
import warnings

import torch
from tokens import LAYER, METHODS, MeanViT
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from gamlens import Lens, Transform

SIZE, ROWS, COLUMNS, COUNT = (40, 64), 5, 8, 32
COLOURS = torch.tensor([[2.0, -1.0, -1.0], [-1.0, -1.0, 2.0]])


def spots(count: int) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
    """Noise images (count,3,40,64) with one red or blue cell of 8 px. Returns images, colours (count,) and cells."""
    images, colours = 0.3 * torch.randn(count, 3, *SIZE), torch.arange(count) % 2
    cells = [(int(torch.randint(ROWS, ())), int(torch.randint(COLUMNS, ()))) for _ in range(count)]
    for image, colour, (row, column) in zip(images, colours, cells, strict=True):
        image[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += COLOURS[colour].view(3, 1, 1)
    return images, colours, cells


def patches(self: VisionTransformer, x: Tensor) -> Tensor:
    """torchvision's `_process_input` without its check that the image is square."""
    return self.conv_proj(x).flatten(2).transpose(1, 2)


def taught(kind: type[VisionTransformer], depth: int, *, steps: int = 120) -> VisionTransformer:
    """Train a ViT of width 32 for some seconds."""
    torch.manual_seed(0)
    net = kind(64, 8, num_layers=depth, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=2)
    net._process_input = patches.__get__(net)
    net.encoder.pos_embedding = nn.Parameter(0.02 * torch.randn(1, ROWS * COLUMNS + 1, 32))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(steps):
        images, colours, _ = spots(COUNT)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), colours).backward()
        optimizer.step()
    return net.eval()


def hits(raw: Tensor, cells: list[tuple[int, int]]) -> int:
    """How many of the maps (N,h,w) have their maximum at the coloured cell."""
    return sum(divmod(int(one.argmax()), COLUMNS) == cell for one, cell in zip(raw, cells, strict=True))


def names(kind: type[VisionTransformer], depth: int) -> list[str]:
    """The names of all tensors of all blocks that influence the score."""
    found = []
    for number in range(depth):
        layer = LAYER.format(number)
        found.append(f"{layer}.ln_1")
        if number < depth - 1 or kind is MeanViT:
            found += [f"{layer}.dropout", f"{layer}.mlp", layer]
    return [*found, "encoder.ln"] if kind is MeanViT else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", type=int, nargs="*", default=[2, 4])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"| ViT, accuracy | read | {' | '.join(METHODS)} |\n| --- | --- |{' --- |' * len(METHODS)}")
    for kind in (VisionTransformer, MeanViT):
        for depth in options.depths:
            net = taught(kind, depth)
            images, colours, cells = spots(COUNT)
            lens = Lens(net, transform=Transform(SIZE), blocks=names(kind, depth))
            trace = lens.trace(images, colours.tolist(), n=None)
            assert trace.output is not None
            right = 100 * float((trace.output.argmax(1) == colours).float().mean())
            for block in trace.blocks:
                found = " | ".join(str(hits(trace.raw(method, block), cells)) for method in METHODS)
                print(f"| {kind.__name__}, {depth} blocks, {right:.0f} % | `{block}` | {found} |")


if __name__ == "__main__":
    main()
