"""Our maps with the calls of xaitk-saliency (https://github.com/XAITK/xaitk-saliency).

xaitk-saliency's algorithms are given a black box, a function of images that they call on many perturbed copies. A lens
needs none: its maps come from one forward and one backward of its own model. So `blackbox` is accepted and ignored.
Values lie in [0,1], a part of xaitk's range [-1,1]: places that speak against a class or a similarity are 0, not
negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gamlens.adapters.map_options import MapOptions
from gamlens.capture.forward import BY_NETWORK
from gamlens.errors import GamlensError
from gamlens.explanation import Explanation
from gamlens.fuse import Fusion
from gamlens.inputs.batch import ViewList
from gamlens.lens import Lens
from gamlens.refine import Refine, Sharp
from gamlens.scores import PairScoreFunction

ImageArray = NDArray[Any]  # (H,W,3) or (H,W) uint8
SaliencyMaps = NDArray[np.float32]  # (n,H,W)
AT_ONCE = 16  # how many pairs, or classes, are explained together


@dataclass(frozen=True, eq=False)
class SimilaritySaliency:
    """Saliency of a similarity, with the calls of xaitk's GenerateImageSimilarityBlackboxSaliency; `xaitk` makes it.

    Attributes:
        lens: The lens.
        options: How maps are made.
        score: The similarity that is explained.
        both: Whether the maps on the query images are returned, too.
    """

    lens: Lens
    options: MapOptions
    score: str | PairScoreFunction = "cosine"
    both: bool = False

    def generate(
        self, ref_image: ImageArray, query_images: Sequence[ImageArray], blackbox: Any = None
    ) -> SaliencyMaps | tuple[SaliencyMaps, list[NDArray[np.float32]]]:
        """Show on the reference image what makes it similar to each of the query images.

        Args:
            ref_image: The reference image, (H,W,3) or (H,W) uint8.
            query_images: The query images, n arrays of the same kind; their sizes may differ.
            blackbox: Ignored: the lens knows the model.

        Returns:
            The maps on the reference image, (n,H,W) float32 in [0,1]. With `both`, also a list with the map on each
            query image at that image's own size.
        """
        height, width = _checked(ref_image).shape[:2]
        ours: list[NDArray[np.float32]] = []
        theirs: list[NDArray[np.float32]] = []
        for start in range(0, len(query_images), AT_ONCE):
            queries = [_checked(image) for image in query_images[start : start + AT_ONCE]]
            pair = self.lens.compare(ref_image, queries, score=self.score, **self.options.keywords())
            ours += _full_maps(pair.x)
            theirs += _full_maps(pair.y) if self.both else []
        maps = np.stack(ours) if ours else np.zeros((0, height, width), np.float32)
        return (maps, theirs) if self.both else maps

    __call__ = generate


@dataclass(frozen=True, eq=False)
class ClassSaliency:
    """Saliency of classes, with the calls of xaitk's GenerateImageClassifierBlackboxSaliency.

    `xaitk_classifier` makes it.

    Attributes:
        lens: The lens.
        options: How maps are made.
        classes: The classes that are explained, by number or name; None for all classes of the model.
        score: The class score that is explained.
    """

    lens: Lens
    options: MapOptions
    classes: tuple[int | str, ...] | None = None
    score: str = "logit"

    def generate(self, ref_image: ImageArray, blackbox: Any = None) -> SaliencyMaps:
        """Show on an image what speaks for each of the classes.

        Args:
            ref_image: The image, (H,W,3) or (H,W) uint8.
            blackbox: Ignored: the lens knows the model.

        Returns:
            The maps, (number of classes,H,W) float32 in [0,1], in the order of `classes`.
        """
        image = _checked(ref_image)
        classes = self.classes
        if classes is None:
            classes = tuple(range(self.lens.outputs(image).shape[1]))
        maps: list[NDArray[np.float32]] = []
        for start in range(0, len(classes), AT_ONCE):
            some = [list(classes[start : start + AT_ONCE])]
            maps += _full_maps(self.lens.classify(image, some, score=self.score, **self.options.keywords()))
        return np.stack(maps)

    __call__ = generate


def xaitk(
    lens: Lens,
    *,
    score: str | PairScoreFunction = "cosine",
    both: bool = False,
    method: str = BY_NETWORK,
    n: int | str = BY_NETWORK,
    fuse: Fusion = "mean",
    lattice: str = "read",
    refine: Refine = False,
    sharp: Sharp = False,
    views: ViewList = (),
) -> SimilaritySaliency:
    """Make a saliency generator for the similarity of images, with the calls of xaitk-saliency.

    Args:
        lens: The model, and how it is read.
        score: The similarity that is explained, as `Lens.compare` takes it.
        both: Whether `generate` also returns the maps on the query images, which xaitk has no place for.
        method, n, fuse, lattice, refine, sharp, views: As `Lens.compare` takes them.

    Returns:
        An object with `generate(ref_image, query_images, blackbox=None)`, which can also be called itself.

    Example:
        >>> import numpy as np
        >>> saliency = xaitk(lens, method="gam", n=1)
        >>> saliency.generate(np.asarray(photo), [np.asarray(other), np.asarray(other)[:100]]).shape
        (2, 256, 256)
    """
    return SimilaritySaliency(lens, MapOptions(method, n, fuse, lattice, refine, sharp, views), score, both)


def xaitk_classifier(
    lens: Lens,
    *,
    classes: Sequence[int | str] | None = None,
    score: str = "logit",
    method: str = BY_NETWORK,
    n: int | str = BY_NETWORK,
    fuse: Fusion = "mean",
    lattice: str = "read",
    refine: Refine = False,
    sharp: Sharp = False,
    views: ViewList = (),
) -> ClassSaliency:
    """Make a saliency generator for classes, with the calls of xaitk-saliency.

    Args:
        lens: The model, and how it is read.
        classes: The classes that are explained, by number or name. By default all that the model has, in its order.
        score: The class score that is explained, as `Lens.classify` takes it.
        method, n, fuse, lattice, refine, sharp, views: As `Lens.classify` takes them.

    Returns:
        An object with `generate(ref_image, blackbox=None)`, which can also be called itself.

    Example:
        >>> import numpy as np
        >>> saliency = xaitk_classifier(lens, classes=["dog", "cat"], method="gam", n=1)
        >>> saliency(np.asarray(photo)).shape
        (2, 256, 256)
    """
    if isinstance(classes, str) or (classes is not None and not len(classes)):
        raise GamlensError(f"classes= is a list of at least one class, such as ['cat', 285]; found {classes!r}.")
    chosen = None if classes is None else tuple(classes)
    return ClassSaliency(lens, MapOptions(method, n, fuse, lattice, refine, sharp, views), chosen, score)


def _checked(image: Any) -> ImageArray:
    """One image, as xaitk passes it; the lens checks its values."""
    if not isinstance(image, np.ndarray) or image.ndim not in (2, 3):
        found = image.shape if isinstance(image, np.ndarray) else type(image).__name__
        raise GamlensError(f"An image of xaitk is a uint8 array (H,W,3) or (H,W); found {found}: give such an array.")
    return image


def _full_maps(result: Explanation) -> list[NDArray[np.float32]]:
    """The map of each row at the size of its original image, (H,W) float32."""
    result = result.cpu()
    return [result.full(row).numpy() for row in range(len(result))]
