"""Maps as files for wsolevaluation, the benchmark of weakly supervised object localization.

What `evaluation.py` of https://github.com/clovaai/wsolevaluation reads (commit b98c7d1):

- The file of an image is `scoremap_root/ID.npy`, where the id keeps the ending of the image file:
  `val/ILSVRC2012_val_00000001.JPEG.npy`. (The docstring there says `123/456.npy`, without it.)
- An array (H,W) in [0,1] without NaN. 128 of them are stacked and converted to float64, so all have one shape.
- True boxes and masks are stretched to 224 x 224 pixels before they are compared with maps. So that is the size of the
  maps: the whole image, stretched. (The docstring there asks for the size of the original image, which its own code
  does not stack.)
- Maps shall reach 0 and 1: its own are normalised after resizing, so ours are, too, by default (`stretch`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gamlens.adapters.map_options import MapOptions
from gamlens.adapters.wsol_ids import check_ids, default_ids
from gamlens.capture.forward import BY_NETWORK
from gamlens.data import Sample
from gamlens.errors import GamlensError, attempt, readable, reworded
from gamlens.files import StagedFiles, claimed, is_disk_full
from gamlens.fuse import Fusion
from gamlens.inputs.batch import ModelInput, ViewList, part
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.inputs.transform import Transform
from gamlens.lens import Lens
from gamlens.refine import Refine, Refinement, Sharp, preset
from gamlens.retrieval.gallery import weights_sha256
from gamlens.streaming.failures import tried, worded
from gamlens.streaming.prefetch import grouped, prefetch
from gamlens.streaming.stream import SizeBatches, sort_by_size

WSOL_SIDE = 224  # the height and width to which the benchmark stretches true boxes and masks
OWN_SIZES = ("image", "input")  # the sizes of maps that are not a number
WHICH_CLASS = ("label", "top")
MADE_BY = "gamlens-export.json"  # how the maps in a folder were made
# (images, the class of each, or None for the top class) -> maps (B,H,W) at the size of the input
BatchToMaps = Callable[[ModelInput, list[int | None]], Tensor]


@dataclass(frozen=True)
class WsolExport:
    """What `export_wsol` did.

    Attributes:
        folder: Where the files are.
        written: How many maps were written.
        kept: How many were there already and were left as they are.
        errors: Why there is no map of an image, by id.
        several: How many images have several labels; their maps show the first.
    """

    folder: Path
    written: int = 0
    kept: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    several: int = 0


@dataclass(frozen=True)
class _Wanted:
    """One map to write: the id, the image file, and the class that is explained, None for the top class."""

    name: str
    image: str
    label: int | None


def export_wsol(
    lens: Lens,
    samples: Iterable[Sample],
    folder: str | Path,
    *,
    ids: Sequence[str] | None = None,
    target: str = "label",
    size: int | str = WSOL_SIDE,
    stretch: bool = True,
    method: str = BY_NETWORK,
    n: int | str = BY_NETWORK,
    fuse: Fusion = "mean",
    lattice: str = "read",
    refine: Refine = False,
    sharp: Sharp = False,
    views: ViewList = (),
    batch_size: int = 16,
    workers: int | None = None,
    fresh: bool = False,
    status: Callable[[int, int], None] | None = None,
) -> WsolExport:
    """Write one map per image as a `.npy` file, where and as wsolevaluation reads them.

    Maps that the folder holds already are kept, so a stopped call continues where it stopped. It is an error if they
    were made in another way. An image that cannot be read or explained is listed in the result, and the others are
    written.

    Args:
        lens: The model, and how it is read.
        samples: The images. With target="label" their labels are class numbers of the model: `gamlens.data.align`.
        folder: Where the files go.
        ids: The id of each sample, which is the path of its file below `folder` before `.npy`. By default the names of
            the image's folder and file (`default_ids`); `read_ids` and `match_ids` give those of the benchmark's lists.
        target: Which class is explained: "label" is the sample's first label, "top" the model's top class.
        size: The height and width of the maps: 224 stretches the whole image to 224 x 224, which the benchmark needs;
            "image" is the size of the image, "input" that of the model's input.
        stretch: Whether each map is stretched so that it reaches 0 and 1. A flat map becomes zeros.
        method: As `Lens.classify` takes it, or an explainer of another package, such as "captum:IntegratedGradients"
            (`gamlens.evaluation.explainers`), which takes none of the next six options.
        n, fuse, lattice, refine, sharp, views: As `Lens.classify` takes them.
        batch_size: Images per forward. A stopped call repeats at most this many.
        workers: Number of threads that decode.
        fresh: Whether the maps that an earlier call wrote to the folder are deleted first.
        status: Called with the number of finished images and of errors.

    Returns:
        A WsolExport: how many maps were written and kept, and what went wrong.

    Raises:
        GamlensError: If an option or an id is wrong, maps in the folder were made in another way, all images of the
            first batch fail, or the disk is full.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     photo.save(f"{place}/a.png")
        ...     done = export_wsol(lens, [Sample("a", f"{place}/a.png", (1,))], f"{place}/maps", ids=["val/a.png"])
        ...     found = np.load(f"{place}/maps/val/a.png.npy")
        >>> done.written, found.shape, found.dtype.name
        (1, (224, 224), 'float32')
    """
    place, given = Path(folder), list(samples)
    names = default_ids(given) if ids is None else list(ids)
    _check(given, names, target, size, batch_size)
    refined, looks = preset(sharp, refine, views)
    refined = Refinement.parse(refined) or False
    options = MapOptions(BY_NETWORK if ":" in method else method, n, fuse, lattice, refined, False, tuple(looks))
    make = _from_explainer(lens, method, options) if ":" in method else partial(_from_lens, lens, options)
    about = _about(lens, method, options, target, size, stretch)
    wanted, errors = _wanted(given, names, target)
    with claimed(place):
        _begin(place, about, [one.name for one in wanted], fresh=fresh)
        todo = [one for one in wanted if not os.path.exists(_file(place, one.name))]
        kept = len(wanted) - len(todo)
        done = WsolExport(place, 0, kept, errors, sum(len(sample.labels) > 1 for sample in given) * (target == "label"))
        tell = status or (lambda items, errors: None)
        tell(kept + len(errors), len(errors))
        for maps, failed in _maps(lens, todo, make, looks, batch_size, workers, known=kept > 0):
            sized = {name: _finished(own, frame, size, stretch) for name, (own, frame) in maps.items()}
            if sized and not done.written:
                _note(place, about)
            unwritten = _write(place, sized)
            done.errors.update({**failed, **unwritten})
            done = replace(done, written=done.written + len(sized) - len(unwritten))
            tell(done.kept + done.written + len(done.errors), len(done.errors))
    return done


def _check(samples: Sequence[Sample], ids: Sequence[str], target: str, size: int | str, batch_size: int) -> None:
    """Raise a GamlensError for wrong arguments, before anything is written."""
    if len(ids) != len(samples):
        raise GamlensError(f"There are {len(samples)} samples and {len(ids)} ids: give one id for each sample.")
    if target not in WHICH_CLASS:
        raise GamlensError(f"target={target!r}: give 'label' (the data set's class) or 'top' (the model's top class).")
    if isinstance(size, bool) or not (size in OWN_SIZES or (isinstance(size, int) and size > 0)):
        raise GamlensError(f"size={size!r}: give a number of pixels, such as {WSOL_SIDE}, or 'image' or 'input'.")
    if batch_size < 1:
        raise GamlensError(f"batch_size={batch_size}: give at least 1.")
    check_ids(ids)


def _wanted(samples: Sequence[Sample], ids: Sequence[str], target: str) -> tuple[list[_Wanted], dict[str, str]]:
    """The maps to write; and the errors of images without a label, where labels are explained."""
    wanted, errors = [], {}
    for sample, name in zip(samples, ids, strict=True):
        if target == "label" and not sample.labels:
            errors[name] = "It has no label that the model knows: explain the top class (target 'top') instead."
        else:
            wanted.append(_Wanted(name, sample.image, sample.labels[0] if target == "label" else None))
    return wanted, errors


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.npy"


# The maps


def _from_lens(lens: Lens, options: MapOptions, ready: ModelInput, targets: list[int | None]) -> Tensor:
    """Maps by one of METHODS. The images were prepared with the views already."""
    return lens.classify(ready, targets, **{**options.keywords(), "views": ()}).cpu().maps


def _from_explainer(lens: Lens, method: str, options: MapOptions) -> BatchToMaps:
    """Maps by an explainer of another package, or of the user."""
    from gamlens.evaluation import explainers

    if options != MapOptions():
        changed = [name for name, value in vars(options).items() if value != getattr(MapOptions(), name)]
        raise GamlensError(f"{method!r} makes its maps by itself: leave {', '.join(changed)} out, or use our methods.")
    found = explainers.find(method)
    if found.by_name is not None:
        raise GamlensError(f"{method!r} are maps in files already: choose an explainer that makes maps.")
    explain: Callable[[Tensor, Tensor], Tensor] | None = found.bind(lens).classify
    if explain is None:
        raise GamlensError(f"{method!r} explains pairs of images, not classes: choose an explainer of classes.")

    def make(ready: ModelInput, targets: list[int | None]) -> Tensor:
        batch = lens.prepare(ready).batches[0]
        known = [label for label in targets if label is not None]
        wanted = torch.tensor(known) if len(known) == len(targets) else lens.outputs(ready).argmax(dim=1)
        return explain(batch.to(lens.device), wanted.to(lens.device)).detach().cpu()

    return make


def _maps(
    lens: Lens,
    todo: Sequence[_Wanted],
    make: BatchToMaps,
    views: ViewList,
    batch_size: int,
    workers: int | None,
    *,
    known: bool,
) -> Iterator[tuple[dict[str, tuple[Tensor, Frame]], dict[str, str]]]:
    """Yield, batch by batch, the map (H,W) and the frame of each image, and why others have none, by id.

    If no image has a map yet (`known`), and all images of a batch that could be read fail, their error is raised,
    because wrong options would hit every image.
    """

    def opened(one: _Wanted) -> ModelInput:
        with reworded(f"Cannot read {one.image!r}"):
            return lens.prepare(Picture(one.name, path=one.image), views=views)

    def load(group: list[_Wanted]) -> SizeBatches:
        return sort_by_size([attempt(opened, one) for one in group], lens.device)

    for group, loaded in prefetch(load, grouped(todo, batch_size), workers=workers):
        maps: dict[str, tuple[Tensor, Frame]] = {}
        errors = {group[at].name: worded(error) for at, error in loaded.errors.items()}
        failed: list[Exception] = []
        for places, ready in loaded.batches:
            own = [group[at] for at in places]
            for one, made, frame in zip(own, _made(make, ready, own), ready.frames, strict=True):
                if isinstance(made, Exception):
                    failed.append(made)
                    errors[one.name] = worded(made)
                else:
                    maps[one.name] = (made, frame)
        if failed and not maps and not known:
            raise failed[0]
        known = known or bool(maps)
        yield maps, errors


def _made(make: BatchToMaps, ready: ModelInput, wanted: Sequence[_Wanted]) -> Sequence[Tensor | Exception]:
    """The map of each image of a batch. If the batch fails, its images are explained one by one."""
    maps = tried(make, ready, [one.label for one in wanted])
    if not isinstance(maps, Exception):
        return list(maps)
    if len(wanted) == 1:
        return [maps]
    singles = [tried(make, part(ready, at), [one.label]) for at, one in enumerate(wanted)]
    return [single if isinstance(single, Exception) else single[0] for single in singles]


def _finished(map: Tensor, frame: Frame, size: int | str, stretch: bool) -> NDArray[np.float32]:
    """Bring a map (H,W) of the model's input to the size that is wanted, and stretch its values to reach 0 and 1."""
    if isinstance(size, int):
        frame = _stretched(frame, size)
    whole = frame.original == frame.size and frame.window == Frame.whole(frame.original, frame.size).window
    sized = map.float() if size == "input" or whole else frame.map(map)
    low, high = sized.min(), sized.max()
    if stretch:
        sized = (sized - low) / (high - low) if high > low else torch.zeros_like(sized)
    return np.ascontiguousarray(sized.clamp(0, 1).numpy(), dtype=np.float32)


def _stretched(frame: Frame, side: int) -> Frame:
    """The frame of the same input in the original image stretched to side x side pixels."""
    height, width = frame.original
    x0, y0, x1, y1 = frame.window
    window = (x0 * side / width, y0 * side / height, x1 * side / width, y1 * side / height)
    return Frame((side, side), frame.size, window)


# The files


def _write(folder: Path, maps: dict[str, NDArray[np.float32]]) -> dict[str, str]:
    """Write maps, all of them or one by one; returns why some could not be written. A full disk is an error."""
    whole = attempt(_staged, folder, maps)
    if not isinstance(whole, GamlensError):
        return {}
    if not is_disk_full(whole) and len(maps) > 1:
        return {name: why for name, own in maps.items() for why in _write(folder, {name: own}).values()}
    if is_disk_full(whole):
        raise GamlensError(
            f"{whole} The maps written so far are kept: make room, then give the same command again."
        ) from whole
    return dict.fromkeys(maps, str(whole))


def _staged(folder: Path, maps: dict[str, NDArray[np.float32]]) -> None:
    with reworded("Cannot write", OSError, todo=". Give other ids."), StagedFiles() as staged:
        for name, own in maps.items():
            staged.write(_file(folder, name), partial(_save, own))


def _save(map: NDArray[np.float32], out: Any) -> None:
    np.save(out, map, allow_pickle=False)


def _about(lens: Lens, method: str, options: MapOptions, target: str, size: int | str, stretch: bool) -> dict[str, Any]:
    """How maps are made. An error names what differs between two exports, so the keys are written for people."""
    from gamlens.evaluation import explainers

    refined = Refinement.parse(options.refine)
    own = {"explainer": explainers.find(method).source} if ":" in method else {}  # a version, or a file's sha256
    return {
        "format": "wsol",
        "model": lens.name,
        "weights": weights_sha256(lens.model),
        "blocks": list(lens.blocks) if lens.knows_blocks else [],
        "precision": lens.precision,
        "transform": repr(lens.transform) if isinstance(lens.transform, Transform) else "a function",
        "method": method,
        **own,
        "n": options.n,
        "fuse": options.fuse if isinstance(options.fuse, str) else list(options.fuse),
        "lattice": options.lattice,
        "refine": {"blocks": refined.blocks, "keep": refined.keep} if refined else None,
        "views": list(options.views),
        "target": target,
        "size": size,
        "stretch": stretch,
    }


def _begin(folder: Path, about: dict[str, Any], names: Sequence[str], *, fresh: bool) -> None:
    """Check that maps in the folder were made in the same way.

    With `fresh` the maps of an earlier export are deleted: every .npy file of a folder that has its note.
    """
    note = folder / MADE_BY
    if fresh and note.exists():
        for file in sorted(folder.rglob("*.npy")):
            if file.is_file():
                file.unlink()
    elif note.exists() and any(folder.rglob("*.npy")):
        before: Any = None
        with suppress(ValueError, OSError):
            before = json.loads(note.read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            raise GamlensError(f"{str(note)!r} cannot be read: give another folder, or start over (fresh, --fresh).")
        if different := [key for key, value in about.items() if before.get(key) != json.loads(json.dumps(value))]:
            key = different[0]
            raise GamlensError(
                f"The maps in {str(folder)!r} were made in another way. What differs: {', '.join(different)} "
                f"({key} was {before.get(key)!r:.60}, now {about[key]!r:.60}). Give another folder, or delete these "
                "maps (fresh=True, --fresh)."
            )
    elif there := [name for name in names if os.path.exists(_file(folder, name))]:
        raise GamlensError(
            f"{readable(str(_file(folder, there[0])))!r} is there already, and no export wrote it: give another folder."
        )


def _note(folder: Path, about: dict[str, Any]) -> None:
    """Write down how the maps in a folder are made. It is done before the first map is written."""
    with StagedFiles() as staged:
        staged.write(folder / MADE_BY, lambda out: out.write(json.dumps(about, indent=2).encode()))
