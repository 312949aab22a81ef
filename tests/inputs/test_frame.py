"""Original image <-> model input: boxes, masks and maps."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gamlens.inputs.frame import Frame
from gamlens.inputs.transform import Transform


def photo(height, width, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def ramp(height, width):
    """Red says the column, green the row (both below 256)."""
    rows, columns = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([columns, rows, 0 * rows], axis=2).astype(np.uint8))


def to_input(frame, boxes):
    """Boxes of the original in input pixels, by hand."""
    x0, y0, x1, y1 = frame.window
    span = torch.tensor([x1 - x0, y1 - y0, x1 - x0, y1 - y0])
    return (boxes - torch.tensor([x0, y0, x0, y0])) / span * torch.tensor([*frame.size[::-1], *frame.size[::-1]])


class TestFrame:
    def test_squashed_boxes_by_hand(self):
        frame = Frame.whole((300, 200), (224, 112))
        assert frame.window == (0.0, 0.0, 200.0, 300.0)
        found = frame.boxes(torch.tensor([[0.0, 0.0, 112.0, 224.0], [28.0, 56.0, 56.0, 112.0]]))
        assert found.tolist() == [[0.0, 0.0, 200.0, 300.0], [50.0, 75.0, 100.0, 150.0]]

    def test_cropped_boxes_by_hand(self):
        # 400 x 300 with its short side at 256 is 341 x 256; the centre 224 starts at round(58.5) = 58 and at 16
        _, frame = Transform(mode="crop")(photo(300, 400))
        x, y = 400 / 341, 300 / 256
        assert frame.original == (300, 400)
        assert frame.window == pytest.approx((58 * x, 16 * y, 282 * x, 240 * y))
        (found,) = frame.boxes(torch.tensor([[0.0, 112.0, 224.0, 168.0]])).tolist()
        assert found == pytest.approx([58 * x, 128 * y, 282 * x, 184 * y])

    def test_boxes_are_clipped_to_the_original(self):
        frame = Frame((10, 20), (8, 8), (-4.0, -2.0, 28.0, 14.0))
        assert frame.boxes(torch.tensor([[0.0, 0.0, 8.0, 8.0]])).tolist() == [[0.0, 0.0, 20.0, 10.0]]

    @settings(max_examples=40, deadline=None)
    @given(
        height=st.integers(1, 600),
        width=st.integers(1, 600),
        mode=st.sampled_from(["squash", "crop"]),
        parts=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    )
    def test_boxes_go_there_and_back(self, height, width, mode, parts):
        if max(height, width) > 20 * min(height, width):
            mode = "squash"
        _, frame = Transform((24, 16), mode=mode, short=30)(Image.new("RGB", (width, height)))
        x0, y0, x1, y1 = frame.window
        inside = torch.tensor([x0, y0, x0, y0]) + torch.tensor(parts) * torch.tensor([x1 - x0, y1 - y0] * 2)
        back = frame.boxes(to_input(frame, inside[None].double()))
        torch.testing.assert_close(back[0], inside.double(), rtol=1e-6, atol=1e-6 * max(height, width))

    def test_a_map_is_laid_where_the_model_looked_and_is_zero_elsewhere(self):
        frame = Frame((10, 20), (4, 4), (5.0, 2.0, 13.0, 8.0))
        found = frame.map(torch.ones(4, 4))
        expected = torch.zeros(10, 20)
        expected[2:8, 5:13] = 1
        assert torch.equal(found, expected)

    def test_a_map_is_stretched_by_hand(self):
        found = Frame.whole((2, 4), (1, 2)).map(torch.tensor([[0.0, 1.0]]))
        assert found.tolist() == [[0.0, 0.25, 0.75, 1.0]] * 2
        back = Frame.whole((1, 1), (2, 2)).map(torch.tensor([[0.0, 1.0], [0.5, 0.5]]))
        assert back.tolist() == [[0.5]]

    @pytest.mark.parametrize("mode", ["squash", "crop"])
    @pytest.mark.parametrize("original", [(200, 120), (90, 250)])
    def test_a_spot_of_the_map_lies_over_the_pixels_it_came_from(self, mode, original):
        tensor, frame = Transform((40, 40), (0.0,) * 3, (1.0,) * 3, mode, 50)(ramp(*original))
        spot = torch.zeros(40, 40)
        spot[11, 27] = 1
        full = frame.map(spot)
        assert full.shape == original
        rows, columns = torch.arange(original[0]), torch.arange(original[1])
        row = float((full.sum(1) * rows).sum() / full.sum())
        column = float((full.sum(0) * columns).sum() / full.sum())
        assert (column, row) == pytest.approx((255 * tensor[:2, 11, 27]).tolist(), abs=1.0)

    def test_a_window_beyond_the_original_keeps_what_lies_inside(self):
        ramp4 = torch.arange(16.0).view(4, 4) / 16
        found = Frame((2, 3), (4, 4), (-1.0, -1.0, 3.0, 3.0)).map(ramp4)
        torch.testing.assert_close(found, ramp4[1:3, 1:4], rtol=0, atol=1e-6)

    @pytest.mark.parametrize("original", [(1, 1), (1, 500), (500, 1), (2, 3)])
    def test_tiny_originals_are_covered_when_squashed(self, original):
        tensor, frame = Transform((16, 24))(Image.new("RGB", original[::-1], "white"))
        assert tensor.shape == (3, 16, 24)
        torch.testing.assert_close(frame.map(torch.ones(16, 24)), torch.ones(original), rtol=0, atol=1e-6)
        assert frame.map(torch.zeros(16, 24)).sum() == 0
        assert frame.boxes(torch.tensor([[0.0, 0.0, 24.0, 16.0]])).tolist() == [[0, 0, original[1], original[0]]]

    def test_a_single_pixel_is_covered_when_cropped(self):
        tensor, frame = Transform((8, 8), mode="crop", short=10)(Image.new("RGB", (1, 1), "white"))
        assert tensor.shape == (3, 8, 8)
        assert frame.window == pytest.approx((0.1, 0.1, 0.9, 0.9))
        assert frame.map(torch.ones(8, 8)).tolist() == [[1.0]]

    def test_a_line_is_cropped_to_its_middle(self):
        # 500 x 1 with its short side at 10 is 5000 x 10; the centre 8 starts at 2496 and at 1
        _, frame = Transform((8, 8), mode="crop", short=10)(Image.new("RGB", (500, 1)))
        assert frame.window == pytest.approx((249.6, 0.1, 250.4, 0.9))

    def test_a_map_stays_as_it_was(self):
        given_map = torch.rand(4, 4)
        before = given_map.clone()
        Frame.whole((4, 4), (4, 4)).map(given_map).zero_()
        assert torch.equal(given_map, before)
