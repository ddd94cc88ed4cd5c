"""Beam search and sampling for any model that scores the next word of a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from foveate.checks import check_number

State: TypeAlias = tuple[Tensor, ...]
# Maps a state and the last tokens (B, K) to scores (B, K, V) of the next ones and the new state, parts (B, K, ...).
Step: TypeAlias = Callable[[State, Tensor], tuple[Tensor, State]]


@dataclass(frozen=True)
class Decoded:
    """K sentences per example, the best first.

    Attributes:
        words: (B, K, T) token ids without bos; a sentence that has ended is padded with eos.
        mask: (B, K, T) True for the tokens before eos.
        log_probabilities: (B, K) of the whole sentence, including eos if it was reached; −inf where there are fewer
            than K sentences.
        scores: (B, K) by which the sentences are ranked.
    """

    words: Tensor
    mask: Tensor
    log_probabilities: Tensor
    scores: Tensor


def beam_search(
    step: Step,
    state: State,
    *,
    bos: int,
    eos: int,
    forbidden: Sequence[int] = (),
    max_words: int = 20,
    beams: int = 1,
    length_penalty: float = 0.0,
    no_repeat: int | None = None,
) -> Decoded:
    """The most probable sentences, found by keeping the best K at every step; the result is approximate.

    score(y_1 … y_T) = log p(y_1 … y_T) / T^penalty,  T counting eos

    At every step, all continuations of the kept sentences compete with the sentences that have ended, which are not
    extended, and the best K are kept. One beam is greedy search; with as many beams as there are sentences the search
    is exhaustive.

    Args:
        step: maps a state and the last tokens to the scores of the next ones, whose softmax is p, and the new state.
        state: before the first token, one or more parts (B, 1, ...).
        bos, eos: token ids.
        forbidden: ids of tokens that are never generated, for instance the other special tokens.
        max_words: sentences are truncated after this many tokens.
        beams: K.
        length_penalty: 0 ranks by probability, which favours short sentences; 1 ranks by the mean over the tokens.
        no_repeat: never generate the same n consecutive tokens twice, for this n; None allows it.

    Returns:
        at most K sentences per example, with T <= max_words.

    >>> likely = torch.tensor([0.6, 0.1, 0.3]).log()  # for every context; 2 is eos
    >>> found = beam_search(lambda s, w: (likely.expand(1, w.shape[1], 3), s), (torch.zeros(1, 1),), bos=1, eos=2,
    ...                     max_words=2, beams=2)
    >>> found.words.tolist(), found.mask.sum(-1).tolist()
    ([[[0, 0], [2, 2]]], [[2, 0]])
    """
    _check("beam_search", max_words=max_words, beams=beams, length_penalty=length_penalty, no_repeat=no_repeat)
    B, device = state[0].shape[0], state[0].device
    words = torch.empty(B, 1, 0, dtype=torch.long, device=device)
    last = torch.full((B, 1), bos, device=device)
    total, lengths = torch.zeros(B, 1, device=device), torch.zeros(B, 1, device=device)
    ended = torch.zeros(B, 1, dtype=torch.bool, device=device)
    while words.shape[-1] < max_words and not bool(ended.all()):
        scores, state = step(state, last)
        following = _log_probabilities(scores, forbidden, words, no_repeat)
        # A sentence that has ended continues with eos only, at log-probability 0, and keeps its score and length.
        following = torch.where(ended[..., None], _only(eos, following), following)
        lengths = lengths + ~ended
        reached = total[..., None] + following
        # One topk over beams and tokens together: the winner's index encodes both, beam · V + token.
        ranked = (reached / lengths[..., None] ** length_penalty).flatten(1)
        best = ranked.topk(min(beams, ranked.shape[1])).indices
        beam, last = best // scores.shape[-1], best % scores.shape[-1]
        state = tuple(_pick(part, beam) for part in state)
        words = torch.cat([_pick(words, beam), last[..., None]], -1)
        total, lengths = reached.flatten(1).gather(1, best), lengths.gather(1, beam)
        ended = ended.gather(1, beam) | (last == eos) | total.isinf()
    return Decoded(words, _before_eos(words, eos), total, total / lengths.clamp(min=1) ** length_penalty)


def sample_words(
    step: Step,
    state: State,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    bos: int,
    eos: int,
    forbidden: Sequence[int] = (),
    max_words: int = 20,
) -> Decoded:
    """Sample sentences word by word: y_t ~ softmax(scores / temperature).

    Args:
        step, bos, eos, forbidden, max_words: as in `beam_search`.
        state: before the first token, one or more parts (B, K, ...), for K sentences per example.
        temperature: below 1 favours likely tokens, above 1 makes the distribution more uniform.
        generator: of the random numbers; None uses torch's global one.

    Returns:
        K sentences per example in the order of sampling; their scores are their log-probabilities at temperature 1.

    >>> likely = torch.tensor([0.6, 0.1, 0.3]).log()
    >>> found = sample_words(lambda s, w: (likely.expand(*w.shape, 3), s), (torch.zeros(1, 4),), bos=1, eos=2,
    ...                      max_words=5, generator=torch.Generator().manual_seed(0))
    >>> found.words.shape[:2]
    torch.Size([1, 4])
    """
    _check("sample_words", max_words=max_words)
    check_number(
        "sample_words", "temperature", temperature, above=0, advice="1 samples from the model's own distribution"
    )
    shape, device = state[0].shape[:2], state[0].device
    words = torch.empty(*shape, 0, dtype=torch.long, device=device)
    last = torch.full(tuple(shape), bos, device=device)
    total = torch.zeros(tuple(shape), device=device)
    ended = torch.zeros(tuple(shape), dtype=torch.bool, device=device)
    while words.shape[-1] < max_words and not bool(ended.all()):
        scores, state = step(state, last)
        following = _log_probabilities(scores, forbidden, words, None)
        drawn = torch.multinomial((following / temperature).softmax(-1).flatten(0, 1), 1, generator=generator)
        last = drawn.reshape(tuple(shape)).masked_fill(ended, eos)
        total = total + following.gather(-1, last[..., None]).squeeze(-1).masked_fill(ended, 0)
        words = torch.cat([words, last[..., None]], -1)
        ended = ended | (last == eos)
    return Decoded(words, _before_eos(words, eos), total, total)


def _log_probabilities(scores: Tensor, forbidden: Sequence[int], words: Tensor, no_repeat: int | None) -> Tensor:
    """Log-probabilities (B, K, V) of the next tokens, −inf for the forbidden ones."""
    following = scores.float().log_softmax(-1)
    if forbidden:
        following = following.index_fill(-1, torch.tensor(list(forbidden), device=scores.device), -math.inf)
    if no_repeat is None or words.shape[-1] < no_repeat:
        return following
    # A token is banned if the last n - 1 tokens occurred before and were followed by it.
    windows = words.unfold(-1, no_repeat, 1)
    prefix = words[..., None, words.shape[-1] - no_repeat + 1 :]
    again = (windows[..., :-1] == prefix).all(-1)
    banned = torch.zeros_like(following).scatter_add(-1, windows[..., -1], again.to(following.dtype)) > 0
    return following.masked_fill(banned, -math.inf)


def _only(eos: int, like: Tensor) -> Tensor:
    """Log-probabilities of a sentence that can only continue with eos."""
    return torch.full_like(like, -math.inf).index_fill(-1, torch.tensor([eos], device=like.device), 0.0)


def _pick(part: Tensor, beam: Tensor) -> Tensor:
    """The rows of a part (B, K, ...) that belong to the kept beams (B, K')."""
    return part[torch.arange(len(part), device=part.device)[:, None], beam]


def _before_eos(words: Tensor, eos: int) -> Tensor:
    return (words == eos).cumsum(-1) == 0


def _check(
    where: str, *, max_words: int, beams: int = 1, length_penalty: float = 0.0, no_repeat: int | None = None
) -> None:
    check_number(where, "max_words", max_words, least=1, advice="20 is enough for most captions")
    check_number(where, "beams", beams, least=1, advice="1 is greedy search, 3 to 5 are usual")
    check_number(where, "length_penalty", length_penalty, least=0, advice="0 ranks by probability")
    if no_repeat is not None:
        check_number(where, "no_repeat", no_repeat, least=1, advice="3 forbids to repeat three consecutive words")
