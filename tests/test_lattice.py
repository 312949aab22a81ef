"""Lattices: the positions of a block that are read, and maps that are made of them."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from lattice_nets import SIZE, images, lens_of, net, skipping
from torch import Tensor, nn

from gamlens import GamlensError, Lens
from gamlens.fuse import make_maps, normalize, resize
from gamlens.lattice import Lattice, find_lattice
from gamlens.methods import METHODS, names


def mask(rows: Sequence[int], columns: Sequence[int], size: tuple[int, int] = (8, 8)) -> Tensor:
    found = torch.zeros(size, dtype=torch.bool)
    found[torch.tensor(rows)[:, None], torch.tensor(columns)] = True
    return found


# Which positions are read


def test_a_lattice_is_found_by_its_rows_and_columns() -> None:
    assert find_lattice(mask([0, 2, 4, 6], [0, 2, 4, 6])) == Lattice((0, 0), (2, 2))
    assert find_lattice(mask([1, 5], [3, 7])) == Lattice((1, 3), (4, 4))
    assert find_lattice(mask([0, 3, 6], range(8))) == Lattice((0, 0), (3, 1))


def test_one_position_of_a_lattice_may_be_missing_but_not_half_of_them() -> None:
    read = mask([0, 2, 4, 6], [0, 2, 4, 6])
    read[2, 4] = False
    assert find_lattice(read) == Lattice((0, 0), (2, 2))
    diagonal = torch.zeros(8, 8, dtype=torch.bool)
    diagonal[[0, 2, 4, 6], [0, 2, 4, 6]] = True
    assert find_lattice(diagonal) is None


@pytest.mark.parametrize(
    "read",
    [
        mask(range(8), range(8)),
        mask(range(7), range(7)),  # a border that is not read
        mask([0, 1, 4, 5], [0, 1, 4, 5]),
        mask([0], [0]),
        mask([0, 3], [0, 3]),  # position 6 of the lattice is not read
        mask([2, 4, 6], [2, 4, 6]),  # nor is position 0
        torch.zeros(8, 8, dtype=torch.bool),
        torch.eye(8, dtype=torch.bool),
        torch.ones(1, 1, dtype=torch.bool),
        (torch.arange(8)[:, None] + torch.arange(8)) % 2 == 0,  # a checkerboard: every row and column is read
    ],
)
def test_what_is_no_lattice(read: Tensor) -> None:
    assert find_lattice(read) is None


# Maps


def cubic(t: float) -> list[float]:
    """The four weights of bicubic interpolation with a = -0.75, for a place t in [0,1) after the second of four."""
    a, weights = -0.75, []
    for distance in (1 + t, t, 1 - t, 2 - t):
        if distance <= 1:
            weights.append((a + 2) * distance**3 - (a + 3) * distance**2 + 1)
        else:
            weights.append(a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a)
    return weights


def naive_resize(
    values: np.ndarray, offset: tuple[int, int], step: tuple[int, int], cells: tuple[int, int], size: tuple[int, int]
) -> np.ndarray:
    """Values at the positions offset + step * i of a grid of `cells`, interpolated at every pixel of `size`."""

    def taps(pixel: int, axis: int) -> list[tuple[int, float]]:
        place = ((pixel + 0.5) * cells[axis] / size[axis] - 0.5 - offset[axis]) / step[axis]
        first = math.floor(place)
        weights = cubic(place - first)
        return [(min(max(first - 1 + k, 0), values.shape[axis] - 1), weight) for k, weight in enumerate(weights)]

    result = np.zeros(size)
    for row in range(size[0]):
        for column in range(size[1]):
            for i, down in taps(row, 0):
                for j, across in taps(column, 1):
                    result[row, column] += down * across * values[i, j]
    return result


@pytest.mark.parametrize("lattice", [Lattice((0, 0), (2, 2)), Lattice((1, 0), (2, 3)), Lattice((3, 2), (4, 4))])
def test_resizing_equals_the_naive_twin(lattice: Lattice) -> None:
    cells, size = (8, 12), (17, 24)
    block = torch.rand(2, *cells, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    read = lattice.select(block)
    expected = [naive_resize(own.numpy(), lattice.offset, lattice.step, cells, size) for own in read]
    found = lattice.resize(read, cells, size)
    torch.testing.assert_close(found, torch.from_numpy(np.stack(expected)), atol=1e-12, rtol=0)
    torch.testing.assert_close(lattice.resize(read.float(), cells, size), found.float(), atol=2e-5, rtol=0)


def test_every_position_as_a_lattice_is_the_plain_resizing() -> None:
    maps = torch.rand(2, 7, 9, dtype=torch.float64)
    torch.testing.assert_close(Lattice((0, 0), (1, 1)).resize(maps, (7, 9), (20, 30)), resize(maps, (20, 30)))


def test_values_lie_where_their_positions_lie() -> None:
    """Position 2 of 8 rows lies at the centre of its own cell, rows 8 to 11 of 32, not at that of a coarser one."""
    maps = torch.zeros(1, 4, 4)
    maps[0, 1, 2] = 1.0
    found = Lattice((0, 0), (2, 2)).resize(maps, (8, 8), (32, 32))[0]
    row, column = divmod(int(found.argmax()), 32)
    assert row in (9, 10)
    assert column in (17, 18)
    coarse = resize(maps, (32, 32))[0]
    assert divmod(int(coarse.argmax()), 32)[0] in (11, 12), "the centre of the coarser cell is two pixels further"


def test_gam_of_a_lattice_by_hand() -> None:
    """One channel, h = 1..16 on 4 x 4, g = 1 at even positions: the map has 1, 3, 9, 11 at these positions."""
    h = torch.arange(1.0, 17.0, dtype=torch.float64).view(1, 1, 4, 4)
    g = torch.zeros_like(h)
    lattice = Lattice((0, 0), (2, 2))
    lattice.select(g).fill_(1.0)
    made = make_maps(METHODS["gam"].fn, [(h, g)], (4, 4), "mean", [lattice])
    at = lattice.select(made.fused[0])
    # The pixels of a 4 x 4 image are the positions themselves, so these hold the values, normalised by the same range.
    raw = torch.tensor([[1.0, 3.0], [9.0, 11.0]], dtype=torch.float64)
    whole = lattice.resize(raw[None], (4, 4), (4, 4))[0]
    torch.testing.assert_close(lattice.select(whole), raw)
    torch.testing.assert_close(at, (raw - whole.min()) / (whole.max() - whole.min()))


@pytest.mark.filterwarnings("ignore:.*hides most of the positive evidence")
@pytest.mark.parametrize("method", names("block"))
def test_maps_are_those_of_the_tensor_that_the_network_reads(method: str) -> None:
    """The same network with the skipping as a layer of its own, whose output is the block."""
    model = skipping().double()
    conv = model[1][0]
    dense = nn.Conv2d(8, 8, 1).double()
    dense.load_state_dict(conv.state_dict())
    explicit = nn.Sequential(
        nn.Sequential(model[0], nn.MaxPool2d(1, stride=2)), nn.Sequential(dense, model[1][1]), *model[2:]
    )
    batch = images().double()
    trace, other = lens_of(model).trace(batch, 1), lens_of(explicit).trace(batch, 1)
    lattice = trace.lattices["0"]
    torch.testing.assert_close(lattice.select(trace.activations["0"]), other.activations["0"])
    torch.testing.assert_close(lattice.select(trace.gradients["0"]), other.gradients["0"])
    expected = normalize(lattice.resize(other.raw(method, "0"), (16, 16), SIZE))
    found = trace.explain(method, 2)
    torch.testing.assert_close(found.blocks["0"], expected.float(), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.blocks["1"], other.explain(method, 2).blocks["1"], atol=1e-6, rtol=0)


def test_keeping_all_positions_is_the_plain_reading() -> None:
    lens = lens_of(skipping())
    trace = lens.trace(images(), 1)
    plain = make_maps(METHODS["gam"].fn, [(trace.activations[b], trace.gradients[b]) for b in "01"], SIZE, "mean")
    kept = trace.explain("gam", 2, lattice="keep")
    assert torch.equal(kept.maps, plain.fused)
    assert not torch.allclose(trace.explain("gam", 2).maps, kept.maps, atol=0.05)
    assert torch.equal(trace.explain("gam", 1).maps, trace.explain("gam", 1, lattice="keep").maps)
    with pytest.raises(GamlensError, match=r"lattice cannot be 'kept'.*keep"):
        trace.explain("gam", 2, lattice="kept")


def test_a_network_without_a_lattice_is_unchanged_to_the_bit() -> None:
    trace = lens_of(net(nn.Conv2d(4, 4, 3, stride=2, padding=1))).trace(images(), 1)
    found, kept = trace.explain("gam", 2), trace.explain("gam", 2, lattice="keep")
    assert torch.equal(found.maps, kept.maps)
    assert "lattice" not in found.about


def test_raw_sums_and_evidence_stay_as_the_network_has_them() -> None:
    trace = lens_of(skipping()).trace(images(), 1)
    assert (
        trace.raw("gam", "0").shape == trace.sums("0").positive.shape == trace.evidence("0").hidden.shape == (2, 16, 16)
    )


def test_results_say_how_the_lattice_was_read() -> None:
    lens = lens_of(skipping())
    blocks = {"0": {"offset": [0, 0], "step": [2, 2]}}
    assert lens.classify(images(), 1).about["lattice"] == {"reading": "read", "blocks": blocks}
    assert lens.classify(images(), 1, lattice="keep").about["lattice"]["reading"] == "keep"
    assert "lattice" not in lens.classify(images(), 1, n=1).about
    pair = lens.compare(images(1), images(1) + 1)
    assert pair.x.about["lattice"] == pair.y.about["lattice"] == {"reading": "read", "blocks": blocks}


def test_pairs_streams_and_many_pairs_read_lattices_alike() -> None:
    lens = lens_of(skipping())
    x, y = images(2), images(2).flip(0) + 0.5
    for lattice in ("read", "keep"):
        pair = lens.compare(x, y, n=2, lattice=lattice)
        sides = lens.trace_pair(x, y, n=2).sides()
        torch.testing.assert_close(pair.x.maps, sides[0].explain("gam", 2, lattice=lattice).maps)
        many = lens.compare_many(x, y, n=2, pairs=[(0, 0), (1, 1)], lattice=lattice)
        torch.testing.assert_close(many.x.maps, pair.x.maps, atol=1e-5, rtol=0)
        torch.testing.assert_close(many.y.maps, pair.y.maps, atol=1e-5, rtol=0)
    photos = [np.full((40, 40, 3), value, np.uint8) for value in (10, 200)]
    own = Lens(skipping(), blocks=["0", "1"], transform=None)
    for lattice in ("read", "keep"):
        seen = torch.cat([result.explanation.maps for result in own.stream(photos, 1, lattice=lattice)])
        torch.testing.assert_close(seen, own.classify(photos, 1, lattice=lattice).maps, atol=1e-6, rtol=0)


def test_views_put_lattices_of_mirrored_and_scaled_inputs_in_place() -> None:
    """A mirrored view of a mirrored image is the image: its map mirrored back must be the plain map of that view."""
    lens = lens_of(skipping())
    trace = lens.trace(images(1), 1, views=("flip", 1.5))
    plain, mirrored = trace.views[0][0], next(view for view, flipped in trace.views if flipped)
    assert plain.lattices == mirrored.lattices == trace.lattices
    expected = []
    for view, flipped in ((trace, False), *trace.views):
        lattice = view.lattices["0"]
        raw = METHODS["gam"].fn(lattice.select(view.activations["0"]), lattice.select(view.gradients["0"]))
        cells = tuple(view.activations["0"].shape[-2:])
        own = normalize(lattice.resize(raw, (cells[0], cells[1]), SIZE))
        expected.append(own.flip(2) if flipped else own)
    torch.testing.assert_close(trace.explain("gam", 2).blocks["0"], torch.stack(expected).mean(0), atol=1e-6, rtol=0)


def test_an_image_and_its_mirror_image_have_mirrored_maps_only_without_offset() -> None:
    """Even positions of a mirrored block are odd ones, so only putting values in place makes both maps alike."""
    lens = lens_of(skipping())
    photo = torch.nn.functional.interpolate(images(1, (4, 4)), SIZE, mode="bicubic")  # smooth, so that samples agree
    one, other = lens.classify(photo, 1).blocks["0"], lens.classify(photo.flip(3), 1).blocks["0"].flip(2)
    shifted = torch.cat([other[..., 2:], other[..., -2:]], dim=2)
    assert float((one - other).abs().mean()) < float((one - shifted).abs().mean())


@pytest.mark.slow
def test_compiled_maps_read_lattices_too() -> None:
    model = skipping()
    plain = lens_of(model).classify(images(), 1)
    found = Lens(model, blocks=["0", "1"], compile=True).classify(images(), 1)
    assert found.about["lattice"] == plain.about["lattice"]
    torch.testing.assert_close(found.maps, plain.maps, atol=1e-5, rtol=0)
