"""The command `compare`: why two images are similar, what still differs, and why one is closer than another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text
from typer import Argument, Option

from gamlens import METHODS, GamlensError, Lens
from gamlens.capture.forward import BY_NETWORK
from gamlens.cli import options
from gamlens.cli import pair_links as linking
from gamlens.cli.common import command, make_lens
from gamlens.cli.terminal import say
from gamlens.cli.waiting import waiting
from gamlens.evaluation.protocol import parse_views
from gamlens.explanation import Explanation, file_stem
from gamlens.files import claimed
from gamlens.models.devices import AUTO
from gamlens.report.image_files import record_of_maps


@dataclass(frozen=True)
class Compared:
    """What was compared, ready to be saved, printed or given as JSON.

    Attributes:
        lines: For each score its name, its value and what it belongs to.
        record: The same for JSON.
        about: How the maps were made.
        save: Writes all maps to a folder and returns the paths of the files.
        where: Says where the maps are, from these paths.
    """

    lines: Sequence[tuple[str, float, str]]
    record: dict[str, Any]
    about: dict[str, Any]
    save: Callable[[str], list[str]]
    where: Callable[[list[str]], str]


@command("compare cheetah.jpg lion.jpg --sign both --links")
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
    against: Annotated[
        str | None,
        Option(
            help="A third image file: why is the first image more like the second than like this one? With --text, "
            "another caption: why does the image fit the caption better than this one? The maps then have both signs "
            "unless --sign says otherwise."
        ),
    ] = None,
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
    method: options.MethodName = BY_NETWORK,
    n: options.BlocksOrLayers = None,
    score: options.PairScoreName = "cosine",
    sign: options.MapSign = None,
    fuse: options.FusionName = "mean",
    lattice: options.LatticeReading = "read",
    refine: options.RefineBlocks = 0,
    keep: options.RefineKeep = None,
    sharp: options.SharpFlag = False,
    views: options.ViewNames = "",
    links: linking.LinksFlag = False,
    steps: linking.StepCount = None,
    cells: linking.CellCount = None,
    baseline: linking.BaselineName = None,
    x_box: linking.XBoxes = None,
    y_box: linking.YBoxes = None,
    out: options.MapsFolder = Path("gamlens-out"),
    device: options.DeviceName = AUTO,
) -> dict[str, Any]:
    """Show on two images why a model finds them similar; or, with --text, which pixels of an image match captions.

    With --sign both, the maps show in two colours what raises the score and what lowers it. With --against, they show
    why the first image is more like the second than like a third. With --links, lines show which place of one image
    matches which place of the other.
    """
    if (b is None) == (not text):
        raise GamlensError(
            "Give two images (gamlens compare A B), or one image and a caption (gamlens compare A --text T)."
        )
    sign = options.chosen_sign(sign, against=against, methods=[method])
    split = linking.chosen_links(
        links=links, score=score, method=method, steps=steps, cells=cells, baseline=baseline, x_box=x_box, y_box=y_box,
        files=(a, b),
    )  # fmt: skip
    further = parse_views(views)
    _check_contrast(against, split=split is not None, views=bool(further), captions=text or (), method=method)
    refined = options.chosen_refinement(refine=refine, keep=keep, sharp=sharp, methods=[method])
    lens = make_lens(model, weights, blocks, device, embedding=embedding)
    depth = BY_NETWORK if n is None else n
    how: dict[str, Any] = {"method": method, "n": depth, "fuse": fuse, "lattice": lattice, "refine": refined}
    place = out / _folder(a, b, against)
    pieces = None
    with claimed(place), waiting("comparing"):
        if b is None:
            result = _with_captions(lens, a, text or [], against, {**how, "views": further, "sign": sign})
        elif against is not None:
            result = _contrast(lens, a, b, against, {**how, "score": score, "sign": sign})
        elif split is None:
            pair = lens.compare(a, b, score=score, sign=sign, views=further, **how)
            result = _pair(a, b, score, pair)
        else:
            trace = lens.trace_pair(a, b, n=depth, method=method, views=further, refine=refined)
            trace.sides(score, keep=False)
            trace.release()
            pair = trace.explain(method, depth, fuse, score=score, lattice=lattice, refine=refined, sign=sign)
            found = trace.interactions(score=score, steps=split.steps, baseline=split.baseline, cells=split.cells)
            result, pieces = _pair(a, b, score, pair), linking.SplitScore(found, split)
            pieces.check_place(place)
        written = result.save(str(place))
        drawn = pieces.save(place) if pieces is not None else ""
    say(f"{METHODS[result.about['method']].title}, n = {result.about['n']}, {lens.name}")
    for name, value, belongs in result.lines:
        say(Text.assemble((f"{name} {value:.4f}", "bold"), f"  {belongs}"))
    if pieces is not None and b is not None:
        pieces.say(Path(a).name, Path(b).name)
        say(f"The strongest links are in {drawn}")
    say(result.where(written))
    more = {} if pieces is None else {"split": {**pieces.record, "file": drawn}}
    return {"x": a, **result.record, **more, "folder": str(place), "about": result.about}


def _check_contrast(against: str | None, *, split: bool, views: bool, captions: Sequence[str], method: str) -> None:
    """Raise a GamlensError if --against goes with an option that it cannot go with."""
    if against is None:
        return
    if split:
        raise GamlensError("--links and --against do not go together: links join two images. Leave one of them out.")
    if captions:
        if len(captions) > 1:
            raise GamlensError(f"--against compares one caption with another: --text names {len(captions)}; give one.")
        return
    if views:
        raise GamlensError("--views and --against do not go together: leave one of them out.")
    if method != BY_NETWORK and METHODS[method].kind == "pair":
        raise GamlensError(f"--against: {METHODS[method].title} compares two images only: choose another --method.")


def _folder(a: str, b: str | None, against: str | None) -> str:
    """The name of the folder of results: cheetah-lion, or cheetah-lion-against-cat."""
    names = [file_stem(Path(file).stem) for file in (a, b) if file is not None]
    if against is not None:
        names += ["against", file_stem(Path(against).stem if b is not None else against)]
    return "-".join(names)


def _pair(a: str, b: str, score: str, pair: Any) -> Compared:
    sides = {"x": record_of_maps(pair.x), "y": record_of_maps(pair.y)}
    value = float(pair.scores[0])
    return Compared(
        lines=[(score, value, f"{Path(a).name}  ~  {Path(b).name}")],
        record={"y": b, "score": value, **_by_side(sides)},
        about=dict(pair.about),
        save=pair.save,
        where=lambda written: f"Both maps are in {written[-1]}",
    )


def _contrast(lens: Lens, a: str, b: str, third: str, how: dict[str, Any]) -> Compared:
    """Why a is more like b than like a third image."""
    found = lens.contrast(a, b, third, **how)
    sides = {"x": record_of_maps(found.x), "y": record_of_maps(found.a), "against": record_of_maps(found.b)}
    names, score = [Path(file).name for file in (a, b, third)], how["score"]
    values = [float(own[0]) for own in (found.scores, found.score_a, found.score_b)]
    return Compared(
        lines=[
            (f"{score} difference", values[0], f"{names[0]}  ~  {names[1]}  rather than  {names[2]}"),
            (score, values[1], f"{names[0]}  ~  {names[1]}"),
            (score, values[2], f"{names[0]}  ~  {names[2]}"),
        ],
        record={
            "y": b,
            "against": third,
            "score": values[0],
            "score_y": values[1],
            "score_against": values[2],
            **_by_side(sides),
        },
        about=dict(found.about),
        save=found.save,
        where=lambda written: f"The maps of all three are in {written[-1]}",
    )


def _with_captions(lens: Lens, a: str, captions: list[str], against: str | None, how: dict[str, Any]) -> Compared:
    result: Explanation = lens.compare_text(a, captions, against=against, **how)
    made = record_of_maps(result)
    scales = made.get("scales", {})
    rows = list(zip(result.names, result.scores.tolist(), made["boxes"], strict=True))
    found = [
        {
            "text": name,
            "score": value,
            "box": box,
            **({"scales": {block: own[row] for block, own in scales.items()}} if scales else {}),
        }
        for row, (name, value, box) in enumerate(rows)
    ]
    score = str(result.about["score"]) + (" difference" if against is not None else "")
    return Compared(
        lines=[(score, value, f"{Path(a).name}  ~  {name}") for name, value, _ in rows],
        record={"captions": found},
        about=dict(result.about),
        save=result.save,
        where=lambda written: f"The maps, one per caption, are in {Path(written[0]).parent}",
    )


def _by_side(sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The first row of each side, by the name of what it says: {"boxes": {"x": [...], "y": [...]}, ...}."""
    found: dict[str, Any] = {"boxes": {name: own["boxes"][0] for name, own in sides.items()}}
    if all("scales" in own for own in sides.values()):
        found["scales"] = {
            name: {block: values[0] for block, values in own["scales"].items()} for name, own in sides.items()
        }
    return found
