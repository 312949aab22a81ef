"""Save an Explanation to a folder, over one that was saved there before, without loss of anybody else's files.

A file is replaced or deleted only if it is certainly ours. Pictures and maps carry a mark (see `marked_png` and
`is_marked_maps`). Files of older versions have none: they are ours if the saved maps, drawn again, give exactly the
saved overlays. No name and no number in explanation.json is taken on trust, because anybody may have written it.
"""

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops

from gamlens.errors import GamlensError, attempt
from gamlens.explanation import storage
from gamlens.explanation.map_bar import EndWords
from gamlens.explanation.result import Explanation, PairExplanation
from gamlens.files import StagedFiles, check_plain
from gamlens.render import COLORMAPS, STYLES, is_marked_png, write_png

MISSHAPEN = KeyError, TypeError, IndexError, ValueError  # what reading a record of another shape raises


def save(result: Explanation, folder: str | Path, *, cmap: str, style: str) -> list[str]:
    """Write `result` to `folder`. If a file cannot be written, or is not ours to replace, the folder stays as it was.

    Pictures of an explanation that was saved in the folder before are deleted, if they are certainly ours.

    Returns:
        The paths of the files.
    """
    before = SavedBefore(Path(folder))
    old = list(before.pictures())
    with StagedFiles() as staged:
        storage.stage(staged, result, before.place, cmap, style)
        _check_replaced(staged, [before], result)
    _delete(old, staged, result)
    return staged.files


def save_pair(result: PairExplanation, folder: str | Path, *, cmap: str) -> list[str]:
    """Write the two sides to `folder`/x and `folder`/y, and one picture per pair; return the paths of the files.

    Files that are there already are treated as in `save`.
    """
    draw = partial(result.overlay, bar=bool(result.x.scales))
    return save_sides({"x": result.x, "y": result.y}, draw, folder, cmap=cmap)


def save_sides(
    sides: Mapping[str, Explanation],
    draw: Callable[..., Image.Image],
    folder: str | Path,
    *,
    cmap: str,
    words: EndWords | None = None,
) -> list[str]:
    """Write each side to a folder of its name, and one picture per row; return the paths of the files.

    Args:
        sides: The Explanations by name, with the same number of rows.
        draw: Draws the picture of a row, draw(row, cmap=...).
        folder: Where the files go. Files that are there already are treated as in `save`.
        cmap: The colour map.
        words: What negative and positive values of maps with a sign mean, as `Explanation.bar` takes it.
    """
    before = SidesSavedBefore(Path(folder), tuple(sides))
    old = list(before.pictures())
    with StagedFiles() as staged:
        for name, side in sides.items():
            storage.stage(staged, side, before.sides[name].place, cmap, "heat", words)
        for row in range(len(next(iter(sides.values())))):
            staged.write(before.place / storage.pair_name(row), partial(write_png, draw(row, cmap=cmap)))
        _check_replaced(staged, [before, *before.sides.values()], *sides.values())
    _delete(old, staged, *sides.values())
    return staged.files


def is_whole(folder: str) -> bool:
    """Whether a folder holds an explanation that can be loaded, and its pictures are those that `save` wrote."""
    before = SavedBefore(Path(folder))
    pictures = [ours for found, ours in (*before._overlays(), *before._kept()) if found is not None]
    if not all(is_marked_png(before.place / name) for name in pictures):
        return False
    return isinstance(attempt(storage.load, folder), Explanation)


class SavedBefore:
    """The explanation that was saved in a folder before, if there is one, and which files of it are certainly ours."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.record = _read_record(place)

    def owns(self, name: str) -> bool:
        """Whether a file of the folder was written by `save` and not changed since; explanation.json may be edited."""
        file = self.place / name
        if name == storage.JSON:
            return bool(self.record) and _is_file(file)
        marked = storage.is_marked_maps(file) if name == storage.MAPS else is_marked_png(file)
        return marked or (_is_file(file) and name in self._redrawn)

    def pictures(self) -> Iterator[Path]:
        """Yield the pictures that the record names, if the name is the one that `save` gives and the file is ours."""
        for found, ours in (*self._overlays(), *self._kept()):
            if found == ours and self.owns(ours):
                yield self.place / ours

    def _overlays(self) -> list[tuple[Any, str]]:
        """For each row the name of its overlay in the record, and the name that `save` gives to it."""
        with suppress(*MISSHAPEN):
            rows, images = self.record["rows"], self.record["images"]
            names = [storage.overlay_name(at, images[row["image"]]["name"], row["name"]) for at, row in enumerate(rows)]
            return [(row["overlay"], name) for row, name in zip(rows, names, strict=True)]
        return []

    def _kept(self) -> list[tuple[Any, str]]:
        """For each image the name of its copy in the record, and the name that `save` gives to it."""
        with suppress(*MISSHAPEN):
            return [(image["kept"], storage.kept_name(at)) for at, image in enumerate(self.record["images"])]
        return []

    @cached_property
    def _redrawn(self) -> set[str]:
        """The files without a mark that are ours, because drawing the saved maps gives exactly the saved overlays."""
        proven: set[str] = set()
        try:
            old = storage.load(self.place)
            for row, (_, name) in enumerate(self._overlays()):
                draw = partial(old.overlay, row)
                ways = ({"cmap": cmap, "style": style} for style, cmap in product(STYLES, COLORMAPS))
                if _is_drawn(self.place / name, draw, ways, old.picture(row).path):
                    proven |= {name, storage.MAPS, storage.kept_name(int(old.index[row]))}
        except (GamlensError, OSError, *MISSHAPEN):
            return set()
        return proven


class SidesSavedBefore:
    """The pairs that were saved in a folder before: x/ and y/ as in `SavedBefore`, and one picture per pair.

    A contrast is saved in the same way, with the sides x, a and b.
    """

    def __init__(self, place: Path, names: Sequence[str] = ("x", "y")) -> None:
        self.place = place
        self.sides = {name: SavedBefore(place / name) for name in names}

    def owns(self, name: str) -> bool:
        """Whether the picture of a pair was written by `save_sides` and not changed since."""
        return is_marked_png(self.place / name) or (_is_file(self.place / name) and name in self._redrawn)

    def pictures(self) -> Iterator[Path]:
        """Yield the pictures of all sides and of the pairs that are ours; none if a side is a link."""
        sides = self.sides.values()
        if any(side.place.is_symlink() for side in sides):
            return
        for side in sides:
            yield from side.pictures()
        rows = [side.record.get("rows") for side in sides]
        counts = {len(own) if isinstance(own, list) else 0 for own in rows}
        count = counts.pop() if len(counts) == 1 else 0
        yield from (self.place / name for name in map(storage.pair_name, range(count)) if self.owns(name))

    @cached_property
    def _redrawn(self) -> set[str]:
        """The pictures without a mark that are ours, because drawing the saved maps gives exactly these pictures."""
        try:
            old = PairExplanation.load(str(self.place))
            ways = [{"cmap": cmap} for cmap in COLORMAPS]
            names = [storage.pair_name(row) for row in range(len(old))]
            files = [self.place / name for name in names]
            return {
                file.name for row, file in enumerate(files) if _is_drawn(file, partial(old.overlay, row), ways, None)
            }
        except (GamlensError, OSError, *MISSHAPEN):
            return set()


def _is_drawn(file: Path, draw: Callable[..., Image.Image], ways: Iterable[dict[str, str]], photo: str | None) -> bool:
    """Whether a PNG file shows exactly what `draw` draws in one of the `ways`; False if it is the photo itself."""
    if not _is_file(file) or (photo is not None and _identity(photo) == _identity(file)):
        return False
    with suppress(GamlensError, OSError, *MISSHAPEN), Image.open(file, formats=("PNG",)) as found:
        for way in ways:
            drawn = draw(**way)
            if found.size != drawn.size or found.mode != drawn.mode:
                return False
            if ImageChops.difference(found, drawn).getbbox() is None:
                return True
    return False


def _read_record(place: Path) -> dict[str, Any]:
    """Return the contents of explanation.json in this folder, or {} if it is not one that `save` wrote."""
    try:
        check_plain(place / storage.JSON)
        record = json.loads((place / storage.JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, GamlensError):
        return {}
    if not isinstance(record, dict) or record.get("format") != storage.FORMAT:
        return {}
    kinds = {"about": dict, "rows": list, "images": list}
    return record if all(isinstance(record.get(key), kind) for key, kind in kinds.items()) else {}


def _check_replaced(staged: StagedFiles, before: list[SavedBefore | SidesSavedBefore], *saved: Explanation) -> None:
    """Raise an error if a file that is about to be replaced is not certainly ours, or is a photo that is explained."""
    owners = {one.place: one for one in before}
    shown = _shown(saved)
    for file in map(Path, staged.files):
        if os.path.lexists(file) and (_identity(file) in shown or not owners[file.parent].owns(file.name)):
            raise GamlensError(
                f"Cannot write {str(file)!r}: a file of that name is there that gamlens did not write, or that was "
                "changed since. Nothing was written: move it away or delete it, or save to another folder."
            )


def _delete(old: list[Path], staged: StagedFiles, *saved: Explanation) -> None:
    """Delete old pictures, but none that was just written and none that a saved explanation shows."""
    needed = {*map(_identity, staged.files), *_shown(saved)}
    for file in old:
        if _identity(file) not in needed:
            file.unlink(missing_ok=True)


def _shown(saved: Iterable[Explanation]) -> set[tuple[int, int] | None]:
    """The identities of the files that explanations show."""
    paths = (picture.path for result in saved for picture in result.pictures if picture.path is not None)
    return set(map(_identity, paths)) - {None}


def _identity(file: str | Path) -> tuple[int, int] | None:
    """Return what two names of one file have in common, also where upper and lower case are the same name."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _is_file(file: Path) -> bool:
    """Whether this is a plain file, not a link or a folder."""
    try:
        return stat.S_ISREG(file.lstat().st_mode)
    except (OSError, ValueError):
        return False
