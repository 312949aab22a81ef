"""What users and reviewers ran into, each as small as it was."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

from gamlens import Explanation, GamlensError, GamlensWarning, Lens, fuse
from gamlens.cli import app
from gamlens.report.classified_files import ClassifyOptions, classify_files
from gamlens.report.image_files import find_images


class Headed(nn.Module):
    """A trunk, then whatever `head` makes of the pooled features."""

    def __init__(self, head: Any, *, width: int = 12) -> None:
        super().__init__()
        self.stage1, self.stage2 = nets.stage(3, 8), nets.stage(8, 12)
        self.stage3 = nets.stage(12, 12)
        self.fc, self.bn, self.head = nn.Linear(12, width), nn.BatchNorm1d(width), head

    def forward(self, x: Tensor) -> Any:
        return self.head(self, self.fc(self.stage3(self.stage2(self.stage1(x))).mean(dim=(2, 3))))


def headed(head: Any) -> Headed:
    torch.manual_seed(5)
    return Headed(head).double().eval()


def test_a_constant_map_is_flat_to_rounding() -> None:
    maps, flat = fuse.min_max(fuse.resize(torch.full((1, 7, 7), 0.3), (224, 224)))
    assert bool(flat)
    assert float(maps.abs().max()) == 0
    from torchvision.models import resnet18

    torch.manual_seed(0)
    with pytest.warns(GamlensWarning, match="flat"):
        assert float(Lens(resnet18()).classify(torch.randn(1, 3, 32, 32), n=1).maps.max()) == 0


def test_a_callable_score_reads_a_dict() -> None:
    lens = Lens(headed(lambda net, f: {"depth": f}))
    result = lens.classify(nets.images(2), score=lambda out: out["depth"].mean(dim=1))
    assert result.targets.tolist() == [-1, -1]
    assert all(float(maps.max()) == 1 for maps in result.blocks.values())


def test_output_picks_the_embedding_too() -> None:
    net, x, y = headed(lambda net, f: {"emb": f / f.norm(dim=1, keepdim=True)}), nets.images(2), nets.images(2, seed=3)
    lens = Lens(net, output="emb")
    assert lens.embedding == "output"
    with torch.no_grad():
        expected = (net(x)["emb"] * net(y)["emb"]).sum(1)
    torch.testing.assert_close(lens.compare(x, y).scores, expected.float())


@pytest.mark.parametrize(
    ("head", "embedding"),
    [
        (lambda net, f: f / f.norm(dim=1, keepdim=True), "output"),
        (lambda net, f: f / torch.linalg.vector_norm(f, dim=1, keepdim=True), "output"),
        (lambda net, f: net.bn(f), "output"),
        (lambda net, f: f, "fc:input"),
        (lambda net, f: f / 10, "fc:input"),
    ],
)
def test_a_normalised_output_is_the_embedding(head: Any, embedding: str) -> None:
    assert Lens(headed(head)).embedding == embedding


def test_two_lenses_on_shared_layers_do_not_disturb_each_other() -> None:
    """A lens on a model in train mode and one on a part of it, in two threads."""
    net = nn.Sequential(nets.small(), nn.ReLU(), nn.Linear(nets.CLASSES, 4).double()).train()
    whole, part, batch = Lens(net), Lens(net[0]), nets.images(2)
    expected = [lens.classify(batch, 1).maps for lens in (whole, part)]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    wrong: list[int] = []

    def work(number: int, lens: Lens) -> None:
        for _ in range(15):
            if not torch.equal(lens.classify(batch, 1).maps, expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=pair) for pair in ((0, whole), (1, part), (0, whole), (1, part))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(module.training for module in net.modules())


def test_small_gradients_do_not_vanish_in_half_precision() -> None:
    """Scores scaled down to where float16 gradients would be zero give the map of the plain score."""
    net, batch = nets.small().float(), nets.images(2).float()
    plain = Lens(net).classify(batch, score=lambda out: out[:, 1])
    tiny = Lens(net.half()).classify(batch, score=lambda out: out.float()[:, 1] * 1e-6)
    assert float((plain.maps - tiny.maps).abs().max()) < 0.05


@pytest.mark.parametrize("labels", ["cat", [1, 2], []])
def test_labels_are_names(labels: Any) -> None:
    with pytest.raises(GamlensError, match="labels= is a list of class names"):
        Lens(nets.small(), labels=labels)


def test_labels_by_number_and_multi_label() -> None:
    names = {number: f"name {number}" for number in range(nets.CLASSES)}
    lens = Lens(nets.small(), labels=names, multi_label=True)
    guess = lens.trace(nets.images(1), "name 3").top(1)[0][0]
    assert guess.name == f"name {guess.index}"
    assert guess.probability == pytest.approx(1 / (1 + np.exp(-guess.score)))


def test_an_unknown_device_is_an_error() -> None:
    with pytest.raises(GamlensError, match="Cannot use the device 'nowhere'"):
        Lens(nets.small(), device="nowhere")


def test_weights_that_changed_since_the_forward_are_said() -> None:
    lens = Lens(nets.small())
    trace = lens.trace(nets.images(1), n=2)
    with torch.no_grad():
        for value in lens.model.parameters():
            value.add_(1)
    with pytest.raises(GamlensError, match="Were weights changed since the forward"):
        trace.retarget(3)


def test_a_timm_module_brings_its_input() -> None:
    import timm

    lens = Lens(timm.create_model("tf_efficientnet_lite1"))
    assert lens.transform.size == (240, 240)
    assert lens.transform.mean == (0.5, 0.5, 0.5)


def test_representations_are_short() -> None:
    lens = Lens(nets.small())
    for thing in (lens, lens.trace(nets.images(2)), lens.trace_pair(nets.images(1), nets.images(1, seed=2))):
        assert len(repr(thing)) < 200


def photo(path: Path, seed: int) -> Path:
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(path)
    return path


def test_brackets_in_a_file_name_are_shown_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "k[b].jpg").touch()
    photo(tmp_path / "a[red].png", 1)
    missing = CliRunner().invoke(app, ["classify", "no[/b].jpg", "-o", str(tmp_path / "out")])
    result = CliRunner().invoke(app, ["classify", str(tmp_path), "-o", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "k[b].jpg" in result.stderr
    assert "no[/b].jpg" in missing.stderr
    assert "a[red].png" in result.stdout


def test_results_are_not_explained_again(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    kept, _ = photo(tmp_path / "a.png", 1), photo(tmp_path / "out" / "b.png", 2)
    assert find_images([str(tmp_path)], skip=tmp_path / "out") == [str(kept)]
    assert find_images([f"{tmp_path}/**/*.png"], skip=tmp_path / "out") == [str(kept)]


def test_one_bad_file_does_not_stop_the_others(tmp_path: Path) -> None:
    """A transform that fails on one image is that image's error."""

    def transform(image: Image.Image) -> Tensor:
        if image.width == 51:
            raise ValueError("not this one")
        return torch.from_numpy(np.asarray(image.resize((64, 64)), dtype=np.float64) / 255).permute(2, 0, 1)

    files = [str(photo(tmp_path / f"{number}.png", number)) for number in range(3)]
    Image.new("RGB", (51, 40)).save(files[1])
    with pytest.warns(GamlensWarning, match="not understood"):
        results = list(
            classify_files(Lens(nets.small(), transform=transform), files, ClassifyOptions(), out=tmp_path / "out")
        )
    assert [bool(result.error) for result in results] == [False, True, False]
    assert "not this one" in results[1].error


def test_saving_again_leaves_no_old_overlay(tmp_path: Path) -> None:
    lens = Lens(nets.small(), labels=[f"name {number}" for number in range(nets.CLASSES)])
    (tmp_path / "note.txt").write_text("mine")
    lens.classify(nets.images(1), [[1, 2]]).save(str(tmp_path))
    lens.classify(nets.images(1), 3).save(str(tmp_path))
    assert [file.name for file in sorted(tmp_path.glob("0*.png"))] == ["000-image-0-name-3.png"]
    assert (tmp_path / "note.txt").exists()
    assert Explanation.load(str(tmp_path)).names == ["name 3"]


def test_prepared_images_are_taken_wherever_images_are() -> None:
    lens, batch = Lens(nets.small()), nets.images(3)
    ready = lens.prepare(batch, views=("flip",))
    nets.same(lens.classify(ready, [0, 1, 2]), lens.classify(batch, [0, 1, 2], views=("flip",)))
    nets.same(lens.classify(lens.prepare(batch), 1), lens.classify(batch, 1))
    with pytest.raises(GamlensError, match="prepared with other views"):
        lens.classify(ready, 0, views=(2.0,))
    with pytest.raises(GamlensError, match="different views"):
        lens.compare(ready, batch)


def test_a_score_of_ones_own_for_more_images_than_a_batch() -> None:
    lens, batch = Lens(nets.small()), nets.images(3)
    whole = lens.classify(batch, score=lambda output: output[:, 1])
    parts = lens.classify(batch, score=lambda output: output[:, 1], batch_size=2)
    torch.testing.assert_close(parts.maps, whole.maps)
    assert parts.targets.tolist() == [-1] * 3


class WritesInput(nets.Small):
    def features(self, x: Tensor) -> Tensor:
        return super().features(x.add_(1))


def test_the_users_tensor_is_not_written_to_by_any_call() -> None:
    lens, batch = Lens(nets.seeded(WritesInput)), nets.images(2)
    before = batch.clone()
    for call in (lens.outputs, lens.embed, lens.classify, lens.forward, lens.prepare):
        call(batch)
        assert torch.equal(batch, before)


def test_class_scores_may_be_computed_from_the_output() -> None:
    lens, plain = Lens(nets.small(), output=lambda output: output * 2 + 1), Lens(nets.small())
    batch = nets.images(2)
    with torch.no_grad():
        found = lens.classify(batch, 1)
    torch.testing.assert_close(found.maps, plain.classify(batch, 1).maps)
    torch.testing.assert_close(found.scores, plain.classify(batch, 1).scores * 2 + 1)


def test_labels_as_a_mapping_are_sorted_by_number() -> None:
    names = {str(number): f"name {number}" for number in reversed(range(nets.CLASSES))}
    assert Lens(nets.small(), labels=names).labels == tuple(f"name {number}" for number in range(nets.CLASSES))
    with pytest.raises(GamlensError, match="0 to 1 as keys"):
        Lens(nets.small(), labels={0: "ant", 7: "bee"})


def test_a_pair_without_its_graph_says_so() -> None:
    pair = Lens(nets.small()).trace_pair(nets.images(1), nets.images(1, seed=1))
    pair.sides("cosine", keep=False)
    with pytest.raises(GamlensError, match="was released"):
        pair.sides("dot")


def test_the_pixels_are_kept_for_a_method_that_reads_them() -> None:
    lens, batch = Lens(nets.small()), nets.images(1)
    assert list(lens.forward(batch, method="input_gradient").blocks) == [":input"]
    assert lens.forward(batch).blocks == {}
    texts = torch.randn(2, 32, generator=torch.Generator().manual_seed(0)).double()
    found = lens.compare_text(batch, ["an ant", "a bee"], method="input_gradient", embeddings=texts)
    assert found.maps.shape == (2, 64, 64)


def test_an_error_is_raised_whenever_a_broken_result_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, where it is told when the result is read: by either image of a pair, and not only the first time."""
    monkeypatch.setattr("gamlens.capture.nonblocking.HOST", "none")
    net = nets.small()
    with torch.no_grad():
        net.fc.weight.fill_(float("nan"))
    lens = Lens(net, embedding="fc")
    pair = lens.compare(nets.images(1), nets.images(1, seed=1), score="dot")
    for side in (pair.y, pair.x, pair.y):
        with pytest.raises(GamlensError, match="The score of row 0 is nan"):
            side.numpy()


@pytest.mark.parametrize("factor", [1.0, 1e-3])
def test_float16_scales_no_further_than_its_scores_can_bear(factor: float) -> None:
    """Weak gradients at the block ask for a large factor, which the float16 scores themselves could not hold."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)
    ).eval()
    with torch.no_grad():
        net[4].weight.mul_(factor)
    batch = nets.images(2).float()
    found = [
        Lens(net, blocks=["1"], precision=precision).classify(batch, [1, 2], n=1) for precision in ("fp32", "fp16")
    ]
    torch.testing.assert_close(found[1].maps, found[0].maps, atol=5e-3, rtol=0)


def test_a_class_may_be_a_tensor_of_one_number() -> None:
    lens, batch = Lens(nets.small()), nets.images(2)
    classes = [torch.tensor(3), np.array(4)]
    assert lens.classify(batch, classes).targets.tolist() == [3, 4]


def test_pixels_are_explained_by_the_method_they_were_captured_for() -> None:
    lens, batch = Lens(nets.small()), nets.images(1)
    trace = lens.trace(batch, 0, method="guided_backprop")
    nets.same(trace.explain("guided_backprop"), lens.classify(batch, 0, method="guided_backprop"))
    for method in ("input_gradient", "gam"):
        with pytest.raises(GamlensError, match=f"captured for Guided backprop: trace again with method='{method}'"):
            trace.explain(method)


def test_prepared_images_are_one_batch() -> None:
    lens = Lens(nets.small())
    with pytest.raises(GamlensError, match="leave batch_size out"):
        lens.classify(lens.prepare(nets.images(3)), 0, batch_size=2)


def test_too_little_memory_for_the_backward_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr("gamlens.capture.backward._backward", fails)
    with pytest.raises(GamlensError, match=r"The backward failed: no room\. Give fewer images at a time"):
        Lens(nets.small()).classify(nets.images(1), 0)
