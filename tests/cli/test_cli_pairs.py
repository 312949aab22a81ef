"""Signed maps, contrasts, links and groups on the command line, with the embedded model on real photos."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models import VisionTransformer
from typer.testing import CliRunner

from gamlens import Explanation, Lens, PairExplanation, Transform
from gamlens.cli import app, common, compare_command, explain, group_command, pair_links
from gamlens.data.photos import path
from gamlens.evaluation.pair_tests.pair_plan import PAIR_METHODS

runner = CliRunner()
CHEETAH, FACE, LION = (str(path(name)) for name in ("cheetah", "cheetah_face", "lion"))
loaded = cache(common.make_lens)  # the embedded model is read once


@pytest.fixture(autouse=True)
def one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, loaded)


def use(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    for module in (explain, compare_command, group_command):
        monkeypatch.setattr(module, "make_lens", make)


def run(*words: str, out: Path) -> str:
    result = runner.invoke(app, [*words, "--out", str(out)])
    assert result.exit_code == 0, result.output
    return result.stdout


def record(*words: str, out: Path) -> Any:
    return json.loads(run(*words, "--json", out=out))


def pixels(file: str | Path) -> np.ndarray:
    return np.asarray(Image.open(file).convert("RGB"), dtype=float)


def test_signed_maps_of_a_pair(tmp_path: Path) -> None:
    """The signed map is what raises the score minus what lowers it; its strongest places are red and blue."""
    found = {
        sign: record("compare", CHEETAH, LION, "--sign", sign, "-n", "1", out=tmp_path / sign)
        for sign in ("both", "positive")
    }
    pairs = {sign: PairExplanation.load(own["folder"]) for sign, own in found.items()}
    lowers = pairs["positive"].y.maps - pairs["both"].y.maps
    assert lowers.min() > -1e-3
    assert lowers.max() > 0.5
    assert found["both"]["scales"]["x"] == pytest.approx(found["positive"]["scales"]["x"])
    picture = pixels(next(Path(found["both"]["folder"], "x").glob("000-*.png")))
    height, width = pairs["both"].x.full().shape
    assert picture.shape[0] > height + 20, "a bar stands below the photo"
    assert picture.shape[1] == width
    full = pairs["both"].x.full().numpy()
    red, blue = (picture[np.unravel_index(place, full.shape)] for place in (full.argmax(), full.argmin()))
    assert red[0] > red[2] + 40
    assert blue[2] > blue[0] + 20
    bar = picture[height + 10]
    assert bar[width // 8][2] > bar[width // 8][0] + 60
    assert bar[-width // 8][0] > bar[-width // 8][2] + 60
    x0, y0, x1, y1 = (int(value) for value in found["both"]["boxes"]["x"])
    assert full[y0:y1, x0:x1].max() == full.max() > 0
    both = Image.open(Path(found["both"]["folder"], "000-pair.png"))
    assert both.height > 256 + 20


def test_a_contrast_of_three_photos(tmp_path: Path) -> None:
    found = record("compare", CHEETAH, FACE, "--against", LION, "-n", "1", out=tmp_path)
    assert found["score"] == pytest.approx(found["score_y"] - found["score_against"])
    assert found["score_y"] > found["score_against"]
    text = run("compare", CHEETAH, LION, "--against", FACE, "-n", "1", out=tmp_path)
    assert f"cosine difference {-found['score']:.4f}  cheetah.jpg  ~  lion.jpg  rather than  cheetah1.jpg" in text
    x, swapped = (
        Explanation.load(str(tmp_path / name / "x"))
        for name in ("cheetah-cheetah1-against-lion", "cheetah-lion-against-cheetah1")
    )
    assert x.signed
    torch.testing.assert_close(x.maps, -swapped.maps, atol=1e-3, rtol=0)
    names = sorted(str(file.relative_to(found["folder"])) for file in Path(found["folder"]).rglob("*.png"))
    assert [name.split("/")[0] for name in names] == ["000-pair.png", "a", "b", "x"]
    assert set(found["boxes"]) == {"x", "y", "against"}


def assert_adds_up(found: dict[str, Any], score: float) -> None:
    total = found["parts"] + found["aside"] + found["remainder"] + found["gap"]
    assert total == pytest.approx(score, abs=1e-6)
    assert sum(map(sum, found["regions"]["values"])) == pytest.approx(found["parts"], abs=1e-5)


def test_links(tmp_path: Path) -> None:
    boxes = ("--x-box", "animal=80,100,400,250", "--y-box", "head=70,0,190,140", "--y-box", "paw=40,150,130,256")
    found = record("compare", CHEETAH, LION, "--links", *boxes, out=tmp_path)
    split = found["split"]
    assert_adds_up(split, found["score"])
    assert (split["exact"], split["steps"], split["remainder"], split["cells"]) == (True, 0, 0, [7, 7, 7, 7])
    values = [abs(link["value"]) for link in split["links"]]
    assert values == sorted(values, reverse=True)
    assert all(link["share"] == pytest.approx(link["value"] / found["score"]) for link in split["links"])
    assert (split["regions"]["x_names"], split["regions"]["y_names"]) == (
        ["animal", "elsewhere"],
        ["head", "paw", "elsewhere"],
    )
    best = split["regions"]["values"][0][0]
    assert best == max(split["regions"]["values"][0])
    assert split["regions"]["sentences"][0] == f"animal matches head: {100 * best / found['score']:.0f} % of the score"
    drawn = Image.open(split["file"])
    assert Path(split["file"]) == tmp_path / "cheetah-lion" / "links.png"
    assert drawn.width > 1000
    text = run("compare", CHEETAH, LION, "--links", "--cells", "3", out=tmp_path)
    for said in (
        "9 x 9 pairs of places",
        "baseline zeros",
        "x1 is where places raise the score most",
        "x1 matches y1: ",
    ):
        assert said in text
    assert "links.png" in text


def test_the_help_of_evaluate_names_the_methods_of_pairs() -> None:
    text = " ".join(runner.invoke(app, ["evaluate", "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert f"these --methods: {', '.join(PAIR_METHODS.split(','))}, where" in text


def test_places_of_a_tiny_photo_have_decimals() -> None:
    assert pair_links._numbers((0, 2.25, 0.5, 3)) == "0.00,2.25,0.50,3.00"
    assert pair_links._numbers((0, 20.25, 99.5, 30)) == "0,20,100,30"


def test_a_box_of_everything_has_everything(tmp_path: Path) -> None:
    whole = ("--x-box", "all=0,0,502,343", "--y-box", "all=0,0,256,256", "--score", "dot")
    found = record("compare", CHEETAH, LION, "--links", *whole, out=tmp_path)
    assert found["split"]["regions"]["values"][0][0] == pytest.approx(found["split"]["parts"], rel=1e-5)
    assert found["split"]["regions"]["sentences"][0] == "all matches all: 100 % of the score"


def test_links_of_an_embedding_that_is_no_average(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A class token: the parts are integrated, and the options reach the integral."""
    net = nets.seeded(lambda: VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=4)).eval()
    made = Lens(net, transform=Transform((32, 32)))
    use(monkeypatch, lambda *_, **__: made)
    found = [
        record("compare", CHEETAH, LION, "--links", "--baseline", "blank", *more, out=tmp_path)
        for more in (("--steps", "1"), ("--steps", "12", "--cells", "2"))
    ]
    for one in found:
        assert_adds_up(one["split"], one["score"])
        assert not one["split"]["exact"]
        assert one["split"]["baseline"] == "blank"
        assert one["split"]["forwards"] > 0
    assert [one["split"]["steps"] for one in found] == [1, 12]
    assert [one["split"]["cells"] for one in found] == [[4] * 4, [2] * 4]
    assert abs(found[1]["split"]["gap"]) < 0.01
    text = run("compare", CHEETAH, LION, "--links", "--steps", "2", "--cells", "1", out=tmp_path)
    assert "class and register tokens" in text
    assert "what 2 steps miss; the network ran" in text


def test_a_file_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "cheetah-lion"
    folder.mkdir()
    (folder / "links.png").write_bytes(b"mine")
    result = runner.invoke(app, ["compare", CHEETAH, LION, "--links", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "links.png': a file of that name is there that gamlens did not write" in result.stderr
    assert [file.name for file in folder.iterdir()] == ["links.png"]
    assert (folder / "links.png").read_bytes() == b"mine"


def test_one_class_rather_than_another(tmp_path: Path) -> None:
    (found,) = record("classify", LION, "--against", "cheetah", out=tmp_path)
    lens = loaded("efficientnet_lite0", None, None, "auto")
    output = lens.outputs(LION)[0]
    (row,) = found["explained"]
    assert row["name"] == "lion rather than cheetah"
    assert row["score"] == pytest.approx(float(output[291] - output[293]), abs=1e-4)
    saved = Explanation.load(found["folder"])
    assert saved.signed
    assert set(found["scales"]) == set(saved.scales)
    assert Image.open(next(Path(found["folder"]).glob("*.png"))).height > saved.image().height + 20
    page = " ".join((tmp_path / "index.html").read_text().split())
    assert "in two colours what raises the score and what lowers it" in page
    (plain,) = record("classify", LION, "--sign", "positive", out=tmp_path / "more")
    assert plain["about"]["sign"] == "positive"
    assert Explanation.load(plain["folder"]).maps.min() >= 0


def test_one_caption_rather_than_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Lens(
        nets.small().float(),
        transform=Transform((64, 64)),
        text=lambda captions: torch.eye(nets.CLASSES)[[len(caption) % nets.CLASSES for caption in captions]],
    )
    use(monkeypatch, lambda *_, **__: made)
    both = record("compare", LION, "--text", "ab", "--text", "abc", out=tmp_path)["captions"]
    found = record("compare", LION, "--text", "ab", "--against", "abc", out=tmp_path)
    (row,) = found["captions"]
    assert row["text"] == "ab rather than abc"
    assert row["score"] == pytest.approx(both[0]["score"] - both[1]["score"], abs=1e-5)
    assert found["about"]["sign"] == "both"
    assert Path(found["folder"]).name == "lion-against-abc"


def test_a_group(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for file in (CHEETAH, FACE, LION):
        shutil.copy(file, folder)
    found = record("group", str(folder), "--sign", "both", out=folder / "out")
    scores = np.array(found["pair_scores"])
    assert np.allclose(scores, scores.T, atol=1e-5)
    means = (scores.sum(axis=1) - np.diag(scores)) / 2
    assert [row["score"] for row in found["images"]] == pytest.approx(means.tolist(), abs=1e-5)
    assert found["score"] == pytest.approx(means.mean(), abs=1e-5)
    assert [Path(row["file"]).name for row in found["images"]] == ["cheetah.jpg", "cheetah1.jpg", "lion.jpg"]
    place = Path(found["folder"])
    assert len([*place.glob("*.png")]) == 3
    assert Explanation.load(str(place)).signed
    text = run("group", str(folder), out=folder / "out")  # the pictures of the first call are no images of the second
    assert f"{scores[0, 1]:.2f}" in text
    assert "the mean over all pairs" in text
    assert (place / "index.html").read_text().count("<img") == 3


REFUSED = (
    (["compare", "{x}", "{y}", "--sign", "up"], "--sign up: give one of positive, negative, both."),
    (["compare", "{x}", "{y}", "--sign", "both", "--method", "eigen_cam"], "Eigen-CAM does not tell what raises"),
    (["compare", "{x}", "{y}", "--steps", "5"], "--steps belongs to --links: give --links, too"),
    (["compare", "{x}", "{y}", "--x-box", "a=1,2,3,4"], "--x-box belongs to --links"),
    (["compare", "{x}", "{y}", "--links", "--against", "{y}"], "--links and --against do not go together"),
    (["compare", "{x}", "{y}", "--against", "{y}", "--views", "flip"], "--views and --against do not go together"),
    (["compare", "{x}", "{y}", "--against", "{y}", "--method", "vdsn"], "VDSN compares two images only"),
    (["compare", "{x}", "--text", "a cat", "--links"], "--links needs two images, not a caption"),
    (["compare", "{x}", "--text", "a", "--text", "b", "--against", "c"], "--text names 2; give one."),
    (["compare", "{x}", "{y}", "--links", "--score", "euclidean"], "give --score one of cosine, dot."),
    (["compare", "{x}", "{y}", "--links", "--method", "input_gradient"], "explains pixels, and links are made from"),
    (
        ["compare", "{x}", "{y}", "--links", "--baseline", "grey"],
        "--baseline grey: give one of auto, zeros, blank, average.",
    ),
    (["compare", "{x}", "{y}", "--links", "--x-box", "cat=1,2,3"], "give NAME=x0,y0,x1,y1 in pixels of the image"),
    (["compare", "{x}", "{y}", "--links", "--x-box", "1,2,3,4"], "give NAME=x0,y0,x1,y1 in pixels of the image"),
    (["compare", "{x}", "{y}", "--links", "--y-box", "a=0,0,nan,9"], "the box does not lie in"),
    (["compare", "{x}", "{y}", "--links", "--y-box", "a=0,0,300,9"], "which is 256 x 256 pixels: give x0 < x1 between"),
    (["compare", "{x}", "{y}", "--links", "--x-box", "a=9,9,5,20"], "the box does not lie in"),
    (["compare", "{x}", "{y}", "--links", "--x-box", "elsewhere=0,0,9,9"], "stands for all that lies outside"),
    (
        ["compare", "{x}", "{y}", "--links", "--x-box", "a=0,0,9,9", "--x-box", "a=5,5,20,20"],
        "the name 'a' is given twice",
    ),
    (["classify", "{x}", "--against", "lion", "-t", "lynx", "-t", "tabby"], "--target names 2; give one."),
    (["group", "{x}"], "A group has 2 to 256 images; found 1"),
    (["group", "{x}", "{y}", "--method", "vdsn"], "VDSN compares two images only"),
)


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_mistakes_are_one_line(words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found before a model is loaded, and nothing is written."""
    use(monkeypatch, lambda *_, **__: pytest.fail("a model was loaded"))
    filled = [word.format(x=CHEETAH, y=LION) for word in words]
    result = runner.invoke(app, [*filled, "--out", str(tmp_path / "out")])
    assert result.exit_code == 1, result.output
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["compare", CHEETAH, "{cut}", "--links"],
        ["compare", CHEETAH, LION, "--against", "{cut}"],
        ["compare", "{cut}", LION, "--links", "--x-box", "a=0,0,9,9"],
        ["group", CHEETAH, "{cut}"],
    ],
)
def test_a_truncated_photo_is_one_line(words: list[str], tmp_path: Path) -> None:
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(Path(LION).read_bytes()[:3000])
    result = runner.invoke(app, [*(word.format(cut=cut) for word in words), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "cut.jpg' as an image" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
