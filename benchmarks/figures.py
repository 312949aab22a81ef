"""Makes the pictures of docs/figures.md.

Copies photos of installed packages to photos/, with boxes and masks drawn by hand, and runs the commands that the page
shows.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import shutil
from pathlib import Path

from PIL import Image, ImageDraw

from gamlens.cli import app
from gamlens.data.photos import path, scene

PHOTOS = ("cheetah", "cheetah_face", "lion", "coffee", "flower", "rocket", "tower", "pagoda")
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
COMMANDS = {
    "overview": "photos/two.jpg photos/cheetah.jpg photos/cheetah_face.jpg -t 'Egyptian cat' -t espresso -t cup",
    "classes": "photos/cheetah.jpg photos/coffee.jpg photos/pagoda.jpg photos/flower.jpg",
    "cosine": "photos/cheetah.jpg photos/cheetah_face.jpg photos/tower.jpg photos/pagoda.jpg",
    "dot": "photos/cheetah.jpg photos/cheetah_face.jpg photos/tower.jpg photos/pagoda.jpg --dpi 160",
    "overflow": "photos/tower.jpg photos/pagoda.jpg photos/cheetah.jpg photos/lion.jpg",
    "negative": "photos/cheetah.jpg photos/cheetah_face.jpg photos/cheetah.jpg photos/lion.jpg",
    "layers": "photos/cheetah.jpg photos/cheetah_face.jpg",
    "depth": "photos/cheetah.jpg",
    "small": "photos/rocket.jpg photos/cheetah.jpg -t missile -t cheetah",
    "localization": "--data table --root photos/boxes.csv --count 5",
    "similarity": "--data table --root photos/boxes.csv --count 2",
    "segmentation": "photos/cheetah.jpg photos/coffee.jpg photos/flower.jpg --masks photos/masks",
    "sanity": "photos/cheetah.jpg photos/coffee.jpg",
}


def command(name: str) -> str:
    """The command that makes the picture of that name, as a user types it."""
    return f"gamlens figure {name} {COMMANDS[name]} --palette --out docs/images/fig-{name}.png"


def photos(folder: Path) -> None:
    """Copy the photos, and write their boxes and masks beside them."""
    (folder / "masks").mkdir(parents=True, exist_ok=True)
    for name in PHOTOS:
        source = path(name)
        target = folder / f"{name}.jpg"
        if source.suffix == ".jpg":
            shutil.copyfile(source, target)
        else:
            Image.open(source).convert("RGB").save(target, quality=95)
    scene("cat", "coffee").save(folder / "two.jpg", quality=95)
    with open(folder / "boxes.csv", "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["path", "label", "x0", "y0", "x1", "y1"])
        out.writerows([f"{name}.jpg", label, *box] for name, label, box in BOXES)
    for name, corners in MASKS.items():
        mask = Image.new("L", Image.open(folder / f"{name}.jpg").size)
        ImageDraw.Draw(mask).polygon(corners, fill=255)
        mask.save(folder / "masks" / f"{name}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(COMMANDS)}; all by default")
    parser.add_argument("--photos-only", action="store_true", help="write photos/ and stop")
    options = parser.parse_args()
    photos(Path("photos"))
    for name in () if options.photos_only else options.names or COMMANDS:
        app(shlex.split(command(name))[1:], standalone_mode=False)


if __name__ == "__main__":
    main()
