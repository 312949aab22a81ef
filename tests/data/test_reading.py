"""Helpers that readers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from gamlens.data.reading import lines_by_id
from gamlens.errors import GamlensError


def write(folder: Path, text: str) -> Path:
    (folder / "list.txt").write_text(text)
    return folder / "list.txt"


def test_lines_by_id(tmp_path: Path) -> None:
    """Spaces and tabs separate columns, empty lines do not count, and the last column keeps its spaces."""
    assert lines_by_id(write(tmp_path, "7 1.5\t2 3 4.0\n\n 10 0 0 5 6 \n"), "id x y w h", float) == {
        "7": (1.5, 2.0, 3.0, 4.0),
        "10": (0.0, 0.0, 5.0, 6.0),
    }
    assert list(lines_by_id(write(tmp_path, "2 b\n1 a\n"), "id class", str)) == ["2", "1"]
    assert lines_by_id(write(tmp_path, "1 Laysan Albatross\n"), "id name", str) == {"1": ("Laysan Albatross",)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 0 0 5 6\n\n2 0 0 5\n", r"Line 3 of .*list\.txt' is not `id x y w h`: found '2 0 0 5'.*5 columns"),
        ("1 0 0 5 six\n", r"Line 1 of .* is not `id x y w h`: found '1 0 0 5 six'.*six"),
        ("1 0 0 5 6 7\n", r"Line 1 of .* is not `id x y w h`"),
        ("1 0 0 5 6\n1 0 0 5 6\n", r"Line 2 of .* has the id '1' of an earlier line"),
    ],
)
def test_a_wrong_line_is_named_with_its_file(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(GamlensError, match=message):
        lines_by_id(write(tmp_path, text), "id x y w h", float)


def test_an_id_without_a_line_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(GamlensError, match=r"no line in '.*list\.txt' for the id '12': did you mean '112'"):
        lines_by_id(write(tmp_path, "112 1\n"), "id class", int)["12"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(GamlensError, match=r"none\.txt"):
        lines_by_id(tmp_path / "none.txt", "id class", int)
