"""Manifests: exact on hand-made data, the same every time, and the real sets' sizes."""

import json
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gamlens.data import (
    Box,
    Dataset,
    Item,
    Manifest,
    Sample,
    hold_out,
    ilsvrc,
    narrow,
    neighbour_pairs,
    pairs,
    small,
    voc,
)
from gamlens.errors import GamlensError


@dataclass(frozen=True)
class Stripes:
    """Label k covers k + 1 of the 10 columns from the left; the first column is void."""

    def read(self, label: int) -> np.ndarray:
        return np.tile(np.arange(10) < label + 1, (2, 1))

    def void(self) -> np.ndarray:
        return np.tile(np.arange(10) < 1, (2, 1))


def toy(*classes: int) -> Dataset:
    """Classes of so many images; the n-th image has a box of n and one of half of n of 100 columns."""
    labels = [label for label, count in enumerate(classes) for _ in range(count)]
    samples = tuple(
        Sample(f"i{n:03d}", "", (label,), (Box(label, 0, 0, n / 2, 1), Box(label, 0, 0, n, 1)), (1, 100))
        for n, label in enumerate(labels, start=1)
    )
    return Dataset("toy", "/x", tuple(map(str, range(len(classes)))), samples[::-1])


def test_hold_out_every() -> None:
    found = hold_out(toy(15, 8))
    assert [item.names for item in found.items] == [("i001",), ("i011",), ("i021",)]
    assert (found.kind, found.seed, found.source) == ("hold-out every 10", None, toy(15, 8).fingerprint())
    assert len(hold_out(toy(15, 8), every=4).items) == 6


def test_hold_out_refuses() -> None:
    with pytest.raises(GamlensError, match="found"):
        hold_out(toy(5), every=0)


def test_small_by_box() -> None:
    # the largest box of image n is n / 100; the 25th percentile of 1..9 is 3, the 10th 1.8
    assert [item.names for item in small(toy(9), 25).items] == [("i001",), ("i002",), ("i003",)]
    assert [item.names for item in small(toy(9), 10).items] == [("i001",)]
    assert small(toy(9), 25).kind == "small 25% by box"
    plain = replace(toy(9), samples=(Sample("none", "", (0,)), *toy(9).samples))
    assert len(small(plain, 25).items) == 3


def test_small_by_mask() -> None:
    one = Sample("a", "", (0, 2, 4), (), (2, 10), Stripes())  # label 0 is all void
    two = Sample("b", "", (1, 3), (), (2, 10), Stripes())
    found = small(Dataset("toy", "/x", (), (two, one, Sample("c", "", (1,)))), 50, masks=True)
    assert found.items == (Item(("a",), 2), Item(("b",), 1))  # shares 0.1, 0.2, 0.3, 0.4: up to 0.25


def test_small_refuses() -> None:
    with pytest.raises(GamlensError, match="found 0"):
        small(toy(5), 0)
    with pytest.raises(GamlensError, match=r"'toy' in '/x' has no masks.*by boxes \(masks=False, --boxes\)"):
        small(toy(5), 25, masks=True)


@pytest.mark.parametrize("seed", range(5))
def test_pairs(seed) -> None:
    data = toy(4, 1, 3, 2, 50)
    found = pairs(data, seed=seed)
    label = {sample.name: sample.labels[0] for sample in data}
    assert Counter(item.label for item in found.items) == {0: 3, 2: 3, 3: 3, 4: 3}
    for item in found.items:
        one, other = item.names
        assert one != other
        assert label[one] == label[other] == item.label
    distinct = {(item.label, frozenset(item.names)) for item in found.items}
    assert Counter(label for label, _ in distinct) == {0: 3, 2: 3, 3: 1, 4: 3}
    assert found == pairs(replace(data, samples=data.samples[::-1]), seed=seed)


def test_pairs_depend_on_the_seed_alone() -> None:
    assert pairs(toy(50)).items != pairs(toy(50), seed=1).items
    drawn = [("i030", "i029"), ("i030", "i005"), ("i039", "i011")]  # as drawn when this was written: must not change
    assert [item.names for item in pairs(toy(50)).items] == drawn
    assert pairs(toy(50, 20)).items[:3] == pairs(toy(50)).items
    assert len({frozenset(item.names) for item in pairs(toy(5), per_class=10).items}) == 10
    with pytest.raises(GamlensError, match="found 0"):
        pairs(toy(5), per_class=0)


def test_neighbour_pairs() -> None:
    assert neighbour_pairs(toy(3, 1, 2)).items == (
        Item(("i001", "i002"), 0),
        Item(("i002", "i003"), 0),
        Item(("i005", "i006"), 2),
    )


@pytest.mark.parametrize("make", [hold_out, pairs, neighbour_pairs, lambda data: small(data, 25)])
def test_save_and_load(tmp_path, make) -> None:
    made = make(toy(4, 5))
    made.save(tmp_path / "m.json")
    assert Manifest.load(tmp_path / "m.json") == made
    plain = json.loads((tmp_path / "m.json").read_text())
    assert list(plain) == ["kind", "seed", "source", "items"]
    assert plain["items"][0] == [*made.items[0].names, *([made.items[0].label] if made.items[0].label >= 0 else [])]


def test_where_a_manifest_goes(tmp_path) -> None:
    made = hold_out(toy(4, 5))
    made.save(tmp_path / "new" / "m.json")
    assert Manifest.load(tmp_path / "new" / "m.json") == made
    with pytest.raises(GamlensError, match="it is a folder"):
        made.save(tmp_path / "new")
    with pytest.raises(GamlensError, match=r"no file '.*none\.json': check the path"):
        Manifest.load(tmp_path / "none.json")


def test_an_empty_manifest_and_odd_names(tmp_path) -> None:
    for items in ((), (Item(('ä"\n',), 0),), (Item(("caf\udce9.jpg", "\x1b"), 0),)):  # the last is not UTF-8
        Manifest("k", 1, "f", items).save(tmp_path / "m.json")
        assert Manifest.load(tmp_path / "m.json") == Manifest("k", 1, "f", items)


@pytest.mark.parametrize("text", ["[]", "{}", '{"kind":"a","seed":0,"source":"f","items":[[3]]}', "{"])
def test_what_is_no_manifest_is_named(tmp_path, text) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(GamlensError, match=r"m\.json"):
        Manifest.load(tmp_path / "m.json")
    with pytest.raises(GamlensError, match=r"gone\.json"):
        Manifest.load(tmp_path / "gone.json")


def test_narrow() -> None:
    data = toy(9)
    few = narrow(data, small(data, 25))
    assert [sample.name for sample in few] == ["i003", "i002", "i001"]
    assert pairs(few).names <= small(data, 25).names
    with pytest.raises(GamlensError, match="made from data"):
        narrow(few, small(data, 25))


@pytest.mark.shared
def test_the_real_sets(shared_data) -> None:
    data = ilsvrc(shared_data / "ILSVRC")
    found = neighbour_pairs(data)
    assert (len(found.items), len(found.names), len(hold_out(data).items)) == (750, 1000, 100)
    assert set(Counter(item.label for item in found.items).values()) == {3}
    assert [len(small(data, percentile).items) for percentile in (25, 10)] == [250, 100]
    assert len({(item.label, frozenset(item.names)) for item in pairs(data).items}) == 750
    ten = ilsvrc(shared_data / "imagenette")
    assert [len(small(ten, percentile).items) for percentile in (25, 10)] == [63, 25]
    masks = voc(shared_data / "VOCdevkit")
    assert [len(small(masks, percentile, masks=True).items) for percentile in (25, 10)] == [67, 27]
