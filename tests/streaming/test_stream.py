"""Images that keep coming."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import nets
import numpy as np
import pytest
import torch

from gamlens import GamlensError, Lens, Transform
from gamlens.inputs.batch import ModelInput, join, prepare
from gamlens.inputs.images import Picture
from gamlens.inputs.transform import Frame
from gamlens.streaming.stream import stream


@pytest.fixture
def lens() -> Lens:
    return Lens(nets.small().float(), transform=Transform((64, 64)))


def photos(count):
    draw = np.random.default_rng(0)
    return [draw.integers(0, 255, (50 + number, 60, 3), dtype=np.uint8) for number in range(count)]


def test_results_come_before_the_source_ends(lens: Lens) -> None:
    """An endless source: what is asked for comes, and little more is read."""
    read = 0

    def endless():
        nonlocal read
        for image in itertools.cycle(photos(3)):
            read += 1
            yield image

    seen = list(itertools.islice(lens.stream(endless(), batch_size=2, workers=2), 5))
    assert [one.number for one in seen] == [0, 1, 2, 3, 4]
    assert read <= 2 * (3 + 3)


def test_every_image_is_as_if_alone(lens: Lens) -> None:
    images = photos(5)
    for one, image in zip(lens.stream(images, [0, 2], batch_size=3), images, strict=True):
        alone = lens.classify(image, [[0, 2]])
        torch.testing.assert_close(one.explanation.maps, alone.maps, atol=1e-5, rtol=0)
        assert one.explanation.targets.tolist() == [0, 2]
        assert len(one.top) == 5


def test_mixed_sizes(lens: Lens) -> None:
    """Tensors of several sizes in one batch: each size is looked at together."""
    torch.manual_seed(0)
    images = [torch.randn(1, 3, size, size) for size in (64, 96, 64)]
    seen = list(lens.stream(images))
    assert [one.explanation.maps.shape[-1] for one in seen] == [64, 96, 64]


def test_pixels_and_tensors_of_one_size(lens: Lens) -> None:
    torch.manual_seed(0)
    tensor, (photo, other) = torch.randn(1, 3, 64, 64), photos(2)
    for one, image in zip(lens.stream([photo, tensor, other]), (photo, tensor, other), strict=True):
        torch.testing.assert_close(one.explanation.maps, lens.classify(image).maps, atol=1e-5, rtol=0)


def test_what_is_wrong_with_all_is_an_error(lens: Lens) -> None:
    with pytest.raises(GamlensError, match="n from 1 to 3"):
        next(lens.stream(photos(2), n=9))
    with pytest.raises(GamlensError, match="at least 1"):
        lens.stream(photos(2), batch_size=0)
    assert list(lens.stream([])) == []


@pytest.mark.parametrize("one", ["photo.jpg", Path("photo.jpg"), 3])
def test_one_image_is_no_stream(lens: Lens, one: object) -> None:
    """A path would be taken letter by letter."""
    with pytest.raises(GamlensError, match=r"A stream takes many images, found .*give a list"):
        list(lens.stream(one))


class Unreadable(os.PathLike):
    def __fspath__(self) -> str:
        raise ValueError("no such volume")


def inside_itself() -> list[object]:
    items: list[object] = []
    items.append(items)
    return items


NOT_ONE_IMAGE = {
    "two images in a list": (lambda: photos(2), "found 2 images in one list: give each image as an item of its own"),
    "two sizes in a list": (lambda: [photos(1)[0], torch.zeros(3, 9, 9)], "found 2 images in one list: give each"),
    "a batch": (lambda: torch.zeros(3, 3, 64, 64), "found 3 images in one Tensor: give each"),
    "an array of several": (lambda: np.zeros((2, 9, 9, 3), np.uint8), "found 2 images in one ndarray: give each"),
    "a dict": (lambda: {"image": 1}, "An image is a path.*found dict"),
    "None": (lambda: None, "An image is a path.*found NoneType"),
    "a number": (lambda: 3, "An image is a path.*found int"),
    "an iterator": (lambda: iter(photos(1)), "An image is a path.*found list_iterator"),
    "an empty list": (list, "the list is empty. Give at least one"),
    "a matrix": (lambda: torch.zeros(3, 3), r"\(C,H,W\) and is not empty; found \(3, 3\)"),
    "rank 5": (lambda: torch.zeros(1, 1, 3, 9, 9), r"\(C,H,W\) and is not empty; found \(1, 1, 3, 9, 9\)"),
    "a list inside itself": (inside_itself, "Cannot read this image: RecursionError.*Give a path"),
    "a path that raises": (Unreadable, "Cannot read this image: ValueError: no such volume. Give a path"),
    "a tensor without values": (lambda: torch.zeros(1, 3, 64, 64, device="meta"), "on the device 'meta': give"),
    "a sparse tensor": (lambda: torch.zeros(1, 3, 64, 64).to_sparse(), "torch.sparse_coo on .*to_dense"),
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("what", NOT_ONE_IMAGE)
def test_an_item_that_is_not_one_image_is_an_error_of_that_item(lens: Lens, what: str, first: bool) -> None:
    make, message = NOT_ONE_IMAGE[what]
    item, good = make(), [torch.zeros(1, 3, 64, 64), *photos(2)]
    items = [item, *good] if first else [*good, item, *good]
    seen = list(lens.stream(items, batch_size=4))
    assert [one.number for one in seen if one.error] == [0 if first else 3]
    bad = seen[0 if first else 3]
    assert bad.image is item
    assert bad.explanation is None
    assert re.search(message, bad.error)
    assert all(len(one.explanation) == 1 for one in seen if one is not bad)


def test_a_dtype_of_one_item_does_not_spread_to_others(lens: Lens) -> None:
    torch.manual_seed(0)
    image = torch.randn(1, 3, 64, 64)
    alone, beside = (next(iter(lens.stream(items))) for items in ([image], [image, image.double()]))
    assert torch.equal(alone.explanation.maps, beside.explanation.maps)
    assert alone.explanation.maps.dtype == beside.explanation.maps.dtype


class Device:
    """Stands for a GPU: a batch lands when `lands` says so; a batch that holds a number of `bad` fails there."""

    def __init__(self, lands=lambda first: None, bad=(), error=GamlensError) -> None:
        self.lands, self.bad, self.error = lands, set(bad), error
        self.launched, self.landed = [], []
        self.output, self.numbers = None, ()

    def explain(self, ready):
        found = Device(self.lands, self.bad, self.error)
        found.numbers = tuple(int(value) for value in ready.batches[0].flatten())
        found.launched, found.landed = self.launched, self.landed
        self.launched.append(found.numbers)
        return found, found

    def to_host(self, pool):
        done = pool.submit(self.lands, self.numbers[0]) if pool else None

        def arrive():
            if done is not None:
                done.result()
            self.landed.append(self.numbers)
            if self.bad & set(self.numbers):
                raise self.error(f"no {self.numbers}")
            return self

        return arrive

    def each(self):
        return list(self.numbers)

    def stream(self, images, load=None, **options):
        options = {"batch_size": 2, "workers": 2, "ahead": 2, **options}
        return stream(images, load or number, self.explain, device=torch.device("cpu"), **options)


def number(value):
    return ModelInput(
        (torch.full((1, 1, 1, 1), float(value)),), (False,), (Picture(str(value)),), (Frame.whole((1, 1), (1, 1)),)
    )


def test_the_next_batches_are_begun_before_the_first_lands() -> None:
    begun = threading.Event()

    def lands(first):
        assert first or begun.wait(5)

    device = Device(lands)
    explain = device.explain

    def watched(ready):
        found = explain(ready)
        if device.launched == [(0, 1), (2, 3), (4, 5)]:
            begun.set()
        return found

    device.explain = watched
    seen = list(device.stream(range(11)))
    assert [one.number for one in seen] == [one.explanation for one in seen] == list(range(11))
    assert device.landed == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10,)]


def test_a_batch_does_not_wait_for_the_next_to_be_decoded() -> None:
    handed = threading.Event()

    def load(value):
        if value >= 2:
            assert handed.wait(5)
        return number(value)

    for one in Device().stream(range(6), load):
        assert not one.error
        if one.number == 1:
            handed.set()


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_batch_does_not_wait_for_a_slow_source(ahead: int) -> None:
    read = []

    def slow():
        for value in range(8):
            time.sleep(0.02)
            read.append(value)
            yield value

    for one in Device().stream(slow(), ahead=ahead):
        assert len(read) == 2 * (one.number // 2 + 1)


def test_what_is_at_hand_does_not_wait_for_a_source_that_became_slow() -> None:
    read, reads = [], {}

    def source():
        for value in range(9):
            time.sleep(0.02 * (value >= 6))
            read.append(value)
            yield value

    for one in Device().stream(source()):
        reads[one.number] = len(read)
    assert max(reads[number] for number in range(6)) <= 7


@pytest.mark.parametrize(("error", "text"), [(GamlensError, "no"), (ValueError, "ValueError: no")])
def test_a_batch_that_fails_is_explained_in_halves_and_the_others_stay(error: type[Exception], text: str) -> None:
    device = Device(bad={5, 6}, error=error)
    seen = list(device.stream(range(12), batch_size=4))
    assert [one.number for one in seen] == list(range(12))
    assert {one.number: one.error for one in seen if one.error} == {5: f"{text} (5,)", 6: f"{text} (6,)"}
    assert device.launched.count((8, 9, 10, 11)) == 1


def test_an_image_that_cannot_be_read_takes_nothing_along() -> None:
    def load(value):
        if value in (0, 3):
            raise GamlensError(f"cannot read {value}")
        return number(value)

    seen = list(Device().stream(range(5), load))
    assert [one.error for one in seen] == ["cannot read 0", "", "", "cannot read 3", ""]
    assert [one.explanation for one in seen] == [None, 1, 2, None, 4]


def test_an_error_of_the_source_comes_after_what_came_before_it() -> None:
    def source():
        yield from range(5)
        raise OSError("unplugged")

    seen = []
    with pytest.raises(OSError, match="unplugged"):
        seen.extend(one.number for one in Device().stream(source()))
    assert seen == [0, 1, 2, 3, 4]


def test_closed_early_its_threads_end() -> None:
    before = set(threading.enumerate())
    device, loaded = Device(), []

    def load(value):
        loaded.append(value)
        return number(value)

    results = device.stream(itertools.count(), load)
    assert [one.number for one in itertools.islice(results, 3)] == [0, 1, 2]
    assert {thread.name.split("_")[0] for thread in set(threading.enumerate()) - before} == {"prefetch", "host"}
    results.close()
    assert set(threading.enumerate()) == before
    count = len(loaded)
    assert count <= 20
    time.sleep(0.01)
    assert len(loaded) == count


@pytest.mark.parametrize("workers", [0, -1])
def test_there_is_at_least_one_worker(lens: Lens, workers: int) -> None:
    with pytest.raises(GamlensError, match=f"workers={workers}: give at least 1"):
        list(lens.stream(photos(1), workers=workers))
    with pytest.raises(GamlensError, match=f"workers={workers}: give at least 1"):
        lens.remember(photos(1), workers=workers)


class Picky(torch.nn.Module):
    """Fails on images that are bright, from the image of that number on, or in batches above a size."""

    def __init__(self, bright: float = 99, dies_at: int = 99, most: int = 99) -> None:
        super().__init__()
        self.net, self.bright, self.dies_at, self.most = nets.small().float(), bright, dies_at, most
        self.seen, self.sizes = 0, []

    def forward(self, images):
        self.seen += len(images)
        self.sizes.append(len(images))
        if self.seen > self.dies_at or float(images.max()) > self.bright:
            raise RuntimeError("cannot do that")
        if len(images) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.net(images)


def picky(**options: int) -> Lens:
    torch.manual_seed(0)
    model = Picky(**options)
    lens = Lens(model, blocks=["net.layer1", "net.layer2"], transform=Transform((64, 64)))
    lens.classify(torch.zeros(1, 3, 64, 64))
    model.seen, model.sizes = 0, []
    return lens


def tensors(count: int, *bright: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.rand(1, 3, 64, 64) + 10 * (number in bright) for number in range(count)]


@pytest.mark.parametrize("bad", [(5,), (0, 7), (4, 5, 6, 7)])
def test_an_exception_of_the_model_is_the_error_of_its_images(bad: tuple[int, ...]) -> None:
    """Also if it hits a whole batch: an image that was fine before is fine still."""
    seen = list(picky(bright=5).stream(tensors(10, *bad), batch_size=4))
    assert [one.number for one in seen if one.error.endswith("RuntimeError: cannot do that")] == list(bad)
    assert all(one.explanation is not None for one in seen if one.number not in bad)


def test_an_exception_that_hits_every_image_is_raised_once() -> None:
    before = set(threading.enumerate())
    with pytest.raises(GamlensError, match="RuntimeError: cannot do that"):
        list(picky(bright=5).stream(tensors(4, 0, 1, 2, 3), batch_size=2))
    numbers = []
    with pytest.raises(GamlensError, match="RuntimeError: cannot do that"):
        numbers.extend(one.number for one in picky(dies_at=4).stream(tensors(8), batch_size=2))
    assert numbers == [0, 1, 2, 3]
    assert set(threading.enumerate()) == before


def test_a_batch_that_needs_too_much_memory_is_made_smaller() -> None:
    lens = picky(most=2)
    assert [one.error for one in lens.stream(tensors(8), batch_size=8)] == [""] * 8
    assert lens.model.sizes == [8, 4, 2, 2, 4, 2, 2]


def test_a_tensor_with_a_graph_is_an_image_like_others(lens: Lens) -> None:
    plain, leaf = tensors(2)
    leaf.requires_grad_()
    for items in ([plain, leaf], [leaf], [leaf * 2, plain]):
        seen = list(lens.stream(items))
        assert [one.error for one in seen] == [""] * len(items)
        assert not any(one.explanation.maps.requires_grad for one in seen)
    assert leaf.grad is None
    assert not join([prepare(leaf, lens.transform)] * 2).batches[0].requires_grad


def test_images_that_do_not_fit_into_one_batch_are_explained_alone() -> None:
    def load(value):
        ready = number(value)
        return ready if value != 2 else replace(ready, batches=ready.batches * 2)

    device = Device()
    assert [one.explanation for one in device.stream(range(4), load, batch_size=4)] == [0, 1, 2, 3]
    assert device.launched == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("where", ["model", "source", "decoding"])
def test_an_interrupt_ends_the_stream_and_its_threads(where: str) -> None:
    before = set(threading.enumerate())

    def stop(here, value):
        if here == where and value == 3:
            raise KeyboardInterrupt
        return value

    device = Device()
    explain = device.explain
    device.explain = lambda ready: (stop("model", int(ready.batches[0].flatten()[-1])), explain(ready))[1]
    source = (stop("source", value) for value in range(9))
    with pytest.raises(KeyboardInterrupt):
        list(device.stream(source, lambda value: number(stop("decoding", value))))
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("begun", [False, True])
def test_an_abandoned_stream_leaves_no_thread(begun: bool) -> None:
    before = set(threading.enumerate())
    results = Device().stream(itertools.count())
    if begun:
        next(results)
    del results
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("options", [{"n": 1, "refine": 2}, {"sharp": True}, {"sharp": "views", "n": 1}])
def test_refined_maps_of_a_stream(lens: Lens, options: dict[str, object]) -> None:
    images = photos(3)
    for one, image in zip(lens.stream(images, [0, 2], batch_size=2, **options), images, strict=True):
        alone = lens.classify(image, [[0, 2]], **options)
        torch.testing.assert_close(one.explanation.maps, alone.maps, atol=1e-5, rtol=0)
        assert one.explanation.about["refine"] == {"blocks": ["layer2", "layer1"], "keep": 0.5}
        assert one.explanation.about.get("views") == alone.about.get("views")


def test_a_refinement_that_cannot_be_is_raised(lens: Lens) -> None:
    with pytest.raises(GamlensError, match="refine=9 blocks were asked for"):
        list(lens.stream(photos(3), refine=9))
    with pytest.raises(GamlensError, match="sharp= stands for refine=True"):
        lens.stream(photos(3), refine=1, sharp=True)
