"""Gallery: the last activations and embeddings of many images, as one model computed them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gamlens.capture.guard import unwrap
from gamlens.errors import GamlensError
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture
from gamlens.retrieval.embedding_form import OTHER_FORM

if TYPE_CHECKING:
    from gamlens.lens import Lens

TENSORS = {"activations": 4, "embeddings": 2, "scales": 1}  # the tensors of a gallery and their numbers of dimensions
IDENTITY = ("model", "block", "embedding", "precision", "fingerprint")  # entries of `about` that a lens must share
FINGERPRINT_VALUES = 64
FramedPicture = tuple[Picture, Frame]


@dataclass(frozen=True, eq=False)
class Gallery:
    """What one model computed for N images: their last blocks and embeddings. Made by `Lens.remember`.

    `Lens.compare_many` takes a Gallery in place of images, and then does not run them again at n = 1. It can be indexed
    (`gallery[:10]`, `gallery[[3, 5]]`), moved (`to`), saved and loaded.

    Attributes:
        activations: The last block, (N,C,h,w).
        embeddings: The vectors by which images are compared, (N,D).
        law: How the embedding is computed from the average m of the block over positions: "linear" (a constant times m,
            plus a constant), "unit" (m / |m|), or "other". For the first two, gradients follow from a formula.
        scales: The factor by which that formula multiplies the gradient of the score, one per image, (N,).
        size: The size of the model's input, (H,W).
        pictures: The images.
        frames: Where the model's input lies in each image.
        about: Model, weights, block, embedding, precision, and a fingerprint of the weights. `check` compares them with
            those of a lens.
        earlier: {block: (N,C,h,w)}: earlier blocks, by which maps are refined; {} unless asked for.

    Example:
        >>> gallery = lens.remember([photo, other])
        >>> len(gallery[:1]), gallery.law
        (1, 'linear')
        >>> found = lens.compare_many(gallery, gallery, score="dot", pairs=[(0, 1)])
    """

    activations: Tensor
    embeddings: Tensor
    law: str
    scales: Tensor
    size: tuple[int, int]
    pictures: Sequence[Picture]
    frames: tuple[Frame, ...]
    about: Mapping[str, str] = field(default_factory=dict)
    earlier: Mapping[str, Tensor] = field(default_factory=dict)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"earlier": {}, **state})  # a gallery that an older version pickled has none

    def __len__(self) -> int:
        return len(self.embeddings)

    def __repr__(self) -> str:
        size = self.nbytes / 2**20
        return f"<Gallery of {len(self)} by {self.about.get('model', '?')}, {self.law}: {size:.1f} MiB>"

    def __getitem__(self, rows: int | slice | Sequence[int] | Tensor) -> Gallery:
        """A Gallery of some of the images; a single number gives a Gallery of one."""
        every = torch.arange(len(self))
        try:
            keep = every[rows if isinstance(rows, int | slice) else torch.as_tensor(rows).cpu()].reshape(-1)
        except IndexError as error:
            raise IndexError(f"There is no image {rows}: the gallery has {len(self)} images.") from error
        at = keep.to(self.embeddings.device)
        pictures = tuple(self.pictures[number] for number in keep.tolist())
        frames = tuple(self.frames[number] for number in keep.tolist())
        return replace(self, **self._changed(lambda tensor: tensor[at]), pictures=pictures, frames=frames)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*(getattr(self, name) for name in TENSORS), *self.earlier.values()))

    def to(self, device: str | torch.device) -> Gallery:
        """The same Gallery with its tensors on another device.

        Images that were given as tensors are moved only to the CPU, never to a GPU.
        """
        to_cpu = torch.device(device).type == "cpu"
        pictures = tuple(picture.cpu() for picture in self.pictures) if to_cpu else self.pictures
        return replace(self, **self._changed(lambda tensor: tensor.to(device)), pictures=pictures)

    def save(self, path: str) -> str:
        """Write the gallery to one .npz file, without pickle, and return the path.

        Images that were read from files are stored as paths, all others with their pixels.
        """
        from gamlens.retrieval.gallery_file import save

        return save(self, path)

    @classmethod
    def load(cls, path: str) -> Gallery:
        """Read back what `save` wrote, onto the CPU."""
        from gamlens.retrieval.gallery_file import load

        return load(path)

    def check(self, lens: Lens | Mapping[str, str]) -> None:
        """Raise an error if another model, other weights, another block or precision made this gallery.

        In place of a lens, the `about` of a gallery that it made may be given.
        """
        asked_of = lens if isinstance(lens, Mapping) else lens_identity(lens)
        for name in IDENTITY:
            own, asked = self.about.get(name), asked_of.get(name)
            if own is not None and asked is not None and own != asked:
                raise GamlensError(
                    f"This gallery was made with {name} {own!r}, and this lens has {asked!r}"
                    + (": its weights are others, or have changed since" if name == "fingerprint" else "")
                    + ". Remember the images again with this lens."
                )

    def _changed(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in TENSORS}
        return {**changed, "earlier": {name: change(block) for name, block in self.earlier.items()}}


def join_galleries(parts: Sequence[Gallery]) -> Gallery:
    """One gallery of the images of all parts, in order. Its `law` is "other" if the laws of the parts differ."""
    if not parts:
        raise GamlensError("There is no image to remember.")
    if len(sizes := {part.size for part in parts}) > 1:
        raise GamlensError(
            f"The images of a gallery must have the same size after the transform; found {sorted(sizes)}."
        )
    tensors: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in TENSORS}
    return replace(
        parts[0],
        **tensors,
        earlier={name: torch.cat([part.earlier[name] for part in parts]) for name in parts[0].earlier},
        law=parts[0].law if len({part.law for part in parts}) == 1 else OTHER_FORM,
        pictures=tuple(picture for part in parts for picture in part.pictures),
        frames=tuple(frame for part in parts for frame in part.frames),
    )


def lens_identity(lens: Lens) -> dict[str, str]:
    """What a gallery records of the lens that made it. Block and embedding are there once the lens knows them."""
    identity = {"model": lens.name, "weights": lens.weights, "precision": lens.precision}
    identity["fingerprint"] = fingerprint(unwrap(lens.model))
    return {**identity, "block": lens.blocks[-1], "embedding": lens.embedding} if lens.knows_blocks else identity


def fingerprint(model: nn.Module) -> str:
    """A hash of up to 64 values of every parameter and buffer, spread over it, and of their types and shapes."""
    modules = list(model.modules())  # once: model.parameters() and model.buffers() take milliseconds, of every query
    own = chain((m._parameters.values() for m in modules), (m._buffers.values() for m in modules))
    every = {id(t): t for t in chain.from_iterable(own) if t is not None}  # shared ones count once
    tensors = [t.detach() for t in every.values() if t.is_floating_point() and t.numel()]
    picked = [_spread_values(t) for t in tensors]
    digest = hashlib.sha256(",".join(f"{t.dtype}{tuple(t.shape)}" for t in tensors).encode())
    if picked:
        if len({t.dtype for t in picked}) > 1:  # cat refuses float8 beside another type
            picked = [t.double() for t in picked]
        digest.update(torch.cat(picked).double().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _spread_values(t: Tensor) -> Tensor:
    """Up to FINGERPRINT_VALUES values of a tensor, at equal distances in the order of its dimensions; no copy of it."""
    count = t.numel()
    step = max(1, count // FINGERPRINT_VALUES)
    if t.is_contiguous():
        return t.as_strided((min(FINGERPRINT_VALUES, -(-count // step)),), (step,), t.storage_offset())
    places = torch.arange(0, count, step, device=t.device)[:FINGERPRINT_VALUES]
    return t[torch.unravel_index(places, t.shape)]


def weights_sha256(model: nn.Module) -> str:
    """The sha256 of the names and values of a model's state, which tells two models of one name apart."""
    found = hashlib.sha256()
    for name, value in model.state_dict().items():
        found.update(name.encode())
        if isinstance(value, Tensor):
            found.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
