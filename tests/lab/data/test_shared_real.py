"""The real photographs beside the repository, when they are there."""

from collections import Counter
from pathlib import Path

import pytest

from foveate.io import decode_image, image_size
from foveate.lab.data.entities import link_phrases, read_boxes
from foveate.lab.data.flickr import read_flickr
from foveate.lab.data.vqa_files import read_vqa

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
FLICKR, VQA = SHARED / "flickr8k", SHARED / "vqa-coco"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no real data in {SHARED}")


@pytest.fixture(scope="module")
def flickr():
    return {split: read_flickr(FLICKR, split) for split in ("train", "val")}


@pytest.fixture(scope="module")
def vqa():
    return {split: read_vqa(VQA, split) for split in ("train", "val")}


def test_flickr_has_all_its_images_and_captions(flickr):
    assert {split: (len(data), len(data.captions)) for split, data in flickr.items()} == {
        "train": (6000, 30000),
        "val": (1000, 5000),
    }
    assert not {p.id for p in flickr["train"].images} & {p.id for p in flickr["val"].images}
    assert all(caption.tokens for data in flickr.values() for caption in data.captions)


def test_every_phrase_is_linked_or_counted(flickr):
    counts = link_phrases(flickr["val"], FLICKR / "entities").counts
    assert counts == {"linked": 13123, "nobndbox": 1542, "notvisual": 877, "scene": 259}
    carried = Counter(p.unlinked or "linked" for data in flickr.values() for c in data.captions for p in c.phrases)
    assert carried == {"linked": 91031, "nobndbox": 10488, "notvisual": 5929, "scene": 1577}
    opened = sum(path.read_text(encoding="utf-8").count("[/EN#") for path in (FLICKR / "entities/Sentences").iterdir())
    lost = 3  # "A basketball" is all that the captions keep of one annotated sentence
    assert opened == 109028 == sum(carried.values()) + lost


def test_phrases_are_the_annotated_words(flickr):
    data = flickr["val"]
    linked = [(c, p) for c in data.captions for p in c.phrases if p.kinds == ("people",)]
    people = {"man", "woman", "boy", "girl", "people", "child", "men", "person", "he", "she", "player", "kids", "dog"}
    share = sum(bool(people & set(c.words(p))) for c, p in linked) / len(linked)
    assert share > 0.6
    assert all(0 <= b.x0 < b.x1 <= 1 and 0 <= b.y0 < b.y1 <= 1 for _, p in linked for b in p.boxes)


def test_flickr_headers_agree_with_the_annotated_sizes(flickr):
    for number, image in enumerate(p for data in flickr.values() for p in data.images):
        width, height = image_size(image.source)
        assert min(width, height) <= 192
        if number % 10 == 0:
            stem = str(image.id).split("_")[0]
            noted = read_boxes(FLICKR / "entities" / "Annotations" / f"{stem}.xml")
            assert width / height == pytest.approx(noted.width / noted.height, rel=0.02)


def test_vqa_has_all_its_questions_and_images(vqa):
    assert {split: (len(data), len(data.questions)) for split, data in vqa.items()} == {
        "train": (5000, 15000),
        "val": (1000, 3000),
    }
    for data in vqa.values():
        assert all(len(q.answers) == 1 and q.answers[0] == q.answer for q in data.questions)
        assert {q.answer_type for q in data.questions} == {"yes/no", "number", "other"}
        assert all(min(image_size(image.source)) >= 100 for image in data.images)


@pytest.mark.slow
def test_every_photograph_decodes(flickr, vqa):
    seen = 0
    for data in (*flickr.values(), *vqa.values()):
        for image in data.images:
            pixels = decode_image(image.source)
            assert pixels.shape[1::-1] == image_size(image.source)
            seen += 1
    assert seen == 13000
