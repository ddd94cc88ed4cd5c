"""Where a model looks: one call for an image and a text, whatever the family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from foveate.attention import Attended
from foveate.errors import ShapeError, WrongType, WrongValue
from foveate.plot.heat import select_example
from foveate.registry import lookup
from foveate.watch.layouts import Layout, grid_boxes
from foveate.watch.loading import best_heads, open_model
from foveate.watch.look_methods import Call, Found, RunCall, attention, gradient, rolled
from foveate.watch.model_families import CROSS, DUAL, GENERATE, JOINT, VISION, Family, family_of, need_family
from foveate.watch.modules import attention_modules
from foveate.watch.prompts import make_inputs, read_pixels, reads_text
from foveate.watch.record import layer_number
from foveate.watch.reductions import Choice, normalise, relative, without_sinks
from foveate.watch.relevance import explain_run, input_gradient, integrated, relevance
from foveate.watch.video import (
    Frames,
    fit_length,
    join_inputs,
    joins_images,
    look_at_video,
    read_frames,
    video_family,
    video_inputs,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from foveate.watch.faithful import Faithfulness

NEUTRAL = "Describe the image."
LATE = 3  # a vision model is read in the last third of its layers


@dataclass(frozen=True)
class Method:
    """A row of the table of methods.

    Attributes:
        find: from a call of a model to a row of weights per word.
        kinds: of the families it is for; the first method of a kind is its default.
    """

    find: Callable[[Call], Found]
    kinds: tuple[str, ...]


EVERY = (VISION, GENERATE, CROSS, JOINT, DUAL)
METHODS: dict[str, Method] = {
    "gradient": Method(gradient, (DUAL,)),
    "attention": Method(attention, EVERY),
    "rollout": Method(rolled, (VISION, DUAL)),
    "relevance": Method(relevance, EVERY),
    "gradient-input": Method(input_gradient, EVERY),
    "integrated": Method(integrated, EVERY),
}


@dataclass(frozen=True, eq=False)
class Word:
    """A word and where the model attended for it.

    Attributes:
        text: the word, or what was looked for; empty where the map belongs to the image alone.
        attention: over the image, with a batch of one; `attention.map(h, w)` is in the image's own pixels. Of several
            images or of a video over (T, H, W) together; `frames` are the maps of each.
    """

    text: str
    attention: Attended

    @property
    def frames(self) -> tuple[Attended, ...]:
        """The attention in each of several images, on the image's own area; one for one image."""
        grid, mask = self.attention.grid, self.attention.mask
        if not isinstance(grid, tuple) or len(grid) != 3:
            return (self.attention,)
        size = grid[1] * grid[2]
        masks = [None] * grid[0] if mask is None else list(mask.split(size, -1))
        parts = self.attention.weights.split(size, -1)
        return tuple(
            replace(self.attention, weights=normalise(part), grid=(grid[1], grid[2]), mask=own)
            for part, own in zip(parts, masks, strict=True)
        )

    @property
    def shares(self) -> tuple[float, ...]:
        """The fraction of the attention that each image gets."""
        T = len(self.frames)
        return tuple(self.attention.weights[0].reshape(T, -1).sum(-1).tolist())


@dataclass(frozen=True, eq=False)
class Look:
    """Where a model looked.

    Attributes:
        text: what the model said, or the text that it was asked about; empty where no text makes a difference.
        words: each word with its attention; one entry when the model makes one map.
        image: (H, W, 3) uint8.
        layers: (L, M, T, N) weights before they were reduced: layers, heads, words, image tokens; for relevance, the
            weights times their gradients where those are positive.
        names: of the L attention modules.
        layout: of the N image tokens.
        source: the call that made it, by which `faithfulness` asks again; None for several images.
        frames: several images, or the frames of a video, with their names; None for one image.
    """

    text: str
    words: tuple[Word, ...]
    image: np.ndarray
    layers: Tensor
    names: tuple[str, ...]
    layout: Layout
    source: Call | RunCall | None = None
    frames: Frames | None = None

    def __repr__(self) -> str:
        shown = f"Look({self.text!r}, image {tuple(self.image.shape)}, layers {tuple(self.layers.shape)}"
        few = ", ".join(repr(word.text) for word in self.words[:8]) + (", ..." if len(self.words) > 8 else "")
        return f"{shown},\n  attention of {len(self.words)} words: {few})"

    def faithfulness(self, **options: Any) -> Faithfulness:
        """Does the model use what its maps show? See `foveate.watch.faithful.faithfulness`."""
        from foveate.watch.faithful import faithfulness

        return faithfulness(self, **options)

    def plot(self, fit: str | None = None, *, word: int | None = None) -> Figure:
        """The image, and over it the attention of each word; of several images, each under the attention of one word.

        Args:
            fit: a mechanism that turns each map into ellipses, such as "multimodal".
            word: the number of one word; of several images, None takes the mean over all words.
        """
        from foveate.plot import overlay

        if self.frames is not None:
            titles, attended = self._of_frames(word, fit)
            heading = self.text if word is None else self.words[word].text
            return overlay(list(self.frames.pixels), titles, attended, heading=heading or None, columns=4)
        chosen = self.words if word is None else [self.words[word]]
        maps = [one.attention if fit is None else one.attention.fit(fit) for one in chosen]
        titles = [one.text or "where it looks" for one in chosen]
        return overlay(self.image, titles, maps, heading=self.text if len(titles) > 1 else None)

    def animate(self, path: str | Path, *, word: int | None = None, seconds: float = 0.7) -> Path:
        """Write the frames of a video, or the words about one image, as a GIF or as a page with a slider.

        Args:
            path: a file that ends in .gif or .html.
            word: of several images, the number of one word; None takes the mean over all words.
            seconds: per frame of a GIF.
        """
        from foveate.plot import animate

        if self.frames is None:
            shown = {f"{n + 1}. {one.text}": one.attention for n, one in enumerate(self.words)}
            return animate(self.image, shown, path, seconds=seconds)
        titles, attended = self._of_frames(word, None)
        return animate(list(self.frames.pixels), dict(zip(titles, attended, strict=True)), path, seconds=seconds)

    def _of_frames(self, word: int | None, fit: str | None) -> tuple[list[str], list[Attended]]:
        """Titles and maps of the frames, whose weights are relative to an even spread over all of them."""
        assert self.frames is not None
        chosen = self.words if word is None else [self.words[word]]
        weights = torch.stack([one.attention.weights for one in chosen]).mean(0)
        mean = Word("", replace(chosen[0].attention, weights=weights))
        titles = list(self.frames.names)
        if max(mean.shares) - min(mean.shares) > 1e-3:  # else the model read each image by itself
            titles = [f"{name}: {100 * part:.0f}\u00a0%" for name, part in zip(titles, mean.shares, strict=True)]
        if fit is not None:
            return titles, [one.fit(fit) for one in mean.frames]
        T = len(titles)
        scaled = zip(mean.frames, mean.shares, strict=True)
        return titles, [replace(one, weights=one.weights * part * T) for one, part in scaled]

    def plot_heads(self, word: int = 0, *, frame: int = 0) -> Figure:
        """A sheet of the attention of one word: layers from top to bottom, heads from left to right.

        Args:
            word: its number.
            frame: which of several images.
        """
        from foveate.plot import heads

        L, M = self.layers.shape[:2]
        seen = self.layout.attended(normalise(self.layers[:, :, word].flatten(0, 1).float()))
        H, W = self.layout.grid
        maps = Word("", seen).frames[frame].weights
        image = self.image if self.frames is None else self.frames.pixels[frame]
        return heads(image, maps.reshape(L, M, H * W), grid=(H, W), title=self.words[word].text or None)


def look(
    model: Any,
    image: Any,
    text: str = "",
    *,
    processor: Any = None,
    layers: Sequence[int] | str | None = None,
    heads: Choice | None = None,
    over: Choice = "mean",
    method: str | None = None,
    relative_to: str | None = None,
    remove_sinks: bool = False,
    max_new_tokens: int = 32,
    frames: int | None = None,
    grid: tuple[int, int] | None = None,
    tokens: Sequence[int] | None = None,
) -> Look:
    """Where a model looks in an image: every word with its map.

    Models that generate return every generated word with the attention of the step that chose it; dual encoders the
    relevance of the patches for the text; models with cross-attention or a joint sequence a map per word of the text
    (a detector, per object query); vision models one map. A run of foveate returns the words and maps of its own
    answer, caption or sentence.

    Args:
        model: a transformers model in evaluation mode, a run of foveate, or the name of either: of a model that foveate
            knows, a directory, a repository on the Hugging Face Hub.
        image: a path, a PIL image, an array (H, W, 3) or a tensor (3, H, W). Several images as a list. A video as an
            array (T, H, W, 3), a directory of frames, or a file with several frames, such as a GIF.
        text: the question, or the text that the image is compared with; models that read no text take none.
        processor: of a model that is passed as a network, as `AutoProcessor.from_pretrained` returns it.
        layers: numbers of the layers to use, negative ones from the last. None: the last third for the attention of a
            vision model, and all that attend to the image for others. "best": the heads that an evaluation of the model
            found to ground best (`foveate evaluate-attention` keeps them).
        heads: "mean", "max", "weighted" (by how far each head is from looking everywhere), the number of a head, or
            several numbers to average. None: "weighted" for the attention of a vision model, "mean" for others.
        over: how layers are combined: "mean", "max", or positions among the chosen layers.
        method: a row of METHODS: "attention" (the weights themselves), "rollout" (vision towers), "gradient" (relevance
            for the score of a dual encoder), "relevance" (attention times its gradient, through all layers, for the
            score of each word), "gradient-input" or "integrated" (gradients by the pixels); None chooses "gradient" for
            dual encoders and "attention" for all others.
        relative_to: a neutral prompt such as `foveate.watch.NEUTRAL`, by whose map each word's is divided.
        remove_sinks: remove the locations that attract attention for the neutral prompt too; in a vision model, those
            to which all queries attend.
        max_new_tokens: length of the generated text.
        frames: of a video, take so many, evenly spread; None takes all, at most 64.
        grid, tokens: rows and columns of the image's patches and their positions among the keys, for a model of an
            unknown family; such a model is run once and the last query is read.

    Returns:
        A `Look`; `look.words[3].attention` is an `Attended` on the image's own area.
    """
    several = read_frames(image, frames)
    options: dict[str, Any] = {
        "layers": layers, "heads": heads, "over": over, "method": method, "relative_to": relative_to,
        "remove_sinks": remove_sinks, "max_new_tokens": max_new_tokens,
    }  # fmt: skip
    pixels = None if several is not None else read_pixels(image)
    if isinstance(model, str | Path):
        model, processor = open_model(model)
    if several is not None:
        return _look_at_several(model, several, text, processor, options)
    assert pixels is not None
    if not isinstance(model, nn.Module):
        return _look_of_run(model, pixels, text, method)
    if video_family(model) is not None:
        raise WrongValue(f"look: expected a video for {type(model).__name__}, got one image; pass its frames")
    own = _own_layout(grid, tokens)
    family = need_family("look", model) if own is None else family_of(model) or UNKNOWN
    of_tower = remove_sinks and family.kind == VISION
    _check_model(model, processor, family, text, relative_to is not None or (remove_sinks and not of_tower))
    name = next(key for key, row in METHODS.items() if family.kind in row.kinds) if method is None else method
    row = lookup("look method", name, METHODS)
    if family.kind not in row.kinds:
        known = " or ".join(repr(key) for key, other in METHODS.items() if family.kind in other.kinds)
        raise WrongValue(f"look: expected method {known} for a model of kind {family.kind!r}, got {name!r}; pass one")
    of_image = family.kind == VISION and name == "attention" and own is None
    late = family.kind == VISION and name in ("attention", "rollout") and own is None and not family.windowed
    best = _best(model, heads, name) if layers == "best" else ()
    chosen = None if isinstance(layers, str) else _choose_layers(model, family, layers, late=late)
    combined: Choice = heads if heads is not None else "weighted" if of_image else "mean"

    def find(prompt: str, most: int) -> tuple[Call, Found]:
        inputs = make_inputs(model, processor, pixels, prompt, family)
        call = Call(model, processor, family, inputs, prompt, pixels, chosen, combined, over, best, most, own)
        return call, row.find(call)

    call, found = find(text, max_new_tokens)
    if of_tower:
        found = replace(found, rows=without_sinks(found.rows, found.rows if found.incoming is None else found.incoming))
    elif relative_to is not None or remove_sinks:
        found = _against(found, find(relative_to or NEUTRAL, 1)[1], relative_to is not None, remove_sinks)
    words = tuple(
        Word(word, found.layout.attended(row[None])) for word, row in zip(found.words, found.rows, strict=True)
    )
    source = replace(call, said=found.said)
    return Look(found.text, words, pixels, found.layers, found.names, found.layout, source)


def _look_at_several(model: Any, several: Frames, text: str, processor: Any, options: dict[str, Any]) -> Look:
    """One call for several images where the model reads several, else one for each."""
    row = video_family(model) if isinstance(model, nn.Module) else None
    family = row.family if row is not None else need_family("look", model) if isinstance(model, nn.Module) else None
    if family is None or (row is None and not joins_images(family) and family.kind not in (VISION, DUAL)):
        raise WrongValue(
            f"look: expected one image for {type(model).__name__}, got {len(several.pixels)}; pass them one by one"
        )
    compares = options.pop("relative_to") is not None
    sinks = options.pop("remove_sinks")
    _check_model(model, processor, family, text, compares or sinks)
    if row is None and family.kind in (VISION, DUAL):
        if compares:
            raise WrongValue("look: expected one image with relative_to, got several; pass them one by one")
        each = [
            look(model, pixels, text, processor=processor, remove_sinks=sinks, **options) for pixels in several.pixels
        ]
        return _join_looks(each, several)
    by_gradient = row is not None and family.kind == DUAL and options["method"] in (None, "gradient")
    if compares or sinks or not (by_gradient or options["method"] in (None, "attention")):
        raise WrongValue("look: expected plain attention for several images, got other options; leave them out")
    heads, layers = options["heads"], options["layers"]
    best = _best(model, heads, "attention") if layers == "best" else ()
    chosen = None if isinstance(layers, str) else _choose_layers(model, family, layers, late=family.kind == VISION)
    if row is not None:
        several = fit_length(model, row, several)
        inputs, layout = video_inputs(model, row, processor, several, text)
    else:
        inputs, layout = join_inputs(model, processor, several, text, family)
    combined: Choice = heads if heads is not None else "weighted" if family.kind == VISION else "mean"
    size = several.pixels[0]
    call = Call(model, processor, family, inputs, text, size, chosen, combined, options["over"], best,
                options["max_new_tokens"], clip=layout)  # fmt: skip
    found = attention(call) if row is None else look_at_video(call, row, by_gradient=by_gradient)
    words = tuple(
        Word(word, found.layout.attended(weights[None])) for word, weights in zip(found.words, found.rows, strict=True)
    )
    return Look(found.text, words, size, found.layers, found.names, found.layout, frames=several)


def _join_looks(looks: Sequence[Look], several: Frames) -> Look:
    """One look of several, each of one word: every image gets an even share."""
    first, times = looks[0], [(n, n + 1) for n in range(len(looks))]
    cells, rows = [], []
    for one in looks:
        seen, (H, W) = one.words[0].attention, one.layout.grid
        kept = torch.ones(H * W, dtype=torch.bool) if seen.mask is None else seen.mask[0]
        cells.append(Layout(torch.arange(int(kept.sum())), grid_boxes(H, W)[kept], (H, W)))
        rows.append(seen.weights[:, kept] / len(looks))
    words = (Word(first.words[0].text, Layout.of_frames(cells, times).attended(torch.cat(rows, -1))),)
    layers = torch.cat([normalise(one.layers) / len(looks) for one in looks], -1)
    layout = Layout.of_frames([one.layout for one in looks], times)
    return Look(first.text, words, first.image, layers, first.names, layout, frames=several)


def _best(model: nn.Module, heads: Choice | None, method: str) -> tuple[tuple[str, int], ...]:
    """The heads that an evaluation of the model kept."""
    if heads is not None or method != "attention":
        raise WrongValue('look: expected layers="best" with neither heads nor a method, got one; leave it out')
    return best_heads(model)


# A model of no known family, whose image tokens the caller names.
UNKNOWN = Family(VISION, r".", lambda setting: setting.inputs["tokens"], lambda setting: torch.empty(0))


def _check_model(model: nn.Module, processor: Any, family: Family, text: str, compares: bool) -> None:
    """Raises an error that says what to pass if the model cannot be asked this way."""
    if processor is None:
        raise WrongType("look: expected processor= beside a network, got None; pass its processor, or the model's name")
    if model.training:
        raise WrongValue("look: expected a model in evaluation mode, got one in training mode; call model.eval()")
    if reads_text(model):
        if not text and family is not UNKNOWN:
            raise WrongValue(f"look: expected a text for a model of kind {family.kind!r}, got ''; pass text=")
    elif text or compares:
        what = repr(text) if text else "a neutral prompt to compare with"
        raise WrongValue(f"look: expected no text for {type(model).__name__}, which reads images alone, got {what}")


def _choose_layers(model: nn.Module, family: Family, layers: Sequence[int] | None, late: bool) -> frozenset[int] | None:
    """Numbers of the layers to use, None for all."""
    names = [name for name, _ in attention_modules(model) if family.attends(name)]
    numbers = sorted({number for number in map(layer_number, names) if number is not None})
    if layers is None:
        return frozenset(numbers[-max(len(numbers) // LATE, 1) :]) if late and numbers else None
    known = {**dict(zip(numbers, numbers, strict=True)), **{n - len(numbers): n for n in numbers}}
    wrong = [layer for layer in layers if layer not in known]
    if wrong or not layers:
        raise WrongValue(
            f"look: expected layers among {numbers[0]} … {numbers[-1]}, got {list(layers)}; choose among those that "
            "attend to the image"
        )
    return frozenset(known[layer] for layer in layers)


def _look_of_run(run: Any, pixels: np.ndarray, text: str, method: str | None) -> Look:
    """The words and maps of a run of foveate: of its answer, its caption, or the words of a sentence."""
    calls = ("answer", "look", "caption") if text else ("caption", "answer", "look")
    call = next((name for name in calls if hasattr(run, name)), None)
    if call is None:
        raise WrongType(
            f"look: expected a network, a run that attends to images, or a name, got {type(run).__name__}; pass the "
            "name of a model"
        )
    if not text and call != "caption":
        raise WrongValue(f"look: expected a text for a run with the call {call!r}, got ''; pass text=")
    seen = getattr(run, call)(*(pixels, text) if call != "caption" else (pixels,))
    several = seen.attention.weights.ndim == 3
    texts = list(seen.words) if several else [getattr(seen, "text", text)]
    if not isinstance(seen.attention.grid, tuple) or len(seen.attention.grid) != 2:
        raise ShapeError(f"look: expected a run that attends to a grid, got grid={seen.attention.grid}; use run.{call}")
    parts = [select_example("look", seen.attention, (0, t) if several else 0) for t in range(len(texts))]
    H, W = seen.attention.grid
    layers = torch.stack([part.weights[0] for part in parts])[None, None]
    layout = Layout.regular(torch.arange(H * W), H, W)
    source = RunCall(run, text, " ".join(texts))
    if method not in (None, "attention"):
        maps = explain_run(source, method, pixels, H * W)
        size = (H, W) if maps.ndim == 2 else maps.shape[-2:]
        parts = [Layout.regular(torch.arange(row.numel()), *size).attended(row.flatten()[None]) for row in maps]
    words = tuple(Word(word, part) for word, part in zip(texts, parts, strict=True))
    return Look(" ".join(texts), words, pixels, layers, (call,), layout, source)


def _against(found: Found, neutral: Found, divide: bool, remove: bool) -> Found:
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


__all__ = ["METHODS", "NEUTRAL", "Look", "Method", "Word", "look"]
