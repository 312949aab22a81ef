"""The command `export`: our maps as files that other programs read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from gamlens import METHODS, GamlensError, Lens
from gamlens import data as datasets
from gamlens.adapters import WsolExport, WsolId, export_wsol, match_ids, read_ids
from gamlens.adapters.wsol_maps import WSOL_SIDE
from gamlens.capture.forward import BY_NETWORK
from gamlens.cli import options
from gamlens.cli.common import command, exit_with_failures, make_lens
from gamlens.cli.terminal import note, say
from gamlens.cli.waiting import ItemProgress, waiting
from gamlens.data import Sample
from gamlens.errors import Registry, readable
from gamlens.evaluation.protocol import parse_views
from gamlens.methods import names
from gamlens.models.devices import AUTO

ERRORS_LISTED = 20  # how many images that failed are named at the end
EXPORTS: Registry[Callable[..., WsolExport]] = Registry("export format", {"wsol": export_wsol})


@dataclass(frozen=True)
class ExportItems:
    """What is exported: samples, their ids (None for the default ones), and listed ids that have no image."""

    samples: Sequence[Sample]
    ids: Sequence[str] | None = None
    missing: Sequence[str] = ()


@command("export --to wsol --data ilsvrc --root ILSVRC --model resnet50 --method gam -n 2 --out maps", resumes=True)
def export(
    root: options.DatasetRoot,
    out: Annotated[Path, Option("--out", "-o", help="Write the maps into this folder.", show_default=False)],
    to: Annotated[
        str,
        Option(
            help=f"What the files are for: {', '.join(EXPORTS)} (clovaai/wsolevaluation: one float32 .npy file per "
            "image, named by the image's id)."
        ),
    ] = "wsol",
    data: options.DatasetName = "ilsvrc",
    split: options.DatasetSplit = None,
    ids: Annotated[
        Path | None,
        Option(
            help="The benchmark's list of images: image_ids.txt, or class_labels.txt, whose class numbers are then "
            "explained. By default all images of the data set, with ids of the form FOLDER/FILE.",
        ),
    ] = None,
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    target: Annotated[
        str,
        Option(
            "--target",
            "-t",
            help="Which class is explained: label (the data set's; the first if an image has several) or top (the "
            "model's top class).",
        ),
    ] = "label",
    method: Annotated[
        str,
        Option(
            help=f"Method: {BY_NETWORK}, {', '.join(names('block', 'attention', 'input'))}; or an explainer of another "
            f"package, such as grad_cam_lib:ScoreCAM. {options.AUTO_HELP}"
        ),
    ] = BY_NETWORK,
    n: options.BlocksOrLayers = None,
    fuse: options.FusionName = "mean",
    lattice: options.LatticeReading = "read",
    refine: options.RefineBlocks = 0,
    keep: options.RefineKeep = None,
    sharp: options.SharpFlag = False,
    views: options.ViewNames = "",
    size: Annotated[
        str,
        Option(
            help=f"The size of the maps: a number of pixels, to which the whole image is stretched ({WSOL_SIDE} is "
            "what wsolevaluation needs), image (the size of each image) or input (that of the model's input)."
        ),
    ] = str(WSOL_SIDE),
    stretch: Annotated[
        bool,
        Option(
            "--stretch/--no-stretch",
            help="Stretch each map so that it reaches 0 and 1, as wsolevaluation does with its own maps.",
        ),
    ] = True,
    limit: options.ItemLimit = None,
    batch: options.BatchSize = 16,
    workers: Annotated[int | None, Option(help="Number of threads that decode images.", min=1)] = None,
    fresh: Annotated[bool, Option("--fresh", help="Delete the maps that --out already holds, and start over.")] = False,
    device: options.DeviceName = AUTO,
) -> dict[str, Any]:
    """Write the maps of a data set's images as files that another program reads.

    Maps that --out already holds are kept, if they were made in the same way: the same command continues after a stop.
    Images that cannot be read are listed at the end.
    """
    write, sized = EXPORTS[to], _size(size)
    external = ":" in method
    if not external and method != BY_NETWORK:
        METHODS[method]  # an error now, before the model is loaded
    how = options.chosen_refinement(refine=refine, keep=keep, sharp=sharp, methods=[] if external else [method])
    further = parse_views(views)
    listed = read_ids(ids)[:limit] if ids is not None else None
    lens = make_lens(model, weights, blocks, device)
    with waiting("reading the data set"):
        items = _items(lens, data, root, split, listed, limit, by_label=target == "label")
    settings: dict[str, Any] = {
        "method": method, "n": BY_NETWORK if n is None else n, "fuse": fuse, "lattice": lattice, "refine": how,
        "views": further,
    }  # fmt: skip
    with ItemProgress("exporting", len(items.samples)) as progress:
        done = write(
            lens, items.samples, out, ids=items.ids, target=target, size=sized, stretch=stretch, batch_size=batch,
            workers=workers, fresh=fresh, status=progress, **settings,
        )  # fmt: skip
    return _tell_written(done, items.missing)


def _size(text: str) -> int | str:
    """The value of --size: a number of pixels, or a word, which `export_wsol` checks."""
    return int(text) if text.isdecimal() else text


def _items(
    lens: Lens,
    data: str,
    root: Path,
    split: str | None,
    listed: Sequence[WsolId] | None,
    limit: int | None,
    *,
    by_label: bool,
) -> ExportItems:
    """Read the data set, and choose from it the images of a list where one is given.

    Labels of the data set get the class numbers of the model; those of a list are class numbers already.
    """
    whole = datasets.load(data, root, split=split, limit=None if listed is not None else limit)
    labelled = listed is not None and any(one.label is not None for one in listed)
    if by_label and not labelled:
        whole = datasets.align(whole, lens.labels)
    if listed is None:
        return ExportItems(whole.samples)
    found = match_ids(whole, listed)
    if not found.samples:
        raise GamlensError(
            f"None of the {len(listed)} ids of the list, such as {readable(listed[0].name)!r}, is an image of "
            f"{whole.name} in {whole.root!r}: check --root, --split and --ids."
        )
    return ExportItems(found.samples, found.ids, found.missing)


def _tell_written(done: WsolExport, missing: Sequence[str]) -> dict[str, Any]:
    """Print how many maps there are now, and which images have none. If any has none, the exit code is 1."""
    if done.several:
        note(f"{done.several} images have several labels: their maps explain the first one.")
    there = f"; {done.kept} were there already" if done.kept else ""
    say(f"{done.written} maps were written to {done.folder}{there}")
    failed = {**done.errors, **dict.fromkeys(missing, "The data set has no image of this id.")}
    record = {"out": done.folder, "written": done.written, "kept": done.kept, "errors": failed}
    if failed:
        lines = [f"  {readable(name)}: {why}" for name, why in list(failed.items())[:ERRORS_LISTED]]
        more = [f"  and {len(failed) - ERRORS_LISTED} more"] if len(failed) > ERRORS_LISTED else []
        exit_with_failures("\n".join((f"{len(failed)} images have no map:", *lines, *more)), record)
    return record
