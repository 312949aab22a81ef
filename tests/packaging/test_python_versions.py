"""pyproject.toml promises only the versions of Python on which the workflow must pass."""

from __future__ import annotations

import tomllib

import pytest
from packaging_kit import ROOT

PREFIX = "Programming Language :: Python :: "


def test_classifiers_name_the_versions_that_are_tested() -> None:
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"].values()
    steps = [step for job in jobs if not job.get("continue-on-error") for step in job["steps"]]
    tested = {step["with"]["python-version"] for step in steps if "python-version" in step.get("with", {})}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = {name.removeprefix(PREFIX) for name in project["classifiers"] if name.startswith(PREFIX)}
    assert promised - {"3"} == tested
    assert project["requires-python"] == f">={min(tested)}"
