"""What the model's score says about maps: the fields of a MetricInput that need forwards of masked images.

All that is asked of one batch of items goes through `MaskedImages`, so that versions of an image that several metrics
or several maps need run once: the black image, the whole image, maps that are equal.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gamlens import metrics, scores
from gamlens.evaluation.masked import MaskedImages, Ticket, confidences
from gamlens.evaluation.protocol import Protocol
from gamlens.fuse import at_least_float32

Scores = dict[str, Tensor]  # {name of a score: (N,)}
Tickets = tuple[Ticket | None, ...]  # for each image of the items, what was asked for; None for the whole image


@dataclass(frozen=True)
class ScoredItems:
    """N items whose images can be masked, and how their score follows from what the model says about the images.

    Attributes:
        images: The one or two images of the items.
        score: From the outputs (N,K) of each image to the explained score by its name, (N,) each on the CPU.
        bounded: The name of the score that curves, ROAD and infidelity use: the probability, or the similarity.
        protocol: The protocol.
    """

    images: tuple[MaskedImages, ...]
    score: Callable[[Sequence[Tensor]], Scores]
    bounded: str
    protocol: Protocol

    def ask(self, places: Sequence[int], versions: Sequence[Tensor]) -> Tickets:
        """Ask for the score of versions (N,C,H,W) of some of the images; the others stay whole."""
        asked: list[Ticket | None] = [None] * len(self.images)
        for place, version in zip(places, versions, strict=True):
            asked[place] = self.images[place].forwards.add(version)
        return tuple(asked)

    def answer(self, tickets: Tickets) -> Scores:
        """The scores of what was asked for."""
        outputs = [
            own.whole if ticket is None else own.forwards.outputs(ticket)
            for own, ticket in zip(self.images, tickets, strict=True)
        ]
        return self.score(outputs)

    def bounded_scores(self, asked: Sequence[Tickets]) -> Tensor:
        """The bounded score of several versions, (S,N)."""
        return torch.stack([self.answer(tickets)[self.bounded] for tickets in asked])


def class_items(images: MaskedImages, labels: Tensor, protocol: Protocol, *, multi_label: bool) -> ScoredItems:
    """Items of one image and a class: the score is the label's logit, and its probability."""

    def score(outputs: Sequence[Tensor]) -> Scores:
        found = confidences(outputs[0], labels, multi_label=multi_label, temperature=protocol.temperature)
        return {name: values[0] for name, values in found.items()}

    return ScoredItems((images,), score, "probability", protocol)


def pair_items(images: tuple[MaskedImages, MaskedImages], protocol: Protocol) -> ScoredItems:
    """Pairs: the score is the similarity of the embeddings."""
    rule = scores.find_pair_score(protocol.task).fn

    def score(outputs: Sequence[Tensor]) -> Scores:
        return {"similarity": rule(*(at_least_float32(own).cpu() for own in outputs))}

    return ScoredItems(images, score, "similarity", protocol)


def masked_fields(items: ScoredItems, rows: Sequence[Sequence[tuple[int, Tensor]]]) -> Iterator[dict[str, Any]]:
    """Yield the fields of a MetricInput for each row of maps, those that masked forwards give.

    Everything is asked for before the first answer is taken, so that batches are full.

    Args:
        items: The items.
        rows: For each row, which images of the items are masked, with their maps: (place, maps (N,H,W)).
    """
    before = items.answer((None,) * len(items.images))
    squares = [_squares(items, place) for place in range(len(items.images))] if items.protocol.infidelity else []
    asked = [_asked(items, [place for place, _ in row], [maps for _, maps in row]) for row in rows]
    for row, given in zip(rows, asked, strict=True):
        if squares and len(row) == 1:
            given |= squares[row[0][0]]
        found: dict[str, Any] = {"before": before}
        for name, tickets in given.items():
            if name in ("after", "equal_mass"):
                found[name] = items.answer(tickets)
            elif name == "hidden":
                found[name] = tickets
            elif name == "hidden_change":
                found[name] = before[items.bounded] - items.bounded_scores(tickets)
            else:
                found[name] = items.bounded_scores(tickets)
        yield found


def _squares(items: ScoredItems, place: int) -> dict[str, Any]:
    """The random squares of infidelity on one image, which are the same for every map, and what was asked for them."""
    own = items.images[place]
    hidden = own.squares(items.protocol.infidelity)
    return {"hidden": hidden, "hidden_change": [items.ask([place], [own.hidden(1 - one.float())]) for one in hidden]}


def _asked(items: ScoredItems, places: Sequence[int], maps: Sequence[Tensor]) -> dict[str, Any]:
    """Ask for every version of a row: {field of a MetricInput: tickets, or a list of them}."""
    protocol, own = items.protocol, [items.images[place] for place in places]
    found: dict[str, Any] = {}

    def ask(make: Callable[[MaskedImages, Tensor], Tensor], values: Sequence[Tensor]) -> Tickets:
        return items.ask(places, [make(one, value) for one, value in zip(own, values, strict=True)])

    found["after"] = ask(MaskedImages.hidden, maps)
    if protocol.equal_mass:
        found["equal_mass"] = ask(MaskedImages.hidden, [metrics.equal_mass(values) for values in maps])
    if protocol.curves:
        masks = list(zip(*(metrics.steps(values, protocol.curves) for values in maps), strict=True))
        found["inserted"] = [ask(MaskedImages.shown, step) for step in masks]
        found["deleted"] = [ask(MaskedImages.shown, [~mask for mask in step]) for step in masks]
    if protocol.road:
        versions = [one.imputed(_removed(values, protocol.road)) for one, values in zip(own, maps, strict=True)]
        tickets = [items.ask(places, step) for step in zip(*versions, strict=True)]
        found["most_removed"], found["least_removed"] = tickets[: len(protocol.road)], tickets[len(protocol.road) :]
    return found


def _removed(maps: Tensor, shares: Sequence[float]) -> Tensor:
    """The pixels that ROAD removes of maps (N,H,W), for S shares in percent: bool (2S,N,H,W).

    First the pixels with the highest values, for every share, and then those with the lowest.
    """
    ranks, pixels = metrics.order(maps).argsort(dim=1).view(maps.shape), maps[0].numel()
    counts = [int(share * pixels / 100) for share in shares]
    return torch.stack([*(ranks < count for count in counts), *(ranks >= pixels - count for count in counts)])
