"""What a visit keeps, for how long, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image
from studio_kit import noise

from gamlens import GamlensError, Lens
from gamlens.studio import home, state
from gamlens.studio.samples import collect
from gamlens.studio.shelf import Shelf
from gamlens.studio.state import Visits, read


def test_photo(tmp_path: Path) -> None:
    photo = read(noise(tmp_path / "wide.png", seed=0, size=(1920, 960)))
    assert (photo.name, photo.size, photo.shown.size) == ("wide.png", (1920, 960), (960, 480))
    turned = Image.new("RGB", (40, 20))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=exif)
    assert read(tmp_path / "turned.jpg").size == (20, 40)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text.jpg", b"no image", "Cannot read 'text.jpg' as an image.*A JPEG, PNG"),
        ("empty.png", b"", r"'empty.png' is empty"),
        ("page.html", b"<script>alert(1)</script>", "Cannot read 'page.html'"),
    ],
)
def test_no_image(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GamlensError, match=message) as found:
        read(tmp_path / name)
    assert str(tmp_path) not in str(found.value)


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = noise(tmp_path / "big.png", seed=0, size=(200, 100))
    monkeypatch.setattr(state, "MOST_PIXELS", 19_999)
    with pytest.raises(GamlensError, match=r"'big.png' has more than .* pixels"):
        read(file)
    monkeypatch.setattr(state, "MOST_BYTES", 10)
    with pytest.raises(GamlensError, match=r"'big.png' has .* MB"):
        read(file)
    with pytest.raises(GamlensError, match="is gone"):
        read(tmp_path / "none.png")


def test_bomb_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a few bytes that says it has a billion pixels."""
    Image.new("1", (1, 1)).save(tmp_path / "bomb.bmp")
    data = bytearray((tmp_path / "bomb.bmp").read_bytes())
    data[18:26] = (40_000).to_bytes(4, "little") * 2
    (tmp_path / "bomb.bmp").write_bytes(data)
    monkeypatch.setattr(state, "upright", lambda path: pytest.fail("it was decoded"))
    with pytest.raises(GamlensError, match="pixels: make it smaller"):
        read(tmp_path / "bomb.bmp")


def test_visits_end_with_their_files(tmp_path: Path) -> None:
    visits = Visits(2)
    files = []
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        files.append(noise(tmp_path / str(number) / "photo.png", seed=number))
        visits.of(f"visitor {number}").give("photo", files[-1])
    assert len(visits) == 2
    assert [file.exists() for file in files] == [False, True, True]
    assert not files[0].parent.exists()
    visits.of("visitor 1").give("photo", None)
    assert not files[1].exists()
    visits.end("visitor 2")
    assert not files[2].exists()
    visits.clear()
    assert len(visits) == 0


def test_a_photo_of_two_places_stays_until_both_are_done(tmp_path: Path) -> None:
    visit = Visits().of("one")
    file = noise(tmp_path / "photo.png", seed=0)
    visit.give("x", file)
    visit.give("y", file)
    visit.give("x", None)
    assert file.exists()
    visit.close()
    assert not file.exists()


def test_visitors_who_give_the_same_photo_share_it(tmp_path: Path) -> None:
    visits, file = Visits(), noise(tmp_path / "photo.png", seed=0)
    visits.of("one").give("photo", file)
    visits.of("two").give("photo", file)
    visits.of("one").give("photo", file)
    visits.end("one")
    assert file.exists()
    visits.end("two")
    assert not file.exists()


def test_a_file_that_is_no_photo_goes_with_the_next(tmp_path: Path) -> None:
    visits, files = Visits(), [tmp_path / "one.jpg", tmp_path / "two.jpg"]
    for file in files:
        file.write_text("no image")
        with pytest.raises(GamlensError):
            visits.of("me").give("photo", file)
    assert [file.exists() for file in files] == [False, True]
    visits.end("me")
    assert not files[1].exists()


def test_home_is_made_by_the_first_and_removed_by_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "_open", [])
    monkeypatch.setattr(home, "_place", [])
    monkeypatch.setattr(home, "_before", {})
    monkeypatch.setenv("GRADIO_TEMP_DIR", "/before")
    monkeypatch.delenv("GRADIO_ANALYTICS_ENABLED", raising=False)
    first, second = home.enter(), home.enter()
    assert first == second
    assert os.environ["GRADIO_TEMP_DIR"] == str(first)
    home.leave()
    assert first.is_dir()
    home.leave()
    assert not first.exists()
    assert os.environ["GRADIO_TEMP_DIR"] == "/before"
    assert "GRADIO_ANALYTICS_ENABLED" not in os.environ


def test_examples_are_never_deleted(tmp_path: Path) -> None:
    samples = collect(tmp_path)
    assert set(samples.single) == {"cheetah", "lion", "cat", "coffee", "both"}
    visit = Visits(ours=samples.files.values()).of("one")
    visit.give("photo", samples.files["both"])
    visit.give("x", tmp_path / "." / "both.jpg")
    visit.close()
    assert samples.files["both"].exists()


def test_shelf(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import torchvision\ndef build():\n    return torchvision.models.resnet18(num_classes=3)\n")
    shelf = Shelf({f"{file}:build": f"{file}:build"}, anything=False)
    assert shelf.lens(shelf.first).name == "ResNet"
    assert shelf.lens(shelf.first) is shelf.lens(shelf.first)
    with pytest.raises(GamlensError, match="no model 'resnet18' here"):
        shelf.lens("resnet18")
    free = Shelf({"given": shelf.lens(shelf.first)}, anything=True)
    assert free.names[:2] == ["given", "efficientnet_lite0"]
    assert isinstance(free.lens("given"), Lens)
    with pytest.raises(GamlensError, match="given at the start"):
        free.lens(f"{file}:build")
    with pytest.raises(GamlensError, match="did you mean 'resnet50'"):
        free.lens("resnet5")
    with pytest.raises(GamlensError, match="no model to show"):
        Shelf({}, anything=True)
