"""The ablation on real data: ResNet-50 on the shared ILSVRC sample, DenseNet-201 on imagenette.

Measures n = 1 to 4, every fusion of blocks and the paper's three methods (or --methods). Writes one folder per network
with ablation.json, tables and a plot. With three methods it takes about 43 forwards per image: minutes on a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import real
import torch

from gamlens.data import load
from gamlens.evaluation import results
from gamlens.evaluation.ablation import Plan, fusion_gains, measures, table, table_of, write
from gamlens.evaluation.measure import evaluate
from gamlens.evaluation.protocol import units
from gamlens.evaluation.table_files import markdown

FOLDERS = {"resnet50": "ILSVRC", "densenet201": "imagenette"}


def run(name: str, plan: Plan, options: Any) -> None:
    """Measure one network, write the results and print the tables."""
    start = time.perf_counter()
    lens, dataset = real.lens(name).to(options.device), load("ilsvrc", real.DATA / FOLDERS[name])
    protocol = plan.protocol(lens)
    items = units(dataset, protocol)[: options.limit]
    rows: list[dict[str, Any]] = []
    for part in evaluate(lens, items, protocol, batch=options.batch):
        rows += part
        done = len({row["item"] for row in rows})
        print(f"  {name}: {done} of {len(items)}, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    about = results.describe(lens, dataset, protocol, len(items))
    about |= {"model": name, "data": FOLDERS[name], "seconds": time.perf_counter() - start, "device": options.device}
    found = table(rows, about, plan)
    write(found, plan, options.out / name, about, fusion_gains(rows, about, plan))
    print(f"## {name}, {len(items)} items of {FOLDERS[name]}\n")
    for measure in measures(found):
        print(markdown(*table_of(found, plan, measure)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(FOLDERS), choices=list(FOLDERS))
    parser.add_argument("--methods", nargs="*", default=["gam", "grad_cam_pp", "grad_cam"])
    parser.add_argument("--fill", default="black", choices=("black", "mean"))
    parser.add_argument("--confidence", default="logit", choices=("logit", "probability"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=int, help="measure only this many items, the first ones (default: all)")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("gamlens-ablation"))
    parser.epilog = "example: python benchmarks/ablation.py --limit 10 --out ablation"
    options = parser.parse_args()
    plan = Plan(tuple(options.methods), fill=options.fill, confidence=options.confidence)
    for name in options.models:
        run(name, plan, options)


if __name__ == "__main__":
    main()
