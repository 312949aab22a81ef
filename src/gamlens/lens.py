"""`Lens`, the one thing that holds state: a model, and how to look through it.

A call goes straight down: `prepare` (images to batches), `HookedModel.forward` (one forward that keeps blocks),
`Trace.from_record` (one short backward), `Trace.explain` (maps).
"""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from gamlens import methods, models, retrieval, scores, targets
from gamlens._version import __version__
from gamlens.capture.attention import layer_name
from gamlens.capture.forward import BY_NETWORK, ForwardRecord
from gamlens.capture.guard import outside_inference_mode
from gamlens.capture.layer_points import OUTPUT
from gamlens.errors import GamlensError, warn
from gamlens.explanation import ContrastExplanation, Explanation, GroupExplanation, PairExplanation, concat
from gamlens.explanation.origin import Origin
from gamlens.fuse import Fusion, at_least_float32, without_autocast
from gamlens.inputs.batch import PLAIN_VIEW, ModelInput, ViewList, Views, normalise_on, prepare, prepare_pixels
from gamlens.inputs.images import pictures
from gamlens.inputs.transform import ExternalTransform, Transform
from gamlens.lattice import Lattice, check_reading
from gamlens.methods import METHODS, Method
from gamlens.models import Network, NetworkLayout, Output
from gamlens.models.devices import chosen_device
from gamlens.models.hooked import HookedModel
from gamlens.pairs import text as text_embedding
from gamlens.pairs.pair_trace import PairTrace
from gamlens.pairs.set_trace import SetTrace
from gamlens.refine import Refine, Refinement, Sharp, preset
from gamlens.retrieval import Gallery
from gamlens.streaming.stream import StreamResult, stream
from gamlens.trace import Provenance, Trace

BATCH_SIZE = 32
MethodNames = str | Sequence[str]  # the name of a method, or several names


class Lens:
    """Shows why a model gave an image its class, and why it finds two images similar.

    A lens holds a model and knows which of its layers ("blocks") to read, how an image becomes the model's input, and
    how to draw results over the original image. Build one lens per model and use it for every image.

    | call | answers | returns |
    | --- | --- | --- |
    | `classify(images, target)` | why this class? | Explanation, one map per image and class |
    | `compare(x, y)` | why are x and y similar? | PairExplanation, one map for each image of each pair |
    | `contrast(x, a, b)` | why is x more like a than like b? | ContrastExplanation, one map on each of the three |
    | `group(images)` | why are these images alike? | GroupExplanation, one map per image |
    | `compare_text(images, captions)` | why does this caption fit? | Explanation, one map per image and caption |
    | `compare_many(queries, gallery)` | the same for many pairs | PairExplanation; each image is run once |
    | `remember(images)` | (stores images for `compare_many`) | Gallery, which can be saved |
    | `stream(images)` | why this class, image by image | an iterator of results, in order |
    | `trace`, `trace_pair`, `trace_set`, `trace_text` | what one forward gave | a trace, whose `explain` makes maps |
    | `prepare`, `forward`, `outputs`, `embed` | the single steps | batches, records, tensors |

    Wherever images are taken, they may be a path, a PIL image, a uint8 array (H,W,3), a preprocessed float tensor
    (B,C,H,W), a list of paths, PIL images and arrays, or what `prepare` returned. Maps are (R,H,W) in [0,1], one for
    each of R rows (a row is an image and a class, or a pair), at the size H x W of the model's input; the methods of an
    Explanation bring them to the size of the original image.

    Args:
        model_or_name: An nn.Module, or a name: one of MODELS, any classifier of torchvision, "timm/NAME" or "hf/ID".
        weights: A .safetensors or .pth file, a state dict, or "random"; for a model of torchvision also the name of
            its weights, such as "IMAGENET1K_V1". By default a named model's pretrained weights. If `model_or_name` is
            an nn.Module, they are loaded into it.
        blocks: Names of the blocks to read, in the order they run: a module ("layer4"), or a function that the network
            applies to the output of a module ("features:relu"). By default those that the named network declares, or
            else those that are found. `lens.blocks`, or `gamlens blocks MODEL`, shows them.
        embedding: Where the embedding is read, the vector by which two images are compared: the output of a module
            ("fc1"), its input ("fc:input"), or what the model returns ("output"). By default the classifier's input.
        output: Where the class scores are in what the model returns: a key or attribute, an index, or a callable.
        transform: How an image becomes the input: "squash" (resize to the input size, the default), "crop" (resize the
            short side, then crop the centre), a Transform, or a callable from a PIL image to a tensor (C,H,W).
        labels: Class names, one per class, in the order of the class scores. By default those in the file of weights
            (`idx_to_class`, `class_to_idx` or `classes`), or else those of the named model.
        device: Where the model is moved, such as "cuda"; "auto" is a GPU where there is one, else the CPU. By default
            the model stays where it is.
        precision: "fp32", or "bf16" or "fp16" for autocast.
        compile: Whether the network is compiled: the first call is slow, later ones are faster. If weights change
            later, results change with them. Settings of layers that are plain numbers (eps, stride) are read only
            once, when the network is compiled.
        multi_label: Whether probabilities are sigmoids, one per class, rather than a softmax over the classes.
        text: For a dual encoder: a function from captions to embeddings (T,D).

    Raises:
        GamlensError: If the name is unknown, weights do not fit, a named block does not exist, or the device cannot be
            used. Every later call raises it, too, for bad input; the message says what to do.

    A module that you give is left as it was after every call, also after an error: its mode, hooks, `.grad` and
    `requires_grad`. Only `weights` and `device` change it. One lens may be used from several threads.

    Example:
        >>> from torch import nn
        >>> features = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU())
        >>> head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
        >>> lens = Lens(nn.Sequential(features, head), labels=["cat", "dog"])
        >>> result = lens.classify(photo, "dog", n=1)
        >>> result.maps.shape, result.names
        (torch.Size([1, 224, 224]), ['dog'])
        >>> picture = result.overlay()  # a PIL image of the photo's own size
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
        network = models.load(model_or_name, weights=weights, own_labels=labels is None)
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
            # A model that is compared with text returns an embedding, not class scores.
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
        """The module that the lens looks at."""
        return self._hooked.model

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        return self._hooked.reference_tensor(torch.empty(0)).device

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the blocks that can be read, in the order they run; `n` counts from the last one."""
        return tuple(str(point) for point in self._hooked.model_blocks().points)

    @property
    def knows_blocks(self) -> bool:
        """Whether the blocks are known: usually since the lens was made, or else from the first image on."""
        return self._hooked.known_blocks is not None

    @property
    def default_method(self) -> str:
        """The method that "auto" stands for: "attention_gam" for a transformer whose attention can be read, else "gam".

        If blocks were named (`blocks=`), it is "gam", which reads them. A GamlensWarning says if a network has
        transformer layers, but their attention cannot be read: maps of its tokens are to be trusted less.
        """
        found = self._hooked.known_blocks or self._hooked.model_blocks()
        if self._hooked.named_blocks is not None:
            return methods.BLOCK_DEFAULT
        if found.no_attention:
            warn(
                f"The attention of {self.name} cannot be read: {found.no_attention}. The method is "
                f"{methods.BLOCK_DEFAULT!r}, which reads tokens: treat its maps as a hint (docs/transformers.md)."
            )
        return methods.ATTENTION_DEFAULT if found.layers else methods.BLOCK_DEFAULT

    @property
    def no_attention(self) -> str:
        """Why the attention of the network's transformer layers cannot be read; "" if it can, or if it has none."""
        return self._hooked.model_blocks().no_attention

    @property
    def attention_layers(self) -> tuple[str, ...]:
        """The names of the transformer layers whose attention can be read, in the order they run; () without any."""
        return tuple(layer_name(point.module) for point in self._hooked.model_blocks().layers)

    @property
    def embedding(self) -> str:
        """Where the embedding is read, the vector by which two images are compared: "fc:input", for example."""
        return self._hooked.embedding.name

    @property
    def layout(self) -> NetworkLayout:
        """What was found in the network: its stages with their shapes and strides, and the embedding."""
        return self._hooked.layout

    @property
    def lattices(self) -> Mapping[str, Lattice]:
        """The blocks of which the network reads only every second (or s-th) row and column, and which ones.

        They are those at the size of `transform`; {} if that is a function, which has no size. A trace has those at the
        size of its images.
        """
        return self._hooked.lattices(self.transform.size) if isinstance(self.transform, Transform) else {}

    def to(self, device: str | torch.device) -> Lens:
        """Move the model to a device, with "auto" to a GPU where there is one; returns the lens itself."""
        device = chosen_device(device, self.device)
        try:
            self.model.to(device)
        except (RuntimeError, AssertionError, TypeError) as error:
            why = str(error).splitlines()[0]
            known = "give auto, cpu, cuda, cuda:1 (the second GPU) or mps."
            why = known if why.startswith("Expected one of") else f"{why} Or {known}"
            raise GamlensError(f"Cannot use the device {str(device)!r}: {why}") from error
        return self

    def with_model(self, model: nn.Module) -> Lens:
        """The same lens on another copy of its model: the same blocks, transform and labels."""
        other = copy.copy(self)
        other._hooked = self._hooked.with_model(model)
        return other

    def compiled(self) -> Lens:
        """The same lens on the same model, whose forwards are compiled, as with Lens(..., compile=True)."""
        other = copy.copy(self)
        other._hooked = self._hooked.compiled()
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
        method: str = BY_NETWORK,
        n: int | str = BY_NETWORK,
        fuse: Fusion = "mean",
        score: str | scores.OutputScore = "logit",
        temperature: float = 1.0,
        views: ViewList = (),
        lattice: str = "read",
        refine: Refine = False,
        sharp: Sharp = False,
        batch_size: int | None = None,
        sign: str | None = None,
        against: Any = None,
    ) -> Explanation:
        """Why this class? Makes one map per image and target class.

        Args:
            images: The images, as the class docstring says. A tensor or a prepared batch runs in one forward.
            target: None for the top class of each image; a class, by index or name, for all images; or a list with one
                entry per image, each a class, None, or a list of classes.
            method: A name of `gamlens.METHODS`; all but "vdsn" and "vdsn_max", which explain pairs only. "auto" is
                `default_method`: "attention_gam" for a transformer whose attention can be read, else "gam". The result
                says which it was (`about`).
            n: How many blocks, or attention layers, the map is made of, counted from the last. "auto" is two blocks, or
                one where the model has only one, and all attention layers.
            fuse: How the maps of n blocks become one: "mean", "max", "product", or n weights.
            score: What is explained: "logit", "softmax", "sigmoid", "probability" (the sigmoid if `multi_label`, else
                the softmax), or a callable that takes the model's output and returns one number per image, (B,).
            temperature: For a score that is a probability: the class scores are divided by it before the softmax or
                sigmoid. The probabilities of `Trace.top` are then those at this temperature, too.
            views: Further views of each image whose maps are averaged, such as ("flip", 1.43): see `trace`.
            lattice: If the network reads only every second (or s-th) row and column of a block, as the original
                ResNet does, the block's map is made of these positions ("read") or of all of them ("keep").
            refine: Whether maps are refined by the network's own self-similarity, so that they follow the outlines of
                objects: True, a number of earlier blocks, or a Refinement. `gamlens.refine` has the formula.
            sharp: True stands for refine=True, and "views" also for views=("flip", 1.43, 2.0): six views, with 14 times
                the pixels of one.
            batch_size: Images per forward, 32 by default.
            sign: None for maps as the method makes them; "positive" for what raises the score, "negative" for what
                lowers it, "both" for the first minus the second, in [-1,1]: see `Trace.explain`.
            against: A class, by index or name. If it is given, the difference of two class scores is explained: why
                `target`, one class per image, rather than this one? Best with sign="both".

        Returns:
            An Explanation with R rows, one per image and target: `maps` (R,H,W), `scores` (R,), `names`, `overlay()`.

        Example:
            >>> result = lens.classify([photo, other], [["cat", "dog"], None])
            >>> result.index.tolist(), result.names[:2]
            ([0, 0, 1], ['cat', 'dog'])
        """
        refine, views = preset(sharp, refine, views)
        method = self._chosen(method, images)
        if lattice != "read":
            check_reading(lattice)
        if batch_size is not None and batch_size < 1:
            raise GamlensError(f"batch_size={batch_size}: give at least 1.")
        if isinstance(images, ModelInput) and batch_size is not None:
            raise GamlensError("Prepared images run in one forward: leave batch_size out.")
        scored, made = {"score": score, "temperature": temperature}, {"fuse": fuse, "lattice": lattice, "sign": sign}
        origin = Origin(self, scored, made, against)
        if isinstance(images, ModelInput) or (isinstance(images, Tensor) and batch_size is None):
            trace = self.trace(
                images, target, n=n, method=method, score=score, temperature=temperature, views=views, refine=refine,
                keep_graph=against is not None,
            )  # fmt: skip
            trace = trace if against is None else trace.contrast(target, against)
            found = trace.explain(method, n, fuse, lattice=lattice, refine=refine, sign=sign)
            return replace(found, origin=origin)
        items, step = list(pictures(images)), batch_size or BATCH_SIZE
        wanted = targets.per_image(target, len(items)) if target is not None else None
        parts = []
        for start in range(0, len(items), step):
            some = slice(start, start + step)
            own = wanted[some] if wanted is not None else None
            trace = self.trace(
                items[some], own, n=n, method=method, score=score, temperature=temperature, views=views, refine=refine,
                keep_graph=against is not None,
            )  # fmt: skip
            trace = trace if against is None else trace.contrast(own, against)
            parts.append(trace.explain(method, n, fuse, lattice=lattice, refine=refine, sign=sign))
        return replace(concat(parts), origin=origin)

    def trace(
        self,
        images: Any,
        target: Any = None,
        *,
        n: int | str | None = BY_NETWORK,
        method: MethodNames = BY_NETWORK,
        score: str | scores.OutputScore = "logit",
        temperature: float = 1.0,
        views: ViewList = (),
        refine: Refine = False,
        keep_graph: bool = True,
    ) -> Trace:
        """Run one forward, and one backward down to the captured blocks; any method then makes its maps from them.

        Args:
            images: The images, as the class docstring says.
            target: As `classify` takes it.
            n: How many blocks, and attention layers, are captured, counted from the last; None captures all of them,
                "auto" two blocks and all attention layers.
            method: The method that the trace is for, or several. The default serves every method of kind "block", and
                every one of kind "attention" if the attention of the model can be read. For methods of kind "attention"
                alone, only attention layers are captured, and only the gradients that these methods read are computed.
                For a method of kind "input", the pixels are captured in place of blocks. For a method that needs no
                gradient, no backward is run, and the trace can then explain only by methods that need none.
            score, temperature: As `classify` takes them.
            views: Further views of each image; the maps of all views are averaged. A number scales the input size, and
                "flip" adds a mirrored copy at every scale. So ("flip", 1.43, 2.0) makes six views: the plain one, two
                larger ones, and the mirrored copies of these three.
            refine: How maps shall be refined, as `classify` takes it. The activations of earlier blocks that this needs
                are captured, too, without a graph.
            keep_graph: Whether the graph is kept in memory, which `Trace.retarget` needs.

        Returns:
            A Trace: activations {block: (B,C,h,w)}, gradients {block: (R,C,h,w)}, scores (R,), and `explain`.

        Example:
            >>> trace = lens.trace(photo, "dog", n=2)
            >>> maps = {name: trace.explain(name, n=1).maps for name in ("gam", "layer_cam")}
            >>> other_class = trace.retarget("cat").explain("gam")
        """
        if not isinstance(score, str) and target is not None:
            raise GamlensError("A callable score says itself what is explained: leave target out.")
        if not isinstance(score, str) and temperature != 1:
            raise GamlensError("A callable score divides by a temperature itself: leave temperature out.")
        inputs = self.prepare(images, views=views)
        asked: dict[str, Any] = {} if temperature == 1 else {"temperature": temperature}
        provenance = self._provenance(inputs, score=scores.score_name(score), **asked)
        traces: list[tuple[Trace, bool]] = []
        wanted = self._read_by(method, inputs)
        for batch, mirrored in zip(inputs.batches, inputs.mirrored, strict=True):
            if traces and isinstance(score, str):
                target = traces[0][0].resolved_targets()  # the plain view, which comes first, decides
            with self._hooked.guard.hold():
                record = self._hooked.forward(batch, n, methods=wanted, refine=Refinement.parse(refine))
                trace = self._trace_of(record, batch.shape[0], target, score, temperature, provenance, keep_graph)
            traces.append((trace, mirrored))
        (plain, _), *others = traces
        return plain.with_views(others)

    def _trace_of(
        self,
        record: ForwardRecord,
        count: int,
        target: Any,
        score: str | scores.OutputScore,
        temperature: float,
        provenance: Provenance,
        keep_graph: bool,
    ) -> Trace:
        """Make the Trace of `count` images from their forward: of class scores by name, or of a callable score.

        The caller holds the model (`ModelGuard.hold`), because the backward runs in here.
        """
        own = record.attention.own_record if record.attention is not None else None
        if isinstance(score, str):
            rule = scores.find_class_score(score, multi_label=self.multi_label, temperature=temperature)
            with torch.set_grad_enabled(record.has_graph):
                output = self._hooked.class_scores(record, count)
                with without_autocast(output):
                    values = rule(at_least_float32(output))
                    own_values = None
                    if own is not None:
                        own_values = rule(at_least_float32(self._hooked.class_scores(own)))
            return Trace.from_record(
                record, values, target, provenance, output=output.detach(), own_values=own_values, keep_graph=keep_graph
            )
        with torch.set_grad_enabled(record.has_graph):
            value = score(self._hooked.picked(record))
            own_value = None if own is None else score(self._hooked.picked(own))
        return Trace.from_score(record, value, count, provenance, own_value=own_value)

    def stream(
        self,
        images: Iterable[Any],
        target: Any = None,
        *,
        method: str = BY_NETWORK,
        n: int | str = BY_NETWORK,
        fuse: Fusion = "mean",
        score: str = "logit",
        temperature: float = 1.0,
        views: ViewList = (),
        lattice: str = "read",
        refine: Refine = False,
        sharp: Sharp = False,
        batch_size: int = 16,
        workers: int | None = None,
    ) -> Iterator[StreamResult]:
        """Why this class? The same as `classify` for images that keep coming; results arrive in order.

        The iterable is read as results are used, so it may be endless. Images are decoded in threads while the model
        runs. An image that cannot be read, or on which the model fails with any exception, has a result with an
        `error` and stops nothing. A failure that would hit every image is raised: if the model fails on all images of
        a batch, and none was explained before, or one that was explained before now fails, too. If a batch needs too
        much memory, smaller ones are made.

        Args:
            images: Any iterable of paths, PIL images or arrays.
            target: None for the top class, or a class or a list of classes for every image.
            method, n, fuse, score, temperature, views, lattice, refine, sharp: As `classify` takes them.
            batch_size: Images per forward.
            workers: Number of threads that decode; by default as many as the machine has cores, at most 8.

        Returns:
            An iterator of StreamResult, one per image: `explanation` and `top`, or `error`.

        Example:
            >>> for result in lens.stream([photo, other], batch_size=2):
            ...     print(result.error or tuple(result.explanation.maps.shape))
            (1, 224, 224)
            (1, 224, 224)
        """
        if batch_size < 1:
            raise GamlensError(f"batch_size={batch_size}: give at least 1.")
        refine, views = preset(sharp, refine, views)
        looks = Views.parse(views)

        def explain(inputs: ModelInput) -> tuple[Trace, Explanation]:
            wanted = None if target is None else [target] * len(inputs.pictures)
            chosen = self._chosen(method, inputs)
            trace = self.trace(
                inputs, wanted, n=n, method=chosen, score=score, temperature=temperature, refine=refine,
                keep_graph=False,
            )  # fmt: skip
            return trace, trace.explain(chosen, n, fuse, lattice=lattice, refine=refine)

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
        method: str = BY_NETWORK,
        n: int | str = BY_NETWORK,
        fuse: Fusion = "mean",
        views: ViewList = (),
        lattice: str = "read",
        refine: Refine = False,
        sharp: Sharp = False,
        sign: str | None = None,
    ) -> PairExplanation:
        """Why similar? Makes both maps of each pair.

        Args:
            x: The images of one side, as the class docstring says.
            y: The images of the other side. Image i of x is compared with image i of y. If one side is a single image,
                it is compared with every image of the other side.
            score: A name of PAIR_SCORES ("cosine", "dot", "euclidean"), or a callable from two sets of embeddings
                (P,D) to one number per pair, (P,).
            method: A name of METHODS; "auto" as in `classify`.
            n, fuse, views, lattice, refine, sharp: As `classify` takes them.
            sign: None for maps as the method makes them; "positive" for what makes the images alike, "negative" for
                what sets them apart, "both" for the first minus the second, in [-1,1].

        Returns:
            A PairExplanation: `scores` (P,), and the Explanations `x` and `y` with one map per pair.

        Example:
            >>> result = lens.compare(photo, other, score="dot")
            >>> result.x.maps.shape == result.y.maps.shape == (1, 224, 224)
            True
            >>> picture = result.overlay()  # both photos with their maps, side by side
        """
        refine, views = preset(sharp, refine, views)
        method = self._chosen(method, x)
        pair = self.trace_pair(x, y, n=n, method=method, views=views, refine=refine)
        pair.sides(score, keep=False)
        found = pair.release().explain(method, n, fuse, score=score, lattice=lattice, refine=refine, sign=sign)
        return replace(found, origin=Origin(self, {"score": score}, {"fuse": fuse, "lattice": lattice, "sign": sign}))

    def trace_pair(
        self,
        x: Any,
        y: Any,
        *,
        n: int | str | None = BY_NETWORK,
        method: MethodNames = BY_NETWORK,
        views: ViewList = (),
        refine: Refine = False,
    ) -> PairTrace:
        """Run one forward of all images of both sides, from which pairs are explained under any score and method.

        Images of two sizes need two forwards. One image against N is run N times; `compare_many` runs it once.

        Args:
            x, y: As `compare` takes them.
            n, method, views, refine: As `trace` takes them.

        Returns:
            A PairTrace: `explain(method, n, fuse, score=...)`, `sides(score)`, `matches(point)`.

        Example:
            >>> pair = lens.trace_pair(photo, other)
            >>> results = {score: pair.explain("gam", 1, score=score) for score in ("cosine", "dot")}
        """
        sides = (self.prepare(x, views=views), self.prepare(y, views=views))
        counts = (len(sides[0].pictures), len(sides[1].pictures))
        if sides[0].views != sides[1].views:
            raise GamlensError("x and y were prepared with different views: prepare both with the same.")
        if counts[0] != counts[1] and 1 not in counts:
            raise GamlensError(f"x holds {counts[0]} images and y {counts[1]}: give as many of both, or 1 against N.")
        pairs = max(counts)
        provenances = (
            self._provenance(sides[0]).repeated(pairs),
            self._provenance(sides[1]).repeated(pairs),
        )
        traces: list[tuple[PairTrace, bool]] = []
        wanted = self._read_by(method, sides[0])
        for batch_x, batch_y, mirrored in zip(sides[0].batches, sides[1].batches, sides[0].mirrored, strict=True):
            records = self._forward_pairs(batch_x, batch_y, pairs, n, wanted, Refinement.parse(refine))
            traces.append((PairTrace.from_records(records, provenances, pairs), mirrored))
        (plain, _), *others = traces
        plain.views = tuple(others)
        return plain

    def _forward_pairs(
        self,
        x: Tensor,
        y: Tensor,
        pairs: int,
        n: int | str | None,
        wanted: Sequence[Method],
        refine: Refinement | None,
    ) -> tuple[ForwardRecord, ...]:
        """One forward of both sides, x before y; two where their sizes differ."""
        batches = []
        for batch in (self._hooked.to_model(x), self._hooked.to_model(y)):
            batches.append(batch if len(batch) == pairs else batch.repeat(pairs, 1, 1, 1))
        if batches[0].shape == batches[1].shape:
            batches = [torch.cat(batches)]
        records = []
        for batch in batches:
            records.append(self._hooked.forward(batch, n, methods=wanted, embedding=True, refine=refine))
        return tuple(records)

    def contrast(
        self,
        x: Any,
        a: Any,
        b: Any,
        *,
        score: str | scores.PairScoreFunction = "cosine",
        method: str = BY_NETWORK,
        n: int | str = BY_NETWORK,
        fuse: Fusion = "mean",
        lattice: str = "read",
        refine: Refine = False,
        sharp: bool = False,
        sign: str | None = "both",
    ) -> ContrastExplanation:
        """Why is x more like a than like b? Explains s(x,a) - s(x,b) on all three images, by one forward of each.

        Args:
            x, a, b: The images, as the class docstring says: P of each, or one that serves for all.
            score: As `compare` takes it.
            method, n, fuse, lattice, refine, sharp: As `classify` takes them. There are no views here.
            sign: As `compare` takes it. With "both", positive pixels speak for a and negative ones for b.

        Returns:
            A ContrastExplanation: `scores` (P,), and the Explanations `x`, `a` and `b` with one map per contrast.

        Example:
            >>> found = lens.contrast(photo, other, photo.crop((0, 0, 99, 99)), method="gam", n=1)
            >>> found.x.maps.shape, found.x.signed
            (torch.Size([1, 224, 224]), True)
        """
        refine, views = preset(sharp, refine, ())
        sides = [self.prepare(images, views=views) for images in (x, a, b)]
        counts = [len(side.pictures) for side in sides]
        many = max(counts)
        if set(counts) - {1, many}:
            raise GamlensError(
                f"x, a and b hold {counts[0]}, {counts[1]} and {counts[2]} images: give as many of each."
            )
        method = self._chosen(method, sides[0])
        several = self._trace_prepared(sides, n, method, refine)
        starts = (0, counts[0], counts[0] + counts[1])
        places = [list(range(start, start + count)) for start, count in zip(starts, counts, strict=True)]
        places = [own if len(own) == many else [own[0]] * many for own in places]
        return several.contrast(
            *places, score=score, method=method, n=n, fuse=fuse, lattice=lattice, refine=refine, sign=sign
        )

    def group(
        self,
        images: Any,
        *,
        score: str | scores.PairScoreFunction = "cosine",
        method: str = BY_NETWORK,
        n: int | str = BY_NETWORK,
        fuse: Fusion = "mean",
        lattice: str = "read",
        refine: Refine = False,
        sharp: bool = False,
        sign: str | None = None,
    ) -> GroupExplanation:
        """Why are these images alike? Explains on each its mean similarity to the others, by one forward of each.

        Args:
            images: Two or more images, as the class docstring says.
            score: As `compare` takes it.
            method, n, fuse, lattice, refine, sharp: As `classify` takes them. There are no views here.
            sign: As `compare` takes it.

        Returns:
            A GroupExplanation: `images`, an Explanation with one row per image, and `pair_scores` (k,k).

        Example:
            >>> found = lens.group([photo, other, photo.crop((0, 0, 99, 99))], method="gam", n=1)
            >>> found.images.maps.shape, found.pair_scores.shape
            (torch.Size([3, 224, 224]), torch.Size([3, 3]))
        """
        refine, _ = preset(sharp, refine, ())
        method = self._chosen(method, images)
        several = self.trace_set(images, n=n, method=method, refine=refine)
        return several.group(score=score, method=method, n=n, fuse=fuse, lattice=lattice, refine=refine, sign=sign)

    def trace_set(
        self,
        images: Any,
        *,
        n: int | str | None = BY_NETWORK,
        method: MethodNames = BY_NETWORK,
        refine: Refine = False,
    ) -> SetTrace:
        """Run one forward of several images, from which contrasts and groups of them are explained.

        Args:
            images: The images, as the class docstring says; all of one size.
            n, method, refine: As `trace` takes them.

        Returns:
            A SetTrace: `contrast(x, a, b)` and `group()`.
        """
        return self._trace_prepared([self.prepare(images)], n, method, refine)

    def _trace_prepared(
        self, sides: Sequence[ModelInput], n: int | str | None, method: MethodNames, refine: Refine
    ) -> SetTrace:
        """One forward of the images of all `sides` together."""
        batches = [self._hooked.to_model(side.batches[0]) for side in sides]
        if len(sizes := {tuple(batch.shape[1:]) for batch in batches}) > 1:
            found = " and ".join(str(size) for size in sorted(sizes))
            raise GamlensError(f"Images that are compared in a set have one size as inputs; found {found}.")
        wanted = self._read_by(method, sides[0])
        record = self._hooked.forward(
            torch.cat(batches), n, methods=wanted, embedding=True, refine=Refinement.parse(refine)
        )
        provenance = replace(
            self._provenance(sides[0]),
            pictures=tuple(picture for side in sides for picture in side.pictures),
            frames=tuple(frame for side in sides for frame in side.frames),
        )
        return SetTrace(record=record, provenance=provenance)

    def compare_text(
        self,
        images: Any,
        captions: str | Sequence[str],
        *,
        method: str = BY_NETWORK,
        n: int | str = BY_NETWORK,
        fuse: Fusion = "mean",
        views: ViewList = (),
        lattice: str = "read",
        refine: Refine = False,
        sharp: Sharp = False,
        embeddings: Any = None,
        sign: str | None = None,
        against: str | None = None,
    ) -> Explanation:
        """Why does this image fit this caption? Makes one map per image and caption, by the cosine of their embeddings.

        Args:
            images: The images, as the class docstring says.
            captions: One caption or T of them.
            method, n, fuse, views, lattice, refine, sharp: As `classify` takes them.
            embeddings: The captions' embeddings (T,D). By default the model's own text half computes them, or the
                function given as Lens(text=...).
            sign: As `classify` takes it.
            against: Another caption. If it is given, the difference of the cosines is explained: why `captions`, a
                single one, rather than this one? `embeddings` then has two rows, this caption last.

        Returns:
            An Explanation with B x T rows. `names` are the captions, `targets` their numbers, `scores` the cosines.

        Example:
            >>> numbers = torch.rand(2, 16)  # stands for what a text encoder gives
            >>> lens.compare_text(photo, ["a cat", "a dog"], embeddings=numbers, n=1).names
            ['a cat', 'a dog']
        """
        refine, views = preset(sharp, refine, views)
        method = self._chosen(method, images)
        if against is not None:
            captions = (*text_embedding.as_captions(captions), against)
        trace = self.trace_text(images, captions, n=n, method=method, views=views, refine=refine, embeddings=embeddings)
        if against is not None:
            trace = trace.contrast(0, 1)
        return trace.explain(method, n, fuse, lattice=lattice, refine=refine, sign=sign)

    def trace_text(
        self,
        images: Any,
        captions: str | Sequence[str],
        *,
        n: int | str | None = BY_NETWORK,
        method: MethodNames = BY_NETWORK,
        views: ViewList = (),
        refine: Refine = False,
        embeddings: Any = None,
    ) -> Trace:
        """Run one forward of the images: a Trace whose classes are the captions, as `compare_text` takes them."""
        names = text_embedding.as_captions(captions)
        texts = text_embedding.embed_captions(names, self.text, embeddings, self.name)
        inputs = self.prepare(images, views=views)
        provenance = self._provenance(inputs, score="cosine", text=list(names)).of_captions(names)
        target = [list(range(len(names)))] * len(inputs.pictures)
        traces: list[tuple[Trace, bool]] = []
        wanted = self._read_by(method, inputs)
        for batch, mirrored in zip(inputs.batches, inputs.mirrored, strict=True):
            record = self._hooked.forward(batch, n, methods=wanted, embedding=True, refine=Refinement.parse(refine))
            found = record.required_embedding()
            own = record.attention.own_record if record.attention is not None else None
            with without_autocast(found), outside_inference_mode(), torch.set_grad_enabled(record.has_graph):
                values = text_embedding.cosines(at_least_float32(found), texts, self.embedding)
                own_values = None
                if own is not None:
                    own_values = text_embedding.cosines(
                        at_least_float32(own.required_embedding()), texts, self.embedding
                    )
            trace = Trace.from_record(record, values, target, provenance, output=values.detach(), own_values=own_values)
            traces.append((trace, mirrored))
        (plain, _), *others = traces
        return plain.with_views(others)

    # Image search

    def remember(
        self,
        images: Any,
        *,
        refine: Refine = False,
        batch_size: int = BATCH_SIZE,
        workers: int | None = None,
        device: str | torch.device | None = None,
    ) -> Gallery:
        """Run each image once and keep its last block and its embedding, for `compare_many`.

        Args:
            images: The images, as the class docstring says.
            refine: Whether the earlier blocks are kept, too, by which maps are refined, as `classify` takes it. A
                gallery then takes several times the memory.
            batch_size: Images per forward.
            workers: Number of threads that decode.
            device: Where the gallery's tensors stay; by default the model's device.

        Returns:
            A Gallery of N images, which can be indexed, saved and loaded.

        Example:
            >>> gallery = lens.remember([photo, other])
            >>> len(gallery), gallery.embeddings.shape
            (2, torch.Size([2, 16]))
        """
        return retrieval.remember(self, images, refine=refine, batch_size=batch_size, workers=workers, device=device)

    def compare_many(
        self,
        queries: Any,
        gallery: Any,
        *,
        score: str | scores.PairScoreFunction = "cosine",
        method: str = "gam",
        n: int = 1,
        fuse: Fusion = "mean",
        lattice: str = "read",
        refine: Refine = False,
        sharp: bool = False,
        top: int | None = None,
        pairs: Sequence[tuple[int, int]] | None = None,
        batch_size: int = 64,
    ) -> PairExplanation:
        """Why are these similar? Explains many pairs of two sets of images, and runs each image only once.

        At n = 1, pairs of remembered images need neither a forward nor a backward if the embedding is the pooled last
        block. Otherwise each image is run once, with one backward through its last blocks per pair, while the graphs
        of all queries are held in memory.

        Args:
            queries: Images, as the class docstring says, or a Gallery.
            gallery: Images or a Gallery.
            score: As `compare` takes it.
            method: A name of METHODS.
            n: How many blocks the maps are made of. A Gallery holds one; for more, its images are run again.
            fuse, lattice, refine, sharp: As `classify` takes them. Images of a Gallery that was made without `refine`
                are run again to refine their maps. There are no views here.
            top: If given, each query is paired only with the `top` images of `gallery` that are most similar to it.
            pairs: If given, only these pairs are explained: (number of the query, number of the image in `gallery`).
                Without `top` and `pairs`, all pairs are.
            batch_size: Pairs or images that are worked on together.

        Returns:
            A PairExplanation with one row per pair, (P,H,W) on each side. `x.index` is the number of the query,
            `y.index` that of the image.

        Example:
            >>> found = lens.compare_many(photo, lens.remember([photo, other]), score="dot", top=1)
            >>> found.x.index.tolist(), len(found.y.index)
            ([0], 1)
        """
        refine, views = preset(sharp, refine, ())
        if views:
            raise GamlensError(f"sharp={sharp!r}: many pairs are explained without views: give sharp=True.")
        options = retrieval.PairOptions(
            score=score,
            method=method,
            n=n,
            fuse=fuse,
            lattice=lattice,
            refine=refine,
            top=top,
            pairs=pairs,
            batch_size=batch_size,
        )
        return retrieval.compare_many(self, queries, gallery, options)

    # The steps, one by one

    def prepare(self, images: Any, *, views: ViewList = ()) -> ModelInput:
        """Decode and transform images, one batch per view. Every call that takes images takes the result, too."""
        looks = Views.parse(views)
        if not isinstance(images, ModelInput):
            return prepare(images, self.transform, looks)
        if looks not in (PLAIN_VIEW, images.views):
            raise GamlensError("These images were prepared with other views: give views= to prepare alone.")
        return normalise_on(images, self.device) if images.pending_transform is not None else images

    def forward(
        self,
        images: Any,
        *,
        n: int | None = 0,
        method: MethodNames = "gam",
        embedding: bool = False,
        refine: Refine = False,
    ) -> ForwardRecord:
        """Run one forward of the plain view and keep the last n blocks, the embedding and the model's output.

        With n = 0 no block is kept and autograd records nothing; otherwise the kept tensors are part of a graph.

        Args:
            images: The images, as the class docstring says.
            n: How many blocks are kept, counted from the last; 0 for none, None for all.
            method: The method that maps shall be made by. It matters for two sorts: for input_gradient and
                guided_backprop the pixels are kept in place of blocks; for a method without gradients, such as vdsn,
                no graph is made.
            embedding: Whether the embeddings (B,D) are kept.
            refine: How maps shall be refined: the earlier blocks that this needs are kept, too (not with n = 0).
        """
        inputs = self.prepare(images)
        batch, wanted = inputs.batches[0], self._read_by(method, inputs)
        if n == 0 and all(entry.kind != "input" for entry in wanted):
            return self._hooked.forward_only(batch, embedding=embedding)
        return self._hooked.forward(batch, n, methods=wanted, embedding=embedding, refine=Refinement.parse(refine))

    def outputs(self, images: Any) -> Tensor:
        """The model's class scores (B,K), or whatever tensor `output=` picks: one forward, without a graph.

        >>> lens.outputs([photo, other]).softmax(1).shape
        torch.Size([2, 2])
        """
        return models.pick(self.forward(images).output, self._hooked.output).detach()

    def embed(self, images: Any) -> Tensor:
        """The embeddings (B,D) that pairs are compared by: one forward, without a graph.

        >>> lens.embed([photo, other]).shape
        torch.Size([2, 16])
        """
        return self.forward(images, embedding=True).required_embedding().detach()

    def _chosen(self, method: str, images: Any) -> str:
        """The method that "auto" stands for, which is found by the first of `images` where blocks are not known yet."""
        if method != BY_NETWORK:
            return method
        if self._hooked.known_blocks is None:
            self._hooked.model_blocks(self._hooked.to_model(self.prepare(images).batches[0]))
        return self.default_method

    def _read_by(self, method: MethodNames, inputs: ModelInput) -> tuple[Method, ...]:
        """The methods that a forward is for. "auto" stands for all that read blocks or attention, where there is some.

        Args:
            method: The name of a method, several names, or "auto".
            inputs: The images, by which the blocks are found where they are not known yet.
        """
        if method != BY_NETWORK:
            return (METHODS[method],) if isinstance(method, str) else tuple(METHODS[name] for name in method)
        default = self._chosen(BY_NETWORK, inputs)
        several = (methods.BLOCK_DEFAULT, *(methods.names("attention") if default != methods.BLOCK_DEFAULT else ()))
        found = [METHODS[name] for name in several]
        if not self._hooked.model_blocks().own_tokens:  # what only some networks have is left out
            found = [entry for entry in found if "own_gradient" not in entry.reads]
        return tuple(found)

    def _provenance(self, inputs: ModelInput, **asked: Any) -> Provenance:
        """What results carry along: the images, and how the maps were made (`self.about` with `asked` added to it)."""
        model = self._hooked.model
        place = next(chain(model.parameters(), model.buffers()), inputs.batches[0])  # which shows the device
        about = {**self.about, "device": str(place.device), **asked}
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
