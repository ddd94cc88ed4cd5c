"""Everything about captioning that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from foveate.checks import check_number
from foveate.errors import WrongValue
from foveate.lab.models import CaptioningModelSettings, LSTMCaptionerSettings
from foveate.lab.tasks.task_settings import Content, TaskSettings


@dataclass(frozen=True)
class CaptioningSettings(TaskSettings):
    """Settings of captioning, besides those of `TaskSettings`.

    Attributes:
        model: a row of `MODELS` that writes captions, with its sizes.
        word_dim: size of a word vector.
        min_count: a word must occur at least this often in the training captions to be known; None chooses
            it by the number of captions.
        max_words: captions are truncated to this many words, and generated captions have at most as many.
        beams, length_penalty, no_repeat: of the search, see `beam_search`.
        guidance: weight of a loss that draws both attentions of a word to the boxes of its phrase; 0 leaves it out.
        label_smoothing: of the cross-entropy, see `word_cross_entropy`.
        self_critical: captions per image that are sampled and rated by CIDEr-D instead of the cross-entropy, see
            `self_critical_loss`; 0 trains by cross-entropy. Start from a run that was: `start=RUN`.
        spice: add SPICE when a trained run is evaluated.

    The constraints are computed on one word per caption; their margins are in probability of that word.

    >>> CaptioningSettings(mechanism="sparsmax")
    Traceback (most recent call last):
    foveate.errors.UnknownName: mechanism: expected a known name, got 'sparsmax'; did you mean 'sparsemax'?
    """

    content: ClassVar[Content] = "captions"

    model: CaptioningModelSettings = field(default_factory=LSTMCaptionerSettings)
    word_dim: int = 256
    min_count: int | None = 5
    max_words: int = 20
    beams: int = 3
    length_penalty: float = 0.0
    no_repeat: int | None = None
    guidance: float = 0.0
    label_smoothing: float = 0.0
    self_critical: int = 0
    spice: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing < 1:
            raise WrongValue(
                f"captioning: expected label_smoothing from 0 to below 1, got {self.label_smoothing:g}; try 0.1"
            )
        check_number("captioning", "guidance", self.guidance, least=0, advice="0.3 is a start")
        if self.self_critical == 1 or self.self_critical < 0:
            raise WrongValue(
                f"captioning: expected self_critical=0 or at least 2 captions, got {self.self_critical}; each is "
                "compared with the others of its image: use 5"
            )
        if self.self_critical and (self.ccr.weight or self.ccs.weight or self.label_smoothing or self.guidance):
            raise WrongValue(
                "captioning: expected ccr=0, ccs=0, guidance=0 and label_smoothing=0 with self_critical, got others; "
                "they belong to the cross-entropy"
            )
