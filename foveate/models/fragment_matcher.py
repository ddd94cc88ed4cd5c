"""Matchers that score images with sentences by attention between locations and words."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from foveate.encoders import Standardise, TextEncoder, WordsInContext
from foveate.features import ImageFeatures
from foveate.models.answering import AnyImageEncoder
from foveate.models.dual import Dual
from foveate.models.fragments import Fragments, MatchingModel, Scorer

ImageStart = Literal["default", "xavier"]


class FragmentMatcher(MatchingModel):
    """Maps locations and words to a common space and scores images with sentences by SCAN or BFAN.

    v_n = W x_n + b and the states w_t of the words, each divided by its length; scores = scorer(v, w)

    Args:
        text: encoder of the words, D = text.dim; a bidirectional GRU with averaged directions in the papers.
        image: encoder of the images, with features of any size `image.dim`.
        scorer: `SCAN` or `BFAN`.
        dropout: probability for the features and the states of the words; the papers have none.
        roots: standardise the roots ±√|x| of the features instead of taking them as they are.
        whole: a dual encoder of whole images and sentences, whose cosine, times a learnt factor, is added to the score;
            attention then has to explain what the whole does not. None in the papers.
        image_start: initial weights of W: torch's "default", or "xavier" with b = 0 as in the released SCAN and BFAN.

    Reference: Lee et al. 2018, §3; Liu et al. 2019, §3.

    >>> from foveate.attention import mechanism
    >>> from foveate.encoders import StoredFeatures
    >>> from foveate.models import SCAN
    >>> model = FragmentMatcher(TextEncoder(10, word_dim=4, hidden=8), StoredFeatures(6), SCAN(mechanism("softmax")))
    >>> tokens, mask = torch.ones(3, 5, dtype=torch.long), torch.ones(3, 5, dtype=torch.bool)
    >>> model(ImageFeatures(torch.randn(2, 4, 6), grid=(2, 2)), tokens, mask).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        text: TextEncoder | WordsInContext,
        image: AnyImageEncoder,
        scorer: Scorer,
        *,
        dropout: float = 0.0,
        roots: bool = False,
        whole: Dual | None = None,
        image_start: ImageStart = "default",
    ) -> None:
        super().__init__()
        self.text, self.image, self.scorer, self.whole = text, image, scorer, whole
        self.features = nn.Linear(image.dim, text.dim)
        if image_start == "xavier":
            nn.init.xavier_uniform_(self.features.weight)
            nn.init.zeros_(self.features.bias)
        self.dropout = nn.Dropout(dropout)
        self.standardise = Standardise(image.dim) if roots else None
        self.balance = None if whole is None else nn.Parameter(torch.ones(()))

    def embed_image(self, images: ImageFeatures | Tensor) -> Fragments:
        """The locations of images as unit vectors (I, N, D)."""
        features = self.image(images)
        values = features.values
        if self.standardise is not None:
            values = self.standardise(values.abs().sqrt().copysign(values), features.mask)
        whole = None
        if self.whole is not None and self.balance is not None:
            whole = self.balance * self.whole.pooled(features)
        return Fragments(self.features(self.dropout(values)), features.mask, features.grid, whole=whole).unit()

    def embed_text(
        self, tokens: Tensor, mask: Tensor, states: Tensor | None = None, *, dropout: bool = True
    ) -> Fragments:
        """The words of sentences (C, T) as unit vectors (C, T, D); see `MatchingModel.embed_text`."""
        encoded = self.text(tokens, mask) if states is None else self.text(tokens, mask, states)
        words = self.dropout(encoded.states) if dropout else encoded.states
        whole = None
        if self.whole is not None:
            whole = self.whole.embed_text(tokens, mask, states, dropout=dropout).values[:, 0]
        return Fragments(words, mask, whole=whole).unit()
