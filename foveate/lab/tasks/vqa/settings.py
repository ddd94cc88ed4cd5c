"""Everything about visual question answering that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from foveate.checks import check_counts
from foveate.errors import WrongValue
from foveate.lab.losses import LOSSES
from foveate.lab.metrics.accuracy import RULES, Rule
from foveate.lab.models import AnsweringSettings, MCANSettings, ReasoningDANSettings
from foveate.lab.tasks.task_settings import Content, TaskSettings
from foveate.registry import lookup

# Besides the losses that compare maps, those of the mechanism itself.
GUIDANCE = {"scores": None, "density": None} | {name: row for name, row in LOSSES.items() if row.reads == "maps"}
# Whose densities have a loss of their own.
ELLIPSES = ("continuous-softmax", "continuous-sparsemax", "continuous-entmax")


@dataclass(frozen=True)
class VQASettings(TaskSettings):
    """Settings of visual question answering, besides those of `TaskSettings`.

    Attributes:
        model: a row of `MODELS` that answers questions, with its sizes.
        loss: "bce" over every answer, or "cross-entropy" over their softmax.
        guidance: weight of the loss that pulls attention towards the true region or the human attention maps; 0 turns
            it off.
        guidance_loss: "kl" or "js" between the maps, or "scores" for the Fenchel-Young loss of the mechanism, which
            also moves cells that get no attention; or "density" for that of a single ellipse, see
            `ContinuousAttention.density_loss`.
        word_dim: size of a word vector.
        words: source of the word vectors: "glove" or a text file; None starts at random.
        matching_start: directory of a run of m-DAN that an r-DAN of the same sizes starts from, see
            `start_from_matching`.
        max_tokens: questions are truncated to this many tokens.
        min_count: an answer must be the agreed one of at least this many training questions; None chooses it by
            their number.
        max_answers: keep only the most frequent answers; None keeps all.
        answer_split: split whose answers are counted; None counts those of `train_split`.
        answer_list: JSON file of answers to use instead of counting, for instance the released list of 3 129
            (`answer_dict.json` of openvqa, or a plain list); looked for in the directory of the data too.
        group: an example is an image with all its questions, so that it is encoded once; otherwise one question.
        rule: how answers are counted, "official" or "lenient".
        map_size: rows and columns of the grid on which attention is compared with the truth.

    The margins of the constraints are in probability of the right answers.

    >>> VQASettings(mechanism="tvmx")
    Traceback (most recent call last):
    foveate.errors.UnknownName: mechanism: expected a known name, got 'tvmx'; did you mean 'tvmax'?
    """

    content: ClassVar[Content] = "questions"

    model: AnsweringSettings = field(default_factory=MCANSettings)
    loss: Literal["bce", "cross-entropy"] = "bce"
    guidance: float = 0.0
    guidance_loss: Literal["kl", "js", "scores", "density"] = "kl"
    word_dim: int = 300
    words: str | None = None
    matching_start: str | None = None
    max_tokens: int = 14
    min_count: int | None = 9
    max_answers: int | None = None
    answer_split: str | None = None
    answer_list: str | None = None
    group: bool = False
    rule: Rule = "official"
    map_size: tuple[int, int] = (14, 14)

    def __post_init__(self) -> None:
        super().__post_init__()
        lookup("loss", self.loss, LOSSES)
        lookup("guidance_loss", self.guidance_loss, GUIDANCE)
        lookup("rule", self.rule, RULES)
        if self.guidance_loss == "density" and self.mechanism not in ELLIPSES:
            raise WrongValue(
                f"vqa: expected one of {', '.join(ELLIPSES)} for guidance_loss=density, got {self.mechanism}; "
                "use guidance_loss=scores"
            )
        if self.matching_start is not None and not isinstance(self.model, ReasoningDANSettings):
            raise WrongValue("vqa: expected model=rdan for matching_start, got another model; use model=rdan")
        check_counts(
            "VQASettings", **dict(zip(("rows of map_size", "columns of map_size"), self.map_size, strict=True))
        )
