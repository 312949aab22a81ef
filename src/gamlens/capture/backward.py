"""One short backward: the gradients of scores with respect to the blocks that a forward kept.

`torch.autograd.grad` is used throughout, so no `.grad` of the user's parameters is written.
"""

import operator
import re
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from gamlens.capture.forward import ForwardRecord, as_map
from gamlens.capture.guard import outside_inference_mode
from gamlens.errors import GamlensError

IMAGES_TOGETHER = 64  # how many rows one batched backward has at most; it limits the memory
ATTENTION = re.compile(r"attention|flash|xformers|sdp", re.IGNORECASE)
IN_PLACE = re.compile(r"modified by an inplace operation")
PROBE, PEAK, WIDEST, LARGEST_SCALE = 2.0**14, 2.0**6, 2.0**28, 2.0**15  # `_backward` explains them


def gradients(score: Tensor, records: Sequence[ForwardRecord], *, keep_graph: bool) -> list[dict[str, Tensor]]:
    """Compute the gradient of each score with respect to each block.

    The images of a batch do not influence each other, so d(sum of scores)/d(block) holds, in row b, the gradient of the
    score of image b. The model is held in eval mode meanwhile, because checkpointed parts run their forward again
    during the backward.

    Args:
        score: One score per row, (R,), in the graph.
        records: The forwards that the score depends on: one, or two for the images of a pair.
        keep_graph: Whether the graph is kept for a later backward.

    Returns:
        For each record, {block: gradient (B,C,h,w)}. Either all records have a graph or none has; without a graph, {}
        for each record.
    """
    if not records[0].has_graph or not records[0].blocks:
        return [{} for _ in records]
    if not score.requires_grad:
        raise GamlensError(
            "The score does not depend on the wanted blocks in a way that has a gradient: look for torch.no_grad() or "
            ".detach() inside the model's forward or in the score function, for an embedding= layer that runs before "
            "these blocks, or for a block that is a part of a tensor which the model changes in place (F.relu_(y[:2]))."
        )
    blocks: list[Tensor] = []
    last: list[Tensor] = []
    for record in records:
        blocks += record.blocks.values()
        last.append(blocks[-1])
    try:
        with records[0].guard.hold(), ExitStack() as stack, torch.enable_grad():
            for record in records:
                stack.enter_context(record.backward_context())
            found = iter(_backward(score, blocks, last, keep_graph))
    except RuntimeError as error:
        raise GamlensError(f"The backward failed: {error}. {backward_hint(error)}") from error
    result: list[dict[str, Tensor]] = []
    for record in records:
        result.append({})
        for name in record.blocks:
            gradient = next(found)
            if gradient is None:
                raise GamlensError(
                    f"The score does not depend on block {name!r}, which runs after the layer that the score is "
                    "computed from, or beside it: name earlier blocks (blocks=), or a later embedding (embedding=)."
                )
            result[-1][name] = as_map(name, gradient, record.grids)
    return result


def backward_hint(error: RuntimeError) -> str:
    """Say what the user can do about an exception from a backward."""
    if ATTENTION.search(str(error)):
        return (
            "An attention kernel of this model has no backward here. Switch to the plain one: in timm "
            "timm.layers.set_fused_attn(False) before the model is built, in transformers "
            "attn_implementation='eager', in torch run inside torch.nn.attention.sdpa_kernel(SDPBackend.MATH)."
        )
    if IN_PLACE.search(str(error)):
        return (
            "Were weights changed since the forward? Then trace the images again. If not, the model changes a tensor "
            "in place that its backward needs: replace the in-place call (such as F.relu_(y), y.mul_(2) or "
            "inplace=True) by one that makes a new tensor, or take a smaller n, so that all blocks lie after it."
        )
    if isinstance(error, torch.OutOfMemoryError):
        return "Give fewer images at a time (batch_size=), or a smaller n (fewer blocks)."
    return "Were weights changed since the forward? Then trace the images again."


def batched_gradients(
    output: Tensor, vectors: Tensor, record: ForwardRecord, *, keep_graph: bool, most: int = IMAGES_TOGETHER
) -> dict[str, Tensor]:
    """Compute T vector-Jacobian products through one record: d <vectors[t], output> / d block for every t.

    One batched backward handles as many t as fit into `most` rows; each t has one row per image. If a layer has no
    batched backward, or if a block is float16, whose gradients need scaling (`_backward`), there is one backward per t.

    Args:
        output: A tensor (B,D) in the record's graph, such as the class scores.
        vectors: What `output` is multiplied by, (T,B,D).
        record: The forward that `output` comes from.
        keep_graph: Whether the graph is kept for a later backward.
        most: How many rows share one batched backward at most.

    Returns:
        {block: (T,B,C,h,w)}; {} where the record has no graph.
    """
    if not record.has_graph or not record.blocks:
        return {}
    turns, images = vectors.shape[:2]
    step = max(1, most // images)
    half = any(block.dtype == torch.float16 for block in record.blocks.values())
    together = output.requires_grad and turns > 1 and step > 1 and not half
    parts: list[dict[str, Tensor]] = []
    done = 0
    while together and done < turns:
        found = _together(output, vectors[done : done + step], record)
        if found is None:
            break
        parts.append(found)
        done += step
    for turn in range(done, turns):
        with outside_inference_mode(), torch.enable_grad():
            score = (output * vectors[turn]).sum(dim=1)
        (found,) = gradients(score, [record], keep_graph=keep_graph or turn + 1 < turns)
        parts.append({name: gradient[None] for name, gradient in found.items()})
    return {name: torch.cat([part[name] for part in parts]) for name in record.blocks} if len(parts) > 1 else parts[0]


def _together(output: Tensor, vectors: Tensor, record: ForwardRecord) -> dict[str, Tensor] | None:
    """Run one batched backward for vectors (T,B,D): {block: (T,B,C,h,w)}.

    Returns None if the backward fails. The caller then tries one plain backward per t, whose error names the cause.
    """
    try:
        with record.guard.hold(), record.backward_context(), torch.enable_grad():
            found = torch.autograd.grad(
                output,
                list(record.blocks.values()),
                vectors.to(output.dtype),
                retain_graph=True,
                is_grads_batched=True,
                allow_unused=True,
            )
    except RuntimeError:
        return None
    result = {}
    for name, gradient in zip(record.blocks, found, strict=True):
        if gradient is None:
            return None
        flat = as_map(name, gradient.flatten(0, 1), record.grids)
        result[name] = flat.reshape(*gradient.shape[:2], *flat.shape[1:])
    return result


def _backward(score: Tensor, blocks: list[Tensor], last: list[Tensor], keep_graph: bool) -> Sequence[Tensor | None]:
    """Compute the gradients of sum(score) with respect to `blocks`, with loss scaling if a block is float16.

    float16 holds magnitudes from 2^-24 = 6e-8 (smaller ones become zero) to 65,504 = about 2^16 (larger ones become
    infinite). Gradients are often outside this range, and then the map would be wrong. As in mixed-precision training,
    the score is multiplied by a factor before the backward, and the gradients are divided by it afterwards:

        ds_r/dh = (1 / c_r) * d(c_r s_r)/dh

    Each score s_r has a factor c_r of its own. c_r is a power of two, so that both operations are exact. Let g_r be the
    largest absolute gradient of s_r at the last block. c_r is chosen so that c_r g_r lies between 2^5 and PEAK = 2^6.
    Gradients may then still grow about 2^10 times on the way to earlier blocks before they overflow, and gradients as
    small as about 2^-30 g_r do not become zero.

    g_r is measured by backwards that end at the last block and therefore cost little:

    1. PROBE s_r with PROBE = 2^14 measures g_r from 2^-38 up to 4; beyond that it overflows.
    2. s_r / PROBE measures g_r up to 2^30, and is used where the first overflowed.
    3. c_r s_r itself. If the score is computed in float16, the backward starts with c_r in float16, which overflows
       from 2^16 on. Scores for which this happens get c_r = LARGEST_SCALE = 2^15 at most.

    All of it stays on the device (torch.where instead of if), so that the host does not wait.

    Args:
        score: (R,), in the graph.
        blocks: The tensors to differentiate by.
        last: The last block of each record, where gradients are measured.
        keep_graph: Whether the graph is kept for a later backward.

    Returns:
        One gradient per block, in float32 after scaling; None if the score does not depend on the block.
    """
    if torch.float16 not in map(operator.attrgetter("dtype"), blocks):
        return torch.autograd.grad(score.sum(), blocks, retain_graph=keep_graph, allow_unused=True)
    up, down = (
        torch.autograd.grad((score * factor).sum(), last, retain_graph=True, allow_unused=True)
        for factor in (PROBE, 1 / PROBE)
    )
    scale = _scales(_peaks(up, score) / PROBE, _peaks(down, score) * PROBE)
    tried = torch.autograd.grad((score * scale).sum(), last, retain_graph=True, allow_unused=True)
    scale = torch.where(_peaks(tried, score).isfinite(), scale, scale.clamp(max=LARGEST_SCALE))
    found = torch.autograd.grad((score * scale).sum(), blocks, retain_graph=keep_graph, allow_unused=True)
    return [None if gradient is None else gradient.float() / _rows_of(scale, gradient) for gradient in found]


def _peaks(gradients: Sequence[Tensor | None], score: Tensor) -> Tensor:
    """Return the largest absolute gradient of each of R scores over all of these tensors: (R,).

    A gradient of a pair's joint forward has 2R rows, x's first: rows r and R + r belong to score r.
    """
    each = [gradient.detach().float().abs().flatten(1).amax(dim=1) for gradient in gradients if gradient is not None]
    return torch.cat([peaks.view(-1, len(score)) for peaks in each] or [torch.ones_like(score)[None]]).amax(dim=0)


def _scales(fine: Tensor, coarse: Tensor) -> Tensor:
    """Compute for each score the largest power of two c with c * peak <= PEAK: (R,), between 1 / WIDEST and WIDEST.

    Args:
        fine: The peaks (R,) measured with 2^14 times the score: infinite or NaN for large gradients.
        coarse: The peaks (R,) measured with 2^-14 times the score: zero for small gradients.

    A score whose peak is not finite in either gets 1: its gradient is not finite, and a later check says so.
    """
    peak = torch.where(fine.isfinite(), fine, coarse)
    found = torch.exp2(torch.floor(torch.log2(PEAK / peak))).clamp(1 / WIDEST, WIDEST)
    return torch.where(peak.isfinite(), found, 1)


def _rows_of(scale: Tensor, gradient: Tensor) -> Tensor:
    """Shape factors (R,) so that they divide a gradient (R,...), or (2R,...) if it holds both images of each pair."""
    return scale.repeat(len(gradient) // len(scale)).view(-1, *[1] * (gradient.ndim - 1))
