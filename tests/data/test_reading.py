"""Helpers that readers share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from gamlens.data import reading
from gamlens.data.cub import VoteMask
from gamlens.data.reading import lines_by_id
from gamlens.data.voc import PaletteMask
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


@pytest.mark.parametrize("text", ["[" * 200_000, "9" * 5000, '{"a": '])
def test_json_that_cannot_be_read_is_one_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(GamlensError, match=r"Cannot read .*a\.json' as JSON"):
        reading.read_json(tmp_path / "a.json")


LAUGHS = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 6))
XML = "<annotation><size><height>{}</height><width>5</width></size></annotation>"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_xml_that_defines_entities_is_refused(encoding: str, tmp_path: Path) -> None:
    """Five levels of ten entities each stand for 10^5 times the first text; ten levels would be 10^10 times."""
    text = f'<!DOCTYPE a [<!ENTITY a0 "1">{LAUGHS}]>{XML.format("&a5;")}'
    (tmp_path / "a.xml").write_bytes(text.encode(encoding))
    with pytest.raises(GamlensError, match=r"a\.xml' as an annotation: ValueError: it defines entities"):
        reading.read_xml(tmp_path / "a.xml")


def test_an_infinite_size_in_xml_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(XML.format("1e400"))
    with pytest.raises(GamlensError, match=r"a\.xml' as an annotation: OverflowError"):
        reading.read_xml(tmp_path / "a.xml")
    (tmp_path / "a.xml").write_bytes(XML.format("4").encode("utf-16"))
    assert reading.read_xml(tmp_path / "a.xml").size == (4, 5)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "list.txt")
    with pytest.raises(GamlensError, match=r"list\.txt' is a pipe or a device"):
        reading.text(tmp_path / "list.txt")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("most", [1500, 100])
def test_a_mask_of_too_many_pixels_is_one_error(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (40, 40)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
    for mask in (VoteMask(str(tmp_path / "a.png"), 0, None), PaletteMask(str(tmp_path / "a.png"))):
        with pytest.raises(GamlensError, match=r"a\.png'.* pixels"):
            mask.read(0)
