"""Explainers that are not ours: other packages against the formulas, the user's files, and the model left as it was."""

from __future__ import annotations

import importlib
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import explainer_files
import nets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from gamlens import METHODS, GamlensError, Lens
from gamlens.evaluation import explainers
from gamlens.evaluation.explainers import (
    EXPLAINER_PACKAGES,
    Embedder,
    external,
    find,
    is_external,
    split_names,
    title_of,
)
from gamlens.evaluation.explainers.map_files import map_in
from gamlens.fuse import min_max
from gamlens.inputs.frame import Frame
from gamlens.scores import cosine, dot

SIZE = 32
TARGETS = torch.tensor([1, 4])


class Flat(nn.Module):
    """Two convolutions of the input's size, mean pooling and a linear head: a block map needs no resizing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU())
        self.last = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU())
        self.fc = nn.Linear(8, nets.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.last(self.first(x)).mean(dim=(2, 3)))


@pytest.fixture
def lens() -> Lens:
    return Lens(nets.small(inplace=True))


@pytest.fixture
def batch() -> Tensor:
    return nets.images(2, SIZE)


def classify(spec: str, lens: Lens, batch: Tensor) -> Tensor:
    bound = find(spec).bind(lens)
    assert bound.classify is not None
    maps = bound.classify(batch, TARGETS)
    assert maps.shape == (len(batch), *batch.shape[2:])
    assert maps.dtype == torch.float32
    assert float(maps.min()) >= 0
    assert float(maps.max()) <= 1
    return maps


def by_hand(model: nn.Module, batch: Tensor) -> Tensor:
    """|sum over channels of input x gradient|, scaled to [0,1]."""
    batch = batch.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(model(batch).gather(1, TARGETS[:, None]).sum(), batch)
    return min_max((batch * gradient).sum(dim=1).abs().detach())[0].float()


def state(model: nn.Module) -> list[Any]:
    """What a call must leave as it was: modules, their attributes and hooks, flags and gradients."""
    hooks = [key for key in vars(model) if "_hooks" in key]
    modules = [(name, id(module), module.training, sorted(vars(module))) for name, module in model.named_modules()]
    counts = [[len(getattr(module, key)) for key in hooks] for module in model.modules()]
    flags = [(id(p), p.requires_grad, id(p.grad), p.grad.sum().item()) for p in model.parameters()]
    inplace = [getattr(module, "inplace", None) for module in model.modules()]
    return [modules, counts, flags, inplace, torch.is_grad_enabled(), torch.random.get_rng_state().tolist()]


def used(model: nn.Module) -> nn.Module:
    """The model as in the middle of a training: in mixed modes, with gradients, frozen layers and a hook."""
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, float(number))
        parameter.requires_grad_(number % 3 > 0)
    model.train()
    for module in list(model.modules())[2:4]:
        module.eval()
    model.register_forward_hook(lambda *args: None)
    return model


# Names


def test_names_are_split_outside_of_brackets_and_quotes() -> None:
    text = "gam,captum:Lime?cells=(3,4)&x='a,b', my file.py:f ,grad_cam_lib:SESS?scales=[32, 48],"
    expected = ("gam", "captum:Lime?cells=(3,4)&x='a,b'", "my file.py:f", "grad_cam_lib:SESS?scales=[32, 48]")
    assert split_names(text) == expected
    assert split_names("") == ()
    assert [is_external(name) for name in expected] == [False, True, True, True]


def test_titles_need_no_package_and_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("captum.attr", "pytorch_grad_cam", "torchcam.methods"):
        monkeypatch.setitem(sys.modules, module, None)
    titles = {
        "captum:IntegratedGradients": "Integrated Gradients (captum)",
        "captum:Occlusion?window=8&sign=positive": "Occlusion (captum, window=8, sign=positive)",
        "captum:LRP": "LRP (captum)",
        "grad_cam_lib:ScoreCAM": "ScoreCAM (grad-cam)",
        "torchcam:LayerCAM?n=2": "LayerCAM (torchcam, n=2)",
        "some/where/my_file.py:explain": "explain (my_file.py)",
        "maps:some/where": "where (maps)",
        "python:mine": "mine",
    }
    assert {name: title_of(name) for name in titles} == titles
    with pytest.raises(GamlensError, match=r"pip install 'gamlens\[peers\]'"):
        find("captum:Saliency")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("captum", "names no explainer"),
        ("captun:Saliency", "no explainer package 'captun': did you mean 'captum'"),
        ("maps:no/such/folder", "no folder 'no/such/folder'"),
        ("no_such.py:explain", "no file 'no_such.py'"),
        ("python:mine", "external"),
        ("captum:Saliency?abs", "NAME=VALUE"),
    ],
)
def test_a_name_that_cannot_be_used_says_what_to_write(spec: str, message: str) -> None:
    with pytest.raises(GamlensError, match=message):
        find(spec)


@pytest.mark.parametrize(
    ("module", "spec", "message"),
    [
        ("captum", "captum:IntegratedGradient", "did you mean 'IntegratedGradients'"),
        ("captum", "captum:ShapleyValues", "362880.*ShapleyValueSampling"),
        ("captum", "captum:Occlusion?size=3", "no option 'size': its options are .*window, stride"),
        ("captum", "captum:Saliency?sign=both", "sign='both' is none of absolute, positive"),
        ("pytorch_grad_cam", "grad_cam_lib:GradCam2", "did you mean 'GradCAM'"),
        ("pytorch_grad_cam", "grad_cam_lib:GradCAM?layers=2", "its options are .*n, layer"),
        ("torchcam", "torchcam:LayerCam2", "did you mean 'LayerCAM'"),
    ],
)
def test_unknown_classes_and_options_name_those_that_exist(module: str, spec: str, message: str) -> None:
    pytest.importorskip(module)
    with pytest.raises(GamlensError, match=message):
        find(spec)


# Other packages against the formulas


@pytest.mark.parametrize(
    ("module", "spec"),
    [
        ("pytorch_grad_cam", "grad_cam_lib:GradCAM"),
        ("pytorch_grad_cam", "grad_cam_lib:ShapleyCAM"),  # the head is linear, so the second derivative is zero
        ("captum", "captum:LayerGradCam"),
        ("torchcam", "torchcam:GradCAM"),
    ],
)
def test_grad_cam_of_all_packages_is_ours(module: str, spec: str, batch: Tensor) -> None:
    """Compared at the input's size, where no map is resized; ours resizes bicubically, theirs bilinearly."""
    pytest.importorskip(module)
    lens = Lens(nets.seeded(Flat), blocks=["first", "last"])
    ours = lens.classify(batch, TARGETS.tolist(), method="grad_cam", n=1).maps
    torch.testing.assert_close(classify(spec, lens, batch), ours.float(), atol=1e-5, rtol=0)


def test_layers_and_n_are_options(batch: Tensor) -> None:
    pytest.importorskip("pytorch_grad_cam")
    lens = Lens(nets.seeded(Flat), blocks=["first", "last"])
    first, last = (classify(f"grad_cam_lib:GradCAM?layer={name}", lens, batch) for name in ("first", "last"))
    torch.testing.assert_close(classify("grad_cam_lib:GradCAM?n=1", lens, batch), last)
    both = classify("grad_cam_lib:GradCAM?n=2", lens, batch)
    torch.testing.assert_close(both, min_max((first + last) / 2)[0], atol=1e-3, rtol=0)
    for spec, message in (("n=3", "has 2 blocks"), ("layer=lost", "no layer 'lost': did you mean 'last'")):
        with pytest.raises(GamlensError, match=message):
            classify(f"grad_cam_lib:GradCAM?{spec}", lens, batch)


@pytest.mark.parametrize("inplace", [False, True])
def test_a_function_after_a_block_does_not_change_what_a_package_reads(inplace: bool, batch: Tensor) -> None:
    """Of the block "features:relu" the module is read: its output before the ReLU, also if this works in place."""
    pytest.importorskip("pytorch_grad_cam")
    pytest.importorskip("torchcam")
    model = nets.seeded(nets.DenseLike, inplace=inplace)
    lens = Lens(model, blocks=["features:relu"])
    output = model.features(batch).detach().requires_grad_(True)
    scores = model.classifier(F.relu(output).mean(dim=(2, 3))).gather(1, TARGETS[:, None])
    (gradient,) = torch.autograd.grad(scores.sum(), output)
    raw = F.relu((gradient.mean(dim=(2, 3), keepdim=True) * output).sum(dim=1)).detach()
    found = classify("torchcam:GradCAM", lens, batch)
    large = F.interpolate(raw[:, None], size=(SIZE, SIZE), mode="bilinear", align_corners=False)[:, 0]
    torch.testing.assert_close(found, min_max(large)[0].float(), atol=1e-4, rtol=0)
    torch.testing.assert_close(classify("grad_cam_lib:GradCAM", lens, batch), found, atol=1e-3, rtol=0)


def test_input_times_gradient_of_captum_is_that_of_autograd(lens: Lens, batch: Tensor) -> None:
    pytest.importorskip("captum")
    torch.testing.assert_close(classify("captum:InputXGradient", lens, batch), by_hand(lens.model, batch))


def test_sign_takes_the_positive_part(lens: Lens, batch: Tensor) -> None:
    pytest.importorskip("captum")
    leaf = batch.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(lens.model(leaf).gather(1, TARGETS[:, None]).sum(), leaf)
    expected = min_max((batch * gradient).sum(dim=1).relu())[0].float()
    torch.testing.assert_close(classify("captum:InputXGradient?sign=positive", lens, batch), expected)


def test_occlusion_is_a_loop_over_windows(lens: Lens, batch: Tensor) -> None:
    """What the score loses while a window shows the mean colour, 0, averaged over the windows that cover a pixel."""
    pytest.importorskip("captum")
    loss, covered = torch.zeros(2, SIZE, SIZE).double(), torch.zeros(SIZE, SIZE)
    score = lens.outputs(batch).gather(1, TARGETS[:, None])[:, 0]
    for top in range(0, SIZE - 15, 8):
        for left in range(0, SIZE - 15, 8):
            hidden = batch.clone()
            hidden[:, :, top : top + 16, left : left + 16] = 0
            lost = score - lens.outputs(hidden).gather(1, TARGETS[:, None])[:, 0]
            loss[:, top : top + 16, left : left + 16] += 3 * lost[:, None, None]  # once for each channel
            covered[top : top + 16, left : left + 16] += 1
    expected = min_max((loss / covered).abs())[0].float()
    torch.testing.assert_close(classify("captum:Occlusion?window=16&stride=8", lens, batch), expected)


def test_cells_are_hidden_one_by_one(lens: Lens, batch: Tensor) -> None:
    pytest.importorskip("captum")
    maps = classify("captum:FeatureAblation?cells=4", lens, batch)
    cells = maps.unfold(1, SIZE // 4, SIZE // 4).unfold(2, SIZE // 4, SIZE // 4)
    assert bool((cells == cells[..., :1, :1]).all())
    assert len(cells[0, :, :, 0, 0].unique()) > 8


def test_a_network_without_relu_modules_is_not_guided(batch: Tensor) -> None:
    pytest.importorskip("captum")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 9))
    with pytest.raises(GamlensError, match=r"nn.ReLU modules, and .* has none"):
        classify("captum:GuidedBackprop", Lens(model, blocks=["1"]), batch)
    for name in ("DeepLift", "LayerDeepLiftShap"):
        with pytest.raises(GamlensError, match=r"no rule for nn.ReLU6, .* captum:InputXGradient"):
            classify(f"captum:{name}", Lens(model, blocks=["1"]), batch)


def test_blocks_of_tokens_are_read_as_images() -> None:
    """A block (B,N,C) of a transformer is arranged as an image for packages that ask for one."""
    pytest.importorskip("pytorch_grad_cam")
    pytest.importorskip("torchcam")
    pytest.importorskip("captum")
    options = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16, "num_classes": 9}
    model = nets.seeded(VisionTransformer, image_size=SIZE, patch_size=8, **options).float()
    nn.init.normal_(model.heads.head.weight, generator=torch.Generator().manual_seed(0))
    lens, batch = Lens(model), nets.images(2, SIZE).float()
    found = {spec: classify(spec, lens, batch) for spec in ("grad_cam_lib:GradCAM", "torchcam:GradCAM")}
    trace = lens.trace(batch, TARGETS.tolist(), method="grad_cam", n=1)
    name = lens.blocks[-1]
    assert name.endswith(":tokens")
    raw = METHODS["grad_cam"].fn(trace.activations[name], trace.gradients[name])
    large = F.interpolate(raw[:, None], size=(SIZE, SIZE), mode="bilinear", align_corners=False)[:, 0]
    for maps in found.values():
        torch.testing.assert_close(maps, min_max(large)[0], atol=1e-3, rtol=0)
        assert float(maps.max()) == 1
    assert float(classify("captum:LayerGradientXActivation", lens, batch).max()) == 1
    with pytest.raises(GamlensError, match="second axis"):
        classify("captum:LayerGradCam", lens, batch)


@pytest.mark.parametrize(
    "name",
    [
        "Deconvolution", "DeepLift", "DeepLiftShap", "GradientShap?n_samples=2", "GuidedBackprop", "GuidedGradCam",
        "IntegratedGradients?n_steps=3", "KernelShap?cells=2", "Lime?cells=2&n_samples=9", "Saliency",
        "LayerDeepLift", "LayerIntegratedGradients?n_steps=2", "LayerGradientXActivation",
        "ShapleyValueSampling?cells=2&n_samples=2",
    ],
)  # fmt: skip
def test_classes_of_captum_run(name: str, lens: Lens, batch: Tensor) -> None:
    pytest.importorskip("captum")
    classify(f"captum:{name}", lens, batch)


def grad_cam_classes() -> list[str]:
    try:
        return list(EXPLAINER_PACKAGES["grad_cam_lib"].entries())
    except GamlensError:
        return []


@pytest.mark.parametrize("name", grad_cam_classes())
def test_every_class_of_grad_cam_runs(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    lens = Lens(nets.small(inplace=True))
    options = {"SESS": "?num_scales=2"}.get(name, "")
    before = list(lens.model.modules())
    maps = classify(f"grad_cam_lib:{name}{options}", lens, nets.images(2, 64))
    assert float(maps.amax()) > 0
    assert all(a is b for a, b in zip(before, lens.model.modules(), strict=True))
    assert capfd.readouterr() == ("", "")  # no progress bars


@pytest.mark.parametrize("name", ["CAM", "LayerCAM", "RefineCAM", "ScoreCAM", "SmoothGradCAMpp", "XGradCAM"])
def test_classes_of_torchcam_run(name: str, lens: Lens, batch: Tensor) -> None:
    pytest.importorskip("torchcam")
    classify(f"torchcam:{name}", lens, batch)


@pytest.mark.parametrize("spec", ["grad_cam_lib:RandomCAM", "captum:GradientShap?n_samples=2"])
def test_random_methods_give_the_same_maps_again(spec: str, lens: Lens, batch: Tensor) -> None:
    pytest.importorskip("captum" if spec.startswith("captum") else "pytorch_grad_cam")
    torch.testing.assert_close(classify(spec, lens, batch), classify(spec, lens, batch), atol=0, rtol=0)


@pytest.mark.parametrize("spec", ["captum:InputXGradient", "grad_cam_lib:GradCAM", "torchcam:GradCAM"])
def test_class_scores_are_found_in_what_a_model_returns(spec: str, batch: Tensor) -> None:
    pytest.importorskip(
        {"captum": "captum", "grad_cam_lib": "pytorch_grad_cam", "torchcam": "torchcam"}[spec.split(":")[0]]
    )
    wrapped = Lens(nets.seeded(nets.Returns, lambda scores: {"loss": None, "scores": scores}), output="scores")
    plain = Lens(nets.seeded(nets.Small))
    torch.testing.assert_close(classify(spec, wrapped, batch), classify(spec, plain, batch))


def test_scores_that_a_function_makes_are_refused(batch: Tensor) -> None:
    pytest.importorskip("captum")
    with pytest.raises(GamlensError, match=r"made by a function \(output=\)"):
        classify("captum:Saliency", Lens(nets.small(), output=lambda scores: scores * 2), batch)


# The model is left as it was


@pytest.mark.parametrize(
    "spec",
    [
        "captum:GuidedGradCam", "captum:DeepLift", "captum:LRP", "grad_cam_lib:AblationCAM", "grad_cam_lib:ShapleyCAM",
        "grad_cam_lib:RefineCAM", "grad_cam_lib:FullGrad", "torchcam:SmoothGradCAMpp",
    ],
)  # fmt: skip
def test_the_model_is_left_as_it_was(spec: str, batch: Tensor) -> None:
    pytest.importorskip(
        {"captum": "captum", "grad_cam_lib": "pytorch_grad_cam", "torchcam": "torchcam"}[spec.split(":")[0]]
    )
    model = used(nets.small(inplace=True))
    lens = Lens(model)
    before, given = state(model), batch.clone()
    classify(spec, lens, batch)
    assert state(model) == before
    assert torch.equal(batch, given)
    assert not batch.requires_grad


def test_the_model_is_left_as_it_was_after_an_error(tmp_path: Path, batch: Tensor) -> None:
    file = tmp_path / "broken.py"
    file.write_text(explainer_files.BROKEN)
    model = used(nets.small())
    lens = Lens(model)
    before = state(model)
    with pytest.raises(GamlensError, match=r"broken.py:raises' failed: ZeroDivisionError: the original words"):
        classify(f"{file}:raises", lens, batch)
    assert state(model) == before


def test_values_of_the_model_come_back(batch: Tensor) -> None:
    """Running means, which a function changes by the training mode, and parameters that it gives other values."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 30 * 30, 5)).eval()
    before = {name: values.clone() for name, values in model.state_dict().items()}
    places = [parameter.data_ptr() for parameter in model.parameters()]

    def many(network: Any, images: Tensor, targets: Tensor) -> Tensor:
        network.train()
        network(images)
        network[3].weight.data = network[3].weight.data * 2
        return network(images)[:, :1, None].expand(-1, 2, 2)

    bound = external(many).bind(Lens(model, blocks=["0"]))
    assert bound.classify is not None
    bound.classify(batch, TARGETS)
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    assert not model.training


def test_a_layer_that_was_replaced_comes_back_after_an_error(
    lens: Lens, batch: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pytorch_grad_cam")
    layer = importlib.import_module("pytorch_grad_cam.ablation_layer")

    def fail(self: Any, x: Tensor) -> Tensor:
        raise ArithmeticError("in the middle")

    monkeypatch.setattr(layer.AblationLayer, "__call__", fail)
    before = list(lens.model.modules())
    with pytest.raises(GamlensError, match="AblationCAM' failed on Small: ArithmeticError: in the middle"):
        classify("grad_cam_lib:AblationCAM", lens, batch)
    assert all(a is b for a, b in zip(before, lens.model.modules(), strict=True))


# The user's own functions


def test_a_file_explains_classes_and_pairs(lens: Lens, batch: Tensor, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(explainer_files.CLASSES_AND_PAIRS)
    torch.testing.assert_close(classify(f"{file}:explain", lens, batch), by_hand(lens.model, batch))
    found = {name: find(f"{file}:{name}") for name in ("explain", "explain_pair", "explain+explain_pair")}
    assert [(entry.classes, entry.pairs) for entry in found.values()] == [(True, False), (False, True), (True, True)]
    assert {entry.source[:7] for entry in found.values()} == {"sha256 "}
    assert found["explain_pair"].bind(lens).classify is None
    sent = pickle.dumps(found["explain"])  # to another process, which has not run the file
    del sys.modules["gamlens_explainer_mine"]
    again = pickle.loads(sent)
    assert (again.name, again.title, again.source) == (f"{file}:explain", "explain (mine.py)", found["explain"].source)
    both = found["explain+explain_pair"].bind(lens)
    assert both.classify is not None
    assert both.compare is not None
    x, y = both.compare(batch[:1], batch[1:], cosine)
    torch.testing.assert_close((x, y), pair_by_hand(lens, batch))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raise_", "no function 'raise_': did you mean 'raises'"),
        ("nothing", "nothing' returned None"),
        ("flat_list", r"flat_list' returned the shape \(2, 3\): let it return maps of the shape \(2, 32, 32\)"),
        ("no_numbers", "no_numbers' returned maps with NaN or infinite values, for the images 0, 1"),
        ("words", "words' returned str"),
        ("nothing+words", "Both functions"),
    ],
)
def test_a_broken_file_says_what_is_wrong(name: str, message: str, lens: Lens, batch: Tensor, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(explainer_files.BROKEN)
    with pytest.raises(GamlensError, match=message):
        classify(f"{file}:{name}", lens, batch)


def test_other_mistakes_in_a_file(lens: Lens, batch: Tensor, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(explainer_files.BROKEN)
    one = find(f"{file}:one_side").bind(lens).compare
    assert one is not None
    with pytest.raises(GamlensError, match="one_side' returned Tensor: let it return two sets"):
        one(batch, batch, dot)
    file.write_text(explainer_files.CLASSES_AND_PAIRS)
    with pytest.raises(GamlensError, match=r"many' takes 5 parameters: \(model, batch, targets\) for classes"):
        find(f"{file}:many")
    with pytest.raises(GamlensError, match="has no option 'a': it has no options"):
        find(f"{file}:explain?a=1")
    file.write_text("import no_such_module")
    with pytest.raises(GamlensError, match="the file failed: ModuleNotFoundError"):
        find(f"{file}:explain")
    file.write_text("import sys\nsys.exit(3)")
    with pytest.raises(GamlensError, match=r"called sys.exit\(3\)"):
        find(f"{file}:explain")


def test_a_function_of_this_process_is_an_explainer(lens: Lens, batch: Tensor) -> None:
    def corner(model: nn.Module, images: Tensor, targets: Tensor) -> np.ndarray[Any, Any]:
        assert model is lens.model
        assert not model.training
        assert torch.is_grad_enabled()
        maps = np.zeros((len(images), 1, 2, 2), dtype=np.float64)
        maps[:, :, 0, 0] = targets[:, None]
        return maps

    entry = external(corner)
    assert (entry.name, entry.title, entry.classes, entry.pairs) == ("python:corner", "corner", True, False)
    bound = entry.bind(lens)
    assert bound.classify is not None
    with torch.no_grad():
        maps = bound.classify(batch, TARGETS)
    small = torch.tensor([[1.0, 0.0], [0.0, 0.0]]).expand(2, 1, 2, 2)
    expected = F.interpolate(small, size=(SIZE, SIZE), mode="bilinear", align_corners=False)[:, 0]
    torch.testing.assert_close(maps, expected)
    of_pairs = external(lambda model, x, y, score: (x[:, 0], y[:, 0]), name="pixels", title="Pixels", source="me")
    assert (of_pairs.name, of_pairs.title, of_pairs.source) == ("python:pixels", "Pixels", "me")
    assert (of_pairs.classes, of_pairs.pairs) == (False, True)
    with pytest.raises(GamlensError, match="needs a function"):
        external()


def test_a_flat_map_becomes_zeros(lens: Lens, batch: Tensor) -> None:
    bound = external(lambda model, images, targets: torch.ones(len(images), 4, 4), name="ones").bind(lens)
    assert bound.classify is not None
    assert not bool(bound.classify(batch, TARGETS).any())


# Pairs


def pair_by_hand(lens: Lens, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Input x gradient of the cosine, by the network's own layers, for a pair of two images."""
    model: Any = lens.model
    leaf = batch.clone().requires_grad_(True)
    embeddings = model.features(leaf).mean(dim=(2, 3))
    (gradient,) = torch.autograd.grad(F.cosine_similarity(embeddings[:1], embeddings[1:]).sum(), leaf)
    maps = min_max((batch * gradient).sum(dim=1).abs())[0].float()
    return maps[:1], maps[1:]


def test_the_embedder_gives_what_the_lens_gives(batch: Tensor) -> None:
    places = {"layer3": {}, "fc": {"embedding": "fc"}, "output": {"embedding": "output"}}
    for options in ({}, *places.values()):
        lens = Lens(nets.small(inplace=True), **options)
        leaf = batch.clone().requires_grad_(True)
        found = Embedder(lens, batch)(leaf)
        torch.testing.assert_close(found.detach(), lens.embed(batch))
        (gradient,) = torch.autograd.grad(found.sum(), leaf)
        assert float(gradient.abs().sum()) > 0


def test_pairs_by_captum_are_those_of_autograd(lens: Lens, batch: Tensor) -> None:
    pytest.importorskip("captum")
    compare = find("captum:InputXGradient").bind(lens).compare
    assert compare is not None
    torch.testing.assert_close(compare(batch[:1], batch[1:], cosine), pair_by_hand(lens, batch))


@pytest.mark.parametrize(
    "spec",
    [
        "captum:Occlusion?window=16", "captum:IntegratedGradients?n_steps=3", "captum:DeepLift", "captum:LayerGradCam",
        "captum:GradientShap?n_samples=2", "captum:GuidedGradCam", "captum:KernelShap?cells=2",
        "grad_cam_lib:GradCAM", "grad_cam_lib:ScoreCAM", "grad_cam_lib:AblationCAM", "grad_cam_lib:FullGrad",
    ],
)  # fmt: skip
def test_a_pair_does_not_depend_on_the_others_of_its_batch(spec: str, lens: Lens, batch: Tensor) -> None:
    """Each perturbed image of a batch is compared with its own partner."""
    pytest.importorskip("captum" if spec.startswith("captum") else "pytorch_grad_cam")
    compare = find(spec).bind(lens).compare
    assert compare is not None
    both = compare(batch, batch.flip(3), dot)
    alone = compare(batch[:1], batch[:1].flip(3), dot)
    if "Shap" in spec:  # random: other numbers for a batch of another size
        assert [maps.shape for maps in both] == [(2, SIZE, SIZE)] * 2
        return
    for maps, one in zip(both, alone, strict=True):
        torch.testing.assert_close(maps[:1], one, atol=1e-5, rtol=0)


def test_grad_cam_of_a_pair_is_ours(batch: Tensor) -> None:
    pytest.importorskip("pytorch_grad_cam")
    lens = Lens(nets.seeded(Flat), blocks=["first", "last"])
    compare = find("grad_cam_lib:GradCAM").bind(lens).compare
    assert compare is not None
    ours = lens.compare(batch[:1], batch[1:], method="grad_cam", n=1, score="cosine")
    for maps, side in zip(compare(batch[:1], batch[1:], cosine), (ours.x, ours.y), strict=True):
        torch.testing.assert_close(maps, side.maps.float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("spec", ["grad_cam_lib:FinerCAM", "torchcam:LayerCAM"])
def test_what_cannot_explain_pairs_says_so(spec: str, lens: Lens) -> None:
    pytest.importorskip("torchcam" if spec.startswith("torchcam") else "pytorch_grad_cam")
    assert not find(spec).pairs
    assert find(spec).bind(lens).compare is None


# Maps from files


@dataclass(frozen=True)
class Photo:
    name: str
    image: str


def test_maps_of_another_program_are_found_by_name(lens: Lens, tmp_path: Path) -> None:
    whole, crop = Frame.whole((40, 80), (32, 32)), Frame((40, 80), (32, 32), (20.0, 0.0, 60.0, 40.0))
    maps = {"a": np.random.rand(32, 32), "b.JPEG": np.arange(80.0)[None].repeat(40, 0), "c": np.eye(5)}
    for name, values in maps.items():
        np.save(tmp_path / f"{name}.npy", values)
    entry = find(f"maps:{tmp_path}")
    assert entry.by_name is not None
    assert entry.bind(lens).classify is None
    found = entry.by_name(lens, [Photo("a", "x/1.jpg"), Photo("7", "x/b.JPEG")], [whole, crop])
    torch.testing.assert_close(found[0], min_max(torch.tensor(maps["a"])[None])[0][0].float())
    torch.testing.assert_close(found[1], torch.linspace(0, 1, 32).expand(32, 32), atol=0.02, rtol=0)
    with pytest.raises(GamlensError, match=r"no map of the image 'd': write .*d.npy or .*9.jpg.npy"):
        entry.by_name(lens, [Photo("d", "9.jpg")], [whole])
    with pytest.raises(GamlensError, match=r"c.npy' has the shape \(5, 5\), .* in proportion to the image \(40, 80\)"):
        entry.by_name(lens, [Photo("c", "9.jpg")], [whole])
    np.save(tmp_path / "d.npy", np.full((40, 80), np.nan))
    with pytest.raises(GamlensError, match=r"d.npy' has NaN"):
        entry.by_name(lens, [Photo("d", "9.jpg")], [whole])
    (tmp_path / "e.npy").write_text("no array")
    with pytest.raises(GamlensError, match=r"Cannot read the map .*e.npy"):
        entry.by_name(lens, [Photo("e", "9.jpg")], [whole])
    assert find(f"maps:{tmp_path}").source != entry.source
    before = find(f"maps:{tmp_path}").source
    np.save(tmp_path / "a.npy", np.random.rand(32, 32))  # as large as before
    assert find(f"maps:{tmp_path}").source != before


def test_a_map_is_brought_into_the_frame_of_the_input() -> None:
    ramp = torch.arange(40.0).expand(20, 40)
    padded = map_in(ramp, Frame((20, 40), (40, 40), (0.0, -10.0, 40.0, 30.0)))
    assert not bool(padded[:10].any())
    assert not bool(padded[30:].any())
    torch.testing.assert_close(padded[10:30], ramp)
    torch.testing.assert_close(map_in(ramp, Frame((40, 80), (10, 10), (40.0, 0.0, 60.0, 20.0)))[3], ramp[0, 20:30])


def test_the_room_hands_on_its_names() -> None:
    names = ("EXPLAINER_PACKAGES", "Explainer", "BoundExplainer", "Embedder", "external", "find", "is_external")
    assert all(hasattr(explainers, name) for name in (*names, "split_names", "title_of"))
