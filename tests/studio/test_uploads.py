"""What is read of a visitor's photo, what is refused, and the folder for uploads."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from studio_kit import noise

from gamlens import GamlensError
from gamlens.studio import uploads
from gamlens.studio.uploads import UploadedFiles, read_photo


def test_photo(tmp_path: Path) -> None:
    photo = read_photo(noise(tmp_path / "wide.png", seed=0, size=(1920, 960)))
    assert (photo.name, photo.size, photo.shown.size) == ("wide.png", (1920, 960), (960, 480))
    turned = Image.new("RGB", (40, 20))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=exif)
    assert read_photo(tmp_path / "turned.jpg").size == (20, 40)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text.jpg", b"no image", "Cannot read 'text.jpg' as an image.*Give a JPEG, PNG"),
        ("empty.png", b"", r"'empty.png' is empty"),
        ("page.html", b"<script>alert(1)</script>", "Cannot read 'page.html'"),
    ],
)
def test_no_image(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GamlensError, match=message) as found:
        read_photo(tmp_path / name)
    assert str(tmp_path) not in str(found.value)


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = noise(tmp_path / "big.png", seed=0, size=(200, 100))
    monkeypatch.setattr(uploads, "MOST_PIXELS", 19_999)
    with pytest.raises(GamlensError, match=r"'big.png' has more than .* pixels"):
        read_photo(file)
    monkeypatch.setattr(uploads, "MOST_BYTES", 10)
    with pytest.raises(GamlensError, match=r"'big.png' has .* MB"):
        read_photo(file)
    with pytest.raises(GamlensError, match="is gone"):
        read_photo(tmp_path / "none.png")


def test_waiting_uploads_are_limited_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a visit uses do not count, and those that are in use are never swept away."""
    files = UploadedFiles(tmp_path)
    monkeypatch.setattr(uploads, "WAITING_IN_ALL", (2, 100))
    places = [files.begin(f"visitor {number}", 10) for number in range(2)]
    assert len({*places}) == 2
    with pytest.raises(GamlensError, match="Too many uploads wait"):
        files.begin("visitor 3", 10)
    for place in places:
        (place / "photo.png").write_bytes(b"0")
        files.finish(place, place / "photo.png")
    files.acquire(places[0] / "photo.png")
    files.finish(files.begin("visitor 3", 10), None)
    with pytest.raises(GamlensError, match="Too many uploads wait"):
        files.begin("visitor 3", 100)
    files.sweep(0)
    assert [path.parent for path in tmp_path.rglob("*.png")] == [places[0]]
    files.release(places[0] / "photo.png")
    assert not list(tmp_path.iterdir())


def test_bomb_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a few bytes that says it has a billion pixels."""
    Image.new("1", (1, 1)).save(tmp_path / "bomb.bmp")
    data = bytearray((tmp_path / "bomb.bmp").read_bytes())
    data[18:26] = (40_000).to_bytes(4, "little") * 2
    (tmp_path / "bomb.bmp").write_bytes(data)
    monkeypatch.setattr(uploads, "upright", lambda path: pytest.fail("it was decoded"))
    with pytest.raises(GamlensError, match="pixels: make it smaller"):
        read_photo(tmp_path / "bomb.bmp")
