"""Runs by hand and by command: what may be resumed, what a table holds of several, manifests, folders by address."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import nets
import numpy as np
import pytest
import torch
import toy
import typer
from PIL import Image
from rich.console import Console
from run_files import titles
from typer.testing import CliRunner

from gamlens import GamlensError, Lens, Transform
from gamlens.cli import app, common, show
from gamlens.data import Manifest, align, align_manifest, load, pairs, plausible, small
from gamlens.engine import RunFolder, run_local
from gamlens.engine.part_files import RECORDS
from gamlens.evaluation import results, tables
from gamlens.evaluation.protocol import UNSAID, Protocol, units, variant
from gamlens.evaluation.runs import Engine, evaluate_run, make_measurer
from gamlens.evaluation.table_files import latex
from gamlens.lattice import Lattice
from gamlens.report import classified_files as files

IMAGES = 8
USER = """
import nets
from gamlens import Lens, Transform
def lens():
    return Lens(nets.small().float(), transform=Transform((64, 64)))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight photos of two classes with a box each; the first cannot be read."""
    folder = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(0)
    with open(folder / "items.csv", "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["path", "label", "x0", "y0", "x1", "y1"])
        for number in range(IMAGES):
            path = folder / f"{number}.png"
            Image.fromarray(draw.integers(0, 255, (80, 100, 3), dtype=np.uint8)).save(path)
            out.writerow([path.name, ("ant", "bee")[number % 2], 10, 8, 40 + 5 * number, 60])
    (folder / "0.png").write_bytes(b"no image")
    return folder


def lens(seed: int = 0) -> Lens:
    net = nets.small().float()
    with torch.no_grad():
        next(net.parameters()).mul_(1 - 2 * seed)
    return Lens(net, transform=Transform((64, 64)))


def run(root: Path, place: Path, protocol: Protocol, *, seed: int = 0, **options) -> results.Run:
    dataset = load("table", root / "items.csv")
    made = partial(lens, seed)
    evaluate_run(made, dataset, units(dataset, protocol)[:IMAGES], protocol, place, batch=2, chunk=2, **options)
    return results.read(place)


def command(root: Path, tmp_path: Path, *options: str):
    (tmp_path / "mine.py").write_text(USER)
    data = ["--data", "table", "--root", str(root / "items.csv"), "--methods", "gam", "-n", "1"]
    return CliRunner().invoke(app, ["evaluate", "localization", *data, "-m", f"{tmp_path / 'mine.py'}:lens", *options])


ONE = Protocol(methods=("gam",), n=(1,))


def test_runs_that_differ_stand_in_lines_of_their_own(root: Path, tmp_path: Path) -> None:
    """Two protocols, and two models of one name: no number takes the place of another."""
    largest = Protocol(methods=("gam",), n=(1,), box="largest", views=("flip",))
    runs = [run(root, tmp_path / "a", ONE), run(root, tmp_path / "b", largest), run(root, tmp_path / "c", ONE, seed=1)]
    _, lines = tables.rows_of([cell for one in runs for cell in tables.cells(one)])
    iou = [line for line in lines if line[3] == "IoU"]
    assert [line[1] for line in iou] == ["table", "table", "table, box=largest, views=flip"]
    assert [line[6] for line in iou] == [tables.shown(tables.cells(runs[number])[0]) for number in (0, 2, 1)]
    _, lines = tables.tall([cell for one in runs for cell in tables.cells(one)])
    assert sum(line[:2] == ("IoU", "GAM") for line in lines) == 3


def test_runs_of_one_protocol_share_a_line(root: Path, tmp_path: Path) -> None:
    other = Protocol(methods=("grad_cam",), n=(1,))
    found = [cell for made in (run(root, tmp_path / "a", ONE), run(root, tmp_path / "b", other))
             for cell in tables.cells(made)]  # fmt: skip
    header, lines = tables.rows_of(found)
    assert [line[3] for line in lines] == list(titles("localization"))
    assert all(line[header.index("GAM n=1")] and line[header.index("Grad-CAM n=1")] for line in lines)
    assert {line[header.index("errors")] for line in lines} == {"1"}


def test_a_table_reads_only_its_columns(root: Path, tmp_path: Path) -> None:
    """The same numbers and the same errors from a part of the columns."""
    for kind, task in (("localization", "classification"), ("objective", "classification"), ("objective", "dot")):
        protocol = Protocol(kind, task, methods=("gam", "grad_cam"), n=(1,), hold_out=3)
        whole = run(root, tmp_path / kind / task, protocol)
        part = results.read(tmp_path / kind / task, only=tables.needed())
        for make in (tables.cells, tables.contests):
            assert repr(make(part)) == repr(make(whole))
            assert make(part)
        assert [(row["item"], row["error"]) for row in part.errors] == [
            (row["item"], row["error"]) for row in whole.errors
        ]
        for key, columns in part.groups.items():
            assert set(columns) == set(whole.groups[key]) & set(tables.needed())


def test_parts_without_a_value_are_joined_to_those_with() -> None:
    """A column that no row has is no column; a part without it is NaN, and names stay names."""
    some = {"item": ["a", "b"], "method": ["gam"] * 2, "n": [1, 1], "error": ["", ""], "area": [0.5, None],
            "label": [3, 4], "iou": [[0.1, 0.2], [0.3, 0.4]], "truth": [[1.0], [1.0, 2.0]], "insertion": [None] * 2,
            "side": [None, None]}  # fmt: skip
    none = {**some, "item": ["c", "d"], "area": [None, None], "side": ["x", "y"]}
    columns = results._gather({}, [some, none]).groups["gam", 1]
    assert "insertion" not in columns
    assert columns["item"] == ["a", "b", "c", "d"]
    assert columns["side"] == [None, None, "x", "y"]
    np.testing.assert_array_equal(columns["area"], [0.5, np.nan, np.nan, np.nan])
    assert columns["iou"].shape == (4, 2)
    assert columns["iou"].dtype == np.float32
    assert columns["label"].tolist() == [3, 4, 3, 4]
    assert [len(boxes) for boxes in columns["truth"]] == [1, 2, 1, 2]


def test_the_papers_number_is_of_the_same_truth() -> None:
    """The paper's IoU on VOC is of masks: boxes of VOC are another thing and say so."""
    about = {"data": "voc", "protocol": Protocol("localization").record()}
    assert variant(about) == "kind=localization"
    assert variant({"data": "voc", "protocol": Protocol("segmentation").record()}) == ""
    assert variant({"data": "ilsvrc", "protocol": Protocol().record(), "manifests": {"items": "0123456789"}}) == (
        "items=01234567"
    )


def test_another_models_weights_are_another_run(root: Path, tmp_path: Path) -> None:
    run(root, tmp_path, ONE)
    with pytest.raises(GamlensError, match="holds another run: weights_sha256"):
        run(root, tmp_path, ONE, seed=1)


def test_a_failed_first_try_does_not_hold_the_folder(root: Path, tmp_path: Path) -> None:
    with pytest.raises(GamlensError, match="n=9"):
        run(root, tmp_path, Protocol(methods=("gam",), n=(9,)))
    assert (tmp_path / "run.json").exists()
    assert run(root, tmp_path, ONE).about["protocol"]["n"] == [1]


def test_a_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"mine": 1}')
    with (
        pytest.raises(GamlensError, match="holds another run"),
        RunFolder(tmp_path, {"n": 1, "chunks": 2}, suffix=".json"),
    ):
        pass
    assert json.loads((tmp_path / "run.json").read_text()) == {"mine": 1}


def test_resuming_counts_earlier_errors_and_is_not_stricter(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that fails whole is error rows after something was measured, also by an earlier try."""
    told: list[tuple[int, int]] = []

    def status(items: int, errors: int) -> None:
        told.append((items, errors))
        if items == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(root, tmp_path, ONE, status=status)
    assert told[-1] == (4, 1)

    def fails(self, *args, **options):
        raise GamlensError("this one fails")

    monkeypatch.setattr(Lens, "trace", fails)
    told.clear()
    made = run(root, tmp_path, ONE, status=lambda items, errors: told.append((items, errors)))
    assert told == [(4, 1), (6, 3), (8, 5)]
    assert len(made.errors) == 5
    with pytest.raises(GamlensError, match="this one fails"):
        make_measurer(lens, ONE).work(make_measurer(lens, ONE).load(units(load("table", root / "items.csv"), ONE)))


def stopped(root: Path, place: Path) -> dict[str, bytes]:
    """A run that was broken off after four of eight items: its parts."""

    def status(items: int, errors: int) -> None:
        if items == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(root, place, ONE, status=status)
    return {part.name: part.read_bytes() for part in (place / "parts").iterdir()}


def test_a_run_goes_on_after_its_data_moved(root: Path, tmp_path: Path) -> None:
    """What is measured stays; run.json says where the data lies now, for the report."""
    before = stopped(root, tmp_path / "run")
    moved = Path(shutil.copytree(root, tmp_path / "moved"))
    told: list[tuple[int, int]] = []
    made = run(moved, tmp_path / "run", ONE, status=lambda items, errors: told.append((items, errors)))
    assert told[0] == (4, 1)
    assert [items for items, _ in told] == [4, 6, 8]
    assert {name: (tmp_path / "run/parts" / name).read_bytes() for name in before} == before
    assert made.about["root"] == str(moved / "items.csv")
    whole = run(root, tmp_path / "whole", ONE)
    np.testing.assert_array_equal(made.groups["gam", 1]["iou"], whole.groups["gam", 1]["iou"])


def test_other_images_under_the_same_names_are_another_run(root: Path, tmp_path: Path) -> None:
    stopped(root, tmp_path / "run")
    other = Path(shutil.copytree(root, tmp_path / "other"))
    Image.new("RGB", (100, 80)).save(other / "5.png")
    with pytest.raises(GamlensError, match="holds another run: images_sha256"):
        run(other, tmp_path / "run", ONE)
    boxes = (other / "items.csv").read_text().replace("ant,10,8", "ant,11,8")
    (other / "items.csv").write_text(boxes)
    with pytest.raises(GamlensError, match="holds another run: fingerprint"):
        run(other, tmp_path / "run", ONE)


def test_a_run_of_an_earlier_version_goes_on_where_its_data_lay(root: Path, tmp_path: Path) -> None:
    """It does not know its images, so only the place can tell them."""
    stopped(root, tmp_path / "run")
    file = tmp_path / "run/run.json"
    about = json.loads(file.read_text())
    del about["images_sha256"]
    file.write_text(json.dumps(about))
    shutil.rmtree(tmp_path / "run" / RECORDS)  # such versions kept no records of their parts
    moved = Path(shutil.copytree(root, tmp_path / "moved"))
    with pytest.raises(GamlensError, match="holds another run: root"):
        run(moved, tmp_path / "run", ONE)
    assert len(run(root, tmp_path / "run", ONE).groups["gam", 1]["item"]) == IMAGES - 1


def test_a_folder_by_address(root: Path, tmp_path: Path) -> None:
    """file:// and its like reach the store as they were typed."""
    place = tmp_path / "there"
    made = command(root, tmp_path, "--out", place.as_uri())
    assert made.exit_code == 1, made.output
    assert (place / "done.json").exists()
    shown = CliRunner().invoke(app, ["table", place.as_uri()])
    assert shown.exit_code == 0, shown.output
    assert "1 errors" in shown.stdout
    page = CliRunner().invoke(app, ["report", place.as_uri(), "-o", str(tmp_path / "page.html"), "--cases", "0"])
    assert page.exit_code == 0, page.output


def test_a_finished_run_and_bad_limits_say_so(root: Path, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "run")]
    assert "already finished" not in command(root, tmp_path, *out).stderr
    assert "already finished" in command(root, tmp_path, *out).stderr
    for limit in ("0", "-3"):
        assert command(root, tmp_path, "--out", str(tmp_path / "x"), "--limit", limit).exit_code == 2
    assert not (tmp_path / "x").exists()
    missing = CliRunner().invoke(app, ["table", str(tmp_path / "run"), "--first", "layer_cam"])
    assert missing.exit_code == 1
    assert "No run measured the method 'layer_cam': give --first one of gam." in missing.stderr


def test_a_manifest_follows_the_classes(root: Path) -> None:
    """Made from the data's own class numbers, used with the model's."""
    whole = load("table", root / "items.csv")
    aligned = align(whole, ["bee", "wasp", "ant"])
    made = Manifest("mine", None, whole.fingerprint(), tuple(small(whole, 100).items))
    items = units(aligned, ONE, chosen=align_manifest(made, whole, aligned))
    assert len(items) == IMAGES - 1
    named = Manifest("mine", None, whole.fingerprint(), tuple(
        type(item)(item.names, whole.samples[0].labels[0]) for item in made.items))  # fmt: skip
    kept = align_manifest(named, whole, aligned)
    assert {item.label for item in kept.items} == {aligned.samples[0].labels[0]} != {whole.samples[0].labels[0]}
    with pytest.raises(GamlensError, match="was made from data"):
        align_manifest(Manifest(made.kind, None, "0" * 64, made.items), whole, aligned)


def test_pairs_are_no_items_of_classes(root: Path) -> None:
    dataset = load("table", root / "items.csv")
    with pytest.raises(GamlensError, match="holds pairs: task classification needs single images"):
        units(dataset, ONE, chosen=pairs(dataset))


def test_a_narrow_terminal_keeps_numbers_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """An interval breaks before its bracket or not at all."""
    monkeypatch.setattr(show, "out_console", Console(width=48))
    show.say_numbers("t", ("metric", "method", "n=1", "n=2"), [("IoU", "GAM", "62.75 [51.4, 73.6]", "5.00 [1.0, 9.0]")])
    printed = capsys.readouterr().out
    assert "[51.4, 73.6]" in printed
    assert "[1.0, 9.0]" in printed


def test_only_commands_that_resume_say_so(capsys: pytest.CaptureFixture) -> None:
    for resumes, said in ((True, "run the same command again to continue"), (False, "starts from the beginning")):
        with pytest.raises(typer.Exit), common.errors_as_lines(resumes=resumes):
            raise KeyboardInterrupt
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "given",
    [
        ["ablate", "--root", "x", "--batch", "0"],
        ["ablate", "--root", "x", "--limit", "-1"],
        ["sanity", "parameters", "x", "--batch", "0"],
        ["studio", "--port", "99999"],
    ],
)
def test_numbers_out_of_range_are_refused(given: list[str]) -> None:
    assert CliRunner().invoke(app, given).exit_code == 2


def test_digits_that_are_not_there_are_not_replaced(tmp_path: Path) -> None:
    """Named files that are missing are an error: other digits would be recorded under their name."""
    made = CliRunner().invoke(app, ["sanity", "data", "--root", str(tmp_path), "--out", str(tmp_path / "x")])
    assert made.exit_code == 1
    assert "no idx files of MNIST's train split" in made.stderr


def test_a_page_says_what_it_leaves_out() -> None:
    results_ = [files.FileResult(f"{number}.png", error="no image") for number in range(files.FILES_SHOWN + 1)]
    assert "The first 200 of 201 files are shown." in files.classified_page(results_, title="t", lead="l.").lead
    assert files.classified_page(results_[1:], title="t", lead="l.").lead == "l."


def test_a_hold_out_out_of_range_says_what_is_allowed(root: Path, tmp_path: Path) -> None:
    for given, message in (
        ("-1", "hold_out=-1: give 0 to hold out nothing"),
        ("tenth", "--hold-out 'tenth' is neither a whole number"),
    ):
        made = command(root, tmp_path, "--out", str(tmp_path / "x"), "--hold-out", given)
        assert made.exit_code == 1
        assert message in made.stderr
        assert not (tmp_path / "x").exists()


def test_one_step_is_no_curve() -> None:
    with pytest.raises(GamlensError, match="curves=1"):
        Protocol("objective", curves=1)


def test_latex_escapes_what_it_must() -> None:
    text = latex(["a", "b", "c", "d", "R&D"], [["my_model#2", "5 %", "$x", "y", "1"]])
    assert r"my\_model\#2 & 5 \% & \$x & y & 1 \\" in text
    assert r"R\&D" in text
    assert text.startswith("% needs \\usepackage{booktabs}\n")


def test_blocks_by_name_are_measured_and_recorded(tmp_path: Path) -> None:
    """`evaluate --blocks` reads those blocks, and run.json says so."""
    data = tmp_path / "data"
    data.mkdir()
    toy.data(data, 4)
    words = ["evaluate", "localization", "--data", "table", "--root", str(data / "items.csv"), "--methods", "gam"]
    model = ["--model", "resnet18", "--weights", "random", "--blocks", "layer2,layer3", "--batch", "2"]
    done = CliRunner().invoke(app, [*words, *model, "--task", "dot", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "run" / "run.json").read_text())["blocks"] == ["layer2", "layer3"]


@pytest.mark.parametrize("contents", ["bomb", "nothing"])
def test_a_part_that_claims_gigabytes_or_is_none_is_one_error(
    tmp_path: Path, contents: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plausible, "ALWAYS_PLAUSIBLE", 2**16)
    rows = [{"item": "a" * 50_000, "method": "gam", "n": 1, "error": ""}] * 99
    protocol = {"kind": "localization", "task": "classification", "subset": "all"}
    about = {"model": "x", "weights": "y", "data": "z", "items": 99, "protocol": protocol, "chunks": 1}
    with RunFolder(tmp_path, about, suffix=".parquet") as folder:
        folder.write(0, results.encode(rows) if contents == "bomb" else b"nothing", ["a"])
        folder.finish({})
        assert results.errors_in(folder) == 0  # what cannot be read is told by `read`
    message = "more than 100 times as many" if contents == "bomb" else "Cannot read the run"
    with pytest.raises(GamlensError, match=message):
        results.read(tmp_path)


def test_a_run_of_an_earlier_version_is_continued(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its fields, a run has the values that were fixed then, and no others where they make a difference."""
    early = Protocol(task="dot", methods=("gam",), n=(1,), lattice="keep", hold_out_by="maps")
    run(root, tmp_path / "a", early)
    file = tmp_path / "a" / "run.json"
    known = json.loads(file.read_text())
    assert {**known["protocol"], **UNSAID} == known["protocol"]
    for name in UNSAID:
        del known["protocol"][name]
    del known["device"]
    file.write_text(json.dumps(known))
    (tmp_path / "a" / "done.json").unlink()
    (tmp_path / "a" / "manifest.json").unlink()
    with pytest.raises(GamlensError, match=r"protocol\.pairs_per_class: 3 there, 4 now"):
        run(root, tmp_path / "a", replace(early, pairs_per_class=4))
    with monkeypatch.context() as patch:
        patch.setattr(Lens, "lattices", {"layer1": Lattice((0, 0), (2, 2))})
        with pytest.raises(GamlensError, match=r"protocol\.lattice: 'keep' there, 'read' now"):
            run(root, tmp_path / "a", replace(early, lattice="read"))
    again = run(root, tmp_path / "a", replace(early, lattice="read"))  # the network has no lattice
    assert "pairs_per_class" not in again.about["protocol"]
    assert tables.cells(again)


def test_the_device_is_recorded_and_a_run_stays_on_it(root: Path, tmp_path: Path) -> None:
    run(root, tmp_path / "a", ONE)
    file = tmp_path / "a" / "run.json"
    known = json.loads(file.read_text())
    assert known["device"] == "cpu"
    (tmp_path / "a" / "done.json").unlink()
    file.write_text(json.dumps({**known, "device": "cuda"}))
    with pytest.raises(GamlensError, match="device: 'cuda' there, 'cpu' now"):
        run(root, tmp_path / "a", ONE)


@pytest.mark.parametrize(("first", "then"), [("local", "ray"), ("ray", "local")])
def test_the_other_engine_continues_a_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, then: str
) -> None:
    """A stand-in for Ray works in this process. Parts that were there stay, and the rows are those of one engine."""
    monkeypatch.setattr("gamlens.evaluation.runs.run_ray", lambda *given, **_: run_local(*given))
    place, whole = tmp_path / "a", run(root, tmp_path / "whole", ONE)
    started = run(root, place, ONE, engine=Engine(first))
    assert started.about["device"] == {"local": "cpu", "ray": "that of each worker"}[first]
    described, parts = (place / "run.json").read_bytes(), sorted((place / "parts").iterdir())
    again = run(root, place, ONE, engine=Engine(then))  # the run is finished
    assert repr(again.rows) == repr(started.rows)
    (place / "done.json").unlink()
    parts[-1].unlink()
    kept = [part.stat().st_mtime_ns for part in parts[:-1]]
    again = run(root, place, ONE, engine=Engine(then))
    assert repr(again.rows) == repr(whole.rows)
    assert [part.stat().st_mtime_ns for part in parts[:-1]] == kept
    assert (place / "run.json").read_bytes() == described
    with pytest.raises(GamlensError, match=r"protocol\.fill: 'black' there, 'mean' now"):
        run(root, place, replace(ONE, fill="mean"), engine=Engine(then))
