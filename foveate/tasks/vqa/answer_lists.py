"""The answers that a model chooses from: counted in a split, or a released list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from foveate.data.samples import Question
from foveate.data.vocabulary import AnswerVocabulary
from foveate.errors import DataError
from foveate.io import DataDirectory, DataRoot, read_json
from foveate.tasks.inputs import choose_min_count
from foveate.tasks.vqa.settings import VQASettings

SOURCE = "openvqa publishes answer_dict.json; a plain JSON list of answers works too"


def choose_vocabulary(settings: VQASettings, questions: Sequence[Question], root: DataRoot) -> AnswerVocabulary:
    """The answers of the settings.

    Args:
        settings: with `answer_list`, `answer_split`, `min_count` and `max_answers`.
        questions: of the training split.
        root: directory of the data.
    """
    if settings.answer_list is not None:
        return AnswerVocabulary(read_answers(settings.answer_list, root)[: settings.max_answers])
    if settings.answer_split is not None:
        counted = replace(settings, train_split=settings.answer_split)
        questions = counted.read("train", root).questions
    found = AnswerVocabulary.from_questions(questions, choose_min_count(settings.min_count, len(questions)))
    return AnswerVocabulary(found.answers[: settings.max_answers])


def read_answers(name: str, root: DataRoot) -> tuple[str, ...]:
    """The answers of a file in their order: a list, a mapping from answers to positions, or openvqa's pair of mappings.

    Args:
        name: the file, as named or in the directory of the data.
        root: directory of the data.
    """
    path = Path(name).expanduser()
    home = DataDirectory.of(root).path
    if home is not None and not path.is_file():
        path = home / path
    content: Any = read_json("answers", path, SOURCE)
    if isinstance(content, list) and content and isinstance(content[0], dict):
        content = content[0]  # openvqa: answers to positions, then positions to answers
    answers = sorted(content, key=content.__getitem__) if isinstance(content, dict) else content
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        raise DataError(f"answers: expected a list of answers in {path}, got {content!r:.60}; {SOURCE}")
    return tuple(answers)
