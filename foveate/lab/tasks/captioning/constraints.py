"""The contrastive constraints for captions: attention for a word must be on what that word needs.

Chen et al. 2021 outline them for captions in §4.5. In our version the query of a word is the state that predicts it,
which depends on the word before; the relevance of a context is the probability of the word given that context.
Self-critical training, which optimises the consensus of sampled captions with the references, stands beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.lab.data.vocabulary import BOS, SPECIAL, Vocabulary
from foveate.lab.features import ImageFeatures
from foveate.lab.losses import choose_swaps, content_resourcing, content_swapping
from foveate.lab.models import Captioned, Captioner
from foveate.lab.models.decoding import Decoded
from foveate.lab.tasks.captioning.data import CaptionExample
from foveate.ops.support import above_uniform


@dataclass(frozen=True)
class SampledWords:
    """One word of each of R captions, special tokens and first words excluded; captions without any are left out.

    Attributes:
        model, captioned: the model that read the captions, and its output.
        rows, places: (R,) the captions and the positions in them.
        before, targets: (R,) token ids before these positions, and at them.
        images: (R,) images of the captions.
    """

    model: Captioner
    captioned: Captioned
    rows: Tensor
    places: Tensor
    before: Tensor
    targets: Tensor
    images: Tensor

    @property
    def states(self) -> Tensor:
        """(R, D) queries."""
        return self.captioned.states[self.rows, self.places]

    def relevance(self, states: Tensor, contexts: Tensor) -> Tensor:
        """(R,) probability of the words, from states (R, D) and contexts (R, D)."""
        probability = self.model.next_scores(contexts, states).softmax(-1)
        return probability.gather(-1, self.targets[:, None])[:, 0]


def sample_one_word(
    model: Captioner, captioned: Captioned, tokens: Tensor, targets: Tensor, images: Tensor
) -> SampledWords:
    """Draw one word of each caption at random.

    Args:
        model, captioned: the model that read the captions, and its output.
        tokens, targets: (B, T) token ids that were read, and those that follow them, special tokens included.
        images: (B,) the image of each caption.
    """
    allowed = (tokens >= len(SPECIAL)) & (targets >= len(SPECIAL))
    places = torch.rand(allowed.shape, device=tokens.device).where(allowed, -1.0).argmax(-1)
    rows = allowed.any(-1).nonzero()[:, 0]
    places = places[rows]
    return SampledWords(model, captioned, rows, places, tokens[rows, places], targets[rows, places], images[rows])


def word_resourcing(sampled: SampledWords, *, margin: float = 0.2) -> Tensor:
    """CCR for captions: a word must follow from the attended locations more than from the others.

    A location is attended to if its weight in the output attention is above 1 / n.

    Args:
        sampled: the words.
        margin: γ₂ of `content_resourcing`, in probability.

    Returns:
        a scalar, summed over the words.
    """
    captioned, rows, places = sampled.captioned, sampled.rows, sampled.places
    weights = captioned.image.weights[rows, places]
    mask = None if captioned.image.mask is None else captioned.image.mask[rows]
    return content_resourcing(
        sampled.states[:, None],
        captioned.values[rows],
        captioned.image_scores[rows, places][:, None],
        above_uniform(weights, mask)[:, None],
        margin=margin,
        mask=mask,
        relevance=lambda states, contexts: sampled.relevance(states[:, 0], contexts[:, 0])[:, None],
    )


def word_swapping(sampled: SampledWords, *, margin: float = 0.2) -> Tensor:
    """CCS for captions: the context must make the word more probable than it would be after another word.

    The other word is the most different one drawn for another image; everything before it, and the context, stays.

    Args:
        sampled: the words.
        margin: γ₃ of `content_swapping`, in probability.

    Returns:
        a scalar, summed over the words.
    """
    rows, places = sampled.rows, sampled.places
    swaps = choose_swaps(sampled.model.words(sampled.before), sampled.before, sampled.images)
    others = sampled.model.swapped_states(sampled.captioned, rows, places, sampled.before[swaps.index])
    contexts = sampled.captioned.image.context[rows, places]
    own, swapped = sampled.relevance(sampled.states, contexts), sampled.relevance(others, contexts)
    return content_swapping(own, swapped, swaps.found, margin=margin)


@dataclass(frozen=True)
class SelfCritical:
    """The loss of sampled captions and what they were rated.

    Attributes:
        total: the loss, summed over the captions.
        rewards: (P, S) CIDEr-D of S captions per image.
    """

    total: Tensor
    rewards: Tensor


def self_critical_loss(
    model: Captioner,
    images: ImageFeatures | Tensor,
    sampled: Decoded,
    examples: Sequence[CaptionExample],
    vocabulary: Vocabulary,
) -> SelfCritical:
    """`L = −Σ_p Σ_s (r_ps − mean of the other r_ps') log p(caption ps)`, with r the CIDEr-D of a sampled caption.

    Args:
        model: the captioner that sampled them.
        images: input of its image encoder, P images.
        sampled: S captions per image.
        examples: the images with their references; `rate` holds the idf of the training references.
        vocabulary: of the token ids.

    Reference: Rennie et al. 2017, eq. 8, with the baseline of Luo 2020 (the mean of the other samples).
    """
    P, S, T = sampled.words.shape
    rewards = _rate(sampled, examples, vocabulary)
    advantage = (rewards - rewards.mean(1, keepdim=True)) * (S / (S - 1))
    words, before_eos = sampled.words.flatten(0, 1), sampled.mask.flatten(0, 1)
    before = torch.cat([torch.full_like(words[:, :1], BOS), words[:, :-1]], 1)
    # A position counts if the token before it is no eos: eos itself is a decision of the model.
    counts = torch.cat([torch.ones_like(before_eos[:, :1]), before_eos[:, :-1]], 1)
    index = torch.arange(P, device=words.device).repeat_interleave(S)
    scores = model(images, before, counts, index).scores
    chosen = scores.log_softmax(-1).gather(1, words[counts][:, None])[:, 0]
    weights = advantage.to(scores.device).flatten()[:, None].expand(-1, T)[counts]
    return SelfCritical(-(weights * chosen).sum(), rewards)


def _rate(sampled: Decoded, examples: Sequence[CaptionExample], vocabulary: Vocabulary) -> Tensor:
    """(P, S) CIDEr-D of the sampled captions."""
    rows = []
    for words, mask, example in zip(sampled.words.tolist(), sampled.mask.tolist(), examples, strict=True):
        assert example.rate is not None  # the task attaches it to the examples it trains on
        references = [caption.tokens for caption in example.captions]
        captions = [
            vocabulary.decode([word for word, counted in zip(row, own, strict=True) if counted])
            for row, own in zip(words, mask, strict=True)
        ]
        rows.append([example.rate(caption, references) for caption in captions])
    return torch.tensor(rows)
