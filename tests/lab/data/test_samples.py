"""The samples refuse what cannot be, and the set finds what belongs together."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from PIL import Image

from foveate.errors import DataError
from foveate.lab.data.samples import Caption, Dataset, ImageRecord, Object, Phrase, Question
from foveate.ops.boxes import Box


def blank() -> np.ndarray:
    return np.zeros((4, 6, 3), np.uint8)


@pytest.fixture
def data() -> Dataset:
    images = (ImageRecord("a.jpg", blank), ImageRecord("b.jpg", blank))
    questions = (Question(1, "b.jpg", "Why?"), Question(2, "a.jpg", "Who?"), Question(3, "b.jpg", "How?"))
    captions = (Caption(7, "a.jpg", "A dog.", ("a", "dog"), (Phrase(0, 2, 5, boxes=(Box(0, 0, 1, 1),)),)),)
    return Dataset("mine", "val", images, questions, captions, {"b.jpg": (Object(1, "dog", Box(0, 0, 0.5, 0.5)),)})


def test_box_from_pixels_is_in_fractions():
    box = Box.from_pixels(3, 1, 6, 3, width=6, height=4)
    assert box == (0.5, 0.25, 1.0, 0.75)
    assert box.centre == (0.75, 0.5)


@pytest.mark.parametrize("edges", [(-1, 0, 2, 2), (0, 0, 7, 2), (0, 0, 2, 5), (2, 0, 2, 2), (0, 3, 2, 1)])
def test_box_outside_or_empty_is_refused(edges):
    with pytest.raises(DataError, match=r"Box: expected 0 <= x0 < x1 <= 6 .*got .*; check which image size"):
        Box.from_pixels(*edges, width=6, height=4)


@pytest.mark.parametrize("span", [(0, 0), (2, 1), (-1, 1)])
def test_phrase_holds_a_word(span):
    with pytest.raises(DataError, match=r"Phrase: expected 0 <= start < stop, got .* for entity 9"):
        Phrase(*span, 9, unlinked="scene")


def test_phrase_has_boxes_or_a_reason():
    with pytest.raises(DataError, match="either boxes or a reason"):
        Phrase(0, 1, 9)
    with pytest.raises(DataError, match="pass exactly one"):
        Phrase(0, 1, 9, boxes=(Box(0, 0, 1, 1),), unlinked="scene")


def test_phrase_stays_within_its_caption():
    with pytest.raises(DataError, match="expected phrases within its 1 tokens, got 0:2 in caption 7"):
        Caption(7, 1, "Dog.", ("dog",), (Phrase(0, 2, 1, unlinked="scene"),))


def test_dataset_finds_what_belongs_together(data):
    assert len(data) == 2
    assert data.image(data.questions[0]) is data.images[1]
    assert data.image(data.captions[0]) is data.images[0]
    assert data.image("b.jpg") is data.images[1]
    assert [q.id for q in data.questions_of("b.jpg")] == [1, 3]
    assert [c.id for c in data.captions_of("a.jpg")] == [7]
    assert data.captions_of("b.jpg") == ()
    assert data.objects_of("b.jpg")[0].name == "dog"
    assert data.objects_of("a.jpg") == ()
    assert data.captions[0].words(data.captions[0].phrases[0]) == ("a", "dog")


def test_dataset_of_nothing():
    empty = Dataset("none", "train", ())
    assert len(empty) == 0
    assert empty.questions_of(1) == ()


def test_dataset_names_the_image_it_lacks(data):
    with pytest.raises(
        DataError, match=r"mine val: expected the id of one of its 2 images, got 'c\.jpg'; search another"
    ):
        data.image("c.jpg")


@pytest.mark.parametrize(
    ("field", "items", "message"),
    [
        (
            "images",
            (ImageRecord("a.jpg", blank),) * 2,
            r"mine val: expected images with different ids, got 'a\.jpg' twice",
        ),
        ("questions", (Question(1, "a.jpg", "?"),) * 2, "expected questions with different ids, got 1 twice"),
        ("captions", (Caption(1, "a.jpg", "a", ("a",)),) * 2, "expected captions with different ids, got 1 twice"),
        ("questions", (Question(1, "z", "?"),), "expected the image 'z' of question 1 in the dataset, got none"),
        ("captions", (Caption(1, "z", "a", ("a",)),), "expected the image 'z' of caption 1 in the dataset"),
        ("objects", {"z": (Object(1, "dog", Box(0, 0, 1, 1)),)}, "expected the image 'z' of 1 objects in the dataset"),
    ],
)
def test_dataset_refuses_broken_ids(data, field, items, message):
    with pytest.raises(DataError, match=message):
        replace(data, **{field: items})


def test_fingerprint_follows_the_annotations(data):
    def without(field, **change):
        return replace(data, **{field: (replace(getattr(data, field)[0], **change), *getattr(data, field)[1:])})

    same = replace(data, images=tuple(ImageRecord(p.id, lambda: blank() + 1) for p in data.images))
    changed = [
        replace(data, split="train"),
        without("questions", text="When?"),
        without("questions", answers=("yes",)),
        without("captions", tokens=("the", "dog")),
        without("captions", phrases=()),
        replace(data, objects={}),
        replace(data, objects={"b.jpg": (Object(1, "cat", Box(0, 0, 0.5, 0.5)),)}),
    ]
    prints = [each.fingerprint() for each in (data, *changed)]
    assert same.fingerprint() == data.fingerprint()
    assert len(set(prints)) == len(prints)
    assert len(data.fingerprint()) == 16


def test_samples_reach_worker_processes(data):
    copy = ForkingPickler.loads(ForkingPickler.dumps(data))
    assert copy == data
    assert copy.image("b.jpg").pixels().shape == (4, 6, 3)


def test_image_from_file_and_loader(tmp_path):
    Image.new("RGB", (6, 4), (10, 20, 30)).save(tmp_path / "a.png")
    assert ImageRecord(1, tmp_path / "a.png").pixels()[0, 0].tolist() == [10, 20, 30]
    assert ImageRecord(1, blank).pixels().shape == (4, 6, 3)
    with pytest.raises(DataError, match=r"expected an image at .*none\.png, got no file"):
        ImageRecord(1, tmp_path / "none.png").pixels()
