"""Runs an evaluation on thousands of broken image files among good ones, and checks that no file stops it or is lost.

Bit flips, truncations, wrong extensions, text, empty files, huge dimensions in the header, CMYK, 16 bits, palettes,
animations, EXIF rotations, one-pixel images.
"""

from __future__ import annotations

import argparse
import io
import random
import struct
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from gamlens import Lens, Transform
from gamlens.data import load
from gamlens.evaluation import results
from gamlens.evaluation.protocol import Protocol, units
from gamlens.evaluation.runs import evaluate_run

GOOD = ("jpeg", "png", "cmyk", "sixteen", "palette", "animated", "alpha", "rotated", "grey", "pixel", "wrong name")
BAD = ("empty", "text", "cut head", "huge png", "huge gif")
EITHER = ("flipped", "cut", "appended")


def pixels(draw: np.random.Generator, side: int = 40) -> Image.Image:
    return Image.fromarray(draw.integers(0, 255, (side, side + 9, 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def huge_png() -> bytes:
    """A PNG whose header claims 60,000 x 60,000 pixels."""

    def piece(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = piece(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + piece(b"IDAT", zlib.compress(bytes(1000))) + piece(b"IEND", b"")


def broken(kind: str, draw: np.random.Generator, dice: random.Random) -> tuple[bytes, str]:
    """The contents and the extension of a file that is broken in the given way."""
    image = pixels(draw)
    jpeg = encoded(image, "JPEG")
    if kind in ("flipped", "cut", "appended", "cut head"):
        body = bytearray(jpeg if dice.random() < 0.5 else encoded(image, "PNG"))
        if kind == "flipped":
            for _ in range(dice.randint(1, 40)):
                body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
        elif kind == "cut":
            body = body[: dice.randrange(20, len(body))]
        elif kind == "cut head":
            body = body[dice.randrange(8, 40) :]
        else:
            body += dice.randbytes(500)
        return bytes(body), ".jpg"
    sixteen = Image.fromarray(draw.integers(0, 65535, (30, 30), dtype=np.uint16))
    rotated = image.getexif()
    rotated[274] = 6
    frames = [image.convert("P")] * 3
    return {
        "jpeg": lambda: (jpeg, ".jpg"),
        "png": lambda: (encoded(image, "PNG"), ".png"),
        "cmyk": lambda: (encoded(image.convert("CMYK"), "JPEG"), ".jpg"),
        "sixteen": lambda: (
            encoded(sixteen, "PNG"),
            ".png",
        ),
        "palette": lambda: (encoded(image.convert("P"), "PNG", transparency=0), ".png"),
        "animated": lambda: (encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), ".gif"),
        "alpha": lambda: (encoded(image.convert("RGBA"), "PNG"), ".png"),
        "rotated": lambda: (encoded(image, "JPEG", exif=rotated), ".jpg"),
        "grey": lambda: (encoded(image.convert("L"), "JPEG"), ".jpg"),
        "pixel": lambda: (encoded(image.crop((0, 0, 1, 1)), "PNG"), ".png"),
        "wrong name": lambda: (encoded(image, "PNG"), ".jpg"),
        "empty": lambda: (b"", ".jpg"),
        "text": lambda: (b"this is no image\n" * 20, ".jpg"),
        "huge png": lambda: (huge_png(), ".png"),
        "huge gif": lambda: (b"GIF89a" + struct.pack("<HH", 65000, 65000) + bytes(60), ".gif"),
    }[kind]()


def mangled(folder: Path, count: int, *, seed: int = 0) -> dict[str, str]:
    """Write `count` files, all kinds in turn, into two class folders. Returns {name: kind}."""
    draw, dice = np.random.default_rng(seed), random.Random(seed)
    kinds = {}
    for number in range(count):
        kind = (*GOOD, *BAD, *EITHER)[number % (len(GOOD) + len(BAD) + len(EITHER))]
        contents, extension = broken(kind, draw, dice)
        file = folder / ("ant", "bee")[number % 2] / f"{number:05d}{extension}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(contents)
        kinds[f"{file.parent.name}/{file.name}"] = kind
    return kinds


def net() -> Lens:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    return Lens(layers, transform=Transform((32, 32)))


def measure(folder: Path, out: Path) -> results.Run:
    """Measure ADP on every file, with a tiny net."""
    dataset = load("folder", folder)
    protocol = Protocol("objective", methods=("gam",), n=(1,))
    evaluate_run(net, dataset, units(dataset, protocol), protocol, out)
    return results.read(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.epilog = "example: python benchmarks/fuzz.py --files 5000 --seed 3"
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        kinds = mangled(Path(place) / "data", options.files, seed=options.seed)
        start = time.perf_counter()
        run = measure(Path(place) / "data", Path(place) / "run")
        seconds = time.perf_counter() - start
    failed = Counter(kinds[row["item"]] for row in run.errors)
    every = Counter(kinds.values())
    good = len(run.groups["gam", 1]["item"])
    print(f"{options.files} files in {seconds:.0f} s: {good} measured, {len(run.errors)} errors, none lost")
    for kind, count in every.items():
        print(f"  {kind:12} {count:5} files, {failed[kind]:5} errors")
    assert good + len(run.errors) == options.files


if __name__ == "__main__":
    main()
