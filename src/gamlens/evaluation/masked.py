"""Forwards of images in which pixels are hidden: every different input runs once, whichever metrics ask for it."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from zlib import crc32

import torch
from torch import Tensor

from gamlens import metrics, scores
from gamlens.errors import GamlensError
from gamlens.evaluation.protocol import Protocol
from gamlens.fuse import at_least_float32
from gamlens.inputs.batch import ModelInput
from gamlens.inputs.transform import Transform
from gamlens.lens import Lens
from gamlens.metrics import Fill

IMAGES_AT_ONCE, IMAGES_AT_ONCE_ON_GPU = 64, 256  # images per forward
IMPUTED_NOISE = 0.01  # the standard deviation of the noise on imputed pixels, in units of the normalised input
LEAST_SQUARE, LARGEST_SQUARE = 1 / 8, 1 / 2  # the sides of the squares that infidelity hides, as shares of the input
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # the integers that have as many bytes as a float
Fingerprint = tuple[int, ...]
Ticket = tuple[Fingerprint, ...]  # the inputs of N images that were asked for, by which `outputs` finds them


class MaskedForwards:
    """Runs a model on many inputs, each different one once, in full batches.

    `add` takes inputs and returns a ticket, `outputs` gives what the model answered to them. Inputs wait until there
    are enough for a batch, or until an answer is asked for.

    Args:
        run: Inputs (B,C,H,W) -> outputs (B,K).
        at_once: The number of inputs per call of `run`.
    """

    def __init__(self, run: Callable[[Tensor], Tensor], *, at_once: int = IMAGES_AT_ONCE) -> None:
        self._run, self._at_once = run, at_once
        self._answers: dict[Fingerprint, Tensor] = {}  # (K,) each
        self._waiting: dict[Fingerprint, Tensor] = {}  # (C,H,W) each

    def know(self, inputs: Tensor, outputs: Tensor) -> None:
        """Take the outputs (N,K) of inputs (N,C,H,W) that ran elsewhere."""
        self._answers.update(zip(fingerprints(inputs), outputs, strict=True))

    def add(self, inputs: Tensor) -> Ticket:
        """Ask for the outputs of N inputs (N,C,H,W)."""
        ticket = fingerprints(inputs)
        for mark, one in zip(ticket, inputs, strict=True):
            if mark not in self._answers and mark not in self._waiting:
                self._waiting[mark] = one
        while len(self._waiting) >= self._at_once:
            self._run_waiting()
        return ticket

    def outputs(self, ticket: Ticket) -> Tensor:
        """The outputs (N,K) of the inputs that `add` was given."""
        while any(mark not in self._answers for mark in ticket):
            self._run_waiting()
        return torch.stack([self._answers[mark] for mark in ticket])

    def _run_waiting(self) -> None:
        """Run one batch of those that wait, the first ones."""
        marks = list(self._waiting)[: self._at_once]
        batch = torch.stack([self._waiting.pop(mark) for mark in marks])
        # On CPUs convolutions are up to twice as fast where the channels of a pixel lie together.
        outputs = self._run(batch.contiguous(memory_format=torch.channels_last))
        self._answers.update(zip(marks, at_least_float32(outputs), strict=True))


def fingerprints(inputs: Tensor) -> Ticket:
    """Two 64-bit sums of the bits of every input (N,...), by which equal inputs are found: N pairs of numbers."""
    bits = inputs.detach().contiguous().view(BITS[inputs.element_size()]).flatten(1).long()
    sums = torch.stack([(bits * row).sum(dim=1) for row in _weights(bits.shape[1], bits.device)], dim=1)  # modulo 2^64
    return tuple(tuple(row) for row in sums.tolist())


@lru_cache(maxsize=4)
def _weights(size: int, device: torch.device) -> Tensor:
    """Two sets of random odd numbers, (2,size)."""
    make = torch.Generator().manual_seed(0)
    return (torch.randint(-(2**63), 2**63 - 1, (2, size), generator=make) | 1).to(device)


class MaskedImages:
    """One image of each of N items, and versions of it for the model in which pixels are hidden.

    Args:
        lens: The model.
        side: The prepared images.
        names: The names of the images, which seed what is random.
        protocol: The protocol.
        forwards: Runs the masked images; both images of pairs share it.
        whole: The outputs (N,K) of the whole images, which are known already.
    """

    def __init__(
        self,
        lens: Lens,
        side: ModelInput,
        names: Sequence[str],
        protocol: Protocol,
        forwards: MaskedForwards,
        whole: Tensor,
    ) -> None:
        self.protocol, self.names, self.transform = protocol, names, _transform(lens)
        self.images = raw(lens, side)
        self.whole = at_least_float32(whole.detach())
        self.forwards = forwards
        self.forwards.know(self.hidden(torch.ones_like(self.images[:, 0])), self.whole)
        self._background: Tensor | None = None

    def hidden(self, maps: Tensor) -> Tensor:
        """Image x map, (N,H,W) -> (N,C,H,W), normalised; hidden pixels have the protocol's colour."""
        fill: Fill = "mean" if self.protocol.fill == "mean" else "black"
        mean, std = self.transform.mean, self.transform.std
        return metrics.explain_mask(self.images, maps.to(self.images), mean=mean, std=std, fill=fill)

    def shown(self, mask: Tensor) -> Tensor:
        """The pixels of a mask (N,H,W) on the background of insertion and deletion: (N,C,H,W), normalised."""
        if self.protocol.curve_background != "blur":
            return self.hidden(mask)
        if self._background is None:
            kernel, sigma = self.protocol.blur_kernel, self.protocol.blur_sigma
            self._background = metrics.blurred(self.images, kernel=kernel, sigma=sigma)
        mean, std = self.transform.mean, self.transform.std
        weight = mask.to(self.images)
        return metrics.explain_mask(self.images, weight, mean=mean, std=std, background=self._background)

    def imputed(self, removed: Tensor) -> Tensor:
        """The images with removed pixels imputed linearly from their neighbours, with a little noise, normalised.

        Shapes: V sets of removed pixels, bool (V,N,H,W) -> (V,N,C,H,W).

        The noise of an image is the same for every map. Imputation is a weighted mean, so that it makes no difference
        whether it comes before or after the normalisation.
        """
        removed = removed.to(self.images.device)
        std = self.images.new_tensor(self.transform.std)[:, None, None]
        mean = self.images.new_tensor(self.transform.mean)[:, None, None]
        noise = torch.stack([torch.randn(self.images.shape[1:], generator=seeded(name)) for name in self.names])
        noise = IMPUTED_NOISE * noise.to(self.images) * removed[:, :, None]
        filled = metrics.impute(self.images.repeat(len(removed), 1, 1, 1), removed.flatten(0, 1))
        return (filled.view(noise.shape) - mean) / std + noise

    def squares(self, count: int) -> Tensor:
        """Random squares, `count` per image: bool (count,N,H,W). An image has the same ones in every run and batch."""
        height, width = self.images.shape[2:]
        found = torch.zeros(count, len(self.names), height, width, dtype=torch.bool)
        for place, name in enumerate(self.names):
            draws = torch.rand(count, 3, generator=seeded(name)).tolist()
            for number, (size, y, x) in enumerate(draws):
                share = LEAST_SQUARE + (LARGEST_SQUARE - LEAST_SQUARE) * size
                rows, columns = max(1, round(share * height)), max(1, round(share * width))
                top, left = int(y * (height - rows + 1)), int(x * (width - columns + 1))
                found[number, place, top : top + rows, left : left + columns] = True
        return found.to(self.images.device)


def seeded(name: str, more: int = 0) -> torch.Generator:
    """A random generator that depends on the name of an image alone, and on a number."""
    return torch.Generator().manual_seed(crc32(name.encode(errors="replace")) + more)


def as_model_takes(lens: Lens, batch: Tensor) -> Tensor:
    """The batch on the model's device and of its dtype."""
    own = chain(lens.model.parameters(), lens.model.buffers())
    return batch.to(next((tensor for tensor in own if tensor.is_floating_point()), batch))


def raw(lens: Lens, side: ModelInput) -> Tensor:
    """Undo the normalisation: the images in 0..1 at input size, on the model's device, (N,3,H,W)."""
    transform, batch = _transform(lens), as_model_takes(lens, side.batches[0])
    mean, std = (batch.new_tensor(value)[:, None, None] for value in (transform.mean, transform.std))
    return (batch * std + mean).clamp(0, 1)


def confidences(output: Tensor, labels: Tensor, *, multi_label: bool, temperature: float = 1.0) -> dict[str, Tensor]:
    """Return the logit and the probability (at a temperature) of each image's label, for M versions of N images.

    Shapes: outputs (M*N,K) for K classes, all images of the first version first, and labels (N,) -> {name: (M,N)}.
    """
    output = at_least_float32(output).cpu()
    chance = scores.probabilities(output, multi_label=multi_label, temperature=temperature)
    chosen = labels.repeat(len(output) // len(labels))[:, None]
    found = {"logit": output, "probability": chance}
    return {name: values.gather(1, chosen).view(-1, len(labels)) for name, values in found.items()}


def _transform(lens: Lens) -> Transform:
    if not isinstance(lens.transform, Transform):
        raise GamlensError("Masking needs to know the model's mean and std: give the Lens a gamlens.Transform.")
    return lens.transform
