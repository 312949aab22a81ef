"""The cases of `chaos.py` about what gamlens saves: runs, galleries, explanations; and about files of weights."""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import chaos_files as files
import numpy as np
import pyarrow.parquet as parquet
import torch
from chaos_oracle import REFUSED, CaseFailedError, call, check_foreign, difference, invoke, judge, put_foreign, tree
from chaos_room import Room

from gamlens import Explanation, Gallery, Lens
from gamlens.evaluation import results

RUN_HARMS = (
    "part gone", "part mangled", "part mangled", "parts swapped", "part doubled", "part is a folder",
    "part of another run", "foreign parts", "run.json", "run.json", "done.json", "done.json", "lock", "no file",
)  # fmt: skip
OWN_NOTES = (".lock", "run.json", "done.json", "manifest.json", "records/")


def run_case(dice: random.Random, room: Room, here: Path) -> str:
    """A damaged run folder, which is then read by table or report, or continued by evaluate."""
    out, reference = here / "run", _reference(room)
    shutil.copytree(room.run, out)
    unfinished = dice.random() < 0.3
    if unfinished:
        (out / "done.json").unlink()
        sorted((out / "parts").iterdir())[-1].unlink()
    put_foreign(out)
    harm = dice.choice(RUN_HARMS)
    _harm_run(harm, out, dice)
    before = tree(out)
    way = dice.choice(("table", "table", "report", "evaluate", "evaluate"))
    if way == "evaluate":
        done = invoke(*room.evaluate(out))
        ended = judge(done, lambda: _rows(out) == reference["rows"])
    elif way == "report":
        done = invoke("report", out, "--out", here / "page.html")
        ended = judge(done, lambda: (here / "page.html").is_file())
    else:
        done = invoke("table", out)
        ended = judge(done, lambda: _numbers(done.out) == _numbers(reference["table"]))
    check_foreign(out)
    own = OWN_NOTES if way == "evaluate" else (".lock",)  # a run that is measured again is not finished any more
    before, after = (
        {name: data for name, data in found.items() if not name.startswith(own)} for found in (before, tree(out))
    )
    if (ended == REFUSED or way != "evaluate") and (said := difference(before, after)):
        raise CaseFailedError(f"{way} was {ended} and changed the run folder all the same ({harm}): {said}")
    return ended


def _reference(room: Room) -> dict[str, Any]:
    """What the undisturbed run says: {"table": printed text, "rows": its rows}."""
    if not hasattr(room, "known"):
        room.known = {"table": invoke("table", room.run).out, "rows": _rows(room.run)}  # type: ignore[attr-defined]
    return room.known  # type: ignore[attr-defined,no-any-return]


def _rows(run: Path) -> list[str]:
    return sorted(map(repr, results.read(run).rows))


def _numbers(text: str) -> list[str]:
    return [word for word in text.split() if any(char.isdigit() for char in word)]


def _harm_run(harm: str, out: Path, dice: random.Random) -> None:
    parts = sorted((out / "parts").iterdir())
    part, other = dice.sample(parts, 2)
    if harm in ("run.json", "done.json") and (out / harm).exists():
        data = (out / harm).read_bytes()
        change = dice.choice((files.odd_json, files.odd_json, dice.choice(list(files.BYTES.values()))))
        (out / harm).write_bytes(change(data, dice))
    elif harm == "part gone":
        part.unlink()
    elif harm == "part mangled":
        part.write_bytes(dice.choice(list(files.BYTES.values()))(part.read_bytes(), dice))
    elif harm == "parts swapped":
        one, two = part.read_bytes(), other.read_bytes()
        part.write_bytes(two)
        other.write_bytes(one)
    elif harm == "part doubled":
        part.with_name(dice.choice((other.name, "00000099.parquet", "copy.parquet"))).write_bytes(part.read_bytes())
    elif harm == "part is a folder":
        part.unlink()
        part.mkdir()
    elif harm == "part of another run":
        rows = parquet.read_table(part).to_pylist()
        part.write_bytes(results.encode([{**row, "item": f"{row['item']}x"} for row in rows]))
    elif harm == "foreign parts":
        for name in (".DS_Store", "README.md", "00000001.parquet.bak", "0000000a.parquet", "²"):
            (out / "parts" / name).write_bytes(dice.randbytes(50))
    elif harm == "no file":
        files.no_file(out / dice.choice(("run.json", "done.json", ".lock", part.relative_to(out))), dice)
    elif harm == "lock":
        (out / ".lock").write_bytes(dice.choice((b"", b"{}", b"[1]", dice.randbytes(300), b"[" * 100_000)))


def gallery_case(dice: random.Random, room: Room, here: Path) -> str:
    """A damaged gallery, loaded and searched in."""
    whole, file = room.gallery / f"gallery-{dice.randrange(2)}.npz", here / "gallery.npz"
    file.write_bytes(_mangled_arrays(whole.read_bytes(), dice, "record"))
    if dice.random() < 0.08:
        files.no_file(file, dice)
    expected = room.lens.compare_many(Gallery.load(whole), Gallery.load(whole), pairs=[(0, 1)]).scores

    def use() -> torch.Tensor:
        found = Gallery.load(file)
        pair = room.lens.compare_many(found, found, pairs=[(0, 1)])
        pair.save(str(here / "pair"))
        return pair.scores

    if dice.random() < 0.2:
        done = invoke("search", room.photo, "--in", file, *room.model, "--with-self", "--out", here / "out")
        return judge(done, lambda: (here / "out" / "index.html").is_file())
    return call(use, lambda scores: bool((scores - expected).abs().max() < 1e-5))


def _mangled_arrays(data: bytes, dice: random.Random, record: str = "") -> bytes:
    """An .npz archive damaged in its bytes, its arrays, or the JSON text of its array `record`."""
    way = dice.random()
    if way < 0.4:
        return dice.choice(list(files.BYTES.values()))(data, dice)
    if way < 0.7 or not record:
        harms = [harm for harm in files.ARRAY_HARMS if "bomb" not in harm or dice.random() < 0.3]
        return files.odd_arrays(data, dice, dice.choice(harms))
    with np.load(io.BytesIO(data)) as found:
        arrays = {name: found[name] for name in found.files}
    arrays[record] = np.frombuffer(files.odd_json(arrays[record].tobytes(), dice), dtype=np.uint8)
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def explanation_case(dice: random.Random, room: Room, here: Path) -> str:
    """A damaged explanation: loaded, drawn and saved again; or another one saved over it."""
    folder = here / "saved"
    shutil.copytree(room.explanation, folder)
    put_foreign(folder)
    json_file, maps = folder / "explanation.json", folder / "maps.npz"
    whole, way = Explanation.load(folder), dice.random()
    if way < 0.08:
        files.no_file(dice.choice((maps, json_file)), dice)
    elif way < 0.5:
        maps.write_bytes(_mangled_arrays(maps.read_bytes(), dice))
    else:
        change = dice.choice((files.odd_json, files.odd_json, dice.choice(list(files.BYTES.values()))))
        json_file.write_bytes(change(json_file.read_bytes(), dice))
    if dice.random() < 0.25:
        fresh = room.lens.classify(room.photo, n=1)
        ended = call(lambda: fresh.save(str(folder)), lambda _: _has_maps(Explanation.load(folder), fresh))
        check_foreign(folder)
        return ended

    def use() -> Explanation:
        found = Explanation.load(folder)
        found.boxes()
        found.overlay(len(found.maps) - 1)
        found.save(str(here / "again"))
        return found

    return call(use, lambda found: _has_maps(found, whole))


def _has_maps(found: Explanation, whole: Explanation) -> bool:
    return found.maps.shape == whole.maps.shape and bool((found.maps - whole.maps).abs().max() < 1e-6)


def checkpoint_case(dice: random.Random, room: Room, here: Path) -> str:
    """A damaged file of weights. Neither format has a check sum, so flipped bits in the numbers are other weights."""
    whole = dice.choice((room.checkpoint, room.safetensors))
    file, way = here / whole.name, dice.random()
    if way < 0.08:
        files.no_file(file, dice)
    elif way < 0.5:
        file.write_bytes(dice.choice(list(files.BYTES.values()))(whole.read_bytes(), dice))
    elif whole is room.safetensors:
        length = int.from_bytes(whole.read_bytes()[:8], "little")
        head = files.odd_json(whole.read_bytes()[8 : 8 + length], dice)
        size = dice.choice((len(head), len(head), 2**63, 10**9)).to_bytes(8, "little")
        file.write_bytes(size + head + whole.read_bytes()[8 + length :])
    else:
        torch.save(_odd_state(room.lens.model.state_dict(), dice), file)
    build = from_net(room)
    return call(lambda: build(str(file)).classify(room.photo, n=1))


@cache
def from_net(room: Room) -> Callable[[str], Lens]:
    """The function `build` of the room's model file."""
    space: dict[str, Any] = {}
    exec(compile(room.net.read_text(), str(room.net), "exec"), space)
    return space["build"]  # type: ignore[no-any-return]


def _odd_state(state: dict[str, Any], dice: random.Random) -> Any:
    """A state dict of another type, or with one tensor of another type, shape or size."""
    key = dice.choice(list(state))
    own = state[key]
    odd = dice.choice((
        lambda: {**state, key: dice.choice((*files.ODD_VALUES[:12], [own], {"a": own}))},
        lambda: {**state, key: own.to(dice.choice((torch.float64, torch.int8, torch.bool, torch.complex64)))},
        lambda: {**state, key: torch.zeros(1).expand(10**5, 10**6)},
        lambda: {**state, key: torch.zeros(1).expand(own.shape)},
        lambda: {**state, key: own.to_sparse()},
        lambda: {**state, key: torch.empty(own.shape, device="meta")},
        lambda: {**state, key: torch.full_like(own, float("nan"))},
        lambda: {**state, "surplus": torch.zeros(1).expand(10**9)},
        lambda: {name: value for name, value in state.items() if name != key},
        lambda: {5: own, **state},
        lambda: {"model": {"state_dict": state}},
        lambda: list(state.values()),
        lambda: dice.choice(files.ODD_VALUES),
    ))  # fmt: skip
    return odd()
