"""Human attention maps: files, people, grids."""

import json

import numpy as np
import pytest
from PIL import Image

from foveate.errors import DataError, UnknownName
from foveate.lab.data.vqa_files import attach_human_maps, index_maps, read_hat


@pytest.fixture
def root(tmp_path):
    questions = [{"image_id": i, "question": "Is it?", "question_id": 10 * i + k} for i in (1, 2, 3) for k in (0, 1)]
    notes = [
        {
            "question_id": q["question_id"],
            "image_id": q["image_id"],
            "answer_type": "yes/no",
            "answers": [{"answer": "yes"}],
        }
        for q in questions
    ]
    (tmp_path / "OpenEnded_mscoco_val2014_questions.json").write_text(json.dumps({"questions": questions}))
    (tmp_path / "mscoco_val2014_annotations.json").write_text(json.dumps({"annotations": notes}))
    for directory in ("val2014", "vqahat_val"):
        (tmp_path / directory).mkdir()
    for i in (1, 2, 3):
        Image.new("RGB", (8, 6)).save(tmp_path / "val2014" / f"COCO_val2014_{i:012d}.jpg")
    for name, shade in (("10_1", 10), ("10_2", 20), ("10_10", 30), ("31_1", 40)):
        Image.new("L", (8, 6), shade).save(tmp_path / "vqahat_val" / f"{name}.png")
    (tmp_path / "vqahat_val" / "README").write_text("not a map")
    return tmp_path


def test_questions_with_maps_and_their_people(root):
    data = read_hat(root, "val")
    assert (data.name, data.split) == ("vqa-hat", "val")
    assert [(q.id, len(q.human_maps)) for q in data.questions] == [(10, 3), (31, 1)]
    assert [p.id for p in data.images] == [1, 3]
    looks = [look() for look in data.questions[0].human_maps]
    assert [float(look[0, 0]) for look in looks] == [10, 20, 30]  # by number, 10 after 2
    assert looks[0].shape == (6, 8)
    assert looks[0].dtype == np.float32
    assert data.questions[0].answers == ("yes",)


def test_maps_elsewhere(root):
    (root / "vqahat_val").rename(root / "maps")
    assert len(read_hat(root, "val", maps=root / "maps").questions) == 2
    with pytest.raises(
        DataError, match=r"index_maps: expected the directory .*vqahat_val, got nothing there; VQA-HAT publ"
    ):
        read_hat(root, "val")


def test_v2_beside_v1_is_not_taken(root):
    (root / "v2_OpenEnded_mscoco_val2014_questions.json").write_text("{}")
    assert len(read_hat(root, "val").questions) == 2


def test_a_map_without_question_is_named(root):
    Image.new("L", (2, 2)).save(root / "vqahat_val" / "99_1.png")
    with pytest.raises(
        DataError, match=r"expected the question 99 of .*99_1.png in vqa-v1 val, got none; the maps belong to VQA v1"
    ):
        read_hat(root, "val")


def test_empty_directory_and_split(root, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"expected <question_id>_<k>.png in .*empty, got none"):
        index_maps(tmp_path / "empty")
    with pytest.raises(UnknownName, match="split of VQA-HAT"):
        read_hat(root, "test")


def test_attach_keeps_the_other_fields(root):
    data = read_hat(root, "val")
    assert attach_human_maps(data, root / "vqahat_val").questions == data.questions
