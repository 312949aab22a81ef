"""What an index knows about itself: which lens made it, the form of its embeddings, and how it is searched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from PIL import Image

from gamlens.errors import GamlensError, readable
from gamlens.index.backends import BACKENDS
from gamlens.index.catalogue import Catalogue
from gamlens.index.snapshot import AUTO_BACKEND
from gamlens.inputs.transform import Transform
from gamlens.retrieval.embedding_form import EMBEDDING_FORMS, LINEAR_FORM
from gamlens.retrieval.gallery import lens_identity, weights_sha256
from gamlens.scores import PAIR_SCORES

if TYPE_CHECKING:
    from gamlens.lens import Lens

OTHER_HASHES = {"weights_sha256": "other weights", "preprocessing_sha256": "another preprocessing"}
HASH_DIGITS = 16  # of a sha256 that messages show


def new_settings(
    lens: Lens, *, activations: bool, score: str, backend: str, place: Path, made_with: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of a new, empty index; see `Index.create`."""
    probe = lens.remember([probe_image()])
    return {
        "identity": index_identity(lens),
        "dimension": probe.embeddings.shape[1],
        "block_shape": list(probe.activations.shape[1:]),
        "size": list(probe.size),
        "law": probe.law,
        "scale": float(probe.scales[0]) if probe.law == LINEAR_FORM else 0.0,
        "activations": bool(activations),
        "score": score,
        "backend": backend,
        "generation": 1,
        "end": 0,
        "blocks_end": 0,
        "place": str(place.absolute()),
        "made_with": dict(made_with),
    }


def check_settings(catalogue: Catalogue, settings: Mapping[str, Any]) -> None:
    """Raise an error if the settings of a catalogue are not those of an index."""
    kinds: dict[str, type] = {
        "identity": dict, "dimension": int, "block_shape": list, "law": str, "score": str, "backend": str,
        "generation": int, "end": int, "blocks_end": int, "activations": bool, "place": str, "made_with": dict,
    }  # fmt: skip
    for name, kind in kinds.items():
        if not isinstance(settings.get(name), kind):
            raise catalogue.damaged(f"its setting {name!r} is {settings.get(name)!r:.60}")
    if settings["law"] not in EMBEDDING_FORMS or settings["score"] not in PAIR_SCORES:
        raise catalogue.damaged("its settings name an unknown score or form of embedding")
    if settings["backend"] not in (AUTO_BACKEND, *BACKENDS):
        raise catalogue.damaged(f"its setting 'backend' is {settings['backend']!r:.60}")


def check_identity(folder: str, own: Mapping[str, str], lens: Lens) -> None:
    """Raise an error if a lens is not that of the index in `folder`, which was made with `own`."""
    asked = index_identity(lens)
    for name, known in own.items():
        if asked.get(name, known) != known:
            what = OTHER_HASHES.get(name, f"another {name.replace('_', ' ')}")
            shown = HASH_DIGITS if name in OTHER_HASHES else 200
            raise GamlensError(
                f"The index {readable(folder)!r} was made with {what} than this lens has: "
                f"{known[:shown]} and {asked[name][:shown]}. Their vectors cannot be compared. Search with the "
                "same model, or make another index with this one."
            )


def index_identity(lens: Lens) -> dict[str, str]:
    """What an index records of the lens that made it: model, block, embedding, precision, weights, preprocessing."""
    found = lens_identity(lens)
    del found["fingerprint"], found["weights"]  # a hash of the weights says more, wherever their file lies
    found["weights_sha256"] = weights_sha256(lens.model)
    if isinstance(lens.transform, Transform):
        return {**found, "preprocessing": repr(lens.transform)}
    seen, again = (_seen_sha256(lens) for _ in range(2))
    known = {"preprocessing_sha256": seen} if seen == again else {}  # a function that draws lots has none
    return {**found, "preprocessing": "a function", **known}


def _seen_sha256(lens: Lens) -> str:
    """The sha256 of what a lens makes of the probe image: the shape of its input, and means over 4 x 4 cells of it.

    These are rounded to two decimals. They tell two functions apart, and a last bit of the input, which depends on the
    machine, hardly ever changes them.
    """
    (batch,) = lens.prepare(probe_image()).batches
    means = F.adaptive_avg_pool2d(batch.detach().double().cpu(), 4)
    rounded = [round(100 * value) for value in means.flatten().tolist()]
    return sha256(json.dumps([list(batch.shape), rounded]).encode()).hexdigest()


def probe_image() -> Image.Image:
    """A colourful image of noise and gradients, on which a network's blocks and the form of its embedding are found."""
    generator = np.random.default_rng(0)
    noise = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
    slope = np.linspace(0, 255, 256, dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(noise).resize((256, 256), Image.Resampling.BICUBIC)) // 2
    return Image.fromarray(pixels + (slope[:, None, None] // 4) + (slope[None, :, None] // 4))
