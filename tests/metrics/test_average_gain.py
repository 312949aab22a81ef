"""Average gain: the share of what is missing to a score of 1 that image x map gains."""

import pytest
import torch

from gamlens.evaluation.metric_columns import left_out_note, needs_positive
from gamlens.metrics import METRICS, StoredColumns, gain

HELD = torch.zeros(3, dtype=torch.bool)


def about(task):
    return {"protocol": {"task": task, "kind": "objective"}}


def test_by_hand():
    found = gain(torch.tensor([0.5, 0.2, 0.9, 1.0]), torch.tensor([0.75, 1.0, 0.1, 1.0]))
    assert found[:3].tolist() == pytest.approx([0.5, 1, 0])
    assert found[3].isnan()
    assert gain(torch.tensor([-0.5]), torch.tensor([0.25])).item() == 0.5  # a cosine


def test_equals_a_loop():
    before, after = torch.rand(2, 50, dtype=torch.float64)
    expected = [max(0, o - y) / (1 - y) for y, o in zip(before.tolist(), after.tolist(), strict=True)]
    assert gain(before, after).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("confidence", ["logit", "probability"])
def test_a_table_of_any_score_shows_the_gain_of_the_probability(confidence):
    scores = {"before_logit": torch.tensor([5.0, 5.0, 5.0]), "after_logit": torch.tensor([9.0, 9.0, 9.0])}
    scores |= {
        "before_probability": torch.tensor([0.5, 0.5, 1.0]),
        "after_probability": torch.tensor([0.75, 0.25, 1.0]),
    }
    value = METRICS["average_gain"].value(StoredColumns(scores, HELD, confidence))
    assert value.values[:2].tolist() == [50, 0]
    assert (value.left_out, value.why) == (1, "had the highest score already")


def test_pairs_have_the_gain_of_the_similarity():
    scores = {"before_similarity": torch.tensor([0.5, 0.0, -1.0]), "after_similarity": torch.tensor([0.75, 1.0, 0.0])}
    assert METRICS["average_gain"].value(StoredColumns(scores, HELD)).values.tolist() == [50, 100, 50]


def test_scores_above_one_or_below_zero_leave_metrics_out():
    share, gained = ["ADP", "ADP (equal mass)", "ADCC"], ["Average gain"]
    assert (needs_positive(about("class")), left_out_note(about("class"))) == ([], "")
    assert (needs_positive(about("cosine")), left_out_note(about("cosine"))) == ([], "")
    assert needs_positive(about("dot")) == gained
    assert needs_positive(about("euclidean")) == share + gained
    assert left_out_note(about("dot")) == (
        "Left out: Average gain. It is a share of what is missing to a score of 1, and the score 'dot' may be higher."
    )
    assert left_out_note(about("euclidean")).startswith(
        "Left out: ADP, ADP (equal mass), ADCC. It is a share of the exp"
    )
