"""The commands `classify`, `compare` and `blocks`."""

import warnings
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text
from typer import Argument, Option

from gamlens import METHODS, Explanation, GamlensError, GamlensWarning, PairExplanation
from gamlens.capture.forward import BLOCKS_BY_DEFAULT, BY_NETWORK
from gamlens.cli import options
from gamlens.cli.common import ItemProgress, command, exit_with_failures, make_lens, say, say_json, say_table, tell
from gamlens.cli.measured_layout import measure_layout
from gamlens.evaluation.protocol import parse_views
from gamlens.explanation import file_stem
from gamlens.files import claimed
from gamlens.lattice import check_reading
from gamlens.models.devices import AUTO
from gamlens.report import classified_files as work
from gamlens.report.image_files import PAGE_FILE, about_sharpness, find_images
from gamlens.scores import CLASS_SCORES, find_class_score

SCORE_HELP = (
    f"The class score that is explained: {', '.join(CLASS_SCORES)}. 'probability' is the sigmoid for models with "
    "several classes per image (multi-label), and the softmax for all others."
)


@command("classify photos/ 'more/*.jpg' --target tabby --target lynx --sharp --out why", resumes=True)
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
    method: options.ClassMethodName = BY_NETWORK,
    n: options.BlocksOrLayers = None,
    fuse: options.FusionName = "mean",
    score: Annotated[str, Option(help=SCORE_HELP)] = "logit",
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
    json_: options.JsonOutput = False,
    device: options.DeviceName = AUTO,
) -> None:
    """Show which pixels speak for a class: saliency maps of images, for the top class or the classes you name."""
    refined = options.chosen_refinement(refine=refine, keep=keep, sharp=sharp, methods=[method])
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
    how = work.ClassifyOptions(wanted, method, depth, fuse, score, temperature, lattice, refined, further)
    failed = 0
    at = "" if temperature == 1 else f" at temperature {temperature:g}"
    lead = f"{_reading(method, n)} of `{lens.name}`, {score}{at}.{about_sharpness(refined, further)}"
    with ItemProgress("explaining", len(found)) as progress:
        for result in work.classify_files(lens, found, how, out=out, lead=lead, fresh=fresh):
            results.append(result)
            failed += bool(result.error)
            progress(len(results), failed)
            if result.error:
                tell("error", result.error, "bold red")
    if json_:
        say_json([result.record for result in results])
    else:
        _show_classes(results)
        if failed < len(results):
            say(f"Pictures, maps and JSON are in {out}; open {out / PAGE_FILE}")
    if failed:
        exit_with_failures(f"{failed} of {len(results)} files could not be explained.")


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


@command("compare cheetah.jpg lion.jpg --score dot --method gam -n 2")
def compare(
    a: Annotated[str, Argument(help="The first image file.", show_default=False)],
    b: Annotated[
        str | None, Argument(help="The second image file; leave it out with --text.", show_default=False)
    ] = None,
    text: Annotated[
        list[str] | None,
        Option(
            help="A caption to compare the image with; repeat the option for several. Needs a model with a text "
            "encoder, such as CLIP."
        ),
    ] = None,
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
    method: options.MethodName = BY_NETWORK,
    n: options.BlocksOrLayers = None,
    score: options.PairScoreName = "cosine",
    fuse: options.FusionName = "mean",
    lattice: options.LatticeReading = "read",
    refine: options.RefineBlocks = 0,
    keep: options.RefineKeep = None,
    sharp: options.SharpFlag = False,
    views: options.ViewNames = "",
    out: options.MapsFolder = Path("gamlens-out"),
    json_: options.JsonOutput = False,
    device: options.DeviceName = AUTO,
) -> None:
    """Show on two images why a model finds them similar; or, with --text, which pixels of an image match captions."""
    if (b is None) == (not text):
        raise GamlensError(
            "Give two images (gamlens compare A B), or one image and a caption (gamlens compare A --text T)."
        )
    refined = options.chosen_refinement(refine=refine, keep=keep, sharp=sharp, methods=[method])
    further = parse_views(views)
    lens = make_lens(model, weights, blocks, device, embedding=embedding)
    depth = BY_NETWORK if n is None else n
    result: Explanation | PairExplanation
    place = out / "-".join(file_stem(Path(file).stem) for file in (a, b) if file is not None)
    with claimed(place):
        if b is None:
            result = lens.compare_text(
                a, text or [], method=method, n=depth, fuse=fuse, views=further, lattice=lattice, refine=refined
            )
            score = result.about["score"]
            rows = list(zip(result.names, result.scores.tolist(), result.boxes().tolist(), strict=True))
            captions = [{"text": name, "score": value, "box": box} for name, value, box in rows]
            found: dict[str, Any] = {"captions": captions}
        else:
            result = lens.compare(
                a, b, score=score, method=method, n=depth, fuse=fuse, views=further, lattice=lattice, refine=refined
            )
            boxes = {side: getattr(result, side).boxes().tolist()[0] for side in "xy"}
            rows = [(Path(b).name, float(result.scores[0]), boxes)]
            found = {"y": b, "score": rows[0][1], "boxes": boxes}
        written = result.save(str(place))
    if json_:
        say_json({"x": a, **found, "folder": str(place), "about": dict(result.about)})
        return
    about = result.about if isinstance(result, Explanation) else result.x.about
    say(f"{METHODS[about['method']].title}, n = {about['n']}, {lens.name}")
    for other, value, _ in rows:
        say(Text.assemble((f"{score} {value:.4f}", "bold"), f"  {Path(a).name}  ~  {other}"))
    say(f"The maps, one per caption, are in {place}" if b is None else f"Both maps are in {written[-1]}")


@command("blocks resnet50 --blocks layer3,layer4 --embedding avgpool")
def blocks(
    model: Annotated[str, Argument(help=options.MODEL_HELP)],
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
) -> None:
    """List a model's blocks, which maps are computed from, and its embedding, which images are compared by.

    The column "read" marks the blocks that gamlens uses: those found automatically, or those that you name with
    --blocks. Names do not depend on weights, so the model gets random weights and nothing is downloaded.
    """
    own = weights or (None if ".py:" in model else "random")
    lens = make_lens(model, own, blocks, AUTO, embedding=embedding)
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
        say(f"method     {lens.default_method} by default")

    for lattice in dict.fromkeys(lattices.values()):
        names = ", ".join(name for name, own in lattices.items() if own == lattice)
        say(f"lattice    {names}: {lattice}; maps are made of these positions (--lattice keep: of all)")


def _show_classes(results: list[work.FileResult]) -> None:
    lines = []
    for result in results:
        file, guesses = Path(result.file).name, [f"{one.name} {100 * one.probability:.0f} %" for one in result.top[:3]]
        for name, value in zip(result.names, result.scores, strict=True):
            lines.append((file, name, f"{value:.2f}", ", ".join(guesses)))
            file, guesses = "", []
    if lines:
        say_table(("file", "explained", "score", "the model's best guesses"), lines, box=None, pad_edge=False)
