"""What holds for every method of kind "attention", and cases that were computed by hand."""

import zlib

import naive
import numpy as np
import pytest
import torch

from gamlens import methods
from gamlens.methods import METHODS

NAMES = methods.names("attention")
LAYERS, HEADS, TOKENS, WIDTH = 3, 2, 5, 4


def inputs(name, rows, *, dtype=torch.float64, seed=0):
    """Tensors as `reads` names them: attention with rows that sum to 1, signed gradients, shares of tokens."""
    make = torch.Generator().manual_seed(zlib.crc32(repr((name, seed)).encode()))
    entry, found = METHODS[name], []
    layers = (LAYERS,) if entry.joins_layers else ()
    for what in entry.reads:
        if what == "pooled":
            found.append(torch.rand(rows, TOKENS, generator=make, dtype=dtype))
        elif what == "image":
            found.append(torch.tensor([False, True, True, False, True]))
        elif what in ("query", "key", "value", "output_gradient"):
            found.append(torch.randn(*layers, rows, HEADS, TOKENS, WIDTH, generator=make, dtype=dtype))
        else:
            tensor = torch.randn(*layers, rows, HEADS, TOKENS, TOKENS, generator=make, dtype=dtype)
            found.append(tensor.softmax(dim=-1) if what == "attention" else tensor)
    return found


def row_of(name, tensors, row):
    """The tensors of one row, without the axis of rows."""
    axis = 1 if METHODS[name].joins_layers else 0
    found = []
    for what, tensor in zip(METHODS[name].reads, tensors, strict=True):
        found.append(tensor if what == "image" else tensor[row] if what == "pooled" else tensor.select(axis, row))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_equals_its_twin(name):
    tensors = inputs(name, 4)
    found = METHODS[name].fn(*tensors)
    twins = [naive.METHODS[name](*(part.numpy() for part in row_of(name, tensors, row))) for row in range(4)]
    assert found.shape == (4, TOKENS)
    np.testing.assert_allclose(found.numpy(), np.stack(twins), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_stay_the_dtype_is_kept_and_nothing_is_negative(name, dtype):
    tensors = inputs(name, 2, dtype=dtype)
    before = [tensor.clone() for tensor in tensors]
    found = METHODS[name].fn(*tensors)
    for tensor, copy in zip(tensors, before, strict=True):
        assert torch.equal(tensor, copy)
    assert found.dtype == dtype
    assert bool((found >= 0).all())
    assert bool(found.any())


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_equals_its_items(name):
    tensors, axis = inputs(name, 3), 1 if METHODS[name].joins_layers else 0
    found = METHODS[name].fn(*tensors)
    for row in range(3):
        single = []
        for what, tensor in zip(METHODS[name].reads, tensors, strict=True):
            at = 0 if what == "pooled" else axis
            single.append(tensor if what == "image" else tensor.narrow(at, row, 1))
        torch.testing.assert_close(METHODS[name].fn(*single), found[row : row + 1], rtol=1e-13, atol=1e-13)
    assert not torch.allclose(found[0], found[1])


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_heads_does_not_matter(name):
    tensors, axis = inputs(name, 2), 2 if METHODS[name].joins_layers else 1
    turned = [tensor.flip(axis) if tensor.ndim > 3 else tensor for tensor in tensors]
    torch.testing.assert_close(METHODS[name].fn(*turned), METHODS[name].fn(*tensors), rtol=1e-12, atol=1e-13)


def test_grad_eclip_by_hand():
    """One head, a class token 0 and two tokens of the image; cosines of the class token's query: 1 and 0."""
    q = torch.tensor([[[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]]])
    k = torch.tensor([[[[0.0, 1.0], [2.0, 0.0], [0.0, 5.0]]]])
    v = torch.tensor([[[[9.0, 9.0], [1.0, 2.0], [3.0, 4.0]]]])
    w = torch.tensor([[[[2.0, 0.5], [7.0, 7.0], [7.0, 7.0]]]])
    pooled, image = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([False, True, True])
    assert METHODS["grad_eclip"].fn(q, k, v, w, pooled, image).tolist() == [[0.0, 3.0, 0.0]]


def test_rollout_through_two_layers_by_hand():
    """Layer 1 sends token 0 to 1, layer 2 keeps it: half stays by either residual connection."""
    first = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    second = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    stack = torch.stack([first, second])[:, None, None]
    assert METHODS["attention_rollout"].fn(stack, torch.tensor([[1.0, 0.0]])).tolist() == [[0.5, 0.5]]


def test_chefer_through_two_layers_by_hand():
    """R = (I + A2)(I + A1) with A1 = [[0,1],[0,0]] and A2 = [[0,0.5],[0,0]]: row 0 is [1, 1.5]."""
    first, second = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.5], [0.0, 0.0]])
    stack = torch.stack([first, second])[:, None, None]
    assert METHODS["chefer"].fn(stack, torch.ones_like(stack), torch.tensor([[1.0, 0.0]])).tolist() == [[1.0, 1.5]]
