"""Parameter randomisation: the verdict, the copy, the parts, the files, bad input."""

import copy
import csv
import json

import pytest
import torch
from nets import DenseLike, images, seeded, skipping, small
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from gamlens import GamlensError, GamlensWarning, Lens, Refinement
from gamlens.cli import app
from gamlens.inputs.images import pictures
from gamlens.metrics import SIMILARITIES, bootstrap, chance
from gamlens.sanity import compared_maps, parameter_results
from gamlens.sanity.parameter_randomisation import randomise_parameters
from gamlens.sanity.randomise import MODES, NetworkPart, parts, reset, states, twin

X = images(6, 64)
runner = CliRunner()


@pytest.fixture(scope="module")
def lens():
    return Lens(small())


@pytest.fixture(scope="module")
def outcome(lens):
    shown = list(pictures(X))
    make = compared_maps.of_classes(lens, shown, ["gam", "guided_backprop"], batch=4)
    return randomise_parameters(lens, make, parts(lens, X[:1]), [picture.name for picture in shown])


def test_a_map_that_ignores_the_weights_fails_and_one_that_depends_on_them_passes(outcome):
    assert not outcome.passes("edges")
    assert outcome.passes("gam")
    for verdict in outcome.verdicts:
        if verdict.method == "edges":
            assert verdict.left.mean == pytest.approx(1)
            assert not verdict.passes
        else:
            assert verdict.left.mean < 0.6
        assert verdict.passes == (verdict.left.mean <= verdict.level)
        assert verdict.pairs == 15


def test_refined_maps_and_the_control_beside_them(lens):
    """Maps of blocks are refined, those of pixels are not; the control is a random map, carried without a kept part."""
    shown, how = list(pictures(X)), Refinement(2, 0.25)
    found = compared_maps.of_classes(lens, shown, ["gam", "input_gradient"], batch=4, refine=how)(lens)
    assert list(found) == ["gam", "input_gradient", compared_maps.CHANCE, compared_maps.EDGES]
    torch.testing.assert_close(found["gam"], lens.classify(X, refine=how).maps)
    torch.testing.assert_close(found["input_gradient"], lens.classify(X, method="input_gradient").maps)
    control = lens.trace(X, refine=how).refine(chance([picture.name for picture in shown], 64, 64), Refinement(2, 0))
    torch.testing.assert_close(found[compared_maps.CHANCE], control)
    pairs = compared_maps.of_pairs(lens, shown[:2], shown[2:4], ["gam"], refine=how)(lens)
    both = lens.compare(X[:2], X[2:4], refine=how)
    torch.testing.assert_close(pairs["gam"], torch.stack([both.x.maps, both.y.maps], dim=1).flatten(0, 1))
    assert pairs[compared_maps.CHANCE].shape == (4, 64, 64)
    assert compared_maps.CHANCE not in compared_maps.of_classes(lens, shown, ["gam"])(lens)


def test_the_level_is_the_95th_percentile_of_maps_of_different_images(outcome):
    maps = outcome.shown["", 0]["gam"]
    values = [SIMILARITIES["ssim"].compare(maps[i : i + 1], maps[j : j + 1]) for i in range(6) for j in range(i)]
    level = torch.cat(values).quantile(0.95)
    found = next(v for v in outcome.verdicts if (v.method, v.measure) == ("gam", "ssim"))
    assert found.level == pytest.approx(float(level))


def test_the_users_model_is_never_written_to(lens, outcome):
    fresh = small()
    now = lens.model.state_dict()
    assert all(torch.equal(now[name], tensor) for name, tensor in fresh.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in lens.model.modules())
    assert twin(lens).model is not lens.model


def test_cascading_adds_parts_and_independent_changes_one_alone(lens):
    found = parts(lens, X[:1])
    before = {name: tensor.clone() for name, tensor in lens.model.state_dict().items()}
    for state in states(lens, found):
        changed = {
            name for name, tensor in state.lens.model.state_dict().items() if not torch.equal(tensor, before[name])
        }
        random = found[: state.step] if state.mode == MODES[0] else found[state.step - 1 : state.step]
        wanted = {module for part in random for module in part.modules}
        assert {name.rpartition(".")[0] for name in changed} <= wanted
        assert {module for module in wanted if f"{module}.weight" in changed} == wanted


def test_both_modes_start_from_the_same_draw_and_a_seed_repeats(lens):
    found = parts(lens, X[:1])

    def heads(seed):
        return [s.lens.model.fc.weight.clone() for s in states(lens, found, seed=seed) if s.step == 1]

    first, again, other = heads(0), heads(0), heads(1)
    assert torch.equal(first[0], first[1])
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])


def test_parts_run_from_the_head_down_and_hold_every_weight_once(lens):
    found = parts(lens, X[:1])
    assert [part.name for part in found] == ["head", "layer3", "layer2", "layer1", "stem"][: len(found)]
    modules = [module for part in found for module in part.modules]
    owners = [name for name, module in lens.model.named_modules() if list(module.parameters(recurse=False))]
    assert sorted(modules) == sorted(owners)
    assert [part.name for part in parts(lens, X[:1], pairs=True)] == [part.name for part in found[1:]]


def test_a_block_that_is_a_function_closes_its_part():
    lens = Lens(seeded(DenseLike, inplace=True))
    found = {part.name: part.modules for part in parts(lens, X[:1])}
    assert found["head"] == ("classifier",)
    assert {"features.3", "features.4"} <= set(found["features:relu"])


def test_reset_takes_back_batch_statistics_and_shuffles_what_has_no_reset():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.arange(20.0))

    net = nn.ModuleDict({"norm": nn.BatchNorm2d(3), "scaled": Scaled()})
    net["norm"].running_mean.fill_(5)
    reset(net, NetworkPart("all", ("norm", "scaled")), seed=0)
    assert net["norm"].running_mean.tolist() == [0, 0, 0]
    assert net["scaled"].scale.tolist() != list(range(20))
    assert sorted(net["scaled"].scale.tolist()) == list(range(20))
    state = torch.get_rng_state()
    reset(net, NetworkPart("all", ("scaled",)), seed=0)
    assert torch.equal(torch.get_rng_state(), state)


def test_pairs_compare_both_sides_and_only_other_pairs(lens):
    shown = list(pictures(X))
    make = compared_maps.of_pairs(lens, shown[::2], shown[1::2], ["gam", "vdsn", "input_gradient"], batch=2)
    with pytest.warns(GamlensWarning, match="3 images or pairs only"):
        found = randomise_parameters(
            lens, make, parts(lens, X[:1], pairs=True), list("abcdef"), groups=[0, 0, 1, 1, 2, 2]
        )
    assert {verdict.pairs for verdict in found.verdicts} == {12}
    assert not found.passes("edges")
    last = [row for row in found.rows if (row.method, row.mode, row.step) == ("gam", MODES[0], len(found.parts))]
    left = bootstrap(torch.tensor([row.values["ssim"] for row in last]).double(), clusters=[0, 0, 1, 1, 2, 2])
    (verdict,) = [verdict for verdict in found.verdicts if (verdict.method, verdict.measure) == ("gam", "ssim")]
    assert (verdict.left.low, verdict.left.high) == pytest.approx((left.low, left.high))
    pair = lens.compare(X[::2], X[1::2]).y.maps[1]
    torch.testing.assert_close(found.shown["", 0]["gam"][3], pair, atol=1e-6, rtol=0)


def test_a_class_stays_the_one_of_the_original_model(lens):
    make = compared_maps.of_classes(lens, list(pictures(X)), ["gam"])
    for state in states(lens, parts(lens, X[:1])):
        aims = lens.trace(X, n=1).targets.tolist()
        torch.testing.assert_close(make(state.lens)["gam"], state.lens.classify(X, aims).maps, atol=1e-6, rtol=0)
        break


def test_a_model_with_one_block_is_checked_too():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    lens = Lens(seeded(lambda: net), blocks=["1"])
    found = parts(lens, X[:1])
    assert [part.name for part in found] == ["head", "1"]
    make = compared_maps.of_classes(lens, list(pictures(X)), ["gam"])
    outcome = randomise_parameters(lens, make, found, list("abcdef"))
    assert len(outcome.rows) == 2 * 2 * 2 * 6


def test_a_model_without_weights_says_so():
    lens = Lens(nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()), blocks=["0"])
    with pytest.raises(GamlensError, match="nothing to randomise"):
        parts(lens, X[:1])


def test_flat_maps_are_counted_and_agree_with_nothing(lens):
    def make(look):
        maps = torch.rand(6, 32, 32, generator=torch.Generator().manual_seed(0))
        return {"gam": maps if look is lens else torch.zeros(6, 32, 32)}

    outcome = randomise_parameters(lens, make, parts(lens, X[:1]), list("abcdef"))
    assert all(row.flat and row.values["spearman"] == 0 and row.values["hog"] == 0 for row in outcome.rows)


def test_tiny_numbers_are_left_as_they_were(outcome):
    assert torch.tensor(1e-310, dtype=torch.float64).mul(1.0) > 0


def test_files(outcome, tmp_path):
    shown = [Image.new("RGB", (40, 30), "white")] * 6
    written = parameter_results.write(outcome, tmp_path, shown, {"model": "small"})
    assert all(file.is_file() for file in written)
    found = json.loads((tmp_path / "sanity.json").read_text())
    assert found["passes"] == {"gam": outcome.passes("gam"), "guided_backprop": outcome.passes("guided_backprop"),
                               "edges": False}  # fmt: skip
    assert "95th percentile" in found["rule"]
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert len(rows) == 3 * 2 * len(outcome.parts) * 6
    assert "| Edge detector (control) |" in (tmp_path / "table.md").read_text()
    assert len(list((tmp_path / "strips").iterdir())) == 6
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.width > 1000
    copied = copy.copy(outcome)
    with pytest.raises(GamlensError, match="Cannot make the folder"):
        parameter_results.write(copied, tmp_path / "rows.csv", shown, {})


MODEL = """
import torch
from torch import nn
from gamlens import Lens, Transform
def build():
    torch.manual_seed(0)
    def stage(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)
    net = nn.Sequential(stage(3, 8), stage(8, 12), stage(12, 16), *head)
    return Lens(net.eval(), transform=Transform((64, 64)))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    for number, image in enumerate(images(4, 64)):
        pixels = ((image - image.min()) / (image.max() - image.min()) * 255).byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    return tmp_path


def invoke(folder, *options):
    at = ["sanity", "parameters", "--model", f"{folder}/net.py:build", "--out", str(folder / "out")]
    return runner.invoke(app, [*at, *options], env={"COLUMNS": "200"})


def test_command(folder):
    result = invoke(folder, str(folder / "*.png"), "--methods", "gam,input_gradient", "-n", "1")
    assert result.exit_code == 0, result.output
    assert "Edge detector (control)" in result.stdout
    assert "1.00 >" in result.stdout
    assert (folder / "out" / "curves.png").is_file()
    result = invoke(folder, str(folder / "*.png"), "--pairs", "--methods", "gam", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["score"] == "cosine"
    assert found["lattice"] == "read"
    assert "head" not in [part["name"] for part in found["parts"]]


def test_the_reading_of_lattices_is_passed_on_and_recorded(folder):
    result = invoke(folder, str(folder / "*.png"), "--methods", "gam", "--lattice", "keep")
    assert result.exit_code == 0, result.output
    assert json.loads((folder / "out" / "sanity.json").read_text())["lattice"] == "keep"


def test_maps_of_both_readings_are_those_of_the_lens():
    look, shown = Lens(skipping().double(), blocks=["0", "1"]), list(pictures(X))
    assert list(look.lattices) == ["0"]
    made = {}
    for reading in ("read", "keep"):
        made[reading] = compared_maps.of_classes(look, shown, ["gam"], target=0, batch=6, lattice=reading)(look)["gam"]
        assert torch.equal(made[reading], look.classify(X, 0, n=2, lattice=reading).maps)
        pairs = compared_maps.of_pairs(look, shown[:3], shown[3:], ["gam"], batch=3, lattice=reading)(look)["gam"]
        expected = look.compare(X[:3], X[3:], n=2, lattice=reading)
        assert torch.equal(pairs[::2], expected.x.maps)
        assert torch.equal(pairs[1::2], expected.y.maps)
    assert not torch.allclose(made["read"], made["keep"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["{at}/none*.png"], "Nothing matches"),
        (["{at}/0.png"], "there is only 1: give at least two"),
        (["{at}/0.png", "{at}/1.png", "--pairs"], "there is only 1"),
        (["{at}/0.png", "{at}/1.png", "{at}/2.png", "--pairs"], "two by two; found 3"),
        (["{at}/*.png", "--target", "9"], "There is no class 9: the model has 5"),
        (["{at}/*.png", "--methods", "gamm"], "did you mean 'gam'"),
        (["{at}/*.png", "--methods", "vdsn"], "explains pairs only"),
        (["{at}/*.png", "--methods", ","], "at least one method"),
        (["{at}/*.png", "--lattice", "kept"], "'kept'"),
        (["{at}/*.png", "-n", "9"], "n=9 blocks were asked for"),
    ],
)
def test_bad_input_is_one_line(folder, options, message):
    result = invoke(folder, *(option.format(at=folder) for option in options))
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["parameters", "data"])
def test_help_has_an_example(command):
    result = runner.invoke(app, ["sanity", command, "--help"])
    assert f"gamlens sanity {command}" in result.stdout.split("Example:")[1]
