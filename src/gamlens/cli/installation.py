"""What this machine has: versions, devices, packages of extras, caches, memory; and a test that gamlens works."""

import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from gamlens import Lens, Transform, __version__

DISTRIBUTION = "gamlens"
CORE_PACKAGES = ("torch", "torchvision", "numpy", "Pillow")
REQUIREMENT = re.compile(
    r"""^(?P<name>[\w.-]+) \s* (?:\[[^]]*\])? \s* \(? (?P<bounds>[^;)]*) \)?"""
    r"""\s* (?:;.*extra\s*==\s*['"](?P<extra>[^'"]+)['"])?""",
    re.VERBOSE,
)
HOLDS = {  # whether a version of a package lies within a bound
    ">=": lambda own, bound: own >= bound,
    "<=": lambda own, bound: own <= bound,
    "==": lambda own, bound: own == bound,
    "!=": lambda own, bound: own != bound,
    ">": lambda own, bound: own > bound,
    "<": lambda own, bound: own < bound,
}  # fmt: skip


@dataclass(frozen=True)
class ExtraState:
    """An extra of gamlens: the packages that it needs, and those of them that are missing or of another version.

    Attributes:
        name: Its name, as in pip install 'gamlens[NAME]'.
        packages: The versions that are installed, by package.
        missing: What is missing, as pip writes it, such as "gradio>=6.31,<7 (found 5.1)".
    """

    name: str
    packages: dict[str, str]
    missing: tuple[str, ...]

    @property
    def install(self) -> str:
        """The command that installs what is missing."""
        return f"pip install '{DISTRIBUTION}[{self.name}]'"


@dataclass(frozen=True)
class CacheState:
    """A folder in which weights are kept after they were downloaded; `bytes` is None if it is not there."""

    name: str
    path: Path
    bytes: int | None


@dataclass(frozen=True)
class SelfCheck:
    """A part of the self-test: its name, how long it took, and what was wrong; "" if nothing was."""

    name: str
    seconds: float
    error: str


def versions() -> dict[str, str]:
    """The versions of gamlens, Python and the packages that it cannot do without; "missing" where there is none."""
    found = {DISTRIBUTION: __version__, "Python": platform.python_version()}
    return found | {name: _version(name) or "missing" for name in CORE_PACKAGES}


def devices() -> dict[str, str]:
    """Where models can run, with what is known about each: the CPU, GPUs of NVIDIA or AMD, and that of a Mac."""
    found = {"cpu": f"{torch.get_num_threads()} threads of {os.cpu_count()} cores, {platform.machine()}"}
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        known = torch.cuda.get_device_properties(number)
        found[f"cuda:{number}"] = f"{known.name}, {known.total_memory / 2**30:.0f} GiB"
    if torch.backends.mps.is_available():
        found["mps"] = "the GPU of this Mac"
    return found


def extras() -> list[ExtraState]:
    """The extras of the installed package, as its metadata names them; none if gamlens runs from a plain folder."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    needed: dict[str, list[tuple[str, str]]] = {}
    for line in lines:
        known = REQUIREMENT.match(line)
        if known and known["extra"]:
            needed.setdefault(known["extra"], []).append((known["name"], known["bounds"].strip()))
    return [_extra(name, own) for name, own in sorted(needed.items())]


def _extra(name: str, needed: list[tuple[str, str]]) -> ExtraState:
    found, missing = {}, []
    for package, bounds in needed:
        own = _version(package)
        if own is not None:
            found[package] = own
        if own is None or not fits(own, bounds):
            missing.append(f"{package}{bounds}{f' (found {own})' if own else ''}")
    return ExtraState(name, found, tuple(missing))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def fits(version: str, bounds: str) -> bool:
    """Whether a version lies within bounds such as ">=6.31,<7", by the numbers at its beginning.

    >>> fits("6.31.2", ">=6.31,<7"), fits("7.0", ">=6.31,<7"), fits("2.4.0+cpu", ">=2.4"), fits("1.0", "==1.0.0")
    (True, False, True, True)
    """
    for bound in filter(None, map(str.strip, bounds.split(","))):
        known = re.match(r"(>=|<=|==|!=|>|<)\s*(.+)", bound)
        if known is None:  # such as ~=: no extra of ours has one
            continue
        own, other = _numbers(version), _numbers(known[2])
        length = max(len(own), len(other))
        own, other = ([*one, *[0] * (length - len(one))] for one in (own, other))
        if not HOLDS[known[1]](own, other):
            return False
    return True


def _numbers(version: str) -> list[int]:
    known = re.match(r"\d+(?:\.\d+)*", version)
    return [int(part) for part in known[0].split(".")] if known else []


def caches() -> list[CacheState]:
    """The folders in which torch.hub and Hugging Face keep weights. gamlens has no folder of its own."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"))
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    places = {"torch.hub": Path(torch.hub.get_dir()), "Hugging Face": hub}
    return [CacheState(name, path.expanduser(), _size(path.expanduser())) for name, path in places.items()]


def _size(folder: Path) -> int | None:
    """The bytes of all files below a folder; links count nothing."""
    if not folder.is_dir():
        return None
    files = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(os.lstat(file).st_size for file in files if not os.path.islink(file) and os.path.exists(file))


def memory() -> int | None:
    """The bytes of this machine's memory; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def free_disk() -> int:
    """The free bytes of the disk of the working directory, where results go."""
    return shutil.disk_usage(Path.cwd()).free


class TwoChannels(nn.Module):
    """A network small enough for pencil and paper: channels h1 = x and h2 = 1 - x of a grey image x.

    The score of class 0 is mean(2 h1 - h2), that of class 1 is mean(h2); the embedding is (mean h1, mean h2).
    """

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Conv2d(1, 2, 1)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.block.weight.copy_(torch.tensor([1.0, -1.0]).view(2, 1, 1, 1))
            self.block.bias.copy_(torch.tensor([0.0, 1.0]))  # type: ignore[union-attr]
            self.head.weight.copy_(torch.tensor([[2.0, -1.0], [0.0, 1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.pool(self.block(x)))
        return scores


GREY_SQUARES = torch.tensor([[0.0, 0.5], [1.0, 0.25]]).view(1, 1, 2, 2)
# GAM of class 0: relu(h1) * 2/4 + relu(h2) * 0 = x / 2. Its smallest value is 0, its largest 1/2, so the map is x.
MAP_BY_HAND = GREY_SQUARES.view(1, 2, 2)
SCORE_BY_HAND = 0.3125  # mean(2 x - (1 - x)) = 3 * 0.4375 - 1


def self_test() -> Iterator[SelfCheck]:
    """Try on a tiny network what everything else rests on; nothing is downloaded, and nothing stays on the disk."""
    lens = Lens(
        TwoChannels(), blocks=["block"], embedding="pool", transform=Transform((2, 2)), labels=["bright", "dark"],
        device="cpu",
    )  # fmt: skip
    yield _checked("a map is what pencil and paper give", lambda: _check_map(lens))
    yield _checked("an image is similar to itself", lambda: _check_pair(lens))
    yield _checked("a picture is written and read again", lambda: _check_files(lens))


def _checked(name: str, check: Callable[[], str]) -> SelfCheck:
    began = time.monotonic()
    try:
        error = check()
    except Exception as caught:  # noqa: BLE001 (whatever goes wrong is what the test reports)
        error = f"{type(caught).__name__}: {caught}"
    return SelfCheck(name, round(time.monotonic() - began, 3), error)


def _check_map(lens: Lens) -> str:
    found = lens.classify(GREY_SQUARES, 0, method="gam", n=1)
    if not torch.allclose(found.maps.cpu(), MAP_BY_HAND, atol=1e-5):
        return f"the map is {found.maps.flatten().tolist()} in place of {MAP_BY_HAND.flatten().tolist()}"
    score = float(found.scores[0])
    return "" if abs(score - SCORE_BY_HAND) < 1e-5 else f"the score is {score} in place of {SCORE_BY_HAND}"


def _check_pair(lens: Lens) -> str:
    score = float(lens.compare(GREY_SQUARES, GREY_SQUARES, method="gam", n=1, score="dot").scores[0])
    wanted = 0.4375**2 + 0.5625**2  # of the embedding (0.4375, 0.5625) with itself
    return "" if abs(score - wanted) < 1e-5 else f"the score is {score} in place of {wanted}"


def _check_files(lens: Lens) -> str:
    with tempfile.TemporaryDirectory() as folder:
        lens.classify(GREY_SQUARES, 0, method="gam", n=1).save(folder)
        pictures = sorted(Path(folder).glob("*.png"))
        if not pictures:
            return "no picture was written"
        for picture in pictures:
            with Image.open(picture) as opened:
                opened.load()
    return ""


def problem_of_packages() -> str:
    """What is wrong with the packages that gamlens needs, with what to do about it; "" if nothing is."""
    try:
        needed = [REQUIREMENT.match(line) for line in metadata.requires(DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:
        return ""
    plain = [(one["name"], one["bounds"].strip()) for one in needed if one and not one["extra"]]
    wrong = _extra("", plain).missing
    return f"{', '.join(wrong)}: pip install --upgrade {DISTRIBUTION}" if wrong else ""
