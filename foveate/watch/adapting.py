"""Adapt a trained vision model to another transform: a factor of the scores per head, then distillation of itself."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foveate.errors import DataError, WrongType, WrongValue
from foveate.io import ProgressBar, atomic_write
from foveate.ops import softmax
from foveate.registry import optional
from foveate.watch.modules import attention_modules
from foveate.watch.record import Layers, module_filter
from foveate.watch.swap import Change, Changed, replace_weights, swap

QUERIES = ("q_proj", "query", "q_lin", "to_q")  # names of projections of queries
FACTORS = torch.logspace(-2, 0.5, 26)  # that are tried for the scores of a head, then the neighbours of the best one
ROWS = 64  # queries per image that decide
SAVE_EVERY = 50  # steps
CLIP = 1.0
AVERAGES = ("exp_avg", "exp_avg_sq")  # of Adam


def adapt(
    model: nn.Module,
    name: str,
    images: Sequence[Any],
    *,
    processor: Any = None,
    layers: Layers = None,
    steps: int = 300,
    batch: int = 8,
    lr: float = 2e-5,
    calibrate: int = 4,
    directory: str | Path | None = None,
    seed: int = 0,
    show: bool = True,
    **options: Any,
) -> Changed:
    """Change the attention of a trained vision model so that its outputs stay close to what they were.

    Two steps, on images without labels. Calibration: a transform such as entmax needs other scales of its scores than
    softmax (near a uniform row of N keys, 1.5-entmax is √N times as steep); per head, the factor at which its weights
    are nearest to those of softmax is multiplied into the projection of the queries. Distillation: all weights are
    trained so that every hidden state is that of the original model,

        Σ_l mean ‖h_l − h_l'‖² / ‖h_l'‖² over layers l, once more for the last state and for its first token.

    Args:
        model: a vision model of transformers (`pixel_values` in, `hidden_states` out). It is changed in place.
        name: a transform without edges, such as "entmax".
        images: paths, PIL images or arrays for `processor`; without one, tensors (3, H, W) as the model reads them.
        processor: turns images into `pixel_values`.
        layers: which attention modules, as in `fv.watch`; all when None.
        steps: of distillation; 0 calibrates only.
        batch: images per step.
        lr: the largest learning rate of Adam, after a warm-up of 10 steps; it falls to zero along a cosine.
        calibrate: images for calibration; 0 leaves it out.
        directory: keeps the state every 50 steps; a call with the same directory continues from there.
        seed: of the order of the images.
        show: progress, with the loss.
        options: of the transform, such as `alpha=1.5`.

    Returns:
        A handle; `handle.restore()` or the end of a `with` block brings back the attention and the weights. After
        `model.save_pretrained(path)`, load the adapted model with
        `attn_implementation=fv.hf.register(name, **options)`.
    """
    read = _reader(model, images, processor)
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    change = Change(name, options)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator).tolist()
    saved = _Saved(
        None if directory is None else Path(directory),
        {"name": name, **options, "images": len(images), "steps": steps, "batch": batch, "lr": lr, "seed": seed},
    )
    step = saved.read(model)
    if step == 0 and calibrate:
        _calibrate(model, change, layers, read(order[:calibrate]))
    changed = swap(model, change, module_filter(layers))
    if not changed.names:
        raise WrongValue(f"adapt: expected attention modules among layers={layers!r}, got none; pass other layers")
    changed.undo.insert(0, lambda: _copy_weights(teacher, model))
    try:
        _distil(model, teacher, _Plan(read, order, step, steps, batch, lr), saved, show)
    except BaseException:
        changed.restore()
        raise
    return changed


def _reader(model: nn.Module, images: Sequence[Any], processor: Any) -> Callable[[Sequence[int]], Tensor]:
    """A function from the numbers of images to their pixels (B, 3, H, W)."""
    if getattr(model, "main_input_name", "pixel_values") != "pixel_values":
        raise WrongType(
            f"adapt: expected a vision model, whose input is pixel_values, got {type(model).__name__}; adapt its "
            "vision tower, for example model.vision_model"
        )
    if not len(images):
        raise WrongValue("adapt: expected at least one image, got none; pass images")
    weight = next(model.parameters())

    def read(numbers: Sequence[int]) -> Tensor:
        some = [images[number] for number in numbers]
        if processor is None:
            return torch.stack([torch.as_tensor(one) for one in some]).to(weight)
        from foveate.io import open_image

        opened = [open_image(one) if isinstance(one, str | Path) else one for one in some]
        pixels: Tensor = processor(images=opened, return_tensors="pt")["pixel_values"]
        return pixels.to(weight)

    return read


# Calibration


class _Calibration:
    """In the place of a `Change`: finds per head the factor of the scores at which the weights are those of softmax."""

    def __init__(self, change: Change) -> None:
        self.change, self.factors = change, torch.ones(1)

    def weights(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        heads = scores.shape[1]
        some = torch.linspace(0, scores.shape[-2] - 1, min(ROWS, scores.shape[-2])).long()
        rows = scores[..., some, :]
        kept = None if mask is None else mask.expand(scores.shape)[..., some, :]
        target = softmax(rows, mask=kept)
        self.factors = _best(lambda factor: self._distance(rows * factor, target, kept), FACTORS, heads)
        near = self.factors * torch.logspace(-0.1, 0.1, 9)[:, None]
        self.factors = _best(lambda factor: self._distance(rows * factor, target, kept), near, heads)
        return self.change.weights(scores * self.factors[:, None, None], mask)

    def _distance(self, scores: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        return (self.change.weights(scores, mask) - target).abs().mean((0, 2, 3))


def _best(distance: Callable[[Tensor], Tensor], factors: Tensor, heads: int) -> Tensor:
    """Per head the factor with the smallest distance, among factors (F,) for all heads or (F, M)."""
    tried = factors if factors.ndim == 2 else factors[:, None].expand(-1, heads)
    found = torch.stack([distance(row[:, None, None]) for row in tried])
    return tried.gather(0, found.argmin(0, keepdim=True))[0]


@torch.no_grad()
def _calibrate(model: nn.Module, change: Change, layers: Layers, pixels: Tensor) -> None:
    """Multiply the factors into the projections of the queries, in one forward pass in the order of the layers."""
    training, chosen = model.training, module_filter(layers)
    fitted = {name: _Calibration(change) for name, _ in attention_modules(model) if chosen(name)}
    with ExitStack() as stack:
        for name, one in fitted.items():
            stack.callback(replace_weights(model.get_submodule(name), partial(lambda it: it, one)))
        wanted = model.eval()(pixel_values=pixels).last_hidden_state
    for name, one in fitted.items():
        _scale_queries(name, model.get_submodule(name), one.factors)
    with swap(model, change, chosen):
        found = model.eval()(pixel_values=pixels).last_hidden_state
    model.train(training)
    if (found - wanted).norm() > 1e-2 * wanted.norm():
        raise WrongValue(
            f"adapt: expected scores that follow the projection of the queries, got others in {type(model).__name__} "
            "(a norm of queries, for example); pass calibrate=0"
        )


def _scale_queries(name: str, module: Any, factors: Tensor) -> None:
    if isinstance(getattr(module, "in_proj_weight", None), nn.Parameter):  # queries, keys and values in one matrix
        width = module.in_proj_weight.shape[0] // 3
        parts = [module.in_proj_weight[:width], None if module.in_proj_bias is None else module.in_proj_bias[:width]]
    else:
        linear = next((getattr(module, one) for one in QUERIES if hasattr(module, one)), None)
        if not isinstance(linear, nn.Linear):
            raise WrongValue(
                f"adapt: expected a projection of queries ({', '.join(QUERIES)}) in {name}, got none; pass calibrate=0"
            )
        parts = [linear.weight, linear.bias]
    for part in parts:
        if part is not None:
            each = factors.repeat_interleave(part.shape[0] // len(factors))
            part.mul_(each.view(-1, *[1] * (part.ndim - 1)))


# Distillation


@dataclass
class _Plan:
    read: Callable[[Sequence[int]], Tensor]
    order: list[int]
    start: int
    steps: int
    batch: int
    lr: float

    def rate(self, step: int) -> float:
        return self.lr * min((step + 1) / 10, 0.5 * (1 + math.cos(math.pi * step / max(self.steps, 1))))

    def pixels(self, step: int) -> Tensor:
        first = step * self.batch
        return self.read([self.order[(first + i) % len(self.order)] for i in range(self.batch)])


def _distil(model: nn.Module, teacher: nn.Module, plan: _Plan, saved: _Saved, show: bool) -> None:
    training, wanting = model.training, {p: p.requires_grad for p in model.parameters()}
    model.eval().requires_grad_(True)  # without dropout: the outputs of evaluation are the target
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    saved.restore(plan.start, optimizer, model)
    try:
        with ProgressBar("adapt", plan.steps, initial=plan.start, unit="step", show=show, every=20.0) as bar:
            for step in range(plan.start, plan.steps):
                optimizer.param_groups[0]["lr"] = plan.rate(step)
                loss = _difference(model, teacher, plan.pixels(step))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                bar.what = f"adapt, loss {float(loss.detach()):.4f}"
                bar.update(1)
                if (step + 1) % SAVE_EVERY == 0 or step + 1 == plan.steps:
                    saved.write(step + 1, optimizer, model)
    finally:
        optimizer.zero_grad()
        model.train(training)
        for parameter, wanted in wanting.items():
            parameter.requires_grad_(wanted)


def _difference(model: nn.Module, teacher: nn.Module, pixels: Tensor) -> Tensor:
    with torch.no_grad():
        wanted = teacher(pixel_values=pixels, output_hidden_states=True)
    found = model(pixel_values=pixels, output_hidden_states=True)
    layers = [_relative(a, b) for a, b in zip(found.hidden_states[1:], wanted.hidden_states[1:], strict=True)]
    last, first = found.last_hidden_state, wanted.last_hidden_state
    return torch.stack(layers).mean() + _relative(last, first) + _relative(last[:, :1], first[:, :1])


def _relative(found: Tensor, wanted: Tensor) -> Tensor:
    """The mean over examples of ‖found − wanted‖² / ‖wanted‖²."""
    return ((found - wanted).square().flatten(1).sum(1) / wanted.square().flatten(1).sum(1)).mean()


def _copy_weights(source: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        for into, origin in zip(target.parameters(), source.parameters(), strict=True):
            into.copy_(origin)


class _Saved:
    """The state of an adaptation on disk, in one file; without a directory nothing is kept."""

    def __init__(self, directory: Path | None, settings: dict[str, Any]) -> None:
        self.path = None if directory is None else directory / "adapt.safetensors"
        self.settings = json.dumps(settings, sort_keys=True, default=str)
        self.averages: dict[str, Tensor] = {}

    def read(self, model: nn.Module) -> int:
        """Copy saved weights into the model; return the number of steps that were made."""
        if self.path is None or not self.path.is_file():
            return 0
        safetensors = optional("adapt", "safetensors", "hf")
        with safetensors.safe_open(self.path, "pt") as file:
            about = file.metadata()
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dictionary)
        weights = dict(model.named_parameters())
        shapes = {f"weight/{name}": weight.shape for name, weight in weights.items()}
        if about.get("settings") != self.settings or any(
            key not in state or state[key].shape != shape for key, shape in shapes.items()
        ):
            raise DataError(
                f"adapt: expected the state of this model with {self.settings} in {self.path}, got "
                f"{about.get('settings')}; pass another directory"
            )
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(state[f"weight/{name}"])
        self.averages = state
        return int(about["step"])

    def restore(self, step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        """Give the optimizer its saved averages."""
        for name, weight in model.named_parameters() if self.averages else ():
            saved = {key: self.averages.get(f"{key}/{name}") for key in AVERAGES}
            if all(average is not None for average in saved.values()):
                optimizer.state[weight] = {**saved, "step": torch.tensor(float(step))}
        self.averages = {}

    def write(self, step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        """Replace the state on disk."""
        if self.path is None:
            return
        safetensors = optional("adapt", "safetensors.torch", "hf")
        state = {}
        for name, weight in model.named_parameters():
            state[f"weight/{name}"] = weight.detach().contiguous()
            averages = optimizer.state.get(weight, {})  # none for a parameter that the outputs do not depend on
            state |= {f"{key}/{name}": averages[key].contiguous() for key in AVERAGES if key in averages}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.path) as temporary:
            safetensors.save_file(state, temporary, {"settings": self.settings, "step": str(step)})
