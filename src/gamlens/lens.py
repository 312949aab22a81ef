"""The one thing that holds state: a model, and how to look through it."""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gamlens import aims, methods, models, scores, targets
from gamlens._version import __version__
from gamlens.capture.forward import ForwardRecord
from gamlens.capture.layers import OUTPUT
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation, PairExplanation, concat
from gamlens.fuse import Fusion
from gamlens.inputs.batch import ModelInput, ViewList, Views, prepare, prepare_pixels
from gamlens.inputs.images import Picture, pictures
from gamlens.inputs.transform import ExternalTransform, Frame, Transform
from gamlens.models import Layout, Network, Output, pick
from gamlens.models.hooked import HookedModel, Reach
from gamlens.pairs import text as text_room
from gamlens.retrieval import Gallery, PairOptions, compare_many, remember
from gamlens.rows import Provenance, View
from gamlens.streaming.stream import StreamResult, stream
from gamlens.trace import PairTrace, Trace

BATCH = 32


class Lens:
    """Looks at a model's reasons.

    `model_or_name`: an nn.Module or a name of MODELS. `weights`: a file, a state dict, or "random".
    `blocks`: names in place of the discovered ones ("layer4", "features:relu"). `embedding`: the layer whose output
    pairs are compared by ("fc1", "fc:input", "output"). `output`: key, index or callable that picks the class scores
    out of what the model returns. `transform`: "squash" (default), "crop", a Transform, or a callable on PIL images.
    `labels`: class names. `text`: captions -> embeddings (T,D), the text half of a dual encoder. `precision`:
    "fp32", or "bf16" / "fp16" autocast. `compile`: faster calls after a slow first one; weights are followed, plain
    settings of layers (eps, stride) are read once. `multi_label`: probabilities are sigmoids.
    `weights` are loaded into a module of yours and `device` moves it; nothing else about it changes.
    """

    def __init__(
        self,
        model_or_name: nn.Module | str,
        *,
        weights: models.Weights = None,
        blocks: Sequence[str] | None = None,
        embedding: str | None = None,
        output: Output = None,
        transform: str | Transform | Callable[[Any], Any] | None = None,
        labels: Sequence[str] | None = None,
        device: str | torch.device | None = None,
        precision: str = "fp32",
        compile: bool = False,
        multi_label: bool | None = None,
        text: models.TextEncoder | None = None,
    ) -> None:
        network = models.load(model_or_name, weights=weights)
        self.name, self.weights = network.name, network.weights
        self.multi_label = network.multi_label if multi_label is None else multi_label
        self.labels = _labels(labels) if labels is not None else network.labels
        self.aliases = dict(network.aliases)
        self.transform = _transform(transform, network)
        self.text = text or network.text
        if embedding is None and (self.text is not None or network.embeds):
            embedding = OUTPUT
        self.sight = HookedModel(
            network.module,
            network.name,
            blocks=blocks,
            embedding=embedding,
            output=output if output is not None else network.output,
            precision=precision,
            compile=compile,
        )
        if device is not None:
            self.to(device)
        self.sight.find(self.transform.size if isinstance(self.transform, Transform) else network.size)

    # What the lens knows about the model

    @property
    def model(self) -> nn.Module:
        """The network itself."""
        return self.sight.model

    @property
    def precision(self) -> str:
        return self.sight.precision

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks that are read, in the order they run; n counts from the end."""
        return self.sight.blocks

    @property
    def embedding(self) -> str:
        """What pairs are compared by."""
        return self.sight.embedding

    @property
    def layout(self) -> Layout:
        """What discovery found: stages with their shapes and strides, and the embedding."""
        return self.sight.layout

    def to(self, device: str | torch.device) -> Lens:
        """Move the model to a device; returns the lens itself."""
        try:
            self.model.to(device)
        except (RuntimeError, AssertionError) as error:
            raise GamlensError(f"Cannot use the device {str(device)!r}: {str(error).splitlines()[0]}") from error
        return self

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.sight.like(torch.empty(0)).device

    @property
    def knows_blocks(self) -> bool:
        """Whether the blocks are found: they are when the lens is made, or else at the first image."""
        return self.sight.binding is not None

    @property
    def about(self) -> dict[str, Any]:
        """What is recorded with every result: the model, its weights, the precision, and versions."""
        return {
            "model": self.name,
            "weights": self.weights,
            "precision": self.precision,
            "versions": {"gamlens": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }

    def with_model(self, model: nn.Module) -> Lens:
        """The same lens on another copy of its model: the same blocks, transform and labels."""
        other = copy.copy(self)
        other.sight = self.sight.on(model)
        return other

    def prepare(self, images: Any, *, views: ViewList = ()) -> ModelInput:
        """Images decoded and transformed, one batch per view. Every call that takes images takes the result, too."""
        return self._prepared(images, Views.parse(views))

    def forward(
        self, images: Any, *, n: int | None = 0, method: str | None = None, embedding: bool = False
    ) -> ForwardRecord:
        """One forward of the plain view that keeps the last n blocks in the graph, and the embedding if asked."""
        ready = self.prepare(images)
        batch = self.sight.fit(ready.batches[0], own=ready.batches[0] is images)
        if n == 0:
            record = self.sight.look(batch, [], embedding=embedding)
        else:
            record = self.sight.forward(batch, reach(method or "gam", n or 0) if n else None, embedding=embedding)
        if embedding:
            record = replace(
                record, embedding=self.sight.embeddings((record,), (aims.WHOLE, aims.WHOLE), len(batch))[0]
            )
        return record

    def outputs(self, images: Any) -> Tensor:
        """The class scores (B,K) of one forward, out of any graph."""
        return pick(self.forward(images).output, self.sight.output).detach()

    def embed(self, images: Any) -> Tensor:
        """The embeddings (B,D) of one forward, out of any graph."""
        embedding = self.forward(images, embedding=True).embedding
        assert embedding is not None
        return embedding.detach()

    def __repr__(self) -> str:
        blocks = ", ".join(self.blocks) if self.sight.binding else "blocks are found at the first image"
        return f"<Lens {self.name} ({self.weights}): {blocks}>"

    # Looking

    def trace(
        self,
        images: Any,
        target: Any = None,
        *,
        n: int | None = 2,
        method: str = "gam",
        score: str | scores.OutputScore = "logit",
        views: ViewList = (),
        keep_graph: bool = True,
    ) -> Trace:
        """One forward and one short backward: a Trace that explains by any method and any number up to n blocks.

        `target`: None for the top class, a class (index or name) for all images, or one entry an image, each a
        class, None, or a list of them. `score`: "logit", "probability", "sigmoid", or a callable on the model's
        output that gives one number an image. n=None captures every block. `views`: further looks at each image,
        whose maps are averaged in: ("flip", 1.43, 2.0) adds two larger inputs and mirrored copies of all three.
        """
        wanted = reach(method, n) if n is not None else None
        return self._trace(images, target, n=wanted, score=score, views=views, keep=keep_graph)

    def classify(
        self,
        images: Any,
        target: Any = None,
        *,
        method: str = "gam",
        n: int = 2,
        fuse: Fusion = "mean",
        score: str | scores.OutputScore = "logit",
        views: ViewList = (),
        batch_size: int | None = None,
    ) -> Explanation:
        """Why this class? Trace and explain: a tensor in one forward, other images 32 at a time, or `batch_size`."""
        if batch_size is not None and batch_size < 1:
            raise GamlensError(f"batch_size={batch_size}: give at least 1.")
        wanted = reach(method, n)
        items: Any = images if isinstance(images, Tensor) and batch_size is None else list(pictures(images))
        step = batch_size or (BATCH if isinstance(items, list) else len(items))
        if len(items) <= step or items is images:
            return self._trace(items, target, n=wanted, score=score, views=views, keep=False).explain(method, n, fuse)
        aims = targets.per_image(target, len(items))
        parts = (
            self._trace(items[i : i + step], aims[i : i + step], n=wanted, score=score, views=views, keep=False)
            for i in range(0, len(items), step)
        )
        return concat([part.explain(method, n, fuse) for part in parts])

    def stream(
        self,
        images: Iterable[Any],
        target: Any = None,
        *,
        method: str = "gam",
        n: int = 2,
        fuse: Fusion = "mean",
        score: str = "logit",
        views: ViewList = (),
        batch_size: int = 16,
        workers: int | None = None,
    ) -> Iterator[StreamResult]:
        """Why this class? For images that keep coming: any iterable, read as it is used, results in its order.

        Decoding runs in `workers` threads beside the model. A bad image has an `.error` and stops nothing.
        `target`: None for the top class, or classes for every image.
        """
        if batch_size < 1:
            raise GamlensError(f"batch_size={batch_size}: give at least 1.")
        looks = Views.parse(views)

        def explain(ready: ModelInput) -> tuple[Trace, Explanation]:
            wanted = None if target is None else [target] * len(ready.pictures)
            trace = self.trace(ready, wanted, n=n, method=method, score=score, views=views, keep_graph=False)
            return trace, trace.explain(method, n, fuse)

        return stream(
            images,
            lambda image: prepare_pixels(image, self.transform, looks),
            explain,
            batch_size=batch_size,
            workers=workers,
            device=self.device,
        )

    def trace_pair(self, x: Any, y: Any, *, n: int | None = 2, method: str = "gam", views: ViewList = ()) -> PairTrace:
        """One forward for both sides (two where their sizes differ): a PairTrace. 1 against N broadcasts."""
        return self._trace_pair(x, y, n=reach(method, n) if n is not None else None, views=views)

    def compare(
        self,
        x: Any,
        y: Any,
        *,
        score: str | scores.PairScore = "cosine",
        method: str = "gam",
        n: int = 2,
        fuse: Fusion = "mean",
        views: ViewList = (),
    ) -> PairExplanation:
        """Why similar? Both maps of each pair. `score`: "cosine", "dot", or a callable on two embeddings (P,D)."""
        pair = self._trace_pair(x, y, n=reach(method, n), views=views)
        pair.sides(score, keep=False)
        return pair.release().explain(method, n, fuse, score=score)

    def trace_text(
        self,
        images: Any,
        captions: str | Sequence[str],
        *,
        n: int | None = 2,
        views: ViewList = (),
        embeddings: Any = None,
    ) -> Trace:
        """One forward of the images: a Trace whose classes are the captions, scored by the cosine with each."""
        names = text_room.as_captions(captions)
        texts = text_room.embed_captions(names, self.text, embeddings, self.name)
        looks = Views.parse(views)
        ready = prepare(images, self.transform, looks)
        origin = self._origin(ready.pictures, ready.frames, looks)
        origin = replace(aims.named(origin, "cosine"), labels=names, aliases={})
        origin = replace(origin, about={**origin.about, "text": list(names)})
        batches = [self.sight.fit(batch, own=batch is images) for batch in ready.batches]
        seen = [aims.at_texts(self.sight, batch, n, texts, origin) for batch in batches]
        first = replace(seen[0], views=tuple(zip(seen[1:], ready.mirrored[1:], strict=True)))
        return first.at([list(range(len(names)))] * len(ready.pictures))

    def compare_text(
        self,
        images: Any,
        captions: str | Sequence[str],
        *,
        method: str = "gam",
        n: int = 2,
        fuse: Fusion = "mean",
        views: ViewList = (),
        embeddings: Any = None,
    ) -> Explanation:
        """Why does this image fit this text? One row for each image and caption; targets number the captions.

        The text comes from the model's own text half, from Lens(text=...), or as `embeddings` (T,D).
        """
        return self.trace_text(images, captions, n=n, views=views, embeddings=embeddings).explain(method, n, fuse)

    def remember(
        self,
        images: Any,
        *,
        batch_size: int = BATCH,
        workers: int | None = None,
        device: str | torch.device | None = None,
    ) -> Gallery:
        """Run each image once and keep its last block and embedding: a Gallery for `compare_many`, which can be saved.

        Decoding runs in `workers` threads; the gallery's tensors stay on `device`, the model's by default.
        """
        return remember(self, images, batch_size=batch_size, workers=workers, device=device)

    def compare_many(
        self,
        queries: Any,
        gallery: Any,
        *,
        score: str | scores.PairScore = "cosine",
        method: str = "gam",
        n: int = 1,
        fuse: Fusion = "mean",
        top: int | None = None,
        pairs: Sequence[tuple[int, int]] | None = None,
        batch_size: int = 64,
    ) -> PairExplanation:
        """Why are these similar? Each query against each image, the `top` most similar ones, or `pairs` of numbers.

        `queries` and `gallery` are images, or a Gallery of them. The result has one row per pair: x.index numbers the
        query, y.index the image, and each side has maps (P,H,W). At n = 1 pairs of remembered images need neither a
        forward nor a backward if the embedding is the pooled last block. Otherwise each image is run once, with one
        backward through its last blocks per pair, while the graphs of all queries are held.
        """
        options = PairOptions(score=score, method=method, n=n, fuse=fuse, top=top, pairs=pairs, batch_size=batch_size)
        return compare_many(self, queries, gallery, options)

    # The steps

    def _trace(
        self,
        images: Any,
        target: Any,
        *,
        n: Reach,
        score: str | scores.OutputScore,
        views: ViewList,
        keep: bool,
    ) -> Trace:
        looks = Views.parse(views)
        ready = self._prepared(images, looks)
        name = score if isinstance(score, str) else getattr(score, "__name__", "score")
        origin = aims.named(self._origin(ready.pictures, ready.frames, looks), name)
        batches = (self.sight.fit(batch, own=batch is images) for batch in ready.batches)
        if isinstance(score, str):
            seen = [
                aims.at_classes(self.sight, batch, n, score, origin, multi_label=self.multi_label) for batch in batches
            ]
            first = replace(seen[0], views=tuple(zip(seen[1:], ready.mirrored[1:], strict=True)))
            return first.at(target, keep=keep)
        if target is not None:
            raise GamlensError("A callable score says itself what is explained: leave target out.")
        rows = [aims.at_score(self.sight, batch, n, score, origin) for batch in batches]
        views_seen = tuple(View(*pair) for pair in zip(rows[1:], ready.mirrored[1:], strict=True))
        return Trace(replace(rows[0], views=views_seen), None, name, self.multi_label)

    def _trace_pair(self, x: Any, y: Any, *, n: Reach, views: ViewList) -> PairTrace:
        looks = Views.parse(views)
        sides = [self._prepared(side, looks) for side in (x, y)]
        counts = [len(side.pictures) for side in sides]
        if counts[0] != counts[1] and 1 not in counts:
            raise GamlensError(f"x holds {counts[0]} images and y {counts[1]}: give as many, or 1 against N.")
        pairs = max(counts)
        origins = [self._origin(_repeat(side.pictures, pairs), _repeat(side.frames, pairs), looks) for side in sides]
        looked = [
            [self.sight.fit(batch, own=batch is given) for batch in side.batches]
            for side, given in zip(sides, (x, y), strict=True)
        ]
        both = (origins[0], origins[1])
        traces = [aims.at_pairs(self.sight, a, b, pairs, n, both) for a, b in zip(*looked, strict=True)]
        traces[0].views = tuple(zip(traces[1:], sides[0].mirrored[1:], strict=True))
        return traces[0]

    def _prepared(self, images: Any, looks: Views) -> ModelInput:
        """Images decoded and transformed; what is prepared already is taken as it is."""
        return images if isinstance(images, ModelInput) else prepare(images, self.transform, looks)

    def _origin(self, shown: Sequence[Picture], frames: tuple[Frame, ...], looks: Views) -> Provenance:
        about = self.about
        if looks != Views():
            about["views"] = {"scales": list(looks.scales), "mirrored": looks.mirrored}
        return Provenance(shown, frames, self.labels, self.aliases, about)


def _transform(choice: Any, network: Network) -> Transform | ExternalTransform:
    if choice is None or isinstance(choice, str):
        first = next((layer for layer in network.module.modules() if isinstance(layer, nn.Conv2d)), None)
        grey = first is not None and first.in_channels == 1 and len(network.mean) == 3
        mean, std = ((0.5,), (0.5,)) if grey else (network.mean, network.std)
        mode: Any = choice or "squash"
        return Transform(network.size, mean, std, mode, max(network.short, *network.size))
    if isinstance(choice, Transform):
        return choice
    if callable(choice):
        return ExternalTransform(choice)
    raise GamlensError(f"transform= is 'squash', 'crop', a Transform or a callable on PIL images; found {choice!r}.")


def _labels(labels: Any) -> tuple[str, ...]:
    if isinstance(labels, Mapping):
        labels = [labels[number] for number in sorted(labels)]
    found = tuple(labels) if not isinstance(labels, str) else ()
    if not found or not all(isinstance(label, str) for label in found):
        raise GamlensError(f"labels= is a list of class names in the order of the classes; found {labels!r:.80}.")
    return found


def reach(method: str, n: int) -> Reach:
    """What a method reads: the last n blocks, or the pixels in a pass of its own."""
    entry = methods.find(method)
    return entry if entry.kind == "input" else n


def _repeat(items: Any, count: int) -> Any:
    return tuple(items) * count if len(items) == 1 else items
