"""Eigen-CAM: class activation map using principal components. Muhammad and Yeasin, IJCNN 2020."""

import torch
import torch.nn.functional as F
from torch import Tensor

from gamlens.fuse import at_least_float32

SQUARINGS = 32  # the power G^(2^32) tells singular values apart that differ by one part in 10^8


def eigen_cam(activation: Tensor) -> Tensor:
    """A v_1, A = U S V^T: the positions of A (hw,C) projected onto the first principal component: (B,C,h,w) -> (B,h,w).

    The map depends neither on the score nor on a class. As in the paper, A is not centred. Some libraries subtract the
    mean of each channel first, which gives another map.

    The sign of v_1 is arbitrary; here it is the one for which the sum of the map is not negative. Then the map has no
    negative value where the activation has none; of a signed activation it may have some. If the two largest singular
    values are equal, v_1 and the map are not unique, and one such map is returned.

    It is computed from A^T A (C,C) or A A^T (hw,hw), whichever is smaller. Half precision becomes float32 first.

    >>> eigen_cam(torch.tensor([[[[3.0, 0.0]], [[4.0, 0.0]]]]))  # one position, along (3, 4) of length 5
    tensor([[[5., 0.]]])
    """
    batch, channels, height, width = activation.shape
    planes = at_least_float32(activation).reshape(batch, channels, height * width)  # A^T of each image
    scale = planes.abs().amax(dim=(1, 2), keepdim=True)
    planes = planes / torch.where(scale == 0, 1, scale)  # in [-1,1]: products neither overflow nor vanish
    if channels <= height * width:
        first = _first_eigenvector(planes @ planes.mT)  # v_1
    else:
        first = F.normalize(planes @ _first_eigenvector(planes.mT @ planes), dim=1)  # v_1 = A^T u_1 / |A^T u_1|
    projection = planes.mT @ first * scale  # (B,hw,1)
    projection = torch.where(projection.sum(dim=1, keepdim=True) < 0, -projection, projection)
    return projection.view(batch, height, width)


def _first_eigenvector(gram: Tensor) -> Tensor:
    """The unit eigenvector v of the largest eigenvalue of G = M M^T, or zeros where G is zero: (B,n,n) -> (B,n,1).

    High powers of G tend to a multiple of v v^T, whose longest column is taken. `torch.linalg.eigh` would wait for a
    GPU, work there image by image, and raise an error for NaN. Here NaN gives NaN, and v has no negative entry if G has
    none, not even by rounding.
    """
    power = gram
    for _ in range(SQUARINGS):
        power = F.normalize(power.flatten(1)).view_as(power)  # by the Frobenius norm
        power = power @ power
    longest = power.diagonal(dim1=1, dim2=2).argmax(dim=1)[:, None, None]  # that of the largest v_i^2
    return F.normalize(power.gather(2, longest.expand(-1, gram.shape[1], 1)), dim=1)
