"""One forward per image: all of them, or those that can be read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import nets
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.models import resnet18

from gamlens import GamlensError, Lens, Transform
from gamlens.retrieval import remember_readable
from gamlens.retrieval.gallery import fingerprint


@pytest.mark.parametrize("batch_size", [1, 2, 9])
def test_readable_images_are_remembered_as_if_the_others_were_not_there(tmp_path: Path, batch_size: int) -> None:
    lens, draw = Lens(nets.small().float(), transform=Transform((64, 64))), np.random.default_rng(0)
    good, bad = [str(tmp_path / f"{number}.png") for number in range(4)], str(tmp_path / "bad.png")
    for file in good:
        Image.fromarray(draw.integers(0, 255, (50, 60, 3), dtype=np.uint8)).save(file)
    Path(bad).write_bytes(b"nothing")
    told: list[tuple[str | None, bool]] = []
    found = remember_readable(
        lens,
        [bad, *good[:2], bad, *good[2:]],
        lambda picture, error: told.append((picture.path, isinstance(error, GamlensError))),
        batch_size=batch_size,
    )
    assert told == [(file, file == bad) for file in (bad, *good[:2], bad, *good[2:])]
    assert [picture.path for picture in found.pictures] == good
    expected = lens.remember(good)
    assert found.about == expected.about
    for name in ("activations", "embeddings", "scales"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def test_earlier_blocks_of_readable_images_are_kept(tmp_path: Path) -> None:
    lens = Lens(nets.small().float(), transform=Transform((64, 64)))
    (tmp_path / "bad.png").write_bytes(b"nothing")
    Image.effect_noise((60, 50), 90).convert("RGB").save(tmp_path / "good.png")
    files = [str(tmp_path / name) for name in ("bad.png", "good.png")]
    found = remember_readable(lens, files, lambda picture, error: None, refine=2, batch_size=2)
    expected = lens.remember(files[1:], refine=2)
    assert list(found.earlier) == list(expected.earlier) == ["layer1", "layer2"]
    for name, h in expected.earlier.items():
        torch.testing.assert_close(found.earlier[name], h)


def plain_fingerprint(model: nn.Module) -> str:
    """As galleries of earlier versions have it: every value of every tensor is looked at, in plain steps."""
    tensors = [t.detach() for t in (*model.parameters(), *model.buffers()) if t.is_floating_point() and t.numel()]
    picked = [t.reshape(-1)[:: max(1, t.numel() // 64)][:64].double() for t in tensors]
    digest = hashlib.sha256(",".join(f"{t.dtype}{tuple(t.shape)}" for t in tensors).encode())
    digest.update(torch.cat(picked).numpy().tobytes())
    return digest.hexdigest()[:16]


def test_the_fingerprint_of_a_model() -> None:
    """Of layouts, types and shared weights of every kind; one value that changes is seen."""
    shared = resnet18()
    shared.layer1[0].conv1.weight = shared.layer1[0].conv2.weight
    mixed = resnet18()
    mixed.fc.half()
    mixed.bn1.running_mean = mixed.bn1.running_mean.to(torch.float8_e4m3fn)
    models = [resnet18(), resnet18().to(memory_format=torch.channels_last), resnet18().bfloat16(), shared, mixed]
    for model in models:
        assert fingerprint(model) == plain_fingerprint(model)
    before = fingerprint(models[1])
    models[1].conv1.weight.data[0, 0, 0, 0] += 1
    assert fingerprint(models[1]) != before
