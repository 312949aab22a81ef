"""The images of a case, made from the photos of the data set: scenes of objects, copied patches, photos as they are.

Images are tensors as the model takes them. A canvas of zeros has the transform's mean colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from PIL import Image
from torch import Tensor

from gamlens.data import Sample
from gamlens.evaluation.pair_tests.pair_cases import CopiedPatch, PairCase, PlacedObject
from gamlens.evaluation.pair_tests.pair_plan import PHOTO_PAIRS, SCENES
from gamlens.inputs.batch import prepare
from gamlens.inputs.frame import Frame
from gamlens.inputs.images import Picture, upright
from gamlens.inputs.transform import Transform

CROP_MARGIN = 0.1  # what is cut out around an object's box, as a share of the box on every side
SamplesByName = Mapping[str, Sample]


@dataclass(frozen=True, eq=False)
class ReadyCase:
    """A case with its images, ready for the model.

    Attributes:
        case: The case.
        images: x, y and, for photos, z: (C,H,W) each.
        truth: The ground truth of x and of y in pixels of the input, x0,y0,x1,y1: for photos the boxes of the object
            (K,4); for scenes the quadrants of the k objects (k,4); for patches the patch (1,4).
        singles: For scenes X and Y with only one of their objects each, (k,C,H,W).
    """

    case: PairCase
    images: tuple[Tensor, ...]
    truth: tuple[Tensor, Tensor]
    singles: tuple[Tensor, ...] = field(default=())


def load_case(case: PairCase, samples: SamplesByName, transform: Transform) -> ReadyCase:
    """Read the photos of a case and make its images. A photo that cannot be read is a GamlensError."""
    if case.kind == SCENES:
        return _with_scenes(case, samples, transform)
    found = [_photo(samples[name], label, transform) for name, label in zip(case.images, case.labels, strict=True)]
    images = tuple(image for image, _ in found)
    if case.kind == PHOTO_PAIRS:
        return ReadyCase(case, images, (found[0][1], found[1][1]))
    assert case.patch is not None
    corners = patch_corners(case.patch, transform.size)
    (x0, y0, x1, y1), (u0, v0, u1, v1) = (tuple(map(int, one)) for one in corners)
    changed = images[1].clone()
    changed[:, v0:v1, u0:u1] = images[0][:, y0:y1, x0:x1]
    return ReadyCase(case, (images[0], changed), (torch.tensor([corners[0]]), torch.tensor([corners[1]])))


def patch_corners(patch: CopiedPatch, size: tuple[int, int]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The square in x and in y, x0,y0,x1,y1 in whole pixels of an input of `size` (H,W)."""
    side = max(1, round(patch.side * min(size)))
    found = []
    for across, down in (patch.x_place, patch.y_place):
        left, top = round(across * (size[1] - side)), round(down * (size[0] - side))
        found.append((float(left), float(top), float(left + side), float(top + side)))
    return found[0], found[1]


def quadrant_corners(quadrant: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The quadrant of an input of `size` (H,W): x0,y0,x1,y1. Of an odd number of rows or columns the last is free."""
    height, width = size[0] // 2, size[1] // 2
    top, left = quadrant // 2 * height, quadrant % 2 * width
    return left, top, left + width, top + height


def crop_window(box: tuple[float, float, float, float], width: int, height: int) -> tuple[int, int, int, int]:
    """The part of a photo that is cut out for an object: a square around its box, moved or cut to lie in the photo.

    `box` is in shares of the photo's width and height; the result is in pixels.
    """
    x0, y0, x1, y1 = box[0] * width, box[1] * height, box[2] * width, box[3] * height
    side = max(x1 - x0, y1 - y0) * (1 + 2 * CROP_MARGIN)
    found = []
    for first, last, length in ((x0, x1, width), (y0, y1, height)):
        own = min(side, length)
        start = min(max((first + last - own) / 2, 0), length - own)
        found.append((int(start), max(int(start) + 1, min(length, round(start + own)))))
    return found[0][0], found[1][0], found[0][1], found[1][1]


def _with_scenes(case: PairCase, samples: SamplesByName, transform: Transform) -> ReadyCase:
    scenes, singles, truth = [], [], []
    for objects in case.scenes:
        canvas = torch.zeros(len(transform.mean), *transform.size)
        single = canvas.repeat(len(objects), 1, 1, 1)
        corners = [quadrant_corners(one.quadrant, transform.size) for one in objects]
        for place, (one, (x0, y0, x1, y1)) in enumerate(zip(objects, corners, strict=True)):
            pixels = _cut_out(one, samples, replace(transform, size=(y1 - y0, x1 - x0)))
            canvas[:, y0:y1, x0:x1] = pixels
            single[place, :, y0:y1, x0:x1] = pixels
        scenes.append(canvas)
        singles.append(single)
        truth.append(torch.tensor(corners, dtype=torch.float32))
    return ReadyCase(case, tuple(scenes), (truth[0], truth[1]), tuple(singles))


def _cut_out(one: PlacedObject, samples: SamplesByName, transform: Transform) -> Tensor:
    """The object, normalised, at the size of the transform: (C,h,w)."""
    photo = upright(samples[one.image].image)
    cut = photo.crop(crop_window(one.box, photo.width, photo.height))
    return transform(_coloured(cut, transform))[0]


def _photo(sample: Sample, label: int, transform: Transform) -> tuple[Tensor, Tensor]:
    """A photo (C,H,W) and the boxes of a class in pixels of the input, (K,4)."""
    side = prepare(Picture(sample.name, path=sample.image), transform)
    return side.batches[0][0], _boxes(sample, label, side.frames[0])


def _boxes(sample: Sample, label: int, frame: Frame) -> Tensor:
    found = torch.tensor([[b.x0, b.y0, b.x1, b.y1] for b in sample.boxes if b.label == label]).reshape(-1, 4)
    height, width = sample.size or frame.original  # the size that boxes refer to may differ from that of the file
    scale = torch.tensor([frame.original[1] / width, frame.original[0] / height]).repeat(2)
    return frame.boxes_in(found * scale)


def _coloured(image: Image.Image, transform: Transform) -> Image.Image:
    return image.convert("L") if len(transform.mean) == 1 else image
