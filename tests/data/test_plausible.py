"""Small files that claim gigabytes are refused before anything is allocated. The limit is low here: files are small."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gamlens.data import plausible
from gamlens.errors import GamlensError

LIMIT = 2**20
CLAIMS = r"has [\d,]+ bytes and claims to hold [\d,]+, more than 100 times as many.*[Ww]rite"


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plausible, "ALWAYS_PLAUSIBLE", LIMIT)


def everything(name: str) -> bool:
    return True


def test_a_bomb_is_refused_without_reading_it(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", maps=np.zeros(8 * LIMIT, np.uint8))
    tracemalloc.start()
    try:
        with pytest.raises(GamlensError, match=CLAIMS):
            plausible.read_arrays(tmp_path / "bomb.npz", everything)
        assert tracemalloc.get_traced_memory()[1] < LIMIT
    finally:
        tracemalloc.stop()


def test_what_is_not_wanted_is_not_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", small=np.arange(3), large=np.zeros(8 * LIMIT, np.uint8))
    found = plausible.read_arrays(tmp_path / "a.npz", "small".__eq__)
    assert list(found) == ["small"]
    assert found["small"].tolist() == [0, 1, 2]


def test_large_files_of_real_numbers_and_small_files_of_zeros_are_read(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).standard_normal(LIMIT // 4)
    np.savez_compressed(tmp_path / "real.npz", noise=noise)
    np.savez_compressed(tmp_path / "flat.npz", zeros=np.zeros(LIMIT - 200, np.uint8))
    assert np.array_equal(plausible.read_arrays(tmp_path / "real.npz", everything)["noise"], noise)
    assert (tmp_path / "flat.npz").stat().st_size * 100 < LIMIT
    assert not plausible.read_arrays(tmp_path / "flat.npz", everything)["zeros"].any()


def header(shape: tuple[int, ...], descr: str) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue()


@pytest.mark.parametrize(
    ("shape", "descr"), [((10**12,), "<f4"), ((10**12,), "|O"), ((-1,), "<f4"), ((3,), "<f4"), ((5,), "<f4")]
)
def test_a_header_that_claims_another_size_is_an_error(tmp_path: Path, shape: tuple[int, ...], descr: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("maps.npy", header(shape, descr) + bytes(16))
    with pytest.raises(ValueError, match="holds"):
        plausible.read_arrays(tmp_path / "a.npz", everything)


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


BOMBS = {
    "numbers": {"label": np.zeros(LIMIT, np.int8)},
    "texts": {"path": ["x" * 10_000] * 1000},
    "lists": {"label": [[0.0] * 200_000]},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_parquet_bomb_is_refused(tmp_path: Path, name: str) -> None:
    import pyarrow.parquet

    path = parquet(tmp_path / "t.parquet", BOMBS[name])
    with pytest.raises(GamlensError, match=CLAIMS):
        plausible.read_parquet(pyarrow.parquet, str(path), "'t.parquet'", path.stat().st_size)
    names, columns = plausible.read_parquet(pyarrow.parquet, str(path), "'t.parquet'", path.stat().st_size, ())
    assert (names, columns) == (list(BOMBS[name]), {})


def test_parquet_is_read_as_pyarrow_reads_it(tmp_path: Path) -> None:
    import pyarrow.parquet

    columns = {"path": ["a", None, "a"], "n": [1, 2, None], "v": [[1.5], None, []], "b": [True, None, False]}
    path = parquet(tmp_path / "t.parquet", columns)
    found = plausible.read_parquet(pyarrow.parquet, str(path), "t", path.stat().st_size)
    assert found == (list(columns), columns)


WRONG_FRAMES: dict[str, dict[str, Any]] = {
    "huge": {"original": [100_000, 100_000]},
    "no pixels": {"original": [0, 10]},
    "text": {"original": ["10", 10]},
    "three": {"original": [10, 10, 3]},
    "another input": {"size": [8, 9]},
    "far window": {"window": [0, 0, 1e6, 1e6]},
    "endless window": {"window": [0, 0, float("inf"), 1]},
    "no window": {"window": [0, 0, float("nan"), 1]},
    "turned window": {"window": [5, 0, 1, 1]},
    "short window": {"window": [0, 0, 1]},
}


@pytest.mark.parametrize("name", WRONG_FRAMES)
def test_frames_that_cannot_be(name: str) -> None:
    item = {"name": "cat.jpg", "original": [10, 20], "size": [8, 8], "window": [0, 0, 20, 10]}
    assert plausible.stored_frame(item, (8, 8)).window == (0.0, 0.0, 20.0, 10.0)
    with pytest.raises((ValueError, GamlensError)):
        plausible.stored_frame(item | WRONG_FRAMES[name], (8, 8))
