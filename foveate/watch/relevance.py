"""Relevance: how much every image token raised a score, through all layers of a model.

Attention weights say what was read; weighted by the gradient of a score, layer upon layer, they say what it changed.
The rivals that need no attention, integrated gradients and gradient times input, stand at the end.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foveate.checks import check_counts, check_shape
from foveate.errors import ShapeError
from foveate.registry import lookup
from foveate.watch.calls import sdpa_weights, unpack_groups, with_heads
from foveate.watch.faithful import Asked, ask
from foveate.watch.inside import around_attention, unfused
from foveate.watch.look_methods import Call, Found, RunCall, can_generate, has_prefix, patch_order, said_by, through
from foveate.watch.model_families import CROSS, GENERATE, JOINT
from foveate.watch.modules import INNER, add_around, attention_modules, is_over_tokens
from foveate.watch.places import Setting
from foveate.watch.reductions import Choice, normalise, over_heads, positive_part
from foveate.watch.watching import watch

TEXT, IMAGE = "text", "image"
STEPS = 16  # of integrated gradients
# From the side of the queries to the side of the keys: how relevant each key was to each query.
Explain: TypeAlias = Callable[..., Tensor]
Relevances: TypeAlias = dict[tuple[str, str], Tensor]
_OF_IMAGE = re.compile(r"vis|image|r_layers")


@dataclass(eq=False)
class Link:
    """One attention call between the tokens of a model, once a score was differentiated.

    Attributes:
        name: of the module.
        queries, keys: how many there are.
        mean: (Q, N) the positive part of weights times gradient, over the heads as they are combined.
        rows: (M, R, N) the same of every head, of the rows asked for only.
    """

    name: str
    queries: int
    keys: int
    mean: Tensor | None = None
    rows: Tensor | None = None


@dataclass(eq=False)
class Links:
    """The calls of one forward pass, in order; `differentiate` fills them for a score.

    Of every call only the reduction over heads is kept, (Q, N). Under SDPA no weights exist before the gradient passes
    the call: they are computed there, used and dropped.

    Attributes:
        calls: of the pass.
        heads: how heads are combined, as in `over_heads`.
        rows: of which each head is kept too.
        steps: the calls are those of a generation with a cache, whose rows are counted from its first token.
    """

    heads: Choice
    calls: list[Link]
    anchor: Tensor
    rows: tuple[int, ...] = ()
    scale: float = 1.0
    steps: bool = False

    def differentiate(self, score: Tensor, rows: Sequence[int] = (0,), again: bool = False) -> None:
        """Fill `mean` and `rows` of every call for a scalar score; with `again` another score may follow."""
        self.rows = tuple(rows)
        for call in self.calls:
            call.mean = call.rows = None
        # The gradients of half precision would underflow.
        self.scale = 1024.0 if score.dtype == torch.float16 else 1.0
        if score.requires_grad:
            scale = torch.full_like(score, self.scale)
            torch.autograd.grad(score, self.anchor, scale, retain_graph=again, allow_unused=True)

    def note(self, call: Link, part: Tensor, reached: Tensor | None = None) -> None:
        """Take the positive part (1, M, Q, N) of a call, or that of the queries which the gradient reached."""
        part = part[0]
        mean = over_heads(part, self.heads)
        if reached is not None:
            mean = mean.new_zeros(call.queries, call.keys).index_copy_(0, reached, mean)
            part = part.new_zeros(len(part), call.queries, call.keys).index_copy_(1, reached, part)
        call.mean = mean / self.scale
        if self.steps:
            start = call.keys - call.queries
            call.rows = part[:, [min(max(row - start, 0), call.queries - 1) for row in self.rows]] / self.scale
        else:
            call.rows = part[:, [row % call.queries for row in self.rows]] / self.scale

    @property
    def filled(self) -> list[Link]:
        """The calls on which the score depended; those of a module in the steps of a generation as one."""
        filled = [call for call in self.calls if call.mean is not None]
        if not self.steps:
            return filled
        size, whole = max(call.keys for call in self.calls), dict[str, Link]()
        for call in filled:
            assert call.mean is not None
            assert call.rows is not None
            one = whole.setdefault(call.name, Link(call.name, size, size))
            if one.mean is None or one.rows is None:
                one.mean, one.rows = call.mean.new_zeros(size, size), call.rows.new_zeros(*call.rows.shape[:2], size)
            start = call.keys - call.queries
            one.mean[start : call.keys, : call.keys] = call.mean
            here = [number for number, row in enumerate(self.rows) if start <= row < call.keys]
            one.rows[:, here, : call.keys] = call.rows[:, here]
        return list(whole.values())


@contextmanager
def linked(model: nn.Module, wanted: Callable[[str], bool], heads: Choice = "mean") -> Iterator[Links]:
    """Run one example through a model so that `Links.differentiate` reaches the attention of the wanted modules.

    The model computes with its own kernels. Meanwhile no parameter needs a gradient, so that nothing below the first
    wanted module is kept for the way back.

    >>> attend = nn.MultiheadAttention(8, 2, batch_first=True).requires_grad_(False)
    >>> with linked(attend, lambda name: True) as links:
    ...     out = attend(*[torch.randn(1, 3, 8)] * 3)[0]
    >>> links.differentiate(out.sum())
    >>> links.calls[0].mean.shape
    torch.Size([3, 3])
    """
    links = Links(heads, [], torch.zeros((), requires_grad=True))
    with ExitStack() as undo, torch.enable_grad(), _frozen(model):
        for part in model.modules():
            if isinstance(part, nn.TransformerEncoderLayer):
                undo.callback(add_around(part, unfused, INNER))
        for name, module in attention_modules(model):
            if wanted(name) and is_over_tokens(module):
                own = _Joined(links, name, module)
                undo.callback(add_around(module, around_attention(module, own.attend, own.weights), INNER))
        yield links


_FREEZING = threading.Lock()
_FROZEN: WeakKeyDictionary[nn.Module, tuple[int, list[nn.Parameter]]] = WeakKeyDictionary()


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No parameter needs a gradient until the last of several threads has left."""
    with _FREEZING:
        count, parameters = _FROZEN.get(model, (0, [one for one in model.parameters() if one.requires_grad]))
        _FROZEN[model] = count + 1, parameters
        for one in parameters:
            one.requires_grad_(False)
    try:
        yield
    finally:
        with _FREEZING:
            count = _FROZEN.pop(model)[0] - 1
            if count:
                _FROZEN[model] = count, parameters
            else:
                for one in parameters:
                    one.requires_grad_()


@dataclass
class _Joined:
    """The calls of one module, joined to the graph of the anchor."""

    links: Links
    name: str
    module: nn.Module

    def attend(self, call: dict[str, Any]) -> Tensor:
        given = {name: value for name, value in call.items() if value is not None and name != "dropout_p"}
        shape = given["query"].shape[:-1]
        given = unpack_groups(self.module, given)
        query, key, value = (given.pop(name) for name in ("query", "key", "value"))
        link = self._link(query.shape[-2], key.shape[-2])
        result: Tensor = _Fused.apply(  # type: ignore[no-untyped-call]
            self.links.anchor,
            query,
            key,
            value,
            given,
            lambda part, reached: self.links.note(link, with_heads(part, self.module), reached),
        )
        return result.reshape(*shape, -1)

    def weights(self, scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        weights = softmax(scores)
        link = self._link(*weights.shape[-2:])

        def note(weights: Tensor, gradient: Tensor) -> None:
            part = positive_part(weights.float(), gradient.float())
            self.links.note(link, with_heads(part, self.module))

        result: Tensor = _Seen.apply(self.links.anchor, weights, note)  # type: ignore[no-untyped-call]
        return result

    def _link(self, queries: int, keys: int) -> Link:
        self.links.calls.append(Link(self.name, queries, keys))
        return self.links.calls[-1]


class _Seen(torch.autograd.Function):
    """Weights as they are, whose gradient is noted."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, weights: Tensor, note: Callable[[Tensor, Tensor], None]) -> Tensor:
        """The weights."""
        ctx.save_for_backward(weights)
        ctx.note = note
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Note the gradient and pass it on."""
        ctx.note(*ctx.saved_tensors, gradients[0])
        return gradients[0].new_zeros(()), gradients[0], None


class _Fused(torch.autograd.Function):
    """Scaled dot-product attention by torch's kernel; its weights are computed when the gradient comes."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any], note: Any
    ) -> Tensor:
        """The context."""
        mask = options.pop("attn_mask", None)
        ctx.save_for_backward(query, key, value, mask)
        ctx.options, ctx.note = options, note
        return F.scaled_dot_product_attention(query, key, value, mask, **options)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Compute the weights of the queries that the score depends on, note their gradient, and pass the others on."""
        query, key, value, mask = ctx.saved_tensors
        (gradient,) = gradients
        used = (gradient != 0).any(-1).flatten(0, -2).any(0).nonzero()[:, 0]
        reached = used if 0 < len(used) < query.shape[-2] else None
        if reached is not None:
            gradient = gradient.index_select(-2, reached)
        weights = sdpa_weights(query, key, value, mask, **ctx.options, rows=reached)
        group = weights.shape[-3] // value.shape[-3] if ctx.options.get("enable_gqa") else 1
        by_weights = gradient @ _repeated(value, group).mT
        found: list[Tensor | None] = [None, None, None]
        if any(ctx.needs_input_grad[1:4]):  # not at the first layer that is wanted
            scale = ctx.options.get("scale") or query.shape[-1] ** -0.5
            by_scores = torch.ops.aten._softmax_backward_data(by_weights, weights, -1, weights.dtype)
            chosen = query if reached is None else query.index_select(-2, reached)
            by_query = (by_scores @ _repeated(key, group)).mul_(scale)
            if reached is not None:
                by_query = torch.zeros_like(query).index_copy_(-2, reached, by_query)
            found = [by_query, _summed(by_scores.mT @ (chosen * scale), group), _summed(weights.mT @ gradient, group)]
        ctx.note(by_weights.float().mul_(weights).clamp_(min=0), reached)
        return gradient.new_zeros(()), *found, None, None


def _repeated(x: Tensor, group: int) -> Tensor:
    """Keys or values for every head of the queries, of which `group` share one."""
    return x if group == 1 else x.repeat_interleave(group, -3)


def _summed(x: Tensor, group: int) -> Tensor:
    """The gradient of what `_repeated` took."""
    return x if group == 1 else x.unflatten(-3, (-1, group)).sum(-3)


def relevant_row(links: Sequence[Link], rows: Sequence[int]) -> Tensor:
    """The relevance (N,) of every token for a score read at some rows, in a stack of self-attention.

    r = e (I + Ā_L) ... (I + Ā_1),  e the mean over the rows, Ā = mean over heads of max(0, ∇A ⊙ A)

    the row of R ← R + Ā R (equations 5 and 6), computed from the last layer on as vectors. A last call with one query
    of its own (a pooling head) is where the row begins.

    Args:
        links: of one forward pass and score.
        rows: positions of the tokens at which the score is read.

    Reference: Chefer et al. 2021.

    >>> link = Link("attn", 2, 2, torch.tensor([[0.0, 0.5], [0.0, 0.0]]))
    >>> relevant_row([link, link], [0]).tolist()
    [1.0, 1.0]
    """
    square = [link.mean for link in links if link.mean is not None and link.queries == link.keys]
    pooled = [link.mean for link in links if link.mean is not None and link.queries == 1 < link.keys]
    if not square:
        raise ShapeError("relevance: expected layers of self-attention, got none; choose other layers")
    size = square[0].shape[-1]
    row = pooled[-1][0] if pooled else torch.zeros(size, device=square[0].device)
    if not pooled:
        row[[place % size for place in rows]] = 1 / len(rows)
    for mean in reversed(square):
        row = row + row @ mean
    return row


def relevances(links: Sequence[Link], *, attends_image: Callable[[str], bool]) -> Relevances:
    """The relevance of text and image tokens to each other, in a model with cross-attention.

    Self-attention: R^ss ← R^ss + Ā R^ss, R^sq ← R^sq + Ā R^sq (equations 6 and 7). Cross-attention from s to q:
    R^sq ← R^sq + (R̄^ss)ᵀ Ā R̄^qq, R^ss ← R^ss + Ā R^qs (10 and 11), R̄ = I + (R − I) / row sums (8 and 9). The two
    directions of one layer use what was there before both.

    Args:
        links: of one forward pass and score.
        attends_image: True for the names of modules in which text attends to the image (or both to each other).

    Reference: Chefer et al. 2021.
    """
    cross = next((link for link in links if attends_image(link.name)), None)
    if cross is None:
        raise ShapeError("relevance: expected a call in which text attends to the image, got none; choose other layers")
    sizes = {TEXT: cross.queries, IMAGE: cross.keys}
    like = next(link.mean for link in links if link.mean is not None)
    found: Relevances = {
        (a, b): torch.eye(sizes[a], device=like.device)
        if a == b
        else torch.zeros(sizes[a], sizes[b], device=like.device)
        for a in sizes
        for b in sizes
    }
    for group in _parallel(links, sizes, attends_image):
        added: Relevances = {}
        for mean, s, q in group:
            if s == q:
                for other in sizes:
                    added[s, other] = mean @ found[s, other]
            else:
                added[s, q] = _self_normalised(found[s, s]).T @ mean @ _self_normalised(found[q, q])
                added[s, s] = mean @ found[q, s]
        for pair, more in added.items():
            found[pair] = found[pair] + more
    return found


def _parallel(
    links: Sequence[Link], sizes: dict[str, int], attends_image: Callable[[str], bool]
) -> list[list[tuple[Tensor, str, str]]]:
    """Calls with the sides of their queries and keys; the two directions of one cross-attention go together."""
    groups: list[list[tuple[Tensor, str, str]]] = []
    decodes = any("decoder" in link.name for link in links)
    before: tuple[str, str] | None = None
    for link in links:
        if link.mean is None or not {link.queries, link.keys} <= set(sizes.values()):
            continue
        reads = _OF_IMAGE.search(link.name) or (decodes and "decoder" not in link.name)
        sides = _sides(link, sizes, attends_image, before, IMAGE if reads else TEXT)
        if before is not None and sides[0] != sides[1] and before == sides[::-1]:
            groups[-1].append((link.mean, *sides))
            before = None
        else:
            groups.append([(link.mean, *sides)])
            before = sides
    return groups


def _sides(
    link: Link,
    sizes: dict[str, int],
    attends_image: Callable[[str], bool],
    before: tuple[str, str] | None,
    by_name: str,
) -> tuple[str, str]:
    """To which side queries and keys belong: by their number, and by name where both sides have as many tokens."""
    if sizes[TEXT] != sizes[IMAGE]:
        by_size = {size: side for side, size in sizes.items()}
        return by_size[link.queries], by_size[link.keys]
    if attends_image(link.name):
        return (IMAGE, TEXT) if before == (TEXT, IMAGE) else (TEXT, IMAGE)
    return by_name, by_name


def _self_normalised(relevance: Tensor) -> Tensor:
    """R̄ = I + (R − I) / its row sums, rows of zeros staying zero."""
    eye = torch.eye(len(relevance), device=relevance.device)
    rest = relevance - eye
    total = rest.sum(-1, keepdim=True)
    return eye + rest / total.where(total > 0, 1)


def relevance(call: Call) -> Found:
    """How much every image token raised the score of each word, through all layers.

    The score of a word is the logit of each of its tokens above the best other one, read in one pass over the prompt
    and the words; of a class or a detection its logit above the best other; of an image and a text their similarity.
    One stack of self-attention is read by `relevant_row`, models with cross-attention by `relevances`.
    """
    crosses = call.family.kind == CROSS
    wanted = (lambda name: True) if crosses else call.wanted
    stepwise = _generated(call)
    with patch_order(call.model) as order, through(call) as bridge:
        if stepwise is None:
            asked = _asked(call)
            inputs = asked.inputs()
            with linked(call.model, wanted, call.heads) as links:
                margins = asked.margins(call.model(**inputs))
        else:
            asked, links, margins = stepwise
    call = asked.call
    name = next((one.name for one in reversed(links.calls) if call.wanted(one.name)), "")
    layout = call.find_layout(name, **order)
    columns = layout.tokens
    read = bridge()
    if read is not None:  # the words attend to query tokens, and those to the patches
        setting = Setting(call.model.config, call.inputs, call.pixels.shape[:2], call.processor)
        columns = call.family.tokens(setting)
        columns = columns[0] if columns.ndim == 2 else columns
        read = read[: len(columns), layout.tokens].detach().float()
    found, heads = [], []
    places = [[0] if has_prefix(layout) else list(range(len(layout.tokens)))] if asked.is_whole else []
    for number, (_, rows) in enumerate(asked.words):
        rows = rows if not places or call.family.kind == JOINT else places[0]
        if links.steps and call.said is not None:
            rows = [len(call.said.before) + len(call.said.new) + row for row in rows]
        with torch.enable_grad():  # also where the caller needs none
            score = margins[number]
        links.differentiate(score, rows, again=number + 1 < len(asked.words))
        reached = links.filled
        filled = [link for link in reached if call.wanted(link.name) and link.keys > int(columns.max())]
        if crosses:
            table = relevances(reached, attends_image=call.family.attends)
            row = table[TEXT, IMAGE][[place % table[TEXT, IMAGE].shape[0] for place in rows]].mean(0)
        else:
            row = relevant_row(filled, rows)
        every = torch.stack([link.rows.mean(1) for link in filled if link.rows is not None])[..., columns]
        row = row[columns]
        found.append(row if read is None else row @ read)
        heads.append(every if read is None else every @ read)
    names = tuple(link.name for link in filled)
    words = [word for word, _ in asked.words]
    stacked = normalise(torch.stack(found).clamp(min=0))
    return Found(_text_of(call), words, stacked, torch.stack(heads, 2), names, layout, call.said)


def _generated(call: Call) -> tuple[Asked, Links, Tensor] | None:
    """What a model with one stack and a cache writes, with the graph of its own passes, so that none is repeated.

    None where its calls are not those of a plain cache: the words are then read in a further pass.
    """
    model, logits = call.model, list[Tensor]()
    if call.family.kind != GENERATE or call.family.through is not None or not can_generate(model):
        return None

    def around(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            output = forward(*args, **kwargs)
            logits.append(output.logits[:, -1:])
        return output

    with linked(model, call.wanted, call.heads) as links, ExitStack() as undo:
        undo.callback(add_around(model, around, INNER))
        asked = _asked(call)
    said = asked.call.said
    assert said is not None
    n, T = len(said.before), len(said.new)
    plain = all(one.queries == one.keys == n or (one.queries == 1 and n < one.keys < n + T) for one in links.calls)
    if len(logits) != T or not links.calls or not plain:
        return None
    links.steps = True
    with torch.enable_grad():
        return asked, links, asked.margins(SimpleNamespace(logits=torch.cat([*logits, logits[-1]], 1)))


def input_gradient(call: Call) -> Found:
    """The gradient of each word's score by the pixels times the pixels, its positive part summed over each token."""
    return _by_pixels(call, gradient_times_input)


def integrated(call: Call) -> Found:
    """Integrated gradients of each word's score, their positive part summed over each token."""
    return _by_pixels(call, partial(integrated_gradients, steps=STEPS))


def explain_run(source: RunCall, method: str, shown: np.ndarray, N: int) -> Tensor:
    """The maps (T, N) or (T, H, W) of a run's T words by another method than its own attention.

    Args:
        source: the run and what it said.
        method: "relevance", "gradient-input" or "integrated"; of features where the run reads them from a store.
        shown: (H, W, 3) uint8.
        N: locations that the run attends to.
    """
    lookup("method of a run", method, RUN_METHODS)
    images = source.run.read_images([shown])
    pixels = images.float() if isinstance(images, Tensor) else images.values

    def scores(x: Tensor) -> Tensor:
        read = x if isinstance(images, Tensor) else replace(images, values=x)
        found: Tensor = source.run.scores_of(read, source.text, source.said)
        return found

    with torch.enable_grad():
        return RUN_METHODS[method](source, scores, pixels, N)


def _run_relevance(source: RunCall, scores: Callable[[Tensor], Tensor], x: Tensor, N: int) -> Tensor:
    """Equations 5 and 6 over the image's own layers, from the last attention of words or answer to the image.

    Of that last one the gradient is taken along the simplex, `∇A − Σ A ∇A`, which is that of its scores.
    """
    with watch(source.run.model, grad=True) as seen:
        found = scores(x)[0]
    # Weights without a head axis are recorded as a view, which no gradient reaches; what they view is reached.
    reached = [one.weights if one.weights._base is None else one.weights._base for one in seen]
    if not any(one.requires_grad and one.shape[-1] == N for one in reached):
        raise ShapeError(
            "look: expected a run with attention whose weights a gradient reaches, got none; use "
            "method='gradient-input'"
        )
    rows = []
    for t, score in enumerate(found):
        again = t + 1 < len(found)
        gradients = torch.autograd.grad(score, reached, allow_unused=True, retain_graph=again)
        used = [
            (one.weights[0], g.reshape(one.weights.shape)[0])
            for one, g in zip(seen, gradients, strict=True)
            if g is not None
        ]
        # Weights of a pooling sum to one, so that a constant in their gradient means nothing; that of values of one
        # sign would hide all else.
        centred = [(w, g if w.shape[-2] == N else g - (w * g).sum(-1, keepdim=True)) for w, g in used]
        means = [positive_part(w, g).detach().mean(0) for w, g in centred if w.shape[-1] == N]
        last = next(mean for mean in reversed(means) if len(mean) != N)  # of the answer or the words
        row = last[t] if len(last) == len(found) else last.mean(0)
        for mean in reversed(means):
            row = row + row @ mean if mean.shape == (len(row), len(row)) else row
        rows.append(row)
    return torch.stack(rows)


def _run_pixels(explain: Explain, source: RunCall, scores: Callable[[Tensor], Tensor], x: Tensor, N: int) -> Tensor:
    """Gradients by the pixels, whose baseline is the mean colour, or by the features, whose baseline is zero."""
    maps = []
    with torch.no_grad():
        T = scores(x).shape[1]
    for t in range(T):
        if x.ndim == 4:
            maps.append(explain(lambda y, t=t: scores(y)[:, t], x, baseline=x.mean((2, 3), keepdim=True))[0])
        else:
            maps.append(explain(lambda y, t=t: scores(y.mT)[:, t], x.mT, baseline=None)[0])
    return torch.stack(maps).clamp(min=0)


def _asked(call: Call) -> Asked:
    """What the model says, generated first where it generates."""
    if call.layout is not None or call.family.windowed:
        raise ShapeError(
            f"look: expected a model of a known family without windows for method 'relevance' or a gradient, got "
            f"{type(call.model).__name__}; use method='attention'"
        )
    if call.family.kind in (GENERATE, CROSS) and can_generate(call.model):
        generate: Any = call.model.generate
        with torch.no_grad():
            made = generate(
                **call.inputs, max_new_tokens=call.max_new_tokens, do_sample=False, output_logits=True,
                return_dict_in_generate=True,
            )  # fmt: skip
        call = replace(call, said=said_by(call, made.sequences[0], len(made.logits)))
    return ask(call)


def _by_pixels(call: Call, explain: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]) -> Found:
    asked = _asked(call)
    call = asked.call
    inputs = asked.inputs()
    with torch.no_grad(), patch_order(call.model) as order:
        asked.margins(call.model(**inputs))
    layout = call.find_layout("", **order)
    pixels = inputs["pixel_values"]
    flat = pixels.ndim == 2  # one row per patch, as Qwen-VL takes them
    if pixels.ndim != (2 if flat else 4) or (not flat and len(pixels) != 1):
        raise ShapeError(
            f"look: expected pixel_values of one image without tiles, got {tuple(pixels.shape)}; use another method"
        )
    found = []
    for number in range(len(asked.words)):

        def score(x: Tensor, number: int = number) -> Tensor:
            values = x[0].T if flat else x
            return asked.margins(call.model(**{**inputs, "pixel_values": values}))[number][None]

        cells = explain(score, pixels.T[None] if flat else pixels).clamp(min=0)
        found.append(_over_tokens(cells[0].float(), len(layout.tokens)))
    rows = normalise(torch.stack(found))
    words = [word for word, _ in asked.words]
    return Found(_text_of(call), words, rows, rows[None, None], ("pixel_values",), layout, call.said)


def _over_tokens(cells: Tensor, N: int) -> Tensor:
    """(N,) the sum over the patch of each token of values (H, W) of pixels, or (n,) of the parts of patches."""
    if cells.ndim == 1 and len(cells) % N == 0:
        return cells.reshape(N, -1).sum(-1)
    if cells.ndim == 2:
        H, W = cells.shape
        h = round((N * H / W) ** 0.5)
        if h and N % h == 0:
            return F.adaptive_avg_pool2d(cells[None], (h, N // h)).flatten()
    raise ShapeError(
        f"look: expected {N} tokens in a grid over the pixels, got {tuple(cells.shape)}; use another method"
    )


def _text_of(call: Call) -> str:
    if call.said is None:
        return call.text
    tokenizer = getattr(call.processor, "tokenizer", call.processor)
    text: str = tokenizer.decode(list(call.said.new), skip_special_tokens=True)
    return text


def gradient_times_input(
    score: Callable[[Tensor], Tensor], images: Tensor, *, baseline: Tensor | None = None
) -> Tensor:
    """The gradient of a score by every pixel times its distance from a baseline, (B, H, W), summed over channels.

    Args:
        score: from images (B, C, H, W) to (B,), with gradients.
        images: (B, C, H, W).
        baseline: what broadcasts to the images and stands for nothing; zeros when None.

    Reference: Shrikumar et al. 2016.

    >>> gradient_times_input(lambda x: (x**2).sum((1, 2, 3)), torch.full((1, 1, 1, 1), 3.0)).item()
    18.0
    """
    start = torch.zeros_like(images) if baseline is None else baseline.to(images).expand_as(images)
    return (_gradient(score, images) * (images - start)).sum(1)


def integrated_gradients(
    score: Callable[[Tensor], Tensor], images: Tensor, *, baseline: Tensor | None = None, steps: int = 32
) -> Tensor:
    """Integrated gradients, (B, H, W), summed over channels: its sum is the score minus that of the baseline.

    (x − x₀) ∫ ∇score(x₀ + a (x − x₀)) da over a from 0 to 1, by the midpoints of equal steps.

    Args:
        score, images, baseline: as in `gradient_times_input`.
        steps: of the integral, each one forward and backward pass.

    Reference: Sundararajan et al. 2017.

    >>> integrated_gradients(lambda x: (x**2).sum((1, 2, 3)), torch.full((1, 1, 1, 1), 3.0)).item()
    9.0
    """
    check_counts("integrated_gradients", steps=steps)
    start = torch.zeros_like(images) if baseline is None else baseline.to(images).expand_as(images)
    places = [(step + 0.5) / steps for step in range(steps)]
    total = torch.stack([_gradient(score, torch.lerp(start, images, place)) for place in places]).mean(0)
    return (total * (images - start)).sum(1)


RUN_METHODS: dict[str, Callable[[RunCall, Callable[[Tensor], Tensor], Tensor, int], Tensor]] = {
    "relevance": _run_relevance,
    "gradient-input": partial(_run_pixels, gradient_times_input),
    "integrated": partial(_run_pixels, partial(integrated_gradients, steps=STEPS)),
}


def _gradient(score: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    with torch.enable_grad():
        x = images.detach().requires_grad_()
        found = score(x)
        check_shape("gradient", "the result of score", found, (len(images),), "(B,), one number per image")
        return torch.autograd.grad(found.sum(), x)[0]
