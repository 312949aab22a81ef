"""The cases of `snapshot.py`: results of gamlens through its public calls, each with a name.

A case is a name and a function that gives any nest of dicts, lists, tensors, explanations and plain values. Names begin
with the model and say how many blocks were captured at most (n=2); `ACCEPTED` of snapshot.py matches these names.
`real_cases` need the real weights and photos (see `real.py`); `random_cases` need torch and torchvision only. What
files and commands give is in `snapshot_files.py`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import real
import torch
from PIL import Image
from torch import Tensor
from torchvision import models

from gamlens import METHODS, Explanation, Gallery, Lens, PairExplanation

Case = tuple[str, Callable[[], Any]]
BLOCK_METHODS = tuple(name for name, method in METHODS.items() if method.kind == "block")
PAIR_METHODS = tuple(name for name, method in METHODS.items() if method.kind == "pair")
CLASS_METHODS = tuple(name for name, method in METHODS.items() if method.kind != "pair")
FUSIONS = {"mean": "mean", "max": "max", "product": "product", "weights": (1.0, 2.0, 3.0)}
VIEWS = ("flip", 1.43)
FORGOTTEN = ("versions", "command")
MODELS = ("efficientnet_lite0", "resnet50", "densenet201", "vit_tiny")


@dataclass(frozen=True)
class Subject:
    """A lens, photos of its classes, and their class numbers."""

    name: str
    lens: Lens
    files: list[str]
    labels: list[int]

    @property
    def quick(self) -> bool:
        """Whether a forward takes little time, so that more cases are affordable."""
        return self.name in ("efficientnet_lite0", "vit_tiny")

    @property
    def resizes(self) -> bool:
        """Whether the model takes images of any size."""
        return self.name != "vit_tiny"

    def inputs(self, count: int, side: int = 224) -> Tensor:
        """The first photos as a batch (count,3,side,side), as the lens would make it at 224."""
        mean, std = (
            torch.tensor(values)[:, None, None] for values in (self.lens.transform.mean, self.lens.transform.std)
        )
        images = (Image.open(file).convert("RGB").resize((side, side)) for file in self.files[:count])
        return torch.stack([(torch.from_numpy(np.array(i)).permute(2, 0, 1) / 255 - mean) / std for i in images])


def subject(name: str) -> Subject:
    """A model of MODELS with its real weights, and three photos."""
    folder = "ILSVRC" if name in ("resnet50", "efficientnet_lite0") else "imagenette"
    chosen = real.samples(folder)[7:220:71]
    lens = vit_tiny() if name == "vit_tiny" else real.lens(name)
    return Subject(name, lens, [str(file) for file, _ in chosen], [label for _, label in chosen])


def vit_tiny(**options: Any) -> Lens:
    """ViT-tiny/16 with a class token and ten classes."""
    module = models.VisionTransformer(224, 16, 12, 3, 192, 768, num_classes=10)
    weights = real.WEIGHTS / "vit_tiny_imagenette_fp16.pth"
    return Lens(module, weights=weights, labels=real.labels("imagenette"), **options)


# From results to plain values


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All tensors, texts and numbers in `value`, each with its path. Versions and folders are left out."""
    if isinstance(value, Explanation):
        value = told(value)
    elif isinstance(value, PairExplanation):
        value = {"x": value.x, "y": value.y, "scores": value.scores}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in FORGOTTEN:
                yield from leaves(item, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        yield f"{name}/length", len(value)
        for number, item in enumerate(value):
            yield from leaves(item, f"{name}/{number}")
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        yield name, torch.from_numpy(value.copy())
    elif isinstance(value, Tensor):
        yield name, value.detach().cpu().clone()
    elif isinstance(value, int | float | None):
        yield name, value
    else:
        yield name, str(value).replace(str(real.DATA), "").replace(str(real.WEIGHTS), "")


def told(result: Explanation) -> dict[str, Any]:
    """All contents of an Explanation."""
    return {
        "maps": result.maps,
        "blocks": result.blocks,
        "scores": result.scores,
        "targets": result.targets,
        "index": result.index,
        "names": result.names,
        "boxes": result.boxes(),
        "about": dict(result.about),
        "frames": [(frame.original, frame.size, frame.window) for frame in result.frames],
    }


# The cases of one model


def real_cases() -> Iterator[Case]:
    """Cases on real weights and photos. A model is built when its first case is computed."""
    for name in MODELS:
        own = subject(name)
        yield f"{name}/lens", partial(described, own.lens)
        for part in (classes, traces, pairs, galleries, streams):
            for case, call in part(own):
                yield f"{name}/{case}", call
    yield from precisions()


def described(lens: Lens) -> dict[str, Any]:
    """What a lens knows about its model."""
    names = ("name", "weights", "blocks", "embedding", "precision", "multi_label", "transform")
    stages = [(stage.shape, stage.chosen) for stage in lens.layout.stages]
    return {"repr": repr(lens), "stages": stages} | {name: getattr(lens, name) for name in names}


def classes(own: Subject) -> Iterator[Case]:
    lens, one, two = own.lens, own.files[0], own.files[:2]
    for n in (1, 2, 3):
        yield f"classify/two photos n={n}", partial(lens.classify, two, n=n)
    for method in CLASS_METHODS:
        yield f"classify/{method} n=2", partial(lens.classify, one, own.labels[0], method=method, n=2)
    yield "classify/tensor n=2", lambda: lens.classify(own.inputs(2), own.labels[:2], n=2)
    yield "classify/larger tensor n=2", lambda: lens.classify(own.inputs(1, 256), n=2) if own.resizes else None
    yield "classify/batch_size n=1", partial(lens.classify, own.files, n=1, batch_size=1)
    yield "classify/picture n=1", lambda: lens.classify(Image.open(one), n=1)
    yield "classify/several targets n=2", partial(lens.classify, two, [[own.labels[0], 1, 2], None], n=2)
    for score in ("probability", "sigmoid"):
        yield f"classify/{score} n=2", partial(lens.classify, one, own.labels[0], score=score, n=2)
    yield "classify/callable n=2", partial(lens.classify, two, score=margin, n=2)
    if own.resizes:
        yield "classify/views n=2", partial(lens.classify, one, n=2, views=VIEWS)
        yield "classify/views, grad_cam n=1", partial(lens.classify, one, [[1, 2]], method="grad_cam", n=1, views=VIEWS)
        yield (
            "classify/views, max, callable n=2",
            partial(lens.classify, one, n=2, views=VIEWS, fuse="max", score=margin),
        )
    yield "classify/flipped n=2", partial(lens.classify, one, n=2, views=("flip",), fuse="product")


def margin(output: Tensor) -> Tensor:
    """A callable score: the first class against the second."""
    return output[:, 0] - output[:, 1]


def traces(own: Subject) -> Iterator[Case]:
    lens, two = own.lens, own.files[:2]

    def several() -> dict[str, Any]:
        trace = lens.trace(two, [[own.labels[0], 3], own.labels[1]], n=3)
        found: dict[str, Any] = {name: getattr(trace, name) for name in ("scores", "targets", "index", "output")}
        found["top"] = [
            [(guess.index, guess.name, guess.score, guess.probability) for guess in row] for row in trace.top()
        ]
        found["sums"] = {block: trace.sums(block) for block in trace.blocks}
        found["evidence"] = {
            block: (trace.evidence(block), trace.evidence(block).hidden_share) for block in trace.blocks
        }
        found["raw"] = {f"{m} {block}": trace.raw(m, block) for m in BLOCK_METHODS for block in trace.blocks}
        found["fused"] = {name: trace.explain("gam", 3, fuse).maps for name, fuse in FUSIONS.items()}
        found["maps"] = {f"{m} of {n}": trace.explain(m, n).maps for m in BLOCK_METHODS for n in (1, 2, 3)}
        found["boxes"] = {
            f"{mode} {threshold}": trace.explain("gam", 2).boxes(threshold, mode)
            for mode in ("all", "largest")
            for threshold in (0.15, 0.5)
        }
        found["retarget"] = trace.retarget([[5, None], 6]).explain("gam", 2)
        return found

    yield "trace/several n=3", several
    yield "trace/every block n=4", lambda: lens.trace(two[0], n=None).explain("layer_cam", 2)
    yield "trace/callable n=2", lambda: _raw(lens.trace(two, n=2, score=margin))


def _raw(trace: Any) -> dict[str, Any]:
    """Raw maps, sums and evidence of every block of a trace, or of one side of a pair."""
    blocks = tuple(trace.blocks) if hasattr(trace, "blocks") else (None,)
    return {
        "scores": trace.scores,
        "raw": {str(block): trace.raw("gam", block) for block in blocks},
        "sums": {str(block): trace.sums(block) for block in blocks},
        "evidence": {str(block): trace.evidence(block) for block in blocks},
    }


def pairs(own: Subject) -> Iterator[Case]:
    lens, (x, y) = own.lens, own.files[:2]
    for score in ("cosine", "dot"):
        for n in (1, 3):
            yield f"compare/gam {score} n={n}", partial(lens.compare, x, y, n=n, score=score)
        for method in METHODS if score == "cosine" or own.quick else ("gam",):
            yield f"compare/{method} {score} n=2", partial(lens.compare, x, y, n=2, score=score, method=method)
    yield "compare/1 against N n=2", partial(lens.compare, own.files[2], [x, y], n=2)
    yield "compare/max n=2", partial(lens.compare, x, y, n=2, fuse="max")
    yield "compare/callable n=2", partial(lens.compare, x, y, n=2, score=nearness)
    if own.resizes:
        yield "compare/views n=2", partial(lens.compare, x, y, n=2, views=VIEWS)
        yield "compare/two sizes n=2", lambda: lens.compare(own.inputs(2), own.inputs(2, 192), n=2)
    yield "compare/text n=2", partial(_text, lens, own.files[:2])
    yield "compare/itself n=1", partial(lens.compare, x, x, n=1)

    def traced() -> dict[str, Any]:
        pair = lens.trace_pair([x, own.files[2]], [y, y], n=3)
        found: dict[str, Any] = {}
        for score in ("cosine", "dot"):
            found[score] = [_side(side) for side in pair.sides(score)]
            for method in (*BLOCK_METHODS, *PAIR_METHODS):
                found[f"{method} {score}"] = pair.explain(method, 2, score=score)
        return found

    yield "trace_pair n=3", traced
    for side in ("x", "y"):
        for score in ("cosine", "dot"):
            yield f"matches/{side} {score} n=1", partial(_matches, lens, (x, y), side, score)


def _text(lens: Lens, files: list[str]) -> list[Any]:
    """Two captions whose embeddings are given."""
    width = lens.remember(files[:1]).embeddings.shape[1]
    given = torch.randn(2, width, generator=torch.Generator().manual_seed(0))
    trace = lens.trace_text(files, ["one", "two"], n=2, embeddings=given)
    return [lens.compare_text(files, ["one", "two"], n=2, embeddings=given), _raw(trace), trace.targets, trace.index]


def nearness(x: Tensor, y: Tensor) -> Tensor:
    """A callable score of pairs."""
    return -(x - y).square().mean(dim=1)


def _side(side: Any) -> dict[str, Any]:
    return {"scores": side.scores, "raw": side.raw(), "sums": side.sums(), "evidence": side.evidence()}


def _matches(lens: Lens, files: tuple[str, str], side: Any, score: str) -> dict[str, Any]:
    pair = lens.trace_pair(*files, n=1)
    found = {}
    for point in ((20.0, 30.0), (120.0, 100.0)):
        one = pair.matches(point, side=side, score=score)
        found[str(point)] = {
            name: getattr(one, name) for name in ("map", "score", "cell", "cells", "size", "part", "best")
        }
        found[str(point)]["full"] = one.full()
    return found


def galleries(own: Subject) -> Iterator[Case]:
    lens, files = own.lens, own.files

    def remembered() -> dict[str, Any]:
        gallery = lens.remember(files, batch_size=2)
        found: dict[str, Any] = {"gallery": _gallery(gallery), "some": _gallery(gallery[[2, 0]])}
        with tempfile.TemporaryDirectory() as folder:
            path = gallery.save(f"{folder}/gallery.npz")
            found["loaded"] = _gallery(Gallery.load(path))
            with np.load(path) as arrays:
                found["file"] = {key: arrays[key] for key in arrays.files if arrays[key].dtype.kind in "biuf"}
                found["keys"] = sorted(arrays.files)
        for method in METHODS:
            if METHODS[method].kind != "input":
                found[method] = lens.compare_many(gallery[[0]], gallery, method=method)
        found["dot"] = lens.compare_many(gallery, gallery, score="dot", top=2)
        found["pairs"] = lens.compare_many(gallery, gallery, pairs=[(2, 1), (0, 2)])
        return found

    yield "gallery n=1", remembered
    yield "compare_many n=2", lambda: lens.compare_many(files[:1], files[1:], n=2)
    yield (
        "compare_many/dot, callable n=2",
        lambda: [lens.compare_many(files[:1], files[1:], n=2, score=score, top=1) for score in ("dot", nearness)],
    )


def _gallery(gallery: Gallery) -> dict[str, Any]:
    names = ("activations", "embeddings", "law", "scales", "size", "about")
    return {name: getattr(gallery, name) for name in names}


def streams(own: Subject) -> Iterator[Case]:
    def stream(size: int) -> Iterator[tuple[Any, Explanation | None]]:
        results = own.lens.stream([*own.files, "nowhere.jpg"], n=2, batch_size=size, workers=1)
        for one in results:
            top = [(guess.index, guess.score if size == 1 else guess.name) for guess in one.top]
            yield (one.number, bool(one.error), top), one.explanation

    yield "stream n=2", lambda: list(stream(1))
    # Which images share a batch depends on timing, and the batch size can change the last bits of results.
    yield "stream/in batches n=2", lambda: [(said, bool(made) and made.targets) for said, made in stream(2)]


# Precisions


def precisions() -> Iterator[Case]:
    for name, make in (("efficientnet_lite0", partial(Lens, "efficientnet_lite0")), ("vit_tiny", vit_tiny)):
        for precision in ("bf16", "fp16"):
            yield f"{name}/{precision} n=2", partial(_precise, name, make, precision)


def _precise(name: str, make: Callable[..., Lens], precision: str) -> list[Any]:
    lens, own = make(precision=precision), subject(name)
    return [
        lens.classify(own.files[:2], own.labels[:2], n=2),
        lens.classify(own.files[0], n=1, method="grad_cam"),
        *(lens.compare(*own.files[:2], n=2, score=score) for score in ("cosine", "dot")),
        lens.compare_many(own.files[:1], own.files[1:], n=1),
    ]


# Random weights, on any device


def random_cases(device: str) -> Iterator[Case]:
    """ResNet-50, DenseNet-201 and ViT-B/16 of torchvision with seeded random weights, in float32."""
    for name in ("resnet50", "densenet201", "vit_b_16"):
        torch.manual_seed(0)
        lens = Lens(models.get_model(name, weights=None).eval(), device=device)
        if name == "vit_b_16":
            torch.nn.init.normal_(lens.model.heads.head.weight, std=0.02)  # with its zeros every map would be empty
        x, y = (torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(s)).to(device) for s in (1, 2))
        for n in (1, 2, 3):
            yield f"{name}/classify n={n}", partial(lens.classify, x, [3, 5], n=n)
            yield f"{name}/compare n={n}", partial(lens.compare, x, y, n=n)
            yield f"{name}/two targets n={n}", partial(lens.classify, x, [[1, 2], [3, 4]], n=n)
