"""Change the attention of any torch model by seeing its calls, as `fv.watch` does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from foveate.attention.arguments import joint_mask
from foveate.watch.calls import project
from foveate.watch.modules import attention_modules
from foveate.watch.transforms import Change, attend, masked_scores


class _Swap(TorchFunctionMode):
    """Replaces the softmax of every attention call."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the call with the other transform, and every other call as it is."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return attend(self.change, *args, **kwargs)
        if getattr(func, "__name__", "") == "softmax":
            scores = args[0] if args else kwargs["input"]
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if scores.ndim >= 3 and dim in (-1, scores.ndim - 1):
                return self.change.weights(scores, masked_scores(scores)).to(kwargs.get("dtype") or scores.dtype)
        return func(*args, **kwargs)


@dataclass
class Changed:
    """Modules whose attention was changed; `restore()` undoes it, and so does leaving a `with` block.

    Attributes:
        names: of the modules.
        change: the transform in use.
    """

    names: list[str]
    change: Any
    undo: list[Callable[[], None]] = field(default_factory=list)

    def restore(self) -> None:
        """Let every module attend as before."""
        while self.undo:
            self.undo.pop()()

    def __enter__(self) -> Changed:
        return self

    def __exit__(self, *error: object) -> None:
        self.restore()


def replace_forward(module: nn.Module, forward: Callable[..., Any], change: Any) -> Callable[[], None]:
    """Let a module run another forward; returns what undoes it."""
    previous = module.__dict__.get("forward")
    module.__dict__["forward"], module.__dict__["foveate_change"] = forward, change

    def undo() -> None:
        module.__dict__.pop("foveate_change", None)
        if previous is None:
            module.__dict__.pop("forward", None)
        else:
            module.__dict__["forward"] = previous

    return undo


def swap(model: nn.Module, change: Change, chosen: Callable[[str], bool]) -> Changed:
    """Change the attention of the chosen attention modules of a model."""
    names = [name for name, _ in attention_modules(model) if chosen(name)]
    changed = Changed(names, change)
    on_image, follow = _image_follower(model, change)
    plain = Change(change.name, change.options, change.grid, change.prefix)
    for name in names:
        module = model.get_submodule(name)
        own = change if on_image(name) else plain
        forward = _multihead(module, own) if isinstance(module, nn.MultiheadAttention) else _inside(module, own)
        changed.undo.append(replace_forward(module, forward, own))
    changed.undo.append(follow)
    return changed


def _inside(module: nn.Module, change: Change) -> Callable[..., Any]:
    forward = module.forward

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _Swap(change):
            return forward(*args, **kwargs)

    return run


def _multihead(module: nn.MultiheadAttention, change: Change) -> Callable[..., Any]:
    """The forward of `torch.nn.MultiheadAttention` with another transform; its fused path has no call to replace."""
    names = inspect.signature(module.forward)

    @functools.wraps(module.forward)
    def run(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        call = names.bind(*args, **kwargs).arguments
        query, key, value = project(module, call["query"], call["key"], call["value"])
        mask = joint_mask(call.get("attn_mask"), call.get("key_padding_mask"), module.num_heads)
        context = attend(change, query, key, value, mask, module.dropout if module.training else 0.0)
        context = module.out_proj(context.transpose(1, 2).flatten(2))
        return (context if module.batch_first else context.transpose(0, 1)), None

    return run


def _image_follower(model: nn.Module, change: Change) -> tuple[Callable[[str], bool], Callable[[], None]]:
    """Keep the grid of a change right for every image size: which modules see patches, and what stops it."""
    from foveate.watch.model_families import DUAL, VISION, family_of
    from foveate.watch.places import Setting, patch_shape

    family = family_of(model)
    if change.grid is not None or family is None or family.kind not in (VISION, DUAL) or family.windowed:
        return (lambda name: True), (lambda: None)
    names = inspect.signature(model.forward)

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        pixels = names.bind_partial(*args, **kwargs).arguments.get("pixel_values")
        if isinstance(pixels, Tensor) and pixels.ndim == 4:
            setting = Setting(module.config, {"pixel_values": pixels})
            change.grid, change.prefix = patch_shape(setting), int(family.tokens(setting)[0])

    return family.attends, model.register_forward_pre_hook(before, with_kwargs=True).remove
