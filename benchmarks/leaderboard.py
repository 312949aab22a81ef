"""Makes the boards of docs/leaderboard.md: `gamlens leaderboard` on the real networks and images.

Each board is one command, which this program prints and runs; a board that was stopped is continued. Data and weights
are in ../shared, or where GAMLENS_DATA and GAMLENS_WEIGHTS point. `--board gpu` measures our own methods by every
metric on 1,000 images, which is meant for a GPU, and prints the time it took.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

import real

SHORT = "captum:InputXGradient,grad_cam_lib:GradCAM,grad_cam_lib:GradCAMPlusPlus,grad_cam_lib:EigenCAM"
LONG = (
    f"captum:IntegratedGradients?n_steps=20,captum:Occlusion?window=45&stride=30,{SHORT},grad_cam_lib:FullGrad,"
    "grad_cam_lib:FinerCAM,grad_cam_lib:ShapleyCAM"
)
SCORE_CAM = "Score-CAM of grad-cam"  # the folder of its maps, which take half a minute per image: see `score_cam`
FIRST_200 = "--variant-n 2 --compile --limit 200 --batch 8 --chunk 50"
ONLY_MAPS = "--curves 0 --road= --infidelity 8 --sensitivity 0 --no-coherency"
BOARDS: dict[str, tuple[str, str, str]] = {  # {name: (model, data set, further options)}
    "resnet50": (
        "benchmarks/real.py:resnet50", "ILSVRC",
        f"--methods ours,ours+refine,ours+views,{LONG},captum:GuidedGradCam {ONLY_MAPS} {FIRST_200}",
    ),
    "densenet201": (
        "benchmarks/real.py:densenet201", "imagenette",
        f"--methods ours,ours+refine,{SHORT},captum:GuidedGradCam --quick {FIRST_200}",
    ),
    "efficientnet_lite0": (
        "efficientnet_lite0", "ILSVRC",
        f"--methods 'ours,ours+refine,ours+views,{LONG},maps:bench/{SCORE_CAM}' {ONLY_MAPS} {FIRST_200}",
    ),
    "pairs": (
        "efficientnet_lite0", "ILSVRC",
        f"--task cosine --pairs neighbour --methods ours,ours+refine,{SHORT} --n 2 --curves 4 --road= --infidelity 0 "
        "--sensitivity 0 --no-coherency --compile --limit 60 --batch 8 --chunk 30",
    ),
    "every_metric": (
        "efficientnet_lite0", "ILSVRC",
        "--methods ours,ours+refine,captum:InputXGradient,grad_cam_lib:GradCAM,grad_cam_lib:GradCAMPlusPlus --n 2 "
        "--curves 6 --road 30,70 --infidelity 8 --sensitivity 2 --compile --limit 64 --batch 8 --chunk 64",
    ),
    "gpu": (
        "benchmarks/real.py:resnet50", "ILSVRC",
        "--methods gam,grad_cam,grad_cam_pp,layer_cam,gam+refine --compile --limit 1000 --batch 64 --chunk 128",
    ),
}  # fmt: skip


def words(board: str, folder: Path) -> list[str]:
    """The arguments of `gamlens` for a board."""
    model, data, more = BOARDS[board]
    root = str(real.DATA / data)
    return ["leaderboard", "--model", model, "--root", root, *shlex.split(more), "--out", str(folder / board)]


def score_cam(folder: Path, count: int) -> None:
    """Write the maps of grad-cam's Score-CAM with EfficientNet-Lite0 on the first images, one file per image."""
    import numpy as np
    import torch

    from gamlens.data import align, load
    from gamlens.evaluation.explainers import find

    lens = real.lens("efficientnet_lite0")
    explain = find("grad_cam_lib:ScoreCAM").bind(lens).classify
    assert explain is not None
    folder.mkdir(parents=True, exist_ok=True)
    samples = sorted(align(load("ilsvrc", real.DATA / "ILSVRC"), lens.labels).samples, key=lambda sample: sample.name)
    for sample in samples[:count]:
        file = folder / f"{sample.name}.npy"
        if not file.exists():
            batch = lens.prepare(sample.image).batches[0]
            np.save(file, explain(batch, torch.tensor(sample.labels[:1]))[0].numpy())
            print(sample.name, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", nargs="*", default=[name for name in BOARDS if name != "gpu"], choices=[*BOARDS])
    parser.add_argument("--out", type=Path, default=Path("bench/leaderboards"), help="the folder of all boards")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, and run nothing")
    parser.epilog = "example: python benchmarks/leaderboard.py --board resnet50"
    options = parser.parse_args()
    for board in options.board:
        command = words(board, options.out)
        print(shlex.join(["gamlens", *command]), flush=True)
        if options.dry_run:
            continue
        if SCORE_CAM in " ".join(command):
            score_cam(Path("bench") / SCORE_CAM, 200)
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "gamlens", *command], check=False)
        print(f"{board}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
