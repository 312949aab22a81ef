"""Queries by hand: regions, points, sums and differences of images, and captions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from index_kit import SIZE, photo, put
from PIL import Image
from torch import Tensor, nn

from gamlens import GamlensError, Lens, Transform
from gamlens.index.index import Index
from gamlens.index.queries import POINT_CROP, Query, caption_query, combined_query, image_query

CELLS = 4  # positions of the block per side


class Colours(nn.Module):
    """Positions of 16 x 16 pixels whose activation is their mean colour; the embedding is a function of the mean."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.patch, self.relu, self.form = nn.Conv2d(3, 3, 16, 16, bias=False), nn.ReLU(), form
        self.patch.weight.data = torch.eye(3)[:, :, None, None].expand(3, 3, 16, 16).clone() / 256

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.patch(x))
        if self.form == "max":
            return h.amax(dim=(2, 3))
        mean = h.mean(dim=(2, 3))
        return (
            F.normalize(mean)
            if self.form == "unit"
            else {"mean": mean, "sum": 16 * mean, "moved": 2 * mean + 1}[self.form]
        )


def colour_lens(form: str, **options: Any) -> Lens:
    plain = Transform((64, 64), mean=(0, 0, 0), std=(1, 1, 1), **options)
    return Lens(Colours(form), transform=plain, blocks=["relu"], embedding="output")


def cells(colours: Tensor, scale: int = 16) -> Image.Image:
    """An image of cells (4,4,3) with values 0..255, each `scale` pixels wide."""
    return Image.fromarray(colours.numpy().astype(np.uint8).repeat(scale, 0).repeat(scale, 1))


def drawn() -> Tensor:
    """Random colours (4,4,3)."""
    return torch.randint(1, 256, (CELLS, CELLS, 3), generator=torch.Generator().manual_seed(3))


def by_loop(
    colours: Tensor, box: tuple[float, float, float, float], form: str, scale: int = 16
) -> np.ndarray[Any, Any]:
    """The embedding of a box, pixel by pixel of a fine grid: the mean colour of what it covers."""
    fine, total, count = 4, np.zeros(3), 0
    step = scale / fine
    for row in range(CELLS * fine):
        for column in range(CELLS * fine):
            x, y = (column + 0.5) * step, (row + 0.5) * step
            if box[0] < x < box[2] and box[1] < y < box[3]:
                total += colours[row // fine, column // fine].numpy() / 255
                count += 1
    mean = total / count
    return {"mean": mean, "sum": 16 * mean, "moved": 2 * mean + 1, "unit": mean / np.linalg.norm(mean)}[form]


BOXES = [(0, 0, 64, 64), (0, 0, 16, 16), (4, 12, 40, 60), (16, 0, 64, 20), (60, 60, 64, 64)]


@pytest.mark.parametrize("form", ["mean", "sum", "moved", "unit"])
def test_the_embedding_of_a_box_is_the_mean_of_what_it_covers(form: str) -> None:
    lens, colours = colour_lens(form), drawn()
    for box in BOXES:
        query = image_query(lens, cells(colours), box=box)
        np.testing.assert_allclose(query.vector, by_loop(colours, box, form), rtol=1e-5)
        assert (query.by_crop, query.region) == (False, tuple(map(float, box)))
        # The box in a larger photo is in its own pixels.
        large = image_query(lens, cells(colours, 32), box=tuple(2 * value for value in box))
        np.testing.assert_allclose(large.vector, query.vector, rtol=0.06)  # it was made smaller


@pytest.mark.parametrize("form", ["mean", "unit", "moved"])
def test_the_box_of_the_whole_image_is_the_image(form: str) -> None:
    lens, image = colour_lens(form), cells(drawn())
    whole = image_query(lens, image)
    for box in ((0, 0, 64, 64), (-5, -9, 1000, 64.5)):
        query = image_query(lens, image, box=box)
        np.testing.assert_allclose(query.vector, whole.vector, rtol=1e-5)
        torch.testing.assert_close(query.sides[0].activations, whole.sides[0].activations, rtol=1e-5, atol=0)
        torch.testing.assert_close(query.sides[0].scales, whole.sides[0].scales, rtol=1e-5, atol=0)
        assert query.region == (0, 0, 64, 64)
    assert whole.region is None


def test_by_hand() -> None:
    """Two red cells, one green: the box over half of a red cell and all of a green one has 1/3 red, 2/3 green."""
    colours = torch.zeros(CELLS, CELLS, 3, dtype=torch.int64)
    colours[0, 0, 0] = colours[0, 2, 0] = colours[0, 1, 1] = 255
    image, lens = cells(colours), colour_lens("mean")
    np.testing.assert_allclose(image_query(lens, image).vector, [2 / 16, 1 / 16, 0], atol=1e-6)
    np.testing.assert_allclose(image_query(lens, image, box=(8, 0, 32, 16)).vector, [1 / 3, 2 / 3, 0], atol=1e-6)
    np.testing.assert_allclose(image_query(lens, image, point=(17, 3)).vector, [0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(
        image_query(colour_lens("unit"), image, box=(8, 0, 32, 16)).vector, [5**-0.5, 2 * 5**-0.5, 0], atol=1e-6
    )


def test_a_point_is_its_position() -> None:
    lens, colours = colour_lens("mean"), drawn()
    image = cells(colours, 32)  # 128 x 128 pixels
    for point, cell in {(0, 0): (0, 0), (31.9, 32): (1, 0), (127.9, 127.9): (3, 3), (64, 40): (1, 2)}.items():
        query = image_query(lens, image, point=point)
        np.testing.assert_allclose(query.vector, colours[cell] / 255, atol=0.02)  # it was made smaller
        row, column = cell
        assert query.region == (32 * column, 32 * row, 32 * column + 32, 32 * row + 32)


def test_a_point_beside_a_centre_crop() -> None:
    """The model sees the middle of a wide photo: boxes there are cut, and what lies beside it is an error."""
    lens = colour_lens("mean", mode="crop", short=64)
    wide = Image.new("RGB", (128, 64))
    wide.paste(cells(drawn()), (32, 0))
    np.testing.assert_allclose(image_query(lens, wide, box=(0, 0, 48, 16)).vector, drawn()[0, 0] / 255, rtol=1e-4)
    assert image_query(lens, wide, point=(95.5, 63)).region == (80, 48, 96, 64)
    for region in ({"box": (0, 0, 32, 64)}, {"point": (31, 5)}, {"point": (96, 5)}, {"box": (97, 0, 200, 9)}):
        with pytest.raises(GamlensError, match="sees x from 32 to 96 and y from 0 to 64"):
            image_query(lens, wide, **region)


def test_a_region_of_another_form_is_cut_out() -> None:
    lens, colours = colour_lens("max"), drawn()
    image = cells(colours)
    query = image_query(lens, image, box=(16, 16, 48, 32))
    own = lens.remember([image.crop((16, 16, 48, 32))]).embeddings[0]
    np.testing.assert_allclose(query.vector, own.numpy(), rtol=1e-6)
    assert (query.by_crop, query.region) == (True, (16, 16, 48, 32))
    point = image_query(lens, image, point=(63, 0))
    side = 64 * POINT_CROP
    assert point.by_crop
    assert point.region == (64 - side, 0, 64, side)
    np.testing.assert_allclose(point.vector, (colours[0, 3] / 255).numpy(), rtol=1e-4)


@pytest.mark.parametrize("form", ["mean", "moved", "unit"])
@pytest.mark.parametrize("score", ["cosine", "dot", "euclidean"])
def test_the_map_of_a_region_shows_nothing_outside_of_it(form: str, score: str, tmp_path: Path) -> None:
    lens = colour_lens(form)
    for number in range(2):
        cells(drawn().roll(number + 1, 0)).save(tmp_path / f"{number}.png")
    index = Index.create(tmp_path / "i", lens, activations=True, score=score)
    index.add(tmp_path)
    hits = index.search(cells(drawn()), box=(16, 16, 48, 32))
    found = index.explain(hits, method="gam")
    inner = torch.zeros(CELLS, CELLS, dtype=torch.bool)
    inner[1, 1:3] = True
    assert bool((hits.query.sides[0].activations[:, :, ~inner] == 0).all())
    maps = found.x.maps
    assert bool((maps[:, 20:28, 20:44].amin(dim=(1, 2)) > maps[:, 40:].amax(dim=(1, 2))).all())
    # Zeros of the block are enlarged bicubically, which reaches below them, before the map is scaled to [0,1].
    assert float(maps[:, 48:].amax()) < 0.15
    assert [float(value) for value in found.scores] == pytest.approx([hit.score for hit in hits], rel=2e-3)


def test_sums_and_differences() -> None:
    lens = colour_lens("mean")
    a, b, c = (
        image_query(lens, cells(drawn().roll(n, 0) // (n + 1) + 30 * torch.eye(3, dtype=torch.int64)[n]))
        for n in range(3)
    )
    unit = [query.vector / np.linalg.norm(query.vector) for query in (a, b, c)]
    found = combined_query([a, b], [c], score="cosine")
    np.testing.assert_allclose(found.vector, unit[0] + unit[1] - unit[2], atol=1e-6)
    for score in ("dot", "euclidean"):
        np.testing.assert_allclose(
            combined_query([a, b], [c], score=score).vector, a.vector + b.vector - c.vector, atol=1e-6
        )
    assert (len(found.sides), len(found.minus)) == (2, 1)
    assert combined_query([a], [], score="cosine") is a
    assert found.title == f"{a.title} + {b.title} - {c.title}"
    for score in ("cosine", "dot"):
        with pytest.raises(GamlensError, match="cancel"):
            combined_query([a], [a], score=score)
    with pytest.raises(GamlensError, match="needs something to search for"):
        combined_query([], [c], score="cosine")
    with pytest.raises(GamlensError, match="different lengths"):
        combined_query([a], [Query(np.ones(5, np.float32), "other")], score="dot")


def test_nearly_equal_images_cancel_too() -> None:
    """What is left of two copies that differ by rounding is noise, and no direction."""
    vector = np.array([0.3, 0.4, 0.5], np.float32)
    other = vector * np.float32(1 + 2**-20)
    with pytest.raises(GamlensError, match="cancel"):
        combined_query([Query(vector, "a")], [Query(other, "b")], score="cosine")


def test_plus_and_minus_of_an_index(tmp_path: Path) -> None:
    """Red + blue - green among single colours, by hand."""
    lens = colour_lens("mean")
    colours = {
        "red": (250, 5, 5),
        "green": (5, 250, 5),
        "blue": (5, 5, 250),
        "purple": (250, 5, 250),
        "grey": (90,) * 3,
    }
    for name, colour in colours.items():
        Image.new("RGB", (64, 64), colour).save(tmp_path / f"{name}.png")
    index = Index.create(tmp_path / "i", lens)
    index.add(tmp_path)
    red, green, blue = (str(tmp_path / f"{name}.png") for name in ("red", "green", "blue"))
    hits = index.search(red, plus=[blue], minus=[green])
    assert [Path(hit.path).stem for hit in hits] == ["purple", "grey"]
    assert sorted(hits.left_out) == sorted([red, green, blue])
    assert Path(index.search(red, plus=[blue], with_self=True)[0].path).stem == "purple"
    assert Path(index.search(plus=[red, blue])[0].path).stem == "purple"


def test_zeros(tmp_path: Path) -> None:
    """A black image has no cosine: it is neither a query nor a hit, and harms nobody."""
    lens = colour_lens("mean")
    for name, level in (("black", 0), ("grey", 90)):
        Image.new("RGB", (64, 64), (level,) * 3).save(tmp_path / f"{name}.png")
    Image.new("RGB", (64, 64), (90, 0, 0)).save(tmp_path / "red.png")
    index = Index.create(tmp_path / "i", lens, activations=True)
    assert index.add(tmp_path).added == 3
    black = Image.new("RGB", (64, 64))
    for call in (
        lambda: index.search(black),
        lambda: index.search(black, box=(0, 0, 16, 16)),
        lambda: index.search(tmp_path / "red.png", minus=[black]),
    ):
        with pytest.raises(GamlensError, match="all zeros"):
            call()
    hits = index.search(Image.new("RGB", (64, 64), (80, 10, 10)))
    assert [Path(hit.path).stem for hit in hits] == ["red", "grey"]
    assert sorted(Path(hit.path).stem for group in index.clusters(2) for hit in group) == ["grey", "red"]
    dots = Index.create(tmp_path / "d", lens, score="dot")
    dots.add(tmp_path)
    assert [hit.score for hit in dots.search(black)] == [0, 0, 0]


class Encoder:
    """Captions as colours."""

    def __call__(self, captions: Sequence[str]) -> Tensor:
        return torch.tensor([[float(word in text) for word in ("red", "green", "blue")] for text in captions])


def test_captions(tmp_path: Path) -> None:
    plain = colour_lens("mean")
    lens = Lens(Colours("mean"), transform=plain.transform, blocks=["relu"], embedding="output", text=Encoder())
    for name, colour in {"red": (255, 0, 0), "blue": (0, 0, 255), "purple": (255, 0, 255)}.items():
        Image.new("RGB", (64, 64), colour).save(tmp_path / f"{name}.png")
    index = Index.create(tmp_path / "i", lens)
    index.add(tmp_path)
    hits = index.search(text="a red thing")
    assert [Path(hit.path).stem for hit in hits] == ["red", "purple", "blue"]
    assert [hit.score for hit in hits] == pytest.approx([1, 0.5**0.5, 0], abs=1e-6)
    assert (hits.query.caption, hits.query.sides) == ("a red thing", ())
    np.testing.assert_allclose(caption_query(lens, "blue and red").vector, [1, 0, 1])
    both = index.search(tmp_path / "red.png", text="blue")
    assert Path(both[0].path).stem == "purple"
    assert both[0].score == pytest.approx(1, abs=1e-6)
    assert len(both.query.sides) == 1
    minus = index.search(text="red", minus=[index.query(text="blue")])
    assert [Path(hit.path).stem for hit in minus] == ["red", "purple", "blue"]
    with pytest.raises(GamlensError, match="caption has no map"):
        index.explain(hits)
    with pytest.raises(GamlensError, match="caption is no image"):
        index.trace(hits)
    with pytest.raises(GamlensError, match="all zeros"):
        index.search(text="something else")
    with pytest.raises(GamlensError, match="Captions are texts"):
        index.search(text=" ")
    with pytest.raises(GamlensError, match="belong to an image"):
        index.search(text="red", box=(0, 0, 5, 5))


@pytest.mark.parametrize(
    "box", [(5, 5, 5, 9), (9, 0, 3, 9), (70, 0, 90, 9), (-9, 0, 0, 9), (0, 0, 5), "abcd", 7, (0, 0, float("nan"), 4),
            (0, 0, float("inf"), 4)]
)  # fmt: skip
def test_boxes_that_are_none(box: Any) -> None:
    with pytest.raises(GamlensError, match="box"):
        image_query(colour_lens("mean"), cells(drawn()), box=box)


@pytest.mark.parametrize("point", [(64, 0), (0, 64), (-1, 5), (float("nan"), 0), (1, 2, 3), "a", 7])
def test_points_that_are_none(point: Any) -> None:
    with pytest.raises(GamlensError, match="point"):
        image_query(colour_lens("mean"), cells(drawn()), point=point)


def test_a_small_network(tmp_path: Path) -> None:
    """A box of a convolutional network is the mean of the positions of its last block, in a loop."""
    lens = Lens(nets.small().float(), transform=Transform((SIZE, SIZE)))
    (path,) = put(tmp_path, 4)
    block = lens.remember([path]).activations[0].double()
    height, width = block.shape[1:]
    box = (20.0, 10.0, 90.0, 45.0)
    total, weight = torch.zeros(len(block), dtype=torch.float64), 0.0
    for row in range(height):
        for column in range(width):
            left, right = column * 100 / width, (column + 1) * 100 / width
            top, bottom = row * 80 / height, (row + 1) * 80 / height
            area = max(0.0, min(right, box[2]) - max(left, box[0])) * max(0.0, min(bottom, box[3]) - max(top, box[1]))
            total, weight = total + area * block[:, row, column], weight + area
    np.testing.assert_allclose(image_query(lens, path, box=box).vector, (total / weight).numpy(), rtol=1e-5, atol=1e-6)
    assert photo(4).size == (100, 80)
