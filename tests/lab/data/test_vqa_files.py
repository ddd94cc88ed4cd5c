"""VQA files in the publisher's layout, whole and broken."""

import json
import pickle

import pytest
from PIL import Image

from foveate.errors import DataError, UnknownName
from foveate.lab.data.vqa_files import read_vqa

IMAGES = (262148, 393225)


def question(number, image, **more):
    return {"image_id": image, "question": f"Where is he looking {number}?", "question_id": number, **more}


def note(number, image, answers=("down",) * 9 + ("At table",), **more):
    return {
        "question_type": "none of the above",
        "multiple_choice_answer": "down",
        "answers": [{"answer": a, "answer_confidence": "yes", "answer_id": i} for i, a in enumerate(answers, 1)],
        "image_id": image,
        "answer_type": "other",
        "question_id": number,
    } | more


def write(root, questions, notes, *, prefix="v2_", task="OpenEnded", subset="val2014", places=("", "", "")):
    head = {"info": {"version": "2.0"}, "data_subtype": subset, "data_type": "mscoco", "license": {"name": "CC"}}
    for place in places:
        (root / place).mkdir(parents=True, exist_ok=True)
    name = f"{prefix}{task}_mscoco_{subset}_questions.json"
    (root / places[0] / name).write_text(json.dumps(head | {"task_type": "Open-Ended", "questions": questions}))
    if notes is not None:
        name = f"{prefix}mscoco_{subset}_annotations.json"
        (root / places[1] / name).write_text(json.dumps(head | {"annotations": notes}))
    images = root / places[2]
    for image in IMAGES:
        kind = "test2015" if subset.startswith("test") else subset
        Image.new("RGB", (4, 3)).save(images / f"COCO_{kind}_{image:012d}.jpg")


@pytest.fixture
def whole(tmp_path):
    write(
        tmp_path,
        [question(1, IMAGES[1]), question(2, IMAGES[0]), question(3, IMAGES[1])],
        [note(2, IMAGES[0]), note(1, IMAGES[1], answer_type="yes/no"), note(3, IMAGES[1])],
    )
    return tmp_path


def break_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


QUESTIONS, NOTES = "v2_OpenEnded_mscoco_val2014_questions.json", "v2_mscoco_val2014_annotations.json"


def test_questions_answers_and_images(whole):
    data = read_vqa(whole, "val")
    assert (data.name, data.split, len(data)) == ("vqa-v2", "val", 2)
    assert [q.id for q in data.questions] == [1, 2, 3]
    first = data.questions[0]
    assert first.text == "Where is he looking 1?"
    assert first.answers == ("down",) * 9 + ("At table",)
    assert (first.answer, first.answer_type, first.question_type) == ("down", "yes/no", "none of the above")
    assert first.choices == ()
    assert [p.id for p in data.images] == [IMAGES[1], IMAGES[0]]
    assert data.image(first).pixels().shape == (3, 4, 3)
    assert pickle.loads(pickle.dumps(data)).questions == data.questions


@pytest.mark.parametrize(
    "places",
    [
        ("Questions", "Annotations", "Images/mscoco/val2014"),
        ("questions", "annotations", "images"),
        ("", "", "val2014"),
        ("", "annotations", "images/val2014"),
    ],
)
def test_directories_as_people_keep_them(tmp_path, places):
    write(tmp_path, [question(1, IMAGES[0])], [note(1, IMAGES[0])], places=places)
    data = read_vqa(str(tmp_path), "val")
    assert data.images[0].source.parent == tmp_path / places[2]


def test_images_elsewhere(tmp_path):
    write(tmp_path / "a", [question(1, IMAGES[0])], [note(1, IMAGES[0])], places=("", "", "../far/away"))
    with pytest.raises(DataError, match="expected the image 262148 of question 1"):
        read_vqa(tmp_path / "a", "val")
    assert len(read_vqa(tmp_path / "a", "val", image_dir=tmp_path / "far" / "away")) == 1
    with pytest.raises(DataError, match=r"expected the directory .*nowhere, got nothing there"):
        read_vqa(tmp_path / "a", "val", image_dir=tmp_path / "nowhere")


def test_version_is_the_newest_or_the_one_asked_for(tmp_path):
    write(tmp_path, [question(1, IMAGES[0])], [note(1, IMAGES[0])], prefix="")
    assert read_vqa(tmp_path, "val").name == "vqa-v1"
    write(tmp_path, [question(2, IMAGES[0])], [note(2, IMAGES[0])])
    assert read_vqa(tmp_path, "val").questions[0].id == 2
    assert read_vqa(tmp_path, "val", version=1).questions[0].id == 1
    assert read_vqa(tmp_path, "val", version=1).name == "vqa-v1"


def test_multiple_choice_of_version_one(tmp_path):
    choices = [f"answer {i}" for i in range(18)]
    write(tmp_path, [question(1, IMAGES[0])], [note(1, IMAGES[0])], prefix="")
    write(tmp_path, [question(1, IMAGES[0], multiple_choices=choices)], None, prefix="", task="MultipleChoice")
    assert read_vqa(tmp_path, "val", task="choice").questions[0].choices == tuple(choices)
    assert read_vqa(tmp_path, "val").questions[0].choices == ()


@pytest.mark.parametrize(("split", "subset"), [("test", "test2015"), ("test-dev", "test-dev2015")])
def test_test_splits_have_no_answers(tmp_path, split, subset):
    write(tmp_path, [question(1, IMAGES[0])], None, subset=subset)
    only = read_vqa(tmp_path, split).questions[0]
    assert (only.answers, only.answer, only.answer_type) == ((), None, None)


def test_plain_names_with_one_answer(tmp_path):
    content = {"questions": [question(1, IMAGES[0])], "data_subtype": "val2014"}
    (tmp_path / "train_questions.json").write_text(json.dumps(content))
    (tmp_path / "train_annotations.json").write_text(json.dumps({"annotations": [note(1, IMAGES[0], answers=("2",))]}))
    (tmp_path / "images").mkdir()
    Image.new("RGB", (4, 3)).save(tmp_path / "images" / f"COCO_val2014_{IMAGES[0]:012d}.jpg")
    data = read_vqa(tmp_path, "train")
    assert data.name == "vqa"
    assert data.questions[0].answers == ("2",)


def test_stored_features_need_no_images(whole):
    for path in whole.glob("*.jpg"):
        path.unlink()
    with pytest.raises(
        DataError,
        match=r"read_vqa: expected the image 393225 of question 1 in .*questions.json, got none in .*; images",
    ):
        read_vqa(whole, "val")
    data = read_vqa(whole, "val", need_images=False)
    assert data.images[1].source.name == "COCO_val2014_000000262148.jpg"
    with pytest.raises(DataError, match=r"expected an image at .*COCO_val2014_000000262148.jpg, got no file"):
        data.images[1].pixels()


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            QUESTIONS,
            lambda c: c["questions"].append(question(2, 1)),
            "different question_id in .*questions.json, got 2 tw",
        ),
        (
            NOTES,
            lambda c: c["annotations"].append(note(2, 1)),
            "different question_id in .*annotations.json, got 2 twice",
        ),
        (
            QUESTIONS,
            lambda c: c["questions"].pop(),
            "expected question 3 of .*annotations.json in .*questions.json too",
        ),
        (NOTES, lambda c: c["annotations"].pop(), "expected question 3 of .*questions.json in .*annotations.json too"),
        (
            QUESTIONS,
            lambda c: c["questions"][0].pop("question_id"),
            r"expected 'question_id' \(int or str\) in every rec",
        ),
        (QUESTIONS, lambda c: c["questions"][0].pop("image_id"), "expected 'image_id' .* got none in .*looking 1"),
        (QUESTIONS, lambda c: c["questions"][0].update(question=5), r"expected 'question' \(str\) .* got 5 in"),
        (QUESTIONS, lambda c: c.pop("questions"), "expected a list called 'questions' in .*, got the keys 'info'"),
        (QUESTIONS, lambda c: c["questions"].append(7), "expected an object as record 3 of 'questions' in .*, got 7"),
        (
            NOTES,
            lambda c: c["annotations"][0].update(image_id=5),
            "expected image 262148 for question 2, got 5 in .*ann",
        ),
        (
            NOTES,
            lambda c: c["annotations"][0].update(answer_type="colour"),
            "yes/no, number, other, got 'colour' for qu",
        ),
        (NOTES, lambda c: c["annotations"][0].pop("answers"), r"expected 'answers' \(list\) in every record"),
        (
            NOTES,
            lambda c: c["annotations"][0].update(answers=[{"text": 7}]),
            r"objects with 'answer', got \[.'text': 7.\] for question 2",
        ),
    ],
)
def test_broken_records_are_named(whole, file, change, message):
    break_json(whole / file, change)
    with pytest.raises(DataError, match=message):
        read_vqa(whole, "val")


def test_broken_files_are_named(whole):
    text = (whole / NOTES).read_text()
    (whole / NOTES).write_text(text[:-20])
    with pytest.raises(
        DataError, match=r"expected JSON in .*annotations.json, got .* it may be truncated, fetch it again"
    ):
        read_vqa(whole, "val")
    (whole / NOTES).unlink()
    with pytest.raises(
        DataError, match=r"expected v2_mscoco_val2014_annotations.json in .*no such file; .*visualqa.org"
    ):
        read_vqa(whole, "val")
    with pytest.raises(
        DataError,
        match=r"expected v2_OpenEnded_mscoco_train2014_questions.json or OpenEnded_.* or train_questions.json in",
    ):
        read_vqa(whole, "train")
    (whole / NOTES).write_text(text)
    (whole / QUESTIONS).write_text("[]")
    with pytest.raises(
        DataError, match=r"expected a list called 'questions' in .*, got list; check that it is the right"
    ):
        read_vqa(whole, "val")


def test_wrong_arguments(whole):
    with pytest.raises(UnknownName, match="split of VQA: expected a known name, got 'vall'; did you mean 'val'"):
        read_vqa(whole, "vall")
    with pytest.raises(UnknownName, match="task of VQA"):
        read_vqa(whole, "val", task="opened")
    with pytest.raises(ValueError, match="expected version 1 or 2, got 3"):
        read_vqa(whole, "val", version=3)
    with pytest.raises(DataError, match="read_vqa: expected a directory, got none"):
        read_vqa(None, "val")
    with pytest.raises(DataError, match=r"read_vqa: expected the directory .*, got a file"):
        read_vqa(whole / QUESTIONS, "val")
