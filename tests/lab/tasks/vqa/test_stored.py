"""Questions in VQA's layout on stored features."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foveate.errors import DataError
from foveate.lab.data.feature_store import FeatureRecord, StoreDescription
from foveate.lab.data.store_writer import import_features
from foveate.lab.tasks.images import Stored
from foveate.lab.tasks.vqa import VQA
from foveate.lab.train import evaluate
from tests.lab.tasks.vqa.small import TINY, model_of


@pytest.fixture
def vqa_directory(tmp_path: Path) -> Path:
    for split, start in (("train", 0), ("val", 100), ("test", 200)):
        asked = [
            {"question_id": start + i, "image_id": start + i // 2, "question": f"Is it {'red' if i % 2 else 'blue'}?"}
            for i in range(6)
        ]
        said = [
            {
                "question_id": start + i,
                "image_id": start + i // 2,
                "answers": [{"answer": "yes" if i % 3 else "no", "answer_id": 1}],
                "multiple_choice_answer": "yes" if i % 3 else "no",
                "answer_type": "yes/no",
                "question_type": "is it",
            }
            for i in range(6)
        ]
        (tmp_path / f"{split}_questions.json").write_text(json.dumps({"questions": asked}))
        if split != "test":
            (tmp_path / f"{split}_annotations.json").write_text(json.dumps({"annotations": said}))
    rows = (
        FeatureRecord(str(i), np.random.default_rng(i).normal(size=(4, 10)).astype(np.float16), (2, 2))
        for start in (0, 100, 200)
        for i in range(start, start + 3)
    )
    import_features(rows, tmp_path / "features.h5", StoreDescription("made-up"))
    return tmp_path


STORED = replace(TINY, dataset="vqa-coco", images=Stored(), limit=None, group=False)


def test_reads_questions_with_stored_features(vqa_directory: Path) -> None:
    task = VQA.from_data(STORED, vqa_directory)
    assert task.inputs.image_dim == 10
    examples = task.examples("val", vqa_directory)
    batch = task.collate([examples[0], examples[5]])
    assert batch.images.values.shape == (2, 4, 10)
    answered = task.run(model_of(task), batch)
    assert answered.image[-1].grid == (2, 2)
    result = evaluate(task, model_of(task), examples)
    assert set(result) >= {"accuracy", "accuracy/yes/no", "accuracy/is it", "area"}
    assert "js" not in result  # nobody knows where to look
    assert VQA.from_vocabulary(STORED, json.loads(json.dumps(task.vocabulary()))) == task


def test_limit_keeps_the_first_images(vqa_directory: Path) -> None:
    data = replace(STORED, limit=2).read("train", vqa_directory)
    assert len(data.questions) == 4


def test_a_store_a_split(vqa_directory: Path) -> None:
    for split in ("train", "val"):
        (vqa_directory / f"{split}.h5").write_bytes((vqa_directory / "features.h5").read_bytes())
    task = VQA.from_data(replace(STORED, images=Stored("{split}.h5")), vqa_directory)
    assert task.examples("val", vqa_directory).images.source.path.name == "val.h5"


def test_a_missing_store_says_how_to_make_it(vqa_directory: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.h5, got no file; write it with `foveate extract`"):
        VQA.from_data(replace(STORED, images=Stored("nothing.h5")), vqa_directory)


def test_a_split_without_answers_is_answered_not_evaluated(vqa_directory: Path) -> None:
    task = VQA.from_data(STORED, vqa_directory)
    examples = task.examples("test", vqa_directory)
    batch = task.collate([examples[0]])
    assert task.predict(model_of(task).eval(), batch).answers[0] in ("yes", "no")
    with pytest.raises(DataError, match="expected human answers to question 200, got none"):
        evaluate(task, model_of(task), examples)


def test_a_split_without_questions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train_questions.json").write_text('{"questions": []}')
    (tmp_path / "train_annotations.json").write_text('{"annotations": []}')
    with pytest.raises(DataError, match="vqa-coco: expected questions in the split train, got none"):
        STORED.read("train", tmp_path)
