"""Second, plain float64 implementations of the formulas, written from the papers as loops over channels or pixels.

Nothing here imports gamlens or torch. Arrays belong to one image: activation h and gradient g are (C,u,v), maps (u,v).
"""

import math

import numpy as np


def relu(plane):
    return np.where(plane > 0, plane, 0.0)


def gam(h, g):
    """Barkan et al., Eq. 1: sum_k phi(h_k) o phi(g_k)."""
    total = np.zeros(h.shape[1:])
    for k in range(len(h)):
        total += relu(h[k]) * relu(g[k])
    return total


def alphas(g):
    """Grad-CAM's weights: the mean of each channel's gradient."""
    _, u, v = g.shape
    return [g[k].sum() / (u * v) for k in range(len(g))]


def weighted(h, weights):
    """phi(sum_k w_k h_k), with phi the ReLU."""
    total = np.zeros(h.shape[1:])
    for k, weight in enumerate(weights):
        total += weight * h[k]
    return relu(total)


def grad_cam(h, g):
    """Barkan et al., Eq. 3: phi(sum_k a_k h_k)."""
    return weighted(h, alphas(g))


def evidence(h, g):
    """Eq. 4: P sums a_k h_k over channels with a_k >= 0, N over those with a_k < 0. Returns (P, N)."""
    positive, negative = np.zeros(h.shape[1:]), np.zeros(h.shape[1:])
    for k, alpha in enumerate(alphas(g)):
        if alpha < 0:
            negative += alpha * h[k]
        else:
            positive += alpha * h[k]
    return positive, negative


def grad_cam_pp(h, g):
    """Eq. 6 with exp(s) cancelled: beta = 1/(2 + S g), S = sum h_k, where the denominator is positive and g > 0."""
    weights = []
    for k in range(len(h)):
        denominator = 2 + h[k].sum() * g[k]
        counts = (g[k] > 0) & (denominator > 0)
        weights.append((g[k][counts] / denominator[counts]).sum())
    return weighted(h, weights)


def grad_cam_pp_literal(h, g, s, real=np.float64):
    """Eq. 6 as printed, with the derivatives of exp(s) for a score s that is linear in h; `real` is the number type."""
    h, g = h.astype(real), g.astype(real)
    weights = []
    with np.errstate(all="ignore"):
        exp = np.exp(real(s))
        for k in range(len(h)):
            first, second, third = exp * g[k], exp * g[k] ** 2, exp * g[k] ** 3
            denominator = 2 * second + h[k].sum() * third
            beta = np.where(second == 0, 0, second / denominator)
            weights.append((beta * np.maximum(first, 0)).sum())
        return np.maximum(sum(weight * plane for weight, plane in zip(weights, h, strict=True)), 0)


def layer_cam(h, g):
    """Jiang et al.: phi(sum_k phi(g_k) o h_k)."""
    total = np.zeros(h.shape[1:])
    for k in range(len(h)):
        total += relu(g[k]) * h[k]
    return relu(total)


def hires_cam(h, g):
    """Draelos and Carin: phi(sum_k g_k o h_k)."""
    total = np.zeros(h.shape[1:])
    for k in range(len(h)):
        total += g[k] * h[k]
    return relu(total)


def xgrad_cam(h, g):
    """Fu et al.: a_k = sum_ij (h_ij / sum h) g_ij."""
    weights = []
    for k in range(len(h)):
        total = h[k].sum()
        weights.append((h[k] / total * g[k]).sum() if total != 0 else 0.0)
    return weighted(h, weights)


def eigen_cam(h):
    """Muhammad and Yeasin: A v_1 with A = U S V^T (uv,C), and the sign for which its sum is not negative."""
    positions = np.array([h[:, i, j] for i, j in np.ndindex(h.shape[1:])])
    _, _, directions = np.linalg.svd(positions, full_matrices=False)
    projection = positions @ directions[0]
    return (-projection if projection.sum() < 0 else projection).reshape(h.shape[1:])


def vdsn(h, other):
    """Stylianou et al.: sum_k h_k mean(h'_k), with h' the activation of the other image."""
    total = np.zeros(h.shape[1:])
    for k in range(len(h)):
        total += h[k] * (other[k].sum() / other[k].size)
    return total


def vdsn_max(h, other):
    """Stylianou et al., max pooling: max(h_k) max(h'_k) at the maximum of h_k, in equal parts if it has several."""
    total = np.zeros(h.shape[1:])
    for k in range(len(h)):
        most = h[k].max()
        places = [place for place in np.ndindex(h.shape[1:]) if h[k][place] == most]
        for place in places:
            total[place] += most * other[k].max() / len(places)
    return total


def input_gradient(pixels, g):
    """Simonyan et al.: the largest |gradient| over the colour channels, for each pixel."""
    return np.array(
        [[max(abs(g[c, i, j]) for c in range(len(g))) for j in range(g.shape[2])] for i in range(g.shape[1])]
    )


def matches(h, other, cosine):
    """<h_p, h'_q> / (uv u'v') for all p and q: (u,v,u',v'); for the cosine, divided by the norms of both means."""
    (_, u, v), (_, s, t) = h.shape, other.shape
    table = np.zeros((u, v, s, t))
    for i, j, m, n in np.ndindex(u, v, s, t):
        table[i, j, m, n] = sum(h[c, i, j] * other[c, m, n] for c in range(len(h))) / (u * v * s * t)
    if cosine:
        means = [[plane.sum() / plane.size for plane in side] for side in (h, other)]
        table /= math.prod(math.sqrt(sum(value**2 for value in mean)) for mean in means)
    return table


def dot(x, y):
    """<x, y> of two vectors (D,)."""
    return sum(a * b for a, b in zip(x, y, strict=True))


def cosine(x, y):
    """<x, y> / (|x| |y|)."""
    return dot(x, y) / (math.sqrt(dot(x, x)) * math.sqrt(dot(y, y)))


def euclidean(x, y):
    """-|x - y|."""
    return -math.sqrt(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))


def attention_gam(a, g):
    """sqrt(sum over heads h and queries i of A_hij relu(G_hij)) at token j; a and g are (H,N,N)."""
    tokens = a.shape[2]
    found = []
    for j in range(tokens):
        total = 0.0
        for h, i in np.ndindex(a.shape[:2]):
            total += a[h, i, j] * max(g[h, i, j], 0.0)
        found.append(math.sqrt(total))
    return np.array(found)


def legrad(g):
    """Bousselham et al.: the mean of relu(G) over layers, heads and queries, at every token; g is (L,H,N,N)."""
    return np.array([relu(g[..., j]).sum() / g[..., j].size for j in range(g.shape[-1])])


def chefer(a, g, pooled):
    """Chefer et al.: R <- R + E_h[(G o A)^+] R, with R whole, and the rows of the pooled tokens averaged at the end."""
    layers, heads, tokens = a.shape[:3]
    relevance = np.eye(tokens)
    for layer in range(layers):
        mean = sum(relu(g[layer, h] * a[layer, h]) for h in range(heads)) / heads
        relevance = relevance + mean @ relevance
    return sum(pooled[i] * relevance[i] for i in range(tokens))


def attention_rollout(a, pooled):
    """Abnar and Zuidema: the product of 0.5 E_h[A] + 0.5 I over the layers, later ones on the left."""
    layers, heads, tokens = a.shape[:3]
    product = np.eye(tokens)
    for layer in range(layers):
        product = (0.5 * sum(a[layer, h] for h in range(heads)) / heads + 0.5 * np.eye(tokens)) @ product
    return sum(pooled[i] * product[i] for i in range(tokens))


def grad_eclip(q, k, v, w, pooled, image):
    """Zhao et al.: relu(sum_c w_c loosened_ij v_jc), summed over the pooled tokens i; q, k, v, w are (H,N,d)."""
    q, k, v, w = (np.concatenate(list(part), axis=1) for part in (q, k, v, w))
    tokens = len(q)
    total = np.zeros(tokens)
    for i in range(tokens):
        cosines = np.array([cosine(q[i], k[j]) for j in range(tokens)])
        low, high = cosines[image].min(), cosines[image].max()
        for j in range(tokens):
            loosened = (cosines[j] - low) / (high - low) if high > low else 0.0
            total[j] += pooled[i] * loosened * dot(w[i], v[j])
    return relu(total)


PAIR_SCORES = {"cosine": cosine, "dot": dot, "euclidean": euclidean}
METHODS = {
    "gam": gam,
    "grad_cam": grad_cam,
    "grad_cam_pp": grad_cam_pp,
    "grad_cam_pp_literal": grad_cam_pp_literal,
    "layer_cam": layer_cam,
    "hires_cam": hires_cam,
    "xgrad_cam": xgrad_cam,
    "eigen_cam": eigen_cam,
    "vdsn": vdsn,
    "vdsn_max": vdsn_max,
    "input_gradient": input_gradient,
    "guided_backprop": input_gradient,
    "attention_gam": attention_gam,
    "legrad": legrad,
    "chefer": chefer,
    "grad_eclip": grad_eclip,
    "attention_rollout": attention_rollout,
}


def cubic(distance, a=-0.75):
    """Keys' cubic convolution kernel."""
    d = abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def stretch(rows, count, step=1, cells=None):
    """Bicubic resampling of rows (n, ...) -> (count, ...): four taps per row, half-pixel centres, border repeated.

    With a step, the rows are those at 0, step, 2 step, ... of a grid of `cells` rows.
    """
    n = len(rows)
    result = []
    for place in range(count):
        source = ((place + 0.5) * (cells or n) / count - 0.5) / step
        base = math.floor(source)
        total = np.zeros(rows.shape[1:])
        for tap in range(base - 1, base + 3):
            total += cubic(source - tap) * rows[min(max(tap, 0), n - 1)]
        result.append(total)
    return np.stack(result)


def resize(plane, size, step=1, cells=(None, None)):
    """RSZ of the paper: bicubic resizing, one axis after the other; `step` and `cells` as in `stretch`."""
    return stretch(stretch(plane, size[0], step, cells[0]).T, size[1], step, cells[1]).T


def min_max(plane):
    """NRM of the paper: min-max normalisation; all zeros if the plane is flat or has a value that is not finite."""
    low, high = plane.min(), plane.max()
    if not np.isfinite(plane).all() or high == low:
        return np.zeros_like(plane)
    return (plane - low) / (high - low)


def finish(planes, size):
    """Eq. 2: the mean of NRM(RSZ(m)) over the blocks."""
    total = np.zeros(size)
    for plane in planes:
        total += min_max(resize(plane, size))
    return total / len(planes)


# Refinement by self-similarity


def directions(h):
    """phi(p) of every position p, (C,) each: (h(p) - mean) / length, or None where nothing but rounding is left."""
    _, u, v = h.shape
    mean = sum(h[:, i, j] for i, j in np.ndindex(u, v)) / (u * v)
    most = max(math.sqrt(dot(h[:, i, j], h[:, i, j])) for i, j in np.ndindex(u, v))
    found = []
    for i, j in np.ndindex(u, v):
        rest = h[:, i, j] - mean
        length = math.sqrt((rest * rest).sum())
        found.append(rest / length if length > 1e-12 * most else None)
    return found


def similarity(a, b):
    """<phi(p), phi(q)>; positions without a direction are alike, and unlike all others."""
    if a is None or b is None:
        return float(a is b)
    return (a * b).sum()


def affinity(h, factor):
    """A(p,q) = max(0, s(p,q)) ^ gamma with gamma = max(1, factor r): (uv,uv). r is the spread of s(p,q), p != q."""
    phi = directions(h)
    count = len(phi)
    s = np.array([[similarity(phi[p], phi[q]) for q in range(count)] for p in range(count)])
    squares = [s[p, q] ** 2 for p, q in np.ndindex(count, count) if p != q]
    spread = math.sqrt(sum(squares) / len(squares)) if squares else 0.0
    gamma = max(1.0, factor * spread)
    return np.array([[max(0.0, s[p, q]) ** gamma for q in range(count)] for p in range(count)])


def carry(plane, weights):
    """m'(p) = sum_q A(p,q) m(q) / sum_q A(p,q) for a map of the block's own size."""
    flat, result = plane.reshape(-1), np.zeros(plane.size)
    for p in range(plane.size):
        result[p] = sum(weights[p, q] * flat[q] for q in range(plane.size)) / sum(weights[p])
    return result.reshape(plane.shape)


def smooth(rows, count):
    """Linear resampling of rows (n, ...) -> (count, ...) with a triangle as wide as a new row, if that is wider."""
    n, result = len(rows), []
    step = n / count
    wide = max(1.0, step)
    for place in range(count):
        centre = (place + 0.5) * step
        taps = [(k, 1 - abs(k + 0.5 - centre) / wide) for k in range(n) if abs(k + 0.5 - centre) < wide]
        result.append(sum(weight * rows[k] for k, weight in taps) / sum(weight for _, weight in taps))
    return np.stack(result)


def carried(plane, blocks, factor):
    """NRM(RSZ(m')): a map (H,W) carried to one block after the other, (C,u,v) each."""
    size = plane.shape
    for h in blocks:
        plane = carry(smooth(smooth(plane, h.shape[1]).T, h.shape[2]).T, affinity(h, factor))
    return min_max(plane if plane.shape == size else resize(plane, size))


def refined(plane, views, factor, keep=0.5):
    """keep m + (1 - keep) NRM(RSZ(m')); of several views the mean.

    Each view is (blocks, mirrored): the blocks that the map is carried to, in this order, and whether they are those
    of the mirrored image.
    """
    total = np.zeros(plane.shape)
    flat = True
    for blocks, mirrored in views:
        own = carried(plane[:, ::-1] if mirrored else plane, blocks, factor)
        total += own[:, ::-1] if mirrored else own
        flat = flat and not own.any()
    if flat:  # nothing can be carried: the map stays as it is
        return plane
    return keep * plane + (1 - keep) * total / len(views)
