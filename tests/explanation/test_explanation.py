"""What can be done with a result: rows, places in the original image, files, pickles, notebooks."""

from __future__ import annotations

import builtins
import contextlib
import errno
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import nets
import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from gamlens import Explanation, GamlensError, Lens, PairExplanation, Refinement, Transform
from gamlens.errors import GamlensDeprecationWarning

LABELS = ("ant", "bee", "cat", "a/b: c?", "elk", "fox", "gnu", "hen", "ibex", "jay")


def photo(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def small_lens(mode: str = "squash") -> Lens:
    return Lens(nets.small(), labels=LABELS, transform=Transform(size=(64, 64), mode=mode, short=72))


@pytest.fixture
def result(tmp_path: Path) -> Explanation:
    """Five rows of three images: a file, pixels, a preprocessed tensor."""
    photo(90, 60).save(tmp_path / "photo.png")
    return small_lens().classify([tmp_path / "photo.png", photo(50, 70), nets.images(1)], [[2, 3], 9, [0, 0]])


def identical(a: Explanation, b: Explanation) -> None:
    """Everything but the pictures, to the bit."""
    assert torch.equal(a.maps, b.maps)
    assert list(a.blocks) == list(b.blocks)
    assert all(torch.equal(a.blocks[name], b.blocks[name]) for name in a.blocks)
    for part in ("scores", "targets", "index"):
        assert torch.equal(getattr(a, part), getattr(b, part))
        assert getattr(a, part).dtype == getattr(b, part).dtype
    assert a.names == b.names
    assert dict(a.about) == dict(b.about)
    assert a.frames == b.frames
    assert [picture.name for picture in a.pictures] == [picture.name for picture in b.pictures]
    assert torch.equal(a.boxes(), b.boxes())


def looks(image: Image.Image) -> list[int]:
    return [*image.size, *image.tobytes()]


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 0, 2, 1, 3]])
def test_each_image_by_itself(result: Explanation, order: list[int]) -> None:
    """Its own rows in their order, whatever lies between them; views where nothing does."""
    index = [0, 0, 1, 2, 2]
    mixed = replace(
        result,
        maps=result.maps[order],
        blocks={name: maps[order] for name, maps in result.blocks.items()},
        scores=result.scores[order],
        targets=result.targets[order],
        index=result.index[order],
    )
    parts = mixed.each()
    assert len(parts) == 3
    for image, part in enumerate(parts):
        rows = [row for row in order if index[row] == image]
        assert torch.equal(part.maps, result.maps[rows])
        assert all(torch.equal(part.blocks[name], maps[rows]) for name, maps in result.blocks.items())
        assert (part.scores.tolist(), part.targets.tolist()) == (
            result.scores[rows].tolist(),
            result.targets[rows].tolist(),
        )
        assert part.index.tolist() == [0] * len(rows)
        assert (part.pictures, part.frames) == ((result.pictures[image],), (result.frames[image],))
        assert (part.labels, part.about) == (result.labels, result.about)
    shared = parts[1].maps.data_ptr() == mixed.maps[2].data_ptr()
    assert shared == (order == sorted(order))


def test_an_image_without_rows(result: Explanation) -> None:
    parts = replace(result, index=torch.tensor([0, 0, 0, 2, 2])).each()
    assert [len(part) for part in parts] == [3, 0, 2]


def test_saved_and_loaded_is_the_same(result: Explanation, tmp_path: Path) -> None:
    files = result.save(str(tmp_path / "new" / "out"))
    assert all(Path(file).is_file() for file in files)
    assert sum(file.endswith(".png") for file in files) == 5 + 2
    again = Explanation.load(str(tmp_path / "new" / "out"))
    identical(result, again)
    for row in range(5):
        assert looks(again.overlay(row)) == looks(result.overlay(row))
    again.save(str(tmp_path / "second"))
    identical(result, Explanation.load(str(tmp_path / "second")))
    assert not list((tmp_path / "new" / "out").glob("*.part"))


def test_a_callable_score_is_saved_by_name(tmp_path: Path) -> None:
    def margin(output: torch.Tensor) -> torch.Tensor:
        return output[:, 0] - output[:, 1]

    result = small_lens().trace(nets.images(2), score=margin).explain(fuse=[1, 2])
    result.save(str(tmp_path))
    assert Explanation.load(str(tmp_path)).names == ["margin", "margin"]
    identical(result, Explanation.load(str(tmp_path)))


def test_how_a_map_was_refined_is_saved_and_pickled(tmp_path: Path) -> None:
    result = small_lens().classify(nets.images(2), [[1, 2], 3], n=1, refine=Refinement(2, 0.25))
    pair = small_lens().compare(nets.images(2), nets.images(2, seed=1), n=1, refine=1)
    result.save(str(tmp_path / "one"))
    pair.save(str(tmp_path / "pair"))
    for again in (
        Explanation.load(str(tmp_path / "one")),
        pickle.loads(pickle.dumps(result)),
        result[1:],
        result.cpu(),
    ):
        assert again.about["refine"] == {"blocks": ["layer2", "layer1"], "keep": 0.25}
    identical(result, Explanation.load(str(tmp_path / "one")))
    for both in (PairExplanation.load(str(tmp_path / "pair")), pickle.loads(pickle.dumps(pair))):
        identical(pair.x, both.x)
        assert both.x.about["refine"] == both.y.about["refine"] == {"blocks": ["layer2"], "keep": 0.5}


def test_a_pickle_is_the_same(result: Explanation) -> None:
    again = pickle.loads(pickle.dumps(result))
    identical(result, again)
    assert again.labels == result.labels
    assert [looks(again.overlay(row)) for row in range(5)] == [looks(result.overlay(row)) for row in range(5)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (0, [0]),
        (-1, [4]),
        (slice(1, 4), [1, 2, 3]),
        (slice(None, None, -2), [4, 2, 0]),
        ([3, 0, 3], [3, 0, 3]),
        ([], []),
        ([True, False, True, False, True], [0, 2, 4]),
        (torch.tensor([False, True, False, False, True]), [1, 4]),
        (torch.tensor([2, 4]), [2, 4]),
        (np.array([1, 3]), [1, 3]),
        (np.int64(2), [2]),
    ],
)
def test_some_rows(result: Explanation, rows: object, expected: list[int]) -> None:
    part = result[rows]
    assert len(part) == len(expected)
    assert torch.equal(part.maps, result.maps[expected])
    assert torch.equal(part.scores, result.scores[expected])
    assert part.names == [result.names[row] for row in expected]
    for here, there in enumerate(expected):
        assert part.picture(here) is result.picture(there)
        assert part.full(here).shape == result.full(there).shape
        assert torch.equal(part.boxes()[here], result.boxes()[there])
    assert len(part.pictures) == len(part.frames) == len(set(result.index[expected].tolist()))


@pytest.mark.parametrize("rows", [5, -6, [0, 5], [True, False]])
def test_rows_that_are_not_there(result: Explanation, rows: object) -> None:
    with pytest.raises(IndexError):
        _ = result[rows]


def test_rows_can_be_walked_through(result: Explanation) -> None:
    assert [row.names[0] for row in result] == ["cat", "a/b: c?", "jay", "ant", "ant"]


@pytest.mark.parametrize(("width", "height"), [(90, 60), (60, 90), (64, 64), (301, 200)])
@pytest.mark.parametrize("mode", ["squash", "crop"])
def test_places_are_those_of_the_original(mode: str, width: int, height: int) -> None:
    result = small_lens(mode).classify(photo(width, height), 3)
    full, mask, box = result.full(), result.masks(0.4)[0], result.boxes(0.4)[0]
    assert full.shape == mask.shape == (height, width)
    assert mask.dtype == torch.bool
    assert float(full.max()) <= 1
    assert float(full.min()) >= 0
    assert 0 <= box[0] < box[2] <= width
    assert 0 <= box[1] < box[3] <= height
    assert result.overlay(threshold=0.4).size == (width, height)
    x0, y0, x1, y1 = (round(value) for value in result.frames[0].window)
    seen = torch.nn.functional.interpolate(full[None, None, y0:y1, x0:x1], size=(64, 64), mode="area")[0, 0]
    assert float((seen - result.maps[0]).abs().mean()) < 0.03
    ys, xs = mask.nonzero(as_tuple=True)
    tight = torch.stack([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
    assert float((tight - box).abs().max()) <= 0.02 * max(width, height) + max(width, height) / 64
    if mode == "crop":
        side = 64 / 72 * min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        assert box[0] >= left - width / 72
        assert box[2] <= width - left + width / 72
        assert float(full[:, : int(left) - 1].sum() if left > 2 else 0) == 0
        assert float(full[: int(top) - 1].sum() if top > 2 else 0) == 0


def test_a_turned_file_is_explained_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = photo(90, 60)
    image.save(tmp_path / "turned.png", exif=exif)
    result = small_lens().classify(tmp_path / "turned.png", 3)
    assert result.full().shape == (90, 60)
    assert result.overlay().size == (60, 90)
    nets.same(result, small_lens().classify(image.transpose(Image.Transpose.ROTATE_270), 3))
    result.save(str(tmp_path / "out"))
    assert Explanation.load(str(tmp_path / "out")).overlay().size == (60, 90)


def test_a_notebook_shows_images(result: Explanation) -> None:
    html = result._repr_html_()
    assert html.count("<img") == 5
    assert "a/b: c?" in html
    assert "data:image/" in html


NOT_WHOLE = r"Cannot read the explanation in|is not whole|rows in explanation\.json"
BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (lambda at: at.rename(at.with_name("gone")), r"not a saved explanation: explanation\.json is missing"),
    "no json": (lambda at: (at / "explanation.json").unlink(), r"explanation\.json is missing"),
    "no maps": (lambda at: (at / "maps.npz").unlink(), r"maps\.npz is missing"),
    "half a json": (lambda at: cut(at / "explanation.json"), r"Cannot read the explanation in"),
    "half the maps": (lambda at: cut(at / "maps.npz"), r"Cannot read the explanation in"),
    "empty maps": (lambda at: (at / "maps.npz").write_bytes(b""), r"Cannot read the explanation in"),
    "a list": (lambda at: (at / "explanation.json").write_text("[]"), r"Cannot read the explanation in|format"),
    "another format": (lambda at: change(at, format=99), r"format 99; this version of gamlens reads format 1"),
    "no rows": (lambda at: change(at, rows=None), NOT_WHOLE),
    "fewer rows": (lambda at: change(at, rows=[]), NOT_WHOLE),
    "no map in maps": (lambda at: np.savez(at / "maps.npz", other=np.zeros(3)), NOT_WHOLE),
    "a class of 300 million": (lambda at: change_row(at, target=300_000_000), "class 300000000 has a name"),
    "a class below none": (lambda at: change_row(at, target=-2), "explains class -2"),
    "half a class": (lambda at: change_row(at, target=1.5), r"whole number, found 1\.5"),
    "an image that is not there": (lambda at: change_row(at, image=99), "on image 99 of"),
    "an image before the first": (lambda at: change_row(at, image=-1), "on image -1 of"),
    "a score of text": (lambda at: change_row(at, score="high"), NOT_WHOLE),
    "a huge image": (lambda at: change_image(at, original=[10**5, 10**5]), r"100000 x 100000 pixels"),
    "an endless window": (lambda at: change_image(at, window=[0, 0, 1e300, 1e300]), "no part of an image"),
    "another input": (lambda at: change_image(at, size=[3, 3]), r"an input of \[3, 3\]"),
    "a path of numbers": (lambda at: change_image(at, kept=5), "and the file 5"),
    "about a list": (lambda at: change(at, about=[1]), "no object"),
    "maps of integers": (lambda at: np.savez(at / "maps.npz", maps=np.zeros((5, 64, 64), int)), "not one map"),
    "maps of objects": (lambda at: np.savez(at / "maps.npz", maps=np.array([{}] * 5)), "maps.npy claims object"),
    "flat maps": (lambda at: np.savez(at / "maps.npz", maps=np.zeros((5, 64), np.float32)), "not one map"),
    "a block of another size": (
        lambda at: np.savez(at / "maps.npz", **{"maps": zeros(64), "block:a": zeros(8)}),
        "differ in size",
    ),
    "lists in lists": (lambda at: (at / "explanation.json").write_text("[" * 200_000), "Cannot read the explanation"),
}


def zeros(side: int) -> np.ndarray:
    return np.zeros((5, side, side), np.float32)


def change_row(folder: Path, **parts: object) -> None:
    rows = json.loads((folder / "explanation.json").read_text())["rows"]
    change(folder, rows=[{**row, **parts} for row in rows])


def change_image(folder: Path, **parts: object) -> None:
    images = json.loads((folder / "explanation.json").read_text())["images"]
    change(folder, images=[{**image, **parts} for image in images])


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def change(folder: Path, **parts: object) -> None:
    record = json.loads((folder / "explanation.json").read_text()) | parts
    (folder / "explanation.json").write_text(
        json.dumps({key: part for key, part in record.items() if part is not None})
    )


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_folder_is_an_error(result: Explanation, tmp_path: Path, name: str) -> None:
    result.save(str(tmp_path / "out"))
    BREAKS[name][0](tmp_path / "out")
    with pytest.raises(GamlensError, match=BREAKS[name][1]):
        Explanation.load(str(tmp_path / "out"))


def test_a_class_of_300_million_without_a_name_is_read(result: Explanation, tmp_path: Path) -> None:
    result.save(str(tmp_path / "out"))
    change_row(tmp_path / "out", target=300_000_000, name="class 300000000")
    again = Explanation.load(str(tmp_path / "out"))
    assert set(again.names) == {"class 300000000"}
    assert again.labels == ()


def test_a_picture_that_is_gone_is_an_error_when_shown(result: Explanation, tmp_path: Path) -> None:
    result.save(str(tmp_path / "out"))
    (tmp_path / "photo.png").unlink()
    again = Explanation.load(str(tmp_path / "out"))
    assert torch.equal(again.full(0), result.full(0))
    with pytest.raises(GamlensError, match=r"no file '.*photo\.png'"):
        again.overlay(0)


@pytest.mark.parametrize("function", ["open", "replace"])
@pytest.mark.parametrize("fails_at", ["png", "maps.npz", "explanation.json"])
def test_a_full_disk_leaves_what_was_there(
    result: Explanation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, fails_at: str
) -> None:
    folder = tmp_path / "out"
    result.save(str(folder))
    before = {file: file.read_bytes() for file in folder.iterdir()}
    later = small_lens().classify([photo(30, 30), photo(40, 40), photo(50, 50)], [[2, 3], 9, [0, 0]])
    module = builtins if function == "open" else os
    real = getattr(module, function)

    def full(file: object, *args: object, **options: object) -> object:
        if fails_at in str(file) and ("wb" in args or function == "replace"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, function, full)
        with pytest.raises(GamlensError, match=r"Cannot write '.*No space left on device"):
            later.save(str(folder))
    assert not list(folder.glob(".*"))
    if function == "open":
        assert {file: file.read_bytes() for file in before} == before
    with contextlib.suppress(GamlensError):  # the old one or none, never a mixture
        identical(result, Explanation.load(str(folder)))


def edited(folder: Path, change: Callable[[dict], object]) -> None:
    record = json.loads((folder / "explanation.json").read_text(encoding="utf-8"))
    change(record)
    (folder / "explanation.json").write_text(json.dumps(record), encoding="utf-8")


def test_saving_again_leaves_no_old_picture(result: Explanation, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result.save(str(folder))
    (folder / "notes.txt").write_text("mine")
    photo(90, 60).save(folder / "005-photo-cat.png")  # a name that could be ours, but that no record holds
    files = small_lens().classify(tmp_path / "photo.png", 1).save(str(folder))
    assert {file.name for file in folder.iterdir()} == {
        "000-photo-bee.png",
        "maps.npz",
        "explanation.json",
        "notes.txt",
        "005-photo-cat.png",
    }
    assert len(files) == 3


@pytest.mark.parametrize("key", ["overlay", "kept"])
@pytest.mark.parametrize(
    "name", ["notes.txt", "mine.png", "../thesis.pdf", "/thesis.pdf", "..", ".", "", "sub", "a\0b", 3, True, ["x"], {}]
)
def test_a_file_that_an_edited_record_names_is_not_deleted(
    result: Explanation, tmp_path: Path, key: str, name: object
) -> None:
    folder = tmp_path / "out"
    result.save(str(folder))
    (folder / "sub").mkdir()
    mine = [folder / "notes.txt", folder / "mine.png", folder / "sub" / "a.png", tmp_path / "thesis.pdf"]
    for file in mine:
        photo(90, 60).save(file, format="PNG")
    name = str(mine[-1]) if name == "/thesis.pdf" else name
    edited(folder, lambda record: record["rows" if key == "overlay" else "images"][0].update({key: name}))
    small_lens().classify(photo(30, 30), 1).save(str(folder))
    assert all(file.exists() for file in mine)
    assert Explanation.load(str(folder)).names == ["bee"]


def test_a_foreign_file_in_the_place_of_a_picture_is_not_deleted(result: Explanation, tmp_path: Path) -> None:
    """A link, a folder, another type of file, a picture of another size."""
    folder = tmp_path / "out"
    result.save(str(folder))
    overlays = [row["overlay"] for row in json.loads((folder / "explanation.json").read_text())["rows"]]
    for name in overlays[:4]:
        (folder / name).unlink()
    (folder / overlays[0]).symlink_to(tmp_path / "photo.png")
    (folder / overlays[1]).mkdir()
    (folder / overlays[2]).write_text("mine")
    photo(33, 44).save(folder / overlays[3])
    small_lens().classify(photo(30, 30), 1).save(str(folder))
    assert [os.path.lexists(folder / name) for name in overlays] == [True] * 4 + [False]
    assert (tmp_path / "photo.png").exists()


RECORDS = ("[]", "3", "null", "{", "[" * 100_000, '{"format": 1}', '{"format": 1, "rows": 3, "images": {}}')


@pytest.mark.parametrize("text", [*RECORDS, '{"format": 1, "rows": [[]], "images": [{"kept": []}, 3]}'])
def test_a_record_of_another_form_is_not_replaced(result: Explanation, tmp_path: Path, text: str) -> None:
    folder = tmp_path / "out"
    result.save(str(folder))
    (folder / "explanation.json").write_text(text)
    before = contents(folder)
    with pytest.raises(GamlensError, match=r"explanation\.json': a file of that name is there that gamlens did not"):
        small_lens().classify(photo(30, 30), 1).save(str(folder))
    assert contents(folder) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def as_older_versions_wrote(folder: Path) -> None:
    """Write all files again without their marks."""
    for file in folder.rglob("*.png"):
        Image.open(file).copy().save(file)
    for file in folder.rglob("maps.npz"):
        with np.load(file) as arrays:
            np.savez_compressed(file, **arrays)


FOREIGN = {
    "a photo": lambda file: photo(50, 70).save(file),
    "an overlay with one other pixel": lambda file: touched(file),
    "text": lambda file: file.write_text("mine"),
    "a link": lambda file: (file.unlink(), file.symlink_to(file.parent.parent / "photo.png")),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


def touched(file: Path) -> None:
    """Change one pixel, and keep the text of the file, as editors do."""
    image = Image.open(file)
    text = PngInfo()
    for key, value in image.text.items():
        text.add_text(key, value)
    image.putpixel((0, 0), (1, 2, 3))
    image.save(file, pnginfo=text)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_file_is_not_replaced(result: Explanation, tmp_path: Path, what: str, old: bool) -> None:
    """Its name and size are those of an overlay, and explanation.json says that it is one."""
    folder = tmp_path / "out"
    file = Path(result.save(str(folder))[2])
    assert Image.open(file).size == (50, 70)
    if old:
        as_older_versions_wrote(folder)
    FOREIGN[what](file)
    before = contents(folder)
    with pytest.raises(GamlensError, match=f"Cannot write '.*{file.name}'"):
        result.save(str(folder))
    assert contents(folder) == before
    small_lens().classify(photo(30, 30), 1).save(str(folder))
    assert os.path.lexists(file)


@pytest.mark.parametrize("name", ["maps.npz", "explanation.json", "image-001.png", "000-photo-cat.png"])
def test_a_foreign_file_in_a_fresh_folder_is_not_replaced(result: Explanation, tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text('{"format": 1}')
    with pytest.raises(GamlensError, match=rf"{name}': a file of that name .* or save to another folder"):
        result.save(str(tmp_path / "out"))
    assert contents(tmp_path / "out") == {name: b'{"format": 1}'}


def test_the_explained_photo_is_not_replaced(tmp_path: Path) -> None:
    """Also if it is an overlay that gamlens itself wrote."""
    lens = small_lens()
    (first, *_) = lens.classify(photo(30, 30), 1).save(str(tmp_path))
    Path(first).rename(tmp_path / "image-000.png")
    again = lens.classify([photo(30, 30), tmp_path / "image-000.png"], [1, 2])
    with pytest.raises(GamlensError, match=r"image-000\.png': a file of that name"):
        again.save(str(tmp_path))


@pytest.mark.parametrize("style", ["heat", "spotlight"])
def test_results_of_an_older_version_are_replaced(result: Explanation, tmp_path: Path, style: str) -> None:
    folder = tmp_path / "out"
    result.save(str(folder), cmap="ocean", style=style)
    as_older_versions_wrote(folder)
    result.save(str(folder))
    as_older_versions_wrote(folder)
    small_lens().classify(tmp_path / "photo.png", 1).save(str(folder))
    assert set(contents(folder)) == {"000-photo-bee.png", "maps.npz", "explanation.json"}


def test_pairs_of_an_older_version_are_replaced_and_foreign_files_are_not(tmp_path: Path) -> None:
    folder, lens = tmp_path / "out", small_lens()
    pair = lens.compare(photo(60, 60), [photo(50, 70), photo(40, 40)])
    pair.save(str(folder), cmap="ocean")
    as_older_versions_wrote(folder)
    pair.save(str(folder))
    as_older_versions_wrote(folder)
    assert set(contents(folder)) == {str(Path(file).relative_to(folder)) for file in pair.save(str(folder))}
    shape = Image.open(folder / "001-pair.png").size
    photo(*shape).save(folder / "001-pair.png")
    before = contents(folder)
    with pytest.raises(GamlensError, match=r"001-pair\.png': a file of that name"):
        pair.save(str(folder))
    assert contents(folder) == before
    pair[:1].save(str(folder))
    assert (folder / "001-pair.png").read_bytes() == before["001-pair.png"]


def test_a_save_that_was_killed_between_two_files_is_saved_over(
    result: Explanation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def replace_(source: object, target: object) -> None:
        if str(target).endswith("maps.npz"):
            os._exit(9)
        real(source, target)

    if (child := os.fork()) == 0:
        monkeypatch.setattr(os, "replace", replace_)
        result.save(str(tmp_path / "out"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert list((tmp_path / "out").glob(".*"))
    (tmp_path / "out" / ".mine.0123456789ab.part").write_text("mine")
    result.save(str(tmp_path / "out"))
    assert [file.name for file in (tmp_path / "out").glob(".*")] == [".mine.0123456789ab.part"]
    identical(result, Explanation.load(str(tmp_path / "out")))


def test_long_names_in_any_script(tmp_path: Path) -> None:
    file = tmp_path / f"{'猫' * 83}.png"
    photo(40, 40).save(file)
    lens = Lens(nets.small(), labels=["犬" * 90] * nets.CLASSES, transform=Transform((64, 64)))
    lens.classify(file, 0).save(str(tmp_path / "out"))
    assert Explanation.load(str(tmp_path / "out")).names == ["犬" * 90]


def test_a_loaded_explanation_keeps_its_pictures_in_the_same_folder(result: Explanation, tmp_path: Path) -> None:
    result.save(str(tmp_path / "out"))
    Explanation.load(str(tmp_path / "out")).save(str(tmp_path / "out"))
    again = Explanation.load(str(tmp_path / "out"))
    assert looks(again.image(2)) == looks(result.image(2))


def test_saving_pairs_again_leaves_no_old_picture(tmp_path: Path) -> None:
    folder, lens = tmp_path / "out", small_lens()
    lens.compare(photo(60, 60), [photo(50, 70), photo(40, 40), photo(45, 45)]).save(str(folder))
    (folder / "003-pair.png").write_bytes((folder / "002-pair.png").read_bytes())
    (folder / "001-pair.png").write_text("mine")
    (folder / "y" / "notes.txt").write_text("mine")
    edited(folder / "y", lambda record: record["rows"][1].update(overlay="notes.txt"))
    files = lens.compare(photo(60, 60), photo(50, 70)).save(str(folder))
    kept = {file for file in folder.rglob("*") if file.is_file()} - {Path(file) for file in files}
    assert {file.name for file in kept if "-image-" not in file.name} == {"003-pair.png", "001-pair.png", "notes.txt"}
    assert [file.name[:3] for file in kept if "-image-" in file.name] == ["001"]


def test_a_folder_that_cannot_be_made(result: Explanation, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(GamlensError, match=r"Cannot make the folder"):
            result.save(str(folder))
    assert (tmp_path / "file").read_text() == "mine"


def test_pairs_do_all_that_too(tmp_path: Path) -> None:
    photo(90, 60).save(tmp_path / "x.png")
    pair = small_lens().compare(tmp_path / "x.png", [photo(50, 70), photo(40, 40)])
    pair.save(str(tmp_path / "out"))
    for again in (PairExplanation.load(str(tmp_path / "out")), pickle.loads(pickle.dumps(pair))):
        identical(pair.x, again.x)
        identical(pair.y, again.y)
        assert torch.equal(pair.scores, again.scores)
        assert looks(again.overlay(1)) == looks(pair.overlay(1))
    assert torch.equal(pair[1].y.maps, pair.y.maps[1:])
    assert pair[-1].scores.tolist() == pair.scores[1:].tolist()
    assert pair._repr_html_().count("<img") == 2
    assert pair.x.full().shape == (60, 90)
    assert pair.y.full(0).shape == (70, 50)
    assert [array.shape for array in pair.numpy()] == [(2, 64, 64), (2, 64, 64)]
    assert len(pair[[True, False]]) == 1
    with pytest.raises(IndexError):
        _ = pair[2]
    (tmp_path / "out" / "y" / "maps.npz").unlink()
    with pytest.raises(GamlensError, match=r"maps\.npz is missing"):
        PairExplanation.load(str(tmp_path / "out"))


def test_results_that_an_earlier_version_pickled_are_read() -> None:
    """Made by version 0.1, whose classes lay in other modules."""
    with open(Path(__file__).parent / "saved-by-0.1.pickle", "rb") as file:
        found = pickle.load(file)
    results = [found["tensor"], found["photo"], found["pair"]]
    assert [result.scores.tolist() for result in results] == found["scores"]
    assert found["tensor"].check().names == ["bee"]
    assert found["tensor"].image().size == found["photo"].overlay().size == found["pair"].x.image().size == (8, 8)
    assert len(found["gallery"]) == 1
    assert found["gallery"].frames[0].original == (8, 8)
    assert found["gallery"][:1].earlier == {}
    assert repr(found["gallery"].to("cpu")).startswith("<Gallery of 1")
    assert len(pickle.loads(pickle.dumps(found["photo"]))) == 1


def test_the_box_of_an_overlay_is_that_of_the_shown_block() -> None:
    result = Lens(nets.small()).classify(nets.images(1), 1, n=2)
    for name in result.blocks:
        alone = replace(result, maps=result.blocks[name])
        shown, expected = result.overlay(block=name, threshold=0.6), alone.overlay(threshold=0.6)
        assert np.array_equal(np.asarray(shown), np.asarray(expected))
    first, last = (np.asarray(result.overlay(block=name, threshold=0.6)) for name in result.blocks)
    assert not np.array_equal(first, last)


def test_the_former_name_of_to_host_still_works() -> None:
    result = Lens(nets.small()).classify(nets.images(1), 1)
    with pytest.warns(GamlensDeprecationWarning, match=r"since gamlens 1\.0 .* in 2\.0: use Explanation\.to_host"):
        assert torch.equal(result.leave()().maps, result.maps)
