"""`HookedModel`: finds once which layers of a model are blocks, and runs forwards that keep what these compute."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gamlens.capture.attention import AT_ATTENTION, AT_TOKENS, AttentionRecord, AttentionTap, SkippedLayers, layer_name
from gamlens.capture.forward import BY_NETWORK, ForwardRecord, last_layers, run_forward
from gamlens.capture.guard import ModelGuard, outside_inference_mode, unwrap
from gamlens.capture.hooks import has_output_module
from gamlens.capture.layer_points import OUTPUT, PIXELS, LayerPoint, TokenGrid
from gamlens.capture.nonblocking import finite
from gamlens.capture.tail import NetworkTail
from gamlens.errors import GamlensError, Registry, warn
from gamlens.lattice import Lattice
from gamlens.methods import Method
from gamlens.models.discovery.discover import NetworkLayout
from gamlens.models.discovery.lattices import read_positions
from gamlens.models.discovery.model_blocks import ModelBlocks, find_blocks, points_named, token_grids
from gamlens.models.network import Output, pick
from gamlens.refine import Refinement

if TYPE_CHECKING:
    from gamlens.compiled import Program

MOST_SIZES = 64  # of how many input sizes lattices are remembered
MOST_PROGRAMS = 16  # how many compiled programs are kept, one per input size and choice of blocks
PRECISIONS: dict[str, torch.dtype | None] = Registry(
    "precision", {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
)


class HookedModel:
    """A model, and the layers where it is read: the blocks and the embedding, named by the user or found."""

    def __init__(
        self,
        model: nn.Module,
        name: str,
        *,
        blocks: Sequence[str] | None = None,
        embedding: str | None = None,
        output: Output = None,
        precision: str = "fp32",
        compile: bool = False,
    ) -> None:
        self.model, self.guard, self.name = model, ModelGuard(unwrap(model)), name
        self.output, self.precision, self.dtype = output, precision, PRECISIONS[precision]
        self.named_blocks = points_named(self.inner, blocks)
        place = points_named(self.inner, [embedding] if embedding is not None else None)
        self.named_embedding = place[0] if place else None
        self.known_blocks: ModelBlocks | None = None
        self.compile = compile
        self._programs: dict[Any, Program | None] = {}  # None: the model cannot be compiled for this key
        self._grids: dict[tuple[int, int], Mapping[str, TokenGrid]] = {}
        self._lattices: dict[tuple[int, int], dict[str, Lattice | None]] = {}  # by size of the input and block
        self._read_everywhere: set[LayerPoint] = set()  # blocks of which every position is read, at any size
        self._probed_weights = (0, 0)  # the state of the weights that `_lattices` were found with

    def with_model(self, model: nn.Module) -> HookedModel:
        """The same for another copy of the model: the same blocks and embedding are read there."""
        other = copy.copy(self)
        other.model, other.guard, other._programs = model, ModelGuard(unwrap(model)), {}
        other._lattices, other._read_everywhere = {}, set(self._read_everywhere)
        return other

    def compiled(self) -> HookedModel:
        """The same on the same model, whose forwards are compiled."""
        other = copy.copy(self)
        other.compile, other._programs = True, {}
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_programs": {}}  # compiled programs cannot be pickled; they are built again

    # What is known about the model

    @property
    def inner(self) -> nn.Module:
        """The network inside wrappers such as nn.DataParallel."""
        return self.guard.model

    @property
    def embedding(self) -> LayerPoint:
        """Where the embedding is read, the vector by which two images are compared."""
        return self.named_embedding or LayerPoint.parse(self.layout.embedding)

    @property
    def layout(self) -> NetworkLayout:
        """What discovery found in the network: its stages and its embedding."""
        layout = self.model_blocks().layout
        if layout is None:
            raise GamlensError(
                "The layers of this model could not be found automatically, so its embedding is not known: name it "
                "as well, as in Lens(model, blocks=[...], embedding='fc:input')."
            )
        return layout

    def model_blocks(self, batch: Tensor | None = None) -> ModelBlocks:
        """The blocks that are read. They are found by running the first `batch` (B,C,H,W), and known from then on."""
        if self.known_blocks is None:
            if batch is None:
                raise GamlensError("The blocks are not known yet: they are found when the first image comes.")
            self.known_blocks = find_blocks(self.inner, batch[:1].detach(), asked=self.named_blocks, output=self.output)
        return self.known_blocks

    def find_blocks_at(self, size: tuple[int, int]) -> None:
        """Find the blocks now, by running the model on an image of zeros of `size` (H,W).

        If the model fails on it, the blocks stay unknown until the first real image comes.
        """
        for image in self._blank_images(size):
            with suppress(GamlensError, torch.OutOfMemoryError):
                found = self.model_blocks(image)
                self._lattices_at(image, found, found.points)
                break

    def _blank_images(self, size: tuple[int, int]) -> Iterator[Tensor]:
        """Images of zeros (1,C,H,W) to try the model on: with as many channels as its first convolution has, then 3."""
        like = self.reference_tensor(torch.empty(0))
        first = next((layer for layer in self.inner.modules() if isinstance(layer, nn.Conv2d)), None)
        for channels in dict.fromkeys((first.in_channels if first is not None else 3, 3)):
            yield torch.zeros(1, channels, *size, device=like.device, dtype=like.dtype)

    def reference_tensor(self, other: Tensor) -> Tensor:
        """A parameter or buffer that shows the model's device and dtype; `other` if none is of floating point."""
        for tensor in chain(self.model.parameters(), self.model.buffers()):
            if tensor.is_floating_point():
                return tensor
        return other

    # One forward

    def to_model(self, batch: Tensor) -> Tensor:
        """The batch (B,C,H,W) on the model's device and in its dtype."""
        like = self.reference_tensor(batch)
        batch = batch.to(like.device, like.dtype)
        if batch.is_cuda and self.dtype is not None:
            batch = batch.contiguous(memory_format=torch.channels_last)  # faster convolutions in half precision
        return batch

    def forward(
        self,
        batch: Tensor,
        n: int | str | None,
        *,
        methods: Sequence[Method] = (),
        embedding: bool = False,
        refine: Refinement | None = None,
    ) -> ForwardRecord:
        """Run one forward of `batch` (B,C,H,W) that keeps what methods read, and check that it is finite.

        Args:
            n: How many blocks, and attention layers, are kept, counted from the last; None for all, "auto" for two
                blocks and all attention layers.
            methods: The methods that the forward is for. For a method of kind "input", the pixels are kept in place of
                blocks; for methods of kind "attention" alone, attention layers. For a method that needs no gradient,
                there is no graph. None given stands for any method of kind "block" that reads a gradient.
            embedding: Whether the embedding (B,D) is kept, too.
            refine: How maps will be refined. The blocks that this needs and that are not among the last n are kept
                without a graph.
        """
        batch = self.to_model(batch)
        found = self.model_blocks(batch)
        graph, reads_blocks, layers = not methods, not methods, []
        method = methods[0] if methods else None
        for entry in methods:
            graph = graph or entry.needs_gradient
            if entry.kind == "attention":
                layers.append(entry)
            else:
                reads_blocks = True
        if method is not None and method.kind == "input":
            if refine is not None:
                raise GamlensError(
                    f"{method.title} reads the pixels, not blocks, so its maps cannot be refined: leave refine out."
                )
            record = self._run(batch, found, (PIXELS,), method, embedding, graph)
            record.method = method
        else:
            points = last_layers(found.points, n) if reads_blocks else ()
            lattices = self._lattices_at(batch, found, points)  # before a graph takes memory
            earlier = [point for point in refine.choose(found.points) if point not in points] if refine else []
            kept = tuple(reversed(earlier))
            if layers:
                record = self._run_attention(batch, found, points, n, layers, embedding, kept)
            else:
                record = self._run(batch, found, points, None, embedding, graph, kept)
            record.lattices, record.network_blocks = lattices, tuple(map(attrgetter("name"), found.points))
            record.tail = partial(self.tail, batch.detach(), found) if embedding else None
        kept_tensors = {**record.earlier_activations, **record.activations}
        if record.attention is not None:
            kept_tensors |= _last_tokens(record.attention)
        if kept_tensors:
            check = finite(kept_tensors, partial(_say_not_finite, self.name))
            record.checks = record.checks.with_check(check, batch.device)
        return record

    def forward_only(self, batch: Tensor, *, embedding: bool = False) -> ForwardRecord:
        """One forward of `batch` (B,C,H,W) that keeps no block, and so no graph."""
        batch = self.to_model(batch)
        return self._run(batch, self.model_blocks(batch), (), None, embedding, graph=False)

    def tail(self, batch: Tensor, found: ModelBlocks) -> NetworkTail:
        """The part of the network after its last block, up to the embedding, for the images `batch` (B,C,H,W).

        If the last block lies inside a transformer layer, beside which the residual connection runs, the tail begins
        with that whole layer.
        """
        point, grids = found.points[-1], self._grids_at(batch, found)
        grid = grids.get(point.name)
        for layer in found.layers[-1:]:
            if point.module.startswith(f"{layer.module}."):
                point, grid = LayerPoint(layer.module, reads_input=True, tokens=True), grids[layer.name]
        whole = self.embedding.name == OUTPUT and not has_output_module(self.inner)
        return NetworkTail(
            guard=self.guard,
            point=point,
            embedding=None if whole else self.embedding,
            pick=partial(pick, how=self.output),
            images=batch,
            grid=grid,
        )

    def _run_attention(
        self,
        batch: Tensor,
        found: ModelBlocks,
        points: Sequence[LayerPoint],
        n: int | str | None,
        methods: Sequence[Method],
        embedding: bool,
        earlier: tuple[LayerPoint, ...],
    ) -> ForwardRecord:
        """Run a forward that keeps attention layers for `methods`, and blocks where `points` names some.

        A graph begins at the attention of the first layer; at the tokens of the last one if only "pooled" is needed.
        """
        if not found.layers:
            raise GamlensError(
                f"{methods[0].title} reads the attention of a transformer, and that of {self.name} cannot be read: "
                f"{found.no_attention or 'it has no transformer layers of one resolution'}. Use a method that reads "
                "blocks, such as method='gam'."
            )
        needs = frozenset(chain.from_iterable(method.reads for method in methods))
        wanted = [point.module for point in last_layers(found.layers, None if n == BY_NETWORK else n)]
        grid = self._grids_at(batch, found)[found.layers[-1].name]
        tap = AttentionTap(self.inner, wanted, graph=AT_ATTENTION if needs - {"attention", "pooled"} else AT_TOKENS)
        record = self._run(batch, found, points, None, embedding, True, earlier, tap)
        record.attention = AttentionRecord({layer_name(name): tap.layers[name] for name in wanted}, grid, needs)
        if "own_gradient" in needs:
            self._run_own(batch, found, embedding, record.attention, tap)
        return record

    def _run_own(
        self, batch: Tensor, found: ModelBlocks, embedding: bool, attention: AttentionRecord, tap: AttentionTap
    ) -> None:
        """Apply the network's last norm, pooling and head to the tokens of every layer, for the scores of LeGrad."""
        if not found.own_tokens:
            raise GamlensError(
                f"The head of {self.name} cannot be applied to the tokens of every layer, which LeGrad needs: use "
                "attention_gam or chefer."
            )
        tokens = [layer.kept_tokens().detach() for layer in attention.layers.values()]
        attention.own = torch.cat(tokens).requires_grad_(True)
        modules = [point.module for point in found.layers]
        during = SkippedLayers(self.inner, modules, attention.own, modules if tap.tuples else ())  # all return alike
        attention.own_record = self._run(batch, found, (), None, embedding, True, during=during)

    def _run(
        self,
        batch: Tensor,
        found: ModelBlocks,
        points: Sequence[LayerPoint],
        method: Method | None,
        embedding: bool,
        graph: bool,
        earlier: tuple[LayerPoint, ...] = (),
        attention: AttentionTap | None = None,
        during: SkippedLayers | None = None,
    ) -> ForwardRecord:
        """Run the forward itself, compiled or plain.

        Args:
            batch: The images (B,C,H,W). A model that writes to its input is given a copy.
            found: The blocks of the model.
            points: Which tensors are kept.
            method: A method of kind "input", whose `during` context the forward runs under; None for all others.
            embedding: Whether the embedding is kept, too.
            graph: Whether autograd records what follows the first of `points`.
            earlier: Which blocks before `points` are kept, too, outside of the graph.
            attention: Keeps attention layers. A forward with it, or with `during`, is never compiled.
            during: Replaces transformer layers for the forward, whose output then has more rows than the batch.
        """
        batch = batch.clone() if found.writes_input else batch
        # `whole`: the embedding is what the model returns. No hook reads it; `_embedding` takes it from the output.
        place = self.embedding if embedding else None
        whole = place is not None and place.name == OUTPUT and not has_output_module(self.inner)
        read = None if whole else place
        grids = self._grids_at(batch, found)
        record = None
        if self.compile and method is None and attention is None and during is None:
            record = self._run_compiled(batch, points, read, grids, graph, earlier)
        if record is None:
            context = method.during() if method is not None else during
            record = run_forward(
                self.guard, batch, points, embedding=read, precision=self.dtype, during=context, grids=grids,
                graph=graph, earlier=earlier, attention=attention,
            )  # fmt: skip
        if place is not None:
            rows = batch.shape[0] if during is None else len(during.tokens)
            record.embedding = self._embedding(record, whole, rows)
        return record

    def _embedding(self, record: ForwardRecord, whole: bool, count: int) -> Tensor:
        """The embedding as one vector per image, (B,D), in the record's graph.

        Args:
            record: The forward.
            whole: Whether the embedding is the model's output; otherwise a hook has read it.
            count: The number of images, B.
        """
        with outside_inference_mode(), torch.enable_grad():
            found = pick(record.output, self.output) if whole else record.embedding
            if found is None or found.shape[:1] != (count,) or found.numel() == 0:
                raise GamlensError(
                    f"The embedding {self.embedding.name!r} gives no vector per image: name another layer."
                )
            return found.flatten(1)

    def picked(self, record: ForwardRecord) -> Any:
        """What a callable score is given: the model's output, or the part of it that `output=` picks."""
        return record.output if self.output is None else pick(record.output, self.output)

    def class_scores(self, record: ForwardRecord, count: int | None = None) -> Tensor:
        """The class scores (B,K) in the model's output; an error if they have another shape, or not `count` rows."""
        output: Tensor = record.output
        if self.output is not None or not isinstance(output, Tensor):
            output = pick(output, self.output)
        if output.ndim != 2 or output.shape[0] != (count or output.shape[0]) or not output.is_floating_point():
            raise GamlensError(
                f"The output has the shape {tuple(output.shape)}; class scores are ({count}, classes). Pick them with "
                "output=, or give score= a callable on the output that returns one number per image."
            )
        return output

    def _run_compiled(
        self,
        batch: Tensor,
        points: Sequence[LayerPoint],
        embedding: LayerPoint | None,
        grids: Mapping[str, TokenGrid],
        graph: bool,
        earlier: tuple[LayerPoint, ...],
    ) -> ForwardRecord | None:
        """One forward by a compiled program, built when it is first needed; None if the model cannot be compiled."""
        from gamlens import compiled

        # A program that was traced with one image takes only one; others take any number, if the model allows it.
        key = (tuple(points), earlier, embedding, len(batch) == 1, batch.shape[1:], batch.dtype, batch.device)
        try:
            with self.guard.exclusive():  # no other thread's forward has hooks on the model meanwhile
                program = self._programs.get(key)
                if key in self._programs and program is None:
                    return None
                if program is None and len(list(filter(None, self._programs.values()))) >= MOST_PROGRAMS:
                    raise compiled.Unsupported(f"{MOST_PROGRAMS} programs for other sizes or blocks exist already")
                if program is None or not program.fits(batch):
                    program = compiled.build(
                        self.guard, batch, points, embedding=embedding, precision=self.dtype, earlier=earlier
                    )
                    self._programs[key] = program
                    if not program.fits(batch):
                        raise compiled.Unsupported(f"what it runs depends on the number of images, here {len(batch)}")
                return program.run(batch, precision=self.dtype, grids=grids, graph=graph)
        except (GamlensError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a compiler says, the plain model is there
            self._programs[key] = None
            warn(f"compile=True: {self.name} runs as it is, not compiled: {compiled.reason(error)}")
            return None

    def _grids_at(self, batch: Tensor, found: ModelBlocks) -> Mapping[str, TokenGrid]:
        """For blocks of tokens, where in an image of this batch's size each token lies: found once per size."""
        size = (int(batch.shape[-2]), int(batch.shape[-1]))
        if not found.grids or size == found.size:
            return found.grids
        if size not in self._grids:
            points = dict.fromkeys((*found.points, *found.layers))
            self._grids[size] = token_grids(self.inner, batch[:1].detach(), tuple(points))
        return self._grids[size]

    # Blocks of which only some rows and columns are read

    def lattices(self, size: tuple[int, int]) -> Mapping[str, Lattice]:
        """The blocks of which the network reads a lattice only, at an input size (H,W); {} if blocks are not known."""
        if self.known_blocks is None:
            return {}
        for image in self._blank_images(size):
            with suppress(GamlensError):
                return self._lattices_at(image, self.known_blocks, self.known_blocks.points)
        return {}

    def _lattices_at(self, batch: Tensor, found: ModelBlocks, points: Sequence[LayerPoint]) -> Mapping[str, Lattice]:
        """Of which of the blocks `points` the network reads a lattice only: found once per block and input size.

        Which positions are read follows from the layers, and from weights only where these are zero. So what was found
        of a block that is read everywhere holds for every size and for other weights, too; lattices are looked for
        again when weights have changed.
        """
        if self._read_everywhere.issuperset(points):
            return {}
        size = (int(batch.shape[-2]), int(batch.shape[-1]))
        if (state := self._weights_state()) != self._probed_weights or len(self._lattices) > MOST_SIZES:
            self._lattices, self._probed_weights = {}, state
        known = self._lattices.setdefault(size, {})
        if wanted := [point for point in points if point not in self._read_everywhere and point.name not in known]:
            read = read_positions(self.guard, batch, wanted, self._grids_at(batch, found))
            known |= {name: positions.lattice for name, positions in read.items()}
            everywhere = {name for name, positions in read.items() if positions.everywhere}
            self._read_everywhere |= {point for point in wanted if point.name in everywhere}
        return {point.name: lattice for point in points if (lattice := known.get(point.name)) is not None}

    def _weights_state(self) -> tuple[int, int]:
        """The number of weights and how often they were changed in place, by which a change is noticed."""
        versions = [weight._version for weight in self.model.parameters() if not weight.is_inference()]
        return len(versions), sum(versions)


def _last_tokens(attention: AttentionRecord) -> dict[str, Tensor]:
    """What the last kept transformer layer returned, by name: values that are not finite in earlier ones reach it."""
    name, layer = list(attention.layers.items())[-1]
    return {name: layer.kept_tokens().detach()}


def _say_not_finite(model: str, block: str) -> str:
    return (
        f"Block {block!r} of {model} has values that are not finite: are there NaN or infinite weights, or pixels, or "
        "does half precision overflow?"
    )
