"""The command `doctor`: what is installed here, and whether gamlens works."""

from pathlib import Path
from typing import Any

from gamlens.cli import installation
from gamlens.cli.common import command, exit_with_failures
from gamlens.cli.terminal import say, say_rows
from gamlens.cli.waiting import waiting


@command("doctor --json", whole=True)
def doctor() -> dict[str, Any]:
    """Say what is installed on this machine and what is missing, and test whether gamlens works.

    It lists versions, devices, the optional packages of each extra with the command that installs them, the folders of
    downloaded weights, memory and disk. Then it explains an image whose map is known by pencil and paper, compares two
    images, and writes a picture. Nothing is downloaded. The exit code is 0 if all is well and 1 if not.
    """
    with waiting("looking at this machine"):
        found = installation.versions()
        devices, extras, caches = installation.devices(), installation.extras(), installation.caches()
        memory, disk = installation.memory(), installation.free_disk()
        checks = list(installation.self_test())
    problems = [f"{check.name}: {check.error}" for check in checks if check.error]
    problems += filter(None, [installation.problem_of_packages()])

    say_rows(("Versions", ""), list(found.items()))
    say("")
    say_rows(("Devices", ""), list(devices.items()))
    say("")
    if extras:
        say_rows(
            ("Extras", "", "to install"),
            [(one.name, _state(one), one.install if one.missing else "") for one in extras],
        )
    else:
        say("Extras   unknown: gamlens is not installed as a package here")
    say("")
    rows = [(one.name, f"{_size(one.bytes)} in {one.path}") for one in caches]
    say_rows(
        ("Weights and space", ""),
        [*rows, ("main memory", _size(memory)), ("disk", f"{_size(disk)} free in {Path.cwd()}")],
    )
    say("")
    say_rows(
        ("Self-test", ""),
        [(one.name, f"failed: {one.error}" if one.error else f"yes, {one.seconds:.2f} s") for one in checks],
    )
    say("")
    verdict = "Something is wrong." if problems else "All is well: gamlens works."
    say(verdict)
    record = {
        "versions": found,
        "devices": devices,
        "extras": {
            one.name: {
                "installed": not one.missing,
                "packages": one.packages,
                "missing": one.missing,
                "install": one.install,
            }
            for one in extras
        },
        "caches": caches,
        "memory_bytes": memory,
        "free_disk_bytes": disk,
        "self_test": checks,
        "ok": not problems,
        "verdict": verdict,
    }
    if problems:
        exit_with_failures("\n".join(problems), record)
    return record


def _state(extra: installation.ExtraState) -> str:
    return f"missing: {', '.join(extra.missing)}" if extra.missing else "installed"


def _size(count: int | None) -> str:
    """A number of bytes in words."""
    if count is None:
        return "nothing"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
