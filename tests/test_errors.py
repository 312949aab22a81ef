"""Errors a user can act on: each says what was wrong, what was found, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nets
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from gamlens import GamlensError, GamlensWarning, Lens
from gamlens.errors import reworded

X, Y = nets.images(2), nets.images(2, seed=3)
LABELS = ("tabby cat", "tiger cat", "crane", "crane", *(f"thing {number}" for number in range(6)))


@pytest.fixture(scope="module")
def lens() -> Lens:
    return Lens(nets.small(), labels=LABELS)


LOOKS: dict[str, tuple[Callable[[Lens], object], str]] = {
    "short target list": (lambda at: at.classify(X, [1]), r"each of the 2 images .* found 1 entries.*\[\[281, 285\]\]"),
    "long target list": (
        lambda at: at.classify(X[0], [1, 2]),
        r"each of the 1 images .* found 2 entries.*written \[\[",
    ),
    "target of a strange kind": (lambda at: at.classify(X, 1.5), r"one entry for each of the 2 images.*found 1\.5"),
    "empty target": (lambda at: at.classify(X, [[], 1]), r"target\[0\] is an empty list.*None for the top class"),
    "class too large": (lambda at: at.classify(X, 10), r"no class 10: the model has 10 classes, numbered 0 to 9"),
    "class below zero": (lambda at: at.classify(X, [0, -1]), r"no class -1: .* numbered 0 to 9"),
    "class that is a bool": (lambda at: at.classify(X, True), r"no class True"),
    "class that is a fraction": (lambda at: at.classify(X, [1, 2.5]), r"no class 2\.5"),
    "class that is an object": (lambda at: at.classify(X, [object(), 1]), r"number or its name; found <object"),
    "class name": (lambda at: at.classify(X, "tabby"), r"no class 'tabby': did you mean 'tabby cat'"),
    "ambiguous class name": (
        lambda at: at.classify(X, "Crane"),
        r"'Crane' is the name of several classes \(2, 3\): give the",
    ),
    "method": (lambda at: at.classify(X, method="gradcam"), r"no method 'gradcam': did you mean 'grad_cam'"),
    "pair method on one image": (
        lambda at: at.classify(X, method="vdsn"),
        r"'vdsn' explains pairs .*compare.*or choose one of gam",
    ),
    "n too large": (
        lambda at: at.classify(X, n=4),
        r"n=4 blocks .* there are 3 \(layer1, layer2, layer3\): .* 1 to 3",
    ),
    "n of zero": (lambda at: at.classify(X, n=0), r"n=0 blocks .* n from 1 to 3\.$"),
    "n of a bool": (lambda at: at.classify(X, n=True), r"n=True blocks .* n from 1 to 3\.$"),
    "n beyond the trace": (lambda at: at.trace(X, n=1).explain(n=3), r"n=3 .* there are 1 .*trace with a larger n"),
    "raw of another block": (lambda at: at.trace(X).raw(block="layer1"), r"'layer1' was not captured.*layer2, layer3"),
    "fusion": (lambda at: at.classify(X, fuse="avg"), r"no fusion 'avg': .*'mean'"),
    "fusion weights": (lambda at: at.classify(X, fuse=[1, 2, 3]), r"weight per block.*2 blocks.*\[1, 2, 3\]"),
    "batch size": (lambda at: at.classify(X, batch_size=0), r"batch_size.*0"),
    "score": (lambda at: at.trace(X, score="logits"), r"no class score 'logits': did you mean 'logit'"),
    "pair score": (lambda at: at.compare(X, Y, score="cos"), r"no pair score 'cos': did you mean 'cosine'"),
    "score of a wrong shape": (lambda at: at.trace(X, score=lambda out: out), r"each of the 2 rows.*found \(2, 10\)"),
    "score that is a number": (lambda at: at.trace(X, score=lambda out: 3.0), r"each of the 2 rows.*found float"),
    "score cut off": (lambda at: at.trace(X, score=lambda out: out[:, 0].detach()), r"does not depend.*\.detach\(\)"),
    "score and target": (lambda at: at.trace(X, 3, score=lambda out: out[:, 0]), r"callable score .* leave target out"),
    "pair score of a wrong shape": (lambda at: at.compare(X, Y, score=lambda a, b: a * b), r"2 rows.*found \(2, 32\)"),
    "unequal pairs": (lambda at: at.compare(X, nets.images(3)), r"x holds 2 images and y 3: .*1 against N"),
    "empty list": (lambda at: at.classify([]), r"no image: the list is empty"),
    "uint8 tensor": (
        lambda at: at.classify(X.byte()),
        r"torch\.uint8 .*floating point tensor \(B,C,H,W\).*uint8 numpy array",
    ),
    "float array": (lambda at: at.classify(X.numpy()), r"array of float64 .*uint8 \(H,W,3\).*torch tensor"),
    "array of a wrong shape": (lambda at: at.classify(np.zeros((4, 4, 7), np.uint8)), r"\(H,W,3\).*found \(4, 4, 7\)"),
    "tensor of a wrong shape": (lambda at: at.classify(X[0, 0]), r"\(B,C,H,W\) or \(C,H,W\).*found \(64, 64\)"),
    "empty tensor": (lambda at: at.classify(X[:0]), r"not empty; found \(0, 3, 64, 64\)"),
    "no image": (lambda at: at.classify(None), r"An image is a path.*found NoneType"),
    "sizes in one call": (lambda at: at.classify([X[0], nets.images(1, 80)]), r"one size; found .*64.*80.*one call"),
    "sizes in several batches": (lambda at: at.classify([X[0], nets.images(1, 80)], batch_size=1), r"one size; found"),
    "retarget without classes": (
        lambda at: at.trace(X, score=lambda out: out[:, 0]).retarget(1),
        r"explains another score\. Trace the images again",
    ),
    "retarget without a graph": (
        lambda at: at.trace(X, 1, keep_graph=False).retarget(2),
        r"keep_graph=False.*Trace the images again",
    ),
    "pair number": (lambda at: at.trace_pair(X, Y).matches((5, 5), pair=2), r"no pair 2: there are 2, numbered 0 to 1"),
    "row number": (lambda at: at.classify(X).overlay(2), r"no row 2: there are 2, numbered 0 to 1"),
    "row number of an image": (lambda at: at.classify(X).image(-3), r"no row -3: there are 2"),
    "only blocks after the embedding": (
        lambda at: Lens(at.model, embedding="layer2").compare(X, Y, n=1),
        r"does not depend on the wanted blocks.*embedding= layer that runs before",
    ),
    "device": (lambda at: at.to("gpu"), r"device 'gpu': give auto, cpu, cuda, cuda:1 \(the second GPU\) or mps"),
    "block after the embedding": (
        lambda at: Lens(at.model, embedding="layer2").compare(X, Y, n=2),
        r"not depend on block 'layer3', which runs after .*a later embedding",
    ),
    "no classes to rank": (lambda at: at.trace(X, score=lambda out: out[:, 0]).top(), r"no classes to rank"),
    "channels": (lambda at: at.classify(nets.images(1, channels=4)), r"failed on a batch of shape \(1, 4, 64, 64\)"),
    "image of NaN": (lambda at: at.classify(X * float("nan")), r"'layer2' .*not finite.*pixels"),
    "block map": (
        lambda at: at.classify(X).full(0, block="layer1"),
        r"no map of block 'layer1': give one of layer2, lay",
    ),
    "threshold": (lambda at: at.classify(X).boxes(1.5), r"between 0 and 1.*found 1\.5"),
    "box mode": (lambda at: at.classify(X).boxes(mode="some"), r"'all' .* 'largest' .*found 'some'"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_wrong_call(lens: Lens, name: str) -> None:
    call, message = LOOKS[name]
    with pytest.raises(GamlensError, match=f"(?s){message}"):
        call(lens)


def test_labels_of_another_number_than_the_classes() -> None:
    with pytest.warns(GamlensWarning, match=r"2 labels, but the model gives 10 class scores.*labels="):
        result = Lens(nets.small(), labels=["cat", "dog"]).classify(X, 7)
    assert result.names == ["class 7", "class 7"]


def test_a_name_without_labels() -> None:
    with pytest.raises(GamlensError, match=r"'cat' .*no labels: give labels= or a number"):
        Lens(nets.small()).classify(X, "cat")


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda image: np.asarray(image), r"into a .*\(C,H,W\) tensor; it gave ndarray"),
        (lambda image: torch.zeros(1, 3, 64, 64), r"\(C,H,W\) tensor; it gave \(1, 3, 64, 64\)"),
        (transforms.PILToTensor(), r"torch\.uint8"),
    ],
)
@pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
def test_a_transform_that_gives_no_image(transform: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(GamlensError, match=message):
        Lens(nets.small(), transform=transform).classify(Image.new("RGB", (64, 64)))


def test_an_error_is_reworded_once() -> None:
    """Errors of the kinds named, with what they say; ours and others are left as they are."""
    with pytest.raises(GamlensError, match=r"^No file: KeyError: 'a'\. Look\.$"), reworded("No file", todo=". Look."):
        raise KeyError("a")
    with pytest.raises(KeyError), reworded("No file", OSError):
        raise KeyError("a")
    with pytest.raises(GamlensError, match=r"^ours$"), reworded("No file"):
        raise GamlensError("ours")
