"""Images as one model saw them, remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gamlens.errors import GamlensError
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture


@dataclass(frozen=True, eq=False)
class Gallery:
    """N images as one model sees them: activations of the last block (N,C,h,w) and embeddings (N,D), by file name.

    `law` says how the embedding follows from the block, found by its gradients: "linear", a constant times the
    average; "unit", the average brought to length 1; "other". `scales` (N,) are that law's factors, d embedding / d
    position. `about` names model, weights, block, embedding, precision and a fingerprint of the weights.
    """

    activations: Tensor
    embeddings: Tensor
    law: str
    scales: Tensor
    size: tuple[int, int]
    pictures: Sequence[Picture]
    frames: tuple[Frame, ...]
    about: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.embeddings)

    def __repr__(self) -> str:
        size = self.nbytes / 2**20
        return f"<Gallery of {len(self)} by {self.about.get('model', '?')}, {self.law}: {size:.1f} MiB>"

    def __getitem__(self, rows: int | slice | Sequence[int] | Tensor) -> Gallery:
        """Some of the images; one number keeps its row dimension."""
        every = torch.arange(len(self))
        try:
            keep = every[rows if isinstance(rows, int | slice) else torch.as_tensor(rows).cpu()].reshape(-1)
        except IndexError as error:
            raise IndexError(f"image {rows} of {len(self)}") from error
        at = keep.to(self.embeddings.device)
        return replace(
            self,
            activations=self.activations[at],
            embeddings=self.embeddings[at],
            scales=self.scales[at],
            pictures=tuple(self.pictures[number] for number in keep.tolist()),
            frames=tuple(self.frames[number] for number in keep.tolist()),
        )

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.activations, self.embeddings, self.scales))

    def to(self, device: str | torch.device) -> Gallery:
        """The same with its tensors on another device; images given as tensors come along to the CPU."""
        home = torch.device(device).type == "cpu"
        return replace(
            self,
            pictures=tuple(picture.cpu() for picture in self.pictures) if home else self.pictures,
            activations=self.activations.to(device),
            embeddings=self.embeddings.to(device),
            scales=self.scales.to(device),
        )

    def save(self, path: str) -> str:
        """Write one .npz file, without pickle: images that lie in files are named, others are kept in it."""
        from gamlens.retrieval.gallery_file import save

        return save(self, path)

    @classmethod
    def load(cls, path: str) -> Gallery:
        """Read back what `save` wrote, onto the CPU."""
        from gamlens.retrieval.gallery_file import load

        return load(path)

    def check(self, key: Mapping[str, str]) -> None:
        """An error where these images were seen by another model, other weights, another block or precision."""
        for name in ("model", "block", "embedding", "precision", "fingerprint"):
            own, asked = self.about.get(name), key.get(name)
            if own is not None and asked is not None and own != asked:
                raise GamlensError(
                    f"This gallery was made with {name} {own!r}, and this lens has {asked!r}"
                    + (": its weights are others, or have changed since" if name == "fingerprint" else "")
                    + ". Remember the images again with this lens."
                )
