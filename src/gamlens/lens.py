"""`Lens`, the one thing that holds state: a model, and how to look through it.

A call goes straight down: `prepare` (images to batches), `HookedModel.forward` (one forward that keeps blocks),
`Trace.from_record` (one short backward), `Trace.explain` (maps).
"""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gamlens import models, retrieval, scores, targets
from gamlens._version import __version__
from gamlens.capture.forward import ForwardRecord
from gamlens.capture.guard import outside_inference_mode
from gamlens.capture.layer_points import OUTPUT
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation, PairExplanation, concat
from gamlens.fuse import Fusion, at_least_float32, without_autocast
from gamlens.inputs.batch import PLAIN_VIEW, ModelInput, ViewList, Views, normalise_on, prepare, prepare_pixels
from gamlens.inputs.images import pictures
from gamlens.inputs.transform import ExternalTransform, Transform
from gamlens.methods import METHODS
from gamlens.models import Network, NetworkLayout, Output
from gamlens.models.hooked import HookedModel
from gamlens.pairs import text as text_embedding
from gamlens.pairs.pair_trace import PairTrace
from gamlens.retrieval import Gallery
from gamlens.streaming.stream import StreamResult, stream
from gamlens.trace import Provenance, Trace

BATCH_SIZE = 32


class Lens:
    """Shows why a model gave an image its class, and why it finds two images similar.

    Args:
        model_or_name: An nn.Module, or a name of MODELS.
        weights: A file, a state dict, or "random". They are loaded into a module of yours.
        blocks: Names of the blocks to read ("layer4", "features:relu"), in place of those that the network of that
            name has or that are found.
        embedding: The layer whose output pairs are compared by ("fc1", "fc:input", "output"), likewise.
        output: Key, index or callable that picks the class scores out of what the model returns.
        transform: "squash" (default), "crop", a Transform, or a callable on PIL images.
        labels: Class names.
        device: Where the model is moved.
        precision: "fp32", or "bf16" / "fp16" autocast.
        compile: Faster calls after a slow first one. Weights are followed; plain settings of layers (eps, stride) are
            read once.
        multi_label: Whether probabilities are sigmoids.
        text: Captions -> embeddings (T,D), the text half of a dual encoder.

    Nothing about a module of yours changes but what `weights` and `device` say.
    """

    def __init__(
        self,
        model_or_name: nn.Module | str,
        *,
        weights: models.WeightSource = None,
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
        self.name, self.weights, self.precision = network.name, network.weights, precision
        self.about = {  # what is recorded with every result
            "model": network.name,
            "weights": network.weights,
            "precision": precision,
            "versions": {"gamlens": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }
        self.multi_label = network.multi_label if multi_label is None else multi_label
        self.labels = _labels(labels) if labels is not None else network.labels
        self.aliases = dict(network.aliases)
        self.transform = _transform(transform, network)
        self.text = text or network.text
        if embedding is None:
            embedding = network.embedding or (OUTPUT if self.text is not None else None)
        self._hooked = HookedModel(
            network.module,
            network.name,
            blocks=blocks if blocks is not None else network.blocks or None,
            embedding=embedding,
            output=output if output is not None else network.output,
            precision=precision,
            compile=compile,
        )
        if device is not None:
            self.to(device)
        self._hooked.find_blocks_at(self.transform.size if isinstance(self.transform, Transform) else network.size)

    # What the lens knows about the model

    @property
    def model(self) -> nn.Module:
        """The network itself."""
        return self._hooked.model

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._hooked.reference_tensor(torch.empty(0)).device

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks that are read, in the order they run; n counts from the end."""
        return tuple(str(point) for point in self._hooked.model_blocks().points)

    @property
    def knows_blocks(self) -> bool:
        """Whether the blocks are found: usually when the lens is made, or else at the first image."""
        return self._hooked.known_blocks is not None

    @property
    def embedding(self) -> str:
        """What pairs are compared by."""
        return self._hooked.embedding.name

    @property
    def layout(self) -> NetworkLayout:
        """What discovery found: stages with their shapes and strides, and the embedding."""
        return self._hooked.layout

    def to(self, device: str | torch.device) -> Lens:
        """Move the model to a device; returns the lens itself."""
        try:
            self.model.to(device)
        except (RuntimeError, AssertionError) as error:
            raise GamlensError(f"Cannot use the device {str(device)!r}: {str(error).splitlines()[0]}") from error
        return self

    def with_model(self, model: nn.Module) -> Lens:
        """The same lens on another copy of its model: the same blocks, transform and labels."""
        other = copy.copy(self)
        other._hooked = self._hooked.with_model(model)
        return other

    def __repr__(self) -> str:
        blocks = ", ".join(self.blocks) if self.knows_blocks else "blocks are found at the first image"
        return f"<Lens {self.name} ({self.weights}): {blocks}>"

    # Why this class?

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
        if isinstance(images, ModelInput) and batch_size is not None:
            raise GamlensError("Prepared images run in one forward: leave batch_size out.")
        if isinstance(images, ModelInput) or (isinstance(images, Tensor) and batch_size is None):
            trace = self.trace(images, target, n=n, method=method, score=score, views=views, keep_graph=False)
            return trace.explain(method, n, fuse)
        items, step = list(pictures(images)), batch_size or BATCH_SIZE
        wanted = targets.per_image(target, len(items)) if target is not None else None
        parts = []
        for start in range(0, len(items), step):
            some = slice(start, start + step)
            own = wanted[some] if wanted is not None else None
            trace = self.trace(items[some], own, n=n, method=method, score=score, views=views, keep_graph=False)
            parts.append(trace.explain(method, n, fuse))
        return concat(parts)

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

        Args:
            images: A path, a PIL image, a uint8 array (H,W,3), a preprocessed tensor (B,C,H,W), a list of these, or
                what `prepare` gave.
            target: None for the top class, a class (index or name) for all images, or one entry per image, each a
                class, None, or a list of them.
            n: How many blocks are captured, counted from the last; None captures every block.
            method: The method that is wanted. It matters for one of kind "input", for which the pixels are captured in
                place of blocks, and for one that needs no gradient: nothing goes back, and the Trace has no gradients.
            score: "logit", "probability", "sigmoid", or a callable on the model's output that gives one number per
                image.
            views: Further looks at each image, whose maps are averaged in: ("flip", 1.43, 2.0) adds two larger inputs
                and mirrored copies of all three.
            keep_graph: Whether `retarget` shall work, at the price of the graph's memory.
        """
        if not isinstance(score, str) and target is not None:
            raise GamlensError("A callable score says itself what is explained: leave target out.")
        inputs = self.prepare(images, views=views)
        provenance = self._provenance(inputs, score=scores.score_name(score))
        traces: list[tuple[Trace, bool]] = []
        for batch, mirrored in zip(inputs.batches, inputs.mirrored, strict=True):
            if traces and isinstance(score, str):
                target = traces[0][0].resolved_targets()  # the plain view, which comes first, decides
            with self._hooked.guard.hold():
                record = self._hooked.forward(batch, n, method=METHODS[method])
                trace = self._trace_of(record, batch.shape[0], target, score, provenance, keep_graph)
            traces.append((trace, mirrored))
        (plain, _), *others = traces
        return plain.with_views(others)

    def _trace_of(
        self,
        record: ForwardRecord,
        count: int,
        target: Any,
        score: str | scores.OutputScore,
        provenance: Provenance,
        keep_graph: bool,
    ) -> Trace:
        """The Trace of class scores of `count` images, or of a callable score; the model is held meanwhile."""
        if isinstance(score, str):
            rule = scores.find_class_score(score, multi_label=self.multi_label)
            with torch.set_grad_enabled(record.has_graph):
                output = self._hooked.class_scores(record, count)
                with without_autocast(output):
                    values = rule(at_least_float32(output))
            return Trace.from_record(record, values, target, provenance, output=output.detach(), keep_graph=keep_graph)
        with torch.set_grad_enabled(record.has_graph):
            value = score(self._hooked.picked(record))
        return Trace.from_score(record, value, count, provenance)

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

        def explain(inputs: ModelInput) -> tuple[Trace, Explanation]:
            wanted = None if target is None else [target] * len(inputs.pictures)
            trace = self.trace(inputs, wanted, n=n, method=method, score=score, keep_graph=False)
            return trace, trace.explain(method, n, fuse)

        return stream(
            images,
            lambda image: prepare_pixels(image, self.transform, looks),
            explain,
            batch_size=batch_size,
            workers=workers,
            device=self.device,
        )

    # Why similar?

    def compare(
        self,
        x: Any,
        y: Any,
        *,
        score: str | scores.PairScoreFunction = "cosine",
        method: str = "gam",
        n: int = 2,
        fuse: Fusion = "mean",
        views: ViewList = (),
    ) -> PairExplanation:
        """Why similar? Both maps of each pair. `score`: a name in PAIR_SCORES, or a callable on embeddings (P,D)."""
        pair = self.trace_pair(x, y, n=n, method=method, views=views)
        pair.sides(score, keep=False)
        return pair.release().explain(method, n, fuse, score=score)

    def trace_pair(self, x: Any, y: Any, *, n: int | None = 2, method: str = "gam", views: ViewList = ()) -> PairTrace:
        """One forward for both sides (two where their sizes differ): a PairTrace. 1 against N runs the one N times."""
        sides = (self.prepare(x, views=views), self.prepare(y, views=views))
        counts = (len(sides[0].pictures), len(sides[1].pictures))
        if sides[0].views != sides[1].views:
            raise GamlensError("x and y were prepared with different views: prepare both with the same.")
        if counts[0] != counts[1] and 1 not in counts:
            raise GamlensError(f"x holds {counts[0]} images and y {counts[1]}: give as many, or 1 against N.")
        pairs = max(counts)
        provenances = (
            self._provenance(sides[0]).repeated(pairs),
            self._provenance(sides[1]).repeated(pairs),
        )
        traces: list[tuple[PairTrace, bool]] = []
        for batch_x, batch_y, mirrored in zip(sides[0].batches, sides[1].batches, sides[0].mirrored, strict=True):
            records = self._forward_pairs(batch_x, batch_y, pairs, n, method)
            traces.append((PairTrace.from_records(records, provenances, pairs), mirrored))
        (plain, _), *others = traces
        plain.views = tuple(others)
        return plain

    def _forward_pairs(self, x: Tensor, y: Tensor, pairs: int, n: int | None, method: str) -> tuple[ForwardRecord, ...]:
        """One forward of both sides, x before y; two where their sizes differ."""
        batches = []
        for batch in (self._hooked.to_model(x), self._hooked.to_model(y)):
            batches.append(batch if len(batch) == pairs else batch.repeat(pairs, 1, 1, 1))
        if batches[0].shape == batches[1].shape:
            batches = [torch.cat(batches)]
        records = []
        for batch in batches:
            records.append(self._hooked.forward(batch, n, method=METHODS[method], embedding=True))
        return tuple(records)

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
        trace = self.trace_text(images, captions, n=n, method=method, views=views, embeddings=embeddings)
        return trace.explain(method, n, fuse)

    def trace_text(
        self,
        images: Any,
        captions: str | Sequence[str],
        *,
        n: int | None = 2,
        method: str = "gam",
        views: ViewList = (),
        embeddings: Any = None,
    ) -> Trace:
        """One forward of the images: a Trace whose classes are the captions, scored by the cosine with each."""
        names = text_embedding.as_captions(captions)
        texts = text_embedding.embed_captions(names, self.text, embeddings, self.name)
        inputs = self.prepare(images, views=views)
        provenance = self._provenance(inputs, score="cosine", text=list(names)).of_captions(names)
        target = [list(range(len(names)))] * len(inputs.pictures)
        traces: list[tuple[Trace, bool]] = []
        for batch, mirrored in zip(inputs.batches, inputs.mirrored, strict=True):
            record = self._hooked.forward(batch, n, method=METHODS[method], embedding=True)
            own = record.required_embedding()
            with without_autocast(own), outside_inference_mode(), torch.set_grad_enabled(record.has_graph):
                values = text_embedding.cosines(at_least_float32(own), texts, self.embedding)
            trace = Trace.from_record(record, values, target, provenance, output=values.detach())
            traces.append((trace, mirrored))
        (plain, _), *others = traces
        return plain.with_views(others)

    # Image search

    def remember(
        self,
        images: Any,
        *,
        batch_size: int = BATCH_SIZE,
        workers: int | None = None,
        device: str | torch.device | None = None,
    ) -> Gallery:
        """Run each image once and keep its last block and embedding: a Gallery for `compare_many`, which can be saved.

        Decoding runs in `workers` threads; the gallery's tensors stay on `device`, the model's by default.
        """
        return retrieval.remember(self, images, batch_size=batch_size, workers=workers, device=device)

    def compare_many(
        self,
        queries: Any,
        gallery: Any,
        *,
        score: str | scores.PairScoreFunction = "cosine",
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
        options = retrieval.PairOptions(
            score=score, method=method, n=n, fuse=fuse, top=top, pairs=pairs, batch_size=batch_size
        )
        return retrieval.compare_many(self, queries, gallery, options)

    # The steps, one by one

    def prepare(self, images: Any, *, views: ViewList = ()) -> ModelInput:
        """Images decoded and transformed, one batch per view. Every call that takes images takes the result, too."""
        looks = Views.parse(views)
        if not isinstance(images, ModelInput):
            return prepare(images, self.transform, looks)
        if looks not in (PLAIN_VIEW, images.views):
            raise GamlensError("These images were prepared with other views: give views= to prepare alone.")
        return normalise_on(images, self.device) if images.pending_transform is not None else images

    def forward(self, images: Any, *, n: int | None = 0, method: str = "gam", embedding: bool = False) -> ForwardRecord:
        """One forward of the plain view, which keeps what it is asked for: in a graph, or without one at n = 0.

        Args:
            images: As `trace` takes them.
            n: How many blocks are kept, counted from the last; 0 for none, None for all.
            method: The method that is wanted. It matters for one of kind "input", for which the pixels are kept in
                place of blocks, and for one that needs no gradient, for which no graph is made.
            embedding: Whether the embeddings (B,D) are kept.
        """
        batch = self.prepare(images).batches[0]
        entry = METHODS[method]
        if n == 0 and entry.kind != "input":
            return self._hooked.forward_only(batch, embedding=embedding)
        return self._hooked.forward(batch, n, method=entry, embedding=embedding)

    def outputs(self, images: Any) -> Tensor:
        """What the model returns for the images, picked out by `output=`: one forward, out of any graph."""
        return models.pick(self.forward(images).output, self._hooked.output).detach()

    def embed(self, images: Any) -> Tensor:
        """The embeddings (B,D) that pairs are compared by: one forward, out of any graph."""
        return self.forward(images, embedding=True).required_embedding().detach()

    def _provenance(self, inputs: ModelInput, **asked: Any) -> Provenance:
        """What results carry along: the images, and by what they were explained."""
        about = {**self.about, **asked}
        if inputs.views != PLAIN_VIEW:
            about["views"] = {"scales": list(inputs.views.scales), "mirrored": inputs.views.mirrored}
        height, width = inputs.batches[0].shape[2:]
        return Provenance(
            pictures=inputs.pictures,
            frames=inputs.frames,
            size=(height, width),
            labels=self.labels,
            aliases=self.aliases,
            multi_label=self.multi_label,
            about=about,
        )


def _transform(choice: Any, network: Network) -> Transform | ExternalTransform:
    if choice is None or isinstance(choice, str):
        grey = models.input_channels(network.module) == 1 and len(network.mean) == 3
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
        numbers = {str(number): label for number, label in labels.items()}
        if set(numbers) != set(map(str, range(len(numbers)))):
            raise GamlensError(
                f"labels= as a mapping has the classes 0 to {len(labels) - 1} as keys; found {labels!r:.80}."
            )
        labels = [numbers[str(number)] for number in range(len(numbers))]
    found = tuple(labels) if not isinstance(labels, str) else ()
    if not found or not all(isinstance(label, str) for label in found):
        raise GamlensError(f"labels= is a list of class names in the order of the classes; found {labels!r:.80}.")
    return found
