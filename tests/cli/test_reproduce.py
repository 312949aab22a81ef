"""`gamlens reproduce`: its files, resuming after a kill, the dry run, missing and wrong input."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import paper_data
import pytest
from typer.testing import CliRunner, Result

from gamlens import metrics
from gamlens.cli import app

QUICK = ["--methods", "gam,grad_cam_pp_literal", "--chunk", "8", "--batch", "8"]
FILES = ("table1.md", "table1.csv", "table1_appendix.csv", "table1.tex", "table1_page.tex")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and the file of a model."""
    folder = tmp_path_factory.mktemp("room")
    paper_data.ilsvrc(folder / "ILSVRC")
    paper_data.user_file(folder)
    return folder


def words(room: Path, out: str, *options: str, table: int = 1) -> list[str]:
    data = ["--ilsvrc", str(room / "ILSVRC"), "--model", f"resnet={room / 'mine.py'}:lens"]
    return ["reproduce", "--table", str(table), *data, "--out", str(room / out), *QUICK, *options]


def run(arguments: list[str]) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def done(arguments: list[str]) -> Result:
    made = run(arguments)
    assert made.exit_code == 0, made.output + made.stderr
    return made


@pytest.fixture(scope="module")
def whole(room: Path) -> dict[str, str]:
    """The files of a run that nothing interrupted."""
    made = done(words(room, "whole", "--limit", "12"))
    assert "Similarity (dot)" in made.stdout
    assert sorted(path.name for path in (room / "whole" / "runs").iterdir()) == [
        f"ilsvrc-resnet-{task}-objective" for task in ("classification", "cosine", "dot")
    ]
    return {name: (room / "whole" / name).read_text() for name in FILES}


def test_a_killed_command_continues_to_the_same_table(room: Path, whole: dict[str, str]) -> None:
    environment = {**os.environ, "KILL_AFTER": "4", "OMP_NUM_THREADS": "1"}
    here = Path(paper_data.__file__).parent
    environment["PYTHONPATH"] = os.pathsep.join([str(here), str(here.parent), *sys.path])
    command = [sys.executable, "-m", "gamlens", *words(room, "killed", "--limit", "12")]
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert killed.returncode == -9, killed.stderr
    folder = room / "killed" / "runs" / "ilsvrc-resnet-classification-objective"
    finished = {part: part.stat().st_mtime_ns for part in (folder / "parts").iterdir()}
    assert finished
    assert not (folder / "done.json").exists()
    assert not (room / "killed" / "table1.md").exists()
    again = done(words(room, "killed", "--limit", "12"))
    assert "continuing after 16 of 18 items" in again.stderr
    assert {part: part.stat().st_mtime_ns for part in finished} == finished
    assert {name: (room / "killed" / name).read_text() for name in FILES} == whole


def test_nothing_is_measured_twice_and_other_settings_are_refused(room: Path, whole: dict[str, str]) -> None:
    again = done(words(room, "whole", "--limit", "12"))
    assert again.stderr.count("which were measured before") == 3
    assert {name: (room / "whole" / name).read_text() for name in FILES} == whole
    other = run(words(room, "whole", "--limit", "13"))
    assert other.exit_code == 1
    assert "holds another run" in other.stderr
    probability = done(words(room, "whole", "--limit", "12", "--confidence", "probability"))
    assert probability.stderr.count("which were measured before") == 3
    assert (room / "whole" / "table1.csv").read_text() != whole["table1.csv"]


def test_table_2_with_one_network(room: Path) -> None:
    made = done(words(room, "two", "--limit", "6", "--model", "densenet=none", "--pairs-per-class", "2", table=2))
    text = (room / "two" / "table2.md").read_text()
    assert "Small <sub>(ResNet101)</sub>" in text
    assert "Not measured: VRC, DenseNet201. It was left out on request." in text
    assert "pairs_per_class=2" in text
    for data in ("chestxray", "coco", "voc"):
        assert f"with --{data} FOLDER" in made.stderr
    about = json.loads((room / "two/runs/ilsvrc-resnet-cosine-localization/run.json").read_text())
    assert about["subsets"] == {"all": 6, "25": 6, "10": 2}


def test_a_dry_run_measures_nothing(room: Path) -> None:
    made = done(words(room, "dry", "--dry-run"))
    assert "ilsvrc-resnet-classification-objective" in made.stdout
    assert "32 (32/10/4)" in made.stdout
    forwards = 32 * (1 + 2 * 2 + len(metrics.CONTROLS) - 1)
    assert f" {forwards} " in made.stdout
    assert "About 0:0" in made.stdout
    assert not (room / "dry").exists()


def test_a_dry_run_counts_what_is_left(room: Path, whole: dict[str, str]) -> None:
    made = done(words(room, "whole", "--limit", "12", "--dry-run"))
    lines = [line.split() for line in made.stdout.splitlines() if "ilsvrc-resnet" in line]
    assert [line[-3:] for line in lines] == [["0", "0", "0:00:00"]] * 3


def test_a_dry_run_says_what_would_be_refused(room: Path, whole: dict[str, str]) -> None:
    made = done(words(room, "whole", "--limit", "12", "--fill", "mean", "--dry-run"))
    said = " ".join(made.stdout.split())
    assert said.count("refused: another run is in") == 3
    assert "protocol.fill: 'black' there, 'mean' now). Start over with --fresh, or give another --out." in said
    lines = [line.split() for line in made.stdout.splitlines() if line.startswith("ilsvrc-resnet")]
    assert [int(line[-3]) for line in lines] == [int(line[1]) for line in lines]  # all are left
    afresh = done(words(room, "whole", "--limit", "12", "--fill", "mean", "--dry-run", "--fresh"))
    assert "refused" not in afresh.stdout
    assert (room / "whole" / "table1.md").exists()


def test_a_limit_is_said(whole: dict[str, str]) -> None:
    for name in ("table1.md", "table1.tex", "table1_page.tex"):
        assert "At most 12 items per line" in whole[name], name


def test_choices_that_the_note_names_are_options(room: Path) -> None:
    options = ["--input", "crop", "--box", "largest", "--temperature", "2", "--confidence", "probability"]
    done(words(room, "chosen", "--limit", "2", *options))
    text = (room / "chosen" / "table1.md").read_text()
    for part in ("input=crop", "box=largest", "temperature=2.0", "confidence=probability"):
        assert part in text
    found = {}
    for task in ("classification", "cosine"):
        about = json.loads((room / f"chosen/runs/ilsvrc-resnet-{task}-objective/run.json").read_text())
        found[task] = [about["protocol"][name] for name in ("input", "box", "temperature")]
    assert found == {"classification": ["crop", "largest", 2.0], "cosine": ["crop", "largest", 1.0]}


def test_networks_of_the_other_table_are_not_used_and_said(room: Path) -> None:
    other = ["--model", "coco=nonsense", "--weights", "voc=none.pth"]
    said = done(words(room, "none", "--limit", "2", "--dry-run", *other)).stderr
    assert "Table 1 has no line for --model coco=nonsense, which is not used." in said
    assert "Table 1 has no line for --weights voc=none.pth, which is not used." in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--table", "3"], "The paper has the tables 1 and 2 to reproduce, not 3"),
        (["--table", "1"], "Give the folder of ILSVRC-2012 with --ilsvrc FOLDER"),
        (["--table", "1", "--ilsvrc", "nowhere"], "nowhere"),
        (["--table", "1", "--model", "resnet=none"], "It was left out on request"),
        (
            ["--table", "1", "--model", "resnet=none", "--weights", "resnet=a.pth"],
            "which --model resnet=none leaves out",
        ),
        (["--table", "1", "--model", "rasnet=resnet50"], "did you mean 'resnet'"),
        (["--table", "2", "--weights", "a.pth"], "there are densenet, resnet, chexnet, coco, voc"),
        (["--table", "2", "--weights", "voc=a.pth"], "give the folder of PASCAL VOC with --voc FOLDER"),
        (["--table", "1", "--methods", "gm"], "did you mean 'gam'"),
        (["--table", "2", "--temperature", "2"], "temperature=2.0 changes the probability of a class alone"),
        (["--table", "1", "--confidence", "odds"], "The confidence is logit or probability, not 'odds'"),
    ],
)
def test_wrong_input_is_one_clear_error(options: list[str], message: str, tmp_path: Path) -> None:
    made = run(["reproduce", *options, "--out", str(tmp_path / "out")])
    assert made.exit_code == 1, made.output
    assert message in made.stderr
    assert made.stderr.count("error") == 1
    assert not (tmp_path / "out").exists()


def test_a_broken_image_is_left_out_and_said(room: Path) -> None:
    paper_data.ilsvrc(room / "broken" / "ILSVRC", broken=True)
    arguments = words(room, "broken/out", "--limit", "4", "--ilsvrc", str(room / "broken" / "ILSVRC"))
    made = run(arguments)
    assert made.exit_code == 1
    assert "could not be measured; `gamlens report`" in made.stderr
    with open(room / "broken/out/table1_appendix.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["section"], row["subset"]) == ("Classification", "all")]
    errors = {row["errors"] for row in rows}
    assert errors == {"1"}
    assert "Items that could not be measured and are left out:" in (room / "broken/out/table1.md").read_text()


def test_the_help_has_an_example() -> None:
    text = " ".join(run(["reproduce", "--help"]).stdout.split())
    assert "gamlens reproduce --table 1 --ilsvrc ILSVRC" in text
    for option in ("--ilsvrc", "--coco", "--voc", "--chestxray", "--dry-run", "--limit", "--engine", "--device"):
        assert option in text
