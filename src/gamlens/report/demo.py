"""The page of `gamlens demo`: the bundled model explained on photos that packages ship. Its texts are in demo.toml."""

import platform
import time
import tomllib
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import normalize

from gamlens import render
from gamlens._version import __version__
from gamlens.data.photos import installed, photo, scene
from gamlens.errors import GamlensWarning
from gamlens.explanation import Explanation
from gamlens.explanation.map_bar import EndWords
from gamlens.figures import draw_evidence
from gamlens.files import StagedFiles, claimed
from gamlens.fuse import MAP_SIGNS
from gamlens.index.index import Index
from gamlens.inputs.images import Picture
from gamlens.lens import Lens
from gamlens.methods import FIGURE_METHODS, METHODS
from gamlens.models import DEFAULT_MODEL
from gamlens.render import Block, Grid, Page, Panel, Section, Table, Text
from gamlens.render.inline import slug, unique_names
from gamlens.report.image_files import PAGE_FILE, guess_bars, small_overlay
from gamlens.report.search import match_grids
from gamlens.trace import Trace

BARRED_SIDE = 320  # pixels of a photo that has a colour bar below it
DEMO_LINKS = 6
FOUND = 4  # hits of a search
METHOD_TITLES = tuple(METHODS[name].title for name in FIGURE_METHODS)


@cache
def words() -> dict[str, Any]:
    """The texts of the page, from demo.toml."""
    found: dict[str, Any] = tomllib.loads(resources.files(__package__).joinpath("demo.toml").read_text("utf-8"))
    return found


def words_of(section: str, key: str) -> Any:
    """One entry of a section of demo.toml."""
    return words()["sections"][section][key]


def one_class(lens: Lens) -> Section:
    """The top class of a photo explained by three methods side by side, and the model's five best guesses."""
    trace = lens.trace(photo("cheetah"), n=2)
    panels = (Panel(photo("cheetah"), alt="a running cheetah"), *_class_panels(trace, 0))
    return _section("one_class", Grid((panels,), ("Photo", *METHOD_TITLES)), guess_bars(trace.top(5)[0]))


def two_things(lens: Lens) -> Section:
    """A photo with two objects, explained for the class of each; both share one forward."""
    trace = lens.trace(scene("cat", "coffee"), [["Egyptian cat", "espresso"]], n=2)
    labels = tuple(f"Why **{name}**?" for name in trace.explain().names)
    return _section("two_things", Grid((_class_panels(trace, 0), _class_panels(trace, 1)), METHOD_TITLES, labels))


def two_cheetahs(lens: Lens) -> Section:
    """A similar pair, explained by cosine and by dot product: both maps of three methods."""
    pair = lens.trace_pair(photo("cheetah"), photo("cheetah_face"), n=2)
    photos = render.beside([photo("cheetah"), photo("cheetah_face")])
    rows, labels = [], []
    for score in ("cosine", "dot"):
        results = [pair.explain(name, 1 if name != "gam" else 2, score=score) for name in FIGURE_METHODS]
        rows.append((Panel(photos), *(Panel(result.overlay(), alt="both maps") for result in results)))
        labels.append(f"**{score}** {float(results[0].scores[0]):.3g}")
    heads = ("Photos", "GAM, n=2", "Grad-CAM, n=1", "Grad-CAM++, n=1")
    return _section("two_cheetahs", Grid(tuple(rows), heads, tuple(labels)))


def no_match(lens: Lens) -> Section:
    """A dissimilar pair, and a table of the cosine similarities of all photos for comparison."""
    names = ("cheetah", "cheetah_face", "lion", "cat", "coffee", "rocket")
    heads = [name.replace("_", " ") for name in names]
    embeddings = normalize(lens.embed([photo(name) for name in names]))
    cosines = (embeddings @ embeddings.T).tolist()
    table = [(head, *(f"{value:.2f}" for value in row)) for head, row in zip(heads, cosines, strict=True)]
    result = lens.compare(photo("cheetah"), photo("coffee"))
    scores = words()["sections"]["no_match"]["scores"].format(apart=float(result.scores[0]), alike=cosines[0][1])
    maps = Grid(((Panel(result.x.overlay()), Panel(result.y.overlay())),), ("Cheetah", "Coffee"))
    return _section("no_match", maps, Text(scores), Table(("cosine", *heads), tuple(table)))


def hidden_evidence(lens: Lens) -> Section:
    """A pair on which Grad-CAM fails, and the decomposition of Eq. 4 that shows why."""
    pair = lens.trace_pair(photo("cheetah"), photo("lion"), n=1)
    gam, cam = pair.explain("gam", 1), pair.explain("grad_cam", 1)
    rows, shares = [], []
    sides = zip((gam.x, gam.y), (cam.x, cam.y), pair.sides("cosine"), ("cheetah", "lion"), strict=True)
    for right, wrong, part, name in sides:
        evidence = part.evidence()
        drawn = draw_evidence(evidence, photo(name), right.frames[0])
        maps = Panel(right.overlay(), mark="good"), Panel(wrong.overlay(), mark="bad")
        rows.append((*maps, *map(Panel, drawn[:3])))
        shares.append(100 * float(evidence.hidden_share[0]))
    heads = ("GAM", "Grad-CAM", "P: adds", "N: takes away", "Hidden: |N| ≥ P")
    said = words()["sections"]["hidden_evidence"]["shares"].format(*shares)
    return _section("hidden_evidence", Grid(tuple(rows), heads, ("Cheetah", "Lion")), Text(said))


def block_by_block(lens: Lens) -> Section:
    """The map of each block, and the means over the last n blocks."""
    trace = lens.trace(photo("cheetah"), n=None)
    own = trace.explain("gam", n=len(trace.blocks))
    single = []
    for name in reversed(trace.blocks):
        height, width = trace.raw("gam", name).shape[1:]
        single.append(Panel(own.overlay(block=name), f"`{name}`", f"{height} x {width}"))
    means = [Panel(trace.explain("gam", n=n).overlay(), f"n = {n}") for n in range(1, len(trace.blocks) + 1)]
    grid = Grid((tuple(single), tuple(means)), labels=("One block", "Mean of the last n"))
    return _section("block_by_block", grid, label=own.names[0])


def sharper_maps(lens: Lens) -> Section:
    """The maps of four photos and of one pair before and after refinement; each pair of maps shares one forward."""
    names = ("cheetah", "lion", "cat", "coffee")
    trace = lens.trace([photo(name) for name in names], n=2, refine=True)
    shown = [trace.explain("gam", 2, refine=refine) for refine in (False, True)]
    photos = tuple(Panel(photo(name), alt=f"the photo {name}") for name in names)
    maps = [
        tuple(Panel(result.overlay(row), alt=f"{label}, {name}") for row, name in enumerate(names))
        for result, label in zip(shown, ("GAM", "GAM, sharp"), strict=True)
    ]
    heads = tuple(f"Why **{name}**?" for name in shown[0].names)
    classes = Grid((photos, *maps), heads, ("Photo", "GAM", "GAM, sharp"))
    pair = lens.trace_pair(photo("cheetah"), photo("cheetah_face"), n=2, refine=True)
    both = [Panel(render.beside([photo("cheetah"), photo("cheetah_face")]), alt="two cheetahs")]
    for refine, label in ((False, "GAM"), (True, "GAM, sharp")):
        both.append(Panel(pair.explain("gam", 2, refine=refine).overlay(), alt=f"{label}, both maps of the pair"))
    alike = Grid((tuple(both),), ("Why **similar**?", "GAM", "GAM, sharp"))
    return _section("sharper_maps", classes, alike)


def what_differs(lens: Lens) -> Section:
    """A pair with signed maps: what raises the similarity, what lowers it, and the first minus the second."""
    pair = lens.trace_pair(photo("cheetah"), photo("lion"), n=1)
    found = [pair.explain("gam", 1, sign=sign) for sign in MAP_SIGNS]
    rows = [tuple(_with_bar(result.x) for result in found), tuple(_with_bar(result.y) for result in found)]
    heads = ("What raises it", "What lowers it", "The first minus the second")
    grid = Grid(tuple(rows), heads, ("Cheetah", "Lion"))
    return _section("what_differs", grid, score=f"{float(found[0].scores[0]):.2f}")


def rather_than(lens: Lens) -> Section:
    """Why a cheetah is more like another cheetah than like a lion, on all three photos; and one class and another."""
    found = lens.contrast(photo("cheetah"), photo("cheetah_face"), photo("lion"), method="gam", n=1)
    words = EndWords("for the lion", "for the cheetah")
    panels = tuple(_with_bar(side, words) for side in (found.x, found.a, found.b))
    classes = lens.classify(photo("lion"), "lion", against="cheetah", sign="both", method="gam", n=1)
    said = words_of("rather_than", "scores").format(
        *(float(own[0]) for own in (found.scores, found.score_a, found.score_b))
    )
    heads = ("The photo", "Another cheetah", "A lion", f"**{classes.names[0].capitalize()}**")
    return _section("rather_than", Text(said), Grid(((*panels, _with_bar(classes)),), heads))


def place_to_place(lens: Lens) -> Section:
    """The strongest links between two photos, and the score split between a region of the one and of the other."""
    found = lens.trace_pair(photo("cheetah"), photo("lion"), n=1).interactions()
    parts = found.between(*(words_of("place_to_place", key) for key in ("x_regions", "y_regions")))
    rows = tuple(
        (name, *(f"{100 * float(share):.0f} %" for share in row))
        for name, row in zip(parts.x_names, parts.shares, strict=True)
    )
    table = Table(("share of the score", *parts.y_names), rows)
    picture = Panel(found.overlay(DEMO_LINKS), alt="lines between places of a cheetah and places of a lion")
    kind = "exactly" if found.exact else "nearly"
    values = {"score": f"{found.score:.2f}", "kind": kind, "count": str(DEMO_LINKS)}
    return _section("place_to_place", picture, Text(words_of("place_to_place", "regions")), table, **values)


def found_in_photos(lens: Lens) -> Section:
    """A photo of two things searched for among the photos of installed packages: whole, and the half with the cup."""
    shown = [Picture(name.replace("_", " "), pixels=photo(name)) for name in installed()]
    index = Index.of_gallery(lens.remember(shown), lens)
    asked = Picture("a cat and a cup", pixels=scene("cat", "coffee"))
    grids: list[Block] = []
    for box in (None, tuple(words_of("found_in_photos", "box"))):
        hits = index.search(asked, box=box, top=FOUND)
        grids += match_grids(index.explain(hits), index.score, hits.query)
    return _section("found_in_photos", grids[0], Text(words_of("found_in_photos", "region")), grids[1])


SECTIONS = (
    one_class,
    two_things,
    two_cheetahs,
    no_match,
    hidden_evidence,
    block_by_block,
    sharper_maps,
    what_differs,
    rather_than,
    place_to_place,
    found_in_photos,
)
STEPS = len(SECTIONS) + 2


def run(out: Path, *, step: Callable[[str], None] = lambda text: None) -> Path:
    """Write the page and its pictures into `out` and return the page's path. `step` is called once per step."""
    start = time.perf_counter()
    step("loading the model")
    lens = Lens(DEFAULT_MODEL, device="auto")
    sections: list[Section] = []
    with claimed(out), warnings.catch_warnings(action="ignore", category=GamlensWarning):
        for make in SECTIONS:
            step(words()["sections"][make.__name__]["step"])
            sections.append(make(lens))
        step("writing the page")
        _save_pictures(sections, out)
        versions = {"gamlens": __version__, "torch": torch.__version__, "python": platform.python_version()}
        footer = words()["footer"].format(seconds=time.perf_counter() - start, **versions)
        return render.write(Page(words()["title"], words()["lead"], tuple(sections), footer), out / PAGE_FILE)


def _section(name: str, *blocks: Block, **values: str) -> Section:
    """A section with the title and the lead that demo.toml has under `name`; `values` fill the braces in the lead."""
    text = words()["sections"][name]
    return Section(text["title"], blocks, text["lead"].format(**values))


def _class_panels(trace: Trace, row: int) -> tuple[Panel, ...]:
    alts = {name: f"{METHODS[name].title} over the photo" for name in FIGURE_METHODS}
    return tuple(Panel(trace.explain(name).overlay(row), alt=alt) for name, alt in alts.items())


def _with_bar(result: Explanation, words: EndWords | None = None) -> Panel:
    """The first map over its photo, with its colour bar."""
    picture = small_overlay(result, side=BARRED_SIDE, words=words)
    return Panel(picture, alt=f"{result.names[0]}: what raises and what lowers it, over the photo")


def _save_pictures(sections: Sequence[Section], out: Path) -> None:
    """Save every picture and grid of the page as a PNG file, too. The second one of a section has "-2" in its name."""
    shown = [
        (f"{number:0{len(str(len(sections)))}d}-{slug(section.title)}", block)
        for number, section in enumerate(sections, 1)
        for block in section.blocks
        if isinstance(block, Grid | Panel)
    ]
    names = unique_names(name for name, _ in shown)
    with StagedFiles() as staged:
        for name, (_, block) in zip(names, shown, strict=True):
            picture = render.draw(block, cell=260) if isinstance(block, Grid) else block.image
            staged.write(out / f"{name}.png", partial(render.write_png, picture))
