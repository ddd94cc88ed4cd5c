"""The contrastive constraints for captions: what was looked at for a word must be what that word needs.

Chen et al. 2021 sketch them for captions in §4.5. Ours: a word is asked by the state that thinks of it, which the word
before it has shaped; the relevance of what was read is the probability that it gives to the word that came.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.data.vocabulary import SPECIAL
from foveate.losses import choose_swaps, content_resourcing, content_swapping
from foveate.models import Captioned, Captioner


@dataclass(frozen=True)
class DrawnWords:
    """One word of each of R captions, marks and first words left out; captions without any have none.

    Attributes:
        model, captioned: that read the captions, and what it returned.
        rows, places: (R,) the captions and the places in them.
        before, targets: (R,) the words before these places and those that came there.
        pictures: (R,) of the captions.
    """

    model: Captioner
    captioned: Captioned
    rows: Tensor
    places: Tensor
    before: Tensor
    targets: Tensor
    pictures: Tensor

    @property
    def states(self) -> Tensor:
        """(R, D) that ask."""
        return self.captioned.states[self.rows, self.places]

    def relevance(self, states: Tensor, contexts: Tensor) -> Tensor:
        """(R,) the probability of the words that came, from states (R, D) and contexts (R, D)."""
        probability = self.model.next_scores(contexts, states).softmax(-1)
        return probability.gather(-1, self.targets[:, None])[:, 0]


def draw_words(model: Captioner, captioned: Captioned, tokens: Tensor, targets: Tensor, pictures: Tensor) -> DrawnWords:
    """Draw one word of each caption.

    Args:
        model, captioned: what read the captions, and how.
        tokens, targets: (B, T) the words that were read, and those that came after them, marks and padding included.
        pictures: (B,) which picture each caption is about.
    """
    allowed = (tokens >= len(SPECIAL)) & (targets >= len(SPECIAL))
    places = torch.rand(allowed.shape, device=tokens.device).where(allowed, -1.0).argmax(-1)
    rows = allowed.any(-1).nonzero()[:, 0]
    places = places[rows]
    return DrawnWords(model, captioned, rows, places, tokens[rows, places], targets[rows, places], pictures[rows])


def word_resourcing(drawn: DrawnWords, *, margin: float = 0.2) -> Tensor:
    """CCR for captions: a word must follow from the attended locations better than from the others.

    Attended are the locations with more than an even share of the output attention, weight > 1 / n.

    Args:
        drawn: the words.
        margin: γ₂ of `content_resourcing`, in probability.

    Returns:
        a scalar, summed over the words.
    """
    seen, rows, places = drawn.captioned, drawn.rows, drawn.places
    weights = seen.image.weights[rows, places]
    mask = None if seen.image.mask is None else seen.image.mask[rows]
    count = weights.shape[-1] if mask is None else mask.sum(-1, keepdim=True)
    return content_resourcing(
        drawn.states[:, None],
        seen.values[rows],
        seen.image_scores[rows, places][:, None],
        (weights * count > 1)[:, None],
        margin=margin,
        mask=mask,
        relevance=lambda states, contexts: drawn.relevance(states[:, 0], contexts[:, 0])[:, None],
    )


def word_swapping(drawn: DrawnWords, *, margin: float = 0.2) -> Tensor:
    """CCS for captions: what was looked at must give the word that came more probably than after another word before.

    The other word is the most different one drawn for another picture; all before it, and what was looked at, stays.

    Args:
        drawn: the words.
        margin: γ₃ of `content_swapping`, in probability.

    Returns:
        a scalar, summed over the words.
    """
    rows, places = drawn.rows, drawn.places
    swaps = choose_swaps(drawn.model.words(drawn.before), drawn.before, drawn.pictures)
    others = drawn.model.swapped_states(drawn.captioned, rows, places, drawn.before[swaps.index])
    contexts = drawn.captioned.image.context[rows, places]
    own, swapped = drawn.relevance(drawn.states, contexts), drawn.relevance(others, contexts)
    return content_swapping(own, swapped, swaps.found, margin=margin)
