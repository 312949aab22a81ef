"""The tail of a network: the part after a block, run by itself on any activations of that block.

The model runs on one blank image, and a hook puts the given rows in the place of what the block computed. So the layers
before the block run on one image only, however many rows follow, and every layer after it sees just these rows.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gamlens.capture.guard import ModelGuard, forward_error
from gamlens.capture.hooks import TensorTap
from gamlens.capture.layer_points import LayerPoint, TokenGrid
from gamlens.errors import GamlensError

# Forward-mode derivatives have one level, and attention one choice of kernels, for the whole process.
_FORWARD_MODE_LOCK = threading.RLock()


@dataclass(eq=False)
class NetworkTail:
    """The part of a network from a block to the embedding.

    Attributes:
        guard: Holds the network.
        point: The block.
        embedding: Where the embedding is read; None if it is what the network returns.
        pick: Picks the embedding from what the network returns.
        images: The images (B,C,H,W) of the forward that the tail belongs to.
        grid: If the block consists of tokens, which token lies where in the image.
        forwards: How many times the network was run so far.
        row_bytes: The size of the largest tensor that the tail computes of one row, once `embed_measured` has run.
        repeats: Whether the blank image is repeated once per row, because the network remembers the number of images.
    """

    guard: ModelGuard
    point: LayerPoint
    embedding: LayerPoint | None
    pick: Callable[[Any], Tensor]
    images: Tensor
    grid: TokenGrid | None = None
    forwards: int = 0
    row_bytes: int = 0
    repeats: bool = field(default=False, repr=False)

    @property
    def blank(self) -> Tensor:
        """An image (1,C,H,W) of the mean colour: zeros, since images are normalised."""
        return torch.zeros_like(self.images[:1])

    def activation(self, image: Tensor) -> Tensor:
        """What the block computes of one image (1,C,H,W): one row (...), laid out as in the network."""
        found: list[Tensor] = []

        def take(point: LayerPoint, tensor: Tensor, in_place: bool) -> Tensor:
            found.append(tensor.detach().clone())
            return tensor

        with self._held(take, [self.point]):
            self._run(image)
        if not found:
            raise GamlensError(f"Block {self.point.name!r} did not run in this forward: name another block.")
        return found[0][0]

    def embed(self, rows: Tensor) -> Tensor:
        """The embeddings (N,D) of N rows of the block, laid out as in the network."""
        return self._embed(rows)

    def embed_measured(self, row: Tensor) -> Tensor:
        """The embedding (1,D) of one row (1,...), computed as `jvp` computes it; sets `row_bytes`."""
        with _plain_attention():
            return self._embed(row, measured=True)

    def jvp(self, rows: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings (N,D), and how each changes along its tangent: the Jacobian at a row times the tangent.

        Args:
            rows: N rows of the block, laid out as in the network.
            tangents: The direction for each row, of the same shape.
        """
        try:
            with _plain_attention(), forward_mode.dual_level(), _without_torch_warnings():
                embedding = self._embed(forward_mode.make_dual(rows, tangents))  # type: ignore[no-untyped-call]
                primal, tangent = forward_mode.unpack_dual(embedding)  # type: ignore[no-untyped-call]
                primal = primal.clone()
                return primal, torch.zeros_like(primal) if tangent is None else tangent.clone()
        except NotImplementedError as error:
            raise GamlensError(
                "A layer after the last block has no forward-mode derivative, which splitting the embedding over "
                f"positions needs: {str(error).splitlines()[0]} Give Lens(embedding=...) a layer before it."
            ) from error

    def _embed(self, rows: Tensor, *, measured: bool = False) -> Tensor:
        count, problem = len(rows), None
        for repeats in (False, True) if not self.repeats else (True,):
            try:
                found = self._embedded(rows, count if repeats else 1, measured=measured)
            except (GamlensError, NotImplementedError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - a model may fail in any way if the number of images changes
                problem = error
                continue
            if found is not None and found.shape[:1] == (count,):
                self.repeats = repeats
                return found.flatten(1)
        what = f"{count} activations of block {self.point.name!r} in place of its own"
        if problem is not None:
            raise forward_error(what, problem) from problem
        raise GamlensError(f"The model gave no embedding for {what}: name another block, or another embedding= layer.")

    def _embedded(self, rows: Tensor, images: int, *, measured: bool = False) -> Tensor | None:
        """Run the network on `images` blank images, with `rows` in place of the block: the embedding that was read."""
        found: list[Tensor] = []
        sizes = _LargestTensor(self.guard.model)

        def take(point: LayerPoint, tensor: Tensor, in_place: bool) -> Tensor:
            if point == self.point:
                tensor, sizes.bytes = rows.clone(), 0  # what came before does not grow with the rows
            if point == self.embedding:
                found.append(tensor.clone())  # a later layer may write to it, such as a ReLU in place
            return tensor

        wanted = [self.point] if self.embedding is None else [self.point, self.embedding]
        with self._held(take, wanted), sizes if measured else nullcontext():
            output = self._run(self.blank.repeat(images, 1, 1, 1))
            self.row_bytes = max(self.row_bytes, sizes.bytes)
            return self.pick(output) if self.embedding is None else found[-1] if found else None

    @contextmanager
    def _held(self, take: Callable[[LayerPoint, Tensor, bool], Tensor], wanted: list[LayerPoint]) -> Iterator[None]:
        with self.guard.hold(), TensorTap(self.guard.model, list(dict.fromkeys(wanted)), take).attached():
            yield

    def _run(self, images: Tensor) -> Any:
        self.forwards += 1
        return self.guard.model(images)


class _LargestTensor(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation returns, as `bytes`.

    Views of the model's parameters and buffers, such as a transposed weight, do not count: they do not grow with the
    number of rows.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self._weights = {own.untyped_storage().data_ptr() for own in chain(model.parameters(), model.buffers())}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        made = (own for own in tree_leaves(found) if isinstance(own, Tensor))
        sizes = (
            own.numel() * own.element_size() for own in made if own.untyped_storage().data_ptr() not in self._weights
        )
        self.bytes = max(self.bytes, *sizes, 0)
        return found


@contextmanager
def _without_torch_warnings() -> Iterator[None]:
    """Hide what PyTorch says of itself when it loads its forward-mode derivatives, which no user can act on."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch\.jit.* is deprecated", category=FutureWarning)
        warnings.filterwarnings("ignore", message=r".*torch\.jit.* is deprecated", category=DeprecationWarning)
        yield


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Compute attention by plain operations, each of which has a forward-mode derivative. One thread at a time."""
    with _FORWARD_MODE_LOCK, ExitStack() as stack:
        fast = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
        yield
