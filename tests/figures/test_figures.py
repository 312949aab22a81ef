"""The paper's figures on a small net and tiny images: panels, words, extents, and what the pictures say."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import figures as documented
import nets
import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from gamlens import GamlensError, Lens, Transform, figures, metrics, render
from gamlens.cli import app
from gamlens.data import load
from gamlens.explanation import Explanation
from gamlens.figures import FigureRequest, Strip, class_figures, from_dataset, from_images, make, strips
from gamlens.figures.panels import plain_map
from gamlens.render.raster.grid_layout import GridLayout
from gamlens.sanity import data_randomisation
from gamlens.trace import Trace

SIZES = ((80, 60), (50, 50), (60, 90), (96, 64))
SIDE = 64
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four images of four shapes with a box and a mask each."""
    place = tmp_path_factory.mktemp("images")
    (place / "masks").mkdir()
    draw = np.random.default_rng(0)
    with open(place / "boxes.csv", "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["path", "label", "x0", "y0", "x1", "y1"])
        for number, (width, height) in enumerate(SIZES):
            pixels = draw.integers(0, 255, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{number}.png")
            out.writerow([f"{number}.png", ("ant", "bee")[number // 2], 5, 6, 30 + number, 40])
            mask = np.zeros((height, width), np.uint8)
            mask[6:40, 5:30] = 255
            Image.fromarray(mask).save(place / "masks" / f"{number}.png")
    return place


@pytest.fixture(scope="module")
def lens() -> Lens:
    names = ["ant", "bee", *(f"thing {number}" for number in range(8))]
    blocks = ["stem", "layer1", "layer2", "layer3"]
    return Lens(nets.small().float(), transform=Transform((SIDE, SIDE)), labels=names, blocks=blocks)


def asked(lens: Lens, folder: Path, count: int, **options: object) -> FigureRequest:
    examples = from_images([str(folder / f"{number}.png") for number in range(count)])
    return replace(FigureRequest(lens, examples), **options)


HEADS = ("Photo", "GAM, n=2", "Grad-CAM, n=1", "Grad-CAM++, n=1")
PLACES = ("Photo", "GAM, n=2", "Grad-CAM++, n=1", "Grad-CAM, n=1")
SMALL_HEADS = (
    "Photo", "GAM, block L (n=1)", "GAM, block L-1", "GAM, block L-2", "GAM, n=2", "GAM, n=3", "Grad-CAM, n=1",
)  # fmt: skip
EXPECTED = {
    "overview": (3, 2, 4, (), 1),
    "classes": (3, 3, 4, HEADS, 1),
    "sharp": (3, 3, 3, ("Photo", "GAM, n=2", "refined"), 1),
    "sharp_pairs": (4, 2, 6, ("x", "y", "GAM, n=2: x", "y", "refined: x", "y"), 1),
    "cosine": (4, 4, 4, HEADS, 1),
    "dot": (2, 2, 5, (*HEADS, "Grad-CAM++ (literal), n=1"), 1),
    "overflow": (2, 2, 3, ("Photo", "GAM, n=1", "Grad-CAM++ (literal), n=1"), 1),
    "negative": (4, 9, 4, (), 3),
    "layers": (2, 4, 8, (), 2),
    "depth": (2, 6, 4, ("Photo", "n=1", "n=2", "n=3"), 1),
    "small": (2, 2, 7, SMALL_HEADS, 1),
    "localization": (3, 3, 4, PLACES, 2),
    "similarity": (4, 4, 4, PLACES, 2),
    "segmentation": (2, 2, 4, PLACES, 2),
    "sanity": (2, 2, 6, ("Image", "As trained", "head random", *(f"+ layer{i} random" for i in (3, 2, 1))), 1),
}


def test_every_figure_is_expected_here_and_shown_in_the_docs() -> None:
    assert {*EXPECTED, "xray"} == set(figures.FIGURES)
    text = (DOCS / "figures.md").read_text()
    assert all(f"## {name}:" in text for name in figures.FIGURES)
    assert set(figures.FIGURES) - set(documented.COMMANDS) == {"xray"}
    for name in documented.COMMANDS:
        assert documented.command(name) in text
        picture = DOCS / "images" / f"fig-{name}.png"
        assert f"(images/{picture.name})" in text
        assert picture.stat().st_size < 300_000
        assert Image.open(picture).width >= 690


@pytest.mark.parametrize("name", EXPECTED)
def test_panels(name: str, lens: Lens, folder: Path) -> None:
    """Rows, columns, heads and keys; every picture has the shape of its photo; nothing overlaps in print."""
    images, rows, columns, heads, keys = EXPECTED[name]
    grid = make(name, asked(lens, folder, images))
    assert (len(grid.rows), grid.width, grid.columns, len(grid.keys)) == (rows, columns, heads, keys)
    assert len(grid.labels) == rows
    shapes = {panel.image.size for row in grid.rows for panel in row if panel}
    assert shapes <= {*SIZES}
    assert grid.keys[0] == render.ScaleKey("Saliency", over=True)
    picture = render.typeset(grid, dpi=150)
    wanted = 150 * (3.5 if columns <= 4 else 7.16)
    assert abs(picture.width - wanted) <= 8
    place = GridLayout(grid, cell=80, tight=True)
    for row in place.cells:
        for (x, y, width, height), after in zip(row, [*row[1:], (place.size[0], 0)], strict=True):
            assert 0 <= x < x + width <= after[0]
            assert y + height <= place.size[1]
    for above, below, height in zip(place.cells, place.cells[1:], place.heights, strict=False):
        assert above[0][1] + height <= below[0][1]


def test_maps_are_those_of_the_lens(lens: Lens, folder: Path) -> None:
    grid = make("classes", asked(lens, folder, 2, targets=("ant", "bee")))
    assert grid.labels == ("ant", "bee")
    expected = lens.classify(str(folder / "1.png"), "bee", method="grad_cam", n=1).overlay()
    assert np.array_equal(np.asarray(grid.rows[1][2].image), np.asarray(expected))


@pytest.mark.parametrize("name", EXPECTED)
def test_all_maps_of_a_figure_have_the_reading_of_lattices_that_was_asked_for(
    name: str, lens: Lens, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    plain = Trace.explain

    def explain(trace: Trace, *given: Any, lattice: str = "read", **options: Any) -> Explanation:
        found.append(lattice)
        return plain(trace, *given, lattice=lattice, **options)

    monkeypatch.setattr(Trace, "explain", explain)
    make(name, asked(lens, folder, EXPECTED[name][0], lattice="keep"))
    assert set(found) == {"keep"}


def test_both_readings_are_shown(folder: Path) -> None:
    lens = Lens(nets.skipping(), transform=Transform((SIDE, SIDE)), blocks=["0", "1"])
    shown = []
    for reading in ("read", "keep"):
        panel = make("classes", asked(lens, folder, 1, targets=(1,), lattice=reading)).rows[0][1]
        expected = lens.classify(str(folder / "0.png"), 1, n=2, lattice=reading).overlay()
        assert np.array_equal(np.asarray(panel.image), np.asarray(expected))
        shown.append(np.asarray(panel.image))
    assert not np.array_equal(*shown)


def test_overview_takes_the_top_classes_or_those_asked_for(lens: Lens, folder: Path) -> None:
    top = [guess.name for guess in lens.trace(str(folder / "0.png")).top(3)[0]]
    captions = [panel.caption for panel in make("overview", asked(lens, folder, 3)).rows[0]]
    assert captions == ["(a) photo", *(f"({letter}) {name}" for letter, name in zip("bcd", top, strict=True))]
    two = make("overview", asked(lens, folder, 3, targets=("bee", "ant")))
    assert [panel.caption for panel in two.rows[0]] == ["(a) photo", "(b) bee", "(c) ant"]
    assert two.rows[1][0].caption == "(d) x"


def test_negative_gradients(lens: Lens, folder: Path) -> None:
    """P and |N| share a scale, hidden pixels are dark, and the frame and the share say how much is hidden."""
    files = [str(folder / f"{number}.png") for number in range(2)]
    grid = make("negative", asked(lens, folder, 2))
    assert grid.labels == ("Photo", "GAM", "Grad-CAM", "Activations", "Gradients > 0", "Gradients < 0", "P", "|N|",
                           "Hidden")  # fmt: skip
    pair = lens.trace_pair(*files, n=1)
    side, frame = pair.sides("cosine")[0], pair.explain("gam", 1).x.frames[0]
    found, sums = side.evidence(), side.sums()
    top = float(torch.maximum(found.positive.max(), found.negative.abs().max()))
    for row, values in ((6, found.positive), (7, found.negative.abs())):
        assert np.array_equal(np.asarray(grid.rows[row][0].image), np.asarray(plain_map(values[0], frame, top).image))
    top = float(torch.maximum(sums.positive.max(), sums.negative.max()))
    assert np.array_equal(np.asarray(grid.rows[5][0].image), np.asarray(plain_map(sums.negative[0], frame, top).image))
    share = float(found.hidden_share[0])
    assert grid.rows[8][0].caption == f"{100 * share:.0f} % of P"
    assert (grid.rows[2][0].mark == "bad") == (share > 0.5)
    shown, photo = (np.asarray(panel.image, dtype=int).mean(axis=2) for panel in (grid.rows[8][0], grid.rows[0][0]))
    mask = found.hidden[0].numpy().repeat(SIZES[0][1] // 4, 0).repeat(SIZES[0][0] // 4, 1)
    assert mask.any()
    assert (shown[mask] < photo[mask]).mean() > 0.8
    assert (shown[~mask] == photo[~mask]).mean() > 0.8


def test_literal_grad_cam_pp_is_marked_where_it_overflows(folder: Path) -> None:
    net = nets.small().float()
    with torch.no_grad():
        net.layer3[1].weight.mul_(40)
        net.layer3[1].bias.mul_(40)
    grid = make("overflow", asked(Lens(net, transform=Transform((SIDE, SIDE))), folder, 2))
    assert [[panel.mark for panel in row] for row in grid.rows] == [["", "", "bad"]] * 2


def test_layers_by_block(lens: Lens, folder: Path) -> None:
    grid = make("layers", asked(lens, folder, 2))
    assert grid.groups == (("Saliency", 2), ("Activations", 2), ("Gradients > 0", 2), ("Mean of the last n", 2))
    assert grid.labels == ("L: 4x4", "L-1: 8x8", "L-2: 16x16", "L-3: 32x32")
    assert [row[6].caption for row in grid.rows] == ["n=1", "n=2", "n=3", "n=4"]
    pair = lens.compare(str(folder / "0.png"), str(folder / "1.png"), n=3)
    assert np.array_equal(np.asarray(grid.rows[2][7].image), np.asarray(pair.y.overlay()))
    assert np.array_equal(np.asarray(grid.rows[2][1].image), np.asarray(pair.y.overlay(block=lens.blocks[-3])))
    assert grid.widths == tuple(width / height for width, height in SIZES[:2]) * 4


def test_boxes_from_a_table(lens: Lens, folder: Path) -> None:
    """Classes are matched by name; the IoU under a panel is that of its box; true and predicted lines are drawn."""
    examples = from_dataset(load("table", folder / "boxes.csv"), lens, takes="boxes", count=4)
    assert [lens.labels[example.target] for example in examples] == ["ant", "ant", "bee", "bee"]
    grid = make("localization", FigureRequest(lens, examples, threshold=0.4))
    assert (grid.columns[0], grid.labels) == ("Ground truth", ("ant", "ant", "bee", "bee"))
    result = lens.classify(str(folder / "2.png"), "bee")
    value = metrics.box_iou(result.boxes(0.4), [torch.tensor([[5.0, 6.0, 32.0, 40.0]])])
    assert grid.rows[2][1].caption == f"IoU {float(value[0]):.2f}"
    truth = np.asarray(grid.rows[2][0].image)
    assert (truth[6, 5:32] != np.asarray(Image.open(folder / "2.png"))[6, 5:32]).any(axis=1).all()
    pairs = from_dataset(load("table", folder / "boxes.csv"), lens, takes="pairs", count=2)
    assert [Path(example.image).name for example in pairs] == ["0.png", "1.png", "2.png", "3.png"]
    assert make("similarity", FigureRequest(lens, pairs)).breaks == (2,)
    drawn = from_dataset(load("table", folder / "boxes.csv"), lens, takes="pairs", count=9, pairs_per_class=2)
    assert len(drawn) == 2 * 2 * 2


def test_masks(lens: Lens, folder: Path) -> None:
    files = [str(folder / f"{number}.png") for number in range(2)]
    grid = make("segmentation", FigureRequest(lens, from_images(files, masks=folder / "masks"), threshold=0.5))
    result = lens.classify(files[0])
    truth = result.frames[0].mask_in(torch.from_numpy(np.asarray(Image.open(folder / "masks/0.png")) > 127))
    inside = (result.maps[0] >= 0.5) & truth
    value = float(inside.sum() / ((result.maps[0] >= 0.5) | truth).sum())
    assert grid.rows[0][1].caption == f"IoU {value:.2f}"
    Image.new("L", (9, 9)).save(folder / "masks/9.png")
    Image.new("RGB", (8, 9)).save(folder / "9.png")
    with pytest.raises(GamlensError, match=r"is 9 x 9, its image 8 x 9"):
        from_images([str(folder / "9.png")], masks=folder / "masks")


def test_xrays_in_their_own_layout(tmp_path: Path) -> None:
    """Grey images, boxes drawn on 1024 px: the finding is the target, the box lands at the file's own scale."""
    (tmp_path / "images").mkdir()
    for number in (1, 2):
        grey = np.random.default_rng(number).integers(0, 255, (128, 128), dtype=np.uint8)
        Image.fromarray(grey).save(tmp_path / f"images/{number}.png")
    (tmp_path / "BBox_List_2017.csv").write_text(
        "Image Index,Finding Label,Bbox [x,y,w,h],,,\n1.png,Nodule,256,512,128,64,,,\n2.png,Mass,0,0,512,512,,,\n"
    )
    dataset = load("chestxray", tmp_path)
    lens = Lens(nets.small().float(), transform=Transform((SIDE, SIDE)))
    examples = from_dataset(dataset, lens, takes="boxes")
    assert [(example.title, example.target) for example in examples] == [("Nodule", 5), ("Mass", 4)]
    assert examples[0].boxes == ((32.0, 64.0, 48.0, 72.0),)
    grid = make("xray", FigureRequest(lens, examples))
    assert (grid.labels, grid.columns[0], len(grid.keys)) == (("Nodule", "Mass"), "Ground truth", 3)
    assert all(panel.caption.startswith("IoU") for row in grid.rows for panel in row[1:])


def test_random_weights_leave_the_model_alone(lens: Lens, folder: Path) -> None:
    before = {name: value.clone() for name, value in lens.model.state_dict().items()}
    grid = make("sanity", asked(lens, folder, 2))
    assert all(torch.equal(value, before[name]) for name, value in lens.model.state_dict().items())
    pictures = [np.asarray(panel.image) for panel in grid.rows[0][1:]]
    assert not any(np.array_equal(pictures[0], other) for other in pictures[1:])


def test_a_row_of_digits(lens: Lens, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the photos: digits as `sanity data` draws them, with their maps by networks of true and random labels."""
    draw = np.random.default_rng(0)
    digits = draw.integers(0, 255, (2200, 28, 28), dtype=np.uint8), np.arange(2200) % 10
    shown, networks = data_randomisation.split(digits), ("true", "true, another seed", "random")
    maps = {name: {"gam": torch.rand(200, 28, 28)} for name in networks}
    asked_for: list[object] = []

    def trained(*given: object, **options: object) -> list[data_randomisation.Trial]:
        asked_for.extend((given[0] is digits, given[1], options))
        return [data_randomisation.Trial(0, {}, {}, {}, (), maps, shown.shown)]

    monkeypatch.setattr(class_figures, "trials", trained)
    grid = make("sanity", asked(lens, folder, 2, digits=digits))
    assert asked_for == [True, ("gam",), {"seeds": 1, "n": 2}]
    assert (len(grid.rows), grid.width, grid.breaks, grid.labels[2]) == (3, 6, (2,), "LeNet-5")
    first = int(shown.shown_labels[0])
    assert [panel.caption for panel in grid.rows[2]] == [
        f"digit {first}",
        "true labels",
        "true, again",
        "random labels",
    ]
    assert np.array_equal(np.asarray(grid.rows[2][0].image)[:, :, 0], digit_of(digits, first, grid.rows[2][0].image))
    for panel, network in zip(grid.rows[2][1:], networks, strict=True):
        expected = render.overlay(grid.rows[2][0].image, maps[network]["gam"][0].numpy())
        assert np.array_equal(np.asarray(panel.image), np.asarray(expected))


def digit_of(digits: tuple[np.ndarray, np.ndarray], label: int, image: Image.Image) -> np.ndarray:
    """The digit of that label whose pixels are nearest to an image's."""
    own = digits[0][digits[1] == label].astype(int)
    return own[np.abs(own - np.asarray(image)[None, :, :, 0]).sum(axis=(1, 2)).argmin()]


def test_strips_of_any_maps() -> None:
    image, flat = Image.new("RGB", (20, 10), "teal"), np.zeros((10, 20))
    shared = strips([Strip("one", image, [("a", flat), ("b", flat)]), Strip("two", image, [("a", flat), ("b", flat)])])
    assert (shared.columns, shared.labels) == (("Image", "a", "b"), ("one", "two"))
    apart = strips([Strip("one", image, [("a", flat)]), Strip("two", image, [("b", flat), ("c", flat)])])
    assert apart.columns == ()
    assert [panel.caption for panel in apart.rows[1]] == ["", "b", "c"]
    with pytest.raises(GamlensError, match="at least one map"):
        strips([])


@pytest.mark.parametrize(
    ("name", "count", "options", "message"),
    [
        ("classes", 0, {}, "takes 1 image or more; found 0"),
        ("cosine", 1, {}, "takes 2 images or more; found 1"),
        ("cosine", 3, {}, "two by two; found 3"),
        ("overview", 4, {}, "takes 3 images, one to classify and a pair; found 4"),
        ("locali", 1, {}, "no figure 'locali': did you mean 'localization'"),
        ("classes", 3, {"targets": ("ant", "bee")}, "2 targets were given for 3 images"),
        ("classes", 1, {"targets": ("aunt",)}, "no class 'aunt': did you mean 'ant'"),
        ("classes", 1, {"n": 9}, "n=9 blocks were asked for, but there are 4"),
        ("xray", 1, {}, "none of the images has one"),
    ],
)
def test_bad_input(name: str, count: int, options: dict[str, object], message: str, lens: Lens, folder: Path) -> None:
    with pytest.raises(GamlensError, match=message):
        make(name, asked(lens, folder, count, **options))


def test_a_model_with_one_block(folder: Path) -> None:
    one = Lens(nets.small().float(), transform=Transform((SIDE, SIDE)), blocks=["layer3"])
    for name in ("layers", "depth", "small"):
        with pytest.raises(GamlensError, match=r"compares blocks and .* has 1 \(layer3\)"):
            make(name, asked(one, folder, 2))
    assert make("classes", asked(one, folder, 1)).columns[1] == "GAM, n=1"


def test_the_command(folder: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    (tmp_path / "net.py").write_text(
        "import nets\nfrom gamlens import Lens, Transform\n"
        "def build():\n    return Lens(nets.small().float(), transform=Transform((64, 64)))\n"
    )
    model = ["--model", f"{tmp_path / 'net.py'}:build"]
    files = [str(folder / "0.png"), str(folder / "1.png")]
    for name, more in (("a.png", []), ("b.png", ["--palette", "--width", "5", "--dpi", "150"]), ("c.pdf", [])):
        result = run(app, ["figure", "cosine", *files, *model, *more, "--out", str(tmp_path / "new" / name)])
        assert result.exit_code == 0, result.stderr
    plain, few = Image.open(tmp_path / "new/a.png"), Image.open(tmp_path / "new/b.png")
    assert (plain.mode, round(plain.info["dpi"][0]), few.mode, round(few.info["dpi"][0])) == ("RGB", 200, "P", 150)
    assert abs(plain.width - 700) <= 8
    assert abs(few.width - 750) <= 8
    assert few.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert (tmp_path / "new/c.pdf").read_bytes().startswith(b"%PDF")
    for wrong, message in (
        ([], "has no image"),
        (["--data", "table"], "both --data and --root"),
        ([*files, "--out", str(tmp_path / "x.tiff")], "found 'x.tiff'"),
        ([str(folder / "none.png"), files[0]], "no file"),
        ([*files, "--dpi", "10"], "72 to 1200"),
        (["--data", "table", "--root", str(folder / "boxes.csv"), "--item", "7.png~8.png"], "no item '7.png~8.png'"),
        ([*files, "--digits", str(folder)], "no idx files of MNIST's train split"),
    ):
        result = run(app, ["figure", "cosine", *wrong, *model])
        assert result.exit_code == 1
        assert message in result.stderr
