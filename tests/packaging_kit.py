"""Build gamlens as a wheel, find what an extra requires, and make environments that hold exactly that.

Nothing is downloaded: an environment links to the packages of the one that runs the tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Built:
    """The sdist and the wheel, and the metadata of the wheel."""

    sdist: Path
    wheel: Path
    metadata: Message

    @property
    def requires(self) -> list[str]:
        return list(self.metadata.get_all("Requires-Dist", []))


def build(place: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist, into a folder. Returns the files of both."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (sdist,), (wheel,) = place.glob("*.tar.gz"), place.glob("*.whl")
    return sdist, wheel


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(lines: Iterable[str], extras: set[str]) -> list[Requirement]:
    """The requirements among `lines` that hold on this machine with these extras."""
    found = [Requirement(line) for line in lines]
    return [
        one for one in found if not one.marker or any(one.marker.evaluate({"extra": extra}) for extra in extras | {""})
    ]


def closure(lines: Iterable[str], extras: Iterable[str] = ()) -> set[str]:
    """The names of all distributions that a package with these requirement lines and extras brings in.

    Args:
        lines: The lines `Requires-Dist` of the package itself.
        extras: Its extras that are asked for. An extra may name others of the same package.
    """
    own = list(lines)
    seen: dict[str, set[str]] = {}
    todo = [("gamlens", set(extras))]
    while todo:
        name, asked = todo.pop()
        if name in seen and asked <= seen[name]:
            continue
        seen[name] = seen.get(name, set()) | asked
        required = own if name == "gamlens" else metadata.requires(name) or []
        todo += [(canonical(one.name), set(one.extras)) for one in wanted(required, seen[name])]
    return set(seen) - {"gamlens"}


def link(names: Iterable[str], packages: Path) -> Path:
    """Link to everything that these distributions have installed, in the folder `packages`."""
    packages.mkdir(parents=True, exist_ok=True)
    for name in names:
        found = metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (place := packages / top).exists():
                place.symlink_to(Path(str(found.locate_file(top))))
    return packages


def environment(place: Path, built: Built) -> Path:
    """Make a virtual environment that holds the wheel, installed by pip, and links to what it requires.

    Returns:
        Its folder of programs.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    link(closure(built.requires), packages)
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(built.wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), *install], check=True)
    return place / "bin"
