"""Tables of the user's own, CSV and Parquet."""

import sys
from pathlib import Path

import pytest

from gamlens.data import Box, plausible, table
from gamlens.errors import GamlensError

pyarrow = pytest.importorskip("pyarrow")
BOXES = [
    {"path": "b.png", "label": "dog", "x0": 1.0, "y0": 2.0, "x1": 3.5, "y1": 4.0, "split": "val"},
    {"path": "a.png", "label": "cat", "x0": None, "y0": None, "x1": None, "y1": None, "split": "train"},
    {"path": "b.png", "label": "cat", "x0": 0.0, "y0": 0.0, "x1": 8.0, "y1": 6.0, "split": "val"},
    {"path": "in/c.png", "label": None, "x0": None, "y0": None, "x1": None, "y1": None, "split": "val"},
]


@pytest.fixture
def root(tmp_path, image) -> Path:
    for name in ("a.png", "b.png", "in/c.png"):
        image(tmp_path / name)
    return tmp_path


def write(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        lines = [",".join("" if cell is None else str(cell) for cell in row.values()) for row in rows]
        path.write_text("\ufeff" + "\n".join([",".join(rows[0]), *lines]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_names_and_boxes(root, name) -> None:
    found = table(write(root / name, BOXES))
    assert found.classes == ("cat", "dog")
    a, b, c = found
    assert (a.name, a.labels, a.boxes, a.size) == ("a.png", (0,), (), None)
    assert (b.labels, b.size, b.image) == ((0, 1), (6, 8), str(root / "b.png"))
    assert b.boxes == (Box(1, 1.0, 2.0, 3.5, 4.0), Box(0, 0.0, 0.0, 8.0, 6.0))
    assert (c.name, c.labels) == ("in/c.png", ())
    assert [s.name for s in table(root / name, split="val")] == ["b.png", "in/c.png"]
    assert table(root / name, split="val").classes == found.classes
    with pytest.raises(GamlensError, match="is of the split 'test'"):
        table(root / name, split="test")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_numbers(root, name) -> None:
    rows = [{"path": "a.png", "label": 2}, {"path": "b.png", "label": 0}, {"path": "a.png", "label": 10}]
    found = table(write(root / name, rows))
    assert found.classes == tuple(str(number) for number in range(11))
    assert [s.labels for s in found] == [(2, 10), (0,)]


def test_boxes_are_in_the_upright_image(root) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 6)).save(root / "turned.jpg", exif=exif)
    (only,) = table(write(root / "t.csv", [{"path": "turned.jpg", "label": 0, "x0": 0, "y0": 0, "x1": 6, "y1": 8}]))
    assert only.size == (8, 6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column 'path', 'label'.*found none"),
        ("path,class\na.png,1\n", "no column 'label'.*found path, class"),
        ("path,label,x0,y0\na.png,1,2,3\n", "no column 'x1', 'y1'"),
        ("path,label\na.png,1,2\n", "Row 2 .* has 3 cells, the header 2"),
        ("path,label\n,1\n", "Row 1 .* has no path"),
        ("path,label\na.png,-1\n", "the label -1"),
        ("path,label\nz.png,1\n", "expected at '.*z.png'"),
        ("path,label,x0,y0,x1,y1\na.png,1,2,3,4,\n", "box of 'a.png'"),
        ("path,label,x0,y0,x1,y1\na.png,1,4,0,2,5\n", "x0 < x1"),
        ("path,label,x0,y0,x1,y1\na.png,,1,1,2,5\n", "found label None"),
        ('path,label\na.png,"1\n', "as CSV"),
    ],
)
def test_wrong_tables(root, text, message) -> None:
    (root / "mine.csv").write_text(text)
    with pytest.raises(GamlensError, match=message) as error:
        table(root / "mine.csv")
    assert "mine.csv" in str(error.value)


def test_wrong_files(root, monkeypatch) -> None:
    with pytest.raises(GamlensError, match="found a folder"):
        table(root)
    with pytest.raises(GamlensError, match="no column 'split'"):
        table(write(root / "t.csv", [{"path": "a.png", "label": 2}]), split="val")
    (root / "t.parquet").write_bytes(b"nothing")
    with pytest.raises(GamlensError, match=r"t\.parquet' as Parquet"):
        table(root / "t.parquet")
    (root / "odd.csv").write_bytes(b"path,label\n\xff\xfe,1\n")
    with pytest.raises(GamlensError, match=r"odd\.csv' as text"):
        table(root / "odd.csv")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(GamlensError, match=r"'pyarrow'.*gamlens\[eval\]"):
        table(root / "t.parquet")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_an_absurd_class_index_is_an_error_before_its_names_are_made(root, name) -> None:
    file = write(root / name, [{"path": "a.png", "label": 300_000_000}, {"path": "b.png", "label": 0}])
    with pytest.raises(GamlensError, match=r"has the label 300000000, and class indices go up to 999,999"):
        table(file)
    assert len(table(write(root / name, [{"path": "a.png", "label": 999_999}])).classes) == 1_000_000


def test_a_parquet_table_that_claims_gigabytes_is_refused(root, monkeypatch) -> None:
    import pyarrow.parquet

    monkeypatch.setattr(plausible, "ALWAYS_PLAUSIBLE", 2**16)
    wide = {"path": ["gone.png"] * 99, "label": [0] * 99, "notes": ["x" * 50_000] * 99}
    pyarrow.parquet.write_table(pyarrow.table(wide), root / "t.parquet")
    with pytest.raises(GamlensError, match="missing"):  # its photo: the column of notes is not read
        table(root / "t.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"path": ["a" * 50_000] * 99, "label": [0] * 99}), root / "t.parquet")
    with pytest.raises(GamlensError, match=r"t\.parquet' has .* more than 100 times as many"):
        table(root / "t.parquet")
