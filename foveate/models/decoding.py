"""From scores of the next word to whole sentences: beam search and sampling, for any model that goes word by word."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from foveate.checks import check_number

State: TypeAlias = tuple[Tensor, ...]
# Scores (B, K, V) of the words that follow the words (B, K), and the state after them; state parts are (B, K, ...).
Step: TypeAlias = Callable[[State, Tensor], tuple[Tensor, State]]


@dataclass(frozen=True)
class Decoded:
    """K sentences for each example of a batch, the best first.

    Attributes:
        words: (B, K, T) word numbers without the start mark; after its end a sentence has end marks only.
        mask: (B, K, T) True for the words before the end mark.
        log_probabilities: (B, K) of the whole sentence, its end mark included where that was reached; −inf where there
            are fewer than K sentences.
        scores: (B, K) by which they are ranked.
    """

    words: Tensor
    mask: Tensor
    log_probabilities: Tensor
    scores: Tensor


def beam_search(
    step: Step,
    state: State,
    *,
    start: int,
    end: int,
    never: Sequence[int] = (),
    max_words: int = 20,
    beams: int = 1,
    length_penalty: float = 0.0,
    no_repeat: int | None = None,
) -> Decoded:
    """The most probable sentences, as far as a search that keeps K of them at every word can find them.

    score(y_1 … y_T) = log p(y_1 … y_T) / T^penalty,  T counting the end mark

    At every word all continuations of the kept sentences compete with those sentences that have ended, which are not
    extended, and the K best are kept. One beam is greedy search; with as many beams as there are sentences the search
    is exhaustive.

    Args:
        step: gives the scores of the next words; their softmax is p.
        state: before the first word, one or more parts (B, 1, ...).
        start, end: numbers of the marks.
        never: numbers that are not written, for instance those of the other marks.
        max_words: a sentence that has not ended after so many words is cut off there.
        beams: K.
        length_penalty: 0 ranks by probability, which favours short sentences; 1 by the mean over the words.
        no_repeat: never write the same n words in a row twice, for this n; None allows it.

    Returns:
        at most K sentences an example, T <= max_words.

    >>> likely = torch.tensor([0.6, 0.1, 0.3]).log()  # whatever comes before; 2 is the end mark
    >>> found = beam_search(lambda s, w: (likely.expand(1, w.shape[1], 3), s), (torch.zeros(1, 1),), start=1, end=2,
    ...                     max_words=2, beams=2)
    >>> found.words.tolist(), found.mask.sum(-1).tolist()
    ([[[0, 0], [2, 2]]], [[2, 0]])
    """
    _check("beam_search", max_words=max_words, beams=beams, length_penalty=length_penalty, no_repeat=no_repeat)
    B, device = state[0].shape[0], state[0].device
    words = torch.empty(B, 1, 0, dtype=torch.long, device=device)
    last = torch.full((B, 1), start, device=device)
    total, lengths = torch.zeros(B, 1, device=device), torch.zeros(B, 1, device=device)
    ended = torch.zeros(B, 1, dtype=torch.bool, device=device)
    while words.shape[-1] < max_words and not bool(ended.all()):
        scores, state = step(state, last)
        following = _log_probabilities(scores, never, words, no_repeat)
        # A sentence that has ended goes on with end marks only, which cost nothing.
        following = torch.where(ended[..., None], _only(end, following), following)
        lengths = lengths + ~ended
        reached = total[..., None] + following
        ranked = (reached / lengths[..., None] ** length_penalty).flatten(1)
        best = ranked.topk(min(beams, ranked.shape[1])).indices
        beam, last = best // scores.shape[-1], best % scores.shape[-1]
        state = tuple(_pick(part, beam) for part in state)
        words = torch.cat([_pick(words, beam), last[..., None]], -1)
        total, lengths = reached.flatten(1).gather(1, best), lengths.gather(1, beam)
        ended = ended.gather(1, beam) | (last == end) | total.isinf()
    return Decoded(words, _before(words, end), total, total / lengths.clamp(min=1) ** length_penalty)


def sample_words(
    step: Step,
    state: State,
    *,
    start: int,
    end: int,
    never: Sequence[int] = (),
    max_words: int = 20,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Decoded:
    """Sentences drawn word by word: y_t ~ softmax(scores / temperature).

    Args:
        step, start, end, never, max_words: as in `beam_search`.
        state: before the first word, one or more parts (B, K, ...): K sentences an example.
        temperature: below 1 keeps to likely words, above 1 evens them out.
        generator: of the draws.

    Returns:
        K sentences an example in the order they were drawn; their scores are their log-probabilities at temperature 1.

    >>> likely = torch.tensor([0.6, 0.1, 0.3]).log()
    >>> found = sample_words(lambda s, w: (likely.expand(*w.shape, 3), s), (torch.zeros(1, 4),), start=1, end=2,
    ...                      max_words=5, generator=torch.Generator().manual_seed(0))
    >>> found.words.shape[:2]
    torch.Size([1, 4])
    """
    _check("sample_words", max_words=max_words)
    check_number("sample_words", "temperature", temperature, above=0, advice="1 draws as the model says")
    shape, device = state[0].shape[:2], state[0].device
    words = torch.empty(*shape, 0, dtype=torch.long, device=device)
    last = torch.full(tuple(shape), start, device=device)
    total = torch.zeros(tuple(shape), device=device)
    ended = torch.zeros(tuple(shape), dtype=torch.bool, device=device)
    while words.shape[-1] < max_words and not bool(ended.all()):
        scores, state = step(state, last)
        following = _log_probabilities(scores, never, words, None)
        drawn = torch.multinomial((following / temperature).softmax(-1).flatten(0, 1), 1, generator=generator)
        last = drawn.reshape(tuple(shape)).masked_fill(ended, end)
        total = total + following.gather(-1, last[..., None]).squeeze(-1).masked_fill(ended, 0)
        words = torch.cat([words, last[..., None]], -1)
        ended = ended | (last == end)
    return Decoded(words, _before(words, end), total, total)


def _log_probabilities(scores: Tensor, never: Sequence[int], words: Tensor, no_repeat: int | None) -> Tensor:
    """Log-probabilities (B, K, V) of the next words, −inf for those that must not come."""
    following = scores.float().log_softmax(-1)
    if never:
        following = following.index_fill(-1, torch.tensor(list(never), device=scores.device), -math.inf)
    if no_repeat is None or words.shape[-1] < no_repeat:
        return following
    windows = words.unfold(-1, no_repeat, 1)
    begun = words[..., None, words.shape[-1] - no_repeat + 1 :]
    again = (windows[..., :-1] == begun).all(-1)
    banned = torch.zeros_like(following).scatter_add(-1, windows[..., -1], again.to(following.dtype)) > 0
    return following.masked_fill(banned, -math.inf)


def _only(end: int, like: Tensor) -> Tensor:
    """Log-probabilities of a sentence that can but go on with the end mark."""
    return torch.full_like(like, -math.inf).index_fill(-1, torch.tensor([end], device=like.device), 0.0)


def _pick(part: Tensor, beam: Tensor) -> Tensor:
    """The parts (B, K, ...) of the beams (B, K') that are kept."""
    return part[torch.arange(len(part), device=part.device)[:, None], beam]


def _before(words: Tensor, end: int) -> Tensor:
    return (words == end).cumsum(-1) == 0


def _check(
    where: str, *, max_words: int, beams: int = 1, length_penalty: float = 0.0, no_repeat: int | None = None
) -> None:
    check_number(where, "max_words", max_words, least=1, advice="20 is enough for most captions")
    check_number(where, "beams", beams, least=1, advice="1 is greedy, 3 to 5 are usual")
    check_number(where, "length_penalty", length_penalty, least=0, advice="0 ranks by probability")
    if no_repeat is not None:
        check_number(where, "no_repeat", no_repeat, least=1, advice="3 forbids the same three words twice")
