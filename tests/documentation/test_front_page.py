"""The lines of code on the front page run as they stand, and its numbers are those that its pictures were made with."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gamlens import GamlensWarning
from gamlens.data.photos import photo, scene

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "index.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, made in (
        ("scene", scene("cat", "coffee")), ("running", photo("cheetah")), ("face", photo("cheetah_face")),
        ("photos/cat", photo("cat")), ("photos/coffee", photo("coffee")), ("photos/lion", photo("lion")),
        ("my_images/cheetah/1", photo("cheetah")), ("my_images/lion/1", photo("lion")),
    ):  # fmt: skip
        Path(f"{name}.jpg").parent.mkdir(parents=True, exist_ok=True)
        made.save(f"{name}.jpg")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    with warnings.catch_warnings(action="ignore", category=GamlensWarning):
        for block in blocks:
            exec(compile(block, "index.md", "exec"), names)
    assert names["why"].scores.tolist() == pytest.approx([hit.score for hit in names["hits"]], abs=1e-4)
    assert {Path(hit.file).stem for hit in names["hits"]} == {"cat", "coffee"}
    assert names["run"].errors == []
    drawn, wanted = Image.open("espresso.png"), Image.open(DOCS / "images/gallery/scene-espresso.jpg")
    assert np.abs(np.asarray(drawn.convert("RGB"), float) - np.asarray(wanted)).mean() < 4  # of 255
    for made in ("espresso.png", "similar.png", "links.png", "first_hit.png", "out/leaderboard.html"):
        assert Path(made).stat().st_size > 10_000, made


def test_the_numbers_are_those_of_the_pictures() -> None:
    numbers = json.loads((DOCS / "images/gallery/numbers.json").read_text())
    gallery = (DOCS / "gallery.md").read_text(encoding="utf-8")
    for name in ("cosine of two cheetahs", "probability of the photo", "probability of what the map shows",
                 "probability of the rest"):  # fmt: skip
        for text in (PAGE, gallery):
            assert f"{numbers[name]:.2f}" in text, name
    for name in ("contrast", "found 0: cat", "found 1: coffee", "region 0: coffee"):
        assert f"{numbers[name]:.2f}" in gallery, name
    assert f"{100 * numbers['hidden share, lion']:.0f} %" in gallery


def test_every_picture_of_the_gallery_is_shown_and_there() -> None:
    pages = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("index.md", "gallery.md", "method.md"))
    shown = set(re.findall(r"images/gallery/([\w-]+\.jpg)", pages))
    assert shown == {path.name for path in (DOCS / "images/gallery").glob("*.jpg")}
