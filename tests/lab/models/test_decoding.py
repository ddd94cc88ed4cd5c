"""Beam search against greedy and exhaustive search written out, and sampling against the probabilities."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from foveate.lab.models.decoding import Decoded, beam_search, sample_words

BOS, EOS, V = 0, 1, 4


class Toy:
    """A model whose next word depends on all words before: the state is a number that the words mix up."""

    def __init__(self, B: int = 1, seed: int = 0, sharp: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = sharp * torch.randn(B, 97, V, generator=generator)
        self.asked: list[tuple[int, ...]] = []

    def state(self, beams: int = 1) -> tuple[torch.Tensor, ...]:
        return (torch.zeros(len(self.table), beams, dtype=torch.long),)

    def step(self, state: tuple[torch.Tensor, ...], words: torch.Tensor):
        self.asked.append(tuple(words.shape))
        mixed = (state[0] * 5 + words + 1) % 97
        rows = torch.arange(len(self.table))[:, None]
        return self.table[rows, mixed], (mixed,)

    def log_probability(self, b: int, sentence: tuple[int, ...]) -> float:
        """Of a whole sentence, word by word."""
        mixed, last, total = 0, BOS, 0.0
        for word in sentence:
            mixed = (mixed * 5 + last + 1) % 97
            total += self.table[b, mixed].log_softmax(-1)[word].item()
            last = word
        return total


def sentences(T: int) -> list[tuple[int, ...]]:
    """All sentences of the words 2, 3: ended within T words, or cut off after T."""
    ended = [(*body, EOS) for n in range(T) for body in itertools.product((2, 3), repeat=n)]
    return ended + list(itertools.product((2, 3), repeat=T))


def search(toy: Toy, **options) -> Decoded:
    given = {"bos": BOS, "eos": EOS, "forbidden": (BOS,), "max_words": 4} | options
    return beam_search(toy.step, toy.state(), **given)


def written(found: Decoded, b: int, k: int = 0) -> tuple[int, ...]:
    """A sentence with its end mark, if it has one."""
    words = found.words[b, k].tolist()
    return tuple(words[: words.index(EOS) + 1] if EOS in words else words)


@pytest.mark.parametrize("seed", range(5))
def test_one_beam_is_greedy(seed: int) -> None:
    toy = Toy(B=3, seed=seed)
    found = search(toy, max_words=6)
    for b in range(3):
        mixed, last, sentence = 0, BOS, []
        while len(sentence) < 6 and last != EOS:
            mixed = (mixed * 5 + last + 1) % 97
            scores = toy.table[b, mixed].clone()
            scores[BOS] = -math.inf
            last = int(scores.argmax())
            sentence.append(last)
        assert written(found, b) == tuple(sentence)


@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_wide_enough_it_is_exhaustive(seed: int, penalty: float) -> None:
    toy = Toy(B=2, seed=seed)
    found = search(toy, beams=40, length_penalty=penalty)
    for b in range(2):
        ranked = sorted(sentences(4), key=lambda s: -toy.log_probability(b, s) / len(s) ** penalty)
        count = len(ranked)
        assert [written(found, b, k) for k in range(count)] == ranked
        slow = torch.tensor([toy.log_probability(b, s) for s in ranked])
        torch.testing.assert_close(found.log_probabilities[b, :count], slow)
        lengths = torch.tensor([float(len(s)) for s in ranked])
        torch.testing.assert_close(found.scores[b, :count], slow / lengths**penalty)


def test_the_best_comes_first() -> None:
    scores = search(Toy(B=3), beams=5, length_penalty=0.5).scores
    assert torch.equal(scores, scores.sort(-1, descending=True).values)


def test_length_penalty_decides_between_short_and_long() -> None:
    likely = torch.tensor([-9.0, 0.30, 0.40, 0.30])
    likely = torch.cat([likely[:1], likely[1:].log()])
    lengths = []
    for penalty in (0.0, 2.0):
        found = beam_search(
            lambda s, w: (likely.expand(*w.shape, V), s),
            (torch.zeros(1, 1),),
            bos=BOS,
            eos=EOS,
            max_words=3,
            beams=20,
            length_penalty=penalty,
        )
        lengths.append(int(found.mask[0, 0].sum()))
    assert lengths == [0, 3]


def test_finished_sentences_are_not_extended() -> None:
    # one sentence ends at once, the other after the word 2; after eos the model would be sure of the word 3
    first, after_end, then = (torch.full((V,), -20.0) for _ in range(3))
    first[EOS], first[2], after_end[3], then[EOS] = 1.0, 0.5, 20.0, 20.0
    steps = []

    def step(state, words):
        steps.append(words.clone())
        scores = torch.where((words == BOS)[..., None], first, then)
        return torch.where((words == EOS)[..., None], after_end, scores), state

    found = beam_search(step, (torch.zeros(1, 1),), bos=BOS, eos=EOS, max_words=9, beams=2)
    assert len(steps) == 2
    assert found.words.tolist() == [[[EOS, EOS], [2, EOS]]]
    assert found.mask.tolist() == [[[False, False], [True, False]]]
    torch.testing.assert_close(found.log_probabilities[0], first.log_softmax(-1)[[EOS, 2]])


def test_an_ended_sentence_keeps_its_score_while_others_go_on() -> None:
    toy = Toy(seed=3)
    found = search(toy, beams=6, max_words=7)
    for k in range(6):
        torch.testing.assert_close(
            found.log_probabilities[0, k].item(), toy.log_probability(0, written(found, 0, k)), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("beams", [1, 3])
def test_batch_and_single_give_the_same(beams: int) -> None:
    toy = Toy(B=4)
    whole = search(toy, beams=beams)
    for b in range(4):
        alone = Toy(B=4)
        alone.table = toy.table[b : b + 1]
        assert written(search(alone, beams=beams), 0) == written(whole, b)


@pytest.mark.parametrize("n", [1, 2])
def test_no_ngram_comes_twice(n: int) -> None:
    repeats = 0
    for seed in range(6):
        toy = Toy(seed=seed, sharp=3.0)
        toy.table[..., EOS] = -20.0
        for no_repeat in (None, n):
            found = search(toy, beams=2, max_words=7, no_repeat=no_repeat)
            body = [word for word in written(found, 0) if word != EOS]
            grams = [tuple(body[i : i + n]) for i in range(len(body) - n + 1)]
            again = len(grams) - len(set(grams))
            assert no_repeat is None or again == 0
            repeats += again
    assert repeats > 0


def test_words_that_are_never_written() -> None:
    toy = Toy(B=3)
    assert (search(toy, beams=4, forbidden=()).words == 2).any()
    assert not (search(toy, beams=4, forbidden=(BOS, 2)).words[..., 0, :] == 2).any()


def test_fewer_sentences_than_beams_are_marked() -> None:
    found = search(Toy(), beams=50, max_words=1)
    assert found.words.shape[1] <= 50
    assert found.log_probabilities.isfinite().sum() == 3


def test_samples_follow_the_probabilities() -> None:
    likely = torch.tensor([-math.inf, 0.2, 0.5, 0.3])
    likely = torch.cat([likely[:1], likely[1:].log()])

    def step(state, words):
        return likely.expand(*words.shape, V), state

    def draw(seed: int, **options) -> Decoded:
        generator = torch.Generator().manual_seed(seed)
        return sample_words(
            step, (torch.zeros(1, 4000),), bos=BOS, eos=EOS, max_words=1, generator=generator, **options
        )

    shares = torch.bincount(draw(0).words.flatten(), minlength=V) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.0, 0.2, 0.5, 0.3]), atol=0.03, rtol=0)
    assert torch.equal(draw(1).words, draw(1).words)
    assert not torch.equal(draw(1).words, draw(2).words)
    cold = torch.bincount(draw(0, temperature=0.1).words.flatten(), minlength=V) / 4000
    assert cold[2] > 0.95
    assert not (draw(0, forbidden=(2,)).words == 2).any()


def test_samples_end_and_know_their_probability() -> None:
    toy = Toy(B=2, seed=1)
    found = sample_words(
        toy.step, toy.state(5), bos=BOS, eos=EOS, max_words=5, generator=torch.Generator().manual_seed(0)
    )
    for b, k in itertools.product(range(2), range(5)):
        sentence = written(found, b, k)
        assert all(word == EOS for word in found.words[b, k, len(sentence) :])
        assert found.mask[b, k].sum() == len(sentence) - (EOS in sentence)
        expected = toy.log_probability(b, sentence)
        assert found.log_probabilities[b, k].item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_words": 0}, "beam_search: expected max_words >= 1, got 0"),
        ({"beams": 0}, "beam_search: expected beams >= 1, got 0"),
        ({"length_penalty": -1.0}, "beam_search: expected length_penalty >= 0, got -1.0"),
        ({"no_repeat": 0}, "beam_search: expected no_repeat >= 1, got 0"),
    ],
)
def test_refuses(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(Toy(), **options)


def test_refuses_a_temperature_of_zero() -> None:
    toy = Toy()
    with pytest.raises(ValueError, match="sample_words: expected temperature > 0, got 0"):
        sample_words(toy.step, toy.state(), bos=BOS, eos=EOS, temperature=0)
