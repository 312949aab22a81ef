"""Parameter randomisation on the real ResNet-50 and 20 images spread over the shared ILSVRC sample.

It does the same as `gamlens sanity parameters --model benchmarks/real.py:resnet50 IMAGES`, on every 50th image by file
name, each explained for its true class. It needs torch and torchvision only, and takes a minute or two on a GPU, half
an hour on two cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import real
import torch

from gamlens.inputs.images import Picture
from gamlens.sanity import compared_maps, parameter_results
from gamlens.sanity.parameter_randomisation import randomise_parameters
from gamlens.sanity.randomise import parts

METHODS = ("gam", "grad_cam", "grad_cam_pp", "input_gradient", "guided_backprop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--n", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--pairs", action="store_true", help="explain the cosine similarity of two images of a class instead"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("gamlens-sanity"))
    parser.epilog = "example: python benchmarks/sanity.py --images 20 --out sanity"
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lens, every = real.lens("resnet50").to(options.device), real.samples("ILSVRC")
    chosen = spread(every, options.images, pairs=options.pairs)
    shown = [Picture(file.name, path=str(file)) for file, _ in chosen]
    found = parts(lens, lens.prepare(shown[:1]).batches[0], pairs=options.pairs)
    if options.pairs:
        make = compared_maps.of_pairs(lens, shown[::2], shown[1::2], METHODS, n=options.n, batch=options.batch)
    else:
        labels = [label for _, label in chosen]
        make = compared_maps.of_classes(lens, shown, METHODS, target=labels, n=options.n, batch=options.batch)
    groups = [number // 2 if options.pairs else number for number in range(len(shown))]
    names = [picture.name for picture in shown]
    tell = lambda text: print(text, flush=True)  # noqa: E731
    outcome = randomise_parameters(lens, make, found, names, groups=groups, seed=options.seed, tell=tell)
    about = {"check": "parameters", "model": "resnet50", "n": options.n, "seed": options.seed, "pairs": options.pairs}
    parameter_results.write(outcome, options.out, [picture.open() for picture in shown], about)
    print((options.out / "table.md").read_text())


def spread(every: list[tuple[Path, int]], count: int, *, pairs: bool) -> list[tuple[Path, int]]:
    """Choose `count` images spread over the set. For pairs, each is followed by the next image of its class."""
    if not pairs:
        return every[:: max(1, len(every) // count)][:count]
    found: list[tuple[Path, int]] = []
    for label in list(dict.fromkeys(label for _, label in every))[:: max(1, 500 // count)]:
        found += [item for item in every if item[1] == label][:2]
    return found[: count // 2 * 2]


if __name__ == "__main__":
    main()
