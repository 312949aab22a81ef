"""What holds for every entry of METHODS."""

import pkgutil
import zlib

import naive
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gamlens import methods
from gamlens.errors import GamlensError
from gamlens.fuse import min_max
from gamlens.methods import METHODS, Method

SHAPES = [(2, 3, 5, 7), (3, 4, 3, 1), (2, 1, 1, 1), (2, 6, 4, 9)]
MAP_METHODS = methods.names("block", "pair", "input")  # those of attention are in test_attention_methods.py
STABLE = [name for name in MAP_METHODS if METHODS[name].stable]
SCALING = [name for name in MAP_METHODS if METHODS[name].scales_with_gradient]
BLOCK_METHODS = methods.names("block")


def inputs(name, shape, *, dtype=torch.float64, seed=0):
    """Signed tensors for a method, as `reads` names them; activations are positive where the score is read."""
    make = torch.Generator().manual_seed(zlib.crc32(repr((name, shape, seed)).encode()))
    other = (*shape[:2], shape[2] + 1, shape[3] + 2)
    sizes = {"activation": shape, "gradient": shape, "other": other, "score": shape[:1]}
    reads = METHODS[name].reads
    tensors = [torch.randn(sizes[what], generator=make, dtype=dtype) for what in reads]
    return [tensors[0].abs(), *tensors[1:]] if "score" in reads else tensors


def twin(name, tensors):
    """The naive map of every item."""
    items = zip(*(tensor.double().numpy() for tensor in tensors), strict=True)
    return np.stack([naive.METHODS[name](*item) for item in items])


def test_every_file_is_in_the_registry_and_back():
    files = {module.name for module in pkgutil.iter_modules(methods.__path__)}
    used = {entry.fn.__module__.removeprefix("gamlens.methods.") for entry in METHODS.values()}
    assert files == used
    assert {entry.fn.__name__ for entry in METHODS.values()} == set(METHODS) == set(naive.METHODS)
    assert len({entry.title for entry in METHODS.values()} - {""}) == len(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_find_gives_the_entry(name):
    assert methods.find(name) is METHODS[name]


def test_methods_by_kind_and_those_of_the_paper():
    assert sorted(methods.names("block", "attention", "pair", "input")) == sorted(METHODS)
    assert {METHODS[name].kind for name in methods.names("input")} == {"input"}
    assert sorted(methods.FIGURE_METHODS) == sorted(methods.PAPER_METHODS)


@pytest.mark.parametrize(
    ("entry", "reads"),
    [
        (Method(methods.gam, "block"), ("activation", "gradient")),
        (Method(methods.gam, "block", reads_score=True), ("activation", "gradient", "score")),
        (Method(methods.gam, "block", needs_gradient=False), ("activation",)),
        (Method(methods.gam, "block", needs_gradient=False, reads_score=True), ("activation", "score")),
        (Method(methods.gam, "input"), ("activation", "gradient")),
        (Method(methods.vdsn, "pair", needs_gradient=False), ("activation", "other")),
    ],
)
def test_what_a_function_is_given(entry, reads):
    assert entry.reads == reads


@pytest.mark.parametrize("name", BLOCK_METHODS)
def test_hidden_evidence_is_that_of_equation_4(name):
    """The map of a method that hides evidence is relu(P + N); that of any other is not."""
    h, g, score = inputs("grad_cam_pp_literal", (2, 4, 5, 6))
    positive, negative = methods.evidence(h, g)
    given = {"activation": h, "gradient": g, "score": score}
    found = METHODS[name].fn(*(given[what] for what in METHODS[name].reads)).double()
    assert torch.allclose(found, (positive + negative).relu()) == METHODS[name].hides_evidence


@pytest.mark.parametrize("name", [name for name in MAP_METHODS if METHODS[name].needs_gradient])
def test_a_map_scales_with_its_gradient_where_the_record_says_so(name):
    h, g, score = inputs("grad_cam_pp_literal", (2, 4, 5, 6))
    given = {"activation": h, "gradient": g, "score": score}
    plain, scaled = (
        METHODS[name].fn(*({**given, "gradient": c * g}[what] for what in METHODS[name].reads)) for c in (1, 3)
    )
    assert torch.allclose(scaled, 3 * plain, rtol=1e-4) == METHODS[name].scales_with_gradient


@pytest.mark.parametrize("name", MAP_METHODS)
def test_a_map_of_signed_tensors_is_negative_in_places_where_the_record_says_so(name):
    activation, *others = inputs(name, (4, 5, 6, 7))
    found = [METHODS[name].fn(given, *others) for given in (activation, activation - 10)]  # - 10: all are negative
    assert any(bool((maps < 0).any()) for maps in found) == METHODS[name].signed


def test_find_suggests_a_near_name():
    with pytest.raises(GamlensError, match=r"'gradcam'.*'grad_cam'"):
        methods.find("gradcam")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", STABLE)
def test_equals_its_twin(name, shape):
    tensors = inputs(name, shape)
    found = METHODS[name].fn(*tensors)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), twin(name, tensors), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MAP_METHODS)
def test_inputs_stay_and_the_dtype_is_kept(name, dtype):
    tensors = inputs(name, (2, 3, 5, 7), dtype=dtype)
    before = [tensor.clone() for tensor in tensors]
    found = METHODS[name].fn(*tensors)
    for tensor, copy in zip(tensors, before, strict=True):
        torch.testing.assert_close(tensor, copy, rtol=0, atol=0)
    assert found.shape == (2, 5, 7)
    assert found.dtype == (dtype if METHODS[name].stable else torch.float32)


@pytest.mark.parametrize("name", MAP_METHODS)
def test_a_batch_equals_its_items(name):
    tensors = inputs(name, (3, 4, 5, 3))
    found = METHODS[name].fn(*tensors)
    items = [METHODS[name].fn(*(tensor[row : row + 1] for tensor in tensors)) for row in range(3)]
    torch.testing.assert_close(
        found, torch.cat(items), rtol=1e-6 if found.dtype == torch.float32 else 1e-13, atol=1e-13
    )
    assert not torch.allclose(found[0], found[1])


@pytest.mark.parametrize("name", SCALING)
@pytest.mark.parametrize("factor", [1e-3, 2.0, 700.0])
def test_a_positive_factor_on_the_gradient_scales_the_map_and_leaves_it_normalised(name, factor):
    h, g = inputs(name, (2, 4, 5, 6))
    h = h.abs()
    plain, scaled = METHODS[name].fn(h, g), METHODS[name].fn(h, factor * g)
    torch.testing.assert_close(scaled, factor * plain, rtol=1e-12, atol=1e-12 * factor)
    assert plain.abs().amax() > 0
    torch.testing.assert_close(min_max(scaled)[0], min_max(plain)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MAP_METHODS)
def test_the_order_of_channels_does_not_matter(name):
    tensors = inputs(name, (2, 5, 3, 4))
    order = [3, 0, 4, 2, 1]
    turned = [tensor[:, order] if tensor.ndim == 4 else tensor for tensor in tensors]
    torch.testing.assert_close(METHODS[name].fn(*turned), METHODS[name].fn(*tensors), rtol=1e-5, atol=1e-9)


def given_tensors(name, activation, gradient):
    """Of an activation and a gradient, those that the method reads."""
    return [{"activation": activation, "gradient": gradient}[what] for what in METHODS[name].reads]


@st.composite
def activations_and_gradients(draw, *, floor=-100.0):
    """Small tensors of either precision with zeros, ties and both signs."""
    dtype, width = draw(st.sampled_from([(torch.float32, 32), (torch.float64, 64)]))
    shape = draw(st.tuples(*[st.integers(1, 3)] * 4))
    count = int(np.prod(shape))
    number = st.one_of(
        st.sampled_from([0.0, 1.0, -1.0, 2.0, -0.5]),
        st.floats(-100, 100, width=width, allow_subnormal=False),
    )
    values = [draw(st.lists(number, min_size=count, max_size=count)) for _ in range(2)]
    h, g = (torch.tensor(part, dtype=dtype).reshape(shape) for part in values)
    return h.clamp(min=floor), g


@pytest.mark.parametrize("name", [name for name in BLOCK_METHODS if METHODS[name].stable])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_finite_tensors_give_finite_maps_that_are_not_negative(name, data):
    h, g = data.draw(activations_and_gradients())
    found = METHODS[name].fn(*given_tensors(name, h, g))
    assert found.isfinite().all()
    if METHODS[name].signed:
        found = METHODS[name].fn(*given_tensors(name, h.relu(), g))
    assert (found >= 0).all()


@settings(max_examples=40, deadline=None)
@given(tensors=activations_and_gradients())
def test_vdsn_of_finite_tensors_is_finite(tensors):
    for name in methods.names("pair"):
        assert METHODS[name].fn(*tensors).isfinite().all()
        np.testing.assert_allclose(
            METHODS[name].fn(*(tensor.double() for tensor in tensors)).numpy(),
            twin(name, [tensor.double() for tensor in tensors]),
            rtol=1e-10,
            atol=1e-10,
        )


@pytest.mark.parametrize("name", [name for name in BLOCK_METHODS if not METHODS[name].divides])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equals_its_twin_on_anything(name, data):
    tensors = given_tensors(name, *(tensor.double() for tensor in data.draw(activations_and_gradients())))
    np.testing.assert_allclose(METHODS[name].fn(*tensors).numpy(), twin(name, tensors), rtol=1e-10, atol=1e-10)
