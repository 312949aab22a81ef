"""Sums over pixels that do not depend on the other items of a batch, to the last bit."""

from torch import Tensor


def row_sums(values: Tensor) -> Tensor:
    """The sum of every row: (N,P) -> (N,), zeros if P = 0.

    `Tensor.sum` adds in an order that depends on the number of rows and of threads. Here the second half of every row
    is added to its first half until one column is left, so that the order depends on P alone.
    """
    if values.shape[1] == 0:
        return values.new_zeros(len(values))
    while (width := values.shape[1]) > 1:
        half = width // 2
        folded = values[:, :half] + values[:, half : 2 * half]
        if width % 2:
            folded[:, 0] += values[:, -1]
        values = folded
    return values[:, 0]
