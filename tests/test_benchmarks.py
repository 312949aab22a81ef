"""What the benchmarks count and call: peers on tokens, the floor by FLOPs, the cases of an axis, the pictures."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import gpu
import growth
import nets
import numpy as np
import pytest
import search
import search_speed
import search_vectors
import spine
import tools
import torch
import torch.nn.functional as F
from torchvision.models import VisionTransformer

from gamlens import Index, Lens
from gamlens.index.queries import Query


@pytest.fixture(scope="module")
def vit() -> Lens:
    torch.manual_seed(0)
    model = VisionTransformer(64, 8, num_layers=3, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=1000).eval()
    torch.nn.init.normal_(model.heads.head.weight)
    lens = Lens(model)
    lens.trace(torch.randn(1, 3, 64, 64), 0, n=1)
    return lens


@pytest.fixture(scope="module")
def on_tokens(vit: Lens) -> tuple[torch.Tensor, dict[str, Any]]:
    pytest.importorskip("captum")
    pytest.importorskip("torchcam")
    pytest.importorskip("pytorch_grad_cam")
    batch = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    return batch, gpu.peers(vit, batch, [3, 5])


def unit(maps: torch.Tensor) -> torch.Tensor:
    low, high = maps.amin(dim=(1, 2), keepdim=True), maps.amax(dim=(1, 2), keepdim=True)
    return (maps - low) / (high - low)


def test_peers_read_the_same_tokens_in_the_same_places(
    vit: Lens, on_tokens: tuple[torch.Tensor, dict[str, Any]]
) -> None:
    """Their Grad-CAM of a ViT is ours, resized in their way; grad-cam stretches to [0,1] once more after that."""
    batch, found = on_tokens
    mine = unit(vit.trace(batch, [3, 5], n=1).raw("grad_cam"))
    mine = F.interpolate(mine[:, None], (64, 64), mode="bilinear")[:, 0]
    torch.testing.assert_close(found["torchcam GradCAM n=1"](), mine, rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.from_numpy(found["grad-cam GradCAM n=1"]()), unit(mine), rtol=0, atol=1e-2)
    assert found["torchcam LayerCAM n=2"]().shape == mine.shape


def test_captum_on_tokens(vit: Lens, on_tokens: tuple[torch.Tensor, dict[str, Any]]) -> None:
    """LayerGradCam leaves no map of tokens, which is said; gradient times activation does."""
    batch, found = on_tokens
    assert found["captum LayerGradCam n=1"] == found["captum LayerGradCam n=2"] == "not for tokens: it sums over them"
    layer = dict(vit.model.named_modules())[vit.blocks[-1].removesuffix(":tokens")]
    attr = pytest.importorskip("captum.attr")
    assert attr.LayerGradCam(vit.model, layer).attribute(batch, [3, 5]).shape == (2, 1, 16)
    maps = found["captum LayerGradientXActivation n=1"]()
    mine = vit.trace(batch, [3, 5], n=1).raw("hires_cam")
    low = F.interpolate(mine[:, None], (64, 64), mode="bilinear")
    sure = low > 0.5 * low.amax()
    assert maps.shape == (2, 1, 64, 64)
    assert (maps[sure] > 0).all()


def test_a_peer_that_cannot_is_a_row_with_a_note() -> None:
    fixed = {"model": "m", "batch": 1, "precision": "fp32", "mode": "eager", "device": "cpu"}
    row = {"tool": "a", "images_s": 2.0, "ratio": 1.5, "low": 1.0, "high": 2.0, "peak_ratio": float("nan")}
    lines = gpu.table([fixed | row, fixed | {"tool": "b", "note": "not for tokens"}]).splitlines()
    assert lines[-2:] == ["| a | 2.0/s, 1.50 |", "| b | not for tokens |"]


def test_floor_is_the_forward_and_the_backward_of_the_tail() -> None:
    """Two stages of Small are 16 -> 24 at 1/8 and 24 -> 32 at 1/16: as many FLOPs back as forward behind a block."""
    lens, batch = Lens(nets.small().float()), nets.images(1).float()
    whole = growth.operations(lambda: lens.model(batch))
    head, last = 2 * 32 * nets.CLASSES, 2 * 9 * 24 * 32 * (batch.shape[2] // 16) ** 2
    for n, behind in ((1, head), (2, head + last)):
        assert growth.operations(lambda n=n: growth.ours(lens, batch, 1, n)) == whole + behind
    assert growth.operations(lambda: growth.ours(lens, batch, 3, 2)) == whole + 3 * (head + last)


def test_attention_is_counted_in_a_plain_forward(vit: Lens) -> None:
    batch = torch.randn(1, 3, 64, 64)
    plain = growth.operations(gpu.plain(vit.model, batch, None))
    with torch.enable_grad():
        assert plain == growth.operations(lambda: vit.model(batch))


def test_cases_move_one_thing_at_a_time() -> None:
    found = list(growth.cases(list(growth.AXES), "cpu", 4))
    assert [case.numbers for case in found if case.axis == "n"] == [(1, 2, 3, 4)]
    assert [case.x for case in found if case.axis == "targets"] == list(growth.TARGETS)
    for axis in ("batch", "side", "targets"):
        others = {"batch", "side", "targets"} - {axis}
        assert all(len({getattr(case, other) for case in found if case.axis == axis}) == 1 for other in others)
    assert {case.numbers for case in growth.cases(["batch"], "cuda", 1)} == {(1,)}


def test_rows_and_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lens, device = Lens(nets.small().float()), torch.device("cpu")
    fixed = {"model": "small", "kind": "cpu", "hardware": "a CPU", "threads": 1}
    steps = (growth.Case("n", 2, 64, 1, (1, 2)), growth.Case("targets", 1, 64, 1, (1,)))
    rows = [fixed | row for case in steps for row in growth.measure(lens, case, 3, device)]
    assert [(row["axis"], row["x"], row["n"]) for row in rows] == [("n", 1, 1), ("n", 2, 2), ("targets", 1, 1)]
    assert all(row["ratio"] > 0 and row["peak_ratio"] > 0 and row["flops"] > 1 for row in rows)
    files = growth.draw(rows, tmp_path / "images")
    assert [file.name for file in files] == ["growth-time-small-cpu.png", "growth-memory-small-cpu.png"]
    assert all(file.stat().st_size > 10_000 for file in files)


def test_patches_are_rows_of_tokens_behind_the_class_token() -> None:
    tokens = torch.arange(5.0)[None, :, None].expand(1, 5, 2)
    assert tools.patches(tokens)[0, 1].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("n", [1, 2])
def test_the_sketch_beside_which_we_are_measured_gives_our_maps(n: int) -> None:
    lens, batch = Lens(nets.small().float()), nets.images(2).float()
    layers = [dict(lens.model.named_modules())[name] for name in lens.blocks[-n:]]
    torch.testing.assert_close(
        tools.sketch(lens.model, layers)(batch, [1, 2]), lens.classify(batch, [1, 2], n=n).maps, rtol=0, atol=1e-6
    )


def test_made_vectors_are_like_photos_and_repeatable() -> None:
    """Where all photos have the same value, made vectors have it, too: it has no spread, so it gets no noise."""
    photos = np.random.default_rng(0).uniform(0, 1, (30, 8)).astype(np.float32)
    photos[:, 0] = 3
    rows = np.concatenate(list(search_vectors.made_rows(photos, 500, seed=1)))
    assert rows.shape == (500, 8)
    assert rows.dtype == np.float32
    assert (rows >= 0).all()
    np.testing.assert_allclose(rows[:, 0], 3, rtol=1e-5)
    assert np.array_equal(rows, np.concatenate(list(search_vectors.made_rows(photos, 500, seed=1))))
    assert not np.array_equal(rows, np.concatenate(list(search_vectors.made_rows(photos, 500, seed=2))))


def test_projected_vectors_keep_distances_along_the_main_axes() -> None:
    flat = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32) @ np.ones((2, 6), np.float32)
    found = search_vectors.projected(flat, 2)
    assert found.shape == (20, 2)
    np.testing.assert_allclose(np.linalg.norm(found[0] - found[1:], axis=1), np.linalg.norm(flat[0] - flat[1:], axis=1),
                               rtol=1e-4)  # fmt: skip
    assert search_vectors.projected(flat, 6) is flat


def test_a_filled_index_is_one_that_the_package_would_have_written(tmp_path: Path) -> None:
    photos = np.random.default_rng(0).uniform(0, 1, (30, 12)).astype(np.float32)
    place = search_vectors.filled_index(tmp_path, Lens(nets.small().float()), photos, 300)
    assert search_vectors.use_backend(place, "exact")["dimension"] == 12
    wanted = next(search_vectors.made_rows(photos, 300, seed=1))[7]
    with Index.open(place) as index:
        assert (len(index), index.check()) == (300, [])
        best = index.search(Query(wanted, "row 7"), top=2, where="share >= 0")[0]
    assert best.slot == 7
    assert best.score == pytest.approx(1)
    assert best.metadata == {"share": pytest.approx(best.metadata["share"]), "price": 7, "colour": "blue"}


def test_recall_counts_what_there_is_to_find() -> None:
    truth = np.array([[1, 2, 3, 4], [5, 6, -1, -1], [-1, -1, -1, -1]])
    found = [np.array([4, 3, 2, 9]), np.array([6]), np.array([], dtype=np.int64)]
    assert search_speed.recall(truth, found) == pytest.approx((3 / 4 + 1 / 2) / 2)


def test_precision_is_beside_its_chance_and_its_bound() -> None:
    """Two classes of two photos: one of the three others is right, and at most one of ten hits."""
    samples = [search.Sample(name, name, (label,)) for name, label in zip("abcd", (0, 0, 1, 1), strict=True)]
    row = search.whole_row("net", samples, [[True, False, False]] * 3 + [[False, False, True]])
    assert row[1:3] == ("3", "4")
    assert row[3].startswith("75.0 [50.0, 100.0]")
    assert row[3].endswith("chance 33.3")
    assert row[4].endswith("at most 10.0")


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(spine.__file__).parent.glob("*.py")))
def test_every_benchmark_can_be_imported(name: str) -> None:
    """What a benchmark imports from the package is there; what it does is left to those who run it."""
    assert importlib.import_module(name).__doc__
