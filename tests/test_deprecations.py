"""Deprecated names: the warning at the user's line, and none that stays longer than it was announced."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

import pytest

import gamlens
from gamlens import GamlensError
from gamlens.errors import GamlensDeprecationWarning, GamlensWarning, deprecated

ROOT = Path(__file__).parents[1]


def announced() -> dict[str, dict[str, str]]:
    """Every call of `errors.deprecated` in the package: {old name: its other arguments}."""
    found: dict[str, dict[str, str]] = {}
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "deprecated":
                (old,) = (ast.literal_eval(value) for value in node.args)
                found[old] = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    return found


def release(version: str) -> tuple[int, int]:
    """The major and minor number of a version; a candidate counts as the release that it is for.

    >>> release("2.0.0rc1")
    (2, 0)
    """
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def test_the_helper_names_the_line_of_the_caller() -> None:
    with pytest.warns(GamlensDeprecationWarning) as caught:
        deprecated("old()", instead="new()", since="1.2", removed_in="2.0")
    assert str(caught[0].message) == "old() is deprecated since gamlens 1.2 and will be removed in 2.0: use new()."
    assert caught[0].filename == __file__
    assert issubclass(GamlensDeprecationWarning, GamlensWarning)
    with (
        warnings.catch_warnings(action="error", category=GamlensDeprecationWarning),
        pytest.raises(GamlensDeprecationWarning),
    ):
        deprecated("old()", instead="new()", since="1.2", removed_in="2.0")
    assert not issubclass(GamlensDeprecationWarning, GamlensError)


def test_nothing_stays_longer_than_announced() -> None:
    now, found = release(gamlens.__version__), announced()
    assert "Explanation.leave" in found
    overdue = [old for old, words in found.items() if release(words["removed_in"]) <= now]
    assert not overdue, "remove these names, as their warnings have announced"
    early = [old for old, words in found.items() if release(words["removed_in"])[0] <= release(words["since"])[0]]
    assert not early, "a deprecated name stays until the next major version"


def test_the_changelog_lists_what_is_deprecated() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    listed = "".join(part.partition("\n### ")[0] for part in changelog.split("### Deprecated\n")[1:])
    for old, words in announced().items():
        assert f"`{old}`" in listed, f"{old}: a line under Deprecated in CHANGELOG.md"
        assert words["instead"] in listed
