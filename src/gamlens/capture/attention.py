"""Read the attention of a transformer's layers during one forward, exactly, and from there on with a graph.

Most networks compute attention by a fused kernel, which never holds the attention matrix. Inside the wanted layers, and
for the duration of one forward, `AttentionTap` computes

    A = softmax(q k^T / sqrt(d) + mask),  output = A v

in plain steps instead, in which A is a tensor like any other. Nothing of the model is changed for that: torch functions
are intercepted by a TorchFunctionMode. Networks that compute attention in plain steps themselves are only watched.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gamlens.capture.layer_points import TokenGrid
from gamlens.errors import GamlensError

AT_ATTENTION, AT_TOKENS = "attention", "tokens"  # where a graph begins
SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax)
PRODUCT = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)
PRODUCTS_KEPT = 2  # q k^T is one of the last products before the softmax; relative positions may follow it


@dataclass(eq=False)
class AttentionLayer:
    """The tensors of one attention layer, for B images, H heads and N tokens; those that a graph holds are in it.

    Attributes:
        attention: (B,H,N,N), queries before keys.
        query, key, value: (B,H,N,d); None where the network computes attention in steps that do not show them.
        output: What the heads give, attention times value: (B,H,N,d).
        tokens: What the layer returns, (B,N,C): its input, plus what attention and MLP add.
    """

    attention: Tensor
    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    output: Tensor | None = None
    tokens: Tensor | None = None

    def kept_tokens(self) -> Tensor:
        """What the layer returned, (B,N,C)."""
        if self.tokens is None:
            raise GamlensError("A transformer layer returned no tokens (B,N,C): its attention cannot be explained.")
        return self.tokens


@dataclass(eq=False)
class AttentionRecord:
    """What one forward kept of a transformer's attention.

    Attributes:
        layers: The attention layers by name (`blocks.11:attention`), in the order in which they ran.
        grid: Which token lies where in the image.
        needs: What the methods read that the forward was for (`Method.reads`); gradients are computed only of these.
        own: Every layer's own tokens, one layer after the other, (L*B,N,C), as the leaf of a graph of their own; None
            where they are not needed.
        own_record: What the network's last norm, pooling and head made of them: a ForwardRecord without blocks.
    """

    layers: dict[str, AttentionLayer]
    grid: TokenGrid
    needs: frozenset[str]
    own: Tensor | None = None
    own_record: Any = None

    def without_layers(self) -> AttentionRecord:
        """A record that says what was kept, and holds none of it any more."""
        return AttentionRecord({}, self.grid, self.needs)


def layer_name(module: str) -> str:
    """The name of a layer's attention in results and files: `blocks.11:attention`."""
    return f"{module}:attention"


class AttentionTap(TorchFunctionMode):
    """Keeps the attention of the wanted layers of one forward.

    Args:
        model: The network.
        modules: The paths of the transformer layers, in the order in which they run. Each computes attention once.
        graph: Where autograd begins to record: at the attention of the first of `modules` (AT_ATTENTION), at what the
            last of them returns (AT_TOKENS), or nowhere ("").
    """

    def __init__(self, model: nn.Module, modules: Sequence[str], *, graph: str = AT_ATTENTION) -> None:
        super().__init__()
        self.model, self.modules, self.graph = model, tuple(modules), graph
        self.thread = threading.get_ident()
        self.layers: dict[str, AttentionLayer] = {}
        self.running: str | None = None  # the layer that is running
        self.products: list[tuple[Tensor, Tensor, Tensor]] = []  # the last products in it: both factors, the result
        self.tuples: set[str] = set()  # the layers that return their tokens as the first item of a tuple

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Put hooks on the layers, and intercept torch functions, for the duration of this context."""
        with ExitStack() as stack:
            for name in self.modules:
                module = self.model.get_submodule(name)
                stack.callback(module.register_forward_pre_hook(self._before(name)).remove)
                stack.callback(module.register_forward_hook(self._after(name)).remove)
            stack.enter_context(self)
            yield

    def _before(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            if threading.get_ident() == self.thread:
                self.running, self.products = name, []

        return hook

    def _after(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            if threading.get_ident() != self.thread:
                return None
            self.running, self.products = None, []
            if name not in self.layers:
                raise GamlensError(
                    f"layer {name!r} calls neither scaled_dot_product_attention nor a softmax of four dimensions"
                )
            tokens = output[0] if isinstance(output, tuple) and output else output
            if not isinstance(tokens, Tensor):
                return None
            self.tuples |= {name} if tokens is not output else set()
            begins = self.graph == AT_TOKENS and name == self.modules[-1]
            self.layers[name].tokens = kept = self._leaf(tokens) if begins else tokens
            # The network goes on with a copy, so that a layer that works in place cannot change what is kept.
            return (kept.clone(), *output[1:]) if name in self.tuples else kept.clone()

        return hook

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.running is None or threading.get_ident() != self.thread:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attend(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._multi_head(func, args, kwargs)
        if func in PRODUCT:
            return self._product(func, args, kwargs)
        result = func(*args, **kwargs)
        if func in SOFTMAX and isinstance(result, Tensor) and result.ndim == 4:
            return self._softmaxed(result)
        return result

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """torch's scaled_dot_product_attention in plain steps, with the attention kept."""
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        if is_causal:
            ones = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
            attn_mask = ones.tril()
        weights = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.transpose(-2, -1)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            weights = weights.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            weights = weights + attn_mask
        attention = self._keep(weights.softmax(dim=-1).to(value.dtype), query, key, value)
        shown = F.dropout(attention, dropout_p) if dropout_p > 0 else attention
        return self._given(shown @ value)

    def _multi_head(self, func: Any, args: Any, kwargs: Any) -> Any:
        """F.multi_head_attention_forward in plain steps: (N,B,E) -> (N,B,E). Only self-attention of the usual form.

        Any other form is computed as it is; its attention is then not seen, and the layer says so.
        """
        names = ("query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k",
                 "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias", "training",
                 "key_padding_mask", "need_weights", "attn_mask")  # fmt: skip
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        x = given["query"]
        unusual = ("bias_k", "bias_v", "add_zero_attn", "key_padding_mask", "static_k", "static_v")
        if (
            x.ndim != 3
            or x.shape != given["key"].shape
            or x.shape != given["value"].shape
            or any(given.get(name) not in (None, False) for name in unusual)
        ):
            return func(*args, **kwargs)
        heads, bias = given["num_heads"], given["in_proj_bias"]
        if given.get("use_separate_proj_weight"):
            weights = [given[f"{which}_proj_weight"] for which in "qkv"]
        else:
            weights = given["in_proj_weight"].chunk(3)
        biases = bias.chunk(3) if bias is not None else (None, None, None)
        parts = (F.linear(given[which], weight, own)
                 for which, weight, own in zip(("query", "key", "value"), weights, biases, strict=True))  # fmt: skip
        query, key, value = (part.view(*part.shape[:2], heads, -1).permute(1, 2, 0, 3) for part in parts)
        mask = given.get("attn_mask")
        if mask is not None and mask.ndim == 3:
            mask = mask.view(-1, heads, *mask.shape[1:])
        mask = ~mask if mask is not None and mask.dtype == torch.bool else mask  # True hides here, and shows there
        causal = bool(given.get("is_causal")) and mask is None
        found = self._attend(query, key, value, mask, is_causal=causal)
        output = F.linear(found.permute(2, 0, 1, 3).flatten(2), given["out_proj_weight"], given["out_proj_bias"])
        if not given.get("need_weights", True):
            return output, None
        shown = self.layers[self._layer()].attention
        return output, shown.mean(dim=1) if given.get("average_attn_weights", True) else shown

    def _product(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A product in a network that computes attention itself: q k^T before the softmax, A v after it."""
        result = func(*args, **kwargs)
        layer = self.layers.get(self._layer())
        left, right = args[0], args[1] if len(args) > 1 else None
        if not isinstance(left, Tensor) or not isinstance(right, Tensor) or left.ndim != 4 or right.ndim != 4:
            return result
        if layer is None:
            self.products = [*self.products, (left, right, result)][-PRODUCTS_KEPT:]
        elif layer.output is None and left.shape == layer.attention.shape:
            layer.value, layer.output = right, result
        return result

    def _softmaxed(self, attention: Tensor) -> Tensor:
        """Keep an attention that the network computed in plain steps, with the query and key it comes from."""
        for left, right, product in reversed(self.products):
            if product.shape == attention.shape:
                return self._keep(attention, left, right.transpose(-2, -1), None)
        return self._keep(attention, None, None, None)

    def _keep(self, attention: Tensor, query: Tensor | None, key: Tensor | None, value: Tensor | None) -> Tensor:
        name = self._layer()
        if name in self.layers:
            raise GamlensError(f"layer {name!r} computes attention more than once")
        attention = self._leaf(attention) if self.graph == AT_ATTENTION else attention
        self.layers[name] = AttentionLayer(attention, query, key, value)
        return attention

    def _given(self, output: Tensor) -> Tensor:
        self.layers[self._layer()].output = output
        return output

    def _layer(self) -> str:
        assert self.running is not None
        return self.running

    def _leaf(self, tensor: Tensor) -> Tensor:
        """The tensor, as the leaf of a graph that begins here unless one began before; what follows is recorded."""
        torch.set_grad_enabled(True)
        return tensor if tensor.requires_grad else tensor.detach().requires_grad_(True)


@dataclass
class SkippedLayers:
    """For one forward, transformer layers return given tokens instead of computing anything: a context.

    So the rest of the network, its last norm, pooling and head, is applied to any tokens. `forward` of the modules is
    set on the instance, and removed or put back afterwards.

    Attributes:
        model: The network.
        modules: The paths of the layers.
        tokens: What every one of them returns.
        tuples: Those that return a tuple, whose first item the tokens are.
    """

    model: nn.Module
    modules: Sequence[str]
    tokens: Tensor
    tuples: Collection[str] = ()
    _undo: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> SkippedLayers:
        thread = threading.get_ident()
        for name in self.modules:
            module = self.model.get_submodule(name)
            known = "forward" in vars(module)
            before = module.forward

            def forward(*args: Any, _before: Any = before, _in_tuple: bool = name in self.tuples, **kwargs: Any) -> Any:
                if threading.get_ident() != thread:
                    return _before(*args, **kwargs)
                torch.set_grad_enabled(True)
                return (self.tokens,) if _in_tuple else self.tokens

            module.forward = forward
            if known:
                self._undo.callback(setattr, module, "forward", before)
            else:
                self._undo.callback(delattr, module, "forward")
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()
