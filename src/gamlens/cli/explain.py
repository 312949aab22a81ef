"""The commands `classify` and `blocks`."""

import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from gamlens import METHODS, MODELS, GamlensError, GamlensWarning
from gamlens.capture.forward import BLOCKS_BY_DEFAULT, BY_NETWORK
from gamlens.cli import options
from gamlens.cli.common import command, exit_with_failures, make_lens
from gamlens.cli.measured_layout import measure_layout
from gamlens.cli.terminal import note, say, say_rows, say_table, tell
from gamlens.cli.waiting import ItemProgress, waiting
from gamlens.evaluation.protocol import parse_views
from gamlens.lattice import check_reading
from gamlens.models.devices import AUTO
from gamlens.report import classified_files as work
from gamlens.report.image_files import PAGE_FILE, about_sharpness, about_sign, find_images
from gamlens.scores import CLASS_SCORES, find_class_score

FAILURES_PRINTED = 10  # files that failed, one line each
FILES_PRINTED = 18  # more are sorted and counted
CLASSES_COUNTED = 5
SCORE_HELP = (
    f"The class score that is explained: {', '.join(CLASS_SCORES)}. 'probability' is the sigmoid for models with "
    "several classes per image (multi-label), and the softmax for all others."
)


@command("classify photos/ 'more/*.jpg' --target tabby --against lynx --sharp --out why", resumes=True)
def classify(
    paths: options.ImagePaths,
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    target: Annotated[
        list[str] | None,
        Option(
            "--target",
            "-t",
            help="A class to explain, by name or number; repeat the option for several. By default the top class.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        Option(
            help="Another class, by name or number: why the class that is explained rather than this one? The maps "
            "then have both signs unless --sign says otherwise."
        ),
    ] = None,
    method: options.ClassMethodName = BY_NETWORK,
    n: options.BlocksOrLayers = None,
    fuse: options.FusionName = "mean",
    score: Annotated[str, Option(help=SCORE_HELP)] = "logit",
    sign: options.MapSign = None,
    lattice: options.LatticeReading = "read",
    refine: options.RefineBlocks = 0,
    keep: options.RefineKeep = None,
    sharp: options.SharpFlag = False,
    views: options.ViewNames = "",
    temperature: Annotated[
        float,
        Option(
            help="For a score that is a probability: the class scores are divided by this before the softmax or "
            "sigmoid. Above 1 probabilities are less certain, as in --score softmax --temperature 2."
        ),
    ] = 1.0,
    out: options.MapsFolder = Path("gamlens-out"),
    fresh: Annotated[
        bool, Option("--fresh", help="Start over, if a command that was interrupted left its notes in the folder.")
    ] = False,
    device: options.DeviceName = AUTO,
) -> list[dict[str, Any]]:
    """Show which pixels speak for a class: saliency maps of images, for the top class or the classes you name.

    With --sign both, the maps show in two colours what raises the score and what lowers it. With --against, they show
    why it is this class rather than another.
    """
    refined = options.chosen_refinement(refine=refine, keep=keep, sharp=sharp, methods=[method])
    sign = options.chosen_sign(sign, against=against, methods=[method])
    if against is not None and len(target or ()) > 1:
        raise GamlensError(f"--against compares one class with another: --target names {len(target or ())}; give one.")
    further = parse_views(views)
    found = find_images(paths, skip=out)
    lens = make_lens(model, weights, blocks, device)
    wanted: list[str | int] | None = list(target) if target else None
    results: list[work.FileResult] = []
    find_class_score(score, temperature=temperature)  # an error now, not after the first batch
    check_reading(lattice)
    method = lens.default_method if method == BY_NETWORK and lens.knows_blocks else method
    by_network = method == BY_NETWORK or METHODS[method].kind == "attention"
    depth = n if n is not None else BY_NETWORK if by_network else BLOCKS_BY_DEFAULT
    how = work.ClassifyOptions(
        wanted, method, depth, fuse, score, temperature, lattice, refined, further, sign, against
    )
    failed = 0
    at = "" if temperature == 1 else f" at temperature {temperature:g}"
    lead = f"{_reading(method, n)} of `{lens.name}`, {score}{at}.{about_sign(sign)}{about_sharpness(refined, further)}"
    with ItemProgress("explaining", len(found)) as progress:
        for result in work.classify_files(lens, found, how, out=out, lead=lead, fresh=fresh):
            results.append(result)
            failed += bool(result.error)
            progress(len(results), failed)
            if result.error and failed <= FAILURES_PRINTED:
                tell("error", result.error, "bold red")
    if failed > FAILURES_PRINTED:
        note(f"{failed - FAILURES_PRINTED} more errors are not shown; --json prints all.")
    _show_classes(results)
    if failed < len(results):
        say(f"Pictures, maps and JSON are in {out}; open {out / PAGE_FILE}")
    records = [result.record for result in results]
    if failed:
        exit_with_failures(f"{failed} of {len(results)} files could not be explained.", records)
    return records


def _reading(method: str, n: int | None) -> str:
    """The method and what it reads, in words: "GAM, the last 2 blocks"."""
    if method == BY_NETWORK:
        return "The default method"
    entry = METHODS[method]
    if entry.kind == "input":
        return f"{entry.title}, the pixels"
    if entry.kind == "attention":
        return f"{entry.title}, {'all attention layers' if n is None else f'the last {n} attention layers'}"
    return f"{entry.title}, the last {BLOCKS_BY_DEFAULT if n is None else n} blocks"


@command("blocks resnet50 --blocks layer3,layer4 --embedding avgpool")
def blocks(
    model: Annotated[str, Argument(help=options.MODEL_HELP, autocompletion=options.completed(MODELS))],
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
) -> dict[str, Any]:
    """List a model's blocks, which maps are computed from, and its embedding, which images are compared by.

    The column "read" marks the blocks that gamlens uses: those found automatically, or those that you name with
    --blocks. Names do not depend on weights, so the model gets random weights and nothing is downloaded.
    """
    own = weights or (None if ".py:" in model else "random")
    lens = make_lens(model, own, blocks, AUTO, embedding=embedding)
    with waiting(f"looking at {model}"):
        found, lattices = measure_layout(lens)
    lines = []
    for stage in found.stages:
        channels, height, width = stage.shape
        size, read = f"{height} x {width}", "yes" if stage.chosen else ""
        lines.append((stage.name, str(stage.stride), str(channels), size, read))
    say_table(("block", "stride", "channels", "size", "read"), lines)
    named = f"{found.embedding}  ({found.width} numbers)" if found.embedding else "not found: name it with --embedding"
    say(f"embedding  {named}")
    say(f"pooling    {found.pooling}")
    if aside := {stage.grid.aside for stage in found.stages if stage.grid is not None}:
        say(f"tokens     {max(aside)} class and register tokens set aside")
    if layers := lens.attention_layers:
        say(f"attention  {len(layers)} layers, {layers[0]} to {layers[-1]}")
    elif lens.no_attention:
        say(f"attention  cannot be read: {lens.no_attention}")
    with warnings.catch_warnings(action="ignore", category=GamlensWarning):  # what it says stands above already
        method = lens.default_method
        say(f"method     {method} by default")
    for lattice in dict.fromkeys(lattices.values()):
        names = ", ".join(name for name, own in lattices.items() if own == lattice)
        say(f"lattice    {names}: {lattice}; maps are made of these positions (--lattice keep: of all)")
    stages = [{"name": one.name, "stride": one.stride, "shape": one.shape, "read": one.chosen} for one in found.stages]
    return {
        "model": lens.name,
        "blocks": [{**one, "lattice": lattices.get(str(one["name"]))} for one in stages],
        "embedding": {"name": found.embedding, "width": found.width} if found.embedding else None,
        "pooling": found.pooling,
        "attention": {"layers": layers, "unreadable_because": lens.no_attention},
        "method": method,
    }


def _show_classes(results: list[work.FileResult]) -> None:
    """Print a line per file and class; of more files than a screen holds, the surest first, and a count of classes."""
    good = [result for result in results if not result.error]
    several = sum(len(result.names) for result in good) > FILES_PRINTED
    if several:
        good.sort(key=lambda result: -result.top[0].probability)
    lines = []
    for result in good:
        file, guesses = Path(result.file).name, [f"{one.name} {100 * one.probability:.0f} %" for one in result.top[:3]]
        for name, value in zip(result.names, result.scores, strict=True):
            lines.append((file, name, f"{value:.2f}", ", ".join(guesses)))
            file, guesses = "", []
    if lines:
        title = "The surest guesses" if several else None
        say_rows(("file", "explained", "score", "the model's best guesses"), lines, title=title)
    if several:
        counts = Counter(result.top[0].name for result in good)
        named = ", ".join(f"{name} {count}" for name, count in counts.most_common(CLASSES_COUNTED))
        more = f", and {len(counts) - CLASSES_COUNTED} more classes" if len(counts) > CLASSES_COUNTED else ""
        say(f"{len(good)} images by their top class: {named}{more}")
