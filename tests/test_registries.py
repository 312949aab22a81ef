"""Registries drive: whatever is entered in one is known everywhere, and nowhere else are entries named by hand."""

from __future__ import annotations

import ast
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gamlens import DATASETS, METHODS, METRICS, MODELS
from gamlens.scores import PAIR_SCORES

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "gamlens"
REGISTRIES: dict[str, tuple[Mapping[str, Any], str]] = {  # each with the room that may name its entries
    "METHODS": (METHODS, "methods/"),
    "METRICS": (METRICS, "metrics/"),
    "PAIR_SCORES": (PAIR_SCORES, "scores.py"),
    "DATASETS": (DATASETS, "data/"),
    "MODELS": (MODELS, "models/"),
}
ALLOWED: dict[tuple[str, str], str] = {  # (file, entry): why the entry is named there
    ("cli/compare_command.py", "folder"): "a key of the JSON output, not the data set",
    ("cli/group_command.py", "folder"): "a key of the JSON output, not the data set",
    ("cli/reproduce.py", "chestxray"): "the option of that name",
    ("cli/reproduce.py", "coco"): "the option of that name",
    ("cli/reproduce.py", "ilsvrc"): "the option of that name",
    ("cli/reproduce.py", "voc"): "the option of that name",
    ("cli/show.py", "table"): "the name of a file, not the data set",
    ("evaluation/leaderboard_texts.py", "time"): "a column of leaderboard.csv, whatever metric measures it",
    ("evaluation/protocol.py", "coherency"): "the option of that name",
    ("evaluation/protocol.py", "infidelity"): "the option of that name",
    ("figures/__init__.py", "cosine"): "the paper's figure of that name",
    ("figures/__init__.py", "dot"): "the paper's figure of that name",
    ("figures/pair_figures.py", "gam"): "the paper's figure shows these methods",
    ("figures/pair_figures.py", "grad_cam"): "the paper's figure shows these methods",
    ("figures/request.py", "cosine"): "the default task of a data set's pairs",
    ("figures/request.py", "gam"): "the paper gives GAM its own n",
    ("index/index.py", "folder"): "a key of the JSON output, not the data set",
    ("report/classified_files.py", "folder"): "a key of the JSON output, not the data set",
    ("report/demo.py", "cosine"): "the demo's own story",
    ("report/demo.py", "dot"): "the demo's own story",
    ("report/demo.py", "gam"): "the demo's own story",
    ("report/paired_values.py", "gam"): "the method that the paper proposes leads the report",
}


def strings_that_choose(tree: ast.AST) -> set[str]:
    """The strings that are compared with something, or stand in a literal tuple, list, set or as a key of a dict."""
    found: set[str] = set()
    for node in ast.walk(tree):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts = [*node.elts]
        elif isinstance(node, ast.Dict):
            parts = [*node.keys]
        found |= {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return found


def named_by_hand() -> set[tuple[str, str]]:
    """(file, entry) wherever an entry of a registry is chosen by its name outside of the registry's own room."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        strings = strings_that_choose(ast.parse(path.read_text()))
        for entries, room in REGISTRIES.values():
            if not file.startswith(room):
                found |= {(file, name) for name in strings & entries.keys()}
    return found


def test_no_other_place_names_entries_by_hand() -> None:
    """A default value, such as method="gam", is no list of entries; a comparison or a collection is."""
    found = named_by_hand()
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set(), "these exceptions are no longer needed"


def test_the_scan_sees_comparisons_and_collections() -> None:
    code = 'a == "gam"; b in ("iou", x); {"dot": 1}; f(method="grad_cam"); c = "voc"'
    assert strings_that_choose(ast.parse(code)) == {"gam", "iou", "dot"}


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bool]]:
    """Where made-up entries of every registry arrive, by registry and place; see registry_probe.py."""
    folder = tmp_path_factory.mktemp("probe")
    environment = {**os.environ, "COLUMNS": "400", "TERM": "dumb", "NO_COLOR": "1"}
    command = [sys.executable, str(ROOT / "tests" / "registry_probe.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


PLACES = {
    "METHODS": {"help", "classify", "compare", "search", "evaluation", "table", "report", "ablation", "studio", "docs"},
    "METRICS": {"help", "evaluation", "parquet", "printed", "table", "report", "ablation", "docs"},
    "PAIR_SCORES": {"help", "task", "compare", "search", "evaluation", "table", "studio", "docs"},
    "DATASETS": {"help", "evaluation", "docs"},
    "MODELS": {"help", "blocks", "evaluation", "docs"},
    "FIGURES": {"help", "figure", "docs"},
}


@pytest.mark.slow
@pytest.mark.parametrize(("registry", "place"), [(name, place) for name in PLACES for place in sorted(PLACES[name])])
def test_an_entry_reaches(reached: dict[str, dict[str, bool]], registry: str, place: str) -> None:
    assert reached[registry][place]


@pytest.mark.slow
def test_the_probe_looks_at_every_place(reached: dict[str, dict[str, bool]]) -> None:
    assert {registry: set(places) for registry, places in reached.items()} == PLACES


def test_the_reference_page_is_what_the_registries_say() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "reference.py"))["page"]()
    assert (ROOT / "docs" / "reference.md").read_text() == page, "run `make docs`"
