"""Questions as examples and batches, on a few scenes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from foveate.lab.data.samples import Dataset, ImageRecord, Question
from foveate.lab.data.vocabulary import tokenize
from foveate.lab.encoders import Preprocess
from foveate.lab.tasks.vqa import VQA
from foveate.lab.tasks.vqa.data import QuestionExamples
from tests.lab.tasks.vqa.small import TINY, batch_of


@pytest.fixture(scope="module")
def task() -> VQA:
    return VQA.from_data(TINY, None)


def test_groups_questions_by_image(task: VQA) -> None:
    grouped, single = (
        task.examples("train", None),
        replace(task, settings=replace(TINY, group=False)).examples("train", None),
    )
    assert len(grouped) == 6
    assert len(single) == sum(len(example.questions) for example in grouped)
    batch = task.collate([grouped[0], grouped[1]])
    assert batch.images.shape == (2, 3, 112, 112)
    assert batch.index.tolist() == [0] * len(grouped[0].questions) + [1] * len(grouped[1].questions)


def test_batch_holds_words_targets_and_regions(task: VQA) -> None:
    batch = batch_of(replace(task, settings=replace(TINY, guidance=1.0)), "train")
    question = batch.questions[0]
    assert task.inputs.words.decode(batch.tokens[0][batch.mask[0]].tolist()) == list(tokenize(question.text))
    assert batch.targets[0].argmax().item() == task.answers.index(question.answer)
    region = question.region()
    share = region.reshape(7, 16, 7, 16).mean((1, 3))
    torch.testing.assert_close(batch.region[0], torch.from_numpy(share).float())
    torch.testing.assert_close(batch.target_map().sum((1, 2)), torch.ones(len(batch.questions)))


def test_regions_are_made_only_when_needed(task: VQA) -> None:
    assert task.examples("train", None)[0].region is None
    guided = replace(task, settings=replace(TINY, guidance=1.0))
    assert guided.examples("train", None)[0].region is not None


def test_words_beyond_the_limit_are_not_read(task: VQA) -> None:
    short = replace(task, settings=replace(TINY, max_tokens=3))
    assert batch_of(short).tokens.shape[1] == 3


def test_human_attention_maps_are_stacked() -> None:
    looks = tuple(lambda k=k: np.eye(4, dtype=np.float32)[k : k + 1].T @ np.ones((1, 4), np.float32) for k in (0, 1))
    data = Dataset(
        "mine",
        "val",
        (ImageRecord(1, lambda: np.zeros((4, 4, 3), np.uint8)),),
        (
            Question(1, 1, "Is it?", ("yes",), human_maps=looks),
            Question(2, 1, "Is it red?", ("no",), human_maps=looks[:1]),
        ),
    )
    prepare = Preprocess((4, 4), mean=(0, 0, 0), std=(1, 1, 1))
    task = VQA.from_data(TINY, None)
    batch = task.collate([QuestionExamples(data, prepare, group=True, map_size=(2, 2))[0]])
    assert batch.human_maps.shape == (2, 2, 2, 2)
    assert batch.human_maps[1, 1].sum() == 0
    assert batch.target_map()[0].tolist() == [[0.5, 0.5], [0.0, 0.0]]
