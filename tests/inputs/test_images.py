"""Every kind of image file ends as the same upright RGB pixels, or as an error."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import nets
import numpy as np
import pytest
import torch
from PIL import Image

from gamlens import GamlensError, Lens, Transform
from gamlens.inputs.images import IMAGE_FORMATS, pictures, rgb, upright
from gamlens.inputs.transform import IMAGENET_MEAN, IMAGENET_STD

RANDOM = np.random.default_rng(0)
PHOTO = Image.fromarray(np.kron(RANDOM.integers(0, 256, (3, 5, 3), dtype=np.uint8), np.ones((16, 16, 1), np.uint8)))
TURNS = {  # orientation: what the camera stored for an upright picture (the inverse of what EXIF says to do)
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def turned(orientation: int) -> tuple[Image.Image, Image.Exif]:
    turn, exif = TURNS[orientation], Image.Exif()
    exif[0x0112] = orientation
    return (PHOTO if turn is None else PHOTO.transpose(turn)), exif


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("kind", ["png", "jpg", "webp", "tiff"])
def test_exif_rotation_is_applied(orientation: int, kind: str, tmp_path: Path) -> None:
    stored, exif = turned(orientation)
    file = tmp_path / f"photo.{kind}"
    stored.save(file, exif=exif, **({"quality": 100, "subsampling": 0} if kind == "jpg" else {"lossless": True}))
    shown = upright(file)
    assert shown.size == PHOTO.size
    assert np.abs(pixels(shown) - pixels(PHOTO)).max() <= (8 if kind == "jpg" else 0)
    with Image.open(file) as opened:
        assert np.array_equal(pixels(rgb(opened)), pixels(shown))
    assert not shown.getexif().get(0x0112, 1) > 1


def paletted() -> Image.Image:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    return image


def with_alpha(mode: str, *values: tuple[int, ...]) -> Image.Image:
    image = Image.new(mode, (2, 1))
    for place, value in enumerate(values):
        image.putpixel((place, 0), value)
    return image


KINDS: dict[str, tuple[Callable[[], Image.Image], dict[str, object], list[list[int]]]] = {
    "grey": (lambda: with_alpha("L", 7, 200), {}, [[7] * 3, [200] * 3]),
    "one bit": (lambda: with_alpha("1", 0, 1), {}, [[0] * 3, [255] * 3]),
    "grey and alpha": (lambda: with_alpha("LA", (100, 0), (100, 51)), {}, [[255] * 3, [224] * 3]),
    "alpha": (lambda: with_alpha("RGBA", (9, 9, 9, 0), (255, 0, 55, 51)), {}, [[255] * 3, [255, 204, 215]]),
    "opaque": (lambda: with_alpha("RGBA", (1, 2, 3, 255), (4, 5, 6, 255)), {}, [[1, 2, 3], [4, 5, 6]]),
    "palette": (paletted, {}, [[10, 20, 30], [200, 100, 50]]),
    "transparent palette": (paletted, {"transparency": 0}, [[255] * 3, [200, 100, 50]]),
    "half transparent palette": (paletted, {"transparency": bytes([255, 51])}, [[10, 20, 30], [244, 224, 214]]),
    "transparent colour": (
        lambda: with_alpha("RGB", (1, 2, 3), (4, 5, 6)),
        {"transparency": (4, 5, 6)},
        [[1, 2, 3], [255] * 3],
    ),
    "transparent grey": (lambda: with_alpha("L", 7, 200), {"transparency": 7}, [[255] * 3, [200] * 3]),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_mode_becomes_rgb_over_white(name: str, tmp_path: Path) -> None:
    make, options, expected = KINDS[name]
    make().save(tmp_path / "a.png", **options)
    assert np.abs(pixels(upright(tmp_path / "a.png"))[0] - expected).max() <= 1


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_sixteen_bits_are_brought_to_eight(kind: str, tmp_path: Path) -> None:
    values = np.array([[0, 257, 32896, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / f"a.{kind}")
    assert pixels(upright(tmp_path / f"a.{kind}"))[0, :, 1].tolist() == [0, 1, 128, 255]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 100, 255]], np.int32), [0, 100, 255]),
        (np.array([[0, 32896, 65535]], np.int32), [0, 128, 255]),
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[-3.0, 2.0, 4.0]], np.float32), [0, 128, 255]),
        (np.array([[1.0, 2.0, np.nan]], np.float32), [128, 255, 0]),
    ],
)
def test_wide_pixels_become_bytes(values: np.ndarray, expected: list[int]) -> None:
    assert pixels(rgb(Image.fromarray(values)))[0, :, 0].tolist() == expected


def test_cmyk_jpeg(tmp_path: Path) -> None:
    Image.new("CMYK", (32, 32), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    colour = pixels(upright(tmp_path / "a.jpg")).mean(axis=(0, 1))
    assert np.abs(colour - [255, 0, 0]).max() <= 6


def test_the_first_frame_of_an_animation_is_shown(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert np.abs(pixels(upright(tmp_path / "a.gif"))[0, 0] - [255, 0, 0]).max() <= 2


@pytest.mark.parametrize("size", [(1, 1), (3000, 1), (1, 3000), (2, 3)])
@pytest.mark.parametrize("mode", ["squash", "crop"])
def test_extreme_shapes(size: tuple[int, int], mode: str) -> None:
    image = Image.fromarray(RANDOM.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    lens = Lens(nets.small(), transform=Transform(size=(64, 64), mode=mode, short=64))
    result = lens.classify(image, 3)
    assert result.maps.shape == (1, 64, 64)
    assert result.full().shape == (size[1], size[0])
    assert result.overlay().size == size
    assert bool(result.full().isfinite().all())


def test_a_crop_of_a_long_image_does_not_enlarge_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """3000x1 at a short side of 256 would be 768000x256 pixels, of which 224x224 are looked at."""
    resize = Image.Image.resize

    def watched(self: Image.Image, size: tuple[int, int], *args: object, **options: object) -> Image.Image:
        assert size[0] * size[1] <= 2**22, f"resized to {size}"
        return resize(self, size, *args, **options)

    monkeypatch.setattr(Image.Image, "resize", watched)
    tensor, frame = Transform(mode="crop")(Image.new("RGB", (3000, 1)))
    assert tensor.shape == (3, 224, 224)
    assert frame.window[2] - frame.window[0] == pytest.approx(224 / 256)


def test_a_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(GamlensError, match=r"a\.png' is too large .*raise PIL\.Image\.MAX_IMAGE_PIXELS"):
        upright(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(GamlensError, match=r"a\.png' is too large"):
        Lens(nets.small()).classify(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1600)
    filters = list(warnings.filters)
    assert upright(tmp_path / "a.png").size == (40, 40)
    assert list(warnings.filters) == filters


def test_reading_in_two_threads_leaves_the_warning_filters_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reader is done while the second one is still inside."""
    PHOTO.save(tmp_path / "a.png")
    entered, inside, done, real = threading.Event(), threading.Event(), threading.Event(), Image.open

    def opened(*args: object, **options: object) -> Image.Image:
        if threading.current_thread() is first:
            entered.set()
            inside.wait(60)
        else:
            inside.set()
            done.wait(60)
        return real(*args, **options)

    filters = list(warnings.filters)
    monkeypatch.setattr(Image, "open", opened)
    first = threading.Thread(target=lambda: (upright(tmp_path / "a.png"), done.set()))
    first.start()
    entered.wait(60)
    upright(tmp_path / "a.png")
    first.join()
    assert list(warnings.filters) == filters


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing.png": (lambda file: None, r"There is no file '.*missing\.png'"),
    "folder.png": (lambda file: file.mkdir(), r"folder\.png' is a folder, not an image: give the image files in it"),
    "empty.jpg": (lambda file: file.touch(), r"empty\.jpg' is empty \(0 bytes\)"),
    "text.jpg": (lambda file: file.write_text("not an image"), r"Cannot read '.*text\.jpg' as an image"),
    "noise.png": (lambda file: file.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99)), r"Cannot read '.*noise\.png'"),
    "half.jpg": (lambda file: halve(file), r"Cannot read '.*half\.jpg' as an image: .*truncated"),
    "half.png": (lambda file: halve(file), r"Cannot read '.*half\.png' as an image"),
}


def halve(file: Path) -> None:
    Image.fromarray(RANDOM.integers(0, 256, (60, 60, 3), dtype=np.uint8)).save(file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    make, message = FILES[name]
    make(tmp_path / name)
    for given in (tmp_path / name, [str(tmp_path / name)]):
        with pytest.raises(GamlensError, match=message):
            Lens(nets.small()).classify(given)


def test_a_pil_image_of_a_broken_file(tmp_path: Path) -> None:
    halve(tmp_path / "half.jpg")
    with Image.open(tmp_path / "half.jpg") as image, pytest.raises(GamlensError, match=r"image 0.*truncated"):
        Lens(nets.small()).classify(image)


def test_a_pil_image_that_was_closed(tmp_path: Path) -> None:
    PHOTO.save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        pass
    with pytest.raises(GamlensError, match="image 0"):
        Lens(nets.small()).classify(image)


def test_an_opened_picture_is_not_the_users_own() -> None:
    """Drawing on it leaves the user's image alone."""
    opened = next(pictures(PHOTO)).open()
    assert opened is not PHOTO
    before = PHOTO.tobytes()
    opened.paste("red", (0, 0, 9, 9))
    assert PHOTO.tobytes() == before


def test_names_follow_the_place_in_a_list(tmp_path: Path) -> None:
    PHOTO.save(tmp_path / "cat.png")
    array = np.asarray(PHOTO)
    given = [PHOTO, tmp_path / "cat.png", array, torch.zeros(3, 8, 8)]
    assert [picture.name for picture in pictures(given)] == ["image 0", "cat.png", "image 2", "image 3"]
    assert [picture.name for picture in pictures(torch.zeros(2, 3, 8, 8))] == ["image 0", "image 1"]
    assert [picture.name for picture in pictures(np.stack([array, array]))] == ["image 0", "image 1"]


def test_a_preprocessed_tensor_is_shown_in_its_own_colours() -> None:
    tensor, _ = Transform(size=(48, 80))(PHOTO)
    result = Lens(nets.small()).classify(tensor)
    assert np.abs(pixels(result.image()) - pixels(PHOTO)).max() <= 1
    assert (result.picture().scale) == (IMAGENET_MEAN, IMAGENET_STD)


@pytest.mark.parametrize("channels", [1, 5])
def test_tensors_of_any_number_of_channels_can_be_shown(channels: int) -> None:
    result = Lens(nets.small(channels=channels)).classify(nets.images(1, channels=channels))
    shown = pixels(result.image())
    assert shown.shape == (64, 64, 3)
    assert shown.max() > 150 > 100 > shown.min()
    assert result.overlay().size == (64, 64)


def test_only_the_named_formats_are_opened(tmp_path: Path) -> None:
    """An EPS called photo.jpg would start Ghostscript; other decoders of Pillow are not tried either."""
    pixels = Image.new("RGB", (8, 8), "red")
    for kind in IMAGE_FORMATS:
        pixels.save(tmp_path / "photo.jpg", format=kind)
        assert upright(tmp_path / "photo.jpg").size == (8, 8)
    for kind in ("EPS", "PPM", "ICO", "PCX", "TGA"):
        pixels.save(tmp_path / "photo.jpg", format=kind)
        with pytest.raises(GamlensError, match=r"Cannot read .*photo\.jpg"):
            upright(tmp_path / "photo.jpg")


def test_a_photo_of_several_pictures_is_its_first(tmp_path: Path) -> None:
    """Cameras write MPO, a JPEG that is followed by others."""
    Image.new("RGB", (8, 8), "red").save(
        tmp_path / "two.jpg", format="MPO", save_all=True, append_images=[Image.new("RGB", (8, 8), "blue")]
    )
    red, _, blue = upright(tmp_path / "two.jpg").getpixel((4, 4))
    assert red > 200 > blue


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in the file system")
def test_pipes_and_devices_are_refused_without_reading_them(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    for file in (tmp_path / "pipe.jpg", Path("/dev/zero")):
        with pytest.raises(GamlensError, match="is a pipe or a device"):
            upright(file)
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    with pytest.raises(GamlensError, match=r"loop\.jpg' is a link that leads to no file"):
        upright(tmp_path / "loop.jpg")


def test_a_name_that_is_not_utf_8_is_one_error(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")
    Image.new("RGB", (8, 8)).save(name, format="PNG")
    with pytest.raises(GamlensError, match=r"caf\\xe9\.png' is not UTF-8: rename"):
        upright(name)
