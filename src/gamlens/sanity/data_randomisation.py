"""Data randomisation (Adebayo et al., NeurIPS 2018): do the maps of a network that learnt digits differ from those of a
network that memorised random labels?

The rule, fixed beforehand: for every seed and measure, the maps of a LeNet-5 trained on true labels must be less
similar to those of a LeNet-5 trained on random labels than to those of a second LeNet-5 trained on true labels from
another seed: the 95 % interval of the paired difference lies below 0. Each map explains the digit's true class on a
digit that no network was trained on.

The paragraph above is written into sanity.json as the rule.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gamlens import methods
from gamlens.errors import GamlensError, GamlensWarning, warn
from gamlens.lens import Lens
from gamlens.metrics import Difference, Interval, bootstrap, paired
from gamlens.models.zoo.lenet5 import LeNet5
from gamlens.sanity.compared_maps import EDGES, MethodMaps, compare, describe, edges, others

TRAINED, EXPLAINED = 2000, 200  # how many digits networks are trained on, and how many others are explained
# Training: the accuracy at which it ends, epochs at most, images per step, and the learning rate.
ENOUGH, MOST_EPOCHS, TRAIN_BATCH, RATE = 0.97, 400, 50, 2e-3
DIGIT_MEAN, DIGIT_STD = 0.1307, 0.3081  # of MNIST's training pixels, in 0..1
Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Split:
    """Digits to train on and other digits to explain: normalised images (N,1,28,28), and labels (N,)."""

    train: Tensor
    labels: Tensor
    shown: Tensor
    shown_labels: Tensor


@dataclass(frozen=True)
class LabelComparison:
    """The similarities of one seed, method and measure.

    Attributes:
        seed, method, measure: What was compared.
        random: Mean similarity to the maps of the random-label network.
        true: Mean similarity to the maps of the second true-label network.
        others: Mean similarity between maps of different digits, all of the first network.
        difference: The paired difference `random` - `true`; the method passes if its interval lies below 0.
    """

    seed: int
    method: str
    measure: str
    random: Interval
    true: Interval
    others: float
    difference: Difference

    @property
    def passes(self) -> bool:
        return self.difference.high < 0


@dataclass(frozen=True, eq=False)
class Trial:
    """The results of one seed; the three networks are "true", "true, another seed" and "random".

    Attributes:
        seed: The seed.
        accuracy: Training accuracy of each network.
        unseen: Accuracy of each network on the explained digits.
        epochs: How many epochs each network was trained.
        lines: One comparison per method and measure.
        maps: {network: {method: maps (R,H,W)}} of the explained digits.
        digits: The explained digits (R,1,28,28), normalised.
    """

    seed: int
    accuracy: Mapping[str, float]
    unseen: Mapping[str, float]
    epochs: Mapping[str, int]
    lines: tuple[LabelComparison, ...]
    maps: Mapping[str, Mapping[str, Tensor]]
    digits: Tensor


def split(digits: Digits, *, seed: int = 0, train: int = TRAINED, shown: int = EXPLAINED) -> Split:
    """Draw `train` digits to train on and `shown` others to explain."""
    pixels, labels = digits
    if len(pixels) < train + shown or pixels.shape[1:] != (28, 28):
        raise GamlensError(
            f"{train + shown} digits of 28 x 28 are needed; found an array of {pixels.shape}: give more digits."
        )
    order = np.random.default_rng(seed).permutation(len(pixels))[: train + shown]
    images = (torch.from_numpy(pixels[order]).float()[:, None] / 255 - DIGIT_MEAN) / DIGIT_STD
    names = torch.from_numpy(labels[order])
    return Split(images[:train], names[:train], images[train:], names[train:])


def trials(
    digits: Digits, names: Sequence[str], *, seeds: int = 3, n: int = 2, train: int = TRAINED, shown: int = EXPLAINED,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[Trial]:  # fmt: skip
    """Train three networks per seed and compare their maps; yields one Trial per seed. `tell` reports each step."""
    if seeds < 1:
        raise GamlensError(f"At least one seed is needed; found {seeds}: give --seeds 1 or more.")
    for name in names:
        if methods.find(name).kind == "pair":
            raise GamlensError(
                f"Method {name!r} explains pairs only, and data randomisation explains classes: leave it out."
            )
    for seed in range(seeds):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # more threads do not help such a small network
        try:
            trial = _trial(split(digits, seed=seed, train=train, shown=shown), names, seed, n, tell)
        finally:
            torch.set_num_threads(threads)
        yield trial


def fit(images: Tensor, labels: Tensor, *, seed: int) -> tuple[LeNet5, float, int]:
    """Train LeNet-5 until its training accuracy is 97 %, at most 400 epochs. Returns network, accuracy and epochs."""
    with torch.random.fork_rng(), torch.inference_mode(False), torch.enable_grad():
        torch.manual_seed(seed)
        net = LeNet5()
        steps = torch.optim.Adam(net.parameters(), lr=RATE)
        accuracy, epoch = 0.0, 0
        while accuracy < ENOUGH and epoch < MOST_EPOCHS:
            epoch += 1
            for rows in torch.randperm(len(images)).split(TRAIN_BATCH):  # type: ignore[no-untyped-call]
                steps.zero_grad()
                F.cross_entropy(net(images[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
                steps.step()
            accuracy = accuracy_of(net, images, labels)
    return net.eval(), accuracy, epoch


def accuracy_of(net: LeNet5, images: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float((net(images).argmax(1) == labels).float().mean())


def _trial(data: Split, names: Sequence[str], seed: int, n: int, tell: Callable[[str], None]) -> Trial:
    shuffled = data.labels[torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(seed))]
    plan = {"true": (data.labels, seed), "true, another seed": (data.labels, seed + 1000), "random": (shuffled, seed)}
    maps: dict[str, MethodMaps] = {}
    accuracy, unseen, epochs = {}, {}, {}
    for name, (labels, start) in plan.items():
        tell(f"seed {seed}: {name} labels")
        net, accuracy[name], epochs[name] = fit(data.train, labels, seed=start)
        unseen[name] = accuracy_of(net, data.shown, data.shown_labels)
        maps[name] = _maps(net, data, names, n)
    if (least := min(accuracy.values())) <= 0.95:
        warn(
            f"Seed {seed}: a network has learnt {100 * least:.1f} % of its labels after {MOST_EPOCHS} epochs. The "
            "check assumes more than 95 %: do not rely on this seed."
        )
    return Trial(seed, accuracy, unseen, epochs, _lines(maps, seed), maps, data.shown)


def _maps(net: LeNet5, data: Split, names: Sequence[str], n: int) -> MethodMaps:
    lens = Lens("lenet5", weights=net.state_dict())
    with warnings.catch_warnings(action="ignore", category=GamlensWarning):
        found = {name: lens.classify(data.shown, data.shown_labels, method=name, n=n).maps for name in names}
    return found | {EDGES: edges(data.shown)}


def _lines(maps: Mapping[str, Mapping[str, Tensor]], seed: int) -> tuple[LabelComparison, ...]:
    features = {name: describe(own) for name, own in maps.items()}
    random = compare(features["true"], features["random"])
    true = compare(features["true"], features["true, another seed"])
    apart = others(features["true"], range(len(next(iter(maps["true"].values())))))
    found = []
    for (method, measure), a in random.items():
        b, level = true[method, measure], float(apart[method, measure].mean())
        difference = paired(a, b, better="down")
        found.append(LabelComparison(seed, method, measure, bootstrap(a), bootstrap(b), level, difference))
    return tuple(found)


def passes(trials: Sequence[Trial], method: str) -> bool:
    """Whether a method passes in every seed and every measure."""
    return all(line.passes for trial in trials for line in trial.lines if line.method == method)


def summary(trials: Sequence[Trial], about: Mapping[str, Any]) -> dict[str, Any]:
    """The results as a dict for JSON; `about` is added to it."""
    return {
        **about,
        "rule": " ".join((__doc__ or "").split("\n\n")[1].split()),
        "accuracy": [dict(trial.accuracy) for trial in trials],
        "accuracy on unseen digits": [dict(trial.unseen) for trial in trials],
        "epochs": [dict(trial.epochs) for trial in trials],
        "passes": {name: passes(trials, name) for name in trials[0].maps["true"]},
        "lines": [
            {**vars(line), "random": vars(line.random), "true": vars(line.true), "difference": vars(line.difference),
             "passes": line.passes}
            for trial in trials for line in trial.lines
        ],
    }  # fmt: skip
