"""The command that makes the paper's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from gamlens import figures, render
from gamlens.cli import options
from gamlens.cli.common import command, make_lens, say
from gamlens.data import DATASETS, load
from gamlens.errors import GamlensError
from gamlens.report.image_files import find_images

FIGURE_HELP = "Which figure:\n\n" + "\n\n".join(f"{name}: {figure.about}" for name, figure in figures.FIGURES.items())


@command("figure cosine cheetah.jpg lion.jpg --model efficientnet_lite0 --out cosine.png")
def figure(
    name: Annotated[str, Argument(help=FIGURE_HELP, show_default=False)],
    images: Annotated[list[str] | None, Argument(help="Image files, folders or globs; pairs two by two.")] = None,
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    target: Annotated[list[str] | None, Option("--target", "-t", help="Class; repeat it: one per image.")] = None,
    n: options.BlockCount = 2,
    others: Annotated[int, Option(help="How many blocks the other methods use.")] = 1,
    score: options.PairScoreName = "cosine",
    threshold: Annotated[float, Option(help="Where a map is cut for boxes and masks.")] = 0.25,
    data: Annotated[str | None, Option(help="In place of images, a data set: " + ", ".join(DATASETS))] = None,
    root: Annotated[Path | None, Option(help="The folder (or table) of the data set.")] = None,
    split: options.DatasetSplit = None,
    item: Annotated[list[str] | None, Option(help="An item of the data set by name; repeat it.")] = None,
    count: Annotated[int, Option(help="How many items of the data set.", min=1)] = 4,
    masks: Annotated[Path | None, Option(help="Folder of true masks, NAME.png for each image.")] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="The picture: .png, .jpg, .webp, .pdf.")] = None,
    width: Annotated[float | None, Option(help="Printed width in inches; a column or a page by default.")] = None,
    dpi: Annotated[int, Option(help="Dots per inch.")] = 200,
    palette: Annotated[bool, Option("--palette", help="256 colours: a smaller file.")] = False,
    device: options.DeviceName = None,
) -> None:
    """A figure of the paper from your images or a data set, typeset for print."""
    takes = figures.FIGURES[name].takes
    if bool(data) != bool(root) or (data and images):
        raise GamlensError("Give image files, or a data set by both --data and --root.")
    if not data and not images:
        raise GamlensError(f"Figure {name!r} has no image: give image files, or --data and --root.")
    lens = make_lens(model, weights, blocks, device)
    if data and root:
        dataset = load(data, root, split=split)
        examples = figures.from_dataset(dataset, lens, takes=takes, count=count, items=item or ())
    else:
        examples = figures.from_images(find_images(images or [], twice=True), masks=masks)
    request = figures.FigureRequest(lens, examples, tuple(target or ()), n, others, score, threshold)
    grid = figures.make(name, request)
    picture = render.typeset(grid, inches=width, dpi=dpi)
    place = out or Path(f"{name}.png")
    figures.save(picture, place, dpi=dpi, palette=palette)
    inches = f"{picture.width / dpi:.2f} x {picture.height / dpi:.2f} in at {dpi} dpi"
    say(f"{place}  {picture.width} x {picture.height} px, {inches}")
