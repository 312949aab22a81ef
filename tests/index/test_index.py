"""A search index on disk: what is found, what a change does, and what may happen meanwhile."""

from __future__ import annotations

import errno
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
import torch
from index_kit import SIZE, CountingLens, contents, embedded, photo, put, ranked
from PIL import Image
from torch import nn

from gamlens import GamlensError, Lens, Transform
from gamlens.errors import attempt, readable
from gamlens.index import building, grouped_hits, writing
from gamlens.index import hits as hits_module
from gamlens.index import index as index_module
from gamlens.index.building import contents_sha256
from gamlens.index.catalogue import DescribedImage
from gamlens.index.hits import Hit
from gamlens.index.index import Index

HERE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def counting() -> CountingLens:
    return CountingLens()


@pytest.fixture
def lens(counting: CountingLens) -> CountingLens:
    counting.forwards()
    return counting


def made(place: Path, lens: Lens, *seeds: int, **options) -> Index:
    """An index shop.gamlens of photos below `place`/photos."""
    put(place / "photos", *seeds)
    index = Index.create(place / "shop.gamlens", lens, **options)
    index.add(place / "photos")
    return index


def test_hits_are_those_of_a_plain_loop(lens: CountingLens, tmp_path: Path) -> None:
    (query,) = put(tmp_path, 100)
    for score in ("cosine", "dot", "euclidean"):
        with made(tmp_path / score, lens, *range(7), score=score) as index:
            expected = ranked(lens, query, [str(tmp_path / score / "photos" / f"{n}.png") for n in range(7)], score)
            for top in (1, 3, 7, 50):
                hits = index.search(query, top=top)
                assert [hit.path for hit in hits] == [path for path, _ in expected[:top]]
                assert [hit.score for hit in hits] == pytest.approx([value for _, value in expected[:top]], rel=1e-5)
                assert (hits.searched, hits.score, hits.left_out) == (7, score, ())
                assert all((hit.width, hit.height) == (100, 80) for hit in hits)


def test_every_image_is_run_once(lens: CountingLens, tmp_path: Path) -> None:
    paths = put(tmp_path / "photos", *range(9))
    index = Index.create(tmp_path / "i", lens, activations=True)
    lens.forwards()
    found = index.add(tmp_path / "photos", batch_size=4)
    assert (found.added, found.forwards, lens.seen) == (9, 9, [4, 4, 1])
    lens.forwards()
    again = index.add(tmp_path / "photos")
    assert (again.unchanged, again.added, lens.forwards()) == (9, 0, 0)
    assert index.add([paths[0], os.path.relpath(paths[0]), tmp_path / "photos"]).unchanged == 9
    assert index.add(tmp_path / "photos", recheck=True).unchanged == 9
    hits = index.search(paths[0], top=3)
    assert lens.forwards() == 1
    index.explain(hits)
    assert lens.forwards() == 0
    assert all(np.allclose(np.frombuffer(vector[:128], "<f4"), embedded(lens, path), atol=1e-6)
               for path, vector in contents(index).items())  # fmt: skip


def test_the_model_is_left_as_it_was(lens: CountingLens, tmp_path: Path) -> None:
    model = lens.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = [len(module._forward_hooks) for module in model.modules()]
    model.train()
    flags = [parameter.requires_grad for parameter in model.parameters()]
    index = made(tmp_path, lens, 0, 1, 2, activations=True)
    index.explain(index.search(photo(5), box=(0, 0, 50, 50)))
    index.update()
    assert model.training
    model.eval()
    assert hooks == [len(module._forward_hooks) for module in model.modules()]
    assert flags == [parameter.requires_grad for parameter in model.parameters()]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_query_itself_is_known_by_its_contents(lens: CountingLens, tmp_path: Path) -> None:
    index = made(tmp_path, lens, 0, 1, 2)
    copied = tmp_path / "elsewhere.png"
    shutil.copy(tmp_path / "photos" / "1.png", copied)
    hits = index.search(copied)
    assert sorted(Path(hit.path).name for hit in hits) == ["0.png", "2.png"]
    assert hits.left_out == (str(tmp_path / "photos" / "1.png"),)
    assert hits.searched == 2
    kept = index.search(copied, with_self=True)
    assert Path(kept[0].path).name == "1.png"
    assert kept[0].score == pytest.approx(1, abs=1e-6)
    assert (kept.searched, kept.left_out) == (3, ())
    assert len(index.search(photo(1))) == 3  # pixels are of no file
    (single,) = put(tmp_path / "one", 9)
    alone = Index.create(tmp_path / "alone", lens)
    alone.add(single)
    assert len(alone.search(single)) == 0


def test_an_empty_index_finds_nothing(lens: CountingLens, tmp_path: Path) -> None:
    with Index.create(tmp_path / "i", lens) as index:
        hits = index.search(photo(0))
        assert (len(hits), hits.searched, len(index), index.check(), index.duplicates()) == (0, 0, 0, [], [])
        assert index.update().record["added"] == 0
        with pytest.raises(GamlensError, match="no hit to explain"):
            index.explain(hits)
        assert index.clusters(2) == []
        with pytest.raises(GamlensError, match="there is no column 'price'"):
            index.search(photo(0), where="price < 3")
    index = made(tmp_path / "b", lens, 0)
    index.remove(tmp_path / "b" / "photos")
    assert len(index.search(photo(0))) == 0
    assert index.catalogue.sources() == []


def test_filters(lens: CountingLens, tmp_path: Path) -> None:
    index = made(tmp_path, lens, *range(8))
    paths = [str(tmp_path / "photos" / f"{n}.png") for n in range(8)]
    rows = {path: {"price": 10 * n, "colour": "red" if n % 2 else "blue"} for n, path in enumerate(paths)}
    assert index.annotate({**rows, str(tmp_path / "none.png"): {"price": 1}}) == 8
    whole = [hit.path for hit in index.search(photo(99), top=8)]
    cases = {
        "price < 45 and colour = 'red'": [paths[1], paths[3]],
        "price > 1000": [],
        "image.name = '3.png' or image.name like '5%'": [paths[3], paths[5]],
        "image.width = 100 and not price >= 20": [paths[0], paths[1]],
    }
    for where, expected in cases.items():
        hits = index.search(photo(99), where=where)
        assert [hit.path for hit in hits] == [path for path in whole if path in expected]
        assert hits.searched == len(expected)
        assert all(hit.metadata == rows[hit.path] for hit in hits)
    index.annotate({paths[3]: {"price": None, "shop": "ü"}})
    assert index.search(photo(99), where="price is null")[0].metadata == {"colour": "red", "shop": "ü"}
    for wrong in ("price <", "prise < 3", "price = 'a", ""):
        with pytest.raises(GamlensError):
            index.search(photo(99), where=wrong)


def test_metadata_stays_with_changed_and_renamed_files(lens: CountingLens, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    index = made(tmp_path, lens, 0, 1, 2)
    index.annotate({str(folder / f"{n}.png"): {"price": n} for n in range(3)})
    photo(50).save(folder / "0.png")
    os.rename(folder / "1.png", folder / "renamed.png")
    (folder / "2.png").unlink()
    lens.forwards()
    found = index.update()
    assert (found.changed, found.moved, found.removed, found.added, found.forwards) == (1, 1, 1, 0, 1)
    assert lens.forwards() == 1
    hits = {hit.path: hit for hit in index.search(photo(50))}
    assert {Path(path).name: dict(hit.metadata) for path, hit in hits.items()} == {
        "0.png": {"price": 0}, "renamed.png": {"price": 1},
    }  # fmt: skip
    assert hits[str(folder / "0.png")].score == pytest.approx(1, abs=1e-6)
    assert index.check() == []


def test_copies_and_touched_files_are_not_run(lens: CountingLens, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    index = made(tmp_path, lens, 0, 1, activations=True)
    lens.forwards()
    shutil.copy(folder / "0.png", folder / "copy.png")
    os.utime(folder / "1.png", (1, 1))
    found = index.update()
    assert (found.added, found.changed, found.unchanged, found.forwards) == (1, 0, 2, 0)
    kept = contents(index)
    assert kept[str(folder / "copy.png")] == kept[str(folder / "0.png")]
    os.utime(folder / "0.png", (2, 2))  # of two images with these contents, the one of this path is meant
    os.utime(folder / "copy.png", (2, 2))
    assert (index.update().changed, index.snapshot().settings["end"]) == (0, 3)
    index.remove(folder / "0.png")
    assert contents(index)[str(folder / "copy.png")] == kept[str(folder / "copy.png")]


def test_a_renamed_copy_keeps_its_own_columns(lens: CountingLens, tmp_path: Path) -> None:
    """Two images have the same contents, and one of them is renamed: it is that one which has moved."""
    folder = tmp_path / "photos"
    put(folder, 0)
    for name in ("a", "b", "c"):
        shutil.copy(folder / "0.png", folder / f"{name}.png")
    index = Index.create(tmp_path / "i", lens)
    index.add(folder)
    index.annotate({str(folder / f"{name}.png"): {"name": name} for name in "0abc"})
    for old in "0b":
        os.rename(folder / f"{old}.png", folder / f"z{old}.png")
    found = index.update()
    assert (found.moved, found.removed, found.added) == (2, 0, 0)
    known = {Path(hit.path).name: hit.metadata["name"] for hit in index.search(photo(0))}
    assert {known["a.png"], known["c.png"]} == {"a", "c"}
    assert {known["z0.png"], known["zb.png"]} == {"0", "b"}


def test_a_folder_that_is_renamed_is_not_run(lens: CountingLens, tmp_path: Path) -> None:
    index = made(tmp_path, lens, *range(6))
    before = sorted(contents(index).values())
    index.annotate({str(tmp_path / "photos" / "4.png"): {"price": 4}})
    os.rename(tmp_path / "photos", tmp_path / "images")
    lens.forwards()
    found = index.add(tmp_path / "images", batch_size=2)
    assert (found.moved, found.added, found.forwards, lens.forwards()) == (6, 0, 0, 0)
    assert sorted(contents(index).values()) == before
    assert index.search(photo(4), where="price = 4")[0].path == str(tmp_path / "images" / "4.png")


def test_a_moved_file_that_has_become_two(lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are there afterwards, also if the second was read before the first was committed."""
    monkeypatch.setattr(writing, "COMMIT_EVERY", 1)
    index = made(tmp_path, lens, 0)
    for name in ("a", "b", "c", "d"):
        shutil.copy(tmp_path / "photos" / "0.png", tmp_path / "photos" / f"{name}.png")
    (tmp_path / "photos" / "0.png").unlink()
    found = index.update(batch_size=1, workers=2)
    assert sorted(Path(path).name for path in contents(index)) == ["a.png", "b.png", "c.png", "d.png"]
    assert (found.moved, found.added, found.removed, found.forwards) == (1, 3, 0, 0)


def test_swapped_files(lens: CountingLens, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    index = made(tmp_path, lens, 0, 1)
    name_them(index)
    before = contents(index)
    os.rename(folder / "0.png", folder / "x")
    os.rename(folder / "1.png", folder / "0.png")
    os.rename(folder / "x", folder / "1.png")
    found = index.update()
    assert (found.moved, found.changed, found.forwards, len(index)) == (2, 0, 0, 2)
    after = contents(index)
    assert after[str(folder / "0.png")] == before[str(folder / "1.png")]
    assert after[str(folder / "1.png")] == before[str(folder / "0.png")]
    assert names(index) == {"0.png": "1.png", "1.png": "0.png"}


def name_them(index: Index) -> None:
    """Give each image a column with the name that its file has now."""
    index.annotate({path: {"tag": Path(path).name} for path in contents(index)})


def names(index: Index) -> dict[str, str | None]:
    """That column of each image, by the name of its file."""
    return {Path(path).name: tag for path, (_, tag) in tags_now(index).items()}


def test_renumbered_files(lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is deleted, and all others get the number before theirs, over many commits."""
    monkeypatch.setattr(writing, "COMMIT_EVERY", 2)
    folder = tmp_path / "photos"
    index = made(tmp_path, lens, *range(8), activations=True)
    name_them(index)
    before = contents(index)
    for number in range(1, 8):
        os.replace(folder / f"{number}.png", folder / f"{number - 1}.png")
    found = index.update(batch_size=1)
    assert (found.moved, found.removed, found.added, found.changed, found.forwards) == (7, 1, 0, 0, 0)
    assert names(index) == {f"{number}.png": f"{number + 1}.png" for number in range(7)}
    assert all(contents(index)[str(folder / f"{n}.png")] == before[str(folder / f"{n + 1}.png")] for n in range(7))
    assert index.check() == []


def test_a_new_file_in_the_place_of_a_renamed_one(lens: CountingLens, tmp_path: Path) -> None:
    """What was renamed keeps its columns, and the new file has none; it may even be one that cannot be read."""
    folder = tmp_path / "photos"
    index = made(tmp_path, lens, 0, 1, 2)
    name_them(index)
    for number in (0, 1):
        os.rename(folder / f"{number}.png", folder / f"z{number}.png")
    photo(50).save(folder / "0.png")
    (folder / "1.png").write_text("no image")
    found = index.update()
    assert (found.moved, found.added, found.changed, found.forwards, len(found.bad)) == (2, 1, 0, 1, 1)
    assert names(index) == {"z0.png": "0.png", "z1.png": "1.png", "2.png": "2.png", "0.png": None}


def test_files_that_are_looked_at_again_are_read_once(
    lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = made(tmp_path, lens, *range(4))
    read: list[str] = []

    def noted(path: str) -> str:
        read.append(path)
        return contents_sha256(path)

    for module in (building, writing):
        monkeypatch.setattr(module, "contents_sha256", noted)
    assert index.update(recheck=True).unchanged == 4
    assert len(read) == len(set(read)) == 4


def test_files_that_cannot_be_read(lens: CountingLens, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    put(folder, 0, 1)
    (folder / "text.png").write_text("no image")
    (folder / "empty.png").touch()
    os.mkfifo(folder / "pipe.png")
    index = Index.create(tmp_path / "i", lens)
    found = index.add([folder])
    assert found.added == 2
    assert sorted(Path(path).name for path in found.bad) == ["empty.png", "pipe.png", "text.png"]
    assert index.catalogue.bad().keys() == found.bad.keys()
    assert index.info()["images"] == 2
    lens.forwards()
    assert (index.update().bad, lens.forwards()) == ({}, 0)
    photo(2).save(folder / "text.png")
    (folder / "0.png").write_text("no image any more")
    found = index.update()
    assert (found.added, list(found.bad)) == (1, [str(folder / "0.png")])
    assert sorted(Path(path).name for path in contents(index)) == ["1.png", "text.png"]
    assert {Path(path).name for path in index.catalogue.bad()} == {"0.png", "empty.png", "pipe.png"}


def test_a_file_that_the_disk_does_not_give_is_tried_again(
    lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network that fails for a moment. An image that was there before stays with its columns."""
    folder = tmp_path / "photos"
    index = made(tmp_path, lens, 0, 1)
    name_them(index)
    put(folder, 7)
    photo(20).save(folder / "0.png")

    def fails(path: str, *words: Any) -> Any:
        if str(path).endswith(("7.png", "0.png")):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return open(path, *words)

    with monkeypatch.context() as patch:
        patch.setattr(building, "open", fails, raising=False)
        for _ in range(2):  # each update tries it, and says so
            found = index.update()
            assert sorted(Path(path).name for path in found.bad) == ["0.png", "7.png"]
            assert all("Input/output error" in reason for reason in found.bad.values())
        assert [Path(path).name for path in index.catalogue.bad()] == ["7.png"]
        assert names(index) == {"0.png": "0.png", "1.png": "1.png"}
    found = index.update()
    assert (found.added, found.changed, found.bad, index.catalogue.bad()) == (1, 1, {}, {})
    assert names(index) == {"0.png": "0.png", "1.png": "1.png", "7.png": None}


def test_hidden_files_are_no_images(lens: CountingLens, tmp_path: Path) -> None:
    """macOS puts them beside the images on disks of other systems."""
    put(tmp_path / "photos", 0)
    (tmp_path / "photos" / "._0.png").write_bytes(b"\0\5\x16\7Mac OS X")
    index = made(tmp_path, lens, 0)
    assert (len(index), index.catalogue.bad()) == (1, {})


def test_names_that_are_no_utf8(lens: CountingLens, tmp_path: Path) -> None:
    """Such a file is bad, as everywhere, and harms no other one; a folder of such a name can be added and removed."""
    folder = tmp_path / "photos" / os.fsdecode(b"caf\xe9 \n'\"")
    paths = put(folder, 0, 1)
    (good,) = put(tmp_path / "photos", 2)
    index = Index.create(tmp_path / "i", lens)
    found = index.add(folder)
    assert (found.added, sorted(found.bad)) == (0, sorted(paths))
    assert all(f"'{readable(path)}' is not UTF-8: rename" in reason for path, reason in found.bad.items())
    assert index.add(tmp_path / "photos").added == 1
    assert index.annotate({path: {"price": 3} for path in (good, *paths)}) == 1
    assert index.catalogue.sources() == sorted([str(tmp_path / "photos"), str(folder)])
    shutil.copy(good, paths[0])  # with known contents, too
    assert list(index.update().bad) == [paths[0]]
    assert index.remove(folder).removed == 0
    assert (index.catalogue.bad(), index.check(), len(index)) == ({}, [], 1)
    named = tmp_path / "photos" / "it's 50% <b> [1] ünï\n.png"
    os.rename(good, named)
    shutil.rmtree(folder)
    assert (index.update().moved, index.search(photo(2))[0].path) == (1, str(named))


@pytest.mark.parametrize("named", ["photos", "photos/*.png", "photos/**/*.png", "photos/1.png"])
def test_a_source_that_is_not_there_keeps_its_images(lens: CountingLens, tmp_path: Path, named: str) -> None:
    """But for a single file: it is gone."""
    put(tmp_path / "photos", 0, 1, 2)
    (other,) = put(tmp_path / "other", 7)
    index = Index.create(tmp_path / "i", lens)
    index.add([str(tmp_path / named), tmp_path / "other"])
    count = len(index)
    shutil.move(tmp_path / "photos", tmp_path / "unmounted")
    Path(other).rename(tmp_path / "other" / "8.png")
    lens.forwards()
    found = index.update()
    single = named.endswith("1.png")
    assert found.missing == (() if single else (str(tmp_path / named),))
    assert (found.removed, found.moved, len(index)) == (int(single), 1, count - single)
    shutil.move(tmp_path / "unmounted", tmp_path / "photos")
    index.update()
    assert (len(index), lens.forwards()) == (count, int(single))


def test_an_emptied_folder_keeps_its_images_and_one_with_an_image_does_not(lens: CountingLens, tmp_path: Path) -> None:
    index = made(tmp_path, lens, 0, 1, 2)
    for n in (0, 1):
        (tmp_path / "photos" / f"{n}.png").unlink()
    assert (index.update().removed, len(index)) == (2, 1)
    (tmp_path / "photos" / "2.png").unlink()
    found = index.update()
    assert (found.removed, found.missing, len(index)) == (0, (str(tmp_path / "photos"),), 1)
    assert index.remove(tmp_path / "photos").removed == 1


@pytest.mark.parametrize("named", ["photos", "photos/*.png"])
@pytest.mark.parametrize("activations", [True, False])
def test_an_index_that_moved_with_its_photos(lens: CountingLens, tmp_path: Path, named: str, activations: bool) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    put(old / "photos", 0, 1, 2)
    with Index.create(old / "shop.gamlens", lens, activations=activations) as index:
        index.add(str(old / named))
        index.annotate({str(old / "photos" / "1.png"): {"price": 1}})
    os.rename(old, new)
    with Index.open(new / "shop.gamlens", lens) as index:
        hits = index.search(photo(30), where="price = 1")
        assert (hits[0].path, hits[0].file) == (str(old / "photos" / "1.png"), str(new / "photos" / "1.png"))
        assert hits[0].exists
        assert index.explain(hits).y.picture().path == hits[0].file
        lens.forwards()
        found = index.update()
        assert (found.forwards, found.added, found.removed, lens.forwards()) == (0, 0, 0, 0)
        assert index.search(photo(1), where="price = 1")[0].path == str(new / "photos" / "1.png")
        assert index.catalogue.sources() == [str(new / named)]
        put(new / "photos", 3)
        assert index.update().added == 1


@pytest.mark.parametrize("named", ["old", "new"])
def test_an_index_that_moved_is_changed_by_old_and_new_paths(lens: CountingLens, tmp_path: Path, named: str) -> None:
    """Every change writes the new paths first; paths from before, such as those of hits, are understood, too."""
    for change in ("annotate", "remove"):
        place = tmp_path / change
        made(place / "old", lens, 0, 1).close()
        os.rename(place / "old", place / "new")
        path = place / named / "photos" / "0.png"
        with Index.open(place / "new" / "shop.gamlens", lens) as index:
            if change == "remove":
                assert index.remove(path).removed == 1
            else:
                assert index.annotate({str(path): {"price": 1}}) == 1
                (hit,) = index.search(photo(1), where="price = 1")
                assert hit.path == str(place / "new" / "photos" / "0.png")
            where = f"image.path like '{place}/new/photos/%'"
            assert index.search(photo(1), where=where).searched == len(index) == 1 + (change == "annotate")


def test_two_moves_and_a_compaction(lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "FEW_HOLES", 2)
    made(tmp_path / "one", lens, *range(8)).close()
    os.rename(tmp_path / "one", tmp_path / "two")
    with Index.open(tmp_path / "two" / "shop.gamlens", lens) as index:
        for number in range(5):
            (tmp_path / "two" / "photos" / f"{number}.png").unlink()
        assert index.update().removed == 5
        settings = index.catalogue.settings()
        assert (settings["generation"], settings["place"]) == (2, str(tmp_path / "two" / "shop.gamlens"))
    (tmp_path / "deep").mkdir()
    os.rename(tmp_path / "two", tmp_path / "deep" / "three")
    with Index.open(tmp_path / "deep" / "three" / "shop.gamlens", lens) as index:
        assert index.search(photo(6))[0].file == str(tmp_path / "deep" / "three" / "photos" / "6.png")
        found = index.update()
        assert (found.missing, found.unchanged, len(index)) == ((), 3, 3)


def test_photos_that_were_added_again_at_their_new_place(lens: CountingLens, tmp_path: Path) -> None:
    """`update` after `add`: an image that is there already is not moved onto."""
    put(tmp_path / "old" / "photos", 0, 1)
    shutil.copy(tmp_path / "old/photos/0.png", tmp_path / "old/photos/copy.png")
    with Index.create(tmp_path / "old" / "i", lens) as index:
        index.add(tmp_path / "old" / "photos")
    os.rename(tmp_path / "old", tmp_path / "new")
    with Index.open(tmp_path / "new" / "i", lens) as index:
        (tmp_path / "new/photos/copy.png").rename(tmp_path / "new/photos/other.png")
        index.add(tmp_path / "new" / "photos" / "0.png")
        index.update()
        assert sorted(contents(index)) == [str(tmp_path / f"new/photos/{name}.png") for name in ("0", "1", "other")]
        assert index.check() == []


def others() -> dict[str, Lens]:
    random_net = nets.small().float()
    nn.init.constant_(random_net.fc.bias, 0.123)
    return {
        "weights": Lens(random_net, transform=Transform((SIZE, SIZE))),
        "preprocessing": Lens(nets.small().float(), transform=Transform((SIZE, SIZE), mode="crop")),
        "block": Lens(nets.small().float(), transform=Transform((SIZE, SIZE)), blocks=["layer1", "layer2"]),
        "precision": Lens(nets.small().float(), transform=Transform((SIZE, SIZE)), precision="bf16"),
        "embedding": Lens(nets.small().float(), transform=Transform((SIZE, SIZE)), embedding="fc"),
    }


def plain_input(image: Image.Image) -> torch.Tensor:
    return Transform((SIZE, SIZE))(image)[0]


@pytest.mark.filterwarnings("ignore:The transform's function is not understood")
def test_another_function_as_preprocessing_is_refused(tmp_path: Path) -> None:
    """An index of an earlier version, which does not say what its function does, takes any."""

    def lens_of(transform: Any) -> Lens:
        return Lens(nets.small().float(), transform=transform)

    made(tmp_path, lens_of(plain_input), 0).close()
    Index.open(tmp_path / "shop.gamlens", lens_of(lambda image: plain_input(image))).close()
    others = [
        lambda image: -plain_input(image),
        lambda image: plain_input(image).flip(-1),
        lambda image: Transform((SIZE, SIZE + 16))(image)[0],
        lambda image: Transform((SIZE, SIZE), mode="crop", short=SIZE + 8)(image)[0],
    ]
    for transform in others:
        with pytest.raises(GamlensError, match="another preprocessing than"):
            Index.open(tmp_path / "shop.gamlens", lens_of(transform))
    with Index.open(tmp_path / "shop.gamlens") as index, index.catalogue.transaction() as run:
        known = {name: value for name, value in index.identity.items() if name != "preprocessing_sha256"}
        index.catalogue.set(run, {"identity": known})
    Index.open(tmp_path / "shop.gamlens", lens_of(others[0])).close()


@pytest.mark.filterwarnings("ignore:The transform's function is not understood")
def test_a_function_that_draws_lots_is_no_other_one_each_time(tmp_path: Path) -> None:
    def noisy(image: Image.Image) -> torch.Tensor:
        return plain_input(image) + torch.rand(1)

    lens = Lens(nets.small().float(), transform=noisy)
    made(tmp_path, lens, 0).close()
    Index.open(tmp_path / "shop.gamlens", lens).close()


@pytest.mark.parametrize("what", ["weights", "preprocessing", "block", "precision", "embedding"])
def test_another_lens_is_refused(lens: CountingLens, tmp_path: Path, what: str) -> None:
    made(tmp_path, lens, 0).close()
    other = others()[what]
    with pytest.raises(GamlensError, match=f"other {what}.*than this lens has"):
        Index.open(tmp_path / "shop.gamlens", other)
    with pytest.raises(GamlensError, match=what):
        Index.open(tmp_path / "shop.gamlens").check_lens(other)


def test_weights_that_changed_since_the_index_was_opened_are_refused(tmp_path: Path) -> None:
    lens = CountingLens()
    index = made(tmp_path, lens, 0)
    put(tmp_path / "photos", 1)
    with torch.no_grad():
        lens.model.layer3[0].weight[0, 0, 0, 0] += 1
    with pytest.raises(GamlensError, match="other weights than"):
        index.add(tmp_path / "photos")
    assert len(index) == 1


def test_without_a_lens(lens: CountingLens, tmp_path: Path) -> None:
    query = made(tmp_path, lens, 0, 1).query(photo(0))
    put(tmp_path / "photos", 2)
    with Index.open(tmp_path / "shop.gamlens") as index:
        hits = index.search(query)
        assert Path(hits[0].path).name == "0.png"
        assert index.remove(tmp_path / "photos" / "0.png").removed == 1
        kept = index.search(query)
        for call in (lambda: index.search(photo(0)), lambda: index.explain(kept), index.update):
            with pytest.raises(GamlensError, match="opened without a lens"):
                call()
        assert len(index) == 1


def test_compaction_keeps_everything(lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "FEW_HOLES", 3)
    monkeypatch.setattr(writing, "COPIED_AT_ONCE", 2)
    index = made(tmp_path, lens, *range(8), activations=True)
    folder = tmp_path / "photos"
    shutil.copy(folder / "7.png", folder / "copy.png")  # shares its activations
    index.update()
    index.annotate({str(folder / f"{n}.png"): {"price": n} for n in range(8)})
    before, ids = contents(index), {image.path: image.id for image in index.catalogue.images().values()}
    reader = Index.open(tmp_path / "shop.gamlens", lens)
    query = reader.query(photo(77))
    hits = reader.search(query, top=9)
    old = reader.explain(hits)
    gone = [str(folder / f"{n}.png") for n in (0, 2, 4, 5)]
    index.remove(gone)
    assert sorted(file.name for file in index.folder.iterdir()) == [
        "activations-2.bin", "catalogue.sqlite", "vectors-2.f32"
    ]  # fmt: skip
    assert contents(index) == {path: kept for path, kept in before.items() if path not in gone}
    assert {image.path: image.id for image in index.catalogue.images().values()}.items() <= ids.items()
    assert index.snapshot().settings["end"] == len(index) == 5
    assert index.check() == []
    again = reader.search(query, top=9)
    assert [(hit.path, hit.score, hit.metadata) for hit in again] == [
        (hit.path, hit.score, hit.metadata) for hit in hits if hit.path not in gone
    ]
    # Hits from before are still those images, although their rows have other numbers.
    kept = [number for number, hit in enumerate(hits) if hit.path not in gone]
    found = reader.explain(type(hits)(query, tuple(hits[number] for number in kept), hits.score, 9))
    torch.testing.assert_close(found.y.maps, old.y.maps[kept])
    assert [found.y.picture(row).name for row in range(5)] == [Path(hits[number].path).name for number in kept]
    assert reader.trace(hits, kept[0]).explain().y.picture().path == hits[kept[0]].path
    with pytest.raises(GamlensError, match="search again"):
        reader.explain(hits)
    put(folder, 20)
    assert index.update().added == 1 + 4 * 0 + len([path for path in gone if Path(path).exists()])


def test_a_file_of_the_user_is_left_alone(lens: CountingLens, tmp_path: Path) -> None:
    index = made(tmp_path, lens, 0, 1)
    own = ["holiday-2019.bin", "vectors-2.f32.bak", "my-vectors-2.f32", "vectors-02.f32", "vectors-2.bin", "x-3.ann"]
    leftovers = ["vectors-2.f32", "activations-7.bin", "usearch-2.ann", "faiss-3.ann"]
    for name in (*own, *leftovers):
        (index.folder / name).touch()
    index.remove(tmp_path / "photos" / "0.png")
    assert sorted(file.name for file in index.folder.iterdir()) == sorted(["catalogue.sqlite", "vectors-1.f32", *own])


def test_numbers_of_numpy(lens: CountingLens, tmp_path: Path) -> None:
    index = made(tmp_path, lens, 0, 1, 2)
    path = str(tmp_path / "photos" / "1.png")
    index.annotate({path: {"a": np.int64(7), "b": np.float32(0.5), "c": np.bool_(True), "d": np.str_("x")}})
    (hit,) = index.search(photo(0), top=np.int64(2), where="a = 7")
    assert (hit.path, dict(hit.metadata)) == (path, {"a": 7, "b": 0.5, "c": 1, "d": "x"})
    assert index.add(tmp_path / "photos", batch_size=np.int32(2), recheck=True).unchanged == 3
    with pytest.raises(GamlensError, match="is a date"):
        index.annotate({path: {"when": np.datetime64("2020-01-01")}})
    with pytest.raises(GamlensError, match="top="):
        index.search(photo(0), top=np.bool_(True))


def test_compaction_between_a_search_and_its_rows(
    lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process compacts the index between the search of vectors and the look at the catalogue."""
    monkeypatch.setattr(writing, "FEW_HOLES", 1)
    index = made(tmp_path, lens, *range(6))
    reader = Index.open(tmp_path / "shop.gamlens", lens)
    query, real = reader.query(photo(5)), reader.catalogue.described
    assert Path(reader.search(query)[0].path).name == "5.png"

    def late(slots):
        monkeypatch.setattr(reader.catalogue, "described", real)
        index.remove([tmp_path / "photos" / f"{n}.png" for n in range(3)])
        return real(slots)

    monkeypatch.setattr(reader.catalogue, "described", late)
    hits = reader.search(query)
    assert sorted(Path(hit.path).name for hit in hits) == ["3.png", "4.png", "5.png"]
    assert Path(hits[0].path).name == "5.png"


def test_rows_that_go_between_a_search_and_the_look_at_the_catalogue(lens: CountingLens, tmp_path: Path) -> None:
    """Another process removes the best images, or gives one a new row; as many hits as there are come nevertheless."""
    index = made(tmp_path, lens, *range(12))
    reader = Index.open(tmp_path / "shop.gamlens", lens)
    query, real = reader.query(photo(99)), reader.catalogue.described
    order = [hit.path for hit in reader.search(query, top=12)]
    changes: list[Callable[[], object]] = []

    def late(slots: Sequence[int]) -> dict[int, DescribedImage]:
        if changes:
            changes.pop(0)()
        return real(slots)

    reader.catalogue.described = late  # type: ignore[method-assign]
    changes.append(lambda: index.remove(order[:3]))
    hits = reader.search(query, top=4)
    assert [hit.path for hit in hits] == order[3:7]
    assert hits.searched == 9
    photo(50).save(order[3])
    changes.append(index.update)
    assert len(reader.search(query, top=4)) == 4


def test_a_search_ends_although_others_change_the_index_all_the_time(
    lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some tries a search makes the others wait."""
    index = made(tmp_path, lens, *range(9))
    reader = Index.open(tmp_path / "shop.gamlens", lens)
    query, real = reader.query(photo(99)), reader.catalogue.described
    threads: list[threading.Thread] = []

    def late(slots: Sequence[int]) -> dict[int, DescribedImage]:
        best = next(iter(index.catalogue.images(slots[:1]).values()))
        threads.append(threading.Thread(target=index.remove, args=(best.path,)))
        threads[-1].start()
        threads[-1].join(0.3 if len(threads) > index_module.SEARCHES else None)
        return real(slots)

    monkeypatch.setattr(reader.catalogue, "described", late)
    hits = reader.search(query, top=4)
    threads[-1].join()
    assert (len(hits), hits.searched, len(threads)) == (4, 9 - index_module.SEARCHES, index_module.SEARCHES + 1)
    assert len(index) == 9 - len(threads)


def test_a_reader_sees_one_moment(lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer commits and compacts between the first thing that a reader reads of the index and the last."""
    monkeypatch.setattr(writing, "FEW_HOLES", 1)
    index = made(tmp_path, lens, *range(6))
    reader = Index.open(tmp_path / "shop.gamlens", lens)
    query, real = reader.query(photo(9)), reader.catalogue.settings
    gone = [tmp_path / "photos" / f"{n}.png" for n in range(3)]
    change = threading.Thread(target=index.remove, args=(gone,))

    def late() -> dict[str, object]:
        found = real()
        if change.ident is None:
            change.start()
            change.join(0.3)  # it waits for the reader, so this ends before it does
        return found

    monkeypatch.setattr(reader.catalogue, "settings", late)
    hits = reader.search(query)
    change.join()
    assert len(hits) in (3, 6)
    assert all(path.name in {Path(hit.path).name for hit in hits} for path in gone) == (len(hits) == 6)
    assert len(reader.search(query)) == 3


def test_of_a_gallery(lens: CountingLens, tmp_path: Path) -> None:
    paths = put(tmp_path, *range(6))
    gallery, queries = lens.remember(paths), lens.remember([photo(40), photo(41)])
    expected = lens.compare_many(queries, gallery, top=3, score="cosine")
    with Index.of_gallery(gallery, lens) as index:
        lens.forwards()
        for number, image in enumerate((photo(40), photo(41))):
            hits = index.search(image, top=3)
            rows = slice(3 * number, 3 * number + 3)
            assert [hit.score for hit in hits] == pytest.approx(expected.scores[rows].tolist(), abs=1e-6)
            assert [hit.path for hit in hits] == [expected.y.picture(row).path for row in range(rows.start, rows.stop)]
            found = index.explain(hits)
            torch.testing.assert_close(found.x.maps, expected.x.maps[rows], atol=1e-5, rtol=0)
            torch.testing.assert_close(found.y.maps, expected.y.maps[rows], atol=1e-5, rtol=0)
        assert lens.forwards() == 2
        with pytest.raises(GamlensError, match="temporary"):
            index.add(tmp_path)
        assert [Path(hit.path).name for hit in index.search(paths[2], top=1, with_self=True)] == ["2.png"]
        assert paths[2] in index.search(paths[2]).left_out


@pytest.mark.parametrize("score", ["cosine", "dot", "euclidean"])
def test_remembered_activations_give_the_maps_of_compare(lens: CountingLens, tmp_path: Path, score: str) -> None:
    index = made(tmp_path, lens, *range(4), activations=True, score=score)
    plain = made(tmp_path / "plain", lens, *range(4), score=score)
    hits = index.search(photo(30), top=4)
    for folder in (tmp_path / "photos").iterdir():
        folder.rename(folder.with_suffix(".gone"))
    lens.forwards()
    found = index.explain(hits)
    assert lens.forwards() == 0
    run = plain.explain(plain.search(photo(30), top=4))
    assert lens.forwards() == 1 + 4
    for row in range(4):
        image = photo(int(Path(hits[row].path).stem))
        alone = lens.compare(photo(30), image, method="gam", n=1, score=score)
        for side in "xy":
            own = getattr(alone, side).maps[0]
            torch.testing.assert_close(getattr(found, side).maps[row], own, atol=4e-3, rtol=0)
            torch.testing.assert_close(getattr(run, side).maps[row], own, atol=1e-5, rtol=0)
        assert float(found.scores[row]) == pytest.approx(hits[row].score, rel=1e-5)


@pytest.mark.parametrize("activations", [True, False])
def test_a_file_that_has_changed_is_no_explanation(lens: CountingLens, tmp_path: Path, activations: bool) -> None:
    """The photo that is there now was not found: its maps would be another photo's, or would not fit the score."""
    folder = tmp_path / "photos"
    index = made(tmp_path, lens, *range(4), activations=activations)
    query = index.query(photo(30))
    best, *others = index.search(query)
    assert not any(hit.changed or hit.fault for hit in (best, *others))
    photo(50).save(best.path)
    os.utime(others[0].path, (1, 1))  # the same contents at another time
    (folder / "other.png").write_bytes(Path(others[1].path).read_bytes()[:-1] + b"x")
    shutil.move(folder / "other.png", others[1].path)  # other contents of the same size
    Path(others[2].path).unlink()
    hits = index.search(query)
    assert [hit.fault for hit in hits] == ["changed", "", "changed", "gone"]
    assert [hit.changed for hit in hits] == [True, False, True, False]
    assert [hit.path for hit in hits] == [best.path, *(hit.path for hit in others)]
    for wrong in (
        lambda: index.explain(hits[:1]), lambda: index.explain(hits[:3]), lambda: index.trace(hits, 0),
        lambda: index.explain(hits[:1], sign="both"), lambda: index.trace(hits, 2),
    ):  # fmt: skip
        with pytest.raises(GamlensError, match=r"has changed since it was indexed: run `gamlens index update"):
            wrong()
    assert len(index.explain(hits[1:2])) == 1
    index.update()
    again = index.search(query)
    assert not any(hit.fault for hit in again)
    assert len(index.explain(again)) == len(again)
    assert index.explain(hits[:1]).scores[0] == pytest.approx(
        next(hit.score for hit in again if hit.path == best.path), abs=1e-5
    )


def test_hits_are_pickled_and_made_by_keywords(lens: CountingLens, tmp_path: Path) -> None:
    index = made(tmp_path, lens, 0, 1)
    hit = index.search(photo(3))[0]
    assert pickle.loads(pickle.dumps(hit)) == hit
    mine = Hit(path=hit.path, score=1.0)
    assert (mine.changed, mine.fault) == (False, "")  # nothing is known of the contents
    index.follow_move()
    shutil.copytree(tmp_path, tmp_path / "copy", copy_function=shutil.copyfile)  # with other times
    for file in (tmp_path / "photos").iterdir():
        file.unlink()
    with Index.open(tmp_path / "copy" / "shop.gamlens", lens) as copied:
        assert [hit.fault for hit in copied.search(photo(3))] == ["", ""]
        photo(9).save(tmp_path / "copy" / "photos" / "0.png")
        assert {Path(hit.file).name: hit.fault for hit in copied.search(photo(3))} == {"0.png": "changed", "1.png": ""}


def test_a_search_looks_at_no_file(lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = made(tmp_path, lens, *range(4))
    query = index.query(photo(30))
    monkeypatch.setattr(hits_module, "file_state", lambda path: pytest.fail("a file was looked at"))
    assert len(index.search(query)) == 4


def test_maps_with_more_blocks_refined_or_signed_are_those_of_compare(lens: CountingLens, tmp_path: Path) -> None:
    index = made(tmp_path, lens, 0, 1, activations=True)
    hits = index.search(photo(30), top=2)
    for options in ({"n": 2}, {"refine": 1}, {"sign": "both"}, {"method": "vdsn"}):
        found = index.explain(hits, **options)
        for row, hit in enumerate(hits):
            alone = lens.compare(photo(30), hit.path, **{"method": "gam", "n": 1, **options})
            torch.testing.assert_close(found.y.maps[row], alone.y.maps[0], atol=4e-3, rtol=0)
            torch.testing.assert_close(found.x.maps[row], alone.x.maps[0], atol=4e-3, rtol=0)
        torch.testing.assert_close(index.explain(hits[1:], **options).y.maps[0], found.y.maps[1])
    trace = index.trace(hits, 1)
    assert float(trace.explain(score="cosine").scores[0]) == pytest.approx(hits[1].score, abs=1e-5)


def test_groups(lens: CountingLens, tmp_path: Path) -> None:
    index = made(tmp_path, lens, *range(6))
    shutil.copy(tmp_path / "photos" / "2.png", tmp_path / "photos" / "twin.png")
    index.update()
    (pair,) = index.duplicates(0.99999)
    assert sorted(Path(hit.path).name for hit in pair) == ["2.png", "twin.png"]
    assert [hit.score for hit in pair] == pytest.approx([1, 1], abs=1e-6)
    groups = index.clusters(3)
    assert sorted(hit.path for group in groups for hit in group) == sorted(contents(index))
    assert [len(group) for group in groups] == sorted(map(len, groups), reverse=True)
    for group in groups:
        middle = sum(torch.nn.functional.normalize(embedded(lens, hit.path), dim=0) for hit in group)
        cosines = [float(torch.cosine_similarity(middle, embedded(lens, hit.path), dim=0)) for hit in group]
        assert [hit.score for hit in group] == pytest.approx(cosines, abs=1e-4)
        assert cosines == sorted(cosines, reverse=True)


def test_images_that_are_removed_while_groups_are_made_are_left_out(
    lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = made(tmp_path, lens, *range(6))
    reader = Index.open(tmp_path / "shop.gamlens", lens)
    for name, ask in (("duplicate_groups", lambda: reader.duplicates(-1.0)), ("clusters", lambda: reader.clusters(1))):
        gone, real = next(iter(index.catalogue.images().values())).path, getattr(grouped_hits, name)

        def late(*given: Any, real: Any = real, gone: str = gone, **named: Any) -> Any:
            found = real(*given, **named)
            index.remove([gone])
            return found

        with monkeypatch.context() as patch:
            patch.setattr(grouped_hits, name, late)
            (group,) = ask()
        assert sorted(hit.path for hit in group) == sorted(contents(index))


def test_several_threads_search_while_another_adds(lens: CountingLens, tmp_path: Path) -> None:
    """One index of one process: searches do not wait for the end of an `add`, and a second change is refused."""
    index = made(tmp_path, lens, *range(6))
    query = index.query(photo(3))
    expected = [(hit.path, hit.score) for hit in index.search(query, top=3)]
    put(tmp_path / "more", *range(50, 56))
    entered, searched = threading.Event(), threading.Event()

    def status(done: int, bad: int) -> None:
        entered.set()
        assert searched.wait(60)

    with ThreadPoolExecutor(5) as pool:
        adding = pool.submit(index.add, tmp_path / "more", status=status, batch_size=2)
        assert entered.wait(60)
        try:
            with pytest.raises(GamlensError, match="Another gamlens command"):
                pool.submit(index.remove, tmp_path / "photos").result(60)
            asked = [pool.submit(index.search, query, top=3) for _ in range(20)]
            found = [[(hit.path, hit.score) for hit in one.result(60)] for one in asked]
        finally:
            searched.set()
        assert found == [expected] * 20
        assert adding.result(60).added == 6
        asked = [pool.submit(index.search, query, top=12) for _ in range(20)]
        assert {len(one.result(60)) for one in asked} == {12}


WRITER = """
import sys
sys.path.insert(0, {here!r})
import torch
torch.set_num_threads(1)
from index_kit import CountingLens, put
from gamlens.index import writing
from gamlens.index.index import Index
writing.COMMIT_EVERY = 1
writing.FEW_HOLES = 2
from pathlib import Path
with Index.open({index!r}, CountingLens()) as index:
    print("open", flush=True)
    for turn in range(4):
        files = put(Path({more!r}), *range(100 + 5 * turn, 105 + 5 * turn))
        index.add(files, batch_size=1)
        index.remove(files[:4])
"""


def test_one_process_adds_and_compacts_while_another_reads(lens: CountingLens, tmp_path: Path) -> None:
    index = made(tmp_path, lens, *range(6), activations=True)
    index.annotate({str(tmp_path / "photos" / f"{n}.png"): {"n": n} for n in range(6)})
    query = index.query(photo(60))
    expected = {hit.path: hit.score for hit in index.search(query)}
    old = index.search(query, top=6)
    maps = index.explain(old).y.maps
    program = WRITER.format(here=str(HERE), index=str(tmp_path / "shop.gamlens"), more=str(tmp_path / "more"))
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "open\n"
    rounds = 0
    while writer.poll() is None or rounds == 0:
        own = index.search(query, where="n >= 0")
        assert {hit.path: hit.score for hit in own} == expected
        assert all(hit.metadata["n"] == int(Path(hit.path).stem) for hit in own)
        torch.testing.assert_close(index.explain(old).y.maps, maps)
        everything = [hit.path for hit in index.search(query, top=100)]
        assert len(set(everything)) == len(everything) >= 6
        rounds += 1
    assert writer.returncode == 0
    writer.stdout.close()
    assert index.check() == []
    assert len(index) == 6 + 4
    assert index.snapshot().settings["generation"] > 1


def test_wrong_arguments(lens: CountingLens, tmp_path: Path) -> None:
    index = made(tmp_path, lens, 0, 1)
    hits = index.search(photo(0))
    dark = Index.create(tmp_path / "dark", lens)
    dark.close()
    wrong = [
        (lambda: index.search(), "something to search for"),
        (lambda: index.search(photo(0), top=0), "top=0"),
        (lambda: index.search(photo(0), top=True), "top=True"),
        (lambda: index.search(photo(0), top="3"), "top='3'"),
        (lambda: index.search(tmp_path / "none.png"), "none.png"),
        (lambda: index.search([photo(0), photo(1)]), "found 2"),
        (lambda: index.search(text="red"), "reads no text"),
        (lambda: index.query(), "an image or text="),
        (lambda: index.query(photo(0), text="red"), "an image or text="),
        (lambda: index.search(photo(0), box=(0, 0, 5, 5), point=(1, 1)), "not both"),
        (lambda: index.search(index.query(photo(0)), box=(0, 0, 5, 5)), "belong to an image"),
        (lambda: index.search(plus=[photo(0)], box=(0, 0, 5, 5)), "belong to an image"),
        (lambda: index.explain(hits, side=1), "side=1"),
        (lambda: index.explain(hits, side=-1), "side=-1"),
        (lambda: index.explain(hits, method="gem"), "no method 'gem'"),
        (lambda: index.explain(hits, n=99), "99"),
        (lambda: index.gallery([999]), "Row 999"),
        (lambda: index.picture_of(999), "Row 999"),
        (lambda: index.add(tmp_path / "none*"), "Nothing matches"),
        (lambda: index.add(tmp_path / "typo"), "There is no file or folder"),
        (lambda: index.add([tmp_path / "photos", "typo", "nul\0.png", "lone\ud800.png"]), "2 more paths do not exist"),
        (lambda: index.add_on_cluster("typo", lambda: lens), "There is no file or folder"),
        (lambda: index.add(photo(0)), "give paths"),
        (lambda: index.add(tmp_path / "photos", batch_size=0), "batch_size=0"),
        (lambda: index.add(tmp_path / "photos", workers=0, recheck=True), "workers=0"),
        (lambda: index.remove(), "what to remove"),
        (lambda: index.remove(tmp_path / "none.png"), "no image"),
        (lambda: index.remove(where="prise = 3"), "no column"),
        (lambda: index.annotate({"a.png": {"x": [1]}}), "is a list"),
        (lambda: index.annotate({"a.png": {"x": 2**64}}), "at most 64 bits"),
        (lambda: index.annotate({"a.png": {"x": float("nan")}}), "finite"),
        (lambda: index.annotate({"a.png": {"x": "\ud800"}}), "characters"),
        (lambda: index.annotate({"a.png": {3: "x"}}), "is called 3"),
        (lambda: index.annotate({"a.png": {"": 1}}), "a short name"),
        (lambda: index.annotate({"a.png": {"image.price": 1}}), "begins with 'image.'"),
        (lambda: index.annotate({"a.png": {"Price": 1, "price": 2}}), "upper and lower case"),
        (lambda: index.annotate({"a.png": {f"c{n}": 1 for n in range(1001)}}), "1001 columns"),
        (lambda: index.duplicates(2), "threshold=2"),
        (lambda: index.clusters(0), "0"),
        (lambda: Index.create(tmp_path / "shop.gamlens", lens), "an index already"),
        (lambda: Index.create(tmp_path / "photos", lens), "exists and is no index"),
        (lambda: Index.create(tmp_path / "photos" / "0.png", lens), "exists and is no index"),
        (lambda: Index.create(tmp_path / "x", lens, score="snake"), "'snake'"),
        (lambda: Index.create(tmp_path / "x", lens, backend="exakt"), "no backend 'exakt'"),
        (lambda: Index.open(tmp_path / "photos"), "not an index"),
        (lambda: Index.open(tmp_path / "nothing"), "no index"),
        (lambda: dark.search(photo(0)), "closed"),
    ]
    for number, (call, message) in enumerate(wrong):
        found = attempt(call)
        assert isinstance(found, GamlensError), number
        assert message in str(found), number
    assert not (tmp_path / "x").exists()
    assert (len(index), index.check(), index.catalogue.columns()) == (2, [], [])
    assert index.sources() == [str(tmp_path / "photos")]


def test_columns_of_any_name(lens: CountingLens, tmp_path: Path) -> None:
    """Names of the index's own tables and columns, of SQL, and any characters."""
    index = made(tmp_path, lens, 0, 1)
    names = ["slot", "id", "path", "images", "rowid", "metadata", "select", "crc", 'say "hi"', "größe", "a b", "x;--"]
    row = {name: number for number, name in enumerate(names)}
    index.annotate({str(tmp_path / "photos" / "1.png"): row})
    for name, number in row.items():
        quoted = name.replace('"', '""')
        (hit,) = index.search(photo(0), where=f'"{quoted}" = {number}')
        assert (Path(hit.path).name, dict(hit.metadata)) == ("1.png", row)
    assert index.catalogue.columns() == names


def test_random_changes_are_followed(lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any changes of files and an `update`, the index is what a new one of the same files would be."""
    monkeypatch.setattr(writing, "FEW_HOLES", 4)
    monkeypatch.setattr(writing, "COMMIT_EVERY", 3)
    draw = random.Random(0)
    folder = tmp_path / "photos"
    index = made(tmp_path, lens, *range(5), activations=True)
    index.annotate({path: {"tag": path} for path in contents(index)})
    for turn in range(30):
        tags = tags_now(index)
        names = sorted(path.name for path in folder.iterdir())
        for _ in range(draw.randint(1, 4)):
            old, new = draw.choice(names), f"{draw.randrange(10)}.png"
            change = draw.randrange(4)
            if change == 0:
                photo(draw.randrange(30)).save(folder / new)
            elif change == 1 and (folder / old).exists() and len(list(folder.iterdir())) > 2:
                (folder / old).unlink()
            elif change == 2 and (folder / old).exists():
                os.replace(folder / old, folder / new)
            elif (folder / old).exists() and old != new:
                shutil.copy(folder / old, folder / new)
        lens.forwards()
        found = index.update(batch_size=2)
        assert lens.forwards() == found.forwards <= found.added + found.changed
        files = {str(path): path.read_bytes() for path in folder.iterdir()}
        kept = contents(index)
        assert kept.keys() == files.keys(), turn
        for image in index.catalogue.images().values():
            assert image.sha256 == sha256(files[image.path]).hexdigest()
            assert image.state.bytes == len(files[image.path])
        fresh = lens.remember(list(files)).embeddings
        for path, vector in zip(files, fresh, strict=True):
            np.testing.assert_allclose(np.frombuffer(kept[path][:128], "<f4"), vector, atol=1e-5)
        assert index.check() == []
        check_tags(tags, tags_now(index), turn)
        untagged = [path for path, (_, tag) in tags_now(index).items() if tag is None]
        index.annotate({path: {"tag": f"{turn} {path}"} for path in untagged})
        again = index.update()
        assert (again.unchanged, again.forwards, str(again)) == (len(files), 0, f"{len(files)} unchanged")


def tags_now(index: Index) -> dict[str, tuple[str, Any]]:
    """The sha256 of the contents, and the column `tag`, of each image by its path."""
    images = list(index.catalogue.images().values())
    known = index.catalogue.described([image.slot for image in images])
    return {image.path: (image.sha256, known[image.slot].metadata.get("tag")) for image in images}


def check_tags(old: dict[str, tuple[str, Any]], new: dict[str, tuple[str, Any]], turn: int) -> None:
    """Columns go with contents wherever these are at another path now, and else stay with the path."""
    found = {tag: path for path, (_, tag) in new.items() if tag is not None}
    assert len(found) == sum(tag is not None for _, tag in new.values()), turn
    stays = {path for path in new if path in old and old[path][0] == new[path][0]}
    assert all(new[path][1] == old[path][1] for path in stays), turn
    moved = set()
    for digest in {digest for digest, _ in new.values()}:
        lost = {tag for path, (other, tag) in old.items() if other == digest and path not in stays}
        free = {path for path, (other, _) in new.items() if other == digest and path not in stays}
        taken = {path for path in free if new[path][1] in lost}
        assert len(taken) == min(len(lost), len(free)), turn
        moved |= taken
    for path in new.keys() - stays - moved:
        kept = path in old and found.get(old[path][1]) in (None, path)
        assert new[path][1] == (old[path][1] if kept else None), turn
