"""Measures what an explanation costs, compared with a plain forward and with other packages, in one process.

Time: the median of the repeats after two warm-up calls, and their range. The tools take turns, in another order each
round, so that other work on the machine affects all of them alike. Ratios are ratios of medians, to the plain forward
(eval, no_grad) of the same model in the same process. Building the Lens, which runs one forward to find the blocks, is
not counted.

Memory: the largest amount that one call holds at any time, in addition to the model and its input. On the CPU it is
computed from the allocations that torch.profiler(profile_memory=True) reports, which does not depend on the system's
allocator or on other processes; memory of NumPy, OpenCV and oneDNN is not included. On CUDA it is max_memory_allocated.

Two columns have no noise: the number of forwards, and the bytes that autograd kept for a backward (each storage once,
without parameters and buffers, all passes together).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from tools import MODELS, PEERS, Tool, build, find_peers, tools_of
from torch import Tensor, nn

from gamlens import GamlensWarning, Lens

TITLES = ("tool", "blocks", "ms/image", "range", "x plain", "peak MiB/image", "x plain", "forwards", "saved MiB/image")
MIB = 2**20
SIZE = 224
EXAMPLE = """example:
  python benchmarks/cost.py --models resnet50 --batch 4 --markdown cost.md --json cost.json
Where other work shares the cores, OMP_WAIT_POLICY=PASSIVE python benchmarks/cost.py keeps threads from spinning."""


@dataclass(frozen=True)
class Row:
    """The results of one tool on one model. `times` are in seconds for the whole batch, one per repeat."""

    model: str
    tool: str
    blocks: str
    ms: float
    ms_range: tuple[float, float]
    time_ratio: float
    mib: float
    memory_ratio: float
    forwards: int
    saved_mib: float
    times: list[float]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], epilog=EXAMPLE, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", default=list(MODELS), choices=MODELS, metavar="NAME", help="|".join(MODELS)
    )
    parser.add_argument("--batch", type=int, default=4, help="images per call (default 4)")
    parser.add_argument("--repeats", type=int, default=7, help="timed calls of each tool (default 7)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help='write {"about": ..., "rows": [...]}, all times in it'
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables for the documentation")
    return parser.parse_args()


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    wait(device)
    start = time.perf_counter()
    result = call()  # kept until the clock is read, so that freeing it is not timed
    wait(device)
    taken = time.perf_counter() - start
    del result
    return taken


def peak_bytes(call: Callable[[], Any], device: torch.device) -> int:
    """The largest number of bytes allocated at any time during the call, beyond those allocated before it."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        wait(device)
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    recorded = profile.profiler.kineto_results.events()
    steps = sorted((event.start_ns(), event.nbytes()) for event in recorded if event.name() == "[memory]")
    held = most = 0
    for _, step in steps:
        held += step
        most = max(most, held)
    return most


def forwards_and_saved(call: Callable[[], Any], model: nn.Module) -> tuple[int, int]:
    """Count the model's forwards and the bytes autograd kept for a backward (each storage once, model excluded)."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}
    seen: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    handle = model.register_forward_pre_hook(lambda module, args: seen.append(1))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    handle.remove()
    return len(seen), sum(storage.nbytes() for storage in kept.values())


def fresh(model: nn.Module) -> None:
    """Remove what the previous tool left: gradients, and graphs in reference cycles."""
    model.zero_grad(set_to_none=True)
    gc.collect()


def counts(lens: Lens, tools: list[Tool], batch: Tensor, targets: list[int]) -> Iterator[tuple[int, int, int]]:
    """Forwards, saved bytes and peak bytes of each tool. Each is called twice, which also warms it up."""
    for tool in tools:
        fresh(lens.model)
        ran, saved = forwards_and_saved(partial(tool.run, batch, targets), lens.model)
        fresh(lens.model)
        yield ran, saved, peak_bytes(partial(tool.run, batch, targets), batch.device)


def measure(name: str, lens: Lens, tools: list[Tool], batch: Tensor, repeats: int) -> list[Row]:
    """Measure memory and counts of each tool, then time each tool once in each of `repeats` rounds."""
    targets = [(281 + number) % 1000 for number in range(len(batch))]
    found = list(counts(lens, tools, batch, targets))
    times: list[list[float]] = [[] for _ in tools]
    order = random.Random(0)
    for _ in range(repeats):
        for number in order.sample(range(len(tools)), len(tools)):
            fresh(lens.model)
            times[number].append(seconds(partial(tools[number].run, batch, targets), batch.device))
    middle = [statistics.median(taken) for taken in times]
    rows = []
    for tool, (ran, saved, peak), taken, mid in zip(tools, found, times, middle, strict=True):
        ms, low, high = (1000 * value / len(batch) for value in (mid, min(taken), max(taken)))
        mib, kept = peak / MIB / len(batch), saved / MIB / len(batch)
        ratios = (mid / middle[0], peak / found[0][2])
        rows.append(Row(name, tool.name, tool.blocks, ms, (low, high), ratios[0], mib, ratios[1], ran, kept, taken))
    return rows


def about(args: argparse.Namespace) -> dict[str, str]:
    """The machine, versions and settings that the numbers were measured with."""
    here = {name: version(name) for name in ("torch", "torchvision", "timm", "gamlens", *PEERS)}
    return {
        "date": date.today().isoformat(),
        "hardware": hardware(args.device),
        "threads": f"{torch.get_num_threads()}, OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', 'default')}",
        "input": f"{args.batch} x 3 x {SIZE} x {SIZE}, float32, {args.device}",
        "versions": ", ".join(f"{name} {found}" for name, found in here.items() if found),
        "python": platform.python_version(),
        "command": shlex.join(["python", *sys.argv]),
    }


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def hardware(device: str) -> str:
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    host = f"{models[0]}, {len(models)} cores" if models else platform.processor() or platform.machine()
    return f"{torch.cuda.get_device_name(device)} ({host})" if device.startswith("cuda") else host


def cells(row: Row) -> tuple[str, ...]:
    took = (f"{row.ms:.1f}", "{:.0f}-{:.0f}".format(*row.ms_range), f"{row.time_ratio:.2f}")
    held = (f"{row.mib:.1f}", f"{row.memory_ratio:.2f}", f"{row.forwards}", f"{row.saved_mib:.1f}")
    return row.tool, row.blocks, *took, *held


def table(rows: list[Row], *, markdown: bool) -> str:
    """The rows of one model as a table, in Markdown or in aligned columns."""
    lines = [TITLES, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(TITLES))]
    rule = ["-" * widths[0], *("-" * (width - 1) + (":" if markdown else "-") for width in widths[1:])]
    text = []
    for line in (lines[0], rule, *lines[1:]):
        padded = [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]
        text.append(f"| {' | '.join(padded)} |" if markdown else "  ".join(padded))
    return "\n".join(text)


def main() -> None:
    args = arguments()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    warnings.simplefilter("ignore", GamlensWarning)
    peers, notes = find_peers()
    facts = about(args)
    print("\n".join([f"{key:9} {value}" for key, value in facts.items()] + [f"note      {note}" for note in notes]))
    head = "\n".join([f"- {key}: {value}" for key, value in facts.items()] + [f"- note: {note}" for note in notes])
    parts, rows = [head], []
    torch.manual_seed(0)
    batch = torch.randn(args.batch, 3, SIZE, SIZE).to(args.device)
    for name in args.models:
        lens = build(name, args.device)
        gc.freeze()  # exclude existing objects from garbage collection, which makes collecting between calls quick
        found = measure(name, lens, tools_of(lens, peers), batch, args.repeats)
        rows += found
        title = f"{name} ({', '.join(lens.blocks)})"
        print(f"\n{title}\n{table(found, markdown=False)}", flush=True)
        parts.append(f"### {title}\n\n{table(found, markdown=True)}")
    gc.unfreeze()
    if args.json:
        args.json.write_text(json.dumps({"about": facts, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
