"""Image against text: a dual encoder whose caption picks out one of two objects; models of transformers by folder."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import nets
import pytest
import torch
import transformers
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

from gamlens import GamlensError, Lens, Transform
from gamlens.cli import app

TINY = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
WORDS = ["<|startoftext|>", "<|endoftext|>", "a</w>", "c", "h", "e", "t", "a", "l", "i", "o", "n", "n</w>", "h</w>"]


class Tower(nn.Module):
    """Patch tokens of colour, a class token that attends to all; red and blue are two directions of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 3, 8, 8)
        nn.init.constant_(self.patch.weight, 0)
        for channel in range(3):
            self.patch.weight.data[channel, channel] = 1 / 64
        nn.init.zeros_(self.patch.bias)
        self.tokens = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([torch.ones(len(x), 1, 3).to(x), tokens], 1)
        return self.tokens(tokens).mean(1)


def encode(captions: Sequence[str]) -> Tensor:
    return torch.tensor([[float("red" in text), 0.0, float("blue" in text)] for text in captions])


def scene() -> Tensor:
    """A red cell at row 1, column 6 and a blue one at row 3, column 2, of 5 x 8 cells."""
    image = torch.zeros(1, 3, 40, 64)
    image[0, 0, 8:16, 48:56], image[0, 2, 24:32, 16:24] = 1, 1
    return image


def peak(map_: Tensor) -> tuple[int, int]:
    row, column = divmod(int(map_.argmax()), int(map_.shape[1]))
    return row // 8, column // 8


def clip() -> transformers.CLIPModel:
    torch.manual_seed(0)
    text = {"vocab_size": len(WORDS), "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 1, **TINY}
    vision = {"image_size": 64, "patch_size": 8, **TINY}
    config = transformers.CLIPConfig(vision_config=vision, text_config=text, projection_dim=24)
    return transformers.CLIPModel(config).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A CLIP as a folder: weights, config, processor, tokenizer."""
    place = tmp_path / "clip"
    clip().save_pretrained(place)
    size = {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}}
    transformers.CLIPImageProcessor(**size, image_mean=[0.1, 0.2, 0.3], image_std=[0.5, 0.6, 0.7]).save_pretrained(
        place
    )
    (place / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(WORDS)}))
    (place / "merges.txt").write_text("#version: 0.2\n")
    tokens = {"tokenizer_class": "CLIPTokenizer", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    (place / "tokenizer_config.json").write_text(json.dumps(tokens))
    return place


def test_the_map_follows_the_caption() -> None:
    lens = Lens(Tower(), transform=Transform((40, 64)), text=encode, blocks=["tokens"])
    result = lens.compare_text(scene(), ["a red thing", "a blue thing"], n=1)
    assert result.names == ["a red thing", "a blue thing"]
    assert result.targets.tolist() == [0, 1]
    assert [peak(map_) for map_ in result.maps] == [(1, 6), (3, 2)]
    again = lens.compare_text(scene(), ["a blue thing"], n=1)
    assert peak(again.maps[0]) == (3, 2)
    torch.testing.assert_close(again.scores[0], result.scores[1])


def test_embeddings_in_place_of_text() -> None:
    lens = Lens(Tower(), transform=Transform((40, 64)), embedding="output", blocks=["tokens"])
    captions = ["red", "blue"]
    given = lens.compare_text(torch.cat([scene(), scene().flip(3)]), captions, embeddings=encode(captions), n=1)
    assert given.index.tolist() == [0, 0, 1, 1]
    assert [peak(map_) for map_ in given.maps] == [(1, 6), (3, 2), (1, 1), (3, 5)]
    expected = torch.nn.functional.cosine_similarity(Tower()(scene()), encode(["red"])).detach()
    torch.testing.assert_close(given.scores[:1], expected)


def test_one_forward_for_all_captions() -> None:
    net, runs = Tower(), []
    lens = Lens(net, transform=Transform((40, 64)), text=encode)
    net.patch.register_forward_hook(lambda *_: runs.append(1))
    lens.compare_text(scene(), ["red", "blue", "red and blue"], n=1)
    assert len(runs) == 1


def test_what_is_wrong_is_said() -> None:
    plain = Lens(Tower(), transform=Transform((40, 64)), blocks=["tokens"])
    with pytest.raises(GamlensError, match=r"reads no text.*Lens\(text=\.\.\.\)"):
        plain.compare_text(scene(), "red")
    with pytest.raises(GamlensError, match=r"Captions are texts"):
        plain.compare_text(scene(), [])
    with pytest.raises(GamlensError, match=r"Embeddings of 1 captions.*\(2, 3\)"):
        plain.compare_text(scene(), "red", embeddings=torch.zeros(2, 3))
    with pytest.raises(GamlensError, match=r"has 5 numbers, but the image's embedding, read at .*, has 3: name"):
        plain.compare_text(scene(), "red", embeddings=torch.ones(1, 5))


def test_a_given_dual_encoder_is_left_as_it_was() -> None:
    dual = clip()
    before = {name: value.clone() for name, value in dual.state_dict().items()}
    lens = Lens(dual, text=lambda texts: dual.get_text_features(torch.tensor([[0, len(text), 1] for text in texts])))
    assert lens.embedding == "output"
    result = lens.compare_text(torch.randn(1, 3, 64, 64), ["a", "abc"])
    assert result.maps.shape == (2, 64, 64)
    assert all(torch.equal(value, before[name]) for name, value in dual.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in dual.modules())


def test_a_folder_is_an_id(folder: Path) -> None:
    lens = Lens(f"hf/{folder}")
    assert (lens.transform.size, lens.transform.mean) == ((64, 64), (0.1, 0.2, 0.3))
    batch = torch.randn(1, 3, 64, 64)
    result = lens.compare_text(batch, ["a cheetah", "a lion"])
    dual = transformers.CLIPModel.from_pretrained(folder)
    text = transformers.AutoTokenizer.from_pretrained(folder)(
        ["a cheetah", "a lion"], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        expected = dual(pixel_values=batch, **text).logits_per_image[0] / dual.logit_scale.exp()
    torch.testing.assert_close(result.scores, expected, atol=1e-5, rtol=1e-4)
    wide = lens.compare_text(torch.randn(1, 3, 48, 80), "a lion", n=1)
    assert wide.maps.shape == (1, 48, 80)


def test_the_command(folder: Path, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    Image.new("RGB", (90, 70), (200, 30, 60)).save(photo)
    run = ["compare", str(photo), "--text", "a lion", "--text", "a cheetah", "--model", f"hf/{folder}"]
    done = CliRunner().invoke(app, [*run, "--out", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert [row["text"] for row in record["captions"]] == ["a lion", "a cheetah"]
    assert (tmp_path / "out" / "photo" / "explanation.json").is_file()
    both = CliRunner().invoke(app, ["compare", str(photo)])
    assert both.exit_code != 0


def test_a_classifier_with_labels_and_a_backbone(tmp_path: Path) -> None:
    names = {0: "cheetah", 1: "lion"}
    config = transformers.ViTConfig(image_size=64, patch_size=16, id2label=names, **TINY)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    transformers.ViTImageProcessor(size={"height": 64, "width": 64}).save_pretrained(tmp_path / "vit")
    lens = Lens(f"hf/{tmp_path / 'vit'}")
    assert lens.labels == ("cheetah", "lion")
    assert lens.transform.mean == (0.5, 0.5, 0.5)
    assert lens.classify(torch.randn(1, 3, 64, 64), "lion").maps.shape == (1, 64, 64)
    assert Lens(f"hf/{tmp_path / 'vit'}", weights="random").blocks == lens.blocks
    options = {key: value for key, value in TINY.items() if key != "intermediate_size"}
    transformers.Dinov2Backbone(transformers.Dinov2Config(image_size=64, patch_size=8, **options)).save_pretrained(
        tmp_path / "dino"
    )
    transformers.BitImageProcessor(crop_size=64, size={"shortest_edge": 64}).save_pretrained(tmp_path / "dino")
    dino = Lens(f"hf/{tmp_path / 'dino'}")
    assert dino.compare(torch.randn(1, 3, 64, 64), torch.randn(1, 3, 64, 64)).x.maps.shape == (1, 64, 64)
    with pytest.raises(GamlensError, match=r"hf/.*could not be loaded"):
        Lens(f"hf/{tmp_path / 'nothing'}")


def cut(place: Path) -> None:
    file = place / "model.safetensors"
    file.write_bytes(file.read_bytes()[:3000])


def no_tensors(place: Path) -> None:
    (place / "model.safetensors").unlink()
    (place / "pytorch_model.bin").write_bytes(b"junk")


def bomb(place: Path) -> None:
    """A file of a megabyte that expands to 320."""
    (place / "model.safetensors").unlink()
    with zipfile.ZipFile(place / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        with archive.open("archive/data/0", "w") as out:
            for _ in range(5):
                out.write(bytes(2**26))


def in_config(**entries: object) -> Callable[[Path], None]:
    def change(place: Path) -> None:
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps({**config, **entries}))

    return change


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut weights": (cut, r"could not be loaded \(SafetensorError"),
    "a zip bomb": (bomb, "claims to hold"),
    "weights that are none": (no_tensors, "could not be loaded|Cannot read weights"),
    "deep JSON": (lambda place: (place / "config.json").write_text("[" * 100_000), "could not be loaded"),
    "a width of text": (in_config(hidden_size="big"), "could not be loaded"),
    "no heads": (in_config(num_attention_heads=0), r"could not be loaded \(ZeroDivisionError"),
    "another width": (in_config(hidden_size=64), r"could not be loaded \(RuntimeError"),
    "an architecture of numbers": (in_config(architectures=[5]), "could not be loaded"),
    "code": (in_config(model_type="own", auto_map={"AutoConfig": "own.Config"}), "could not be loaded .*custom code"),
    "a processor": (
        lambda place: (place / "preprocessor_config.json").write_text("[1]"),
        "processor .* cannot be used",
    ),
}


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "vit"
    transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=64, patch_size=16, **TINY)
    ).save_pretrained(place)
    transformers.ViTImageProcessor(size={"height": 64, "width": 64}).save_pretrained(place)
    return place


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_one_error(vit: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []  # whether code of the folder may be run
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "n")
    damage, message = DAMAGES[name]
    damage(Path(shutil.copytree(vit, tmp_path / "vit")))
    with pytest.raises(GamlensError, match=message):
        Lens(f"hf/{tmp_path / 'vit'}")
    assert not asked


@pytest.mark.parametrize("views", [(), ("flip",)])
def test_maps_of_captions_are_refined(views: tuple[str, ...]) -> None:
    """Each caption has a map of its own, refined by the blocks of its image, whatever other captions there are."""
    lens, images = Lens(nets.small().float()), nets.images(2).float()
    texts = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    given = {"embeddings": texts, "n": 1, "views": views}
    trace = lens.trace_text(images, ["a", "b", "c"], refine=2, **given)
    found, plain = (lens.compare_text(images, ["a", "b", "c"], refine=how, **given) for how in (2, False))
    assert found.index.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.about["refine"] == {"blocks": ["layer2", "layer1"], "keep": 0.5}
    nets.same(found, trace.explain(n=1, refine=2))
    torch.testing.assert_close(found.maps, trace.refine(plain.maps, 2), atol=1e-5, rtol=0)
    assert not torch.allclose(found.maps, plain.maps, atol=0.05)
    if not views:
        nets.same(lens.compare_text(images, ["a", "b", "c"], embeddings=texts, n=1, sharp=True), found)
    alone = lens.compare_text(images[1:], "b", embeddings=texts[1:2], n=1, views=views, refine=2)
    torch.testing.assert_close(alone.maps[0], found.maps[4], atol=1e-5, rtol=0)
