"""Run the attention calls inside one module through functions of one's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from foveate.attention.arguments import joint_mask
from foveate.watch.calls import project, softmax_scores, weigh
from foveate.watch.modules import Around

SDPA_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
# From the arguments of a call of scaled dot-product attention to its result.
Attend: TypeAlias = Callable[[dict[str, Any]], Tensor]
# From scores and the softmax that the module applies to them to weights.
Weigh: TypeAlias = Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]


class _Calls(TorchFunctionMode):
    """Hands every attention call to one of two functions, and every other call on as it is."""

    def __init__(self, attend: Attend, weights: Weigh, softmax_only: bool) -> None:
        super().__init__()
        self.attend, self.weights, self.softmax_only = attend, weights, softmax_only

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the call by one of the functions."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self.attend({**dict(zip(SDPA_ARGUMENTS, args, strict=False)), **kwargs})
        if func is weigh and not self.softmax_only:
            return self.weights(args[0], lambda scores: func(scores, *args[1:], **kwargs))
        scores = softmax_scores(func, args, kwargs)
        if scores is None:
            return func(*args, **kwargs)
        rest = {name: value for name, value in kwargs.items() if name != "input"}
        return self.weights(scores, lambda scores: func(scores, *args[1:], **rest))


class _Plain(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def unfused(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run `torch.nn.TransformerEncoderLayer` as its parts: inside any function mode it takes no fused path."""
    with _Plain():
        return forward(*args, **kwargs)


def around_attention(module: nn.Module, attend: Attend, weights: Weigh, *, softmax_only: bool = False) -> Around:
    """What `add_around` runs instead of an attention module's forward: its calls go to `attend` and `weights`.

    With `softmax_only` a transform that already took the place of a softmax stays as it is.
    """
    if isinstance(module, nn.MultiheadAttention):
        return _around_multihead(module, attend)

    def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with _Calls(attend, weights, softmax_only):
            return forward(*args, **kwargs)

    return run


def _around_multihead(module: nn.MultiheadAttention, attend: Attend) -> Around:
    """`torch.nn.MultiheadAttention` by way of a call of SDPA; its fused path has no call to replace."""
    names = inspect.signature(module.forward)

    def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        call = names.bind(*args, **kwargs).arguments
        query, key, value = project(module, call["query"], call["key"], call["value"])
        mask = joint_mask(call.get("attn_mask"), call.get("key_padding_mask"), module.num_heads)
        dropout = module.dropout if module.training else 0.0
        context = attend({"query": query, "key": key, "value": value, "attn_mask": mask, "dropout_p": dropout})
        context = module.out_proj(context.transpose(1, 2).flatten(2))
        return (context if module.batch_first else context.transpose(0, 1)), None

    return run
