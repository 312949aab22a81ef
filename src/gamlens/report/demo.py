"""The first page to look at: the embedded model on photos that packages ship."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import normalize

from gamlens import render
from gamlens._version import __version__
from gamlens.data.photos import photo, scene
from gamlens.errors import GamlensError, GamlensWarning
from gamlens.figures import COMPARED, draw_evidence
from gamlens.files import StagedFiles
from gamlens.lens import Lens
from gamlens.methods import METHODS
from gamlens.render import Bars, Grid, Page, Panel, Section, Table, Text
from gamlens.render.inline import slug
from gamlens.trace import Trace

METHOD_TITLES = tuple(METHODS[name].title for name in COMPARED)


def one_class(lens: Lens) -> Section:
    """A class explained by three methods side by side, and the model's top five."""
    trace = lens.trace(photo("cheetah"), n=2)
    best = trace.top(5)[0]
    panels = [Panel(photo("cheetah"), alt="a running cheetah"), *_class_panels(trace, 0)]
    return Section(
        "Why a cheetah?",
        (
            Grid((tuple(panels),), ("Photo", *METHOD_TITLES)),
            Bars(tuple((guess.name, guess.probability, f"{100 * guess.probability:.1f} %") for guess in best)),
        ),
        "The model's top five classes, and where three methods find the reason for the first. Each uses the last two "
        "blocks of the network; GAM keeps to the animal, the other two blur when a second block is added.",
    )


def two_things(lens: Lens) -> Section:
    """One photo with two things in it, explained for each of them from one forward."""
    image = scene("cat", "coffee")
    trace = lens.trace(image, [["Egyptian cat", "espresso"]], n=2)
    rows = [tuple(_class_panels(trace, row)) for row in range(2)]
    labels = [f"Why **{name}**?" for name in trace.explain().names]
    return Section(
        "Two things in one photo",
        (Grid(tuple(rows), METHOD_TITLES, tuple(labels)),),
        "Two package photos side by side, seen by the model as one picture. One forward pass; then one short backward "
        "pass for each class. Each map should favour the half that holds its class; none leaves the other half quite "
        "dark, and with one block (n = 1) Grad-CAM separates the two best here.",
    )


def two_cheetahs(lens: Lens) -> Section:
    """A pair that matches, by cosine and by dot product, both maps each."""
    pair = lens.trace_pair(photo("cheetah"), photo("cheetah_face"), n=2)
    photos = render.beside([photo("cheetah"), photo("cheetah_face")])
    rows, labels = [], []
    for score in ("cosine", "dot"):
        results = {name: pair.explain(name, 1 if name != "gam" else 2, score=score) for name in COMPARED}
        rows.append((Panel(photos), *(Panel(result.overlay(), alt="both maps") for result in results.values())))
        labels.append(f"**{score}** {float(results['gam'].scores[0]):.3g}")
    heads = ("Photos", "GAM, n=2", "Grad-CAM, n=1", "Grad-CAM++, n=1")
    return Section(
        "Why are these two similar?",
        (Grid(tuple(rows), heads, tuple(labels)),),
        "Two cheetahs. The score is the similarity of their embeddings; its gradient runs back into both photos, so "
        "there are two maps. Under the cosine Grad-CAM leaves the animals for the background and the chest; under the "
        "dot product it agrees with GAM's last block, as the theory says it must.",
    )


def no_match(lens: Lens) -> Section:
    """A pair that does not match, with all pairs' scores for comparison."""
    names = ("cheetah", "cheetah_face", "lion", "cat", "coffee", "rocket")
    words = [name.replace("_", " ") for name in names]
    embeddings = normalize(lens.embed([photo(name) for name in names]))
    cosines = (embeddings @ embeddings.T).tolist()
    table = [(word, *(f"{value:.2f}" for value in row)) for word, row in zip(words, cosines, strict=True)]
    result = lens.compare(photo("cheetah"), photo("coffee"))
    return Section(
        "A pair that does not match",
        (
            Grid(((Panel(result.x.overlay()), Panel(result.y.overlay())),), ("Cheetah", "Coffee")),
            Text(f"Cosine **{float(result.scores[0]):.2f}**, against **{cosines[0][1]:.2f}** for the two cheetahs."),
            Table(("cosine", *words), tuple(table)),
        ),
        "A map shows **where** the score comes from, never **how much** it is: min-max normalisation makes the "
        "strongest pixel of a weak match as bright as that of a strong one. Read the score first.",
    )


def hidden_evidence(lens: Lens) -> Section:
    """A case where Grad-CAM fails, and the decomposition that shows why (Eq. 4)."""
    pair = lens.trace_pair(photo("cheetah"), photo("lion"), n=1)
    shown = {name: pair.explain(name, 1) for name in ("gam", "grad_cam")}
    rows: list[tuple[Panel, ...]] = []
    shares = []
    for side, part, name in zip("xy", pair.sides("cosine"), ("cheetah", "lion"), strict=True):
        gam, cam = (getattr(shown[method], side) for method in ("gam", "grad_cam"))
        evidence = part.evidence()
        drawn = draw_evidence(evidence, photo(name), gam.frames[0])
        parts = (drawn.positive, drawn.negative, drawn.hidden)
        rows.append((Panel(gam.overlay(), mark="good"), Panel(cam.overlay(), mark="bad"), *map(Panel, parts)))
        shares.append(float(evidence.hidden_share[0]))
    heads = ("GAM", "Grad-CAM", "P: adds", "N: takes away", "Hidden: |N| ≥ P")
    return Section(
        "Where Grad-CAM fails, and why",
        (
            Grid(tuple(rows), heads, ("Cheetah", "Lion")),
            Text(
                f"**{100 * shares[0]:.0f} %** of the positive evidence in the cheetah photo and "
                f"**{100 * shares[1]:.0f} %** in the lion photo lies on pixels that Grad-CAM sets to zero."
            ),
        ),
        "Grad-CAM adds channels up before it cuts off negative values. Channels with a negative pooled gradient (N) "
        "then cancel those with a positive one (P) exactly where the animal is, and what is left lights up beside it. "
        "GAM cuts off negative gradients first. This is Eq. 4 of the paper, a cheetah against a lion, by cosine.",
    )


def block_by_block(lens: Lens) -> Section:
    """Each block's own map, and what the mean over the last n makes of them."""
    image = photo("cheetah")
    trace = lens.trace(image, n=None)
    own = trace.explain("gam", n=len(trace.blocks))
    single = [Panel(own.overlay(block=name), f"`{name}`", _size_of(trace, name)) for name in reversed(trace.blocks)]
    means = [Panel(trace.explain("gam", n=n).overlay(), f"n = {n}") for n in range(1, len(trace.blocks) + 1)]
    return Section(
        "Block by block",
        (Grid((tuple(single), tuple(means)), labels=("One block", "Mean of the last n")),),
        "Late blocks know what it is, early blocks know where it is. Above, GAM's map of one block at a time, from the "
        f"last to an early one, for the class {own.names[0]}; below, the mean of the last n. The paper takes n = 2.",
    )


SECTIONS: dict[str, Callable[[Lens], Section]] = {
    "one class, three methods": one_class,
    "two things in one photo": two_things,
    "two cheetahs": two_cheetahs,
    "a pair that does not match": no_match,
    "where Grad-CAM fails": hidden_evidence,
    "block by block": block_by_block,
}
STEPS = len(SECTIONS) + 2


def run(out: Path, *, step: Callable[[str], None] = lambda text: None) -> Path:
    """Make the page and its pictures in `out`; returns the page's path. `step` hears of each of the STEPS."""
    start = time.perf_counter()
    step("loading the model")
    lens = Lens("efficientnet_lite0")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GamlensError(f"Cannot make the folder {str(out)!r}: {error.strerror or error}.") from error
    sections: list[Section] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GamlensWarning)
        for name, make in SECTIONS.items():
            step(name)
            sections.append(make(lens))
    step("writing")
    _save_pictures(sections, out)
    footer = (
        f"EfficientNet-Lite0 (ImageNet-1k), {time.perf_counter() - start:.1f} s on this machine. gamlens {__version__}"
        f", torch {torch.__version__}, Python {platform.python_version()}. Photos: gradio and scikit-image."
    )
    page = Page(
        "Why does a vision model think so?",
        "Gradient Activation Maps (GAM) beside Grad-CAM and Grad-CAM++, for classes and for pairs of images. "
        "Everything on this page was computed here by `gamlens demo`: one forward and one short backward pass a photo.",
        tuple(sections),
        footer,
    )
    return render.write(page, out / "index.html")


def _class_panels(trace: Trace, row: int) -> list[Panel]:
    return [Panel(trace.explain(name).overlay(row), alt=f"{METHODS[name].title} over the photo") for name in COMPARED]


def _size_of(trace: Trace, name: str) -> str:
    height, width = trace.raw("gam", name).shape[1:]
    return f"{height} x {width}"


def _save_pictures(sections: Sequence[Section], out: Path) -> None:
    """Every grid of the page as a PNG of its own."""
    with StagedFiles() as staged:
        for number, section in enumerate(sections, 1):
            for grid in (block for block in section.blocks if isinstance(block, Grid)):
                picture = render.draw(grid, cell=260)
                staged.write(out / f"{number}-{slug(section.title)}.png", partial(picture.save, format="PNG"))
