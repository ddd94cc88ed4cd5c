"""Self-critical training: captions that a model samples are rated by CIDEr-D, each against the others of its image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.lab.data.vocabulary import BOS, Vocabulary
from foveate.lab.features import ImageFeatures
from foveate.lab.models import Captioner
from foveate.lab.models.decoding import Decoded
from foveate.lab.tasks.captioning.data import CaptionExample


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
