"""Which tensor of a ViT block should be explained, and how many blocks? Box IoU of small ViTs on real photos.

`train` distils the real ResNet-50 into two small ViTs (class token, mean of tokens), on photos of VOC, COCO and every
other image of ILSVRC, with strong augmentation; it takes minutes on a GPU. `evaluate` uses the other images of ILSVRC:
the IoU of the box around all pixels >= t with the ground truth, where t is chosen on every tenth item, which is left
out of the mean. The candidates are the residual stream after a block, the norm after it, and the outputs of attention
and MLP; the last 1, 2, 3 and 4 blocks; GAM, Grad-CAM and Grad-CAM++. Data and weights are where GAMLENS_DATA and
GAMLENS_WEIGHTS point.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import real
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from gamlens import Lens, fuse
from gamlens.data import load
from gamlens.metrics import best_threshold, iou_grid
from gamlens.metrics.iou import THRESHOLDS

SIDE, PATCH, DEPTH, HEADS, WIDTH, CLASSES = 224, 16, 8, 6, 384, 1000
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
METHODS = ("gam", "grad_cam", "grad_cam_pp")
POINTS = ("norm", "stream", "attention", "mlp")
COUNTS = (1, 2, 3, 4)
LAYER = "encoder.layers.encoder_layer_{}"


class MeanViT(VisionTransformer):
    """torchvision's ViT with a head on the mean of the patch tokens."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = self._process_input(x)
        tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1)
        return self.heads(self.encoder(tokens)[:, 1:].mean(dim=1))


def students(depth: int = DEPTH) -> dict[str, nn.Module]:
    """The two ViTs, untrained."""
    options = {"num_layers": depth, "num_heads": HEADS, "hidden_dim": WIDTH, "mlp_dim": 4 * WIDTH}
    made: dict[str, nn.Module] = {}
    for name, kind in (("class", VisionTransformer), ("mean", MeanViT)):
        torch.manual_seed(0)
        made[name] = kind(SIDE, PATCH, num_classes=CLASSES, **options)
        nn.init.trunc_normal_(made[name].heads.head.weight, std=0.02)
    return made


def points(pooling: str, depth: int) -> dict[str, list[str]]:
    """Names of the candidates, last block first. With a class token, the last block's patch tokens have no gradient."""
    last = depth - 2 if pooling == "class" else depth - 1
    blocks = list(range(last, max(last - max(COUNTS), -1), -1))
    norms = [f"{LAYER.format(i + 1)}.ln_1" if i + 1 < depth else "encoder.ln" for i in blocks]
    return {
        "norm": norms,
        "stream": [LAYER.format(i) for i in blocks],
        "attention": [f"{LAYER.format(i)}.dropout" for i in blocks],
        "mlp": [f"{LAYER.format(i)}.mlp" for i in blocks],
    }


def photos(files: list[str], device: str) -> Tensor:
    """Read files and squash them to 288 px: (N,3,288,288), uint8, on the device."""
    made = []
    for file in files:
        with Image.open(file) as image:
            small = image.convert("RGB").resize((288, 288), Image.Resampling.BICUBIC)
        made.append(torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).view(288, 288, 3).permute(2, 0, 1))
    return torch.stack(made).to(device)


def training_files(limit: int | None) -> list[str]:
    """The photos to train on: VOC, COCO, and every other image of ILSVRC."""
    files = [str(file) for file, _ in real.samples("ILSVRC")[::2]]
    for folder in ("VOCdevkit/VOC2012/JPEGImages", "coco/val2017"):
        files += sorted(str(file) for file in (real.DATA / folder).glob("*.jpg"))
    return files[:limit]


def augment(images: Tensor) -> Tensor:
    """Random crop (8 to 100 %), aspect, mirroring, colour and mixup: uint8 images -> (B,3,224,224)."""
    count, device = len(images), images.device
    area = torch.empty(count, device=device).uniform_(0.08, 1).sqrt()
    aspect = torch.empty(count, device=device).uniform_(-0.3, 0.3).exp()
    size = torch.stack([(area * aspect).clamp(max=1), (area / aspect).clamp(max=1)], 1)
    shift = (1 - size) * torch.empty(count, 2, device=device).uniform_(-1, 1)
    mirror = torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
    theta = torch.zeros(count, 2, 3, device=device)
    theta[:, 0, 0], theta[:, 1, 1], theta[:, :, 2] = size[:, 0] * mirror, size[:, 1], shift
    grid = F.affine_grid(theta, [count, 3, SIDE, SIDE], align_corners=False)
    views = F.grid_sample(images.float() / 255, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    light = torch.empty(count, 1, 1, 1, device=device).uniform_(0.7, 1.3)
    share = torch.distributions.Beta(0.8, 0.8).sample((count, 1, 1, 1)).to(device)
    share = torch.where(torch.rand(count, 1, 1, 1, device=device) < 0.5, share, 1.0)
    views = normal((views * light).clamp(0, 1))
    return share * views + (1 - share) * views.flip(0)


def normal(images: Tensor) -> Tensor:
    mean, std = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (images - mean) / std


def train(out: Path, *, steps: int | None, seconds: float, batch: int, limit: int | None, device: str) -> None:
    """Distil the teacher into both students for a number of steps or seconds, and write their weights to `out`."""
    data = photos(training_files(limit), device)
    teacher = real.resnet50().to(device).model.eval()
    made = {name: module.to(device).train() for name, module in students().items()}
    parameters = [value for module in made.values() for value in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.05, betas=(0.9, 0.98))
    start, step, done = time.perf_counter(), 0, 0.0
    while done < 1:
        done = (step + 1) / steps if steps else (time.perf_counter() - start) / seconds
        rate = 1e-3 * min(1.0, done / 0.05) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        views = augment(data[torch.randint(len(data), (batch,), device=device)])
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            with torch.no_grad():
                target = teacher(views).float().softmax(1)
            losses = [
                F.kl_div(net(views).float().log_softmax(1), target, reduction="batchmean") for net in made.values()
            ]
        optimizer.zero_grad(set_to_none=True)
        sum(losses).backward()  # type: ignore[union-attr]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        step += 1
        if step % 100 == 1 or done >= 1:
            said = ", ".join(f"{name} {float(loss):.3f}" for name, loss in zip(made, losses, strict=True))
            print(f"step {step}, {100 * min(done, 1):.0f} %: {said}", file=sys.stderr, flush=True)
    out.mkdir(parents=True, exist_ok=True)
    for name, module in made.items():
        torch.save({key: value.half() for key, value in module.state_dict().items()}, out / f"vit_{name}.pth")
    about = {"steps": step, "photos": len(data), "batch": batch, "seconds": round(time.perf_counter() - start)}
    (out / "train.json").write_text(json.dumps(about))


def evaluate(out: Path, *, limit: int | None, batch: int, device: str) -> list[dict[str, Any]]:
    """IoU of every candidate, n and method on the images of ILSVRC that were not trained on."""
    samples = [sample for sample in load("ilsvrc", real.DATA / "ILSVRC") if sample.boxes]
    unseen = {file.stem for file, _ in real.samples("ILSVRC")[1::2]}
    samples = [sample for sample in samples if sample.name in unseen][:limit]
    truths = [_boxes(sample) for sample in samples]
    labels = [sample.labels[0] for sample in samples]
    hold_out = torch.arange(len(samples)) % 10 == 0
    lines: list[dict[str, Any]] = []
    for pooling, module in students().items():
        module.load_state_dict({key: value.float() for key, value in torch.load(out / f"vit_{pooling}.pth").items()})
        names = points(pooling, DEPTH)
        lens = Lens(module, blocks=[name for group in names.values() for name in group], device=device)
        grids: dict[tuple[str, int, str], list[Tensor]] = {}
        hits = 0
        for start in range(0, len(samples), batch):
            part = slice(start, start + batch)
            trace = lens.trace([sample.image for sample in samples[part]], labels[part], n=None).release()
            assert trace.output is not None
            hits += int((trace.output.argmax(1).cpu() == torch.tensor(labels[part])).sum())
            for method in METHODS:
                for point, group in names.items():
                    maps = [
                        fuse.min_max(fuse.resize(trace.raw(method, f"{name}:tokens"), (SIDE, SIDE)))[0]
                        for name in group
                    ]
                    for n in COUNTS[: len(maps)]:
                        mixed = torch.stack(maps[:n]).mean(0).cpu()
                        grids.setdefault((point, n, method), []).append(iou_grid(mixed, truths[part]))
        for (point, n, method), parts in grids.items():
            grid = torch.cat(parts)
            best = best_threshold(grid[hold_out])
            values = grid[~hold_out][:, best].double()
            lines.append({
                "pooling": pooling, "point": point, "n": n, "method": method, "iou": 100 * float(values.mean()),
                "error": 100 * float(values.std() / len(values) ** 0.5), "threshold": THRESHOLDS[best],
                "items": len(values), "top1": 100 * hits / len(samples),
            })  # fmt: skip
    lines += _controls(truths, hold_out)
    (out / "iou.json").write_text(json.dumps(lines, indent=1))
    return lines


def overlays(out: Path, *, limit: int | None, device: str) -> None:
    """Write one contact sheet per ViT: GAM of the true class on 20 unseen images, with the blocks that are found."""
    items = real.samples("ILSVRC")[1::2][:limit]
    items = items[:: max(1, len(items) // 20)][:20]
    for pooling, module in students().items():
        module.load_state_dict({key: value.float() for key, value in torch.load(out / f"vit_{pooling}.pth").items()})
        result = Lens(module, device=device).classify([str(file) for file, _ in items], [label for _, label in items])
        sheet = Image.new("RGB", (5 * 448, 4 * 224))
        for row in range(len(items)):
            place = ((row % 5) * 448, row // 5 * 224)
            for number, picture in enumerate((result.image(row), result.overlay(row))):
                sheet.paste(picture.resize((224, 224)), (place[0] + 224 * number, place[1]))
        sheet.save(out / f"overlays_{pooling}.png")


def _boxes(sample: Any) -> Tensor:
    height, width = sample.size
    scale = torch.tensor([SIDE / width, SIDE / height, SIDE / width, SIDE / height])
    own = [box for box in sample.boxes if box.label == sample.labels[0]]
    return torch.tensor([[box.x0, box.y0, box.x1, box.y1] for box in own]) * scale


def _controls(truths: list[Tensor], hold_out: Tensor) -> list[dict[str, Any]]:
    """The IoU of a centre prior, a map that does not depend on the image."""
    axis = (torch.arange(SIDE) + 0.5) / SIDE * 2 - 1
    centre = torch.exp(-(axis[:, None] ** 2 + axis[None] ** 2) / (2 * 0.5**2))
    grid = iou_grid(fuse.min_max(centre[None])[0].expand(len(truths), -1, -1), truths)
    best = best_threshold(grid[hold_out])
    values = grid[~hold_out][:, best].double()
    error = 100 * float(values.std() / len(values) ** 0.5)
    line = {"pooling": "", "point": "centre prior", "n": 0, "method": "", "iou": 100 * float(values.mean())}
    return [{**line, "error": error, "threshold": THRESHOLDS[best], "items": len(values), "top1": None}]


def table(lines: list[dict[str, Any]]) -> str:
    """A Markdown table with one row per pooling, tensor and n, and one column per method."""
    found = {(line["pooling"], line["point"], line["n"], line["method"]): line for line in lines}
    first = lines[0]
    tops = {line["pooling"]: line["top1"] for line in lines if line["top1"] is not None}
    (control,) = (line for line in lines if line["point"] == "centre prior")
    text = f"IoU % over {first['items']} images (standard error about {first['error']:.1f}); top-1 "
    text += ", ".join(f"{top:.1f} % ({name})" for name, top in tops.items())
    text += f"; a centre prior gets {control['iou']:.1f}.\n\n"
    text += "| pooling | read | n | GAM | Grad-CAM | Grad-CAM++ |\n| --- | --- | --- | --- | --- | --- |\n"
    for pooling, point, n in dict.fromkeys((line["pooling"], line["point"], line["n"]) for line in lines if line["n"]):
        cells = " | ".join(f"{found[pooling, point, n, method]['iou']:.1f}" for method in METHODS)
        text += f"| {pooling} | {point} | {n} | {cells} |\n"
    return text


def fill(file: Path, name: str, text: str) -> None:
    """Put text between `<!-- name -->` and `<!-- end name -->` of a Markdown file."""
    before, found, rest = file.read_text().partition(f"<!-- {name} -->\n")
    _, ended, after = rest.partition(f"<!-- end {name} -->")
    if not found or not ended:
        raise SystemExit(f"{file} has no place <!-- {name} --> ... <!-- end {name} -->")
    file.write_text(f"{before}<!-- {name} -->\n{text.rstrip()}\n<!-- end {name} -->{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["train", "evaluate"], help="train, evaluate, overlays, table")
    parser.add_argument("--out", type=Path, default=Path("runs/tokens"), help="the folder of weights and results")
    parser.add_argument("--steps", type=int, help="training steps, in place of --seconds")
    parser.add_argument("--seconds", type=float, default=330, help="training time (default 330)")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--limit", type=int, help="use only this many photos and images (default: all)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--markdown", type=Path, help="put the table into this file, between its markers")
    parser.epilog = "example: python benchmarks/tokens.py train evaluate --steps 3 --batch 4 --limit 20 --out runs/try"
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    common = {"limit": options.limit, "device": options.device}
    if "train" in options.parts:
        train(options.out, steps=options.steps, seconds=options.seconds, batch=options.batch, **common)
    if "evaluate" in options.parts:
        evaluate(options.out, batch=min(options.batch, 32), **common)
    if "overlays" in options.parts:
        overlays(options.out, **common)
    text = table(json.loads((options.out / "iou.json").read_text()))
    if options.markdown:
        fill(options.markdown, "iou", text)
    print(text)


if __name__ == "__main__":
    main()
