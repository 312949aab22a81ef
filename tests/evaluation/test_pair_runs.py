"""Runs of the tests of pairs: they resume, their tables say what their rows say, and their page shows it."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pair_data import Hues, hue_data
from typer.testing import CliRunner

from gamlens import GamlensError, GamlensWarning, Lens, Transform
from gamlens.cli import app
from gamlens.data import Dataset, load
from gamlens.evaluation.pair_tests import pair_texts
from gamlens.evaluation.pair_tests.pair_cases import pair_cases
from gamlens.evaluation.pair_tests.pair_explainers import PairExplainers
from gamlens.evaluation.pair_tests.pair_numbers import PairResults, pair_results
from gamlens.evaluation.pair_tests.pair_page import write_pairs
from gamlens.evaluation.pair_tests.pair_pictures import case_pictures, chosen_cases
from gamlens.evaluation.pair_tests.pair_plan import PairPlan
from gamlens.evaluation.pair_tests.pair_runs import read_rows, run_pair_tests

# A dot product, since the network of colours sees nothing in a masked image, where a cosine is undefined.
PLAN = PairPlan(task="dot", methods=("gam", "vdsn", "interactions"), n=(1,), limit=4, curves=2, hold_out=2, stride=0.25)


def lens() -> Lens:
    return Lens(Hues(), blocks=["features"], transform=Transform((64, 64), mean=(0.0,) * 3, std=(1.0,) * 3))


def run(data: Dataset, place: Path, plan: PairPlan = PLAN, **how: Any) -> dict[str, Any]:
    return run_pair_tests(lens(), data, pair_cases(data, plan), plan, place, **{"chunk": 4, **how})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load("table", hue_data(tmp_path_factory.mktemp("hues")))


@pytest.fixture(scope="module")
def finished(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "pairs"
    assert run(data, place) == {"items": 12, "errors": 0, "measured": 12}
    return place


@pytest.fixture(scope="module")
def results(finished: Path) -> PairResults:
    return pair_results(*read_rows(finished))


def values(rows: list[dict[str, Any]]) -> list[Any]:
    return [(row["case"], row["values"], row["chance"], row["exact"]) for row in rows]


# Runs


def test_a_stopped_run_measures_only_what_is_left(data: Dataset, finished: Path, tmp_path: Path) -> None:
    class StoppedError(Exception):
        pass

    def stop(items: int, errors: int) -> None:
        if items >= 4:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(data, tmp_path / "run", status=stop)
    with pytest.raises(GamlensError, match="not finished: 1 of 3 parts"):
        read_rows(tmp_path / "run")
    assert 0 < run(data, tmp_path / "run")["measured"] < 12
    assert values(read_rows(tmp_path / "run")[1]) == values(read_rows(finished)[1])
    assert run(data, tmp_path / "run")["measured"] == 0


def test_a_folder_with_another_run_is_refused_and_a_cut_part_is_measured_again(data: Dataset, tmp_path: Path) -> None:
    plan = replace(PLAN, tests=("objects",), methods=("gam",))
    run(data, tmp_path, plan, chunk=2)
    with pytest.raises(GamlensError, match="holds another run"):
        run(data, tmp_path, replace(plan, seed=1), chunk=2)
    part = next((tmp_path / "parts").glob("*1.jsonl"))
    whole = json.loads(part.read_text().splitlines()[0])
    part.write_bytes(part.read_bytes()[:100])
    with pytest.warns(GamlensWarning, match="measured again"):
        assert run(data, tmp_path, plan, chunk=2)["measured"] == 2
    assert values([json.loads(part.read_text().splitlines()[0])]) == values([whole])


def test_a_photo_that_cannot_be_read_is_an_error_of_its_cases_alone(tmp_path: Path) -> None:
    data = load("table", hue_data(tmp_path))
    broken = tmp_path / "3-1.png"
    broken.write_bytes(broken.read_bytes()[:60])
    plan = replace(PLAN, tests=("curves", "patch"), methods=("gam",), limit=14)
    cases = pair_cases(data, plan)
    # The sizes of images are read when the data are loaded; a file may break later.
    wanted = {case.name for case in cases if any("3-1.png" in name for name in case.images)}
    assert 0 < len(wanted) < len(cases)
    done = run(data, tmp_path / "run", plan)
    found = pair_results(*read_rows(tmp_path / "run"))
    assert done["errors"] == len(wanted)
    assert {row["case"] for row in found.errors} == wanted
    assert all("3-1.png" in row["error"] for row in found.errors)
    assert sum(found.cases.values()) == len(cases) - len(wanted)


def test_an_error_that_concerns_all_cases_is_raised(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **known: Any) -> None:
        raise GamlensError("the network cannot run")

    monkeypatch.setattr(PairExplainers, "explain", fail)
    with pytest.raises(GamlensError, match="the network cannot run"):
        run(data, tmp_path / "run")


# Numbers


def test_numbers_are_means_of_rows(finished: Path, results: PairResults) -> None:
    rows = read_rows(finished)[1]
    scenes = [row for row in rows if row["kind"] == "scenes"]
    for group in results.of("objects"):
        if group.measure.name != "object_share":
            continue
        counts = {"k ≥ 2": (2, 3, 4)}.get(group.group) or (int(group.group[-1]),)
        own = [row for row in scenes if row["objects"] in counts]
        mean = sum(row["values"]["gam@1"]["object_share"] for row in own) / len(own)
        assert group.numbers["gam@1"].interval.mean == pytest.approx(100 * mean)
        assert group.chance == pytest.approx(100 * sum(1 / row["objects"] for row in own) / len(own))
    assert results.cases == {"photos": 4, "scenes": 4, "patches": 4}
    assert results.tests() == list(PLAN.tests)
    (boxes,) = results.of("boxes")
    assert boxes.numbers["gam@1"].interval.n == 2  # every second pair is held out


def test_the_map_of_interactions_is_that_of_vdsn_where_embeddings_are_averages(results: PairResults) -> None:
    """Both are <h_p, f(y)> at every position; links between objects are not products of these maps."""
    for group in results.groups:
        if group.measure.name != "link_hit":
            mine, other = (group.numbers[key].interval.mean for key in ("interactions", "vdsn"))
            assert mine == pytest.approx(other, abs=1e-4)


def test_controls_are_at_chance_and_ignore_the_partner(results: PairResults) -> None:
    for group in results.groups:
        if group.chance is not None:
            assert group.numbers["ones"].interval.mean == pytest.approx(group.chance)
        if group.measure.name == "partner_change":
            assert [group.numbers[key].interval.mean for key in ("ones", "centre", "random")] == [0, 0, 0]
            assert group.numbers["gam@1"].interval.mean >= 0


def test_files_say_the_same(results: PairResults) -> None:
    lines = list(csv.DictReader(pair_texts.pairs_csv(results).splitlines()))
    kept = json.loads(pair_texts.pairs_json(results))["numbers"]
    assert len(lines) == len(kept) == len(results.groups) * len(results.rows)
    for line, record in zip(lines, kept, strict=True):
        assert (line["test"], line["measure"], line["title"]) == (record["test"], record["measure"], record["title"])
        if record["mean"] is not None:
            assert math.isclose(float(line["mean"]), record["mean"], rel_tol=1e-4, abs_tol=1e-6)
    text = pair_texts.pairs_markdown(results)
    for words in ("| by chance |", "| the network itself |", "Link hit, % ↑", "Deletion ↓", "| Change |", "## Time"):
        assert words in text
    assert "Change ↑" not in text  # more is not better


# Page and command


def test_the_page_shows_every_test_with_pictures(
    data: Dataset, finished: Path, results: PairResults, tmp_path: Path
) -> None:
    rows, cases, own = read_rows(finished)[1], pair_cases(data, PLAN), lens()
    chosen = chosen_cases(cases, rows, 2)
    assert [case.objects for case in chosen if case.kind == "scenes"] == [4, 3]
    own.transform = own.transform.using("squash")  # type: ignore[union-attr]
    samples = {sample.name: sample for sample in data}
    pictures = case_pictures(PairExplainers(own, PLAN), samples, chosen, rows, data.classes)
    assert set(pictures.blocks) == {"curves", "objects", "patch", "partner"}
    write_pairs(tmp_path, results, pictures)
    page = (tmp_path / "index.html").read_text()
    for words in ("Shared object among several", "Copied patch", "highest links", "plain forwards", "cases.json"):
        assert words in page
    assert {file.name for file in tmp_path.iterdir()} == {"index.html", "pairs.md", "pairs.csv", "pairs.json"}


def test_a_case_that_cannot_be_drawn_any_more_is_left_out(data: Dataset, finished: Path) -> None:
    rows, cases = read_rows(finished)[1], pair_cases(data, PLAN)
    gone = {sample.name: replace(sample, image=Path("gone.png")) for sample in data}
    own = lens()
    assert not case_pictures(PairExplainers(own, PLAN), gone, chosen_cases(cases, rows), rows, data.classes).blocks


def test_the_command(tmp_path: Path) -> None:
    def invoke(*words: Any) -> Any:
        return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "100"})

    table = hue_data(tmp_path)
    model = tmp_path / "hues.py"
    model.write_text(
        "from pair_data import Hues\nfrom gamlens import Lens, Transform\n\n"
        "def build():\n    return Lens(Hues(), blocks=['features'], transform=Transform((64, 64)))\n"
    )
    common = ["evaluate", "pairs", "--data", "table", "--root", table, "--model", f"{model}:build", "--methods", "gam",
              "--n", "1"]  # fmt: skip
    given = [*common, "--limit", "2", "--objects", "2", "--out", tmp_path / "run"]
    found = invoke(*given, "--tests", "objects,partner")
    assert found.exit_code == 0, found.output
    assert "Shared object among several" in found.output
    assert (tmp_path / "run" / "index.html").exists()
    assert "already finished" in invoke(*given, "--tests", "objects,partner").output
    for wrong, words in (("--refine=2", "gam+refine among --methods"), ("--hold-out=some", "takes a number")):
        refused = invoke(*given, wrong)
        assert refused.exit_code != 0
        assert words in " ".join(refused.output.split())
    cases = ["--cases", tmp_path / "run" / "cases.json"]
    again = invoke(*common, "--tests", "objects,partner", *cases, "--out", tmp_path / "again")
    assert again.exit_code == 0, again.output
    rows = [read_rows(tmp_path / name)[1] for name in ("run", "again")]
    assert values(rows[0]) == values(rows[1])
    refused = invoke(*common, *cases, "--seed", "3", "--out", tmp_path / "no")
    assert "--seed says how cases are drawn" in " ".join(refused.output.split())
