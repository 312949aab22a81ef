"""Pixels that are normalised later are the same numbers."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from gamlens import Transform
from gamlens.inputs.batch import Views, join, look_up, normalise_on, part, prepare, prepare_pixels
from gamlens.inputs.transform import ExternalTransform

CPU = torch.device("cpu")
GREY = Transform((24, 16), (0.4,), (0.3,))
TRANSFORMS = [Transform((24, 16)), Transform((24, 24), mode="crop", short=30), GREY]


def photos(count):
    draw = np.random.default_rng(0)
    return [Image.fromarray(draw.integers(0, 256, (50 + number, 40, 3), dtype=np.uint8)) for number in range(count)]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("views", [(), ("flip", 1.5)])
def test_developed_later_to_the_same_bits(transform, views):
    """On the CPU, and as another device does it: by the table."""
    looks, images = Views.parse(views), photos(3)
    expected = prepare(images, transform, looks)
    raw = join([prepare_pixels(image, transform, looks) for image in images])
    assert raw.pending_transform == transform
    assert {batch.dtype for batch in raw.batches} == {torch.uint8}
    done = normalise_on(raw, CPU)
    assert (done.pending_transform, done.mirrored, done.frames) == (None, expected.mirrored, expected.frames)
    for mine, own, want in zip(done.batches, raw.batches, expected.batches, strict=True):
        assert mine.dtype == torch.float32
        assert mine.stride() == want.stride()
        assert torch.equal(mine, want)
        there = look_up(transform.table(), own)
        assert torch.equal(there, want)
        assert there.stride() == want.stride()


def test_one_of_those_joined():
    images = photos(3)
    raw = join([prepare_pixels(image, GREY, Views()) for image in images])
    alone = normalise_on(part(raw, 2), CPU)
    assert torch.equal(alone.batches[0], prepare(images[2], GREY, Views()).batches[0])
    assert alone.pictures[0].pixels is images[2]


def test_what_has_no_pixels_to_keep_is_prepared_at_once():
    """Tensors, and what a user's own transform makes."""
    tensor, foreign = torch.rand(1, 3, 24, 16), ExternalTransform(transforms.ToTensor())
    for image, transform in ((tensor, TRANSFORMS[0]), (photos(1)[0], foreign)):
        found = prepare_pixels(image, transform, Views())
        assert found.pending_transform is None
        assert torch.equal(found.batches[0], prepare(image, transform, Views()).batches[0])
        assert normalise_on(found, CPU) is found


def test_a_tensor_of_the_users_is_not_shared():
    """A model may write to its input."""
    given = torch.ones(3, 8, 8)
    prepare([given], Transform((8, 8)), Views()).batches[0].zero_()
    assert bool(given.all())


def test_a_preprocessed_batch_is_taken_as_it_is_in_few_calls():
    """Itself, not a copy; nothing is called in gamlens.inputs but a few functions of batch.py."""
    batch, transform, called = torch.rand(2, 3, 8, 8), Transform((8, 8)), []

    def note(frame, event, _):
        if event == "call" and "gamlens/inputs" in frame.f_code.co_filename:
            called.append(frame.f_code.co_filename.rpartition("/")[2])

    sys.setprofile(note)
    try:
        found = prepare(batch, transform, Views.parse(()))
    finally:
        sys.setprofile(None)
    assert found.batches[0] is batch
    assert set(called) == {"batch.py"}
    assert len(called) <= 6
