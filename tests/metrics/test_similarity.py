"""SSIM, Spearman and HOG beside scikit-image and scipy, and what must hold of all three."""

import pytest
import torch
from scipy.stats import spearmanr
from skimage.feature import hog
from skimage.metrics import structural_similarity

from gamlens import GamlensError, metrics
from gamlens.metrics import SIMILARITIES

A = torch.rand(3, 40, 52, generator=torch.Generator().manual_seed(1))
B = (A + torch.rand(3, 40, 52, generator=torch.Generator().manual_seed(2))) / 2
B[:, :12] = 0  # ties


def similarity(name, a, b):
    entry = SIMILARITIES[name]
    return entry.compare(entry.describe(a), entry.describe(b))


def test_ssim_equals_scikit_image():
    pairs = zip(A.double().numpy(), B.double().numpy(), strict=True)
    expected = [structural_similarity(a, b, data_range=1.0) for a, b in pairs]
    torch.testing.assert_close(metrics.ssim(A, B), torch.tensor(expected), rtol=0, atol=1e-10)


def test_spearman_equals_scipy():
    expected = [spearmanr(a.flatten(), b.flatten()).statistic for a, b in zip(A, B, strict=True)]
    torch.testing.assert_close(
        similarity("spearman", A, B), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10
    )


def test_spearman_by_hand():
    # ranks 1 2 3 4 and 2 1 4 3: 1 - 6 * 4 / (4 * 15) = 0.6; with the tie 1.5 1.5 3 4 the rule is Pearson of ranks
    a, b = torch.tensor([[[0.1, 0.2], [0.3, 0.4]]]), torch.tensor([[[0.2, 0.1], [0.4, 0.3]]])
    assert similarity("spearman", a, b).item() == pytest.approx(0.6)
    tied = torch.tensor([[[0.1, 0.1], [0.3, 0.4]]])
    assert similarity("spearman", a, tied).item() == pytest.approx(4.5 / (5 * 4.5) ** 0.5)


def test_hog_uses_sixteen_pixels_of_224_and_four_of_28():
    big, tiny = torch.rand(1, 224, 224), torch.rand(1, 28, 28)
    for maps, side in ((big, 16), (tiny, 4)):
        expected = torch.from_numpy(hog(maps[0].double().numpy(), pixels_per_cell=(side, side)))
        torch.testing.assert_close(SIMILARITIES["hog"].describe(maps)[0], expected)


@pytest.mark.parametrize("name", SIMILARITIES)
def test_a_map_is_like_itself_most_and_sides_swap(name):
    torch.testing.assert_close(similarity(name, A, A), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(similarity(name, A, B), similarity(name, B, A))
    assert (similarity(name, A, B) < 0.95).all()
    torch.testing.assert_close(similarity(name, A[1:2], B[1:2]), similarity(name, A, B)[1:2])


def test_a_flat_map_has_no_correlation():
    flat = torch.zeros(3, 40, 52)
    assert similarity("spearman", A, flat).isnan().all()
    assert similarity("hog", A, flat).isnan().all()


def test_errors():
    with pytest.raises(GamlensError, match="must have the same shape"):
        metrics.ssim(A, A[:, :-1])
    with pytest.raises(GamlensError, match="must have the same shape"):
        similarity("spearman", A, A[:, :-1])
    with pytest.raises(GamlensError, match="7 pixels"):
        metrics.ssim(A[:, :5], A[:, :5])
    with pytest.raises(GamlensError, match="12 pixels"):
        similarity("hog", A[:, :9], A[:, :9])
