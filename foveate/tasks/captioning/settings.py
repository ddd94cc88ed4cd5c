"""Everything about captioning that can be chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from foveate.models import CaptioningModelSettings, LSTMCaptionerSettings
from foveate.tasks.inputs import RENAMED, Content, TaskSettings


@dataclass(frozen=True)
class CaptioningSettings(TaskSettings):
    """Settings of captioning, besides those of `TaskSettings`.

    Attributes:
        model: a row of `MODELS` that writes captions, with its sizes.
        word_dim: size of a word vector.
        min_count: a word must occur at least this often in the training captions to be known.
        max_words: captions are truncated to this many words, and generated captions have at most as many.
        beams, length_penalty, no_repeat: of the search, see `beam_search`.
        spice: add SPICE when a trained run is evaluated.

    The constraints are computed on one word per caption; their margins are in probability of that word.

    >>> CaptioningSettings(mechanism="sparsmax")
    Traceback (most recent call last):
    foveate.errors.UnknownName: mechanism: expected a known name, got 'sparsmax'; did you mean 'sparsemax'?
    """

    content: ClassVar[Content] = "captions"
    renamed: ClassVar[Mapping[str, str]] = {
        **RENAMED,
        **{name: f"model.{name}" for name in ("hidden", "score_dim", "dropout")},
    }

    model: CaptioningModelSettings = field(default_factory=LSTMCaptionerSettings)
    word_dim: int = 256
    min_count: int = 5
    max_words: int = 20
    beams: int = 3
    length_penalty: float = 0.0
    no_repeat: int | None = None
    spice: bool = False
