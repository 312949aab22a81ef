"""What the tests of indexes share: photos on disk, a small lens that counts its forwards, and twins in plain loops."""

from __future__ import annotations

from pathlib import Path

import nets
import numpy as np
import torch
from PIL import Image

from gamlens import Lens, Transform, scores
from gamlens.index.index import Index

SIZE = 64


class CountingLens(Lens):
    """A small lens that notes how many images each forward of it has."""

    def __init__(self, **options) -> None:
        self.seen: list[int] = []
        super().__init__(nets.small().float(), transform=Transform((SIZE, SIZE)), **options)
        self.model.stem.register_forward_hook(lambda module, args, output: self.seen.append(len(output)))

    def forwards(self) -> int:
        """How many images were run since the last call."""
        count = sum(self.seen)
        self.seen.clear()
        return count


def photo(seed: int, size: tuple[int, int] = (80, 100)) -> Image.Image:
    """A picture of soft colours that depends on the seed alone, (height, width)."""
    noise = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((size[1], size[0]), Image.Resampling.BICUBIC)


def put(folder: Path, *seeds: int) -> list[str]:
    """Write photos 0.png, 1.png, ... by their seeds; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{seed}.png" for seed in seeds]
    for path, seed in zip(paths, seeds, strict=True):
        photo(seed).save(path)
    return [str(path) for path in paths]


def contents(index: Index) -> dict[str, bytes]:
    """The vector of every image by its path, and activations behind it."""
    now = index.snapshot()
    found = {}
    for image in index.catalogue.images().values():
        kept = b""
        if image.block is not None:
            file = index.folder / f"activations-{now.settings['generation']}.bin"
            kept = file.read_bytes()[image.block[0] : image.block[0] + image.block[1]]
        found[image.path] = now.vectors[image.slot].tobytes() + kept
    return found


def embedded(lens: Lens, path: str) -> torch.Tensor:
    """The embedding (D,) of a file, by a forward of its own."""
    return lens.remember([path]).embeddings[0]


def ranked(lens: Lens, query: str, paths: list[str], score: str = "cosine") -> list[tuple[str, float]]:
    """The twin of a search: the score of each pair, one by one, best first."""
    pair_score = scores.find_pair_score(score).fn
    own = embedded(lens, query)[None]
    found = [(path, float(pair_score(own, embedded(lens, path)[None]))) for path in paths]
    return sorted(found, key=lambda pair: -pair[1])
