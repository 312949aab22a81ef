"""What holds for every command: an example that works, JSON, and text that fits the terminal."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import paper_data
import pytest
import torch
from pair_data import hue_data
from PIL import Image
from rich.console import Console
from rich.table import Table
from typer.main import get_command
from typer.testing import CliRunner

from gamlens import __version__
from gamlens.cli import app, installation, show, terminal

MODEL = """
import torch
from nets import small
from gamlens import Lens, Transform
def build():
    torch.manual_seed(0)
    return Lens(small().float(), transform=Transform((64, 64)), labels=("ant", "bee"))
"""
runner = CliRunner()


def commands(group: Any = None, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the command line: its words, and the command itself."""
    for name, found in (group or get_command(app)).commands.items():
        if hasattr(found, "commands"):
            yield from commands(found, (*before, name))
        else:
            yield (*before, name), found


EVERY = dict(commands())


def parsed(words: list[str]) -> Any:
    """The parsed options of a command line, without running it. A mistake in it is an exception."""
    command = get_command(app)
    context = command.make_context("gamlens", list(words[:1]))
    while hasattr(command, "commands"):
        command, name, words = command.commands[words[0]], words[0], words[1:]
        if not hasattr(command, "commands"):
            return command.make_context(name, list(words), parent=context)
        context = command.make_context(name, list(words[:1]), parent=context)
    raise AssertionError("no command")


@pytest.mark.parametrize("name", EVERY, ids=" ".join)
def test_the_help_has_an_example_that_works(name: tuple[str, ...]) -> None:
    """It is complete, names this command or what belongs to it, and the real command takes all of its options."""
    kind, _, example = EVERY[name].epilog.partition(":")
    words = shlex.split(example)
    assert kind == "Example"
    assert words[0] == "gamlens"
    assert tuple(words[1 : 1 + len(name)]) == name
    found = parsed(words[1:])
    assert any(found.get_parameter_source(one).name == "COMMANDLINE" for one in found.params)


def test_the_examples_of_the_documentation_work() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
    found = re.findall(r"^\$ (gamlens [^|\n]+)|\| `(gamlens [^`]+)` \|", text, flags=re.MULTILINE)
    examples = [shlex.split(one or other)[1:] for one, other in found]
    for words in examples:
        if EVERY.keys() & {tuple(words[:1]), tuple(words[:2])}:
            parsed(words)
    assert {words[0] for words in examples} >= {name[0] for name in EVERY} - {"report", "reproduce", "export"}


def test_an_example_with_a_mistake_would_be_found() -> None:
    for words in ("classify photo.jpg --shrap", "classify", "search a.jpg --top none"):
        with pytest.raises(Exception, match=r"[Nn]o such option|[Mm]issing|valid"):
            parsed(shlex.split(words))


def test_the_documentation_shows_what_gamlens_says_first() -> None:
    """Line by line, but for the version and for the space between columns, in which versions of rich differ."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
    (shown,) = re.findall(r"^\$ gamlens\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    printed = runner.invoke(app, [], env={"COLUMNS": "100"}).stdout.replace(__version__, "VERSION")
    wanted = re.sub(r"gamlens \d\S+", "gamlens VERSION", shown)
    found, expected = ([line.split() for line in own.strip().splitlines()] for own in (printed, wanted))
    assert found == expected


@pytest.mark.parametrize("width", [40, 80, 99, 100])
@pytest.mark.parametrize("name", [(), ("index",), ("sanity",), *EVERY], ids=" ".join)
def test_the_help_has_whole_names(name: tuple[str, ...], width: int) -> None:
    """Every option by its whole name, whatever the width of the terminal, and no escape that is meant for rich."""
    found = get_command(app)
    for word in name:
        found = found.commands[word]
    text = runner.invoke(app, [*name, "--help"], env={"COLUMNS": str(width)}).stdout
    names = {one for param in found.params for one in (*param.opts, *param.secondary_opts) if one.startswith("-")}
    assert names - set(re.split(r"[\s,/]+", text)) == set()
    assert r"\[" not in text
    if width >= 80:  # in narrower ones click breaks long words a letter too late
        assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", [(), ("index",), ("sanity",)], ids=" ".join)
def test_the_help_of_a_group_is_like_that_of_a_command(name: tuple[str, ...], width: int) -> None:
    """It ends with an example that the real command takes, and every command in it has its whole first paragraph."""
    text = runner.invoke(app, [*name, "--help"], env={"COLUMNS": str(width)}).stdout
    said, _, example = text.rpartition("Example:")
    words = shlex.split(example)
    assert tuple(words[: 1 + len(name)]) == ("gamlens", *name)
    parsed(words[1:])
    assert not re.search("[│╭]|<bool>", text)
    group = get_command(app)
    for word in name:
        group = group.commands[word]
    plain = " ".join(said.split())
    assert all(" ".join(one.help.split("\n\n")[0].split()) in plain for one in group.commands.values())


@pytest.mark.parametrize("name", EVERY, ids=" ".join)
def test_there_is_json(name: tuple[str, ...]) -> None:
    (option,) = [one for one in EVERY[name].params if "--json" in one.opts]
    assert option.is_flag


def test_gamlens_alone_says_what_to_try_first() -> None:
    result = runner.invoke(app, [])
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) <= 15
    for words in ("demo", "classify photo.jpg", "compare a.jpg b.jpg", "search", "studio", "doctor", "--help"):
        assert f"gamlens {words}" in result.stdout


def strict(text: str) -> Any:
    """A JSON document as the standard has it: NaN and Infinity are errors, and so is anything before or after."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("compare none.jpg none.jpg --json", 1, "There is no file 'none.jpg'"),
        ("classify --json", 2, "Missing argument"),
        ("classify a.jpg --shrap --json", 2, "No such option"),
        ("no-such-command --json", 2, "No such command"),
        ("blocks resnet5 --json", 1, "did you mean 'resnet50'"),
        ("index info nowhere.gamlens --json", 1, "is no index"),
    ],
)
def test_errors_are_json(words: str, code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, shlex.split(words))
    assert result.exit_code == code
    assert message in strict(result.stdout)["error"]
    assert message in result.stderr


def test_a_bug_is_json_and_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "versions", lambda: 1 / 0)
    result = runner.invoke(app, ["doctor", "--json"])
    assert isinstance(result.exception, ZeroDivisionError)
    assert strict(result.stdout)["error"].startswith("ZeroDivisionError")


def test_what_other_packages_print_is_not_in_the_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "memory", lambda: print("loading ...") or float("nan"))
    result = runner.invoke(app, ["doctor", "--json"])
    assert strict(result.stdout)["memory_bytes"] is None
    assert "loading ..." in result.stderr


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({"a": float("inf"), Path("b"): (1, None)}, {"a": None, "b": [1, None]}),
        (torch.tensor([1.0, torch.nan]), [1.0, None]),
        (np.float32(0.5), 0.5),
        ("caf\udce9.jpg", "caf\\xe9.jpg"),
        (installation.SelfCheck("x", 0.5, ""), {"name": "x", "seconds": 0.5, "error": ""}),
    ],
)
def test_plain_values(value: Any, wanted: Any) -> None:
    assert strict(json.dumps(terminal.plain_values(value), allow_nan=False)) == wanted


def test_the_studio_says_its_address_and_then_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve() -> None:
        print("a request came")  # must not follow the document

    running = SimpleNamespace(url="http://127.0.0.1:7860", wait=serve)
    monkeypatch.setattr(show, "launch", lambda *_, **__: running)
    result = runner.invoke(app, ["studio", "--json"])
    assert strict(result.stdout) == {"url": "http://127.0.0.1:7860"}
    assert runner.invoke(app, ["studio"]).stdout.splitlines()[0].startswith("The studio is at http://127.0.0.1:7860")


@dataclass(frozen=True)
class Outcome:
    """A command that ran twice: what it printed as JSON, and what it would print as text."""

    code: int
    document: str
    errors: str
    parts: list[Any]
    whole: bool


@pytest.fixture(scope="module")
def outcomes(boxed: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Every command that needs no big model, with and without --json, on a few images with long names."""
    place = tmp_path_factory.mktemp("every")
    root, model, photos = boxed(6, lambda _: 60), place / "model.py", place / "photos"
    model.write_text(MODEL)
    photos.mkdir()
    for number, name in enumerate(("ant", "bee-in-the-garden-of-my-neighbour", "IMG_20240917_203412345_HDR", "a b")):
        pixels = np.random.default_rng(number).integers(0, 255, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{name}.png")
    x, y = (shlex.quote(str(photos / name)) for name in ("ant.png", "bee-in-the-garden-of-my-neighbour.png"))
    net, data = f"--model {model}:build", f"--data table --root {root / 'items.csv'}"
    out, run, index = f"--out {place}/out", place / "run", place / "shop.gamlens"
    fast = "--curves 2 --road 50 --infidelity 1 --sensitivity 1 --methods gam,grad_cam"
    lines = f"""
        classify {photos} {net} {out}/classify
        compare {x} {y} {net} --links {out}/compare
        group {photos} {net} {out}/group
        blocks {model}:build
        search {x} --in {photos} {net} {out}/search
        index add {photos} --to {index} {net}
        index update {index}
        index info {index} --check
        index duplicates {index} --threshold 0.1 {out}/duplicates
        index clusters {index} --count 2 {out}/clusters
        search {x} --in {index} --explain {out}/hits
        index remove {index} --where "image.width > 1000"
        evaluate localization {data} {net} --methods gam,grad_cam --n 1,2 --out {run}
        table {run} {out}/tables
        report {run} --cases 1 {net} --out {place}/report.html
        subset pairs {data} --pairs-per-class 1 --out {place}/pairs.json
        export {data} {net} --method gam --size 32 {out}/export
        figure cosine {x} {y} {net} --out {place}/cosine.png
        leaderboard {data} {net} {fast} --n 1 {out}/board
        ablate {data} {net} --methods gam -n 1,2 --fusions mean {out}/ablation
        sanity parameters {photos} {net} --methods gam -n 1 {out}/sanity
        doctor
    """
    found: dict[str, Outcome] = {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        words = shlex.split(line)
        name = " ".join(words[: 2 if words[0] in ("index", "sanity") else 1])
        name = f"{name} --explain" if "--explain" in words else name
        kept: list[terminal.Screen] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(terminal.Screen, "flush", lambda screen, kept=kept: kept.append(screen))
            runner.invoke(app, words)
        again = runner.invoke(app, [*words, "--json"])
        parts = [part for screen in {id(screen): screen for screen in kept}.values() for part in screen.parts]
        found[name] = Outcome(again.exit_code, again.stdout, again.stderr, parts, kept[0].whole)
    return found


RAN = [
    "classify",
    "compare",
    "group",
    "blocks",
    "search",
    "index add",
    "index update",
    "index info",
    "index duplicates",
    "index clusters",
    "search --explain",
    "index remove",
    "evaluate",
    "table",
    "report",
    "subset",
    "export",
    "figure",
    "leaderboard",
    "ablate",
    "sanity parameters",
    "doctor",
]
ONE_FILE_IS_NO_IMAGE = ("evaluate", "export", "leaderboard", "ablate")


@pytest.mark.parametrize("name", RAN)
def test_json_is_one_document(name: str, outcomes: dict[str, Outcome]) -> None:
    found = outcomes[name]
    document = strict(found.document)
    assert document
    assert found.code == (name in ONE_FILE_IS_NO_IMAGE), found.errors
    assert ("error" in document) == (name in ONE_FILE_IS_NO_IMAGE)
    assert "Traceback" not in found.errors
    assert "\x1b" not in found.document + found.errors


def shown(found: Outcome, width: int, monkeypatch: pytest.MonkeyPatch, *, whole: bool) -> list[str]:
    """The lines that a terminal of this width shows."""
    console = Console(file=io.StringIO(), width=width)
    monkeypatch.setattr(terminal, "out_console", console)
    monkeypatch.setenv("COLUMNS", str(width))
    screen = terminal.Screen(whole=whole)
    for part in found.parts:
        if isinstance(part, terminal.TableText):
            part.shown = len(part.rows)
        screen.add(part)
    screen.flush()
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("name", RAN)
def test_text_fits_the_terminal(name: str, width: int, outcomes: dict[str, Outcome], monkeypatch: Any) -> None:
    """No line is longer than the terminal, but for one word such as a path; and no word of a table is lost or cut."""
    found = outcomes[name]
    assert found.parts
    lines = shown(found, width, monkeypatch, whole=True)
    assert [line for line in lines if len(line.rstrip()) > width and " " in line.strip()] == []
    printed = {word for line in lines for word in line.split()}
    for part in found.parts:
        if isinstance(part, terminal.TableText):
            assert [line for line in lines if "…" in line] == []
            cells = [cell.plain for row in part.rows for cell in row]
            assert {word for cell in cells for word in cell.split() if len(word) <= 16} <= printed


def test_a_long_label_of_a_narrow_table_keeps_its_indent(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=40)
    monkeypatch.setattr(terminal, "out_console", console)
    heads = ("file", "explained", "score", "the model's best guesses")
    terminal.say_rows(heads, [("photograph.jpg", "cheetah", "17.25", "cheetah 85 %, a lion of the savannah 3 %")])
    lines = [line[:20].rstrip() for line in console.file.getvalue().splitlines()]
    assert lines[3:5] == ["  the model's best", "  guesses"], lines


@pytest.mark.parametrize("name", RAN)
def test_text_is_at_most_a_screen(name: str, outcomes: dict[str, Outcome], monkeypatch: Any) -> None:
    found = outcomes[name]
    lines = shown(found, 80, monkeypatch, whole=found.whole)
    assert len(lines) <= 24 or found.whole
    assert found.whole == (name in ("table", "doctor", "index info"))


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """200 small images."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(200):
        pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
    return folder


@pytest.mark.slow
def test_a_folder_of_many_images_is_a_screen(many: Path, tmp_path: Path) -> None:
    """The surest guesses, a count of the rest, and last of all where the page is. JSON has all of them."""
    (tmp_path / "model.py").write_text(MODEL)
    net, out, index = ["--model", f"{tmp_path}/model.py:build"], tmp_path / "out", str(tmp_path / "many.gamlens")
    for words in (
        ["classify", str(many), *net, "--out", str(out)],
        ["group", f"{many}/0[0-4]*.png", *net, "--out", str(out)],
        ["search", f"{many}/0[0-4]*.png", "--in", str(many / "00*.png"), *net, "--out", str(out)],
    ):
        result = runner.invoke(app, words, env={"COLUMNS": "80"})
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        assert len(lines) <= 24
        assert any("more; --json prints all" in line for line in lines)
        assert "index.html" in "".join(lines[-4:])
    assert runner.invoke(app, ["index", "add", str(many), "--to", index, *net]).exit_code == 0
    search = ["search", str(many / "000.png"), "--in", index, "--top", "150"]
    hits = runner.invoke(app, search).stdout.splitlines()
    assert len(hits) <= 24
    assert "best of 199 images" in hits[-2]
    (document,) = strict(runner.invoke(app, [*search, "--json"]).stdout)
    assert len(document["matches"]) == 150


def test_a_table_is_cut_by_rows_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Outcome(0, "", "", [], False)
    with terminal.screen() as screen:
        terminal.say_rows(("file", "score"), [(f"{number}.jpg", "0.5") for number in range(100)])
        terminal.say("Open page.html")
        found.parts.extend(screen.parts)
        screen.parts.clear()
    lines = shown(found, 80, monkeypatch, whole=False)
    assert len(lines) == terminal.LEAST_LINES
    assert lines[1].split() == ["0.jpg", "0.5"]
    assert lines[-2:] == ["… and 80 more; --json prints all", "Open page.html"]


def test_a_long_table_is_not_measured_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rows that may be shown are laid out, however many there are, and only their widths count."""
    console, made = Console(file=io.StringIO(), width=80), []
    monkeypatch.setattr(terminal, "out_console", console)
    add_row = Table.add_row
    monkeypatch.setattr(Table, "add_row", lambda *given, **options: made.append(add_row(*given, **options)))
    with terminal.screen():
        terminal.say_rows(("file", "score"), [(f"{number}.jpg", "0.5") for number in range(10_000)])
    assert "… and 9979 more" in console.file.getvalue()
    assert len(made) < 10 * terminal.LEAST_LINES


def test_a_table_that_is_too_wide_is_a_block_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Outcome(0, "", "", [], False)
    with terminal.screen() as screen:
        terminal.say_table([f"metric{number}" for number in range(9)], [[f"{number}.123456" for number in range(9)]])
        found.parts.extend(screen.parts)
        screen.parts.clear()
    lines = shown(found, 40, monkeypatch, whole=False)
    assert [line.split() for line in lines] == [[f"metric{number}", f"{number}.123456"] for number in range(9)]
    assert all("metric8" in line for line in shown(found, 200, monkeypatch, whole=False)[1:2])


@pytest.mark.slow
def test_json_of_commands_that_need_data_of_their_own(tmp_path: Path) -> None:
    """The tests of pairs, and the forecast of a table of the paper and its measurement."""
    model = tmp_path / "hues.py"
    model.write_text(
        "from pair_data import Hues\nfrom gamlens import Lens, Transform\n\n"
        "def build():\n    return Lens(Hues(), blocks=['features'], transform=Transform((64, 64)))\n"
    )
    given = [
        "--data",
        "table",
        "--root",
        hue_data(tmp_path),
        "--model",
        f"{model}:build",
        "--methods",
        "gam",
        "--n",
        "1",
    ]
    small = ["--limit", "2", "--objects", "2", "--tests", "objects,partner", "--out", str(tmp_path / "pairs")]
    pairs = runner.invoke(app, [str(word) for word in ("evaluate", "pairs", *given, *small, "--json")])
    assert pairs.exit_code == 0, pairs.stderr
    assert {one["test"] for one in strict(pairs.stdout)["numbers"]} == {"objects", "partner"}

    paper_data.ilsvrc(tmp_path / "ILSVRC")
    paper_data.user_file(tmp_path)
    words = [
        "reproduce",
        "--table",
        "1",
        "--ilsvrc",
        str(tmp_path / "ILSVRC"),
        "--model",
        f"resnet={tmp_path}/mine.py:lens",
    ]
    words += ["--methods", "gam", "--limit", "4", "--out", str(tmp_path / "paper"), "--json"]
    forecast = strict(runner.invoke(app, [*words, "--dry-run"]).stdout)
    assert len(forecast["runs"]) == 3
    measured = runner.invoke(app, words)
    assert measured.exit_code == 0, measured.stderr
    document = strict(measured.stdout)
    assert any(line["numbers"] for line in document["lines"])
    assert all(Path(file).is_file() for file in document["files"])
