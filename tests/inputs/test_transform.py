"""From an image to the model's input: our own transform and torchvision's."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms._presets import ImageClassification

from gamlens.errors import GamlensError, GamlensWarning
from gamlens.inputs.frame import Frame
from gamlens.inputs.transform import IMAGENET_MEAN, IMAGENET_STD, ExternalTransform, Transform

BICUBIC = InterpolationMode.BICUBIC
SIZES = [(300, 398), (398, 300), (256, 256), (333, 500), (97, 61), (257, 511)]


def photo(height, width, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def ramp(height, width):
    """Red says the column, green the row (both below 256)."""
    rows, columns = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([columns, rows, 0 * rows], axis=2).astype(np.uint8))


class TestTransform:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"size": 224}, r"\(height, width\), such as \(224, 224\); found 224"),
            ({"std": (0.0, 1.0, 1.0)}, "no std is 0"),
            ({"mean": (0.5, 0.5)}, "one mean and one std per channel"),
            ({"mean": 0.5, "std": 0.5}, r"one number per channel, such as mean=\(0.5, 0.5, 0.5\).*found mean=0.5"),
        ],
    )
    def test_values_that_make_no_transform(self, given, message):
        with pytest.raises(GamlensError, match=message):
            Transform(**given)

    def test_only_pil_images_are_transformed(self):
        for mode in ("squash", "crop"):
            with pytest.raises(GamlensError, match=r"takes a PIL image; found str"):
                Transform(mode=mode)("photo.jpg")

    @pytest.mark.parametrize("size", SIZES)
    def test_squash_is_pils_bicubic_on_uint8(self, size):
        image = photo(*size)
        found, frame = Transform((48, 32))(image)
        pixels = np.asarray(image.resize((32, 48), Image.Resampling.BICUBIC)).astype(np.float64) / 255
        expected = (pixels - np.array(IMAGENET_MEAN)) / np.array(IMAGENET_STD)
        np.testing.assert_allclose(found.numpy(), expected.transpose(2, 0, 1), rtol=0, atol=1e-6)
        assert frame == Frame(size, (48, 32), (0.0, 0.0, size[1], size[0]))

    @pytest.mark.parametrize("size", SIZES)
    def test_crop_is_torchvisions_resize_256_and_centre_224(self, size):
        image = photo(*size)
        found, _ = Transform(mode="crop")(image)
        expected = transforms.Compose(
            [
                transforms.Resize(256, BICUBIC),
                transforms.CenterCrop(224),
                transforms.ToTensor(),
                transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
            ]
        )(image)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("mode", ["squash", "crop"])
    def test_the_bits_of_the_plain_formula(self, mode):
        """Every value a pixel can have, in float32, one operation after the other."""
        values = np.arange(256, dtype=np.uint8).reshape(16, 16)
        image = Image.fromarray(np.stack([values, values[::-1], values.T], axis=2))
        transform = Transform((16, 16), mode=mode, short=16)
        found, _ = transform(image)
        plain = torch.from_numpy(np.asarray(image).astype(np.float32) / 255)
        plain = ((plain - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)).permute(2, 0, 1)
        assert torch.equal(found, plain)
        assert found.is_contiguous()
        assert torch.equal(transform.table()[0], plain[0].flatten())
        assert torch.equal(transform.table()[2].view(16, 16).T, plain[2])

    def test_by_hand(self):
        found, _ = Transform((1, 1), (0.5, 0.0, 0.25), (0.5, 0.1, 2.0))(Image.new("RGB", (3, 2), (255, 0, 51)))
        torch.testing.assert_close(found.flatten(), torch.tensor([1.0, 0.0, -0.025]), rtol=0, atol=1e-7)

    def test_grey(self):
        found, _ = Transform((5, 4), (0.5,), (0.5,))(Image.new("L", (9, 9), 255))
        assert torch.equal(found, torch.ones(1, 5, 4))

    def test_channels_must_fit(self):
        with pytest.raises(GamlensError, match="1 channels, the image 3"):
            Transform((5, 4), (0.5,), (0.5,))(photo(9, 9))

    def test_unknown_mode_and_a_crop_larger_than_the_image_are_errors(self):
        with pytest.raises(GamlensError, match="'stretch'"):
            Transform(mode="stretch")
        with pytest.raises(GamlensError, match="short side is 200"):
            Transform(mode="crop", short=200)


TENSOR = [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
TENSOR_V2 = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
CROPS = {
    "v1": transforms.Compose([transforms.Resize(256, BICUBIC), transforms.CenterCrop(224), *TENSOR]),
    "v2": v2.Compose([v2.RGB(), v2.Resize(256, BICUBIC), v2.CenterCrop(224), *TENSOR_V2]),
    "list": v2.Compose([v2.Resize([256], BICUBIC), v2.CenterCrop([224, 224]), *TENSOR_V2]),
    "nested": transforms.Compose(
        [transforms.Compose([transforms.Resize(256, BICUBIC), transforms.CenterCrop((224, 224))]), *TENSOR]
    ),
    "preset": ImageClassification(crop_size=224, resize_size=256, interpolation=BICUBIC),
}
SQUASHES = {
    "v1": transforms.Compose([transforms.Resize((48, 32), BICUBIC), *TENSOR]),
    "v2": v2.Compose([v2.Resize([48, 32], BICUBIC), *TENSOR_V2]),
}


class TestExternalTransform:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("name", CROPS)
    def test_a_torchvision_crop_is_our_crop(self, name, size):
        image = photo(*size)
        tensor, frame = ExternalTransform(CROPS[name])(image)
        expected, ours = Transform(mode="crop")(image)
        torch.testing.assert_close(torch.as_tensor(tensor), expected, rtol=0, atol=1e-5)
        assert (frame.original, frame.size) == (ours.original, ours.size)
        assert frame.window == pytest.approx(ours.window)

    @pytest.mark.parametrize("name", SQUASHES)
    def test_a_torchvision_squash_is_our_squash(self, name):
        image = photo(97, 61)
        tensor, frame = ExternalTransform(SQUASHES[name])(image)
        expected, ours = Transform((48, 32))(image)
        torch.testing.assert_close(torch.as_tensor(tensor), expected, rtol=0, atol=1e-5)
        assert frame == ours

    @pytest.mark.parametrize(
        "steps",
        [
            [v2.Resize(40)],
            [v2.Resize((30, 50)), v2.CenterCrop(24)],
            [v2.CenterCrop((60, 100)), v2.Resize((30, 20))],
            [v2.Resize(80), v2.CenterCrop(70), v2.Resize(35), v2.CenterCrop((21, 30))],
            [v2.CenterCrop(90), v2.CenterCrop((31, 50))],
        ],
        ids=["short", "both-crop", "crop-both", "twice", "crop-crop"],
    )
    @pytest.mark.parametrize("original", [(200, 121), (150, 250)])
    def test_the_window_is_where_the_pixels_came_from(self, steps, original):
        fn = v2.Compose([*steps, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
        tensor, frame = ExternalTransform(fn)(ramp(*original))
        height, width = tensor.shape[1:]
        x0, y0, x1, y1 = frame.window
        columns = x0 + (np.arange(width) + 0.5) * (x1 - x0) / width - 0.5
        rows = y0 + (np.arange(height) + 0.5) * (y1 - y0) / height - 0.5
        inner = slice(2, -2)
        np.testing.assert_allclose(255 * tensor[0, height // 2].numpy()[inner], columns[inner], atol=0.8)
        np.testing.assert_allclose(255 * tensor[1, :, width // 2].numpy()[inner], rows[inner], atol=0.8)

    def test_a_step_that_moves_nothing_is_quiet_and_an_unknown_one_is_named(self):
        image = photo(40, 60)
        flip = transforms.Compose([transforms.RandomHorizontalFlip(1.0), transforms.CenterCrop(20), *TENSOR])
        with pytest.warns(GamlensWarning, match="RandomHorizontalFlip is not understood"):
            _, frame = ExternalTransform(flip)(image)
        assert frame.window == (0.0, 0.0, 60.0, 40.0)
        _, quiet = ExternalTransform(transforms.Compose([transforms.Grayscale(3), transforms.CenterCrop(20), *TENSOR]))(
            image
        )
        assert quiet.window == (20.0, 10.0, 40.0, 30.0)

    def test_a_plain_function_is_laid_over_the_whole_image(self):
        with pytest.warns(GamlensWarning, match="function is not understood"):
            tensor, frame = ExternalTransform(lambda image: torch.ones(3, 5, 7))(photo(40, 60))
        assert (frame.size, frame.window) == ((5, 7), (0.0, 0.0, 60.0, 40.0))
        assert torch.equal(tensor, torch.ones(3, 5, 7))

    @pytest.mark.parametrize(
        ("fn", "found"),
        [
            (lambda image: image, "Image"),
            (lambda image: torch.ones(1, 3, 5, 5), r"\(1, 3, 5, 5\)"),
            (lambda image: np.ones((3, 5, 5)), "ndarray"),
        ],
    )
    def test_what_is_no_image_tensor_is_an_error(self, fn, found):
        with pytest.raises(GamlensError, match=rf"\(C,H,W\) tensor; it gave {found}"):
            ExternalTransform(fn)(photo(8, 8))
