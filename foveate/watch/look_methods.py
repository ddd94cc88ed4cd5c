"""From one call of a model to a row of weights per word: attention itself, rollout, attention times its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foveate.errors import ShapeError
from foveate.watch.layouts import Layout
from foveate.watch.model_families import CROSS, DUAL, GENERATE, VISION, Family, find_layout
from foveate.watch.places import Setting
from foveate.watch.prompts import group_words
from foveate.watch.record import Record, layer_number
from foveate.watch.reductions import (
    Choice,
    gradient_weighted,
    normalise,
    over_heads,
    over_layers,
    positive_part,
    rollout,
)
from foveate.watch.watching import watch


@dataclass(frozen=True, eq=False)
class Found:
    """One row of weights per word, and the weights it was reduced from.

    Attributes:
        text: what the model said or was asked; empty where the weights do not depend on a text.
        words: T of them.
        rows: (T, N) over the image tokens, sums of 1.
        layers: (L, M, T, N).
        names: of the L modules.
        layout: of the N image tokens.
        said: token ids of a text that the model wrote, None for others.
        incoming: (N,) what all queries of a vision tower together attend to, None for others.
    """

    text: str
    words: list[str]
    rows: Tensor
    layers: Tensor
    names: tuple[str, ...]
    layout: Layout
    said: Said | None = None
    incoming: Tensor | None = None


@dataclass(frozen=True)
class Said:
    """Token ids that a model generated.

    Attributes:
        before: those before them, in the sequence that it continued.
        new: those that it chose.
    """

    before: tuple[int, ...]
    new: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RunCall:
    """A run of foveate, the text that it was asked, empty without one, and what it said."""

    run: Any
    text: str
    said: str


@dataclass(frozen=True, eq=False)
class Call:
    """A model, its inputs for one image and text, and how its weights become one map per word; see `look`.

    Attributes:
        model, processor, family, inputs, text: of the call.
        pixels: the image before the processor.
        layers: numbers of the layers to use, None for all.
        heads, over: how heads and layers are combined.
        best: names of modules, each with a head, to average in place of all heads and layers.
        max_new_tokens: length of a generated text.
        layout: of a model of no known family.
        clip: of several images or of a video.
        said: the text that it wrote, once it has.
    """

    model: nn.Module
    processor: Any
    family: Family
    inputs: dict[str, Any]
    text: str
    pixels: np.ndarray
    layers: frozenset[int] | None = None
    heads: Choice = "mean"
    over: Choice = "mean"
    best: tuple[tuple[str, int], ...] = ()
    max_new_tokens: int = 32
    layout: Layout | None = None
    said: Said | None = None
    clip: Layout | None = None

    def wanted(self, name: str) -> bool:
        """True for a module whose weights are used."""
        if self.best:
            return any(name == module for module, _ in self.best)
        number = layer_number(name)
        return self.family.attends(name) and (self.layers is None or number is None or number in self.layers)

    def find_layout(self, name: str = "", **inputs: Tensor) -> Layout:
        """Where the image tokens of a module lie."""
        if self.clip is not None:
            return self.clip
        size = self.pixels.shape[:2]
        return find_layout(self.model, {**self.inputs, **inputs}, name, size=size, processor=self.processor)

    def found(self, text: str, words: Words, layers: Tensor, names: Sequence[str], layout: Layout) -> Found:
        """The reduction of weights (L, M, Q, N), of which each word takes some rows."""
        if self.best:
            chosen = [layers[names.index(name), head].float() for name, head in self.best]
            reduced = torch.stack(chosen).mean(0)
        else:
            reduced = over_layers(list(over_heads(layers.float(), self.heads)), self.over)  # (Q, N)
        rows = torch.stack([normalise(reduced[positions]).mean(0) for _, positions in words])
        by_word = torch.stack([layers[:, :, positions].float().mean(2) for _, positions in words], 2)
        return Found(text, [word for word, _ in words], rows, by_word, tuple(names), layout)


Words = list[tuple[str, list[int]]]


def attention(call: Call) -> Found:
    """The weights themselves, of whatever attends to the image in the model's family."""
    if call.layout is not None:
        return _last_query(call, call.layout)
    if call.family.kind in (GENERATE, CROSS) and can_generate(call.model):
        return _generated(call)
    return _tower(call) if call.family.kind in (VISION, DUAL) else _text_rows(call)


def rolled(call: Call) -> Found:
    """Attention rollout through all layers of a vision tower."""
    with torch.no_grad(), watch(call.model, call.wanted) as seen:
        call.model(**call.inputs)
    layout = call.find_layout(seen[-1].name)
    square = [row.weights[0] for row in seen if row.weights.shape[-1] == row.weights.shape[-2]]
    joint = rollout([over_heads(weights, call.heads) for weights in square])[:, layout.tokens]
    layers = cls_or_mean(joint[None], has_prefix(layout))[None]
    return call.found("", [("", [0])], layers, [seen[-1].name], layout)


def gradient(call: Call) -> Found:
    """Relevance of the patches for the score of image and text, from the weights and their gradients.

    By the pooling head where there is one, or else the first token.
    """
    with torch.enable_grad(), watch(call.model, call.wanted, grad=True) as seen:
        score = call.model(**call.inputs).logits_per_image[0, 0]
        gradients = torch.autograd.grad(score, [row.weights for row in seen], allow_unused=True)
    rows = zip(seen, gradients, strict=True)
    pairs = {row.name: (row.weights.detach(), found.detach()) for row, found in rows if found is not None}
    square = [pair for pair in pairs.values() if pair[0].shape[-1] == pair[0].shape[-2]]
    total = gradient_weighted([weights for weights, _ in square], [found for _, found in square], call.heads)[0]
    pooled = [over_heads(positive_part(*pair), call.heads)[0] for pair in pairs.values() if pair[0].shape[-2] == 1]
    row = (pooled[-1] @ total if pooled else total[:1])[0]
    layout = call.find_layout(list(pairs)[-1])
    layers = torch.stack([cls_or_mean(positive_part(*pair)[0], has_prefix(layout)) for pair in pairs.values()])
    rows_of_text = normalise(row[layout.tokens])[None]
    return Found(call.text, [call.text], rows_of_text, layers[..., layout.tokens], tuple(pairs), layout)


def cls_or_mean(weights: Tensor, has_prefix: bool) -> Tensor:
    """(M, 1, N): the row of the first token, or the mean over all rows."""
    return weights[:, :1] if has_prefix else weights.mean(1, keepdim=True)


def has_prefix(layout: Layout) -> bool:
    """True where other tokens, the first of them CLS, stand before those of the image."""
    return int(layout.tokens.min()) > 0


def _generated(call: Call) -> Found:
    """Every generated word: the row of the step that chose each of its tokens."""
    setting = Setting(call.model.config, call.inputs, call.pixels.shape[:2], call.processor)
    columns = call.family.tokens(setting) if call.clip is None else call.clip.tokens
    columns = columns[0] if columns.ndim == 2 else columns
    generate: Any = call.model.generate
    with torch.no_grad(), through(call) as bridge, watch(call.model, call.wanted, -1, columns) as seen:
        ids = generate(**call.inputs, max_new_tokens=call.max_new_tokens, do_sample=False)
    steps = seen.steps
    names = list(dict.fromkeys(row.name for row in steps[0]))
    layers = torch.stack([torch.stack([row.weights[0, :, 0] for row in step]) for step in steps], 2)  # (L, M, T, N)
    layout, read = call.find_layout(), bridge()
    if read is not None:  # words attend to query tokens, and those to the patches
        layers = layers.float() @ read[: layers.shape[-1], layout.tokens]
    new = [int(token) for token in ids[0, -len(steps) :]]
    tokenizer = getattr(call.processor, "tokenizer", call.processor)
    words = group_words(tokenizer, new) or [("", list(range(len(steps))))]
    found = call.found(tokenizer.decode(new, skip_special_tokens=True), words, layers, names, layout)
    return replace(found, said=said_by(call, ids[0], len(steps)))


def said_by(call: Call, ids: Tensor, steps: int) -> Said:
    """The token ids of a generated sequence, of which `steps` are new; some models return the new ones alone."""
    sequence = [int(token) for token in ids]
    before = sequence[:-steps]
    if not before and "input_ids" in call.inputs:
        before = call.inputs["input_ids"][0].tolist()
    return Said(tuple(before), tuple(sequence[-steps:]))


def _text_rows(call: Call) -> Found:
    """One row per word of the text, or per object query of a detector."""
    with torch.no_grad(), patch_order(call.model) as order, watch(call.model, call.wanted, keep="image") as seen:
        output = call.model(**call.inputs)
    rows = list({row.name: row for row in reversed(seen.rows)}.values())[::-1]
    layers = torch.stack([row.weights[0] for row in rows])  # (L, M, Q, N)
    layout, ids = call.find_layout(rows[-1].name, **order), call.inputs.get("input_ids")
    if ids is None:
        words = best_queries(call.model, output, layers.shape[2])
    else:
        tokenizer = getattr(call.processor, "tokenizer", call.processor)
        words = group_words(tokenizer, [int(token) for token in ids[0]])
    return call.found(call.text, words, layers, [row.name for row in rows], layout)


def _tower(call: Call) -> Found:
    """One map of a vision tower: what CLS or a pooling head attends to, or the mean over all patches."""
    with torch.no_grad(), watch(call.model, call.wanted, keep=None if call.family.windowed else "image") as seen:
        call.model(**call.inputs)
    layout = call.find_layout(seen[-1].name)
    if call.family.windowed:
        return call.found("", [("", [0])], _windows(seen[-1]), [seen[-1].name], layout)
    pooled = [row for row in seen if row.weights.shape[-2] == 1]
    rows = pooled or list(seen)
    layers = torch.stack([cls_or_mean(row.weights[0], has_prefix(layout) or bool(pooled)) for row in rows])
    return call.found("", [("", [0])], layers, [row.name for row in rows], layout)


def _windows(last: Record) -> Tensor:
    """(1, M, 1, W·n): what is attended to on average in each window of the last layer."""
    weights = last.weights  # (W, M, n, n)
    return weights.mean(2).transpose(0, 1).flatten(1)[None, :, None] / len(weights)


def _last_query(call: Call, layout: Layout) -> Found:
    """A model of an unknown family: the last query of every layer that has the tokens."""
    with torch.no_grad(), watch(call.model, call.wanted, -1, layout.tokens) as seen:
        call.model(**call.inputs)
    if not len(seen):
        raise ShapeError(
            f"look: expected attention over at least {int(layout.tokens.max()) + 1} keys, got none; check tokens="
        )
    layers = torch.stack([row.weights[0] for row in seen])
    return call.found(call.text, [(call.text, [0])], layers, [row.name for row in seen], layout)


@contextmanager
def through(call: Call) -> Iterator[Callable[[], Tensor | None]]:
    """Watch the modules through which image tokens read the patches, where there are any."""
    if call.family.through is None:
        yield lambda: None
        return
    bridge = replace(call.family, layers=call.family.through)
    with watch(call.model, bridge.attends) as seen:
        yield lambda: torch.stack([row.weights[0].mean(0) for row in seen]).mean(0)


def can_generate(model: nn.Module) -> bool:
    return callable(getattr(model, "generate", None)) and bool(getattr(model, "can_generate", lambda: True)())


def best_queries(model: nn.Module, output: Any, count: int, top: int = 5) -> Words:
    """The object queries with the highest scores by their labels, or all as one where the model has no classes."""
    logits = getattr(output, "logits", None)
    if logits is None or logits.shape[1] != count:
        return [("", list(range(count)))]
    score, label = logits[0].softmax(-1)[:, :-1].max(-1)
    labels: dict[int, str] = getattr(model.config, "id2label", {})
    return [(labels[int(label[query])], [int(query)]) for query in score.topk(min(top, count)).indices]


@contextmanager
def patch_order(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """ViLT draws the order of its patches at random: note it while it does."""
    found: dict[str, Tensor] = {}
    owner = next((module for module in model.modules() if hasattr(module, "visual_embed")), None)
    if owner is None:
        yield found
        return
    original: Any = owner.visual_embed

    def noting(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        found["patch_index"] = result[2][0]
        return result

    owner.__dict__["visual_embed"] = noting
    try:
        yield found
    finally:
        del owner.__dict__["visual_embed"]
