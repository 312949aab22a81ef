"""The first page to look at: the embedded model on photos that packages ship."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gamlens import fuse, render
from gamlens._version import __version__
from gamlens.data.photos import photo, scene
from gamlens.errors import GamlensError, GamlensWarning
from gamlens.explanation import PairExplanation
from gamlens.lens import Lens
from gamlens.methods import METHODS
from gamlens.render import Bars, Grid, Page, Panel, Section, Table, Text
from gamlens.trace import Trace

THREE = ("gam", "grad_cam", "grad_cam_pp")
TITLES = tuple(METHODS[name].title for name in THREE)


def one_class(lens: Lens) -> Section:
    """A class explained by three methods side by side, and the model's top five."""
    trace = lens.trace(photo("cheetah"), n=2)
    best = trace.top(5)[0]
    panels = [Panel(photo("cheetah"), alt="a running cheetah"), *_class_panels(trace, 0)]
    return Section(
        "Why a cheetah?",
        (
            Grid((tuple(panels),), ("Photo", *TITLES)),
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
        (Grid(tuple(rows), TITLES, tuple(labels)),),
        "Two package photos side by side, seen by the model as one picture. One forward pass; then one short backward "
        "pass for each class. Each map should favour the half that holds its class; none leaves the other half quite "
        "dark, and with one block (n = 1) Grad-CAM separates the two best here.",
    )


def two_cheetahs(lens: Lens) -> tuple[Section, dict[str, float]]:
    """A pair that matches, by cosine and by dot product, both maps each."""
    pair = lens.trace_pair(photo("cheetah"), photo("cheetah_face"), n=2)
    photos = render.beside([photo("cheetah"), photo("cheetah_face")])
    rows, labels, scores = [], [], {}
    for score in ("cosine", "dot"):
        results = {name: pair.explain(name, 1 if name != "gam" else 2, score=score) for name in THREE}
        scores[score] = float(results["gam"].scores[0])
        rows.append((Panel(photos), *(Panel(result.overlay(), alt="both maps") for result in results.values())))
        labels.append(f"**{score}** {scores[score]:.3g}")
    heads = ("Photos", "GAM, n=2", "Grad-CAM, n=1", "Grad-CAM++, n=1")
    section = Section(
        "Why are these two similar?",
        (Grid(tuple(rows), heads, tuple(labels)),),
        "Two cheetahs. The score is the similarity of their embeddings; its gradient runs back into both photos, so "
        "there are two maps. Under the cosine Grad-CAM leaves the animals for the background and the chest; under the "
        "dot product it agrees with GAM's last block, as the theory says it must.",
    )
    return section, scores


def no_match(lens: Lens, cheetahs: float) -> Section:
    """A pair that does not match, with all pairs' scores for comparison."""
    names = ("cheetah", "cheetah_face", "lion", "cat", "coffee", "rocket")
    images = [photo(name) for name in names]
    table = []
    for row, name in enumerate(names):
        values = [float(score) for score in lens.trace_pair(images[row], images, n=1).sides("cosine")[0].scores]
        table.append((name.replace("_", " "), *(f"{value:.2f}" for value in values)))
    result = lens.compare(photo("cheetah"), photo("coffee"))
    value = float(result.scores[0])
    return Section(
        "A pair that does not match",
        (
            Grid((tuple(_both(result)),), ("Cheetah", "Coffee")),
            Text(f"Cosine **{value:.2f}**, against **{cheetahs:.2f}** for the two cheetahs."),
            Table(("cosine", *(name.replace("_", " ") for name in names)), tuple(table)),
        ),
        "A map shows **where** the score comes from, never **how much** it is: min-max normalisation makes the "
        "strongest pixel of a weak match as bright as that of a strong one. Read the score first.",
    )


def hidden_evidence(lens: Lens) -> Section:
    """A case where Grad-CAM fails, and the decomposition that shows why (Eq. 4)."""
    pair = lens.trace_pair(photo("cheetah"), photo("lion"), n=1)
    shown = {name: pair.explain(name, 1) for name in ("gam", "grad_cam")}
    rows, shares = [], []
    for side, part, name in zip("xy", pair.sides("cosine"), ("cheetah", "lion"), strict=True):
        image = photo(name)
        views = [getattr(shown[method], side).overlay() for method in ("gam", "grad_cam")]
        panels = [Panel(views[0], mark="good"), Panel(views[1], mark="bad"), *_evidence_panels(part, image)]
        rows.append(tuple(panels))
        shares.append(float(part.evidence().hidden_share[0]))
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


SECTIONS = 6
STEPS = SECTIONS + 2


def run(out: Path, *, step: Callable[[str], None] = lambda text: None) -> Path:
    """Make the page and its pictures in `out`; returns the page's path."""
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
        step("one class, three methods")
        sections.append(one_class(lens))
        step("two things in one photo")
        sections.append(two_things(lens))
        step("two cheetahs")
        section, scores = two_cheetahs(lens)
        sections.append(section)
        step("a pair that does not match")
        sections.append(no_match(lens, scores["cosine"]))
        step("where Grad-CAM fails")
        sections.append(hidden_evidence(lens))
        step("block by block")
        sections.append(block_by_block(lens))
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
    return [Panel(trace.explain(name).overlay(row), alt=f"{METHODS[name].title} over the photo") for name in THREE]


def _both(result: PairExplanation) -> list[Panel]:
    return [Panel(result.x.overlay()), Panel(result.y.overlay())]


def _evidence_panels(rows: Trace, image: Image.Image) -> list[Panel]:
    """P and |N| on one scale, and the hidden pixels outlined on the photo."""
    found = rows.evidence()
    top = torch.maximum(found.positive.max(), found.negative.abs().max()).clamp(min=1e-12)
    size = (image.height, image.width)
    views = [
        render.overlay(image, _stretch(part / top, size), cmap=cmap)
        for part, cmap in ((found.positive, "ember"), (found.negative.abs(), "ocean"))
    ]
    hidden = torch.nn.functional.interpolate(found.hidden[:, None].float(), size=size, mode="nearest")[0, 0] > 0
    dim = np.asarray(image) // 3
    pixels = np.where(hidden.numpy()[:, :, None], dim, np.asarray(image)).astype(np.uint8)
    marked = render.overlay(pixels, np.zeros(size, np.float32), opacity=0.0, mask=hidden.numpy())
    return [*(Panel(view) for view in views), Panel(marked)]


def _stretch(map: Tensor, size: tuple[int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.asarray(fuse.resize(map, size)[0].clamp(0, 1).float().cpu().numpy())


def _size_of(trace: Trace, name: str) -> str:
    height, width = trace.raw("gam", name).shape[1:]
    return f"{height} x {width}"


def _save_pictures(sections: Sequence[Section], out: Path) -> None:
    """Every grid of the page as a PNG of its own."""
    for number, section in enumerate(sections, 1):
        for grid in (block for block in section.blocks if isinstance(block, Grid)):
            name = f"{number}-{'-'.join(section.title.lower().replace('?', '').replace(',', '').split())}.png"
            try:
                render.draw(grid, cell=260).save(out / name)
            except OSError as error:
                raise GamlensError(f"Cannot write {str(out / name)!r}: {error.strerror or error}.") from error
