"""A pair score that is put into PAIR_SCORES is known everywhere: no other file has a list of pair scores.

The made-up score is no multiple of the dot product, has no gradient where both embeddings are the same (a backward
gives NaN there), and has no value for an embedding that is all ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import nets
import pytest
import torch
from studio_kit import noise, small_lens
from torch import Tensor

from gamlens import GamlensError, GamlensWarning, Lens
from gamlens.data import load
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.protocol import Protocol, units
from gamlens.retrieval.select import most_similar
from gamlens.scores import PAIR_SCORES, PairScore

NAME = "closeness"
X, Y = nets.images(2), nets.images(2, seed=1)


def closeness(x: Tensor, y: Tensor) -> Tensor:
    return 1 / (1 + (x - y).square().sum(dim=1).sqrt())


@pytest.fixture(autouse=True)
def entry(monkeypatch: pytest.MonkeyPatch) -> PairScore:
    entry = PairScore(
        closeness,
        "Closeness",
        positive=True,
        saturated=lambda values, x, y: (x == y).all(dim=1),
        saturated_because="both embeddings are the same, so the closeness is 1 and has no gradient",
        undefined=lambda embeddings: (embeddings == 1).all(dim=1),
        undefined_because="is all ones, so it has no closeness",
        instead="cosine",
    )
    monkeypatch.setitem(PAIR_SCORES, NAME, entry)
    return entry


def test_compare() -> None:
    """Its maps are those of the bare function, and empty where it has no gradient, with a warning that says why."""
    lens = Lens(nets.small())
    found, bare = lens.compare(X, Y, score=NAME), lens.compare(X, Y, score=lambda x, y: closeness(x, y))
    assert torch.equal(found.x.maps, bare.x.maps)
    assert found.x.maps.amax(dim=(1, 2)).min() > 0.5
    assert found.x.about["score"] == NAME
    for score in (NAME, closeness):
        with pytest.warns(GamlensWarning) as said:
            same = lens.compare(X, torch.stack([X[0], Y[1]]), score=score)
        assert str(said[0].message) == (
            "Pair 0: both embeddings are the same, so the closeness is 1 and has no gradient; the maps are empty. The "
            "score 'cosine' shows what the images share."
        )
        assert same.scores[0] == 1
        assert same.x.maps[0].abs().max() == same.y.maps[0].abs().max() == 0
        assert torch.equal(same.x.maps[1], found.x.maps[1])


@pytest.mark.parametrize("n", [1, 2])
def test_compare_many(n: int) -> None:
    lens = Lens(nets.small())
    with pytest.warns(GamlensWarning) as said:
        many = lens.compare_many(X, X, score=NAME, n=n)
    (message,) = [str(one.message) for one in said if "both embeddings" in str(one.message)]
    assert message.startswith("Pair 0, 3: both embeddings are the same")
    assert many.x.maps[[0, 3]].abs().max() == 0
    one = lens.compare(X[:1], X[1:], score=NAME, n=n)
    torch.testing.assert_close(many.x.maps[1:2], one.x.maps, rtol=0, atol=1e-9)


def test_search_takes_the_nearest() -> None:
    queries, images = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 2.0], [9.0, 9.0]])
    assert most_similar(NAME, queries, images, 2).tolist() == [[0, 1], [0, 0]]
    with pytest.raises(GamlensError, match=r"gallery\[1\] is all ones, so it has no closeness: use score='cosine', or"):
        most_similar(NAME, queries, torch.tensor([[3.0, 4.0], [1.0, 1.0]]), 1)


def test_an_embedding_without_a_score_is_an_error_of_compare(monkeypatch: pytest.MonkeyPatch, entry: PairScore) -> None:
    second = replace(entry, undefined=lambda embeddings: torch.arange(len(embeddings)) == 1)
    monkeypatch.setitem(PAIR_SCORES, NAME, second)
    with pytest.raises(GamlensError, match=r"x\[1\] is all ones, so it has no closeness"):
        Lens(nets.small()).compare(X, Y, score=NAME)


@pytest.mark.parametrize("score", [NAME, closeness, lambda x, y: closeness(x, y)])
def test_it_has_no_matches(score: str | Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(GamlensError, match=r"no sum over pairs of positions.*: use one of 'cosine', 'dot'"):
        Lens(nets.small()).trace_pair(X, Y).matches((3, 3), score=score)


@pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
def test_studio(tmp_path: Path) -> None:
    """In the menu; a click on a photo says that there are no matches; the score leads back from a point to the maps."""
    import gradio as gr

    from gamlens.studio.actions import Actions
    from gamlens.studio.controls import Controls
    from gamlens.studio.model_cache import ModelCache
    from gamlens.studio.session import ClickedPoint
    from gamlens.studio.widgets import control_widgets

    with gr.Blocks():
        menu = control_widgets("pair")["score"].choices
    assert menu[:2] == [("Cosine", "cosine"), ("Dot", "dot")]
    assert menu[-1] == ("Closeness", NAME)
    photos = [noise(tmp_path / f"{number}.png", seed=number) for number in range(2)]
    actions = Actions(ModelCache({"small": small_lens()}, any_name=False))
    usual, made_up = Controls(), Controls(score=NAME)
    actions.set_photos("me", {"x": photos[0]}, usual)
    assert "Click a spot" in actions.set_photos("me", {"y": photos[1]}, usual).stage
    maps = actions.redraw("me", "pair", made_up).stage
    assert "Closeness similarity 0." in maps
    assert "Click a spot" not in maps
    point = ClickedPoint("x", 0.5, 0.5)
    assert "no sum over pairs of positions" in actions.set_point("me", point, made_up).stage
    assert "What matches it" in actions.set_point("me", point, usual).stage
    assert actions.redraw("me", "pair", made_up).stage == maps
    assert "What matches it" not in actions.redraw("me", "pair", usual).stage
    same = actions.set_photos("me", {"y": photos[0]}, made_up).stage
    assert (
        "both embeddings are the same, so the closeness is 1 and has no gradient. Choose the similarity Cosine" in same
    )


def test_evaluation(lens: Lens, boxed: Callable[..., Path]) -> None:
    root = boxed(4, lambda number: 20 + 5 * number)
    dataset = load("table", root / "items.csv")
    for kind, column in (("objective", "before_similarity"), ("localization", "iou")):
        protocol = Protocol(kind, NAME, ("gam",), (1,), pairs="neighbour", hold_out=0)
        rows = [row for part in evaluate(lens, units(dataset, protocol), protocol) for row in part if not row["error"]]
        assert {row["side"] for row in rows} == {"x", "y"}
        assert all(row[column] for row in rows if row["method"] == "gam")
    (row,) = [row for row in rows if (row["item"], row["method"], row["side"]) == ("00.png~02.png", "gam", "x")]
    pair = lens.compare(str(root / "00.png"), str(root / "02.png"), score=NAME, n=1)
    assert row["map_mean"] == pytest.approx(float(pair.x.maps.mean()), abs=1e-6)
    with pytest.raises(GamlensError, match=r"explains pairs only: use task cosine or dot or.* closeness"):
        Protocol(methods=("vdsn",))
