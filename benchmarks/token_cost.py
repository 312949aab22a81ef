"""What methods for transformers cost, beside a plain forward, a bare sketch of the same work, and the peers.

The network is a ViT of timm with random weights. The sketch is the least that a user would write by hand: attention in
plain steps, one forward, and `torch.autograd.grad` through the same layers. Times are the smallest of several rounds
in which all take turns, as multiples of a plain forward (fused attention, no graph) in the same run; memory is the peak
above the model's, on a GPU only.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable

import timm
import torch
from torch import Tensor, nn

from gamlens import GamlensWarning, Lens, Transform

Work = Callable[[], object]


class Sketch:
    """The same network in plain steps, with the attention of every layer kept."""

    def __init__(self, net: nn.Module) -> None:
        self.net, self.kept, self.tokens = net, [], []
        for block in net.blocks:
            block.attn.fused_attn = False
            block.attn.attn_drop.register_forward_hook(self._keep)
            block.register_forward_hook(lambda _, args, output: self.tokens.append(output))

    def _keep(self, module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        torch.set_grad_enabled(True)
        attention = output if output.requires_grad else output.detach().requires_grad_(True)
        self.kept.append(attention)
        return attention

    def forward(self, batch: Tensor) -> Tensor:
        with torch.no_grad():
            scores: Tensor = self.net(batch)
        return scores.amax(dim=1).sum()

    def attention_gam(self, batch: Tensor) -> Tensor:
        """The direct gradient of every layer, and the product."""
        score = self.forward(batch)
        (end,) = torch.autograd.grad(score, self.tokens[-1], retain_graph=True)
        maps = []
        for attention, tokens in zip(self.kept, self.tokens, strict=True):
            (gradient,) = torch.autograd.grad(tokens, attention, end, retain_graph=True)
            maps.append((attention.detach() * gradient.relu()).sum(dim=(1, 2)).sqrt())
        self._forget()
        return torch.stack(maps)

    def chefer(self, batch: Tensor) -> Tensor:
        """One gradient of the score with respect to all layers, rolled out from the class token."""
        score = self.forward(batch)
        gradients = torch.autograd.grad(score, self.kept)
        rows = torch.zeros(len(batch), 1, self.kept[0].shape[-1], device=batch.device)
        rows[:, :, 0] = 1
        for attention, gradient in zip(reversed(self.kept), reversed(gradients), strict=True):
            rows = rows + rows @ (attention.detach() * gradient).relu().mean(dim=1)
        self._forget()
        return rows

    def _forget(self) -> None:
        """Keep nothing until the next call, so that memory is that of one call."""
        self.kept.clear()
        self.tokens.clear()


def peers(net: nn.Module, batch: Tensor) -> dict[str, Work]:
    """Grad-CAM of captum and grad-cam at the norm before the last attention, where they are installed.

    grad-cam gets a network of its own: its hooks stay, and copy the layer to the CPU in every forward.
    """
    found: dict[str, Work] = {}
    target = net(batch).argmax(dim=1)
    layer = net.blocks[-1].norm1
    try:
        from captum.attr import LayerGradCam

        cam = LayerGradCam(net, layer)
        found["captum LayerGradCam, one layer"] = lambda: cam.attribute(batch, target)
    except ImportError:
        pass
    try:
        from pytorch_grad_cam import GradCAM
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        def as_map(tokens: Tensor) -> Tensor:
            side = int((tokens.shape[1] - 1) ** 0.5)
            return tokens[:, 1:].reshape(len(tokens), side, side, -1).permute(0, 3, 1, 2)

        own = copy.deepcopy(net)
        other = GradCAM(own, [own.blocks[-1].norm1], reshape_transform=as_map)
        wanted = [ClassifierOutputTarget(int(one)) for one in target]
        found["grad-cam GradCAM, one layer"] = lambda: other(batch, wanted)
    except ImportError:
        pass
    return found


def measure(works: dict[str, Work], rounds: int, device: str) -> dict[str, tuple[float, float]]:
    """{name: (the smallest time in seconds, the peak of memory in MiB)}; all take turns in every round."""
    times: dict[str, list[float]] = {name: [] for name in works}
    peak = dict.fromkeys(works, 0.0)
    for number in range(rounds + 1):
        for name, work in works.items():
            if device != "cpu":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            start = time.perf_counter()
            work()
            if device != "cpu":
                torch.cuda.synchronize()
                peak[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
            if number:  # the first round warms up
                times[name].append(time.perf_counter() - start)
    return {name: (min(found), peak[name]) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_small_patch16_224", help="a ViT of timm with a class token")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.epilog = "example: python benchmarks/token_cost.py --model vit_tiny_patch16_224 --batch 4"
    options = parser.parse_args()
    torch.manual_seed(0)
    net = timm.create_model(options.model, pretrained=False).eval().to(options.device)
    other = timm.create_model(options.model, pretrained=False).eval().to(options.device)
    other.load_state_dict(net.state_dict())
    batch = torch.randn(options.batch, 3, 224, 224, device=options.device)
    lens, sketch = Lens(net, transform=Transform((224, 224))), Sketch(other)
    works: dict[str, Work] = {
        "plain forward, fused attention": torch.no_grad()(lambda: net(batch)),
        "sketch of attention_gam, all layers": lambda: sketch.attention_gam(batch),
        "gamlens attention_gam, all layers": lambda: lens.classify(batch).maps,
        "sketch of Chefer et al., all layers": lambda: sketch.chefer(batch),
        "gamlens chefer, all layers": lambda: lens.classify(batch, method="chefer").maps,
        "gamlens legrad, all layers": lambda: lens.classify(batch, method="legrad").maps,
        "gamlens grad_eclip, all layers": lambda: lens.classify(batch, method="grad_eclip").maps,
        "gamlens attention_rollout, all layers": lambda: lens.classify(batch, method="attention_rollout").maps,
        "gamlens gam, n = 2": lambda: lens.classify(batch, method="gam", n=2).maps,
        **peers(net, batch),
    }
    with warnings.catch_warnings(action="ignore", category=GamlensWarning):
        found = measure(works, options.rounds, options.device)
    base = found["plain forward, fused attention"][0]
    print(f"{options.model}, batch {options.batch}, {options.device}: a plain forward takes {1000 * base:.0f} ms\n")
    print("| | time, in plain forwards | of its sketch | peak memory, MiB |\n| --- | --- | --- | --- |")
    for name, (seconds, memory) in found.items():
        own = {"gamlens attention_gam": "sketch of attention_gam", "gamlens chefer": "sketch of Chefer et al."}
        key = next((f"{to}, all layers" for start, to in own.items() if name.startswith(start)), "")
        ratio = f"{seconds / found[key][0]:.2f}" if key else ""
        print(f"| {name} | {seconds / base:.2f} | {ratio} | {f'{memory:.0f}' if memory else ''} |")


if __name__ == "__main__":
    main()
