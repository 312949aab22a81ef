"""What the tests of pairs measure, and how: every choice has a name and is recorded with the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gamlens.errors import GamlensError, near
from gamlens.evaluation.pair_tests.occlusion import check_windows
from gamlens.evaluation.protocol import CHOICES, Protocol
from gamlens.metrics import BLUR_KERNEL, BLUR_SIGMA
from gamlens.scores import PAIR_SCORES

PAIR_KIND = "pairs"  # the kind of evaluation, on the command line
PHOTO_PAIRS, SCENES, PATCHES = "photos", "scenes", "patches"  # the kinds of cases
# The tests, each with the kind of cases that it is measured on.
PAIR_TESTS: dict[str, str] = {
    "curves": PHOTO_PAIRS, "objects": SCENES, "patch": PATCHES, "partner": PHOTO_PAIRS, "boxes": PHOTO_PAIRS,
}  # fmt: skip
MOST_OBJECTS = 4  # of a scene: one per quadrant
PAIR_METHODS = "gam,grad_cam,grad_cam_pp,layer_cam,vdsn,vdsn_max,gam+refine,occlusion,interactions,interactions_average"
DEFAULT_CASES = 100  # cases per kind


@dataclass(frozen=True)
class PairPlan:
    """What is measured. Cases depend on `seed`, `tests`, `objects` and the data set alone.

    Attributes:
        task: The pair score that is explained, a name of PAIR_SCORES.
        methods: The explainers: names of METHODS, also with "+refine"; "occlusion"; "interactions" and
            "interactions_average"; explainers of other
            packages by their spec. Differences are to the first of them.
        n: The numbers of blocks; methods that read blocks have one row for each.
        tests: Which of PAIR_TESTS are measured.
        objects: The numbers of objects per scene, in turn.
        limit: The number of cases of each kind: photos, scenes, patches.
        seed: The seed of the draws.
        hold_out: Every how many pairs one is held out to choose the threshold of boxes on; 0 for none.
        curves: The number of steps of insertion and deletion.
        fill: The colour of hidden pixels in curves and occlusion, "mean" or "black".
        curve_background: What hidden pixels show in curves: the colour `fill`, or the image behind a "blur".
        blur_kernel, blur_sigma: The blur of that background, in pixels of the input.
        window, stride: The side of the occlusion's window and its step, as shares of the input.
    """

    task: str = "cosine"
    methods: tuple[str, ...] = tuple(PAIR_METHODS.split(","))
    n: tuple[int, ...] = (2,)
    tests: tuple[str, ...] = tuple(PAIR_TESTS)
    objects: tuple[int, ...] = (1, 2, 3, 4)
    limit: int = DEFAULT_CASES
    seed: int = 0
    hold_out: int = 10
    curves: int = 10
    fill: str = "mean"
    curve_background: str = "fill"
    blur_kernel: int = BLUR_KERNEL
    blur_sigma: float = BLUR_SIGMA
    window: float = 1 / 4
    stride: float = 1 / 8

    def __post_init__(self) -> None:
        if self.task not in PAIR_SCORES:
            raise GamlensError(
                f"The tests of pairs explain a similarity: task cannot be {self.task!r}; {near(self.task, PAIR_SCORES)}"
            )
        for test in self.tests:
            if test not in PAIR_TESTS:
                raise GamlensError(f"There is no test of pairs {test!r}: {near(test, PAIR_TESTS)}")
        if not self.tests or not self.methods or not self.n or min(self.n) < 1 or self.limit < 1:
            raise GamlensError(
                f"Give at least one test, one method, n of 1 or more and one case; found tests={self.tests}, "
                f"methods={self.methods}, n={self.n}, limit={self.limit}."
            )
        for what, given in (("method", self.methods), ("test", self.tests), ("number of objects", self.objects)):
            if twice := [one for one, count in Counter(map(str, given)).items() if count > 1]:
                raise GamlensError(f"The {what} {twice[0]!r} is named twice: name it once.")
        if not self.objects or not all(1 <= count <= MOST_OBJECTS for count in self.objects):
            raise GamlensError(
                f"A scene has 1 to {MOST_OBJECTS} objects, one per quadrant; found objects={self.objects}."
            )
        if self.hold_out < 0:
            raise GamlensError(f"hold_out={self.hold_out}: give 0 to hold out nothing, or 10 for every tenth pair.")
        if "boxes" in self.tests and self.hold_out and (self.hold_out == 1 or self.limit == 1):
            raise GamlensError(
                f"With hold_out={self.hold_out} and limit={self.limit} every pair would be held out to choose the "
                "threshold of boxes on, and none be left to measure: give more pairs, another hold_out (0: none), or "
                "leave the test 'boxes' out."
            )
        if "curves" in self.tests and self.curves < 2:
            raise GamlensError(f"curves={self.curves}: give 2 steps or more, or leave the test 'curves' out.")
        for name in ("fill", "curve_background"):
            if (value := getattr(self, name)) not in CHOICES[name]:
                raise GamlensError(f"{name} cannot be {value!r}: {near(str(value), CHOICES[name])}")
        check_windows(self.window, self.stride)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of cases that the tests need, in the order of PAIR_TESTS."""
        return tuple(dict.fromkeys(kind for test, kind in PAIR_TESTS.items() if test in self.tests))

    def masking(self) -> Protocol:
        """The protocol by which images are masked for insertion and deletion."""
        return Protocol(
            kind="objective", task=self.task, curves=max(self.curves, 2), fill=self.fill,
            curve_background=self.curve_background, blur_kernel=self.blur_kernel, blur_sigma=self.blur_sigma,
        )  # fmt: skip

    def record(self) -> dict[str, Any]:
        """What run.json says about the plan."""
        return {"kind": PAIR_KIND, **asdict(self)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> PairPlan:
        """The plan that run.json describes."""
        own: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
        }
        return cls(**{name: value for name, value in own.items() if name != "kind"})
