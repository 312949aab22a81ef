"""One forward per image: all of them, or those that can be read."""

from __future__ import annotations

from pathlib import Path

import nets
import numpy as np
import pytest
import torch
from PIL import Image

from gamlens import GamlensError, Lens, Transform
from gamlens.retrieval import remember_readable


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
