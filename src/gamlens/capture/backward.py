"""One short backward: the gradients of scores by the blocks that a forward kept. No `.grad` is touched."""

import operator
import re
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from gamlens.capture.forward import ForwardRecord, as_map
from gamlens.capture.guard import outside_inference_mode
from gamlens.errors import GamlensError

IMAGES_TOGETHER = 64  # rows of one batched backward: bounds its memory
ATTENTION = re.compile(r"attention|flash|xformers|sdp", re.IGNORECASE)
PROBE, PEAK, WIDEST, LARGEST_SCALE = 2.0**14, 2.0**6, 2.0**28, 2.0**15  # of the scaling in float16


def gradients(score: Tensor, records: Sequence[ForwardRecord], *, keep_graph: bool) -> list[dict[str, Tensor]]:
    """d(sum of score)/d(block), (B,C,h,w), for each block of each record. The images of a batch do not mix.

    Records that have no graph, all or none of them, have no gradients: {} each. The model is held in eval mode, for
    parts whose forward runs again in the backward (checkpointing).
    """
    if not records[0].has_graph:
        return [{} for _ in records]
    if not score.requires_grad:
        raise GamlensError(
            "The score does not depend on the wanted blocks through anything that has a gradient: is there a "
            "torch.no_grad() or a .detach() inside the model's forward, or in the score function?"
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
        raise GamlensError(f"The backward failed: {error}. {_hint(error)}") from error
    result: list[dict[str, Tensor]] = []
    for record in records:
        result.append({})
        for name in record.blocks:
            gradient = next(found)
            if gradient is None:
                raise GamlensError(
                    f"The score does not depend on block {name!r}: name blocks on the way from the image to the score."
                )
            result[-1][name] = as_map(name, gradient, record.grids)
    return result


def _hint(error: RuntimeError) -> str:
    if ATTENTION.search(str(error)):
        return (
            "An attention kernel of this model has no backward here. Switch to the plain one: in timm "
            "timm.layers.set_fused_attn(False) before the model is built, in transformers "
            "attn_implementation='eager', in torch run inside torch.nn.attention.sdpa_kernel(SDPBackend.MATH)."
        )
    if isinstance(error, torch.OutOfMemoryError):
        return "Give fewer images at a time (batch_size=), or a smaller n."
    return "Were weights changed since the forward? Then trace the images again."


def batched_gradients(
    output: Tensor, vectors: Tensor, record: ForwardRecord, *, keep_graph: bool, most: int = IMAGES_TOGETHER
) -> dict[str, Tensor]:
    """Several backwards through one record: d <vectors[t], output> / d block for every t.

    Up to `most` rows (T x B) go back together in one batched backward. Where a layer has no batched backward, one t
    goes back after another.

    Args:
        output: A tensor (B,D) in the record's graph.
        vectors: (T,B,D).

    Returns:
        {block: (T,B,C,h,w)}; {} where the record has no graph.
    """
    if not record.has_graph:
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
    """All turns in one backward; None where the network cannot do that, so that a plain one says what is wrong."""
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
    """Gradients of the score's sum by `blocks`.

    In float16 a gradient below 6e-8 vanishes and one above 65,504 overflows. Each score s_r is therefore multiplied
    by its own power of two before the backward, and its gradients are divided by it afterwards, which is exact. The
    power brings the largest gradient at the last block, whose backward costs next to nothing, to 2^6. The power is
    computed on the device, so that nothing waits: from one backward of 2^14 s_r, which finds small gradients, and one
    of 2^-14 s_r, which finds large ones. Where the score itself is made of float16 numbers, the power must not exceed
    2^15: a third backward shows which scores overflow under theirs.
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
    """The largest gradient that each score has in any of these: (R,)."""
    each = [gradient.detach().float().abs().flatten(1).amax(dim=1) for gradient in gradients if gradient is not None]
    return torch.cat([peaks.view(-1, len(score)) for peaks in each] or [torch.ones_like(score)[None]]).amax(dim=0)


def _scales(fine: Tensor, coarse: Tensor) -> Tensor:
    """Powers of two that bring peaks (R,) to PEAK, far from float16's ends. `fine` may overflow, `coarse` vanish."""
    peak = torch.where(fine.isfinite(), fine, coarse)
    found = torch.exp2(torch.floor(torch.log2(PEAK / peak))).clamp(1 / WIDEST, WIDEST)
    return torch.where(peak.isfinite(), found, 1)


def _rows_of(scale: Tensor, gradient: Tensor) -> Tensor:
    """One factor per row of a gradient: both images of a pair have the factor of their score."""
    return scale.repeat(len(gradient) // len(scale)).view(-1, *[1] * (gradient.ndim - 1))
