"""The cases of `chaos.py` that run in one process: what is wrong with a file or a folder, and what must come of it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import chaos_files as files
import chaos_saved as saved
from chaos_oracle import REFUSED, RIGHT, CaseFailedError, call, difference, invoke, is_map, judge, tree
from chaos_room import Room
from PIL import Image, ImageOps

from gamlens import Explanation, Lens
from gamlens.data import load
from gamlens.evaluation import results
from gamlens.evaluation.protocol import Protocol, units
from gamlens.evaluation.runs import evaluate_run

Case = Callable[[random.Random, Room, Path], str]


def image_case(dice: random.Random, room: Room, here: Path) -> str:
    """A mangled image through classify, compare, a stream or the command; or a folder of them through an evaluation."""
    way = dice.choice(("classify", "classify", "compare", "command", "stream", "evaluate"))
    if way == "evaluate":
        return _evaluated_folder(dice, room, here)
    kind = dice.choice(list(files.IMAGES))
    file = str(files.image_file(kind, here, "photo", dice))
    if way == "classify":
        ended = call(lambda: room.lens.classify(file, n=2), partial(_as_decoded, room.lens, file))
    elif way == "compare":
        ended = call(lambda: room.lens.compare(file, room.photo, n=1), lambda pair: is_map(pair.x) and is_map(pair.y))
    elif way == "stream":
        results = list(room.lens.stream([room.photo, file, room.photo], n=1, batch_size=2, workers=1))
        if [bool(one.error) for one in (results[0], results[2])] != [False, False]:
            raise CaseFailedError("a bad file in a stream spoilt its neighbours")
        ended = REFUSED if results[1].error else RIGHT
    else:
        done = invoke("classify", file, *room.model, "--out", here / "out")
        ended = judge(done, lambda: is_map(Explanation.load(here / "out" / "photo")))
    expected = {**dict.fromkeys(files.GOOD, RIGHT), **dict.fromkeys(files.BAD, REFUSED)}.get(kind, ended)
    if ended != expected:
        raise CaseFailedError(f"a file of the kind {kind!r} was {ended} by {way}; expected {expected}")
    return ended


def _as_decoded(lens: Lens, file: str, found: Explanation) -> bool:
    """Whether maps are those of the pixels that Pillow decodes, for the modes that need no rule of ours."""
    with Image.open(file) as image:
        if image.mode not in ("RGB", "L", "CMYK"):
            return is_map(found)
        pixels = ImageOps.exif_transpose(image).convert("RGB")
    return is_map(found) and bool((lens.classify(pixels, n=2).maps - found.maps).abs().max() < 1e-4)


def _evaluated_folder(dice: random.Random, room: Room, here: Path) -> str:
    """One image of every kind: each is either measured or has an error, and none is lost."""
    kinds = files.mangled_folder(here / "data", len(files.IMAGES), dice)
    protocol = Protocol("objective", methods=("gam",), n=(1,))
    dataset = load("folder", here / "data")
    evaluate_run(lambda: room.lens, dataset, units(dataset, protocol), protocol, here / "run")
    run = results.read(here / "run")
    measured = list(run.groups["gam", 1]["item"])
    failed = {row["item"]: row["error"] for row in run.errors}
    if sorted([*measured, *failed]) != sorted(kinds):
        raise CaseFailedError(f"{len(measured)} measured and {len(failed)} failed of {len(kinds)} files")
    if wrong := [f"{name} ({kind})" for name, kind in kinds.items() if name in failed and kind in files.GOOD]:
        raise CaseFailedError(f"good images were refused: {wrong}")
    if wrong := [f"{name} ({kind})" for name, kind in kinds.items() if name in measured and kind in files.BAD]:
        raise CaseFailedError(f"bad images were measured: {wrong}")
    if nameless := [error for name, error in failed.items() if Path(name).name not in error]:
        raise CaseFailedError(f"errors do not name their file: {nameless}")
    return RIGHT


ODD_NAMES = (
    b"caf\xe9.png", b"\xff\xfe.png", b"red\x1b[31m.png", b"bell\x07.png", b"new\nline.png", b"tab\t.png",
    b"del\x7f.png", b"-o.png", b"--help.png", b" .png", b"'quote\".png", b"<b>.png", b"&amp;.png", b"[red]x.png",
    b"%s.png", b"$(x).png", b"x" * 251 + b".png", "ü".encode() * 125 + b".png", "\u202egnp.png".encode(),
    "\u2028.png".encode(), b"index.html.png", b".png", b"..png", b"a\\b.png", b"con.png", b"*.png", b"?.png", b"[.png",
    b"photo.PNG", b".runs.png", b"image.png.part",
)  # fmt: skip


def name_case(dice: random.Random, room: Room, here: Path) -> str:
    """A folder of photos of odd names, links that lead nowhere or in a circle, and pipes."""
    data, out = here / "data", here / "out"
    for name in ("ant", "bee"):
        (data / name).mkdir(parents=True)
        shutil.copy(room.photo, data / name / "good.png")
    for _ in range(dice.randint(1, 5)):
        _odd_entry(data / dice.choice(("ant", "bee")), dice, room)
    before = tree(data)
    way = dice.choice(("classify", "search", "evaluate", "compare"))
    if way == "classify":
        done = invoke("classify", data, *room.model, "--out", out)
        ended = judge(done, lambda: len(list(out.rglob("maps.npz"))) >= 2, some=True)
    elif way == "search":
        done = invoke("search", room.photo, "--in", data, *room.model, "--with-self", "--out", out)
        ended = judge(done, lambda: (out / "index.html").is_file())
    elif way == "evaluate":
        arguments = ["evaluate", "objective", "--data", "folder", "--root", data, *room.model, "--methods", "gam"]
        done = invoke(*arguments, "--n", "1", "--out", out)
        ended = judge(done, lambda: "good.png" in repr(results.read(out).rows), some=True)
    else:
        odd = dice.choice([path for path in sorted(data.rglob("*")) if not path.is_dir()])
        done = invoke("compare", room.photo, os.path.relpath(odd), *room.model, "--out", out)
        ended = judge(done, lambda: len(list(out.rglob("maps.npz"))) == 2)
    if said := difference(before, tree(data)):
        raise CaseFailedError(f"the user's files changed: {said}")
    return ended


def _odd_entry(folder: Path, dice: random.Random, room: Room) -> None:
    place = folder / os.fsdecode(dice.choice(ODD_NAMES))
    if place.exists() or place.is_symlink():
        return
    way = dice.random()
    if way < 0.6:
        shutil.copy(room.photo, place)
    elif way < 0.85:
        files.no_file(place, dice)
    elif way < 0.94:
        place.mkdir()
        shutil.copy(room.photo, place / "inside.png")
        (place / "up").symlink_to("../..")
    else:
        place.write_bytes(dice.randbytes(99))


def annotation_case(dice: random.Random, room: Room, here: Path) -> str:
    """A damaged table of images and boxes, which is evaluated."""
    shutil.copytree(room.photos, here / "data")
    file = here / "data" / "items.csv"
    file.write_bytes(_mangled_table(file.read_bytes(), dice))
    if dice.random() < 0.08:
        files.no_file(file, dice)
    done = invoke(*room.evaluate(here / "run", table=file))
    return judge(done, lambda: bool(results.read(here / "run").rows), some=True)


def _mangled_table(data: bytes, dice: random.Random) -> bytes:
    if dice.random() < 0.4:
        return dice.choice(list(files.BYTES.values()))(data, dice)
    lines = [line.split(",") for line in data.decode().splitlines()]
    row = dice.randrange(len(lines))
    column = dice.randrange(len(lines[row]))
    odd = ("", "nan", "inf", "-1", "1e400", "9" * 400, "x" * 200_000, '"open', "\0", "../../../etc/passwd", "/dev/zero",
           "\ufeff", "\x1b[31m", "0x10", "1,2,3", "\r", "ant\tbee", "5;4", "-0", " 5 ", "1_000")  # fmt: skip
    lines[row][column] = dice.choice(odd)
    if dice.random() < 0.2:
        del lines[row][column]
    text = "\n".join(",".join(line) for line in lines)
    return text.encode(dice.choice(("utf-8", "utf-8", "utf-16", "utf-8-sig")), errors="replace")


CASES: dict[str, Case] = {
    "image": image_case,
    "run": saved.run_case,
    "gallery": saved.gallery_case,
    "explanation": saved.explanation_case,
    "checkpoint": saved.checkpoint_case,
    "name": name_case,
    "annotation": annotation_case,
}
