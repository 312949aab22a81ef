"""How the command `gamlens` starts and ends: Ctrl-C before it runs, and a standard output that nobody reads."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest

from gamlens.__main__ import main


def test_ctrl_c_while_it_starts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """While the command line is imported, and while it reads its options."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    module = ModuleType("gamlens.cli")
    for name in ("__getattr__", "app"):
        setattr(module, name, stop)
        monkeypatch.setitem(sys.modules, "gamlens.cli", module)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 130
        assert capsys.readouterr().err == "stopped\n"


@pytest.mark.parametrize("words", [["blocks", "lenet5", "--json"], ["blocks", "--jso", "--json"], ["--version"]])
def test_nobody_reads_standard_output(words: list[str]) -> None:
    """A pipe whose reader has gone, as with `gamlens ... | true`: no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gamlens", *words]
    found = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert found.returncode == 1
    assert "Traceback" not in found.stderr
    assert "Exception ignored" not in found.stderr


@pytest.mark.parametrize(("words", "code"), [("blocks lenet5 --json", 0), ("blocks lenet5", 0), ("blocks --jso", 2)])
def test_standard_output_is_closed(words: str, code: int) -> None:
    command = f"{sys.executable} -m gamlens {words} >&-"
    found = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == code, found.stderr
    assert "Traceback" not in found.stderr
