"""Records: light, picklable, hashable by name, with a stable fingerprint."""

import hashlib
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from gamlens.data import Box, Dataset, Sample
from gamlens.errors import GamlensError

A = Sample("a", "/x/a.png", (1,), (Box(1, 0.0, 1.0, 4.0, 3.5),), (6, 8))
B = Sample("b", "/x/b.png", (0, 1))
BOTH = Dataset("toy", "/x", ("cat", "dog"), (A, B))


def test_box_area() -> None:
    assert A.boxes[0].area == 10.0
    assert Box(0, 4, 0, 2, 5).area == 0.0


def test_sample_is_hashable_by_name_and_picklable() -> None:
    assert hash(A) == hash("a") == hash(replace(A, image="/y/a.png"))
    assert replace(A, labels=(0,)) != A
    assert pickle.loads(pickle.dumps(BOTH)) == BOTH


def test_dataset_is_a_sequence() -> None:
    assert (len(BOTH), BOTH[1], list(BOTH)) == (2, B, [A, B])


def test_fingerprint() -> None:
    found = BOTH.fingerprint()
    written = b'[["a", [1], [[1, 0.0, 1.0, 4.0, 3.5]]], ["b", [0, 1], []]]'
    assert found == hashlib.sha256(written).hexdigest()
    moved = Dataset("other", "/y", (), (replace(B, image="/y/b.png"), replace(A, size=None)))
    assert moved.fingerprint() == found
    whole = replace(A, boxes=(Box(1, 0, 1, 4, 3.5),))
    assert replace(BOTH, samples=(whole, B)).fingerprint() == found
    for other in (replace(A, name="c"), replace(A, labels=(0,)), replace(A, boxes=())):
        assert replace(BOTH, samples=(other, B)).fingerprint() != found


def test_names_must_differ() -> None:
    with pytest.raises(GamlensError, match="2 samples named 'a'"):
        Dataset("toy", "/x", (), (A, B, A))


def test_no_mask() -> None:
    assert A.void() is None
    with pytest.raises(GamlensError, match="'a' has no mask"):
        A.load_mask(1)


def test_contents_skip_pipes_and_devices(tmp_path: Path) -> None:
    """Reading them may never end; what is left counts as before."""
    (tmp_path / "a.png").write_bytes(b"a")
    os.mkfifo(tmp_path / "b.png")
    (tmp_path / "c.png").symlink_to("/dev/zero")
    samples = tuple(Sample(name, str(tmp_path / name)) for name in ("a.png", "b.png", "c.png"))
    alone = Dataset("folder", str(tmp_path), (), samples[:1])
    assert Dataset("folder", str(tmp_path), (), samples).contents() == alone.contents()
    assert alone.contents() == hashlib.sha256(hashlib.sha256(b"a").digest()).hexdigest()
