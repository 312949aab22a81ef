"""A folder of photos that is explained: interrupted, on a full disk, twice at once, with other settings."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nets
import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from gamlens import Explanation, GamlensError, GamlensWarning, Lens, Refinement, Transform
from gamlens.cli import app
from gamlens.files import StagedFiles, claimed
from gamlens.report import classified_files
from gamlens.report.classified_files import ClassifyOptions, FileResult, classify_files
from gamlens.report.image_files import find_images, result_folders

COUNT = 5


def photo(file: Path, number: int = 0) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    return file


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return [str(photo(tmp_path / "in" / f"{number}.png", number)) for number in range(COUNT)]


class CountingLens(Lens):
    """Counts the images that the model saw."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nets.small().float(), transform=Transform((64, 64)))
        self.seen = 0

    def trace(self, images, *args, **options):
        self.seen += len(images.pictures)
        return super().trace(images, *args, **options)


def explain(files: list[str], out: Path, lens: Lens | None = None, **options: object) -> list[FileResult]:
    known = ("n", "method", "target", "refine", "views")
    how = ClassifyOptions(**{key: options.pop(key) for key in known if key in options})
    return list(classify_files(lens or CountingLens(), files, how, out=out, batch_size=2, **options))


def hidden(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.name.startswith(".") or file.name.endswith(".part")]


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """No file may grow above `limit` bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch starts no threads of its own, for which a forked process would wait in vain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def killed(call: Callable[[], object]) -> None:
    """Run in a child process that kills itself somewhere inside."""
    if (child := os.fork()) == 0:
        call()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def die(*args: object, **options: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_while_the_page_is_written_explains_nothing_again(files, tmp_path, monkeypatch) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch, one_thread():
        patch.setattr(os, "fsync", lambda handle: die() if page_is_open(out) else None)
        killed(lambda: explain(files, out))
    assert hidden(out)
    assert not (out / "index.html").exists()
    lens = CountingLens()
    assert [Path(result.file).name for result in explain(files, out, lens)] == [f"{n}.png" for n in range(COUNT)]
    assert lens.seen <= 1  # the first image is seen once more, to find the model's blocks
    assert (out / "index.html").exists()
    assert hidden(out) == []


def page_is_open(out: Path) -> bool:
    return any("index.html" in file.name for file in out.glob(".gamlens-*"))


def test_a_full_disk_is_one_error_and_the_next_run_continues(files, tmp_path, monkeypatch) -> None:
    out, saved = tmp_path / "out", []
    real = Explanation.save

    def save(self, folder, **options):
        if len(saved) == 3:
            with small_files(200):
                return real(self, folder, **options)
        saved.append(folder)
        return real(self, folder, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Explanation, "save", save)
        with pytest.raises(GamlensError, match=r"File too large. Finished results are kept: make room, then give the"):
            explain(files, out)
    assert not list(out.rglob("*.part"))
    lens = CountingLens()
    assert [result.error for result in explain(files, out, lens)] == [""] * COUNT
    assert lens.seen <= COUNT - 2 + 1
    assert hidden(out) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_for_the_page(files, tmp_path, monkeypatch, code: int) -> None:
    def write(page, path):
        raise GamlensError("Cannot write the page.") from OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(classified_files.render, "write", write)
        with pytest.raises(GamlensError, match="Cannot write the page"):
            explain(files, tmp_path / "out")
    lens = CountingLens()
    explain(files, tmp_path / "out", lens)
    assert lens.seen <= 1


def interrupted(files: list[str], out: Path, **options: object) -> None:
    results = classify_files(CountingLens(), files, ClassifyOptions(**options), out=out, batch_size=2)
    next(results)
    results.close()
    assert (out / ".runs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 1}, r"n: 2 there, 1 now"),
        ({"method": "grad_cam"}, "method: 'gam' there"),
        ({"target": [3]}, r"target: "),
        ({"refine": Refinement(1, 0.25)}, r"refine: None there, \{'blocks': 1, 'keep': 0.25\} now"),
        ({"views": ("flip", 2.0)}, r"views: \[\] there, \['flip', 2.0\] now"),
    ],
)
def test_other_settings_are_refused_and_named(files, tmp_path, options, message: str) -> None:
    out = tmp_path / "out"
    interrupted(files, out)
    before = sorted(out.rglob("*"))
    with pytest.raises(GamlensError, match=rf"{message}.*choose another folder, or replace that run with --fresh"):
        explain(files, out, **options)
    assert sorted(out.rglob("*")) == before
    assert len(explain(files, out, fresh=True, **options)) == COUNT
    assert hidden(out) == []


def test_a_refined_run_is_continued_with_the_same_refinement_only(files, tmp_path) -> None:
    sharp = {"refine": Refinement(), "views": ("flip",)}
    interrupted(files, tmp_path / "out", **sharp)
    with pytest.raises(GamlensError, match=r"refine\.keep: 0\.5 there, 0\.25 now"):
        explain(files, tmp_path / "out", refine=Refinement(2, 0.25), views=("flip",))
    lens = CountingLens()
    results = explain(files, tmp_path / "out", lens, **sharp)
    assert lens.seen <= COUNT - 2 + 1
    assert [result.record["about"]["refine"] for result in results] == [
        {"blocks": ["layer2", "layer1"], "keep": 0.5}
    ] * 5
    assert all(result.record["about"]["views"]["mirrored"] for result in results)


def test_notes_from_before_there_was_refinement_are_continued_without_it(files, tmp_path, monkeypatch) -> None:
    about = classified_files._about

    def older(*args):
        return {key: value for key, value in about(*args).items() if key not in ("refine", "views")}

    with monkeypatch.context() as patch:
        patch.setattr(classified_files, "_about", older)
        interrupted(files, tmp_path / "out")
    for other in ({"refine": Refinement()}, {"views": ("flip",)}):
        with pytest.raises(GamlensError, match="holds another run"):
            explain(files, tmp_path / "out", **other)
    lens = CountingLens()
    assert len(explain(files, tmp_path / "out", lens)) == COUNT
    assert lens.seen <= COUNT - 2 + 1


def test_other_files_are_refused(files, tmp_path) -> None:
    interrupted(files, tmp_path / "out")
    with pytest.raises(GamlensError, match=r"files.count: 5 there, 4 now"):
        explain(files[1:], tmp_path / "out")


def test_two_commands_at_once(files, tmp_path) -> None:
    first = classify_files(CountingLens(), files, ClassifyOptions(), out=tmp_path / "out", batch_size=2)
    next(first)
    with pytest.raises(GamlensError, match="Another gamlens command is writing into"):
        explain(files, tmp_path / "out")
    assert len(list(first)) == COUNT - 1
    with pytest.warns(GamlensWarning, match="of an earlier run was replaced"):
        assert len(explain(files[:1], tmp_path / "out", n=1)) == 1  # a finished folder may be written into again


def test_results_that_vanished_are_made_again(files, tmp_path) -> None:
    out = tmp_path / "out"
    interrupted(files, out)
    (out / "0" / "maps.npz").unlink()
    assert [Path(result.file).name for result in explain(files, out)] == [f"{n}.png" for n in range(COUNT)]
    interrupted(files, out)
    (out / ".runs" / "parts" / "00000000.jsonl").write_text('{"file"')
    assert len(explain(files, out)) == COUNT


@pytest.mark.parametrize("text", ["[1]", "7", "[" * 100_000, '{"file": 1, "error": ""}', '{"file": "a", "top": [3]}'])
def test_notes_that_hold_something_else_are_made_again(files, tmp_path, text: str) -> None:
    out = tmp_path / "out"
    interrupted(files, out)
    for record in (out / ".runs" / "records").iterdir():  # by which the damage would be found
        record.unlink()
    (out / ".runs" / "parts" / "00000000.jsonl").write_text(text)
    assert [Path(result.file).name for result in explain(files, out)] == [f"{n}.png" for n in range(COUNT)]
    assert hidden(out) == []


def test_results_that_were_damaged_are_errors_of_their_files(files, tmp_path) -> None:
    """A power failure may leave an empty file. It may also be the user's, so it is not replaced; the others go on."""
    out = tmp_path / "out"
    interrupted(files, out)
    (out / "0" / "maps.npz").write_bytes(b"")
    results = explain(files, out)
    assert [bool(result.error) for result in results] == [True, False, False, False, False]
    assert "maps.npz': a file of that name is there that gamlens did not write, or that was changed" in results[0].error
    interrupted(files, out := tmp_path / "picture")
    next((out / "0").glob("000-*.png")).unlink()
    lens = CountingLens()
    assert not any(result.error for result in explain(files, out, lens))
    assert lens.seen >= COUNT - 1
    assert len(list((out / "0").glob("000-*.png"))) == 1


def test_notes_of_an_older_version_go_and_foreign_files_stay(files, tmp_path) -> None:
    old = tmp_path / "out" / ".runs" / "0123456789abcdef"
    (old / "parts").mkdir(parents=True)
    for file in (old / "run.json", old / ".lock", old / "parts" / "00000000.jsonl"):
        file.touch()
    explain(files, tmp_path / "out")
    assert hidden(tmp_path / "out") == []
    (old / "parts").mkdir(parents=True)
    (old / "parts" / "notes.txt").touch()
    explain(files, tmp_path / "out")
    assert (old / "parts" / "notes.txt").exists()


def test_nothing_readable_leaves_no_folder(tmp_path) -> None:
    (tmp_path / "text.png").write_text("no image")
    assert explain([str(tmp_path / "text.png")], tmp_path / "a" / "b")[0].error
    with pytest.raises(GamlensError, match="n from 1"):
        explain([str(photo(tmp_path / "a.png"))], tmp_path / "a" / "b", n=9)
    assert not (tmp_path / "a").exists()


def test_results_are_not_read_as_photos(files, tmp_path) -> None:
    inside = tmp_path / "in"
    explain(files, inside / "first")
    assert find_images([str(inside)], skip=inside / "second") == files
    assert find_images([f"{inside}/**/*.png"]) == files
    explain(files, inside)  # the folder of the photos is that of the results
    assert find_images([str(inside)], skip=inside) == files
    assert find_images([str(next((inside / "0").glob("000-*.png")))])


def test_names_that_meet(tmp_path) -> None:
    out = Path("out")
    names = ["a.jpg", "a.png", "A.png", "index.html.jpg", "a-2.jpg", f"{'x' * 251}.png", f"{'猫' * 83}.png"]
    folders = [folder.name for folder in result_folders(names, out).values()]
    assert folders[:5] == ["a", "a-2", "A-3", "index.html-2", "a-2-2"]
    assert len({name.lower() for name in folders}) == len(names)
    long = [str(photo(tmp_path / name)) for name in names[5:]]
    assert [result.error for result in explain(long, tmp_path / "out")] == ["", ""]


def test_a_place_that_cannot_be_written(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place, message in (("file", "file' is a file"), ("link", r"is a link to '.*nowhere', which does not exist")):
        with pytest.raises(GamlensError, match=message), claimed(tmp_path / place):
            pass
    (tmp_path / "out").mkdir()
    real = open

    def no(file, *args, **options):
        if str(file).startswith(str(tmp_path / "out")):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(file, *args, **options)

    monkeypatch.setattr("builtins.open", no)
    with (
        pytest.raises(GamlensError, match=r"Permission denied\. Give another folder, or make"),
        claimed(tmp_path / "out"),
    ):
        pass


def test_a_picture_that_does_not_fit_leaves_nothing(tmp_path) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8))
    with small_files(2000), pytest.raises(GamlensError, match="File too large"), StagedFiles() as staged:
        staged.write(tmp_path / "new" / "a.png", lambda out: image.save(out, format="PNG"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["classify", "{photo}", "--out", "{photo}"],
        ["compare", "{photo}", "{photo}", "--out", "{photo}"],
        ["search", "{photo}", "--in", "{folder}", "--out", "{photo}"],
        ["figure", "classes", "{photo}", "--out", "{photo}"],
        ["sanity", "parameters", "{photo}", "{other}", "--out", "{photo}"],
    ],
)
def test_the_photo_is_never_replaced(tmp_path, words: list[str]) -> None:
    file, other = photo(tmp_path / "photo.png"), photo(tmp_path / "other.png", 1)
    before = file.read_bytes()
    given = [word.format(photo=file, other=other, folder=tmp_path) for word in words]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    assert "photo.png" in result.output
    assert file.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [other, file]
