"""A run that lost a part, or whose files hold nonsense: measured again, or refused in one sentence."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import toy
from typer.testing import CliRunner

from gamlens import GamlensError, GamlensWarning
from gamlens.cli import app
from gamlens.data import load
from gamlens.evaluation import results
from gamlens.evaluation.protocol import units
from gamlens.evaluation.run_checks import RUN_SHAPE

IMAGES = 12  # three parts of four


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    toy.data(folder, IMAGES)
    return folder


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole") / "run"
    toy.run(root, place)
    return place


@pytest.fixture(params=["this version", "early version"])
def run(request: pytest.FixtureRequest, whole: Path, tmp_path: Path) -> Path:
    """A copy of the run; early versions wrote no manifest."""
    place = Path(shutil.copytree(whole, tmp_path / "run"))
    if request.param == "early version":
        (place / "manifest.json").unlink()
    return place


def part(place: Path, number: int) -> Path:
    return place / "parts" / f"{number:08d}.parquet"


def contents(place: Path) -> dict[str, bytes]:
    return {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*.*") if file.name != ".lock"}


def refused(*command: str) -> str:
    """What a command says that ends with one error."""
    told = CliRunner().invoke(app, list(command))
    assert told.exit_code == 1, told.output
    assert isinstance(told.exception, SystemExit), told.exception
    return " ".join(told.stderr.split())


def gone(place: Path) -> None:
    part(place, 1).unlink()


def empty(place: Path) -> None:
    part(place, 1).write_bytes(b"")


def truncated(place: Path) -> None:
    part(place, 1).write_bytes(part(place, 1).read_bytes()[:-100])


def replaced(place: Path) -> None:
    shutil.copy(part(place, 0), part(place, 1))


def shortened(place: Path) -> None:
    """A readable part without its last row."""
    table = parquet.read_table(part(place, 1))
    parquet.write_table(table.slice(0, len(table) - 1), part(place, 1))


def halved(place: Path) -> None:
    """A readable part of the first two of its four items."""
    table = parquet.read_table(part(place, 1))
    names = table.column("item").to_pylist()
    keep = sorted(set(names))[:2]
    parquet.write_table(table.filter([name in keep for name in names]), part(place, 1))


@pytest.mark.parametrize("damage", [gone, empty, truncated, replaced, shortened, halved])
def test_a_damaged_part_is_refused_and_measured_again(
    damage, run: Path, whole: Path, root: Path, tmp_path: Path
) -> None:
    damage(run)
    for command in (["table", str(run)], ["report", str(run), "-o", str(tmp_path / "page.html")]):
        told = refused(*command)
        assert "Part 1 of the run in" in told
        assert "parts/00000001.parquet" in told
        assert "Give the command that made the run again" in told
    assert not (tmp_path / "page.html").exists()
    with pytest.warns(GamlensWarning, match=r"1 of 3 parts .* are measured again: part 1 \(parts/00000001.parquet\): "):
        done = toy.run(root, run)
    assert (done["measured"], done["items"], done["errors"]) == (4, IMAGES, 0)
    ours, others = contents(run), contents(whole)
    assert ours.pop("done.json") != others.pop("done.json")  # it says that it was resumed
    assert ours == others
    assert results.read(run).groups.keys() == results.read(whole).groups.keys()


def test_an_undisturbed_run_is_left_as_it_is(run: Path, whole: Path, root: Path) -> None:
    """Beside that a finished run of an early version gets its manifest."""
    (run / "parts" / "notes.txt").write_text("mine")
    shutil.copy(part(run, 0), run / "parts" / "00000001 (copy).parquet")
    shutil.copy(part(run, 0), run / "parts" / "00000003.parquet")  # a run of three parts has none of this number
    assert toy.run(root, run)["measured"] == 0
    assert contents(whole).items() <= contents(run).items()
    assert len(results.read(run).rows) == len(results.read(whole).rows)


def test_two_parts_that_changed_places(whole: Path, root: Path, tmp_path: Path) -> None:
    """Also in a run that was not finished, without any record: a part must hold its own items."""
    place = Path(shutil.copytree(whole, tmp_path / "run"))
    for name in ("manifest.json", "done.json", "parts/00000002.parquet"):
        (place / name).unlink()
    part(place, 0).rename(tmp_path / "first")
    part(place, 1).rename(part(place, 0))
    (tmp_path / "first").rename(part(place, 1))
    with pytest.warns(GamlensWarning, match=r"part 0 .*it holds other items.*part 1 "):
        assert toy.run(root, place)["measured"] == IMAGES
    assert {file.name: file.read_bytes() for file in place.glob("parts/*")} == {
        file.name: file.read_bytes() for file in whole.glob("parts/*")
    }


def lacking(place: Path, number: int) -> None:
    """A part as a version wrote it that did not know a metric."""
    parquet.write_table(parquet.read_table(part(place, number)).drop_columns(["pointing"]), part(place, number))


def test_parts_of_a_version_with_other_columns(whole: Path, root: Path, tmp_path: Path) -> None:
    """Continuing such a run is refused, and so is a table of it; nothing is deleted."""
    place = Path(shutil.copytree(whole, tmp_path / "run"))
    (place / "manifest.json").unlink()
    lacking(place, 0)
    before = contents(place)
    with pytest.raises(GamlensError, match=r"lacks pointing|also has pointing"):
        results.read(place)
    with pytest.raises(GamlensError, match=r"has other columns"):
        toy.run(root, place)
    (place / "done.json").unlink()
    with pytest.raises(GamlensError, match=r"Part 0 has other columns .*it lacks pointing \(.*--fresh"):
        toy.run(root, place)
    before.pop("done.json")
    assert contents(place) == before
    for number in (1, 2):
        lacking(place, number)
    (place / "done.json").write_bytes((whole / "done.json").read_bytes())
    assert toy.run(root, place)["measured"] == 0  # finished, and all parts agree: nothing is wrong with it
    assert "pointing" not in results.read(place).groups["gam", 1]
    gone(place)
    with pytest.raises(GamlensError, match="other columns"):  # a new part would not fit to the others
        toy.run(root, place)
    assert part(place, 0).exists()


def wrong_values(about: dict) -> list[dict]:
    """Descriptions in which one value has the wrong type."""
    found = [{**about, name: [1]} for name in RUN_SHAPE]
    found += [{name: value for name, value in about.items() if name != left_out} for left_out in RUN_SHAPE]
    found += [{**about, "protocol": {**about["protocol"], name: {"a": 1}}} for name in about["protocol"]]
    found += [{**about, "protocol": {**about["protocol"], name: [None]}} for name in ("methods", "n", "views")]
    found += [{**about, "manifests": value} for value in (7, ["a"], {"items": 7})]
    found += [{**about, "versions": "1"}, {**about, "protocol": {**about["protocol"], "kind": "other"}}]
    return found


def test_a_description_of_wrong_types(whole: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(whole, tmp_path / "run"))
    for about in wrong_values(json.loads((whole / "run.json").read_text())):
        (place / "run.json").write_text(json.dumps(about))
        with pytest.raises(GamlensError, match=r"'run.json' in .* does not describe a run: '.*Restore the file"):
            results.read(place)


def test_a_description_that_was_edited(whole: Path, root: Path, tmp_path: Path) -> None:
    """The numbers would be shown under the name of another model."""
    place = Path(shutil.copytree(whole, tmp_path / "run"))
    about = json.loads((whole / "run.json").read_text())
    (place / "run.json").write_text(json.dumps({**about, "model": "another"}))
    for command in (("table", str(place)), ("report", str(place), "--out", str(tmp_path / "page.html"))):
        assert "was measured with other settings than run.json says" in refused(*command)
    with pytest.raises(GamlensError, match="holds another run: model"):
        toy.run(root, place)


def test_names_in_a_description_never_reach_the_terminal(whole: Path, tmp_path: Path) -> None:
    """Control characters, text that rich would take for markup, and half a surrogate pair."""
    place = Path(shutil.copytree(whole, tmp_path / "run"))
    (place / "manifest.json").unlink()
    about = json.loads((whole / "run.json").read_text())
    (place / "run.json").write_text(json.dumps({**about, "model": "red\x1b[31m [/b] \ud800"}))
    told = CliRunner().invoke(app, ["table", str(place), "--out", str(tmp_path / "tables")], env={"COLUMNS": "200"})
    assert told.exit_code == 0, told.output
    assert "red\\x1b[31m [/b] \\ud800 on" in told.output
    assert "\x1b" not in told.output
    assert "\\ud800" in (tmp_path / "tables" / "table.md").read_text()


@pytest.mark.parametrize("name", ["run.json", "done.json", "manifest.json"])
def test_files_that_hold_something_else(name: str, whole: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(whole, tmp_path / "run"))
    for text in ("[1, 2]", "", '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"):
        (place / name).write_text(text)
        assert f"'{name}' in" in refused("table", str(place))


def test_a_summary_of_wrong_types_is_made_again(whole: Path, root: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(whole, tmp_path / "run"))
    for text in ("[]", '{"items": "many"}', "{}"):
        (place / "done.json").write_text(text)
        assert toy.run(root, place)["measured"] == 0
        assert json.loads((place / "done.json").read_text()) == {"items": IMAGES, "errors": 0, "resumed_at": IMAGES}


def test_the_names_in_records_are_those_of_the_rows(whole: Path, root: Path) -> None:
    items = [unit.name for unit in units(load("table", root / "items.csv"), toy.PROTOCOL)]
    records = json.loads((whole / "manifest.json").read_text())["parts"]
    assert [(record["first"], record["last"]) for record in records] == [
        (items[0], items[3]), (items[4], items[7]), (items[8], items[11])
    ]  # fmt: skip
    assert [record["size"] for record in records] == [part(whole, number).stat().st_size for number in range(3)]


def test_a_disk_that_cannot_be_written_to(whole: Path, root: Path, tmp_path: Path) -> None:
    """Every --out is one error; tables of a run on such a disk are printed."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        run = Path(shutil.copytree(whole, place / "run"))
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        assert CliRunner().invoke(app, ["table", str(run)]).exit_code == 0
        data = ["--data", "table", "--root", str(root / "items.csv")]
        for out in (place, place / "new"):
            assert "Read-only file system" in refused("table", str(run), "--out", str(out))
            assert "Read-only file system" in refused("subset", "hold-out", *data, "--out", str(out / "items.json"))
        assert "Cannot write the page" in refused("report", str(run), "--out", str(place / "page.html"))
        for out in (run, place / "new", (place / "new").as_uri()):
            with pytest.raises(GamlensError, match="Read-only file system"):
                toy.run(root, out)
    finally:
        subprocess.run(["umount", str(place)], check=True)
