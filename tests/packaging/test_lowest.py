"""`make lowest` installs the lowest versions that pyproject.toml promises: no other, and all of them."""

from __future__ import annotations

import tomllib

from packaging.requirements import Requirement
from packaging.version import Version
from packaging_kit import ROOT, canonical

NOT_FOR_USERS = {"docs", "dev"}  # extras for work on gamlens itself, whose tools may be the newest


def promised() -> dict[str, Version]:
    """The lower bound of every package that users install. Where several extras name a package, the highest counts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in extras if name not in NOT_FOR_USERS for line in extras[name])]
    found: dict[str, Version] = {}
    for one in map(Requirement, lines):
        if one.name != "gamlens":
            (low,) = (Version(part.version) for part in one.specifier if part.operator in (">=", "=="))
            found[canonical(one.name)] = max(low, found.get(canonical(one.name), low))
    return found


def test_the_list_and_the_promises_agree() -> None:
    lines = (ROOT / "tests" / "packaging" / "lowest.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all([part.operator for part in pin.specifier] == ["=="] for pin in pins)
    listed = {canonical(pin.name): Version(next(iter(pin.specifier)).version) for pin in pins}
    assert len(listed) == len(pins)
    assert listed == promised()
