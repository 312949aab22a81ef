"""gamlens index and gamlens search --in INDEX as a user types them."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from index_kit import CountingLens, photo, put, ranked
from PIL import Image
from typer.testing import CliRunner

from gamlens import PairExplanation
from gamlens.cli import app, index_command, search_command
from gamlens.index.index import Index

runner = CliRunner()


@pytest.fixture(scope="module")
def counting() -> CountingLens:
    return CountingLens()


@pytest.fixture
def lens(counting: CountingLens, monkeypatch: pytest.MonkeyPatch) -> CountingLens:
    """The small lens that all commands of a test make."""
    for module in (index_command, search_command):
        monkeypatch.setattr(module, "make_lens", lambda *_, **__: counting)
    counting.forwards()
    return counting


@pytest.fixture
def shop(lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight photos, a broken one, and a table, in the folder where the user is; and an index of them."""
    monkeypatch.chdir(tmp_path)
    put(Path("photos"), *range(8))
    Path("photos/broken.jpg").write_text("no image")
    lines = [f"{n}.png,{n * 10},{'red' if n % 2 else 'blue'},00{n}" for n in range(8)]
    Path("products.csv").write_text("\n".join(["file,price,colour,code", *lines, "none.png,1,red,9"]))
    asked("index", "add", "photos", "--to", "shop.gamlens", "--meta", "products.csv", "--activations")
    return tmp_path / "shop.gamlens"


def asked(*words: str | Path, code: int = 0) -> Any:
    result = runner.invoke(app, [str(word) for word in words], env={"COLUMNS": "400"})
    assert result.exit_code == code, result.output + result.stderr
    return result


def found_json(*words: str | Path, code: int = 0) -> Any:
    return json.loads(asked(*words, "--json", code=code).stdout)


def test_add_makes_an_index_and_continues_it(lens: CountingLens, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(Path("photos"), *range(3))
    Path("photos/broken.jpg").write_text("no image")
    first = asked("index", "add", "photos", "--to", "shop.gamlens")
    assert "3 added, 1 cannot be read: 3 images in shop.gamlens" in first.stdout
    assert "images per second" in first.stdout
    assert "broken.jpg" in first.stderr
    assert lens.forwards() >= 3
    again = asked("index", "add", "photos", "--to", "shop.gamlens")
    assert "3 unchanged" in again.stdout
    assert "per second" not in again.stdout
    put(Path("photos"), 7)
    lens.forwards()
    record = found_json("index", "add", "photos/*.png", "--to", "shop.gamlens")
    assert (record["added"], record["unchanged"], record["images"], lens.forwards()) == (1, 3, 4, 1)


def test_a_table_names_columns(shop: Path) -> None:
    with Index.open(shop) as index:
        assert index.catalogue.columns() == ["price", "colour", "code"]
    found = found_json("search", "photos/0.png", "--in", "shop.gamlens", "--where", "price > 45 and colour = 'red'")
    assert {Path(match["file"]).name: match["metadata"] for match in found[0]["matches"]} == {
        "5.png": {"price": 50, "colour": "red", "code": "005"}, "7.png": {"price": 70, "colour": "red", "code": "007"}
    }  # fmt: skip
    Path("more.csv").write_text("image,shop\nphotos/3.png,north\n")
    assert found_json("index", "add", "--to", "shop.gamlens", "--meta", "more.csv")["annotated"] == 1
    rows = asked("index", "add", "--to", "shop.gamlens", "--meta", "products.csv")
    assert "1 row of products.csv names no image of the index: none.png" in rows.stderr
    (answer,) = found_json("search", "photos/0.png", "--in", "shop.gamlens", "--where", "shop is not null")
    assert [Path(match["file"]).name for match in answer["matches"]] == ["3.png"]


def test_update_and_remove(shop: Path, lens: CountingLens, tmp_path: Path) -> None:
    os.rename("photos/0.png", "photos/first.png")
    Path("photos/1.png").unlink()
    put(Path("photos"), 20)
    lens.forwards()
    record = found_json("index", "update", "shop.gamlens")
    names = ("added", "moved", "removed", "forwards", "images")
    assert tuple(record[name] for name in names) == (1, 1, 1, 1, 8)
    assert lens.forwards() == 1
    (answer,) = found_json("search", "photos/2.png", "--in", "shop.gamlens", "--where", "price = 0")
    assert Path(answer["matches"][0]["file"]).name == "first.png"
    assert "2 removed: 6 images" in asked("index", "remove", "shop.gamlens", "--where", "price >= 60").stdout
    assert "1 removed" in asked("index", "remove", "shop.gamlens", "photos/20.png").stdout
    shutil.move("photos", tmp_path / "elsewhere")
    gone = asked("index", "update", "shop.gamlens")
    assert "photos is not there, or holds no image: its images stay in the index" in gone.stderr
    listed = asked("search", tmp_path / "elsewhere" / "2.png", "--in", "shop.gamlens", "--with-self").stdout
    assert listed.count("(gone)") == 5


def test_info(shop: Path) -> None:
    shown = " ".join(asked("index", "info", "shop.gamlens", "--check").stdout.split())
    for part in ("images 8", "price, colour, code, image.path", "cosine, Exact", "remembered", "Nothing is"):
        assert part in shown
    assert "1 file could not be read" in shown
    record = found_json("index", "info", "shop.gamlens", "--check")
    assert (record["images"], record["problems"], list(record["columns"])) == (8, [], ["price", "colour", "code"])
    assert Path(next(iter(record["bad"]))).name == "broken.jpg"
    data = bytearray((shop / "activations-1.bin").read_bytes())
    data[50] ^= 1
    (shop / "activations-1.bin").write_bytes(data)
    assert found_json("index", "info", "shop.gamlens", "--check", code=1)["problems"]
    assert "activations-1.bin" in asked("index", "info", "shop.gamlens", "--check", code=1).stderr
    asked("index", "info", "shop.gamlens")


def test_search_prints_the_ranks_of_a_loop(shop: Path, lens: CountingLens) -> None:
    photo(50).save("query.png")
    expected = ranked(lens, "query.png", [str(shop.parent / "photos" / f"{n}.png") for n in range(8)])
    lens.forwards()
    result = asked("search", "query.png", "--in", "shop.gamlens", "--top", "4")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0][:4] == ["cosine", "price", "colour", "code"]
    assert [line[-1] for line in lines[1:5]] == [Path(path).name for path, _ in expected[:4]]
    assert [line[1] for line in lines[1:5]] == [f"{value:.4f}" for _, value in expected[:4]]
    assert "best of 8 images in" in result.stdout
    assert lens.forwards() == 1
    assert not Path("gamlens-out").exists()
    (answer,) = found_json("search", "query.png", "--in", "shop.gamlens", "--top", "2")
    assert [match["score"] for match in answer["matches"]] == pytest.approx([v for _, v in expected[:2]], abs=1e-5)
    assert (answer["query"], answer["searched"]) == ("query.png", 8)


def test_the_query_itself_is_left_out(shop: Path) -> None:
    result = asked("search", "photos/3.png", "--in", "shop.gamlens", "--top", "20")
    assert "best of 7 images" in result.stdout
    assert "the same file is there too and is left out; --with-self keeps it" in result.stderr
    assert "3.png" in asked("search", "photos/3.png", "--in", "shop.gamlens", "--with-self").stdout.splitlines()[1]


def test_explain_writes_a_page(shop: Path, lens: CountingLens, tmp_path: Path) -> None:
    photo(50).save("query.png")
    words = ["search", "query.png", "--in", "shop.gamlens", "--top", "3", "--explain", "--out", "out"]
    lens.forwards()
    result = asked(*words, "--where", "price < 60", "--maps")
    assert lens.forwards() <= 2  # the query, and one image on which the options are tried
    page = Path("out/index.html").read_text()
    assert "best of 6 images" in page
    assert "price &lt; 60" in page
    assert page.count("why, on the match") >= 3
    assert "open out/index.html" in result.stdout.replace("\n", "")
    (folder,) = (place for place in Path("out").iterdir() if place.is_dir())
    assert Image.open(folder / "matches.png").width > 300
    kept = PairExplanation.load(str(folder))
    assert len(kept) == 3
    (record,) = found_json(*words)
    assert len(record["matches"]) == 3
    assert all(set(match["boxes"]) == {"x", "y"} for match in record["matches"])


def test_files_that_are_gone_or_have_changed_keep_their_ranks(shop: Path) -> None:
    """They have no maps on the page, which says why; the other matches have the numbers of the table."""
    photo(50).save("query.png")
    words = ["search", "query.png", "--in", "shop.gamlens", "--top", "4"]
    (answer,) = found_json(*words)
    best, second, third, _ = (Path(match["file"]) for match in answer["matches"])
    photo(60).save(best)
    second.unlink()
    os.utime(third, (1, 1))
    lines = asked(*words).stdout.splitlines()[1:5]
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "4"]
    assert [line.rstrip().endswith(f"{best.name} (changed)") for line in lines] == [True, False, False, False]
    assert [line.rstrip().endswith(f"{second.name} (gone)") for line in lines] == [False, True, False, False]
    (explained,) = found_json(*words, "--explain", "--out", "out")
    page = Path("out/index.html").read_text()
    assert set(re.findall(r"(\d)\. cosine", page)) == set("34")
    assert set(re.findall(r"match (\d): why", page)) == set("34")
    assert f"1. <code>{best.name}</code>: the file has changed since it was indexed; run" in page
    assert f"2. <code>{second.name}</code>: the file is gone; run" in page
    assert ["boxes" in match for match in explained["matches"]] == [False, False, True, True]
    asked("index", "update", "shop.gamlens")
    assert "(" not in "".join(asked(*words).stdout.splitlines()[1:5])


def test_long_cells_do_not_hide_other_hits(shop: Path) -> None:
    photo(50).save("query.png")
    Path("long.csv").write_text("file,about\n3.png," + "long " * 1000 + "\n")
    asked("index", "add", "--to", "shop.gamlens", "--meta", "long.csv")
    words = ["search", "query.png", "--in", "shop.gamlens", "--top", "8"]
    shown = asked(*words, "--explain", "--out", "out").stdout
    assert all(f"{number}.png" in shown for number in range(8))
    assert "long long" in shown
    assert max(map(len, shown.splitlines())) < 200
    assert "long " * 20 not in Path("out/index.html").read_text()


def test_regions_and_sums(shop: Path, lens: CountingLens) -> None:
    words = ["search", "photos/3.png", "--in", "shop.gamlens", "--top", "2"]
    with Index.open(shop, lens) as index:
        for region, options in ((("--box", "10,10,60.5,40"), {"box": (10, 10, 60.5, 40)}),
                                (("--point", "90,70"), {"point": (90, 70)})):  # fmt: skip
            expected = index.search("photos/3.png", top=2, **options)
            (answer,) = found_json(*words, *region)
            assert [match["score"] for match in answer["matches"]] == pytest.approx(
                [hit.score for hit in expected], abs=1e-5
            )
            asked(*words, *region, "--explain", "--out", region[0][2:])
            assert Path(region[0][2:], "index.html").exists()
        expected = index.search("photos/3.png", plus=["photos/4.png"], minus=["photos/5.png"], top=2)
        (answer,) = found_json(*words, "--plus", "photos/4.png", "--minus", "photos/5.png")
        assert [match["file"] for match in answer["matches"]] == [hit.path for hit in expected]
        assert answer["query"] == "3.png + 4.png - 5.png"
        assert len(answer["left_out"]) == 3
        alone = index.search(plus=["photos/4.png"], minus=["photos/5.png"], top=2)
        (answer,) = found_json("search", "--plus", "photos/4.png", "--minus", "photos/5.png", *words[2:])
        assert [match["file"] for match in answer["matches"]] == [hit.path for hit in alone]
        asked("search", "--plus", "photos/4.png", "--minus", "photos/5.png", *words[2:], "--explain", "--out", "sum")
        assert "4.png - 5.png" in Path("sum/index.html").read_text()


def test_several_queries(shop: Path) -> None:
    result = asked("search", "photos/1.png", "photos/2.png", "--in", "shop.gamlens", "--top", "1")
    assert result.stdout.count("best of 7 images") == 2
    assert len(found_json("search", "photos/[12].png", "--in", "shop.gamlens")) == 2


def test_groups(shop: Path) -> None:
    shutil.copy("photos/2.png", "photos/twin.png")
    asked("index", "update", "shop.gamlens")
    result = asked("index", "duplicates", "shop.gamlens", "--threshold", "0.9999999", "--out", "same")
    assert "1 group in 9 images" in result.stdout
    assert "twin.png" in Path("same/index.html").read_text()
    groups = found_json("index", "clusters", "shop.gamlens", "--count", "3", "--out", "clusters")
    assert sum(map(len, groups)) == 9
    assert Path("clusters/index.html").read_text().count("Cluster ") >= 3
    none = asked("index", "duplicates", "shop.gamlens", "--threshold", "1", "--out", "none")
    assert "in 9 images" in none.stdout


def test_groups_with_files_that_are_gone(shop: Path) -> None:
    for name in ("twin", "third"):
        shutil.copy("photos/2.png", f"photos/{name}.png")
    shutil.copy("photos/4.png", "photos/pair.png")
    asked("index", "update", "shop.gamlens")
    Path("photos/twin.png").unlink()
    photo(70).save("photos/third.png")
    Path("photos/pair.png").unlink()
    result = asked("index", "duplicates", "shop.gamlens", "--threshold", "0.9999999", "--out", "same")
    assert re.search(r"twin\.png \(gone\)", result.stdout)
    assert re.search(r"third\.png \(changed\)", result.stdout)
    assert re.search(r"pair\.png \(gone\)", result.stdout)
    page = Path("same/index.html").read_text()
    assert "Group 1: 3 images" in page
    assert "The file is gone: <code>twin.png</code>." in page
    assert "The file has changed since it was indexed: <code>third.png</code>." in page
    assert "The file is gone: <code>pair.png</code>." in page
    assert "alone" not in page


def test_few_groups(shop: Path) -> None:
    none = asked("index", "duplicates", "shop.gamlens", "--threshold", "1", "--out", "none")
    assert none.stdout.startswith("No two of the 8 images have a cosine of 1 or more: lower --threshold.")
    assert "such as" not in none.stdout
    assert "No two of the 8 images" in Path("none/index.html").read_text()
    many = asked("index", "clusters", "shop.gamlens", "--count", "500", "--out", "many")
    assert "There are 8 clusters, not 500: the index has only 8 images." in many.stderr


def test_tables_of_other_separators(shop: Path) -> None:
    for sign, name in ((";", "semicolons"), ("\t", "tabs")):
        for line in ("path{}price", '"path"{}"price"', "name{}path"):
            Path("other.csv").write_text(f"{line.format(sign)}\n0.png{sign}3\n")
            result = asked("index", "add", "--to", "shop.gamlens", "--meta", "other.csv", code=1)
            assert f"'other.csv' separates its columns by {name}: save the table with commas" in result.stderr


def test_info_prints_all_files_that_cannot_be_read(shop: Path, lens: CountingLens) -> None:
    Path("bad").mkdir()
    for number in range(40):
        Path(f"bad/{number}.png").write_text("no image")
    photo(90).save("bad/good.png")
    Path("more.csv").write_text("file,shop name\n1.png,north\n")
    asked("index", "add", "bad", "--to", "shop.gamlens", "--meta", "more.csv")
    shown = asked("index", "info", "shop.gamlens").stdout
    assert all(f"{number}.png" in shown for number in range(40))
    assert "41 files could not be read" in shown
    assert "activations remembered" in " ".join(shown.split())
    assert 'code, "shop name", image.path' in shown
    assert "more" not in shown


def test_info_names_a_few_of_many_sources() -> None:
    assert index_command._first_of([f"{n}.png" for n in range(7)]) == (
        "0.png, 1.png, 2.png, 3.png, 4.png and 2 more; --json has all"
    )
    assert index_command._first_of(["a.png"]) == "a.png"
    assert index_command._first_of([]) == "nothing"


@pytest.mark.parametrize("name", ["add", "update", "remove", "info", "duplicates", "clusters"])
def test_help_has_an_example(name: str) -> None:
    assert f"Example:  gamlens index {name} " in " ".join(asked("index", name, "--help").stdout.split(" "))


def test_help_of_the_group() -> None:
    text = asked("index", "--help").stdout
    assert "gamlens search photo.jpg --in shop.gamlens" in text
    assert all(name in text for name in ("add", "update", "remove", "info", "duplicates", "clusters"))


ERRORS = [
    (["index", "add", "photos"], "Name the index: --to shop.gamlens"),
    (["index", "add", "--to", "shop.gamlens"], "Name images or folders to add"),
    (["index", "add", "--to", "new.gamlens", "--meta", "products.csv"], "There is no index"),
    (["index", "add", "photos", "--to", "photos"], "exists and is no index"),
    (["index", "add", "none/*.png", "--to", "new.gamlens"], "Nothing matches"),
    (["index", "add", "photos", "--to", "new.gamlens", "--score", "cosin"], "did you mean 'cosine'"),
    (["index", "add", "photos", "--to", "new.gamlens", "--backend", "exakt"], "did you mean 'exact'"),
    (["index", "add", "--to", "shop.gamlens", "--meta", "none.csv"], "none.csv"),
    (["index", "add", "--to", "shop.gamlens", "--meta", "wrong.csv"], "no column that names images"),
    (["index", "add", "--to", "shop.gamlens", "--meta", "twice.csv"], "two rows of the image"),
    (["index", "add", "--to", "shop.gamlens", "--meta", "odd.csv"], "Row 2 of 'odd.csv' has 3 cells"),
    (["index", "update", "none"], "no index"),
    (["index", "remove", "shop.gamlens"], "Say what to remove"),
    (["index", "remove", "shop.gamlens", "photos/none.png"], "There is no image"),
    (["index", "remove", "shop.gamlens", "--where", "prise = 3"], "did you mean 'price'"),
    (["index", "info", "photos"], "not an index"),
    (["search", "--in", "shop.gamlens"], "Name an image to search for"),
    (["search", "photos/0.png", "--in", "shop.gamlens", "--where", "price <"], "expected"),
    (["search", "photos/0.png", "--in", "shop.gamlens", "--where", ""], "The filter is empty: leave it out, or write"),
    (["search", "--minus", "photos/0.png", "--in", "shop.gamlens"], "Name an image to search for"),
    (["search", "photos/0.png", "--in", "shop.gamlens", "--where", "price > 1e9"], "No image fits 'price > 1e9'"),
    (["search", "photos/0.png", "--in", "shop.gamlens", "--box", "1,2,3"], "give x0,y0,x1,y1"),
    (["search", "photos/0.png", "--in", "shop.gamlens", "--box", "900,2,999,9"], "lies outside"),
    (["search", "photos/0.png", "--in", "shop.gamlens", "--point", "a,b"], "give x,y"),
    (["search", "photos/0.png", "--in", "shop.gamlens", "--box", "1,2,30,40", "--point", "1,2"], "not both"),
    (["search", "photos/0.png", "photos/1.png", "--in", "shop.gamlens", "--box", "1,2,30,40"], "name one"),
    (["search", "photos/0.png", "--in", "shop.gamlens", "--minus", "photos/0.png"], "cancel"),
    (["search", "photos/0.png", "--in", "shop.gamlens", "--text", "red"], "reads no text"),
    (["search", "photos/0.png", "--in", "shop.gamlens", "--score", "dot"], "ranks images by cosine"),
    (["search", "photos/0.png", "--in", "shop.gamlens", "--save-gallery", "x.npz"], "saved already"),
    (["search", "photos/0.png", "--in", "shop.gamlens", "--in", "photos"], "give it alone"),
    (["search", "photos/broken.jpg", "--in", "shop.gamlens"], "broken.jpg"),
    (["search", "photos/0.png", "--in", "photos", "--where", "price < 3"], "--where belongs to a search in an index"),
    (["search", "photos/0.png", "--in", "photos", "--box", "1,2,3,4"], "--box belongs to a search in an index"),
    (["search", "photos/0.png", "--in", "photos", "--explain"], "--explain belongs to a search in an index"),
]


@pytest.mark.parametrize(("words", "message"), ERRORS)
def test_errors_are_one_line(words: list[str], message: str, shop: Path) -> None:
    Path("wrong.csv").write_text("a,b\n1,2\n")
    Path("twice.csv").write_text("file,b\n1.png,2\nphotos/1.png,3\n")
    Path("odd.csv").write_text("file,b\n1.png,2,3\n")
    before = {file.name: file.read_bytes() for file in shop.iterdir()}
    result = asked(*words, code=1)
    assert message in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 or (lines[2].strip() == "^" and len(lines) == 4)  # a filter is shown with its place
    assert result.stdout == ""
    assert not Path("new.gamlens").exists()
    assert {file.name: file.read_bytes() for file in shop.iterdir()} == before


def test_a_model_that_is_not_that_of_the_index_is_refused(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = CountingLens(embedding="fc")
    monkeypatch.setattr(index_command, "make_lens", lambda *_, **__: other)
    result = asked("search", "photos/0.png", "--in", "shop.gamlens", "--model", "other", code=1)
    assert "was made with another embedding than this lens has" in result.stderr


def test_the_model_is_that_of_the_index(lens: CountingLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was named for `add` is made again for the others, wherever the user is."""
    made: list[tuple[Any, ...]] = []

    def make_lens(*words: Any, **options: Any) -> CountingLens:
        made.append((*words, options["embedding"]))
        return lens

    monkeypatch.setattr(index_command, "make_lens", make_lens)
    monkeypatch.chdir(tmp_path)
    put(Path("photos"), 0, 1)
    Path("weights.pth").touch()
    names = ["--model", "resnet50", "--weights", "weights.pth", "--blocks", "layer3,layer4", "--embedding", "fc:input"]
    asked("index", "add", "photos", "--to", "shop.gamlens", *names)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    asked("search", tmp_path / "photos" / "0.png", "--in", tmp_path / "shop.gamlens")
    expected = ("resnet50", str(tmp_path / "weights.pth"), "layer3,layer4", "auto", "fc:input")
    assert made[1] == expected
    assert made[0][0] == "resnet50"
    asked("search", tmp_path / "photos" / "0.png", "--in", tmp_path / "shop.gamlens", "--model", "vgg16")
    assert made[2] == ("vgg16", None, None, "auto", None)
