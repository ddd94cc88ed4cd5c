"""The contrastive constraints for captions: attention for a word must be on what that word needs.

Chen et al. 2021 outline them for captions in §4.5. In our version the query of a word is the state that predicts it,
which depends on the word before; the relevance of a context is the probability of the word given that context.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.lab.data.vocabulary import SPECIAL
from foveate.lab.losses import choose_swaps, content_resourcing, content_swapping
from foveate.lab.models import Captioned, Captioner
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
