"""Logit, probability, dot, cosine, Euclidean."""

import itertools
import math

import naive
import pytest
import torch

from gamlens import scores
from gamlens.errors import GamlensError
from gamlens.scores import PAIR_SCORES

OUTPUT = torch.tensor([[0.0, math.log(3.0)], [math.log(4.0), 0.0]], dtype=torch.float64)
X = torch.tensor([[3.0, 4.0], [1.0, -2.0]], dtype=torch.float64)
Y = torch.tensor([[4.0, 3.0], [2.0, 1.0]], dtype=torch.float64)


def close(found, expected):
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype), rtol=1e-14, atol=1e-15)


def test_class_scores_by_hand():
    assert torch.equal(scores.logit(OUTPUT), OUTPUT)
    close(scores.softmax(OUTPUT), [[0.25, 0.75], [0.8, 0.2]])
    close(scores.sigmoid(OUTPUT), [[0.5, 0.75], [0.8, 0.5]])


def test_temperature_divides_the_logits():
    doubled = 2 * OUTPUT
    close(scores.softmax(doubled, temperature=2.0), [[0.25, 0.75], [0.8, 0.2]])
    close(scores.sigmoid(doubled, temperature=2.0), [[0.5, 0.75], [0.8, 0.5]])


def test_pair_scores_by_hand():
    # 3*4 + 4*3 and 1*2 - 2*1; lengths 5 and 5
    close(scores.dot(X, Y), [24.0, 0.0])
    close(scores.cosine(X, Y), [0.96, 0.0])
    # differences (-1, 1) and (-1, -3)
    close(scores.euclidean(X, Y), [-math.sqrt(2), -math.sqrt(10)])


def test_pair_scores_are_symmetric_and_the_cosine_knows_no_length():
    torch.manual_seed(0)
    x, y = torch.randn(2, 4, 7, dtype=torch.float64)
    for fn in (scores.dot, scores.cosine, scores.euclidean):
        torch.testing.assert_close(fn(x, y), fn(y, x), rtol=1e-14, atol=0)
    torch.testing.assert_close(scores.cosine(3 * x, 0.01 * y), scores.cosine(x, y), rtol=1e-13, atol=0)
    close(scores.cosine(x, 2 * x), [1.0] * 4)
    close(scores.cosine(x, -x), [-1.0] * 4)


@pytest.mark.parametrize("side", [0, 1])
def test_cosine_gradient_is_eq_5(side):
    torch.manual_seed(1)
    pair = [torch.randn(4, 9, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    s = scores.cosine(*pair)
    (found,) = torch.autograd.grad(s.sum(), pair[side])
    s = s.detach()
    own, other = pair[side].detach(), pair[1 - side].detach()
    for row in range(4):
        a, b = math.sqrt(float((own[row] ** 2).sum())), math.sqrt(float((other[row] ** 2).sum()))
        expected = other[row] / (a * b) - float(s[row]) * own[row] / a**2
        torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-12)
        assert abs(float(found[row] @ own[row])) < 1e-12


def test_cosine_gradient_by_hand():
    x = X[:1].clone().requires_grad_()
    (found,) = torch.autograd.grad(scores.cosine(x, Y[:1]).sum(), x)
    # (4, 3)/25 - 0.96*(3, 4)/25 = (1.12, -0.84)/25
    close(found, [[0.0448, -0.0336]])


@pytest.mark.parametrize("side", [0, 1])
def test_euclidean_gradient_is_that_of_finite_differences(side):
    """It also points from the own embedding to the other one, with length 1."""
    pair = [embedding.requires_grad_() for embedding in embeddings()]
    (found,) = torch.autograd.grad(scores.euclidean(*pair).sum(), pair[side])
    pair = [embedding.detach() for embedding in pair]
    step = 1e-6
    for row, column in itertools.product(range(4), range(7)):
        moved = []
        for sign in (1, -1):
            other = [embedding.clone() for embedding in pair]
            other[side][row, column] += sign * step
            moved.append(float(scores.euclidean(*other)[row]))
        assert float(found[row, column]) == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=1e-8)
    towards = pair[1 - side] - pair[side]
    torch.testing.assert_close(found, towards / towards.square().sum(dim=1, keepdim=True).sqrt(), rtol=0, atol=1e-14)


def test_the_euclidean_distance_of_the_same_embedding_is_zero_without_nan():
    x, y = (embedding.clone().requires_grad_() for embedding in (X, torch.stack([X[0], Y[1]])))
    value = scores.euclidean(x, y)
    assert not value[0].signbit()
    close(value.detach(), [0.0, -math.sqrt(10)])
    towards = torch.tensor([[0.0, 0.0], [1.0, 3.0]], dtype=torch.float64) / math.sqrt(10)
    for found, expected in zip(torch.autograd.grad(value.sum(), (x, y)), (towards, -towards), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_euclidean_distance_in_half_precision(dtype):
    x, y = X.to(dtype), Y.to(dtype)
    found = scores.euclidean(x, y)
    assert found.dtype == dtype
    expected = torch.tensor([-math.sqrt(2), -math.sqrt(10)], dtype=dtype)
    torch.testing.assert_close(found, expected, rtol=2 * torch.finfo(dtype).eps, atol=0)
    assert scores.euclidean(x, x).tolist() == [0, 0]


def test_an_embedding_of_zeros_has_no_cosine():
    zero = X.clone()
    zero[1] = 0
    with pytest.raises(GamlensError, match=r"x\[1\] is all zeros"):
        scores.cosine(zero, Y)
    with pytest.raises(GamlensError, match=r"y\[1\] is all zeros"):
        scores.cosine(X, zero)
    close(scores.dot(zero, Y), [24.0, 0.0])


def test_a_short_embedding_still_has_its_cosine():
    close(scores.cosine(X * 1e-150, Y), [0.96, 0.0])


@pytest.mark.parametrize(
    ("name", "multi_label", "expected"),
    [
        ("logit", False, scores.logit),
        ("logit", True, scores.logit),
        ("probability", False, scores.softmax),
        ("probability", True, scores.sigmoid),
        ("softmax", True, scores.softmax),
        ("sigmoid", False, scores.sigmoid),
    ],
)
def test_class_scores_by_name(name, multi_label, expected):
    assert scores.find_class_score(name, multi_label=multi_label) is expected


@pytest.mark.parametrize(
    ("name", "expected"), [("dot", scores.dot), ("cosine", scores.cosine), ("euclidean", scores.euclidean)]
)
def test_a_pair_score_by_its_name_or_by_its_function_is_one_record(name, expected):
    entry = PAIR_SCORES[name]
    assert entry.fn is expected
    assert scores.find_pair_score(name) is entry
    assert scores.find_pair_score(expected) is entry


def test_nothing_is_known_about_a_function_of_the_user():
    def mine(x, y):
        return x.sum(dim=1)

    entry = scores.find_pair_score(mine)
    assert (entry.fn, entry.title) == (mine, "mine")
    assert not entry.positive
    assert not entry.sums_over_positions
    assert entry.saturated is None
    assert entry.undefined is None
    assert not entry.saturated_pairs(mine(X, Y), X, Y).any()


@pytest.mark.parametrize("score", [5, None, PAIR_SCORES["dot"]])
def test_what_is_neither_a_name_nor_a_function_is_no_score(score):
    with pytest.raises(GamlensError, match=r"a name \(cosine, dot.*\) or a function of two tensors"):
        scores.find_pair_score(score)


def embeddings(*, seed=2):
    make = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(4, 7, generator=make, dtype=torch.float64) for _ in "xy")


def test_every_pair_score_has_a_twin_and_a_title_of_its_own():
    assert set(PAIR_SCORES) == set(naive.PAIR_SCORES)
    assert len({entry.title for entry in PAIR_SCORES.values()} - {""}) == len(PAIR_SCORES)


@pytest.mark.parametrize("name", PAIR_SCORES)
def test_a_pair_score_equals_its_twin_in_a_batch_and_alone_and_swapped(name):
    x, y = embeddings()
    found = PAIR_SCORES[name].fn(x, y)
    close(found, [naive.PAIR_SCORES[name](*pair) for pair in zip(x.tolist(), y.tolist(), strict=True)])
    torch.testing.assert_close(PAIR_SCORES[name].fn(x[1:2], y[1:2]), found[1:2], rtol=1e-14, atol=0)
    torch.testing.assert_close(PAIR_SCORES[name].fn(y, x), found, rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", [name for name, entry in PAIR_SCORES.items() if entry.sums_over_positions])
def test_a_sum_over_positions_is_the_dot_product_over_its_divisor(name):
    x, y = embeddings()
    divisor = PAIR_SCORES[name].dot_divisor(x, y)
    assert divisor.shape == (4,)
    torch.testing.assert_close(scores.dot(x, y) / divisor, PAIR_SCORES[name].fn(x, y), rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", [name for name, entry in PAIR_SCORES.items() if entry.saturated])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images_with_the_same_embedding_are_saturated_and_others_are_not(name, dtype):
    """At any length of the embeddings, and the record says why."""
    entry, (x, y) = PAIR_SCORES[name], embeddings()
    for length in (1e-3, 1.0, 1e3):
        own, other = (length * x).to(dtype), (length * torch.cat([x[:2], y[2:]])).to(dtype)
        found = entry.saturated_pairs(entry.fn(own, other), own, other)
        assert (found.dtype, found.tolist()) == (torch.bool, [True, True, False, False])
    assert entry.saturated_because


def test_the_cosine_of_a_zero_embedding_is_an_error_that_names_the_image():
    entry, (x, y) = PAIR_SCORES["cosine"], embeddings()
    assert not entry.undefined(x).any()
    assert entry.undefined(0 * x).all()
    with pytest.raises(GamlensError, match=r"gallery\[7\] is"):
        entry.require_defined(torch.cat([y[:1], 0 * y[1:2]]), "gallery", (5, 7))
    assert bool(entry.defined(x, 0 * y).bad())
    assert entry.defined(x, 0 * y).say().startswith("The embedding of y[0] ")
    assert not entry.defined(x, y).bad()


@pytest.mark.parametrize("name", [name for name, entry in PAIR_SCORES.items() if entry.instead])
def test_the_score_to_use_instead_has_a_gradient_and_a_value(name):
    other = PAIR_SCORES[PAIR_SCORES[name].instead]
    assert (other.saturated, other.undefined) == (None, None)


@pytest.mark.parametrize(
    ("find", "name", "near"),
    [
        (scores.find_class_score, "logits", "logit"),
        (scores.find_class_score, "Probabilty", "probability"),
        (scores.find_pair_score, "cos", "cosine"),
        (scores.find_pair_score, "dott", "dot"),
    ],
)
def test_an_unknown_name_is_an_error_with_a_near_one(find, name, near):
    with pytest.raises(GamlensError, match=f"score '{name}'.*'{near}'.*In Python a function"):
        find(name)


def test_probabilities_are_read_in_float32():
    found = scores.probabilities(OUTPUT)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor([[0.25, 0.75], [0.8, 0.2]]))
    torch.testing.assert_close(scores.probabilities(OUTPUT, multi_label=True), torch.tensor([[0.5, 0.75], [0.8, 0.5]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cosine_of_one_or_minus_one_is_saturated(dtype):
    eps = torch.finfo(dtype).eps
    values = torch.tensor([1, 1 - 8 * eps, 1 - 64 * eps, 1 + eps, -1, -1 + 8 * eps, -1 + 64 * eps, 0], dtype=dtype)
    x = torch.ones(8, 2, dtype=dtype)
    found = PAIR_SCORES["cosine"].saturated_pairs(values, x, x)
    assert found.tolist() == [True, True, False, True, True, True, False, False]
    assert not PAIR_SCORES["dot"].saturated_pairs(values, x, x).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1e-6, 1.0, 1e6])
def test_a_euclidean_distance_is_zero_relative_to_the_lengths(dtype, length):
    """Up to sqrt(32 eps) of the longer embedding; two embeddings of zeros are the same, one of zeros is not."""
    limit = math.sqrt(32 * torch.finfo(dtype).eps)
    aside = torch.tensor([0, 0.5, 0.99, 1.01, 2], dtype=torch.float64) * limit
    x = torch.tensor([[0.0, 1.0]] * 5 + [[0.0, 0.0]] * 2, dtype=torch.float64)
    y = torch.cat([torch.stack([aside, torch.ones(5)], dim=1), torch.tensor([[0.0, 0.0], [0.0, 1.0]])])
    x, y = (length * x).to(dtype), (length * y).to(dtype)
    entry = PAIR_SCORES["euclidean"]
    for own, other in ((x, y), (y, x)):
        found = entry.saturated_pairs(entry.fn(own, other), own, other)
        assert found.tolist() == [True, True, True, False, False, True, False]


def test_the_euclidean_distance_is_no_share_and_no_sum_over_positions():
    entry = PAIR_SCORES["euclidean"]
    assert entry.title == "Euclidean"
    assert not entry.positive
    assert not entry.sums_over_positions
    assert entry.saturated_message(torch.tensor([False, True])) == (
        "Pair 1: both embeddings are the same up to rounding, so the Euclidean distance is zero and has no gradient; "
        "the maps are empty. The score 'dot' shows what the images share."
    )


def test_gradients_of_saturated_scores_are_zero_on_both_sides():
    """Two scores; four rows hold both images of each pair."""
    gradient = torch.ones(4, 3, 2, 2)
    found = scores.without_saturated(gradient, torch.tensor([False, True]))
    assert found.sum(dim=(1, 2, 3)).tolist() == [12, 0, 12, 0]
    assert gradient.sum() == 48


def test_the_message_names_the_first_saturated_pairs():
    entry = PAIR_SCORES["cosine"]
    found = entry.saturated_message(torch.tensor([True, False, True]))
    assert found.startswith("Pair 0, 2: both embeddings point the same way or opposite ways, so the cosine is 1 or -1")
    assert found.endswith("the maps are empty. The score 'dot' shows what the images share.")
    assert "Pair 0, 1 and 3 more:" in entry.saturated_message(torch.ones(5).bool(), most=2)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("name", ["softmax", "probability", "sigmoid"])
def test_a_temperature_against_a_loop(name, temperature):
    outputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 5
    found = scores.find_class_score(name, temperature=temperature)(outputs)
    for row, mine in zip(outputs.tolist(), found.tolist(), strict=True):
        powers = [math.exp(value / temperature) for value in row]
        if name == "sigmoid":
            expected = [power / (1 + power) for power in powers]
        else:
            expected = [power / sum(powers) for power in powers]
        assert mine == pytest.approx(expected, rel=1e-12)


def test_probabilities_at_a_temperature_by_hand():
    """Class scores ln 9 and 0: 9 to 1 at T = 1, and at T = 2 the square roots of these, 3 to 1."""
    outputs = torch.tensor([[math.log(9), 0.0]])
    for options, expected in (
        ({}, [0.9, 0.1]),
        ({"temperature": 2.0}, [0.75, 0.25]),
        ({"multi_label": True, "temperature": 2.0}, [0.75, 0.5]),
    ):
        assert scores.probabilities(outputs, **options)[0].tolist() == pytest.approx(expected, rel=1e-6)


def test_temperature_one_is_no_temperature():
    outputs = torch.randn(5, 7, generator=torch.Generator().manual_seed(5))
    assert scores.find_class_score("softmax", temperature=1.0) is scores.softmax
    assert torch.equal(scores.probabilities(outputs), torch.softmax(outputs, dim=1))
    assert torch.equal(scores.probabilities(outputs, multi_label=True), torch.sigmoid(outputs))


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan, "2"])
def test_a_temperature_is_a_number_above_zero(wrong):
    with pytest.raises(GamlensError, match=r"temperature=.* give a number above 0"):
        scores.find_class_score("softmax", temperature=wrong)


def test_a_logit_takes_no_temperature():
    with pytest.raises(GamlensError, match="the score is 'logit': use score probability, softmax, sigmoid"):
        scores.find_class_score("logit", temperature=2.0)
