"""gamlens search as a user runs it: the most similar images of a folder, and why."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from gamlens import Gallery, Lens, PairExplanation, Refinement, Transform
from gamlens.cli import app, search_command
from gamlens.data.photos import path
from gamlens.render import thumbnail
from gamlens.report import search

runner = CliRunner()
NAMES = ("cheetah", "lion", "coffee", "rocket", "tower")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five photos, one of them below, and two files that are none."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "below").mkdir()
    for name in NAMES:
        place = folder / "below" if name == "tower" else folder
        Image.open(path(name)).convert("RGB").resize((200, 150)).save(place / f"{name}.png")
    (folder / "text.jpg").write_text("no image")
    (folder / "empty.png").touch()
    return folder


@pytest.fixture(scope="module")
def gallery(photos: Path) -> Path:
    """The photos as the embedded model sees them, saved."""
    lens = Lens("efficientnet_lite0")
    files = [photos / "below/tower.png", *(photos / f"{name}.png" for name in NAMES[:4])]
    return Path(lens.remember([str(file) for file in files]).save(str(photos.parent / "photos.npz")))


@pytest.fixture
def query(tmp_path: Path) -> str:
    Image.open(path("cheetah_face")).resize((160, 200)).save(tmp_path / "face.jpg")
    return str(tmp_path / "face.jpg")


def asked(*arguments: str | Path, code: int = 0) -> Any:
    result = runner.invoke(app, ["search", *map(str, arguments)], env={"COLUMNS": "400"})
    assert result.exit_code == code, result.stderr
    return result


def test_a_folder_is_searched_and_bad_files_are_told(photos: Path, query: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = asked(query, "--in", photos, "--top", "2", "--out", out, "--save-gallery", tmp_path / "new/g.npz")
    lines = [line.split() for line in result.stdout.splitlines()[1:3]]
    assert [line[-1] for line in lines] == ["lion.png", "cheetah.png"]
    assert "2 of 7 images are left out: empty.png, text.jpg" in result.stderr
    assert result.stderr.count("\n") == 1
    page = (out / "index.html").read_text()
    assert page.count('role="columnheader"') == 3
    assert page.count("data:image/jpeg") == 3 + 2 * 2
    assert f"cosine {float(lines[0][-2]):.3f}" in page
    assert Image.open(out / "face" / "matches.png").width > 3 * 200
    assert {Path(picture.path or "").name for picture in Gallery.load(str(tmp_path / "new/g.npz")).pictures} == {
        f"{name}.png" for name in NAMES
    }


def test_json_has_the_scores_and_maps_of_compare(gallery: Path, query: str, tmp_path: Path) -> None:
    """A saved gallery gives what comparing each pair on its own gives, at n = 1 and through the network."""
    lens = Lens("efficientnet_lite0")
    for n in ("1", "2"):
        result = asked(query, "--in", gallery, "--top", "1", "--json", "--maps", "--out", tmp_path / n, "-n", n)
        (record,) = json.loads(result.stdout)
        (match,) = record["matches"]
        assert Path(match["file"]).name == "lion.png"
        alone = lens.compare(query, match["file"], n=int(n))
        assert match["score"] == pytest.approx(float(alone.scores[0]), abs=1e-5)
        saved = PairExplanation.load(str(tmp_path / n / "face"))
        for side in "xy":
            torch.testing.assert_close(getattr(saved, side).maps, getattr(alone, side).maps, atol=1e-3, rtol=0)
        assert match["boxes"]["y"] == alone.y.boxes().tolist()[0]
        assert Path(record["picture"]) == tmp_path / n / "face" / "matches.png"


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of images in the forwards of a small model, which searches use in place of the usual one."""
    seen: list[int] = []
    lens = Lens(nets.small().float(), transform=Transform((64, 64)))
    lens.model.stem.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    monkeypatch.setattr(search_command, "make_lens", lambda *_, **__: lens)
    seen.clear()
    return seen


@pytest.mark.parametrize("n", ["1", "2"])
def test_sharp_maps_are_those_of_compare(photos: Path, query: str, forwards: list[int], tmp_path: Path, n: str) -> None:
    """Of a folder, of a gallery that has the earlier blocks, and of one that has not: its matches are run again."""
    words = ["--top", "1", "-n", n, "--maps", "--json"]
    sharp = ["--refine", "1", "--keep", "0.25"]
    asked(query, "--in", photos, *words, "--save-gallery", tmp_path / "plain.npz", "--out", tmp_path / "plain")
    asked(query, "--in", photos, *words, *sharp, "--save-gallery", tmp_path / "kept.npz", "--out", tmp_path / "kept")
    assert list(Gallery.load(str(tmp_path / "kept.npz")).earlier) == ["layer2"]
    assert not Gallery.load(str(tmp_path / "plain.npz")).earlier
    lens = search_command.make_lens()
    plain = PairExplanation.load(str(tmp_path / "plain" / "face"))
    counts = {}
    for place in (photos, tmp_path / "plain.npz", tmp_path / "kept.npz"):
        forwards.clear()
        out = tmp_path / f"of-{place.stem}"
        (record,) = json.loads(asked(query, "--in", place, *words, *sharp, "--out", out).stdout)
        counts[place.stem] = sum(forwards)
        saved = PairExplanation.load(str(out / "face"))
        alone = lens.compare(query, record["matches"][0]["file"], n=int(n), refine=Refinement(1, 0.25))
        for side in "xy":
            maps = getattr(saved, side).maps
            torch.testing.assert_close(maps, getattr(alone, side).maps, atol=1e-3, rtol=0)
            assert float((maps - getattr(plain, side).maps).abs().max()) > 0.02
        assert saved.x.about["refine"] == {"blocks": ["layer2"], "keep": 0.25}
        assert "The maps are refined" in (out / "index.html").read_text()
    again = 2  # the query and its match
    check = 2  # one image as both sides of a pair, which finds out before a long search whether there are enough blocks
    assert counts["kept"] == 1 + check + (again if n == "2" else 0)
    assert counts["plain"] == 1 + check + again
    assert counts[photos.stem] == 1 + check + len(NAMES) + again


def test_too_few_blocks_to_refine_by_are_found_out_before_the_search(
    query: str, photos: Path, forwards: list[int], tmp_path: Path
) -> None:
    for more in ([], ["--save-gallery", str(tmp_path / "new.npz")]):
        result = asked(query, "--in", photos, "--refine", "3", *more, "--out", tmp_path / "out", code=1)
        assert "the model has 2 before the last (layer1, layer2): give at most 2." in result.stderr
        assert sum(forwards) <= 3
        forwards.clear()
    assert not (tmp_path / "out").exists()


def test_the_query_is_left_out_of_its_own_matches(photos: Path, gallery: Path, tmp_path: Path) -> None:
    """By bytes, so a copy under another name as well; --with-self keeps it, with empty maps that say so."""
    copy = shutil.copy(photos / "lion.png", tmp_path / "another.png")
    for file in (copy, photos / "lion.png"):
        result = asked(file, "--in", gallery, "--top", "9", "--json", "--out", tmp_path)
        (record,) = json.loads(result.stdout)
        assert record["left_out"] == [str(photos / "lion.png")]
        assert len(record["matches"]) == 4
        assert "lion.png" not in {Path(match["file"]).name for match in record["matches"]}
    assert "Left out, as it is the query itself" in (tmp_path / "index.html").read_text()
    result = asked(copy, "--in", gallery, "--top", "1", "--with-self", "--out", tmp_path)
    assert "1.0000  lion.png" in result.stdout
    assert "no map: the same to the model" in (tmp_path / "index.html").read_text()
    assert Path(copy).read_bytes() == (photos / "lion.png").read_bytes()
    told = asked(copy, "--in", gallery, "--top", "1", "--out", tmp_path).stderr
    assert "another.png: the same file is there too and is left out" in told


def test_many_matches_go_on_in_the_next_line(gallery: Path, query: str, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(search, "MATCHES_ACROSS", 2)
    lens = Lens("efficientnet_lite0")
    (answer,) = search.search(
        lens, lens.remember([query]), Gallery.load(str(gallery)), search.SearchOptions(), out=tmp_path
    )
    assert [grid.columns[:1] + grid.columns[2:] for grid in answer.grids[1:]] == [
        ("Query", answer.grids[1].columns[2]),
        ("Query", ""),
    ]
    assert [len(grid.rows[0]) for grid in answer.grids] == [3, 3, 2]
    assert [bool(grid.keys) for grid in answer.grids] == [False, False, True]
    heads = [head for grid in answer.grids for head in grid.columns[1:] if head]
    assert [head.split(".")[0] for head in heads] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("transform", ["squash", "crop"])
def test_a_small_overlay_is_the_overlay_made_thumbnail(transform: str, query: str) -> None:
    lens = Lens("efficientnet_lite0", transform=transform)
    result = lens.compare(query, str(path("lion")), n=1).y
    panel = search._heat(result, 0, thumbnail(result.image(), 120), 1, "why")
    wanted = np.asarray(thumbnail(result.overlay(), 120), dtype=float)
    assert np.abs(np.asarray(panel.image, dtype=float) - wanted).mean() < 2
    assert panel.caption == "why"


def test_images_that_are_gone_are_left_out_of_a_gallery(photos: Path, query: str, tmp_path: Path) -> None:
    for name in ("cheetah", "lion"):
        shutil.copy(photos / f"{name}.png", tmp_path / f"{name}.png")
    files = [str(tmp_path / f"{name}.png") for name in ("cheetah", "lion")]
    Lens("efficientnet_lite0").remember(files).save(str(tmp_path / "g.npz"))
    (tmp_path / "cheetah.png").unlink()
    result = asked(query, "--in", tmp_path / "g.npz", "--out", tmp_path / "out")
    assert "1 of 2 images are left out: cheetah.png" in result.stderr
    assert "lion.png" in result.stdout
    (tmp_path / "lion.png").unlink()
    result = asked(query, "--in", tmp_path / "g.npz", "--out", tmp_path / "out", code=1)
    assert "are not there, such as" in result.stderr


def test_a_bad_query_does_not_stop_the_others(gallery: Path, photos: Path, query: str, tmp_path: Path) -> None:
    result = asked(photos / "text.jpg", query, "--in", gallery, "--out", tmp_path, code=1)
    assert "text.jpg" in result.stderr
    assert "1 of 2 queries could not be read" in result.stderr
    assert "cheetah.png" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--in", "{gallery}", "--model", "efficientnet_lite1"], "made with model 'efficientnet_lite0'"),
        (["--in", "{gallery}", "--weights", "random"], "its weights are others"),
        (["--in", "{photos}/none.npz"], "There is no gallery"),
        (["--in", "{photos}/text.jpg"], "Cannot read"),
        (["--in", "{photos}/*.tif"], "Nothing matches"),
        (["--in", "{gallery}", "--method", "gm"], "did you mean 'gam'"),
        (["--in", "{gallery}", "--score", "cosin"], "did you mean 'cosine'"),
        (["--in", "{gallery}", "--fuse", "sum"], "no fusion 'sum'"),
        (["--in", "{photos}/*.tif", "-n", "9"], "n from 1 to 4"),
        (["--in", "{gallery}", "--save-gallery", "new.npz"], "a folder to search"),
        (["--in", "{photos}", "--save-gallery", "new.np"], "name a .npz file"),
        (["--in", "{query}"], "or give --with-self"),
    ],
)
def test_errors_are_one_line(photos, gallery, query, tmp_path, arguments: list[str], message: str) -> None:
    words = [word.format(photos=photos, gallery=gallery, query=query) for word in arguments]
    result = asked(query, *words, "--out", tmp_path / "out", code=1)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "out").exists()


def test_an_out_that_is_a_file_is_found_out_before_any_image_is_looked_at(
    photos: Path, query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page").touch()
    monkeypatch.setattr(search, "remember", lambda *_: pytest.fail("images were looked at"))
    assert "page is a file: name a folder" in asked(query, "--in", photos, "--out", tmp_path / "page", code=1).stderr
