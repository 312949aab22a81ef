"""Measures gamlens and other packages on a GPU or a CPU, compared with a plain forward of the same precision.

Reported are images per second, the time relative to that forward in the same process and mode, and peak memory beyond
the model; medians of the repeats after warm-up, with the tools taking turns. Rows are merged into one JSON file, so
that the cases can be measured by several commands. PyTorch's flags have their defaults and are printed. Weights are
random, which costs the same as trained ones. On a CPU the cases are few and small, and memory is not measured (see
cost.py).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import tools
import torch
import torch._dynamo
from torch import Tensor, nn
from torchvision import models

from gamlens import Lens
from gamlens.methods import METHODS

Case = tuple[str, int, str, bool]
LOADS = (
    ("resnet101", 256), ("resnet101", 64), ("resnet101", 1), ("resnet50", 64), ("densenet201", 64),
    ("convnext_base", 64), ("vit_b_16", 64),
)  # fmt: skip
PASSES = (("fp32", False), ("bf16", False), ("fp16", False), ("bf16", True), ("fp32", True), ("fp16", True))
CASES: tuple[Case, ...] = tuple((*load, *way) for way in PASSES for load in LOADS)
SMALL: tuple[Case, ...] = (
    ("resnet50", 1, "fp32", False), ("resnet50", 4, "fp32", False), ("vit_b_16", 1, "fp32", False),
    ("densenet201", 4, "fp32", False), ("vit_b_16", 4, "fp32", False),
)  # fmt: skip
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
Call = Callable[[], Any]


def stubs() -> None:
    """Replace plotting packages, which the other packages import but do not need here, by stubs."""
    for name in ("matplotlib", "matplotlib.pyplot", "matplotlib.colors", "matplotlib.figure", "matplotlib.axes",
                 "matplotlib.cm", "matplotlib.lines", "matplotlib.patches", "mpl_toolkits",
                 "mpl_toolkits.axes_grid1", "sklearn", "sklearn.decomposition", "ttach"):  # fmt: skip
        try:
            __import__(name)
        except ImportError:
            module = types.ModuleType(name)
            module.__getattr__ = lambda _: MagicMock()  # type: ignore[method-assign]
            module.__path__ = []  # type: ignore[attr-defined]
            sys.modules[name] = module


def plain(model: nn.Module, batch: Tensor, dtype: torch.dtype | None) -> Call:
    def run() -> Any:
        amp = torch.autocast(batch.device.type, dtype=dtype) if dtype else nullcontext()
        with torch.no_grad(), amp:
            return model(batch)

    return run


def every(lens: Lens, batch: Tensor, classes: list[int]) -> Any:
    trace = lens.trace(batch, classes, n=2)
    return [trace.explain(name, n=2) for name, method in METHODS.items() if method.kind == "block"]


def sketches(lens: Lens, batch: Tensor, classes: list[int], dtype: torch.dtype | None) -> dict[str, Call]:
    """The minimal implementation of GAM in tools.py, for models whose blocks are modules."""
    modules = dict(lens.model.named_modules())
    names = [tools.MODULE_OF.get(name, name) for name in lens.blocks]
    if any(name not in modules for name in names):
        return {}
    layers = [modules[name] for name in names]
    return {f"20-line sketch n={n}": partial(tools.sketch(lens.model, layers[-n:], dtype), batch, classes)
            for n in (1, 2, 4)}  # fmt: skip


def peers(lens: Lens, batch: Tensor, classes: list[int]) -> dict[str, Call | str]:
    """captum, torchcam and grad-cam, called as in their documentation; prints a note for each that is not installed."""
    stubs()
    installed, notes = tools.find_peers()
    for note in notes:
        print(note, file=sys.stderr)
    points, modules = lens.blocks[-2:], dict(lens.model.named_modules())
    names = [tools.MODULE_OF.get(point, point.removesuffix(":tokens")) for point in points]
    if any(name not in modules for name in names):
        return {name: f"no module gives the blocks {', '.join(points)}" for name in installed}
    reshape = tools.patches if all(point.endswith(":tokens") for point in points) else None
    found: dict[str, Call | str] = {}
    for n in (1, 2):
        use = [modules[name] for name in names[-n:]]
        if attr := installed.get("captum"):
            found |= captum(attr, lens.model, use, batch, classes, tokens=reshape is not None)
        if cams := installed.get("torchcam"):
            method = cams.GradCAM if n == 1 else cams.LayerCAM
            run = tools.torchcam(method, lens.model, use, reshape)
            found[f"torchcam {method.__name__} n={n}"] = partial(run, batch, classes)
        if cams := installed.get("grad-cam"):
            target = __import__("pytorch_grad_cam.utils.model_targets", fromlist=["x"]).ClassifierOutputTarget
            method = cams.GradCAM if n == 1 else cams.LayerCAM
            run = tools.grad_cam(method, target, lens.model, use, reshape)
            found[f"grad-cam {method.__name__} n={n}"] = partial(run, batch, classes)
    return found


def captum(
    attr: Any, model: nn.Module, use: list[nn.Module], batch: Tensor, classes: list[int], *, tokens: bool
) -> dict[str, Call | str]:
    grad_cam = f"captum LayerGradCam n={len(use)}"
    if not tokens:
        return {grad_cam: partial(tools.captum(attr, model, use), batch, classes)}
    run = partial(tools.captum_tokens(attr, model, use), batch, classes)
    return {grad_cam: "not for tokens: it sums over them", f"captum LayerGradientXActivation n={len(use)}": run}


def calls(name: str, size: int, precision: str, fast: bool, device: str, *, beside: bool) -> dict[str, Call | str]:
    """All tools of one case by name, the plain forward first."""
    torch.manual_seed(0)
    model = models.get_model(name).eval().to(device)
    batch = torch.randn(size, 3, 224, 224, device=device)
    classes = [number % 1000 for number in range(size)]
    lens = Lens(model, precision=precision, compile=fast)
    fed = batch.contiguous(memory_format=torch.channels_last) if DTYPES[precision] else batch
    forward = torch.compile(model) if fast else model
    found: dict[str, Call | str] = {"plain forward": plain(forward, fed, DTYPES[precision])}
    if fast:
        found["plain forward, eager fp32"] = plain(model, batch, None)
    for n in (1, 2, 4):
        found[f"gamlens GAM n={n}"] = partial(lens.classify, batch, classes, n=n)
    for n in (1, 2):
        found[f"gamlens GAM n={n}, refined"] = partial(lens.classify, batch, classes, n=n, refine=True)
    if not fast:
        found |= sketches(lens, fed, classes, DTYPES[precision])
        found["gamlens, every method n=2"] = partial(every, lens, batch, classes)
    return found | (peers(lens, batch, classes) if beside and precision == "fp32" and not fast else {})


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def clock(call: Call, device: str) -> float:
    wait(device)
    start = time.perf_counter()
    result = call()
    wait(device)
    taken = time.perf_counter() - start
    del result
    return taken


def peak(call: Call, device: str) -> float:
    """Peak memory of a call beyond what was allocated before, in MiB. Not measured on the CPU (see cost.py)."""
    if not device.startswith("cuda"):
        return float("nan")
    wait(device)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    wait(device)
    del result
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measure(case: Case, options: argparse.Namespace) -> list[dict[str, Any]]:
    name, size, precision, fast = case
    given = calls(name, size, precision, fast, options.device, beside=not options.alone)
    notes = {tool: call for tool, call in given.items() if isinstance(call, str)}
    found = {tool: call for tool, call in given.items() if not isinstance(call, str)}
    slow: set[str] = set()
    for tool, call in list(found.items()):
        try:
            first = [clock(call, options.device) for _ in range(3)]
            if first[-1] > 3:
                slow.add(tool)
        except Exception as error:  # noqa: BLE001 - a package that fails is reported and left out
            print(f"  {tool} failed on {name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            notes[tool] = f"failed: {type(error).__name__}"
            del found[tool]
    times: dict[str, list[float]] = {tool: [] for tool in found}
    for turn in range(options.repeats):
        for tool, call in found.items():
            if tool not in slow or turn < 3:
                times[tool].append(clock(call, options.device))
    memory = {tool: peak(call, options.device) for tool, call in found.items()}
    base, held = statistics.median(times["plain forward"]), memory["plain forward"]
    case_of = {"model": name, "batch": size, "precision": precision, "mode": "compiled" if fast else "eager"}
    rows = []
    for tool, taken in times.items():
        middle = statistics.median(taken)
        rows.append({
            **case_of, "tool": tool, "images_s": size / middle, "ratio": middle / base, "low": min(taken) / base,
            "high": max(taken) / base, "peak_mib": memory[tool], "peak_ratio": memory[tool] / held,
            "repeats": len(taken), "device": about(options.device),
        })  # fmt: skip
        print(f"  {name} {size} {precision} {rows[-1]['mode']}: {tool}: {size / middle:.0f} img/s, "
              f"{middle / base:.2f}, memory {memory[tool] / held:.2f}", file=sys.stderr, flush=True)  # fmt: skip
    return rows + [
        {**case_of, "tool": tool, "note": note, "device": about(options.device)} for tool, note in notes.items()
    ]


def about(device: str) -> str:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"
    flags = (f"cudnn.benchmark={torch.backends.cudnn.benchmark}, allow_tf32: conv "
             f"{torch.backends.cudnn.allow_tf32}, matmul {torch.backends.cuda.matmul.allow_tf32}")  # fmt: skip
    return f"{name}, torch {torch.__version__}, {flags}"


def table(rows: list[dict[str, Any]]) -> str:
    """One table per precision and mode, with one column per network and batch size and one row per tool."""
    lines = [f"Device: {device}" for device in dict.fromkeys(r["device"] for r in rows)]
    for precision, mode in dict.fromkeys((r["precision"], r["mode"]) for r in rows):
        mine = [r for r in rows if (r["precision"], r["mode"]) == (precision, mode)]
        loads = list(dict.fromkeys((r["model"], r["batch"]) for r in mine))
        found = {(r["tool"], r["model"], r["batch"]): cell(r) for r in mine}
        lines += ["", f"### {precision}, {mode}", ""]
        lines.append(f"| | {' | '.join(f'{model} x {batch}' for model, batch in loads)} |")
        lines.append("| --- " * (len(loads) + 1) + "|")
        for tool in dict.fromkeys(r["tool"] for r in mine):
            lines.append(f"| {tool} | {' | '.join(found.get((tool, *load), '') for load in loads)} |")
    return "\n".join(lines) + "\n"


def cell(row: dict[str, Any]) -> str:
    """A cell: images per second, time and peak memory, both relative to the plain forward."""
    if "note" in row:
        return str(row["note"])
    speed = f"{row['images_s']:.{0 if row['images_s'] > 50 else 1}f}"
    held = "" if math.isnan(row["peak_ratio"]) else f", {row['peak_ratio']:.2f}"
    return f"{speed}/s, {row['ratio']:.2f}{held}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", help="model:batch:precision:mode, such as resnet101:64:fp32:eager")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--alone", action="store_true", help="measure gamlens only, without the other packages")
    parser.add_argument(
        "--json", type=Path, help="rows are merged into this file; cases in it are not run again, unless they are named"
    )
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    parser.add_argument("--seconds", type=float, default=540, help="start no further case after this many seconds")
    parser.epilog = "example: python benchmarks/gpu.py --device cpu --cases resnet50:2:fp32:eager --repeats 3"
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = list(CASES if options.device.startswith("cuda") else SMALL)
    if options.cases:
        words = [case.split(":") for case in options.cases]
        chosen = [(w[0], int(w[1]), w[2], w[3] == "compiled") for w in words]
    rows: list[dict[str, Any]] = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    start = time.perf_counter()
    for case in chosen:
        if time.perf_counter() - start > options.seconds:
            print(f"  no time left for {case}", file=sys.stderr)
            continue
        known = {(r["model"], r["batch"], r["precision"], r["mode"] == "compiled") for r in rows}
        if case in known and not options.cases:
            continue
        made = measure(case, options)
        keys = {(r["model"], r["batch"], r["precision"], r["mode"]) for r in made}
        rows = [r for r in rows if (r["model"], r["batch"], r["precision"], r["mode"]) not in keys] + made
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))
        torch._dynamo.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    text = table(rows)
    if options.markdown:
        options.markdown.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
