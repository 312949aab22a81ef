"""One forward of every image: remembered, or held with its graph for the backwards to come."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from itertools import chain
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from gamlens.capture.forward import ForwardRecord
from gamlens.errors import GamlensError
from gamlens.inputs.batch import ModelInput
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture, pictures
from gamlens.methods import Method
from gamlens.retrieval.embedding_form import OTHER, find_law
from gamlens.retrieval.gallery import Gallery
from gamlens.streaming.prefetch import ahead, grouped
from gamlens.trace import Provenance

SAMPLED = 64
Depth = int | Method
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Glance:
    """One forward of B images: its tail, and the embeddings (B,D) in its graph."""

    tail: ForwardRecord
    embeddings: Tensor
    size: tuple[int, int]
    pictures: Sequence[Picture]
    frames: tuple[Frame, ...]


@dataclass(frozen=True, eq=False)
class Eye:
    """What a lens lends for looking at many images: decoding, one forward, and what it is."""

    load: Callable[[list[Picture]], ModelInput]
    look: Callable[[ModelInput, Depth], Glance]
    key: Callable[[], dict[str, str]]
    origin: Callable[[], Provenance]
    device: torch.device


def plainly(fn: Callable[P, T]) -> Callable[P, T]:
    """The function without a graph, making tensors that can be used in one, whatever surrounds the call."""

    @wraps(fn)
    def inner(*args: P.args, **options: P.kwargs) -> T:
        with torch.inference_mode(False), torch.no_grad():
            return fn(*args, **options)

    return inner


def glances(
    eye: Eye, images: Iterable[Picture], depth: Depth, batch: int, workers: int | None = None
) -> Iterator[Glance]:
    """One forward a batch, while the next ones are decoded."""
    for _, ready in ahead(eye.load, grouped(images, batch), threads=workers):
        yield eye.look(ready, depth)


@plainly
def remember(
    eye: Eye, images: Any, *, batch_size: int, workers: int | None = None, device: str | torch.device | None = None
) -> Gallery:
    """Last activations and embeddings of every image, on `device` (the model's by default)."""
    if batch_size < 1:
        raise GamlensError(f"batch_size={batch_size}: give at least 1.")
    place = eye.device if device is None else torch.device(device)
    parts = [_part(glance).to(place) for glance in glances(eye, pictures(images), 1, batch_size, workers)]
    return replace(_joined(parts), about=eye.key())


@plainly
def remember_readable(
    eye: Eye, images: Any, told: Callable[[Picture, GamlensError | None], None], *, batch_size: int
) -> Gallery:
    """The same on the CPU, without the images that cannot be read; `told` hears of every image, and of its error."""
    parts = []
    for group, (ready, bad) in ahead(partial(_readable, eye), grouped(pictures(images), batch_size)):
        if ready is not None:
            parts.append(_part(eye.look(ready, 1)).to("cpu"))
        for picture in group:
            told(picture, bad.get(picture))
    return replace(_joined(parts), about=eye.key())


def _readable(eye: Eye, group: list[Picture]) -> tuple[ModelInput | None, dict[Picture, GamlensError]]:
    """The images of a group that can be read, and what is wrong with the others."""
    bad: dict[Picture, GamlensError] = {}
    try:
        return eye.load(group), bad
    except GamlensError:
        for picture in group:
            try:
                eye.load([picture])
            except GamlensError as error:
                bad[picture] = error
        if not bad:
            raise
    good = [picture for picture in group if picture not in bad]
    return (eye.load(good) if good else None), bad


def gathered(eye: Eye, held: Sequence[Glance]) -> Gallery:
    """What is held, as a gallery."""
    return replace(_joined([_part(glance) for glance in held]), about=eye.key())


def _part(glance: Glance) -> Gallery:
    law, scales = find_law(glance.tail, glance.embeddings)
    block = list(glance.tail.activations().values())[-1]
    return Gallery(block, glance.embeddings.detach(), law, scales, glance.size, glance.pictures, glance.frames)


def _joined(parts: Sequence[Gallery]) -> Gallery:
    if not parts:
        raise GamlensError("There is no image to remember.")
    if len(sizes := {part.size for part in parts}) > 1:
        raise GamlensError(f"The images of a gallery must come out at one size; found {sorted(sizes)}.")
    laws = {part.law for part in parts}
    return replace(
        parts[0],
        activations=torch.cat([part.activations for part in parts]),
        embeddings=torch.cat([part.embeddings for part in parts]),
        law=laws.pop() if len(laws) == 1 else OTHER,
        scales=torch.cat([part.scales for part in parts]),
        pictures=tuple(picture for part in parts for picture in part.pictures),
        frames=tuple(frame for part in parts for frame in part.frames),
    )


def fingerprint(model: nn.Module) -> str:
    """A hash of up to 64 numbers of every parameter and buffer, spread over it, and of their types."""
    tensors = [t.detach() for t in chain(model.parameters(), model.buffers()) if t.is_floating_point() and t.numel()]
    picked = [t.reshape(-1)[:: max(1, t.numel() // SAMPLED)][:SAMPLED].double() for t in tensors]
    digest = hashlib.sha256(",".join(f"{t.dtype}{tuple(t.shape)}" for t in tensors).encode())
    if picked:
        digest.update(torch.cat(picked).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
