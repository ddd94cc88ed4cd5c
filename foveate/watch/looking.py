"""Where a model looks: one call for an image and a text, whatever the family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from foveate.errors import ShapeError, UnknownName
from foveate.watch.layouts import Layout
from foveate.watch.model_families import CROSS, DUAL, GENERATE, VISION, Family, family_of, find_layout, need_family
from foveate.watch.places import Setting
from foveate.watch.prompts import make_inputs, read_pixels
from foveate.watch.record import layer_number
from foveate.watch.reductions import (
    Choice,
    normalise,
    over_heads,
    over_layers,
    positive_part,
    relative,
    without_sinks,
)
from foveate.watch.spoken_words import Word, group_words
from foveate.watch.vision_rows import cls_or_mean, relevance_row, rolled_row, window_row
from foveate.watch.watching import watch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEUTRAL = "Describe the image."
METHODS = ("attention", "rollout", "gradient")


@dataclass(frozen=True, eq=False)
class Look:
    """Where a model looked.

    Attributes:
        text: what the model said, or the text that it was asked about.
        words: each word with its attention; one entry when the model makes one map.
        image: (H, W, 3) uint8.
        layers: (L, M, T, N) weights before they were reduced: layers, heads, words, image tokens; for relevance, the
            weights times their gradients where those are positive.
        names: of the L attention modules.
        layout: of the N image tokens.
    """

    text: str
    words: tuple[Word, ...]
    image: np.ndarray
    layers: Tensor
    names: tuple[str, ...]
    layout: Layout

    def plot(self, fit: str | None = None) -> Figure:
        """One image per word under its attention; `fit` names a mechanism that turns it into ellipses."""
        from foveate.plot import strip

        attended = [word.attention if fit is None else word.attention.fit(fit) for word in self.words]
        return strip(self.image, [word.text or "image" for word in self.words], attended)

    def plot_heads(self, word: int = 0) -> Figure:
        """A sheet of the attention of one word: layers from top to bottom, heads from left to right."""
        from foveate.plot import heads

        L, M = self.layers.shape[:2]
        maps = self.layout.attended(normalise(self.layers[:, :, word].flatten(0, 1).float())).map()
        H, W = maps.shape[-2:]
        return heads(self.image, maps.reshape(L, M, H * W), grid=(H, W), title=self.words[word].text or None)


@dataclass(frozen=True)
class Options:
    """How weights become one map per word; see `look`."""

    layers: Sequence[int] | None = None
    heads: Choice = "mean"
    over_layers: Choice = "mean"
    method: str | None = None
    max_new_tokens: int = 32


def look(
    model: nn.Module,
    processor: Any,
    image: Any,
    text: str = "",
    *,
    layers: Sequence[int] | None = None,
    heads: Choice = "mean",
    over: Choice = "mean",
    method: str | None = None,
    relative_to: str | None = None,
    remove_sinks: bool = False,
    max_new_tokens: int = 32,
    grid: tuple[int, int] | None = None,
    tokens: Sequence[int] | None = None,
) -> Look:
    """Where a Hugging Face model looks in an image: every word with its map.

    Models that generate return every generated word with the attention of the step that chose it; dual encoders the
    relevance of the patches for the text; models with cross-attention or a joint sequence a map per word of the text
    (a detector, per object query); vision models one map.

    Args:
        model: a transformers model in evaluation mode.
        processor: of the model, as `AutoProcessor.from_pretrained` returns it.
        image: a path, a PIL image, an array (H, W, 3) or a tensor (3, H, W).
        text: the question, or the text that the image is compared with; a vision model needs none.
        layers: numbers of the layers to use, all that attend to the image when None.
        heads: "mean", "max", the number of a head, or several numbers to average.
        over: how layers are combined: "mean", "max", or positions among the chosen layers.
        method: "attention" (the weights themselves), "rollout" (vision models), "gradient" (relevance for the score of
            a dual encoder); None chooses "gradient" for dual encoders and "attention" for all others.
        relative_to: a neutral prompt such as `foveate.watch.NEUTRAL`, by whose map each word's is divided.
        remove_sinks: remove the locations that attract attention for the neutral prompt too.
        max_new_tokens: length of the generated text.
        grid, tokens: rows and columns of the image's patches and their positions among the keys, for a model of an
            unknown family; such a model is run once and the last query is read.

    Returns:
        A `Look`; `look.words[3].attention` is an `Attended` on the image's own area.
    """
    if method is not None and method not in METHODS:
        raise UnknownName("look method", method, METHODS)
    pixels = read_pixels(image)
    options = Options(layers, heads, over, method, max_new_tokens)
    run = _Run(model, processor, pixels, options, _own_layout(grid, tokens))
    found = run(text)
    if relative_to is not None or remove_sinks:
        found = _against(found, run(relative_to or NEUTRAL, first=True), relative_to is not None, remove_sinks)
    words = tuple(
        Word(word, found.layout.attended(row[None])) for word, row in zip(found.words, found.rows, strict=True)
    )
    return Look(found.text, words, pixels, found.layers, found.names, found.layout)


@dataclass(frozen=True, eq=False)
class _Found:
    """One row of weights (N,) per word, and what they were reduced from."""

    text: str
    words: list[str]
    rows: Tensor
    layers: Tensor
    names: tuple[str, ...]
    layout: Layout


def _against(found: _Found, neutral: _Found, divide: bool, remove: bool) -> _Found:
    rows, base = found.rows, neutral.rows.mean(0)
    if remove:
        rows = without_sinks(rows, base)
        base = without_sinks(base, base)
    return replace(found, rows=relative(rows, base) if divide else rows)


def _own_layout(grid: tuple[int, int] | None, tokens: Sequence[int] | None) -> Layout | None:
    if grid is None and tokens is None:
        return None
    if grid is None or tokens is None:
        raise ShapeError(
            f"look: expected grid=(rows, columns) and tokens=positions together, got {grid} and {tokens}; pass both"
        )
    return Layout.regular(torch.as_tensor(list(tokens)), *grid)


@dataclass(frozen=True)
class _Run:
    """A model, its processor and an image, ready for any text."""

    model: nn.Module
    processor: Any
    pixels: np.ndarray
    options: Options
    layout: Layout | None

    def __call__(self, text: str, first: bool = False) -> _Found:
        """Run the model on a text; with `first` only the first generated token matters."""
        family = family_of(self.model) if self.layout is not None else need_family("look", self.model)
        family = family or Family(
            VISION, r".", lambda setting: setting.inputs["tokens"], lambda setting: torch.empty(0)
        )
        if family.kind != VISION and not text:
            raise ValueError(f"look: expected a text for a model of kind {family.kind!r}, got ''; pass text=")
        inputs = make_inputs(self.model, self.processor, self.pixels, text, family)
        call = _Call(self, family, inputs, text, 1 if first else self.options.max_new_tokens)
        generates = family.kind in (GENERATE, CROSS) and _can_generate(self.model)
        if self.layout is not None:
            return call.custom(self.layout)
        if generates:
            return call.generated()
        return {DUAL: call.relevance, VISION: call.vision}.get(family.kind, call.text_rows)()


@dataclass(frozen=True)
class _Call:
    run: _Run
    family: Family
    inputs: dict[str, Any]
    text: str
    max_new_tokens: int

    def generated(self) -> _Found:
        """Every generated word: the row of the step that chose each of its tokens."""
        model = self.run.model
        columns = self.family.tokens(self._setting())
        columns = columns[0] if columns.ndim == 2 else columns
        with torch.no_grad(), self._through() as bridge, watch(model, self._wanted, -1, columns) as seen:
            ids = model.generate(**self.inputs, max_new_tokens=self.max_new_tokens, do_sample=False)  # type: ignore[operator]
        steps = seen.steps
        names = tuple(dict.fromkeys(row.name for row in steps[0]))
        layers = torch.stack([torch.stack([row.weights[0, :, 0] for row in step]) for step in steps], 2)  # (L, M, T, N)
        layers, layout = self._placed(layers, bridge)
        new = [int(token) for token in ids[0, -len(steps) :]]
        tokenizer = getattr(self.run.processor, "tokenizer", self.run.processor)
        words = group_words(tokenizer, new) or [("", list(range(len(steps))))]
        return self._found(tokenizer.decode(new, skip_special_tokens=True), words, layers, names, layout)

    def text_rows(self) -> _Found:
        """One row per word of the text, or per object query of a detector."""
        model = self.run.model
        with torch.no_grad(), _patch_order(model) as order, watch(model, self._wanted, keep="image") as seen:
            output = model(**self.inputs)
        rows = list({row.name: row for row in reversed(seen.rows)}.values())[::-1]
        layers = torch.stack([row.weights[0] for row in rows])  # (L, M, Q, N)
        inputs = {**self.inputs, **order}
        layout = find_layout(model, inputs, rows[-1].name, size=self.run.pixels.shape[:2], processor=self.run.processor)
        ids = self.inputs.get("input_ids")
        if ids is None:
            words = _best_queries(model, output, layers.shape[2])
        else:
            tokenizer = getattr(self.run.processor, "tokenizer", self.run.processor)
            words = group_words(tokenizer, [int(token) for token in ids[0]])
        return self._found(self.text, words, layers, tuple(row.name for row in rows), layout)

    def vision(self) -> _Found:
        """One map: what the CLS token attends to, or the mean over all patches where there is none."""
        if self.run.options.method == "gradient":
            raise ValueError(
                "look: expected method 'attention' or 'rollout' for a vision model, got 'gradient'; pass one"
            )
        model = self.run.model
        is_rollout = self.run.options.method == "rollout"
        keep = None if is_rollout or self.family.windowed else "image"
        with torch.no_grad(), watch(model, self._wanted, keep=keep) as seen:
            model(**self.inputs)
        rows = [seen[-1]]
        layout = self._layout(rows[0].name)
        if self.family.windowed:
            layers = window_row(rows[0])
        elif is_rollout:
            layers = rolled_row([row.weights for row in seen], layout, self.run.options.heads)
        else:
            pooled = [row for row in seen if row.weights.shape[-2] == 1]
            rows = pooled or list(seen)
            has_prefix = int(layout.tokens.min()) > 0 or bool(pooled)
            layers = torch.stack([cls_or_mean(row.weights[0], has_prefix) for row in rows])
        return self._found(self.text, [(self.text, [0])], layers, tuple(row.name for row in rows), layout)

    def relevance(self) -> _Found:
        """Relevance of the patches for the score of image and text."""
        if self.run.options.method == "attention":
            return self.vision()
        model = self.run.model
        with torch.enable_grad(), watch(model, self._wanted, grad=True) as seen:
            score = model(**self.inputs).logits_per_image[0, 0]
            gradients = torch.autograd.grad(score, [row.weights for row in seen], allow_unused=True)
        pairs = [
            (row.name, row.weights.detach(), gradient.detach())
            for row, gradient in zip(seen, gradients, strict=True)
            if gradient is not None
        ]
        layout = self._layout(pairs[-1][0])
        row = relevance_row([(weights, gradient) for _, weights, gradient in pairs], self.run.options.heads)
        has_prefix = int(layout.tokens.min()) > 0
        layers = torch.stack([cls_or_mean(positive_part(w, g)[0], has_prefix) for _, w, g in pairs])
        rows = normalise(row[layout.tokens])[None]
        names = tuple(name for name, _, _ in pairs)
        return _Found(self.text, [self.text], rows, layers[..., layout.tokens], names, layout)

    def custom(self, layout: Layout) -> _Found:
        """A model of an unknown family: the last query of every layer that has the tokens."""
        with torch.no_grad(), watch(self.run.model, self._wanted, -1, layout.tokens) as seen:
            self.run.model(**self.inputs)
        if not len(seen):
            raise ShapeError(
                f"look: expected attention over at least {int(layout.tokens.max()) + 1} keys, got none; check tokens="
            )
        layers = torch.stack([row.weights[0] for row in seen])
        return self._found(self.text, [(self.text, [0])], layers, tuple(row.name for row in seen), layout)

    def _found(
        self, text: str, words: list[tuple[str, list[int]]], layers: Tensor, names: tuple[str, ...], layout: Layout
    ) -> _Found:
        options = self.run.options
        reduced = over_layers(list(over_heads(layers.float(), options.heads)), options.over_layers)  # (T, N)
        rows = torch.stack([normalise(reduced[positions]).mean(0) for _, positions in words])
        by_word = torch.stack([layers[:, :, positions].float().mean(2) for _, positions in words], 2)
        return _Found(text, [word for word, _ in words], rows, by_word, names, layout)

    def _wanted(self, name: str) -> bool:
        layers = self.run.options.layers
        return self.family.attends(name) and (layers is None or layer_number(name) in layers)

    def _setting(self, name: str = "") -> Setting:
        return Setting(self.run.model.config, self.inputs, self.run.pixels.shape[:2], self.run.processor, name)

    def _layout(self, name: str) -> Layout:
        size = self.run.pixels.shape[:2]
        return find_layout(self.run.model, self.inputs, name, size=size, processor=self.run.processor)

    @contextmanager
    def _through(self) -> Iterator[Callable[[], Tensor | None]]:
        """Watch the modules through which image tokens read the patches, where there are any."""
        if self.family.through is None:
            yield lambda: None
            return
        through = replace(self.family, layers=self.family.through)
        with watch(self.run.model, through.attends) as seen:
            yield lambda: torch.stack([row.weights[0].mean(0) for row in seen]).mean(0)

    def _placed(self, layers: Tensor, bridge: Callable[[], Tensor | None]) -> tuple[Tensor, Layout]:
        layout = find_layout(self.run.model, self.inputs, size=self.run.pixels.shape[:2], processor=self.run.processor)
        read = bridge()
        if read is None:
            return layers, layout
        # Words attend to query tokens, and those to the patches.
        return layers.float() @ read[: layers.shape[-1], layout.tokens], layout


def _can_generate(model: nn.Module) -> bool:
    return callable(getattr(model, "generate", None)) and bool(getattr(model, "can_generate", lambda: True)())


def _best_queries(model: nn.Module, output: Any, count: int, top: int = 5) -> list[tuple[str, list[int]]]:
    """The object queries with the highest scores by their labels, or all as one where the model has no classes."""
    logits = getattr(output, "logits", None)
    if logits is None or logits.shape[1] != count:
        return [("", list(range(count)))]
    score, label = logits[0].softmax(-1)[:, :-1].max(-1)
    labels: dict[int, str] = getattr(model.config, "id2label", {})
    return [(labels[int(label[query])], [int(query)]) for query in score.topk(min(top, count)).indices]


@contextmanager
def _patch_order(model: nn.Module) -> Iterator[dict[str, Tensor]]:
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


__all__ = ["NEUTRAL", "Look", "look"]
