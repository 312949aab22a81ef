"""What must hold for every call of a Lens: shapes, batches, targets, sizes."""

from __future__ import annotations

import warnings

import nets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gamlens import METHODS, GamlensError, GamlensWarning, Lens, Transform, methods

BLOCK_METHODS = methods.names("block")
LABELS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "ibex", "jay")
quiet = pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")


@pytest.fixture(scope="module")
def lens() -> Lens:
    return Lens(nets.small(), labels=LABELS)


@quiet
@pytest.mark.parametrize("method", BLOCK_METHODS)
@pytest.mark.parametrize("size", [64, (48, 96), (80, 64)])
def test_maps_are_float32_in_zero_one_at_input_size(lens: Lens, method: str, size: int | tuple[int, int]) -> None:
    batch = nets.images(3, size)
    result = lens.classify(batch, method=method, n=3)
    for maps in (result.maps, *result.blocks.values()):
        assert maps.shape == (3, *batch.shape[2:])
        assert maps.dtype == torch.float32
        assert float(maps.min()) >= 0
        assert float(maps.max()) <= 1
    assert list(result.blocks) == list(lens.blocks[-3:])
    if METHODS[method].stable:
        assert all(float(block.amax()) == 1 and float(block.amin()) == 0 for block in result.blocks.values())


@quiet
@pytest.mark.parametrize("method", BLOCK_METHODS)
def test_a_batch_equals_its_items(lens: Lens, method: str) -> None:
    batch = nets.images(4, (64, 80))
    whole = lens.classify(batch, method=method)
    for number in range(4):
        nets.same(whole[number], lens.classify(batch[number], method=method))
    assert not torch.allclose(whole.maps[0], whole.maps[1], atol=0.01)


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_batch_size_does_not_change_the_result(lens: Lens, batch_size: int) -> None:
    batch = list(nets.images(5))
    target = [[3, "cat"], None, [None], 0, [9, 8, 7]]
    parts, whole = lens.classify(batch, target, batch_size=batch_size), lens.classify(batch, target)
    nets.same(parts, whole)
    assert parts.names == whole.names
    assert [parts.picture(row).name for row in range(8)] == [whole.picture(row).name for row in range(8)]
    assert len(parts.pictures) == len(parts.frames) == 5


def test_many_ways_to_give_the_same_images(lens: Lens) -> None:
    batch = nets.images(3)
    whole = lens.classify(batch)
    for given_as in (list(batch), tuple(batch), [batch[:2], batch[2]], [batch[i : i + 1] for i in range(3)]):
        nets.same(lens.classify(given_as), whole)


def test_paths_pixels_and_arrays_are_the_same_image(lens: Lens, tmp_path: object) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)
    file = f"{tmp_path}/photo.png"
    Image.fromarray(pixels).save(file)
    result = lens.classify([file, Image.fromarray(pixels), pixels])
    assert result.maps.shape == (3, 224, 224)
    nets.same(result[1], result[0])
    nets.same(result[2], result[0])
    tensor, _ = Transform()(Image.fromarray(pixels))
    nets.same(lens.classify(tensor), result[0])


def test_several_targets_equal_the_single_calls(lens: Lens) -> None:
    batch = nets.images(3)
    result = lens.classify(batch, [[2, 5], ["jay"], [None, "Fox", 0]])
    top = lens.trace(batch).targets.tolist()
    assert result.index.tolist() == [0, 0, 1, 2, 2, 2]
    assert result.targets.tolist() == [2, 5, 9, top[2], 5, 0]
    assert result.names == ["cat", "fox", "jay", LABELS[top[2]], "fox", "ant"]
    for row, (image, target) in enumerate(zip(result.index.tolist(), result.targets.tolist(), strict=True)):
        nets.same(result[row], lens.classify(batch[image], target))
    assert not torch.allclose(result.maps[0], result.maps[1], atol=0.01)


@pytest.mark.parametrize("target", [torch.tensor([4, 4, 1]), np.array([4, 4, 1]), ("elk", "4", "bee"), [[4], (4,), 1]])
def test_targets_in_other_clothes(lens: Lens, target: object) -> None:
    nets.same(lens.classify(nets.images(3), target), lens.classify(nets.images(3), [4, 4, 1]))


def test_one_target_is_for_every_image_and_none_is_the_top_class(lens: Lens) -> None:
    batch = nets.images(3)
    nets.same(lens.classify(batch, 6), lens.classify(batch, [6, 6, 6]))
    nets.same(lens.classify(batch, "gnu"), lens.classify(batch, 6))
    top = lens.model(batch).argmax(dim=1)
    assert lens.classify(batch).targets.tolist() == top.tolist()
    assert lens.classify(batch).scores.tolist() == pytest.approx(lens.model(batch).amax(dim=1).tolist())


def test_one_against_many_equals_single_comparisons(lens: Lens) -> None:
    one, many = nets.images(1, seed=5), nets.images(3, seed=6)
    for result, swap in ((lens.compare(one, many), False), (lens.compare(many, one), True)):
        assert len(result) == len(result.x) == len(result.y) == 3
        for row in range(3):
            pair = (many[row], one) if swap else (one, many[row])
            single = lens.compare(*pair)
            for whole, alone in ((result.x, single.x), (result.y, single.y)):
                torch.testing.assert_close(whole.maps[row], alone.maps[0], atol=1e-6, rtol=0)
            assert float(result.scores[row]) == pytest.approx(float(single.scores[0]), abs=1e-6)


@pytest.mark.parametrize("counts", [(2, 2), (1, 2)])
def test_a_pair_may_have_two_sizes(lens: Lens, counts: tuple[int, int]) -> None:
    x, y = nets.images(counts[0], (64, 96), seed=1), nets.images(counts[1], (80, 48), seed=2)
    result, back = lens.compare(x, y), lens.compare(y, x)
    assert result.x.maps.shape == (2, 64, 96)
    assert result.y.maps.shape == (2, 80, 48)
    nets.same(result.x, back.y)
    nets.same(result.y, back.x)


def test_multi_label_models_use_the_sigmoid() -> None:
    lens = Lens(nets.small())
    batch = nets.images(2)
    lens.multi_label = True
    expected = lens.model(batch).sigmoid()[:, 3].tolist()
    assert lens.classify(batch, 3, score="probability").scores.tolist() == pytest.approx(expected)
    assert lens.trace(batch).top(1)[0][0].probability == pytest.approx(
        float(lens.model(batch).sigmoid()[0].max().detach())
    )


def test_a_model_that_takes_one_size_waits_for_its_first_image() -> None:
    class Fixed(nets.Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.features(x).flatten(2)[:, :, :16].reshape(len(x), 32, 16).mean(dim=2))

    class OnlySmall(Fixed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[2:] != (64, 64):
                raise ValueError("64 pixels only")
            return super().forward(x)

    lens = Lens(nets.seeded(OnlySmall))
    with pytest.raises(GamlensError, match="found when the first image comes"):
        _ = lens.blocks
    nets.same(lens.classify(nets.images(2)), Lens(nets.seeded(Fixed)).classify(nets.images(2)))
    assert lens.blocks == ("layer1", "layer2", "layer3")


PRECISIONS = {torch.float16: 20.0, torch.bfloat16: 1e4, torch.float32: 1e6, torch.float64: 1e12}
TINY = {dtype: Lens(nets.small().to(dtype)) for dtype in PRECISIONS}


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(1, 3),
    height=st.integers(17, 70),
    width=st.integers(17, 70),
    dtype=st.sampled_from(list(PRECISIONS)),
    level=st.floats(-1, 1),
    spread=st.sampled_from([0.0, 1e-20, 1e-3, 1.0]),
    method=st.sampled_from(methods.names("block", "pair")),
    n=st.integers(1, 3),
    data=st.data(),
)
def test_any_image_gives_usable_maps(
    count: int,
    height: int,
    width: int,
    dtype: torch.dtype,
    level: float,
    spread: float,
    method: str,
    n: int,
    data: st.DataObject,
) -> None:
    noise = torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    batch = ((level + spread * noise.double()) * PRECISIONS[dtype]).to(dtype)
    lens, kept = TINY[dtype], batch.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GamlensWarning)
        if METHODS[method].kind == "pair":
            pair = lens.compare(batch, batch[:1], method=method, n=n, score="dot")
            results = [pair.x, pair.y]
        else:
            results = [lens.classify(batch, method=method, n=n)]
    assert torch.equal(batch, kept)
    for result in results:
        for maps in (result.maps, *result.blocks.values()):
            assert maps.shape == (count, height, width)
            assert bool(maps.isfinite().all())
            assert float(maps.min()) >= 0
            assert float(maps.max()) <= 1
