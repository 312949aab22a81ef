"""Fits a multi-label head for Pascal VOC on the real ResNet-50: logistic regression on its frozen pooled features.

It is fitted on the VOC train images, and the weight of L2 is chosen by cross-validation on the same images. Prints the
average precision on VOC val and, for the classes that both have, on COCO. A class without a train image cannot be
learnt and is not an output of the head. Afterwards `--model benchmarks/voc_head.py:build` gives the whole network, if
GAMLENS_VOC_HEAD names the file of the head.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path

import real
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gamlens import GamlensError, GamlensWarning, Lens
from gamlens.data import Dataset, align, load
from gamlens.inputs.batch import Views, prepare
from gamlens.models.checkpoint import read

HEAD = "GAMLENS_VOC_HEAD"
L2 = tuple(10.0 ** (step / 2) for step in range(-8, 3))
FOLDS = 5


def build() -> Lens:
    """A lens on ResNet-50 with the head that GAMLENS_VOC_HEAD names; its outputs are independent VOC classes."""
    if not os.environ.get(HEAD):
        raise GamlensError(f"Set {HEAD} to the file that `python benchmarks/voc_head.py --head FILE` wrote.")
    return attach(Path(os.environ[HEAD]))


def attach(file: Path) -> Lens:
    """A lens on the whole network: ResNet-50 with its real weights, and the head of the file."""
    tensors = read(file)
    trunk = real.resnet50()
    linear = nn.Linear(trunk.model.fc.in_features, len(tensors["bias"]))
    linear.load_state_dict({"weight": tensors["weight"].float(), "bias": tensors["bias"].float()})
    trunk.model.fc = linear
    names = load("voc", real.DATA / "VOCdevkit", limit=1).classes
    lens = Lens(trunk.model, labels=[names[at] for at in tensors["classes"].tolist()], multi_label=True)
    lens.weights = f"{trunk.weights} + {file}"
    return lens


def features(dataset: Dataset, *, cache: Path | None = None, batch: int = 16) -> Tensor:
    """The input of ResNet-50's classifier, (N,2048). It is stored in `cache` under the data set's fingerprint."""
    file = cache / f"{dataset.fingerprint()[:16]}.pth" if cache else None
    if file and file.is_file():
        return torch.load(file, weights_only=True)
    lens, found = real.resnet50(), []
    lens.model.fc = nn.Identity()
    lens.model.eval()
    paths = [sample.image for sample in dataset]
    for start in range(0, len(paths), batch):
        with torch.no_grad():
            found.append(lens.model(prepare(paths[start : start + batch], lens.transform, Views()).batches[0]))
        if sys.stderr.isatty():
            print(f"\r{dataset.name}: {min(start + batch, len(paths))} of {len(paths)}", end=" ", file=sys.stderr)
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(torch.cat(found), file)
    return torch.cat(found)


def truth(dataset: Dataset, classes: int) -> Tensor:
    """Labels (N,C) in float64: 1 if the image shows the class, otherwise 0."""
    shown = torch.zeros(len(dataset), classes, dtype=torch.float64)
    for number, sample in enumerate(dataset):
        shown[number, list(sample.labels)] = 1
    return shown


def fit(x: Tensor, y: Tensor, l2: float, *, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weight (C,D) and bias (C,) that minimise mean BCE summed over classes + l2/2 |weight|^2, by L-BFGS in float64.

    The bias is not regularised. Features are centred for the fit, which changes the steps but not the minimum.
    """
    x, y = x.double(), y.double()
    middle = x.mean(dim=0)
    weight = torch.zeros(y.shape[1], x.shape[1], dtype=torch.float64) if start is None else start.clone()
    bias = torch.logit(y.mean(dim=0).clamp(0.5 / len(y), 1 - 0.5 / len(y)))
    weight.requires_grad_(), bias.requires_grad_()
    solver = torch.optim.LBFGS(
        [weight, bias],
        max_iter=300,
        history_size=20,
        tolerance_grad=1e-6,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        solver.zero_grad()
        value = cost((x - middle) @ weight.T + bias, y) + l2 / 2 * weight.square().sum()
        value.backward()
        return value

    solver.step(loss)
    weight, bias = weight.detach(), bias.detach()
    return weight, bias - weight @ middle


def cost(logits: Tensor, y: Tensor) -> Tensor:
    """Binary cross-entropy, mean over images, summed over classes."""
    return F.binary_cross_entropy_with_logits(logits, y, reduction="none").sum(dim=1).mean()


def choose(x: Tensor, y: Tensor, *, weights: tuple[float, ...] = L2, folds: int = FOLDS) -> dict[float, float]:
    """The held-out cost of each weight of L2, averaged over folds; image k is in fold k mod `folds`.

    A class that no image of the other folds shows is left out of a fold, because its bias would go to minus infinity.
    The features are rotated into the span of the images, which changes no distance and therefore no cost.
    """
    x = x.double() - x.double().mean(dim=0)
    x = x @ torch.linalg.svd(x, full_matrices=False).Vh.T
    fold = torch.arange(len(x)) % folds
    costs = dict.fromkeys(sorted(weights, reverse=True), 0.0)
    for number in range(folds):
        seen, start = fold != number, None
        known = y[:, y[seen].any(dim=0)]
        for l2 in costs:
            start, bias = fit(x[seen], known[seen], l2, start=start)
            costs[l2] += float(cost(x[~seen] @ start.T + bias, known[~seen])) / folds
    return costs


def average_precision(scores: Tensor, shown: Tensor) -> float:
    """Average precision as VOC computes it since 2010: (N,), (N,) -> float. NaN if no image shows the class.

    It is the area under precision over recall, after precision was made to decrease monotonically. Images of equal
    score are one step, so that their order does not matter.

    >>> average_precision(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([1, 0, 1, 0]))
    0.8333333333333333
    """
    order = scores.argsort(descending=True, stable=True)
    values, hits = scores[order], shown[order].double()
    if not hits.sum():
        return float("nan")
    last = torch.cat([values[1:] != values[:-1], torch.tensor([True])])
    found = hits.cumsum(0)[last]
    precision = found / (torch.arange(1, len(hits) + 1).double()[last])
    envelope = precision.flip(0).cummax(0).values.flip(0)
    steps = torch.diff(found / hits.sum(), prepend=torch.zeros(1, dtype=torch.float64))
    return float((steps * envelope).sum())


def report(title: str, logits: Tensor, y: Tensor, names: list[str]) -> None:
    """Print the average precision of each class that any image shows, and their mean."""
    found = [(name, int(y[:, k].sum()), average_precision(logits[:, k], y[:, k])) for k, name in enumerate(names)]
    found = [row for row in found if row[1]]
    mean = sum(row[2] for row in found) / len(found)
    print(f"{title}: mAP {100 * mean:.1f} % over {len(found)} classes, {len(y)} images")
    print("  " + ", ".join(f"{name} {100 * value:.1f} ({count})" for name, count, value in found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", type=Path, required=True, help="write the head to this .pth file")
    parser.add_argument("--cache", type=Path, help="keep the features in this folder")
    parser.epilog = "example: python benchmarks/voc_head.py --head out/voc_head.pth --cache out"
    options = parser.parse_args()
    warnings.simplefilter("ignore", GamlensWarning)
    train, val = (load("voc", real.DATA / "VOCdevkit", split=split) for split in ("train", "val"))
    sets = {"train": train, "VOC val": val, "COCO": load("coco", real.DATA / "coco")}
    seen = {title: features(dataset, cache=options.cache) for title, dataset in sets.items()}
    torch.set_num_threads(1)  # the fit's products are small
    x, shown = seen["train"], truth(train, len(train.classes))
    known = [k for k in range(len(train.classes)) if shown[:, k].any()]
    names = [train.classes[k] for k in known]
    print(
        f"train: {len(train)} images of {len(names)} classes; no image of "
        + ", ".join(sorted(set(train.classes) - set(names)))
    )
    costs = choose(x, shown[:, known])
    l2 = min(costs, key=costs.__getitem__)
    print("held-out cost by L2: " + ", ".join(f"{at:.2g}: {value:.4f}" for at, value in costs.items()))
    weight, bias = fit(x, shown[:, known], l2)
    options.head.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"weight": weight, "bias": bias, "classes": torch.tensor(known)}, options.head)
    print(f"L2 {l2:.2g}; the head is in {options.head}")
    for title, dataset in sets.items():
        report(title, seen[title].double() @ weight.T + bias, truth(align(dataset, names), len(names)), names)


if __name__ == "__main__":
    main()
