"""Which questions a report draws, and what it takes for the truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foveate.lab.data.scenes import make_scenes
from foveate.lab.tasks.vqa.report import choose_questions, true_map


def test_questions_are_of_different_kinds_and_images():
    data = make_scenes(split="val", count=40)
    chosen = choose_questions(data, 6)
    assert len({q.question_type for q in chosen}) == len({q.image_id for q in chosen}) == 6
    assert choose_questions(data, 6) == chosen
    assert choose_questions(data.first(2), 6) == choose_questions(data.first(2), 2)


def test_the_truth_is_the_human_map_before_the_region():
    data = make_scenes(split="val", count=1)
    question = data.questions[0]
    assert true_map(question).dtype == bool
    looks = (lambda: np.array([[4.0, 0.0]]), lambda: np.array([[0.0, 1.0]]))
    assert true_map(replace(question, human_maps=looks)).tolist() == [[0.5, 0.5]]
    assert true_map(replace(question, region=None)) is None
