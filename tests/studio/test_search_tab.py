"""The tab "Search" without a page: what is found, regions, filters, chosen hits, and what it costs."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from studio_kit import noise, small_lens
from visitor import Visitor, values

from gamlens import GamlensError, Lens
from gamlens.cli.show import _studio_index
from gamlens.index.index import Index
from gamlens.index.region_pair import region_pair
from gamlens.index.short_text import LONGEST_SHOWN
from gamlens.studio import html_fragments, launch
from gamlens.studio.actions import HINTS, Actions
from gamlens.studio.controls import LINKS, Controls
from gamlens.studio.hit_thumbnails import HIT_SIDE, HitThumbnails
from gamlens.studio.model_cache import ModelCache
from gamlens.studio.search_actions import (
    LARGEST_PART,
    MOST_HITS,
    Asked,
    SearchActions,
    SearchUpdate,
    checked_region,
)
from gamlens.studio.searched_indexes import SearchedIndexes
from gamlens.studio.session import ClickedPoint, MarkedRegion, Sessions

pytestmark = pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
USUAL, ALL = Controls(), Asked()
UPPER_LEFT = MarkedRegion(0.0, 0.0, 0.5, 0.5)


@pytest.fixture
def photos(tmp_path: Path) -> dict[str, Path]:
    """Five photos of one size, and one of another."""
    sizes = {"wide": (200, 60)}
    names = ("ant", "bee", "cat", "dog", "eel", "wide")
    return {
        name: noise(tmp_path / f"{name}.png", seed=number, size=sizes.get(name, (96, 64)))
        for number, name in enumerate(names)
    }


@pytest.fixture
def query(tmp_path: Path) -> Path:
    return noise(tmp_path / "query.png", seed=77, size=(120, 80))


COLUMNS = {"ant": {"legs": 6, "price": 3.5}, "bee": {"legs": 6}, "cat": {"legs": 4, "name": "<b>Tom</b> & 'Co'"}}


def searching(photos: dict[str, Path], lens: Lens | None = None, **options: Any) -> SearchActions:
    actions = Actions(ModelCache({"small": lens or small_lens(), "other": small_lens()}, any_name=False))
    return SearchActions(actions, SearchedIndexes(photos, COLUMNS, **options))


@pytest.fixture
def search(photos: dict[str, Path]) -> SearchActions:
    return searching(photos)


def by_crop() -> Lens:
    """A lens whose embedding is no average over positions."""
    return Lens(small_lens().model, embedding="output", transform=small_lens().transform)


@pytest.fixture
def stored(photos: dict[str, Path], tmp_path: Path) -> Iterator[Index]:
    with Index.create(tmp_path / "shop.gamlens", small_lens()) as index:
        index.add([str(file) for file in photos.values()])
        index.annotate({str(photos[name]): row for name, row in COLUMNS.items()})
        yield index


def slots(update: SearchUpdate) -> list[int]:
    return [int(number) for number in re.findall(r'data-pick="(\d+)"', update.hits)]


def names(update: SearchUpdate) -> list[str]:
    return re.findall(r'gl-name">([^<]+)<', update.hits)


def scores(update: SearchUpdate) -> list[float]:
    return [float(number) for number in re.findall(r"<b>([^<]+)</b>", update.hits)]


def pictures(stage: str) -> list[str]:
    return re.findall(r'<img src="([^"]+)"', stage)


def test_a_photo_finds_hits_and_the_best_is_explained(
    search: SearchActions, photos: dict[str, Path], query: Path
) -> None:
    found = search.set_query("me", query, ALL, USUAL)
    lens = search.actions.models.lens("small")
    wanted = Index.of_gallery(lens.remember([str(file) for file in photos.values()]), lens).search(str(query))
    assert names(found) == [Path(hit.path).name for hit in wanted]
    assert scores(found) == [round(hit.score, 3) for hit in wanted]
    assert found.hits.count("<img") == len(photos)
    assert found.hits.count('aria-pressed="true"') == 1
    assert len(pictures(found.pair.stage)) == 2
    assert f"Cosine similarity {wanted[0].score:.3g}" in found.pair.stage
    assert "data-draw" in found.query
    other = search.choose_hit("me", slots(found)[2], USUAL)
    assert pictures(other.pair.stage) != pictures(found.pair.stage)
    assert f"Cosine similarity {wanted[2].score:.3g}" in other.pair.stage
    assert other.columns is None


def test_only_a_new_photo_region_or_hit_runs_the_model(photos: dict[str, Path], query: Path) -> None:
    lens, seen = small_lens(), list[int]()
    search = searching(photos, lens)
    lens.model.stem.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    found = search.set_query("me", query, ALL, USUAL)
    assert sum(seen) == len(photos) + 1 + 2
    seen.clear()
    search.search_again("me", Asked("legs = 6", 1), USUAL)
    seen.clear()
    search.search_again("me", Asked("legs = 6 and price < 4", 5), USUAL)
    search.search_again("me", Asked("legs in (4, 6)", 5), USUAL)
    for controls in (replace(USUAL, sign="both"), replace(USUAL, sharp=True), replace(USUAL, view=LINKS), USUAL):
        assert search.actions.redraw("me", "search", controls).blocks
        assert search.actions.download("me", "search", "json", controls).data
    search.actions.set_point("me", ClickedPoint("x", 0.3, 0.7), USUAL, tab="search")
    assert seen == []
    search.set_region("me", UPPER_LEFT, ALL, USUAL)
    assert seen == [1, 2]
    search.set_query("you", query, ALL, USUAL)
    assert seen == [1, 2, 1, 2]
    assert len(slots(found)) == len(photos)


def test_controls_points_and_signs_are_those_of_a_pair(
    search: SearchActions, photos: dict[str, Path], query: Path
) -> None:
    """What is drawn of a hit is what the pair tab draws of the same two photos."""
    found = search.set_query("me", query, ALL, USUAL)
    best = photos[names(found)[0].removesuffix(".png")]
    actions = search.actions
    actions.set_photos("me", {"x": query, "y": best}, USUAL)
    for controls in (
        USUAL,
        replace(USUAL, sign="both"),
        replace(USUAL, method="grad_cam", n=1),
        replace(USUAL, view=LINKS),
    ):
        pair, hit = (actions.redraw("me", tab, controls).stage for tab in ("pair", "search"))
        assert pair == hit
    point = ClickedPoint("y", 0.2, 0.8)
    drawn = [actions.set_point("me", point, USUAL, tab=tab).stage for tab in ("pair", "search")]
    assert drawn[0] == drawn[1]
    assert "What matches it" in drawn[1]
    assert actions.set_point("me", None, USUAL, tab="search").stage == found.pair.stage
    assert "What matches it" in actions.redraw("me", "pair", USUAL).stage  # each tab has a point of its own


def test_a_region_changes_hits_and_its_map_lies_in_it(
    search: SearchActions, query: Path, photos: dict[str, Path]
) -> None:
    whole = search.set_query("me", query, ALL, USUAL)
    part = search.set_region("me", UPPER_LEFT, ALL, USUAL)
    assert scores(part) != scores(whole)
    assert f"Cosine similarity {scores(part)[0]:.3g}"[:-1] in part.pair.stage
    assert "left:0.00%;top:0.00%;width:50.00%;height:50.00%" in part.query
    assert 'data-pick="whole"' in part.query
    last = replace(USUAL, n=1)
    maps = np.load(io.BytesIO(search.actions.download("me", "search", "maps", last).data))
    raw = maps["x:raw:" + next(name[6:] for name in maps.files if name.startswith("x:raw:"))]
    assert raw[:2, :2].any()
    assert not raw[2:].any()
    assert not raw[:, 2:].any()
    assert search.set_region("me", None, ALL, USUAL).hits == whole.hits
    point = search.set_region("me", MarkedRegion(1.0, 0.0), ALL, USUAL)
    assert "left:75.00%;top:0.00%;width:25.00%;height:25.00%" in point.query
    matched = search.actions.set_point("me", ClickedPoint("x", 0.9, 0.1), USUAL, tab="search").stage
    assert "(100.0 %)" in matched  # the point is all that was searched for


@pytest.mark.parametrize("size", [(96, 64), (200, 60)])
def test_the_pair_of_a_region_has_the_score_of_the_search(photos: dict[str, Path], query: Path, size: Any) -> None:
    """Also its gradient: that of the last block is the same at all positions, and weights are zero outside."""
    lens = small_lens()
    index = Index.of_gallery(lens.remember([str(file) for file in photos.values()]), lens)
    hits = index.search(index.query(str(query), box=(13, 7, 55, 70)))
    for number in range(len(hits)):
        pair = index.trace(hits, number)
        x, y = pair.sides("cosine")
        assert float(x.scores[0]) == pytest.approx(hits[number].score, abs=1e-5)
        wanted = index.explain(hits)
        found = pair.explain("gam", 1)
        torch.testing.assert_close(found.x.maps[0], wanted.x.maps[number], atol=1e-4, rtol=0)
        torch.testing.assert_close(found.y.maps[0], wanted.y.maps[number], atol=1e-4, rtol=0)
        assert all(bool(gradient.any()) for gradient in (*x.gradients.values(), *y.gradients.values()))
        parts = pair.interactions()
        assert parts.exact
        assert float(parts.matrix.sum()) == pytest.approx(hits[number].score, abs=1e-5)
    whole = index.search(str(query))
    trace = index.trace(whole)
    assert region_pair(trace, whole.query) is trace


def test_a_region_is_cut_out_where_there_is_no_average(photos: dict[str, Path], tmp_path: Path) -> None:
    search = searching(photos, by_crop())
    large = noise(tmp_path / "large.png", seed=5, size=(6000, 300))
    search.set_query("me", large, ALL, USUAL)
    part = search.set_region("me", MarkedRegion(0.0, 0.0, 1.0, 0.5), ALL, USUAL)
    assert "cut out" in part.hits
    session = search.actions.sessions.get("me")
    assert session.search is not None
    assert session.search.query is not None
    assert max(session.search.query.sides[0].pictures[0].open().size) == LARGEST_PART
    x = session.search.pair.photos["x"]
    assert x.size == (LARGEST_PART, LARGEST_PART * 150 // 6000)
    assert x.picture.open().size == x.size
    assert len(pictures(part.pair.stage)) == 2


def test_filters(search: SearchActions, query: Path) -> None:
    before = search.set_query("me", query, ALL, USUAL)
    assert before.columns is not None
    for column in ("legs", "price", "name", "image.name", "image.width"):
        assert f"<code>{column}</code>" in before.columns
    assert sorted(names(search.search_again("me", Asked("legs = 6"), USUAL))) == ["ant.png", "bee.png"]
    assert names(search.search_again("me", Asked("price < 4"), USUAL)) == ["ant.png"]
    assert len(names(search.search_again("me", Asked("", 2), USUAL))) == 2
    none = search.search_again("me", Asked("legs > 8"), USUAL)
    assert "No photo fits the filter" in none.hits
    assert HINTS["search"] in none.pair.stage
    wrong = search.search_again("me", Asked("lags = 6"), USUAL)
    assert wrong.columns is not None
    assert "did you mean &#39;legs&#39;" in wrong.columns
    assert 'role="alert"' in wrong.columns
    assert names(wrong) == []
    assert search.search_again("me", ALL, USUAL)[:3] == before[:3]


@pytest.mark.parametrize(
    "where",
    [
        "1=1; DROP TABLE images",
        "legs = 6 OR 1=1 --",
        "legs = '<script>alert(1)</script>",
        '"<img src=x onerror=alert(1)>" = 1',
        "image.path like '/%'",
        "legs = (select 1)",
        "(" * 500,
        "\0",
        "x" * 5000,
    ],
)
def test_hostile_filters_do_nothing(search: SearchActions, query: Path, where: str) -> None:
    search.set_query("me", query, ALL, USUAL)
    update = search.search_again("me", Asked(where), USUAL)
    assert update.columns is not None
    assert 'role="alert"' in update.columns
    assert "<script" not in update.columns
    assert "<img" not in update.columns
    assert names(update) == []
    assert len(names(search.search_again("me", ALL, USUAL))) == 6


def test_what_visitors_see_is_escaped_and_names_no_folder(photos: dict[str, Path], query: Path, tmp_path: Path) -> None:
    odd = noise(tmp_path / "<script>'\"&\x1b.png", seed=9)
    row = {"<i>c</i>": "<b>v\u202e</b>", "long": "x" * 500, "lines": "a\nb", "real": 0.1 + 0.2, "my column": 1}
    columns = {"odd": row}
    actions = Actions(ModelCache({"small": small_lens()}, any_name=False))
    search = SearchActions(actions, SearchedIndexes({**photos, "odd": odd}, columns))
    update = search.set_query("me", query, ALL, USUAL)
    for text in (*update[:3], update.pair.stage):
        assert "<script>" not in (text or "")
        assert "<b>v" not in (text or "")
        assert str(tmp_path) not in (text or "")
        assert "\u202e" not in (text or "")
    assert "&lt;b&gt;v\\u202e&lt;/b&gt;" in update.hits
    assert '"my column"' in unescape(update.columns or "")
    assert "x" * (LONGEST_SHOWN - 1) + "…" in update.hits
    assert "</i> 0.3<" in update.hits
    assert "\x1b" not in update.hits


def test_hits_whose_files_are_gone(stored: Index, photos: dict[str, Path], query: Path, tmp_path: Path) -> None:
    search = searching(photos, stored.lens, given=stored)
    first = search.set_query("me", query, ALL, USUAL)
    best = names(first)[0]
    (tmp_path / best).unlink()
    again = search.set_query("me", query, ALL, USUAL)
    assert names(again) == names(first)
    assert again.hits.count("<img") == len(photos) - 1
    assert "its file is gone" in again.hits
    assert slots(again)[1] == _pressed(again)  # the best one that can be explained
    gone = search.choose_hit("me", slots(again)[0], USUAL)
    assert "gone" in gone.pair.stage
    assert pictures(gone.pair.stage) == []
    assert HINTS["search"] in search.actions.redraw("me", "search", USUAL).stage
    broken = tmp_path / names(first)[1]
    broken.write_text("no image")
    bad = search.choose_hit("me", slots(again)[1], USUAL)
    assert "has changed since it was indexed" in bad.pair.stage
    assert str(tmp_path) not in bad.pair.stage
    with pytest.raises(GamlensError, match="no hit"):
        search.actions.download("me", "search", "json", USUAL)


def test_a_hit_whose_file_has_changed(stored: Index, photos: dict[str, Path], query: Path, tmp_path: Path) -> None:
    search = searching(photos, stored.lens, given=stored)
    first = search.set_query("me", query, ALL, USUAL)
    best, second = names(first)[:2]
    noise(tmp_path / best, seed=40, size=(200, 200))
    os.utime(tmp_path / second, (1, 1))  # the same contents
    again = search.set_query("me", query, ALL, USUAL)
    assert names(again) == [f"{best} (changed)", *names(first)[1:]]
    assert slots(again)[1] == _pressed(again)  # the best one that can be explained
    chosen = search.choose_hit("me", slots(again)[0], USUAL)
    assert "has changed since it was indexed" in chosen.pair.stage
    assert "gamlens index update" in chosen.pair.stage
    assert pictures(chosen.pair.stage) == []


def _pressed(update: SearchUpdate) -> int:
    return int(re.findall(r'data-pick="(\d+)" aria-pressed="true"', update.hits)[0])


def test_an_index_belongs_to_its_model(stored: Index, photos: dict[str, Path], query: Path) -> None:
    search = searching(photos, stored.lens, given=stored)
    first = search.set_query("me", query, ALL, USUAL)
    assert names(first)[0] in [file.name for file in photos.values()]
    assert search.renewed("me", ALL, USUAL) is None
    choose(search, "other")
    other = search.renewed("me", ALL, USUAL)
    assert other is not None
    assert "choose small under Model" in other.hits
    assert HINTS["search"] in other.pair.stage
    choose(search, "small")
    back = search.renewed("me", ALL, USUAL)
    assert back is not None
    assert back[:2] == first[:2]
    assert search.renewed("nobody", ALL, USUAL) is None


def choose(search: SearchActions, name: str) -> None:
    choice = search.actions.choose_model("me", name)
    choice.lens.result()
    assert search.actions.use_model("me", choice, USUAL, USUAL).notice == ""


def test_the_example_photos_are_searched_by_the_chosen_model(photos: dict[str, Path], query: Path) -> None:
    """The small index is made again, once for all visitors with that model, and goes with the last of them."""
    search = searching(photos)
    first = search.set_query("me", query, ALL, USUAL)
    choose(search, "other")
    other = search.renewed("me", ALL, USUAL)
    assert other is not None
    assert len(names(other)) == len(names(first))
    index = search.indexes._alive["other"]
    assert index.lens is search.actions.models.lens("other")
    session = search.actions.sessions.get("me")
    assert session.search is not None
    assert session.search.index is index
    del index, session
    search.actions.sessions.end("me")
    assert list(search.indexes._alive) == ["small"]


def test_visitors_do_not_share(search: SearchActions, photos: dict[str, Path], query: Path) -> None:
    mine = search.set_query("me", query, ALL, USUAL)
    yours = search.set_query("you", photos["dog"], Asked("legs = 6"), USUAL)
    assert "The photo itself" not in mine.hits
    assert "The photo itself" in yours.hits
    search.set_region("you", UPPER_LEFT, ALL, USUAL)
    assert search.search_again("me", ALL, USUAL)[:3] == mine[:3]
    assert search.actions.redraw("me", "search", USUAL).stage == mine.pair.stage
    left = search.choose_hit("nobody", slots(mine)[0], USUAL)
    assert "none of the hits" in left.hits


def test_uploads_are_deleted_and_files_of_the_index_stay(
    stored: Index, photos: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "uploads"
    uploads = [noise(folder_of(folder, name) / "mine.png", seed=number) for number, name in enumerate("ab")]
    actions = Actions(ModelCache({"small": stored.lens}, any_name=False), Sessions(folder=folder))
    search = SearchActions(actions, SearchedIndexes(photos, given=stored))
    for upload in uploads:
        found = search.set_query("me", upload, ALL, USUAL)
        search.set_region("me", UPPER_LEFT, ALL, USUAL)
    assert [upload.exists() for upload in uploads] == [False, True]
    for slot in slots(found):
        search.choose_hit("me", slot, USUAL)
    actions.sessions.end("me")
    assert not uploads[1].exists()
    assert all(file.exists() for file in photos.values())
    assert actions.sessions.files._uploads == {}


def folder_of(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    return folder / name


def test_a_photo_is_removed_or_cannot_be_read(search: SearchActions, query: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_text("text")
    wrong = search.set_query("me", bad, ALL, USUAL)
    assert "Cannot read" in wrong.hits
    assert wrong.query == ""
    assert not search.has_query("me")
    search.set_query("me", query, ALL, USUAL)
    assert search.has_query("me")
    empty = search.set_query("me", None, ALL, USUAL)
    assert "Drop a photo" in empty.hits
    assert HINTS["search"] in empty.pair.stage
    assert HINTS["search"] in search.actions.redraw("me", "search", USUAL).stage


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (MarkedRegion(0.9, 0.8, 0.1, 0.2), MarkedRegion(0.1, 0.2, 0.9, 0.8)),
        (MarkedRegion(-3, 0.5, 7, 0.9), MarkedRegion(0, 0.5, 1, 0.9)),
        (MarkedRegion(2, -1), MarkedRegion(1, 0)),
    ],
)
def test_regions_lie_in_the_photo(given: MarkedRegion, wanted: MarkedRegion) -> None:
    assert checked_region(given) == wanted


@pytest.mark.parametrize(
    "region", [MarkedRegion(float("nan"), 0), MarkedRegion(0, 0, float("inf"), 1), MarkedRegion(0, 0, 1)]
)
def test_what_is_no_region(search: SearchActions, query: Path, region: MarkedRegion) -> None:
    with pytest.raises(GamlensError, match="no region"):
        checked_region(region)
    search.set_query("me", query, ALL, USUAL)
    assert "no region" in search.set_region("me", region, ALL, USUAL).hits


def test_an_empty_box_is_a_message(search: SearchActions, query: Path) -> None:
    search.set_query("me", query, ALL, USUAL)
    update = search.set_region("me", MarkedRegion(0.5, 0.5, 0.5, 0.9), ALL, USUAL)
    assert "x0 &lt; x1" in update.hits
    assert 'data-pick="whole"' in update.query  # the way back
    assert len(names(search.set_region("me", None, ALL, USUAL))) == 6


def test_asked_values_are_bounded() -> None:
    assert Asked.from_values(None, 10**9) == Asked("", MOST_HITS)
    assert Asked.from_values(" a = 1 ", -5) == Asked("a = 1", 1)


def test_thumbnails(tmp_path: Path) -> None:
    made = HitThumbnails(most=2)
    files = [noise(tmp_path / f"{number}.png", seed=number, size=(1000, 400)) for number in range(3)]
    found = [made.of(str(file)) for file in files]
    assert all(found)
    assert len(made._made) == 2
    assert made.of(str(files[2])) is found[2]
    assert max(Image.open(io.BytesIO(found[0] or b"")).size) == HIT_SIDE
    noise(files[2], seed=9, size=(100, 100))
    assert made.of(str(files[2])) != found[2]
    (tmp_path / "bad.png").write_text("text")
    for name in ("bad.png", "gone.png", "."):
        assert made.of(str(tmp_path / name)) is None


def test_photos_of_an_index_to_begin_with(stored: Index, photos: dict[str, Path], tmp_path: Path) -> None:
    indexes = SearchedIndexes({}, given=stored)
    photos["ant"].unlink()
    photos["bee"].write_text("no image")
    (tmp_path / "copies").mkdir()
    offered = indexes.offered(tmp_path / "copies")
    assert 3 <= len(offered) <= 5
    for _, (copy,) in offered.values():
        assert copy.parent == tmp_path / "copies"
        assert copy.read_bytes() != b"no image"
        assert copy.read_bytes() in [file.read_bytes() for file in photos.values() if file.exists()]
    search = SearchActions(Actions(ModelCache({"small": stored.lens}, any_name=False)), indexes, offered)
    found = search.set_query("me", next(iter(offered.values()))[1][0], ALL, USUAL)
    assert "The photo itself is left out" in found.hits


def test_nothing_to_search(query: Path) -> None:
    search = SearchActions(Actions(ModelCache({"small": small_lens()}, any_name=False)), SearchedIndexes({}))
    assert "gamlens[demo]" in search.set_query("me", query, ALL, USUAL).hits


def test_examples_have_columns() -> None:
    text = json.loads(html_fragments.static_file("examples.json"))
    named = {name for tab in ("class", "pair", "search") for _, names in text[tab].values() for name in names}
    assert named <= set(text["columns"])


def test_an_index_that_changes_meanwhile(stored: Index, photos: dict[str, Path], query: Path) -> None:
    """A hit that was taken out is a message without its folder; a new search does not find it."""
    search = searching(photos, stored.lens, given=stored)
    found = search.set_query("me", query, ALL, USUAL)
    second = names(found)[1]
    stored.remove([str(photos[second.removesuffix(".png")])])
    gone = search.choose_hit("me", slots(found)[1], USUAL)
    assert "search again" in gone.pair.stage
    assert str(photos["ant"].parent) not in gone.pair.stage
    assert second not in names(search.search_again("me", ALL, USUAL))


def test_a_failure_that_nobody_foresaw(
    search: SearchActions, query: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **options: Any) -> Callable[..., Any]:
        raise ZeroDivisionError("<b>oh</b>")

    monkeypatch.setattr(Index, "search", fail)
    update = search.set_query("me", query, ALL, USUAL)
    assert "This failed: ZeroDivisionError: &lt;b&gt;oh" in update.hits
    assert "an action of the studio failed" in caplog.text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio")
def test_a_studio_with_an_index(stored: Index, tmp_path: Path) -> None:
    """By its folder, with the model that made it, or opened; another model is refused, and nothing is left behind."""
    folder = str(stored.folder)
    with launch({"mine": small_lens()}, index=folder) as running:
        assert running.actions.models.names[0] == "mine"
        assert len(list(running.folder.glob("indexed-*/*"))) >= 3
        visitor = Visitor(running, "searcher")
        found = visitor.call("first_search", ["legs = 6", 5, *values(USUAL)])
        assert "0.0" in found[1] or "0.9" in found[1]
        assert "Columns:" in found[2]
    with launch({"other": small_lens(), stored.lens.name: "resnet18"}, index=stored) as running:
        assert running.actions.models.names[:2] == [stored.lens.name, "other"]
        assert running.actions.models.lens(stored.lens.name) is stored.lens
        place = running.folder
        assert len(list(place.glob("indexed-*"))) == 1
    assert not list(place.glob("indexed-*"))
    with pytest.raises(GamlensError, match="was made with"):
        launch({"cut": by_crop()}, index=folder)
    assert not list(place.glob("indexed-*"))


def test_the_command_opens_an_index_with_its_model(photos: dict[str, Path], tmp_path: Path) -> None:
    """With the model that it says, or, if it says none, with the first --model."""
    code = tmp_path / "build.py"
    code.write_text("from studio_kit import small_lens\n\n\ndef build():\n    return small_lens()\n")
    for name, made_with in (("says", {"model": f"{code}:build"}), ("silent", {})):
        with Index.create(tmp_path / name, small_lens(), made_with=made_with) as index:
            index.add([str(photos["ant"])])
    for name, models in (("says", {"resnet18": "resnet18"}), ("silent", {"it": small_lens()})):
        with _studio_index(tmp_path / name, models, "auto") as found:
            assert len(found.search(str(photos["bee"]))) == 1
    with _studio_index(tmp_path / "silent", {"code": f"{code}:build"}, "auto") as found:
        assert found.lens.name
