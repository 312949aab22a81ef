"""Maps as files for wsolevaluation: read here by the rules of its evaluation.py, and equal to those of the lens."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nets
import numpy as np
import pytest
import torch
from PIL import Image

from gamlens import GamlensError, Lens, Transform, adapters, files
from gamlens.adapters import WsolId, default_ids, export_wsol, match_ids, read_ids
from gamlens.adapters.wsol_maps import MADE_BY
from gamlens.data import Sample
from gamlens.evaluation import explainers


@pytest.fixture
def samples(tmp_path: Path) -> list[Sample]:
    """Five photos of different sizes in val/ and val/below/."""
    made, draw = [], np.random.default_rng(0)
    for number in range(5):
        place = tmp_path / "data/val" / ("below" if number == 4 else "") / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 255, (40 + 8 * number, 70, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place)
        made.append(Sample(place.stem, str(place), (number,)))
    return made


def as_read(root: Path, ids: Sequence[str]) -> list[Any]:
    """The maps as wsolevaluation reads them: stacked to a batch, to numpy as float64, then checked."""
    batch = torch.utils.data.default_collate([np.load(os.path.join(root, image_id + ".npy")) for image_id in ids])
    maps = [one.detach().cpu().numpy().astype(float) for one in batch]
    for one in maps:
        assert isinstance(one, np.ndarray)
        assert one.dtype == float
        assert one.shape == (224, 224)  # true boxes are stretched to this size
        assert not np.isnan(one).any()
        assert 0 <= one.min() <= one.max() <= 1
    return maps


def test_the_benchmark_can_read_them(lens: Lens, samples: list[Sample], tmp_path: Path) -> None:
    out, calls = tmp_path / "maps", []
    done = export_wsol(lens, samples, out, n=2, batch_size=2, status=lambda *numbers: calls.append(numbers))
    assert (done.written, done.kept, done.errors, done.several) == (5, 0, {}, 0)
    assert calls == [(0, 0), (2, 0), (4, 0), (5, 0)]
    ids = ["val/0.png", "val/1.png", "val/2.png", "val/3.png", "below/4.png"]
    maps = as_read(out, ids)
    result = lens.classify([sample.image for sample in samples], [0, 1, 2, 3, 4], n=2)
    for row, found in enumerate(maps):
        assert (found.min(), found.max()) == (0, 1)
        own = torch.nn.functional.interpolate(result.maps[None, row : row + 1], (224, 224), mode="bilinear")[0, 0]
        own = (own - own.min()) / (own.max() - own.min())
        np.testing.assert_allclose(found, own.numpy(), atol=1e-6)
    assert sorted(place.name for place in out.iterdir()) == ["below", MADE_BY, "val"]
    assert not list(out.rglob("*.part"))


def test_sizes_and_values(lens: Lens, samples: list[Sample], tmp_path: Path) -> None:
    result = lens.classify([sample.image for sample in samples], [0, 1, 2, 3, 4], method="layer_cam", n=1)
    expected = {"image": [result.full(row) for row in range(5)], "input": list(result.maps)}
    for size, maps in expected.items():
        out = tmp_path / size
        export_wsol(lens, samples, out, size=size, stretch=False, method="layer_cam", n=1)
        for name, own in zip(default_ids(samples), maps, strict=True):
            found = np.load(out / f"{name}.npy")
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, own.numpy(), atol=1e-6)


def test_a_crop_lies_where_it_was_cut_out(samples: list[Sample], tmp_path: Path) -> None:
    """A model that sees the centre of an image has a map of zeros around it, in the stretched image as well."""
    lens = Lens(nets.small().float(), transform=Transform((64, 64), mode="crop", short=64))
    export_wsol(lens, samples[:1], tmp_path / "maps", n=1, stretch=False)
    found = np.load(tmp_path / "maps/val/0.png.npy")
    assert found.shape == (224, 224)
    columns = np.flatnonzero(found.any(axis=0))  # of 40 x 70 pixels the middle 40 x 40 are seen
    assert columns.min() >= 224 * 15 / 70 - 1
    assert columns.max() <= 224 * 55 / 70 + 1
    assert found.any(axis=1).mean() > 0.9


def test_the_top_class(lens: Lens, samples: list[Sample], tmp_path: Path) -> None:
    unlabelled = [Sample(one.name, one.image) for one in samples]
    done = export_wsol(lens, unlabelled, tmp_path / "top", target="top", size="input", stretch=False)
    assert done.written == 5
    expected = lens.classify([one.image for one in samples]).maps
    np.testing.assert_allclose(np.load(tmp_path / "top/val/3.png.npy"), expected[3].numpy(), atol=1e-6)
    missing = export_wsol(lens, [*unlabelled[:1], *samples[1:]], tmp_path / "label")
    assert missing.written == 4
    assert "has no label" in missing.errors["val/0.png"]


def test_of_several_labels_the_first_is_explained(lens: Lens, samples: list[Sample], tmp_path: Path) -> None:
    two = [Sample("0", samples[0].image, (3, 8))]
    assert export_wsol(lens, two, tmp_path / "maps", size="input", stretch=False).several == 1
    found = np.load(tmp_path / "maps/val/0.png.npy")
    np.testing.assert_allclose(found, lens.classify(samples[0].image, 3).maps[0].numpy(), atol=1e-6)


def test_it_continues(lens: Lens, samples: list[Sample], tmp_path: Path) -> None:
    out = tmp_path / "maps"
    export_wsol(lens, samples[:2], out)
    times = {file: file.stat().st_mtime_ns for file in out.rglob("*.npy")}
    done = export_wsol(lens, samples, out)
    assert (done.written, done.kept) == (3, 2)
    assert all(file.stat().st_mtime_ns == time for file, time in times.items())
    with pytest.raises(GamlensError, match=r"What differs: method, n \(method was 'auto', now 'layer_cam'"):
        export_wsol(lens, samples, out, method="layer_cam", n=1)
    with pytest.raises(GamlensError, match="What differs: weights"):
        export_wsol(Lens(nets.small(seed=1).float(), transform=lens.transform), samples, out)
    done = export_wsol(lens, samples[:1], out, method="layer_cam", n=1, fresh=True)
    assert (done.written, done.kept) == (1, 0)
    assert [file.name for file in out.rglob("*.npy")] == ["0.png.npy"]
    (out / MADE_BY).write_text("{")
    with pytest.raises(GamlensError, match="cannot be read"):
        export_wsol(lens, samples, out)


def test_files_of_others_are_not_taken_for_ours(lens: Lens, samples: list[Sample], tmp_path: Path) -> None:
    (tmp_path / "maps/val").mkdir(parents=True)
    (tmp_path / "maps/val/2.png.npy").write_bytes(b"mine")
    for fresh in (False, True):
        with pytest.raises(GamlensError, match="no export wrote it"):
            export_wsol(lens, samples, tmp_path / "maps", fresh=fresh)
    assert (tmp_path / "maps/val/2.png.npy").read_bytes() == b"mine"


def test_a_damaged_image(lens: Lens, samples: list[Sample], tmp_path: Path) -> None:
    Path(samples[1].image).write_bytes(Path(samples[1].image).read_bytes()[:100])
    os.remove(samples[2].image)
    wrong = [*samples[:4], Sample("4", samples[4].image, (99,))]
    done = export_wsol(lens, wrong, tmp_path / "maps", batch_size=5)
    assert done.written == 2
    assert {name: why.split(":")[0] for name, why in done.errors.items()} == {
        "val/1.png": f"Cannot read {samples[1].image!r} as an image",
        "val/2.png": f"There is no file {samples[2].image!r}",
        "below/4.png": "There is no class 99",
    }
    assert sorted(file.name for file in (tmp_path / "maps").rglob("*.npy")) == ["0.png.npy", "3.png.npy"]


def test_what_would_hit_every_image_is_raised(lens: Lens, samples: list[Sample], tmp_path: Path) -> None:
    with pytest.raises(GamlensError, match="n=9"):
        export_wsol(lens, samples, tmp_path / "maps", n=9)
    assert not (tmp_path / "maps").exists()


def test_a_full_disk_is_one_error(
    lens: Lens, samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count = os.replace, []

    def full(a: Any, b: Any) -> None:
        count.append(b)
        if len(count) > 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(b))
        real(a, b)

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(GamlensError, match=r"No space left on device.*make room, then give the same command again"):
        export_wsol(lens, samples, tmp_path / "maps", batch_size=2)
    monkeypatch.undo()
    assert len(list((tmp_path / "maps").rglob("*.npy"))) == 2  # the first batch
    assert export_wsol(lens, samples, tmp_path / "maps", batch_size=2).kept == 2


def test_a_name_that_cannot_be_written(lens: Lens, samples: list[Sample], tmp_path: Path) -> None:
    ids = ["a", "b" * 300, "c/d", "e", "f"]
    done = export_wsol(lens, samples, tmp_path / "maps", ids=ids)
    assert done.written == 4
    assert "File name too long" in done.errors["b" * 300]


@pytest.mark.parametrize("bad", ["../x", "a/../../x", "/etc/x", "", "a//b", "./a", "C:/x", "..\\x", "a\0b", ".."])
def test_an_id_that_leads_out_of_the_folder_is_refused(
    lens: Lens, samples: list[Sample], tmp_path: Path, bad: str
) -> None:
    with pytest.raises(GamlensError, match="no path below a folder"):
        export_wsol(lens, samples[:2], tmp_path / "maps", ids=["good", bad])
    assert not (tmp_path / "maps").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": ["a"]}, "5 samples and 1 ids"),
        ({"ids": ["a", "b", "c", "d", "a"]}, "1 ids stand for several images, such as 'a'"),
        ({"target": "best"}, "'label'"),
        ({"size": 0}, "number of pixels"),
        ({"size": "large"}, "number of pixels"),
        ({"batch_size": 0}, "at least 1"),
        ({"method": "gamm"}, "did you mean 'gam'"),
    ],
)
def test_wrong_options(
    lens: Lens, samples: list[Sample], tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(GamlensError, match=message):
        export_wsol(lens, samples, tmp_path / "maps", **options)
    assert not (tmp_path / "maps").exists()


def test_another_packages_explainer(
    lens: Lens, samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method with a colon is looked up among the explainers of evaluations."""
    seen: list[list[int]] = []

    def classify(batch: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(targets.tolist())
        return batch.mean(dim=1)

    made = {"x:Mine": classify, "x:Pairs": None}

    def find(name: str) -> Any:
        bind = lambda lens: SimpleNamespace(classify=made[name])  # noqa: E731
        return SimpleNamespace(bind=bind, by_name=None, source=version[-1])

    version = ["x 1.0"]
    monkeypatch.setattr(explainers, "find", find)
    assert export_wsol(lens, samples, tmp_path / "a", method="x:Mine").written == 5
    assert export_wsol(lens, samples, tmp_path / "b", method="x:Mine", target="top").written == 5
    top = lens.outputs([sample.image for sample in samples]).argmax(dim=1).tolist()
    assert seen == [[0, 1, 2, 3, 4], top]
    assert as_read(tmp_path / "a", ["val/0.png"])[0].max() == 1
    with pytest.raises(GamlensError, match="leave n, views out"):
        export_wsol(lens, samples, tmp_path / "c", method="x:Mine", n=1, views=("flip",))
    with pytest.raises(GamlensError, match="explains pairs"):
        export_wsol(lens, samples, tmp_path / "c", method="x:Pairs")
    version.append("x 2.0")
    with pytest.raises(GamlensError, match=r"What differs: explainer \(explainer was 'x 1.0', now 'x 2.0'\)"):
        export_wsol(lens, samples, tmp_path / "a", method="x:Mine")


def test_maps_in_files_are_not_exported(lens: Lens, samples: list[Sample], tmp_path: Path) -> None:
    with pytest.raises(GamlensError, match="are maps in files already"):
        export_wsol(lens, samples, tmp_path / "maps", method=f"maps:{tmp_path}")


def test_sharp_and_views(lens: Lens, samples: list[Sample], tmp_path: Path) -> None:
    export_wsol(lens, samples, tmp_path / "maps", sharp=True, views=("flip",), size="input", stretch=False)
    expected = lens.classify([one.image for one in samples], [0, 1, 2, 3, 4], sharp=True, views=("flip",)).maps
    np.testing.assert_allclose(np.load(tmp_path / "maps/val/2.png.npy"), expected[2].numpy(), atol=1e-6)
    assert json.loads((tmp_path / "maps" / MADE_BY).read_text())["refine"] == {"blocks": 2, "keep": 0.5}


def test_lists_of_the_benchmark(tmp_path: Path) -> None:
    (tmp_path / "image_ids.txt").write_text("val/a,b.JPEG\n\nval/c.JPEG\n")
    (tmp_path / "class_labels.txt").write_text("val/a,b.JPEG,7\nval/c.JPEG,12\n")
    assert read_ids(tmp_path / "image_ids.txt") == [WsolId("val/a,b.JPEG"), WsolId("val/c.JPEG")]
    assert read_ids(tmp_path / "class_labels.txt") == [WsolId("val/a,b.JPEG", 7), WsolId("val/c.JPEG", 12)]
    (tmp_path / "empty.txt").touch()
    with pytest.raises(GamlensError, match="is empty"):
        read_ids(tmp_path / "empty.txt")
    with pytest.raises(GamlensError, match="Cannot read the list of ids"):
        read_ids(tmp_path / "none.txt")


def test_images_are_found_by_the_end_of_their_path() -> None:
    paths = ["r/val/n01/a.JPEG", "r/val2/0/0.jpeg", "r/val2/1/0.jpeg", "r/val2/1/1.jpeg"]
    samples = [Sample(path, path, (5,)) for path in paths]
    listed = [WsolId("val2/1/0.jpeg", 1), WsolId("val/a.JPEG"), WsolId("val2/7/0.jpeg"), WsolId("val/none.JPEG")]
    found = match_ids(samples, listed)
    assert [sample.name for sample in found.samples] == ["r/val2/1/0.jpeg", "r/val/n01/a.JPEG"]
    assert [sample.labels for sample in found.samples] == [(1,), (5,)]
    assert found.ids == ("val2/1/0.jpeg", "val/a.JPEG")
    assert found.missing == ("val2/7/0.jpeg", "val/none.JPEG")


def test_default_ids() -> None:
    places = ["/data/val/a.JPEG", "a.png", "/a.png", "../a.png"]
    assert default_ids(Sample(place, place) for place in places) == ["val/a.JPEG", "a.png", "a.png", "a.png"]
    assert adapters.default_ids is default_ids
