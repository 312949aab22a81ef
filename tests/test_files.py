"""Files that are there whole or not at all."""

import os

import pytest

from gamlens import GamlensError
from gamlens.files import StagedFiles, write_whole


def fail(out):
    out.write(b"half")
    raise OSError(28, "No space left on device")


def stage(writes):
    with StagedFiles() as staged:
        for file, write in writes.items():
            staged.write(file, write)


def test_a_file_is_replaced_whole_or_left_as_it_was(tmp_path):
    file = tmp_path / "a.json"
    write_whole(file, lambda out: out.write(b"old"))
    with pytest.raises(OSError, match="No space"):
        write_whole(file, fail)
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("a.json", b"old")]
    write_whole(file, lambda out: out.write(b"new"))
    assert file.read_bytes() == b"new"


def test_staged_files_come_together_or_not_at_all(tmp_path):
    first, second = tmp_path / "a", tmp_path / "below" / "b"
    first.write_bytes(b"old")
    with pytest.raises(GamlensError, match=r"Cannot write .*No space left"):
        stage({first: lambda out: out.write(b"new"), second: fail})
    assert first.read_bytes() == b"old"
    assert not list(tmp_path.rglob("*.part"))
    with StagedFiles() as staged:
        staged.write(first, lambda out: out.write(b"new"))
        staged.write(second, lambda out: out.write(b"two"))
        assert first.read_bytes() == b"old"
    assert staged.files == [str(first), str(second)]
    assert (first.read_bytes(), second.read_bytes()) == (b"new", b"two")
    assert len(list(tmp_path.rglob("*"))) == 3


def test_a_move_that_fails_puts_back_what_was_there(tmp_path, monkeypatch):
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(b"old")
    real = os.replace

    def replace(source, target):
        if str(target).endswith("b"):
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(GamlensError, match="Cannot write"):
        stage(dict.fromkeys(files, lambda out: out.write(b"new")))
    assert [file.read_bytes() for file in files] == [b"old", b"old"]
    assert sorted(tmp_path.iterdir()) == files


def test_a_folder_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(GamlensError, match="Cannot make the folder"), StagedFiles() as staged:
        staged.write(tmp_path / "file" / "a", lambda out: None)
