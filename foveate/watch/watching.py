"""Watch the attention of any torch model while it runs as it always does."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode, _push_mode

from foveate.attention import Attended, DiscreteAttention, SparseWeights
from foveate.attention.arguments import beside_scores, joint_mask, split_mask
from foveate.attention.streaming import stream, stream_sparse
from foveate.checks import at_least_float32
from foveate.errors import WrongValue
from foveate.watch.calls import (
    SOFTMAX,
    multihead_weights,
    project,
    sdpa_weights,
    softmax_scores,
    unpack_groups,
    weigh,
    with_heads,
)
from foveate.watch.inside import SDPA_ARGUMENTS
from foveate.watch.modules import (
    FUSED,
    OUTER,
    Around,
    add_around,
    attending_inside,
    attends,
    compiled_modules,
    is_changed,
    is_over_tokens,
)
from foveate.watch.record import (
    ColumnTaker,
    Heads,
    Keep,
    Layers,
    Queries,
    Record,
    Records,
    Request,
    check_heads,
    locator,
    module_filter,
)

SEEN = frozenset({weigh, stream, F.scaled_dot_product_attention, *SOFTMAX})
# The watches that a thread runs in, which the copies of its context inherit.
_watches: ContextVar[frozenset[int]] = ContextVar("_watches", default=frozenset())


class _Beside(threading.local):
    """True in a thread that computes weights beside a call of the model, which no watch records."""

    on = False


_beside = _Beside()


@contextmanager
def watch(
    model: nn.Module,
    layers: Layers = None,
    queries: Queries = None,
    keep: Keep = None,
    *,
    heads: Heads | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    grad: bool = False,
) -> Iterator[Records]:
    """Record where a model attends while it runs; its results stay the same bit for bit.

    A torch function mode sees every softmax, `scaled_dot_product_attention` and multi-head call inside the model's
    attention modules. A model that computes with SDPA or flash kernels keeps doing so: the weights of the rows asked
    for are computed beside it. A watch sees the thread it is in, and threads that run in a copy of its context
    (`asyncio.to_thread`, `contextvars.copy_context().run`), not others that use the same model.

    Args:
        model: any torch module.
        layers: which attention modules: numbers (the last number in a module's name), patterns of names such as
            "*language_model*", a function of the name, or None for all.
        queries: which rows of each call: an index such as -1 (the token being generated), a slice or several indices;
            None for all.
        keep: which columns of each call: "image" (the image tokens, found from the model's family and inputs), a slice,
            indices (N,), or indices (B, N) per example with -1 at padding; None for all.
        heads: "mean" or "max" keeps one head, the mean or the largest weight of all; a number or several keep those
            heads; None keeps all.
        dtype, device: of the weights that are kept, those of the call when None; `torch.float16` and "cpu" save memory.
        grad: keep the weights in the graph, so that `torch.autograd.grad` reaches them. Fused calls are then computed
            from their weights, which may change the last digits of the results; needs all rows, columns and heads.

    Yields:
        A sequence of `Record` in the order of the calls, filled while the model runs.

    Warns:
        When attention modules ran without a call that can be seen (compiled code, kernels called directly); they are
        listed in `unseen`.

    >>> attend = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> with watch(attend) as seen:
    ...     _ = attend(*[torch.zeros(1, 3, 8)] * 3)
    >>> seen[0].weights.shape
    torch.Size([1, 2, 3, 3])
    """
    if grad and not (queries is None and keep is None and heads is None):
        raise WrongValue(
            f"watch: expected all rows, columns and heads with grad=True, got queries={queries!r}, keep={keep!r} and "
            f"heads={heads!r}; take the part you need from the gradient"
        )
    check_heads(heads)
    chosen = module_filter(layers)
    locate = locator(model, keep)
    watcher = _Watcher(Request(chosen, queries, locate, heads, dtype, device, grad))
    roots = compiled_modules(model)
    with _wrapped(model, watcher, roots):
        yield watcher.records
    hidden = [name for name in attending_inside(model, roots) if chosen(name)] if watcher.compiled_ran else []
    watcher.records.unseen[:] = list(dict.fromkeys([*watcher.missed, *hidden]))
    if watcher.records.unseen:
        warnings.warn(_unseen_message(watcher.records.unseen), stacklevel=3)


@dataclass(slots=True)
class _Running:
    """A module that is running, and the number of attention calls seen inside it so far."""

    name: str
    module: nn.Module
    calls: int = 0


@dataclass(slots=True)
class _Scope:
    """A watch in one thread: the modules that run, and whether its mode is on the thread's stack of modes."""

    stack: list[_Running] = field(default_factory=list)
    listens: bool = False


@dataclass
class _Watcher:
    """One watch: the running modules of each of its threads, and what was recorded.

    The function mode costs time on every torch call, attention or not. A module's first run is always listened to; one
    that holds attention modules and made no attention call of its own in that run is not listened to later, except
    inside the modules it holds. The mode keeps its place among other modes: it is left alone when another one lies
    above it.
    """

    request: Request
    records: Records = field(default_factory=Records)
    missed: list[str] = field(default_factory=list)
    inputs: dict[str, Any] = field(default_factory=dict)
    take: ColumnTaker = field(default_factory=ColumnTaker)
    passes: int = 0
    compiled_ran: bool = False
    callers: set[str] = field(default_factory=set)  # modules that made a call of their own
    known: set[str] = field(default_factory=set)  # modules that ran
    scopes: dict[int, _Scope] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mode, self.owner = _Mode(self), threading.get_ident()
        self.scopes[self.owner] = _Scope()

    def scope(self) -> _Scope | None:
        """The watch in the thread that asks, None for a thread that is not its own."""
        thread = threading.get_ident()
        if thread == self.owner or id(self) in _watches.get():
            return self.scopes.setdefault(thread, _Scope())
        return None

    def run(self, scope: _Scope, name: str, held: Sequence[nn.Module], forward: Callable[[], Any]) -> Any:
        """Run the forward of a module, which holds the attention modules `held`, with the mode on or off."""
        wanted = not held or name in self.callers or name not in self.known or any(map(is_changed, held))
        turns = not scope.listens if wanted else scope.listens and _get_current_function_mode() is self.mode
        if turns:
            self._switch(scope)
        try:
            result = forward()
        finally:
            if turns:
                self._switch(scope)
        self.known.add(name)
        return result

    def _switch(self, scope: _Scope) -> None:
        if scope.listens:
            _pop_mode()
        else:
            _push_mode(self.mode)
        scope.listens = not scope.listens

    def module(self, only_attention: bool) -> tuple[str, nn.Module] | None:
        """The innermost running module, or the innermost one that attends by its class name."""
        scope = self.scope()
        for running in reversed(scope.stack if scope else ()):
            if not only_attention or attends(running.module):
                self.callers.add(running.name)
                return running.name, running.module
        return None

    def wants(self, name: str, module: nn.Module) -> bool:
        """True when the weights of a module are to be kept."""
        return self.request.chosen(name) and is_over_tokens(module)

    def seen(self) -> None:
        """Count a call for every module that is running."""
        scope = self.scope()
        for running in scope.stack if scope else ():
            running.calls += 1

    def note(self, name: str, weights: Tensor, rows: Tensor | None, Q: int, via: str) -> None:
        """Keep the weights (B, M, Q, N) of a call, of which `rows` are computed."""
        index = torch.arange(Q) if rows is None else rows
        columns, key_count = None, weights.shape[-1]
        if self.request.locate is not None:
            columns = self.request.locate(name, self.inputs, key_count)
            if columns is None:
                return
            weights = self.take(weights, columns)
        weights = self.request.over_heads(name, weights)
        if not self.request.grad:
            # A view would keep the whole tensor alive.
            weights = weights.detach().to(device=self.request.device, dtype=self.request.dtype, copy=True)
        self._add(name, weights, index, columns, key_count, via)

    def note_sparse(self, name: str, weights: SparseWeights, Q: int) -> None:
        """Keep all the weights of a call that streamed."""
        device, dtype = self.request.device, self.request.dtype
        kept = SparseWeights(
            weights.indices.to(device), weights.weights.to(device=device, dtype=dtype), weights.key_count
        )
        self._add(name, kept, torch.arange(Q), None, weights.key_count, "foveate")

    def _add(
        self,
        name: str,
        kept: Tensor | SparseWeights,
        queries: Tensor,
        columns: Tensor | None,
        key_count: int,
        via: str,
    ) -> None:
        # A model that generates by a part of itself never runs as a whole: each call of a module is then one step.
        step = self.passes - 1 if self.passes else sum(row.name == name for row in self.records.rows)
        self.records.rows.append(Record(name, kept, step, queries, columns, key_count, via))


class _Mode(TorchFunctionMode):
    """Sees the calls that attend; every call is passed on unchanged."""

    def __init__(self, watcher: _Watcher) -> None:
        super().__init__()
        self.watcher = watcher
        self.reads = not watcher.request.grad  # attention that streams has no weights for a gradient to reach

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the call and note its weights."""
        kwargs = kwargs or {}
        if func not in SEEN or _beside.on:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            call = {**dict(zip(SDPA_ARGUMENTS, args, strict=False)), **kwargs}
            if self.watcher.request.grad:
                return self._from_weights(call)
            result = func(*args, **kwargs)
            self._note_sdpa(call)
            return result
        result = func(*args, **kwargs)
        if func is stream:
            if result is not None:
                self._note_stream(*args)
        elif func is weigh:
            self._note_result(result, "foveate")
        elif softmax_scores(func, args, kwargs) is not None:
            self._note_result(result, "softmax")
        return result

    def _note_result(self, weights: Tensor, via: str) -> None:
        found = self.watcher.module(only_attention=via == "softmax")
        if found is None:
            return
        name, module = found
        self.watcher.seen()
        if not self.watcher.wants(name, module):
            return
        weights = with_heads(weights, module)
        if isinstance(getattr(module, "sinks", None), Tensor):
            weights = weights[..., :-1]  # the last column is a learned sink, not a token
        Q = weights.shape[-2]
        rows = self.watcher.request.rows(Q)
        weights = weights if rows is None else weights.index_select(-2, rows.to(weights.device))
        self.watcher.note(name, weights, rows, Q, via)

    def _note_sdpa(self, call: dict[str, Any]) -> None:
        found = self._caller()
        if found is None:
            return
        name, module = found
        call = unpack_groups(module, {key: value for key, value in call.items() if value is not None})
        Q = call["query"].shape[-2]
        rows = self.watcher.request.rows(Q)
        if rows is not None and not len(rows):
            return
        with torch.no_grad(), _computed_beside():
            weights = sdpa_weights(**call, rows=rows)
        self.watcher.note(name, with_heads(weights, module), rows, Q, "sdpa")

    def _note_stream(
        self,
        where: str,
        attend: DiscreteAttention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        dropout: float,
        is_causal: bool,
        scale: float | None,
    ) -> None:
        """Keep the weights of attention that streamed: the supports, or the rows that were asked for."""
        found = self._caller()
        if found is None:
            return
        (name, module), Q, request = found, query.shape[-2], self.watcher.request
        rows = request.rows(Q)
        if rows is not None and not len(rows):
            return
        with torch.no_grad(), _computed_beside():
            if rows is None and request.locate is None and request.heads is None and query.ndim == 4:
                sparse = stream_sparse(where, attend, query, key, value, mask, 0.0, is_causal, scale)
                if sparse is not None:
                    self.watcher.note_sparse(name, SparseWeights(sparse[1], sparse[2], key.shape[-2]), Q)
                    return
            if is_causal:
                mask = torch.ones(Q, key.shape[-2], dtype=torch.bool, device=query.device).tril()
            if rows is not None:
                index = rows.to(query.device)
                query = query.index_select(-2, index)
                mask = mask if mask is None or mask.ndim < 2 or mask.shape[-2] == 1 else mask.index_select(-2, index)
            groups = query.shape[-3] // key.shape[-3] if query.ndim > 2 else 1
            keys = key.repeat_interleave(groups, -3) if groups > 1 else key
            scores = at_least_float32(query) @ at_least_float32(keys).transpose(-1, -2)
            scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
            scores, keep = split_mask(scores, mask)
            weights = attend.weigh(scores, None, beside_scores(scores, keep)).to(query.dtype)
        self.watcher.note(name, with_heads(weights, module), rows, Q, "foveate")

    def _from_weights(self, call: dict[str, Any]) -> Tensor:
        """The result of SDPA by way of its weights, so that a gradient reaches them."""
        call = {key: value for key, value in call.items() if value is not None}
        weights, value = sdpa_weights(**call), call["value"]
        found = self._caller()
        if found is not None:
            self.watcher.note(found[0], weights, None, weights.shape[-2], "sdpa")
        if call.get("enable_gqa"):
            value = value.repeat_interleave(weights.shape[-3] // value.shape[-3], -3)
        result: Tensor = F.dropout(weights, call.get("dropout_p", 0.0)) @ value
        return result

    def _caller(self) -> tuple[str, nn.Module] | None:
        """The module whose call this is, None when it is not watched."""
        found = self.watcher.module(only_attention=True) or self.watcher.module(only_attention=False)
        if found is None:
            return None
        self.watcher.seen()
        return found if self.watcher.wants(*found) else None


@contextmanager
def _computed_beside() -> Iterator[None]:
    before, _beside.on = _beside.on, True
    try:
        yield
    finally:
        _beside.on = before


@contextmanager
def _wrapped(model: nn.Module, watcher: _Watcher, roots: Sequence[str]) -> Iterator[None]:
    """Run every module through the watcher, so that it knows which one is running."""
    inside = tuple(f"{root}." if root else "" for root in roots)
    with ExitStack() as undo:
        for name, module in model.named_modules():
            if name not in roots and inside and name.startswith(inside):
                continue  # compiled code runs no Python of ours
            if not attends(module) and module is not model and next(module.children(), None) is None:
                continue  # a linear layer or a norm: a call inside it would belong to the module around it
            around = _around_compiled(watcher) if name in roots else _around(module, name, watcher, module is model)
            undo.callback(add_around(module, around, OUTER))
        _watches.set(_watches.get() | {id(watcher)})
        undo.callback(lambda: _watches.set(_watches.get() - {id(watcher)}))
        yield


def _around_compiled(watcher: _Watcher) -> Around:
    """A compiled module runs outside the mode, which the compiler would otherwise trace."""

    def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        watcher.compiled_ran |= watcher.scope() is not None
        with torch._C.DisableTorchFunction():
            return forward(*args, **kwargs)

    return run


def _around(module: nn.Module, name: str, watcher: _Watcher, is_top: bool) -> Around:
    names, held = inspect.signature(module.forward), held_attention(module)
    watches = is_top or attends(module) or isinstance(module, FUSED)

    def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        scope = watcher.scope()
        if scope is None:
            return forward(*args, **kwargs)
        if is_top:
            watcher.passes += 1
            watcher.inputs = named_arguments(names, args, kwargs, watcher.inputs)
        running = _Running(name, module)
        scope.stack.append(running)
        try:
            # Inside the mode torch's own modules avoid their fused path; they are watched from outside instead.
            if isinstance(module, FUSED) and not is_changed(module):
                if watcher.request.grad and isinstance(module, nn.MultiheadAttention):
                    return _multihead_with_grad(watcher, name, module, dict(names.bind(*args, **kwargs).arguments))
                with torch._C.DisableTorchFunction():
                    result = forward(*args, **kwargs)
            else:
                result = watcher.run(scope, name, held, lambda: forward(*args, **kwargs))
            if watches:
                _after(watcher, running, result, names, args, kwargs)
            return result
        finally:
            scope.stack.pop()

    return run


def held_attention(module: nn.Module) -> list[nn.Module]:
    """The attention modules that a module holds; none when it attends itself."""
    if _listens(module):
        return []
    return [part for part in module.modules() if _listens(part)]


def _listens(module: nn.Module) -> bool:
    return attends(module) or isinstance(module, FUSED)


def _after(watcher: _Watcher, running: _Running, result: Any, names: inspect.Signature, args: Any, kwargs: Any) -> None:
    """Record what is known only once a module has run, and notice attention without a call."""
    name, module = running.name, running.module
    if isinstance(module, nn.MultiheadAttention) and not is_changed(module):
        watcher.seen()
        if watcher.wants(name, module):
            _note_multihead(watcher, name, module, dict(names.bind(*args, **kwargs).arguments))
    elif running.calls:
        return
    elif isinstance(result, Attended):
        watcher.seen()
        if watcher.wants(name, module):
            _note_attended(watcher, name, result)
    elif (attends(module) or isinstance(module, FUSED)) and watcher.request.chosen(name):
        watcher.missed.append(name)
        watcher.seen()  # named once, by the innermost module


def _note_multihead(watcher: _Watcher, name: str, module: nn.MultiheadAttention, call: dict[str, Any]) -> None:
    query = call["query"]
    Q = query.shape[-2 if module.batch_first or query.ndim == 2 else 0]
    rows = watcher.request.rows(Q)
    if rows is not None and not len(rows):
        return
    with torch.no_grad(), torch._C.DisableTorchFunction():
        weights = multihead_weights(module, call, rows)
    watcher.note(name, weights, rows, Q, "multihead")


def _multihead_with_grad(watcher: _Watcher, name: str, module: nn.MultiheadAttention, call: dict[str, Any]) -> Any:
    """Run a multi-head module by way of its weights: those that torch returns are a copy no gradient reaches."""
    if module.bias_k is not None or module.add_zero_attn:
        raise WrongValue(
            f"watch: expected multi-head attention without bias_k and add_zero_attn with grad=True, got {name}; watch "
            "without grad"
        )
    query, key, value = project(module, call["query"], call["key"], call["value"])
    mask = joint_mask(call.get("attn_mask"), call.get("key_padding_mask"), module.num_heads)
    with torch._C.DisableTorchFunction():  # its softmax would be seen as one more call
        weights = sdpa_weights(query, key, value, mask)
    watcher.seen()
    watcher.note(name, weights, None, weights.shape[-2], "multihead")
    context = module.out_proj((weights @ value).transpose(1, 2).flatten(2))
    averaged = weights.mean(1) if call.get("average_attn_weights", True) else weights
    result = context if module.batch_first else context.transpose(0, 1)
    return result, averaged if call.get("need_weights", True) else None


def _note_attended(watcher: _Watcher, name: str, attended: Attended) -> None:
    """An attention of foveate: its own weights, (B, ..., N) with any query axes as rows."""
    weights = attended.weights
    weights = weights.reshape(len(weights), 1, -1, weights.shape[-1]) if weights.ndim != 4 else weights
    Q = weights.shape[-2]
    rows = watcher.request.rows(Q)
    weights = weights if rows is None else weights.index_select(-2, rows.to(weights.device))
    watcher.note(name, weights, rows, Q, "foveate")


def named_arguments(names: inspect.Signature, args: Any, kwargs: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a forward pass by name; those of an earlier one where a step of generation leaves them out."""
    try:
        bound = names.bind(*args, **kwargs).arguments
    except TypeError:
        return dict(before)  # the call itself raises a better message
    found = {**bound, **bound.get("kwargs", {})}
    tensors = {name: value for name, value in found.items() if value is not None and name != "past_key_values"}
    # In later steps of generation `input_ids` is only the new token: the image stands where the first pass had it.
    return {**tensors, **before} if "input_ids" in before else {**before, **tensors}


def _unseen_message(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"watch: expected an attention call that Python can see in every attention module, got none in {shown}; use an "
        'uncompiled model with attn_implementation="sdpa" or "eager", and for torch.nn.TransformerEncoderLayer '
        "torch.backends.mha.set_fastpath_enabled(False)"
    )
