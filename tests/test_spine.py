"""The way through the package stays short: calls, functions, files and file changes of one warm call.

`python benchmarks/spine.py --calls "classify(tensor)"` lists the calls. Lower a limit whenever the way gets shorter.
"""

from __future__ import annotations

import pytest
import spine

# calls, functions, files, file changes: what one call takes, plus ten per cent
LIMITS = {
    "classify(tensor)": (99, 68, 14, 54),
    "classify(path)": (126, 86, 20, 69),
    "compare(a, b)": (212, 103, 16, 106),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, spine.Spine]:
    return spine.spines(tmp_path_factory.mktemp("spine"))


@pytest.mark.parametrize("name", list(LIMITS))
def test_a_warm_call_is_no_longer_than_its_limit(found: dict[str, spine.Spine], name: str) -> None:
    way = found[name]
    for what, limit in zip(("calls", "functions", "files", "changes"), LIMITS[name], strict=True):
        assert 0 < getattr(way, what) <= limit, f"{getattr(way, what)} {what}, at most {limit}"


def test_every_case_has_a_limit(found: dict[str, spine.Spine]) -> None:
    assert set(found) == set(LIMITS)


def test_only_calls_of_the_package_are_counted() -> None:
    assert spine.measure(lambda: sorted([2, 1], key=lambda value: value)).calls == 0


def test_counts_of_a_way() -> None:
    way = spine.Spine((("a.py", "f"), ("b.py", "g"), ("b.py", "g"), ("a.py", "f"), ("a.py", "h")))
    assert (way.calls, way.functions, way.files, way.changes) == (5, 3, 2, 2)


def test_the_net_explains_both_of_its_convolutions() -> None:
    look = spine.lens()
    assert look.blocks == ("1", "3")
    assert look.classify(spine.images(), spine.TARGETS, n=2).maps.shape == (2, spine.SIDE, spine.SIDE)
