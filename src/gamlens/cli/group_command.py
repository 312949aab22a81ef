"""The command `group`: why several images are alike."""

from pathlib import Path
from typing import Any

from gamlens import METHODS, GamlensError, render
from gamlens.capture.forward import BY_NETWORK
from gamlens.cli import options, terminal
from gamlens.cli.common import command, make_lens
from gamlens.cli.terminal import say, say_rows
from gamlens.cli.waiting import waiting
from gamlens.explanation import GroupExplanation, file_stem
from gamlens.files import claimed
from gamlens.models.devices import AUTO
from gamlens.render import Grid, Page, Panel, Section, Table
from gamlens.report.image_files import (
    PAGE_FILE,
    about_sharpness,
    about_sign,
    find_images,
    record_of_maps,
    small_overlay,
)

MOST_IN_GROUP = 256  # images that run in one forward together
GROUP_SIDE, GROUP_COLUMNS = 360, 3  # pixels of a picture on the page, and pictures per row
UPRIGHT_FROM = 6  # more names than this stand upright in the table
MOST_PAIRED = 12  # up to so many images the scores of all pairs are printed
NAMES_WIDTH, PAIR_WIDTH = 36, 7  # characters of the columns before those scores, and of each of them


@command("group cheetah.jpg lion.jpg cat.jpg --out alike")
def group(
    paths: options.ImagePaths,
    model: options.ModelName = options.DEFAULT_MODEL,
    weights: options.WeightsFile = None,
    blocks: options.BlockNames = None,
    embedding: options.EmbeddingLayer = None,
    method: options.ClassMethodName = BY_NETWORK,
    n: options.BlocksOrLayers = None,
    score: options.PairScoreName = "cosine",
    sign: options.MapSign = None,
    fuse: options.FusionName = "mean",
    lattice: options.LatticeReading = "read",
    refine: options.RefineBlocks = 0,
    keep: options.RefineKeep = None,
    sharp: options.SharpFlag = False,
    out: options.MapsFolder = Path("gamlens-out"),
    device: options.DeviceName = AUTO,
) -> dict[str, Any]:
    """Show why several images are alike: on each of them, which pixels make it like the others.

    What is explained on an image is its mean similarity to all others.
    """
    sign = options.chosen_sign(sign, methods=[method])
    if method != BY_NETWORK and METHODS[method].kind == "pair":
        raise GamlensError(f"{METHODS[method].title} compares two images only: choose another --method for a group.")
    refined = options.chosen_refinement(refine=refine, keep=keep, sharp=sharp, methods=[method])
    files = find_images(paths, skip=out)
    if not 2 <= len(files) <= MOST_IN_GROUP:
        raise GamlensError(f"A group has 2 to {MOST_IN_GROUP} images; found {len(files)}: name more or fewer files.")
    lens = make_lens(model, weights, blocks, device, embedding=embedding)
    place = out / f"{file_stem(Path(files[0]).stem)}-and-{len(files) - 1}-more"
    with claimed(place), waiting(f"explaining {len(files)} images"):
        found = lens.group(
            files, score=score, method=method, n=BY_NETWORK if n is None else n, fuse=fuse, lattice=lattice,
            refine=refined, sign=sign,
        )  # fmt: skip
        found.save(str(place))
        about = found.about
        reads = f"{METHODS[about['method']].title}, n = {about['n']}, `{lens.name}`, {score}"
        lead = f"{reads}: mean {found.score:.3g} over all pairs.{about_sign(sign)}{about_sharpness(refined)}"
        page = render.write(_page(found, files, score, lead), place / PAGE_FILE)
    made = record_of_maps(found.images)
    scores = found.images.scores.tolist()
    say(f"{METHODS[about['method']].title}, n = {about['n']}, {lens.name}")
    fits = len(files) <= min(MOST_PAIRED, (terminal.out_console.width - NAMES_WIDTH) // PAIR_WIDTH)
    numbers = [str(number) for number in range(1, len(files) + 1)] if fits else []
    lines = [
        (f"{row + 1}  {Path(file).name}", f"{scores[row]:.4f}", *_scores(found, row, len(numbers)))
        for row, file in enumerate(files)
    ]
    say_rows(("image", f"mean {score}", *numbers), lines)
    more = "" if fits else "; the page has the score of each pair"
    say(f"{score} {found.score:.4f}  the mean over all pairs{more}")
    say(f"Pictures, maps and JSON are in {place}; open {page}")
    images = [
        {
            "file": file,
            "score": scores[row],
            "box": made["boxes"][row],
            **({"scales": {block: own[row] for block, own in made["scales"].items()}} if "scales" in made else {}),
        }
        for row, file in enumerate(files)
    ]
    pairs = found.pair_scores.tolist()
    record = {"score": found.score, "images": images, "pair_scores": pairs}
    return {**record, "folder": str(place), "about": dict(about)}


def _scores(found: GroupExplanation, row: int, count: int) -> list[str]:
    """The scores of an image with the first `count` images, as text."""
    values = found.pair_scores[row, :count].tolist()
    return ["" if other == row else f"{value:.2f}" for other, value in enumerate(values)]


def _page(found: GroupExplanation, files: list[str], score: str, lead: str) -> Page:
    """A page of all maps, and the scores of all pairs."""
    names = [Path(file).name for file in files]
    panels = [
        Panel(
            small_overlay(found.images, row, side=GROUP_SIDE),
            name,
            f"mean {score} {float(found.images.scores[row]):.3g}",
            f"{name}: what makes it like the others",
        )
        for row, name in enumerate(names)
    ]
    rows = tuple(tuple(panels[at : at + GROUP_COLUMNS]) for at in range(0, len(panels), GROUP_COLUMNS))
    table = tuple((name, *_scores(found, row, len(names))) for row, name in enumerate(names))
    pairs = Table((score, *names), table, pinned=True, upright=len(names) > UPRIGHT_FROM)
    maps = Section("What makes each of them like the others", (Grid(rows),))
    return Page("Why are these alike?", lead, (maps, Section("How alike are they?", (pairs,))))
