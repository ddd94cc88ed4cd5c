"""Scenes is the same everywhere, balanced, inside its images, and stored without half-written files."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from itertools import pairwise
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from PIL import Image

from foveate.apps.cli.scenes import contact_sheet, summary
from foveate.apps.cli.scenes import scenes as command
from foveate.errors import DataError, UnknownName
from foveate.lab.data.samples import Dataset
from foveate.lab.data.scenes import SIZES, SPLITS, make_scenes, scenes, scenes_large
from foveate.lab.data.scenes import make as building
from foveate.lab.data.scenes.captions import Mention, compose
from foveate.lab.data.scenes.language import SYNONYMS, annotator_answers, noun_phrase, spellings
from foveate.lab.data.scenes.scene import VALUES, Key, RandomStream, make_scene
from foveate.lab.data.vocabulary import normalise_answer

FINGERPRINTS = {"train": "500c891e77093461", "val": "5e7fd7f091fdad41", "test": "bf196aedcb177807"}
PIXELS = {"train": "fd36a5f3df5c545e", "val": "c5a9aaa5f86a7cea", "test": "cba5bdb9dcf7d2c2"}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return make_scenes(split="train", count=1500)


def digest(data: Dataset) -> str:
    sha = hashlib.sha256()
    for image in data.images:
        sha.update(image.pixels().tobytes())
    return sha.hexdigest()[:16]


def test_random_stream_is_the_raw_bits_of_pcg64():
    raw = np.random.PCG64(np.random.SeedSequence((3, 1, 4))).random_raw(128)[::-1]
    rng = RandomStream(3, 1, 4)
    assert [rng.below(1000) for _ in range(128)] == [(int(x) >> 32) * 1000 >> 32 for x in raw]
    random_bytes = RandomStream(3, 1, 4).random_bytes(11)
    first = np.random.PCG64(np.random.SeedSequence((3, 1, 4))).random_raw(2)
    assert random_bytes.tolist() == [int(x) >> 8 * i & 255 for x in first for i in range(8)][:11]


def test_random_stream_is_uniform():
    rng = RandomStream(5)
    counts = np.bincount([rng.between(2, 7) for _ in range(6000)], minlength=8)
    assert counts[:2].sum() == 0
    assert np.abs(counts[2:] - 1000).max() < 120
    orders = Counter("".join(rng.shuffled("abc")) for _ in range(6000))
    assert len(orders) == 6
    assert max(orders.values()) < 1120


def test_validation_split_is_pinned():
    data = scenes(None, "val")
    assert (data.fingerprint(), digest(data)) == (FINGERPRINTS["val"], PIXELS["val"])


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_default_set_is_pinned(split):
    data = scenes(None, split)
    assert (data.fingerprint(), digest(data)) == (FINGERPRINTS[split], PIXELS[split])


def test_images_do_not_depend_on_one_another(data):
    few = make_scenes(split="train", count=3)
    assert few.questions == data.questions[: len(few.questions)]
    assert few.captions == data.captions[:15]
    assert np.array_equal(few.images[2].pixels(), data.images[2].pixels())


def test_seed_and_split_change_everything():
    sets = [
        make_scenes(split="val", count=2),
        make_scenes(split="val", count=2, seed=1),
        make_scenes(split="test", count=2),
    ]
    assert len({digest(each) for each in sets}) == 3
    assert len({each.questions[0].text + each.questions[1].text for each in sets}) == 3
    assert not {p.id for p in sets[0].images} & {p.id for p in sets[2].images}


def test_sizes(monkeypatch):
    monkeypatch.setattr(building, "SIZES", {"scenes": {"val": 2}, "scenes-large": {"val": 4}})
    small, large = scenes(None, "val"), scenes_large(None, "val")
    assert (len(small), len(large)) == (2, 4)
    assert (small.name, large.name) == ("scenes", "scenes-large")
    assert large.questions[: len(small.questions)] == small.questions


def test_large_is_larger_in_every_split():
    assert all(SIZES["scenes-large"][split] > SIZES["scenes"][split] for split in SPLITS)


def test_unknown_names_and_numbers_are_refused():
    with pytest.raises(UnknownName, match=r"split: expected a known name, got 'vall'; did you mean 'val'\?"):
        make_scenes(split="vall")
    with pytest.raises(UnknownName, match="split: expected a known name, got 'vall'"):
        make_scenes(split="vall", count=1)
    with pytest.raises(UnknownName, match="size: expected a known name, got 'scene'; did you mean 'scenes'"):
        make_scenes("scene")
    with pytest.raises(ValueError, match="make_scenes: expected 0 <= count < 1000000 and seed >= 0, got -1 and 0"):
        make_scenes(count=-1)
    with pytest.raises(ValueError, match="got 1 and -1"):
        make_scenes(count=1, seed=-1)


def test_an_empty_set():
    assert len(make_scenes(count=0)) == 0


def test_scenes_hold_their_plan():
    seen = Counter()
    for number in range(600):
        scene = make_scene(Key(0, 0, number))
        assert 3 <= len(scene.things) <= 8
        assert sum(all(getattr(t, k) == v for k, v in scene.plan.items()) for t in scene.things) == scene.count
        seen.update([("things", len(scene.things)), ("count", scene.count), ("tone", scene.tone)])
        seen.update((kind, getattr(thing, kind)) for thing in scene.things for kind in VALUES)
    assert all(seen["things", n] for n in range(3, 9))
    for kind, values in VALUES.items():
        shares = np.array([seen[kind, value] for value in values])
        assert shares.min() > 0.75 * shares.mean(), kind


def test_objects_lie_apart_inside_the_image(data):
    for image in data.images[:200]:
        things = data.objects_of(image.id)
        masks = np.stack([thing.mask() for thing in things])
        assert masks.sum(axis=0).max() == 1
        for thing, mask in zip(things, masks, strict=True):
            rows, columns = np.nonzero(mask)
            edges = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            assert thing.box == tuple(int(edge) / 112 for edge in edges)
            assert min(thing.box[:2]) > 0
            assert max(thing.box[2:]) < 1
            assert 0.004 < mask.mean() < 0.06
            assert thing.name in VALUES["shape"]
            assert thing.synonyms == SYNONYMS[thing.name][1:]


def test_sizes_can_be_distinguished(data):
    sides = defaultdict(list)
    for things in data.objects.values():
        for thing in things:
            sides[thing.attributes["size"]].append(max(thing.box.x1 - thing.box.x0, thing.box.y1 - thing.box.y0))
    assert max(sides["small"]) < 0.9 * min(sides["large"])


def test_colours_are_in_the_pixels(data):
    """The lighter half of a thing has its colour, whatever its texture."""
    rgb = {"red": (214, 36, 40), "green": (42, 160, 52), "blue": (44, 84, 220), "yellow": (242, 218, 44)}
    checked = 0
    for image in data.images[:100]:
        for thing in data.objects_of(image.id):
            if thing.attributes["colour"] in rgb:
                inside = image.pixels()[thing.mask()].astype(int)
                light = np.median(inside[inside.sum(axis=1) >= np.median(inside.sum(axis=1))], axis=0)
                assert np.abs(light - rgb[thing.attributes["colour"]]).max() < 25
                checked += 1
    assert checked > 100


def test_textures_are_in_the_pixels(data):
    """The share of dark pixels tells plain, dotted and striped apart."""
    dark = defaultdict(list)
    for image in data.images[:150]:
        for thing in data.objects_of(image.id):
            inside = image.pixels()[thing.mask()].astype(int).sum(axis=1)
            dark[thing.attributes["texture"]].append((inside < 0.55 * np.quantile(inside, 0.75)).mean())
    plain, dotted, striped = (np.quantile(dark[name], [0.05, 0.95]) for name in ("plain", "dotted", "striped"))
    assert plain[1] < 0.05 < dotted[0] < dotted[1] < 0.24 < striped[0] < striped[1] < 0.5


def test_what_matters_is_small(data):
    shares = [q.region().mean() for q in data.questions[:800]]
    assert np.mean(shares) < 0.05


def test_numbers_of_questions_and_captions(data):
    asked = [len(data.questions_of(p.id)) for p in data.images]
    assert min(asked) >= 4
    assert np.mean(asked) > 7.9
    assert all(len(data.captions_of(p.id)) == 5 for p in data.images)
    texts = [[q.text for q in data.questions_of(p.id)] for p in data.images]
    assert all(len(set(each)) == len(each) for each in texts)
    types = Counter(q.answer_type for q in data.questions)
    assert types["number"] == len(data)
    assert types["other"] > types["yes/no"] > 2 * types["number"]


def test_answers_are_balanced(data):
    answers = defaultdict(Counter)
    for q in data.questions:
        answers[q.question_type][q.answer] += 1
    for kind in ("exist", "verify", "same", "relation", "place", "more"):
        total = sum(answers[kind].values())
        assert abs(answers[kind]["yes"] / total - 0.5) < 2 / np.sqrt(total), kind
    for kind in ("count", "colour", "shape", "texture", "size", "larger"):
        shares = np.array(list(answers[kind].values()))
        assert shares.max() < 1.25 * shares.mean(), (kind, answers[kind])
    assert set(answers["count"]) == set("01234")


def test_words_of_a_question_do_not_give_the_answer(data):
    """Naive Bayes on pairs of words and kind stays near chance on yes/no and counts."""
    train, test = data.questions[: len(data.questions) * 3 // 4], data.questions[len(data.questions) * 3 // 4 :]

    def grams(question):
        words = re.findall(r"[a-z]+", question.text.lower())
        return [*words, *pairwise(words)]

    hits = defaultdict(list)
    for kind in {q.question_type for q in data.questions}:
        prior, seen = Counter(), Counter()
        for q in train:
            if q.question_type == kind:
                prior[q.answer] += 1
                seen.update((q.answer, gram) for gram in grams(q))
        for q in test:
            if q.question_type == kind:
                scores = {
                    a: np.log(n) + sum(np.log((seen[a, g] + 1) / (n + 2)) for g in grams(q)) for a, n in prior.items()
                }
                hits[q.answer_type].append(max(scores, key=scores.get) == q.answer)
    assert np.mean(hits["yes/no"]) < 0.56
    assert np.mean(hits["number"]) < 0.30
    assert np.mean(hits["other"]) < 0.36


def test_language_is_varied(data):
    words = {w for q in data.questions for w in re.findall(r"[a-z]+", q.text.lower())}
    words |= {w for c in data.captions for w in c.tokens}
    assert 100 < len(words) < 200
    assert all(
        len({q.text.split()[0] for q in data.questions if q.question_type == k}) > 1
        for k in ("exist", "same", "colour")
    )


def test_captions_are_sentences_of_their_tokens(data):
    for caption in data.captions:
        assert caption.text[0].isupper()
        assert tuple(caption.text[:-1].lower().split()) == caption.tokens
        assert caption.text.endswith(".")
        spans = [(p.start, p.stop) for p in caption.phrases]
        assert spans == sorted(spans)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_compose_keeps_order_and_words():
    made = compose("on {1} there is {0} {place}", [Mention("a star", (2,)), Mention("a surface", ())], place="at left")
    assert made.text == "On a surface there is a star at left."
    assert made.mentions == ((1, 3, ()), (5, 7, (2,)))


def test_noun_phrases_use_every_synonym():
    rng = RandomStream(0)
    phrases = {noun_phrase({"size": "large", "shape": "cross"}, rng, plural=True) for _ in range(200)}
    assert phrases == {f"{a} {b}" for a in ("large", "big", "huge") for b in ("crosses", "pluses")}


def test_ten_annotators_mostly_agree(data):
    agree, raw = [], Counter()
    for question in data.questions:
        assert len(question.answers) == 10
        agree.append(sum(normalise_answer(a) == question.answer for a in question.answers))
        raw.update(question.answers)
    assert min(agree) >= 7
    assert 9 < np.mean(agree) < 9.6
    assert {"gray", "two", "yes.", "Yes", "a star", "disc"} <= set(raw)


def test_spellings_are_the_same_answer():
    assert all(normalise_answer(s) == a != s for a in ("yes", "3", "diamond", "blue") for s in spellings(a))
    assert Counter(annotator_answers("grey", ("red",), RandomStream(7)))["grey"] >= 5


def test_samples_reach_worker_processes():
    data = make_scenes(split="val", count=1)
    copy = ForkingPickler.loads(ForkingPickler.dumps(data))
    assert copy == data
    assert np.array_equal(copy.images[0].pixels(), data.images[0].pixels())
    assert np.array_equal(copy.questions[0].region(), data.questions[0].region())


def test_stored_images_equal_the_drawn_ones(tmp_path):
    drawn = make_scenes(split="val", count=3)
    stored = make_scenes(split="val", count=3, root=tmp_path / "new")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["scenes-val-3-seed0-v1.npy"]
    assert digest(drawn) == digest(stored)
    assert stored.fingerprint() == drawn.fingerprint()
    assert stored.images[0].pixels().flags.writeable


def test_damaged_stored_images_are_noticed(tmp_path):
    make_scenes(split="val", count=3, root=tmp_path)
    path = tmp_path / "scenes-val-3-seed0-v1.npy"
    whole = path.read_bytes()
    for place in [128, len(whole) - 1, *range(200, len(whole), 2999)]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        building._open.cache_clear()
        data = make_scenes(split="val", count=3, root=tmp_path)
        with pytest.raises(DataError, match=r"scenes: expected the checksum of image \d in .*v1\.npy, got another"):
            [image.pixels() for image in data.images]
    path.write_bytes(whole[: -3 * 4])  # as files were written before they had checksums
    building._open.cache_clear()
    assert make_scenes(split="val", count=3, root=tmp_path).images[2].pixels().shape == (112, 112, 3)
    path.write_bytes(whole + b"x")
    building._open.cache_clear()
    with pytest.raises(DataError, match="got 1 bytes after its checksums"):
        make_scenes(split="val", count=3, root=tmp_path)


def test_stored_images_are_read_not_drawn_again(tmp_path, monkeypatch):
    first = digest(make_scenes(split="val", count=2, root=tmp_path))
    monkeypatch.setattr(building, "render", None)
    assert digest(make_scenes(split="val", count=2, root=tmp_path)) == first


def test_an_interrupted_store_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "render", lambda key: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_scenes(split="val", count=2, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_store_is_named(tmp_path):
    path = tmp_path / "scenes-val-2-seed0-v1.npy"
    path.write_bytes(b"\x93NUMPY cut")
    with pytest.raises(DataError, match=r"scenes: expected stored images, got .*v1\.npy, which cannot be read"):
        make_scenes(split="val", count=2, root=tmp_path)
    other = tmp_path / "scenes-val-3-seed0-v1.npy"
    np.save(other, np.zeros((2, 112, 112, 3), np.uint8))
    with pytest.raises(DataError, match=r"expected 3 images in .*seed0-v1\.npy, got uint8 \(2, 112, 112, 3\); delete"):
        make_scenes(split="val", count=3, root=tmp_path)
    other.unlink()
    assert digest(make_scenes(split="val", count=3, root=tmp_path)) == digest(make_scenes(split="val", count=3))
    third = tmp_path / "scenes-val-1-seed0-v1.npy"
    np.save(third, np.zeros((1, 112, 112, 3)))
    with pytest.raises(DataError, match="got float64"):
        make_scenes(split="val", count=1, root=tmp_path)


def test_command_makes_stores_and_shows(tmp_path, capsys):
    (tmp_path / "sheets").mkdir()
    command(tmp_path / "data", show=tmp_path / "sheets" / "a.png", count=4, seed=3)
    out = capsys.readouterr().out
    assert "scenes train: 4 images" in out
    assert f"images in {tmp_path / 'data'}" in out
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == [
        f"scenes-{split}-4-seed3-v1.npy" for split in ("test", "train", "val")
    ]
    with Image.open(tmp_path / "sheets" / "a.png") as sheet:
        assert sheet.width > 1000
        assert len(np.unique(np.asarray(sheet).reshape(-1, 3), axis=0)) > 1000


def test_command_without_out_keeps_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command(count=1, size="scenes-large")
    assert "scenes-large test: 1 images" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_contact_sheet_takes_the_kinds_in_turn():
    sheet = contact_sheet(make_scenes(split="val", count=4), columns=2)
    assert sheet.width < sheet.height * 2


def test_summary_counts():
    data = make_scenes(split="val", count=20)
    assert f"20 images, {len(data.questions)} questions" in summary(data)
    assert data.fingerprint() in summary(data)


def test_places_tell_things_apart(data):
    placed = [q for q in data.questions if re.search(r" (half|side)\b", q.text) and q.question_type != "place"]
    assert {q.question_type for q in placed} == {"colour", "shape", "texture", "size"}
    assert 0.2 < len(placed) / sum(q.answer_type == "other" for q in data.questions) < 0.4
