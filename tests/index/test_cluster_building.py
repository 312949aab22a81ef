"""Files that the workers of a run embed give the same index as files that this process embeds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_kit import CountingLens, contents, put

from gamlens import GamlensError, Lens
from gamlens.engine import Done, run_local
from gamlens.index import cluster_building
from gamlens.index.building import BadFile, EmbeddedFile
from gamlens.index.catalogue import FileState
from gamlens.index.cluster_building import BUILDING, decode_files, encode_files
from gamlens.index.index import Index
from gamlens.inputs.frame import Frame

PHOTOS = 7


def same_file(left: EmbeddedFile | BadFile, right: EmbeddedFile | BadFile) -> bool:
    if isinstance(left, BadFile) or isinstance(right, BadFile):
        return left == right
    arrays = [(left.vector, right.vector), (left.block, right.block)]
    known = [(own.path, own.state, own.sha256, own.frame) for own in (left, right)]
    return known[0] == known[1] and all(np.array_equal(one, two) for one, two in arrays)


def test_parts_are_read_as_they_were_written() -> None:
    state, frame = FileState(5, 7), Frame((80, 100), (64, 64), (0.0, 0.0, 100.0, 80.0))
    vector, block = np.arange(3, dtype=np.float32), np.arange(8, dtype=np.float16).reshape(2, 2, 2)
    files = [
        EmbeddedFile("/ä.png", state, "ab", frame, vector, block),
        BadFile("/b.png", state, 'no "image"\n'),
        EmbeddedFile("/c.png", state, "cd", frame, vector + 1, block + 1),
    ]
    again = decode_files(encode_files([cluster_building._row(file) for file in files]))
    assert [same_file(one, two) for one, two in zip(files, again, strict=True)] == [True] * 3
    only_bad = decode_files(encode_files([cluster_building._row(files[1])]))
    assert only_bad == [files[1]]


def in_this_process(monkeypatch: pytest.MonkeyPatch, *, stops_after: int | None = None) -> None:
    """Let this process be the cluster; it fails after so many parts."""

    def run(job: Any, items: Any, folder: Any, **_: Any) -> Iterator[Done]:
        for number, done in enumerate(run_local(job, items, folder)):
            yield done
            if number + 1 == stops_after:
                raise GamlensError("the cluster is gone")

    monkeypatch.setattr(cluster_building, "run_ray", run)


@pytest.mark.parametrize("activations", [False, True])
def test_the_index_is_the_same(activations: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that stops is continued; files that are known by their contents are moved and copied, not added."""
    photos = tmp_path / "photos"
    put(photos, *range(PHOTOS))
    (photos / "bad.png").write_bytes(b"no image")
    lens = CountingLens()
    with Index.create(tmp_path / "here.gamlens", lens, activations=activations) as here:
        here.add(photos, batch_size=2)
        expected = contents(here)
    lens.forwards()
    in_this_process(monkeypatch, stops_after=1)
    index = Index.create(tmp_path / "there.gamlens", lens, activations=activations)
    lens.forwards()
    with pytest.raises(GamlensError, match="the cluster is gone"):
        index.add_on_cluster(photos, lambda: lens, chunk=4, batch_size=2)
    assert (len(index), (index.folder / BUILDING).is_dir()) == (0, True)
    before = lens.forwards()
    in_this_process(monkeypatch)
    told: list[tuple[int, int]] = []
    changes = index.add_on_cluster(
        photos, lambda: lens, chunk=4, batch_size=2, status=lambda done, bad: told.append((done, bad))
    )
    assert before + lens.forwards() == PHOTOS
    assert (changes.added, list(changes.bad)) == (PHOTOS, [str(photos / "bad.png")])
    assert told[-1][0] <= PHOTOS + 1
    assert contents(index) == expected
    assert (index.check(), (index.folder / BUILDING).exists()) == ([], False)
    os.rename(photos / "0.png", photos / "moved.png")
    (photos / "copy.png").write_bytes((photos / "1.png").read_bytes())
    again = index.add_on_cluster(photos, lambda: lens, chunk=4)
    assert (again.added, again.moved, again.unchanged) == (1, 1, PHOTOS - 1)
    assert index.sources() == [str(photos)]
    index.close()


def test_a_worker_with_another_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "photos", 0)
    lens = CountingLens()
    with Index.create(tmp_path / "x.gamlens", lens) as index:
        in_this_process(monkeypatch)
        with pytest.raises(GamlensError, match="another preprocessing"):
            index.add_on_cluster(tmp_path / "photos", lambda: Lens(lens.model), chunk=4)
        assert len(index) == 0


@pytest.mark.slow
def test_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # where workers find index_kit
    put(tmp_path / "photos", *range(PHOTOS))
    with Index.create(tmp_path / "here.gamlens", CountingLens()) as here:
        here.add(tmp_path / "photos", batch_size=2)
        expected = contents(here)
    with Index.create(tmp_path / "there.gamlens", CountingLens()) as there:
        changes = there.add_on_cluster(tmp_path / "photos", CountingLens, workers=2, chunk=4, batch_size=2)
        assert (changes.added, contents(there)) == (PHOTOS, expected)
