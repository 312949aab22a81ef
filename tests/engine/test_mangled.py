"""Two hundred mangled files among good ones: every one is accounted for."""

from __future__ import annotations

from pathlib import Path

import fuzz
import pytest

from gamlens import Lens


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("mangled")
    return folder, fuzz.mangled(folder, 200, seed=1)


def test_every_file_is_accounted_for(files: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, kinds = files
    run = fuzz.measure(folder, tmp_path / "run")
    measured = set(run.groups["gam", 1]["item"])
    failed = {row["item"]: row["error"] for row in run.errors}
    assert measured | failed.keys() == kinds.keys()
    assert not measured & failed.keys()
    assert len(run.groups["gam", 1]["item"]) == len(measured)
    for name, kind in kinds.items():
        assert (name in measured) if kind in fuzz.GOOD else True, f"{name}, {kind}: {failed.get(name)}"
        assert (name in failed) if kind in fuzz.BAD else True, f"{name}, {kind}"
    assert all(Path(name).name in reason for name, reason in failed.items())
    assert any("too large to decode safely" in reason for reason in failed.values())
    assert any("is empty (0 bytes)" in reason for reason in failed.values())


@pytest.mark.filterwarnings("ignore::gamlens.GamlensWarning")
def test_a_stream_gives_the_same(files: tuple[Path, dict[str, str]]) -> None:
    """In order, as they come, from a generator; a file that cannot be read is an error of its own."""
    folder, kinds = files
    lens: Lens = fuzz.net()
    names = sorted(kinds)
    seen = list(lens.stream((str(folder / name) for name in names), n=1, batch_size=7, workers=3))
    assert [one.number for one in seen] == list(range(len(names)))
    assert [one.image for one in seen] == [str(folder / name) for name in names]
    for one, name in zip(seen, names, strict=True):
        assert bool(one.error) == (one.explanation is None)
        assert not (kinds[name] in fuzz.GOOD and one.error), one.error
        assert not (kinds[name] in fuzz.BAD and not one.error), name
    good = next(one for one in seen if one.explanation is not None)
    alone = lens.classify(good.image, n=1)
    assert (good.explanation.maps - alone.maps).abs().max() < 1e-5
    assert good.top[0].index == int(alone.targets[0])
