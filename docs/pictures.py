"""Makes the pictures of the front page and of the gallery: images/gallery/*.jpg.

Run it with `python docs/pictures.py`; it takes about a minute on two CPU cores. The photos are those that installed
packages ship (`gamlens.data.photos`), and the model is the embedded EfficientNet-Lite0.
"""

import json
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from gamlens import GamlensWarning, Index, Lens
from gamlens.data.photos import installed, photo, scene
from gamlens.explanation import Explanation
from gamlens.figures import draw_evidence
from gamlens.inputs.images import Picture
from gamlens.render import COLORMAPS, STYLES, boxed, thumbnail

FOLDER = Path(__file__).with_name("images") / "gallery"
NUMBERS = "numbers.json"  # the values that index.md and gallery.md quote
SIDE, QUALITY = 1100, 86  # the longest side of a picture in pixels, and the quality of its JPEG file
CUP = (320, 0, 640, 320)  # the right half of the scene of a cat and a cup
SHOWN_METHODS = (
    "gam", "grad_cam", "grad_cam_pp", "layer_cam", "hires_cam", "xgrad_cam", "eigen_cam", "guided_backprop"
)  # fmt: skip
Made = Iterator[tuple[str, Image.Image]]
numbers: dict[str, float] = {}


@cache
def lens() -> Lens:
    return Lens("efficientnet_lite0")


def probability(pixels: torch.Tensor, target: int) -> float:
    """The model's probability of a class for a preprocessed image (1,3,H,W)."""
    with torch.no_grad():
        return float(lens().outputs(pixels).softmax(1)[0, target])


def front() -> Made:
    """A photo before and after, and one object more or less in the same photo."""
    yield "cheetah", photo("cheetah")
    yield "cheetah-map", lens().classify(photo("cheetah"), sharp=True).overlay()


def why_class() -> Made:
    """Two classes in one photo: one forward, one short backward for each."""
    both = scene("cat", "coffee")
    found = lens().classify(both, [["Egyptian cat", "espresso"]], n=1)
    yield "scene", both
    yield "scene-cat", found.overlay(0)
    yield "scene-espresso", found.overlay(1)
    against = lens().classify(photo("lion"), "lion", against="cheetah", sign="both")
    yield "lion-rather", against.overlay()
    yield "lion", photo("lion")


def why_similar() -> Made:
    """Both maps of a pair, with their links, a sign, a contrast and the match of one point."""
    x, y = photo("cheetah"), photo("cheetah_face")
    pair = lens().compare(x, y, sharp=True)
    numbers["cosine of two cheetahs"] = float(pair.scores[0])
    yield "pair-x", pair.x.overlay()
    yield "pair-y", pair.y.overlay()
    trace = lens().trace_pair(x, y)
    yield "pair-links", trace.interactions().overlay(5)
    point = (320.0, 128.0)
    spot = x.copy()
    radius = 7
    yield "point-x", boxed(spot, [(point[0] - radius, point[1] - radius, point[0] + radius, point[1] + radius)])
    yield "point-y", trace.matches(point).overlay()
    signed = lens().compare(y, photo("lion"), sign="both", n=1)
    yield "signed-x", signed.x.overlay()
    yield "signed-y", signed.y.overlay()
    nearer = lens().contrast(x, y, photo("lion"), n=1)
    numbers["contrast"] = float(nearer.scores[0])
    for name, side in (("x", nearer.x), ("a", nearer.a), ("b", nearer.b)):
        yield f"contrast-{name}", side.overlay()
    together = lens().group([photo(name) for name in ("cheetah", "cheetah_face", "lion", "cat")])
    for row in range(4):
        yield f"group-{row}", together.images.overlay(row)


def why_found() -> Made:
    """A picture of two things searched for among the bundled photos, whole and only its right half."""
    shown = [Picture(name, pixels=photo(name)) for name in installed()]
    index = Index.of_gallery(lens().remember(shown), lens())
    for kind, box, top in (("found", None, 2), ("region", CUP, 1)):
        hits = index.search(Picture("a cat and a cup", pixels=scene("cat", "coffee")), box=box, top=top)
        why = index.explain(hits)
        for row, hit in enumerate(hits):
            numbers[f"{kind} {row}: {hit.file}"] = float(hit.score)
            yield f"{kind}-hit-{row}", why.y.overlay(row)
            yield f"{kind}-query-{row}", boxed(why.x.overlay(row), [box] if box else [])


def can_i_trust_it() -> Made:
    """What the model says when it sees only what the map shows, or all the rest; and the map of random weights."""
    x = photo("coffee")
    batch = lens().prepare(x).batches[0]
    found = lens().classify(x)
    target, own = int(found.targets[0]), found.maps[:, None]
    numbers["probability of the photo"] = probability(batch, target)
    numbers["probability of what the map shows"] = probability(batch * own, target)
    numbers["probability of the rest"] = probability(batch * (1 - own), target)
    yield "trust-map", found.overlay()
    yield "trust-kept", veiled(x, found.full())
    yield "trust-rest", veiled(x, 1 - found.full())
    torch.manual_seed(0)
    untrained = Lens("efficientnet_lite0", weights="random")
    yield "trust-random", untrained.classify(photo("cheetah"), "cheetah").overlay()


def veiled(image: Image.Image, shown: torch.Tensor) -> Image.Image:
    """The image times a map (height, width) in [0,1], over the mean colour of ImageNet: what the masked model sees."""
    grey = np.array([0.485, 0.456, 0.406]) * 255
    keep = shown.clamp(0, 1).cpu().numpy()[..., None]
    return Image.fromarray((np.asarray(image) * keep + grey * (1 - keep)).round().astype(np.uint8))


def methods() -> Made:
    """One photo by eight methods, each of the last two blocks."""
    for name in SHOWN_METHODS:
        yield f"method-{name}", lens().classify(photo("cheetah_face"), method=name).overlay()


def blocks() -> Made:
    """GAM's map of each block alone, and refined."""
    trace = lens().trace(photo("cheetah"), n=None, refine=True)
    for number, name in enumerate(reversed(trace.blocks), 1):
        yield f"block-{number}", trace.explain("gam", n=len(trace.blocks), refine=False).overlay(block=name)
    yield "plain", trace.explain("gam", n=2, refine=False).overlay()
    yield "refined", trace.explain("gam", n=2, refine=True).overlay()


def looks() -> Made:
    """The styles and colour maps of overlays, and boxes."""
    found: Explanation = lens().classify(photo("cheetah"), sharp=True)
    for style in STYLES:
        yield f"style-{style}", found.overlay(style=style)
    yield "style-box", found.overlay(threshold=0.25)
    for cmap in COLORMAPS:
        yield f"colours-{cmap}", found.overlay(cmap=cmap)


def evidence() -> Made:
    """Eq. 4 drawn for the cosine of a cheetah and a lion: what Grad-CAM adds, takes away and hides."""
    pair = lens().trace_pair(photo("cheetah"), photo("lion"), n=1)
    right, wrong = pair.explain("gam", 1).y, pair.explain("grad_cam", 1).y
    part = pair.sides("cosine")[1]
    yield "evidence-gam", right.overlay()
    yield "evidence-grad_cam", wrong.overlay()
    shown = draw_evidence(part.evidence(), photo("lion"), right.frames[0])
    for name, picture in zip(("adds", "takes", "hidden"), shown[:3], strict=True):
        yield f"evidence-{name}", picture
    numbers["hidden share, lion"] = float(part.evidence().hidden_share[0])


SECTIONS: tuple[Callable[[], Made], ...] = (
    front, why_class, why_similar, why_found, can_i_trust_it, methods, blocks, looks, evidence
)  # fmt: skip


def make(folder: Path = FOLDER) -> None:
    """Write every picture, and the numbers that the pages quote."""
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(action="ignore", category=GamlensWarning):
        for section in SECTIONS:
            for name, picture in section():
                thumbnail(picture, SIDE).convert("RGB").save(folder / f"{name}.jpg", quality=QUALITY, optimize=True)
                print(folder / f"{name}.jpg", picture.size)
    rounded = {name: round(value, 3) for name, value in numbers.items()}
    (folder / NUMBERS).write_text(json.dumps(rounded, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    make()
