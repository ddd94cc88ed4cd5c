"""The task of visual question answering: settings, batches, loss, metrics, predictor, on a few scenes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.attention import MECHANISMS
from foveate.data.features import PictureFeatures, StoreDescription
from foveate.data.samples import Dataset, Picture, Question
from foveate.data.store_writer import import_features
from foveate.data.tokens import tokenize
from foveate.encoders import ConvEncoder, Preprocess
from foveate.errors import DataError, UnknownName
from foveate.losses import answer_bce, answer_cross_entropy, js_guidance, kl_guidance
from foveate.tasks.examples import load_split
from foveate.tasks.pictures import Conv, Frozen, Stored
from foveate.tasks.vqa import VQA
from foveate.tasks.vqa_data import QuestionExamples
from foveate.tasks.vqa_settings import Mcan, Rdan, VQASettings
from foveate.train import Adam, Training, evaluate, fit

TINY = VQASettings(
    model=Mcan(16, heads=2, layers=1, dropout=0.0),
    images=Conv((8, 8, 8, 8), blocks=0),
    word_dim=8,
    max_tokens=20,
    min_count=1,
    group=True,
    limit=6,
    look_size=(7, 7),
)


@pytest.fixture(scope="module")
def task() -> VQA:
    return VQA.from_data(TINY, None)


def model_of(task: VQA) -> torch.nn.Module:
    torch.manual_seed(0)
    return task.build_model()


def batch_of(task: VQA, split: str = "val"):
    examples = task.examples(split, None)
    return task.collate([examples[n] for n in range(3)])


def test_groups_questions_by_picture(task: VQA) -> None:
    grouped, single = (
        task.examples("train", None),
        replace(task, settings=replace(TINY, group=False)).examples("train", None),
    )
    assert len(grouped) == 6
    assert len(single) == sum(len(example.questions) for example in grouped)
    batch = task.collate([grouped[0], grouped[1]])
    assert batch.pictures.shape == (2, 3, 112, 112)
    assert batch.index.tolist() == [0] * len(grouped[0].questions) + [1] * len(grouped[1].questions)


def test_grouping_does_not_change_the_loss(task: VQA) -> None:
    model = model_of(task)
    single = replace(task, settings=replace(TINY, group=False))
    one = task.loss(model, task.collate([task.examples("train", None)[0]]))
    examples = single.examples("train", None)
    parts = [single.loss(model, single.collate([examples[n]])) for n in range(one.count)]
    assert sum(part.total for part in parts).item() == pytest.approx(one.total.item(), rel=1e-4)


def test_batch_holds_words_targets_and_regions(task: VQA) -> None:
    batch = batch_of(replace(task, settings=replace(TINY, guidance=1.0)), "train")
    question = batch.questions[0]
    assert task.words.decode(batch.tokens[0][batch.mask[0]].tolist()) == list(tokenize(question.text))
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


@pytest.mark.parametrize(("name", "function"), [("bce", answer_bce), ("cross-entropy", answer_cross_entropy)])
def test_the_loss_is_the_one_chosen(task: VQA, name: str, function) -> None:
    chosen = replace(task, settings=replace(TINY, loss=name))
    model, batch = model_of(chosen), batch_of(chosen)
    loss = chosen.loss(model, batch)
    torch.testing.assert_close(loss.total, function(chosen.run(model, batch).scores, batch.targets))
    assert loss.count == len(batch.questions)


@pytest.mark.parametrize(("name", "function"), [("kl", kl_guidance), ("js", js_guidance)])
def test_guidance_is_added_with_its_weight(task: VQA, name: str, function) -> None:
    guided = replace(task, settings=replace(TINY, guidance=0.5, guidance_loss=name))
    model, batch = model_of(guided), batch_of(guided)
    loss = guided.loss(model, batch)
    expected = function(guided.run(model, batch).image[-1].map(7, 7), batch.target_map())
    torch.testing.assert_close(loss.parts["guidance"], expected)
    torch.testing.assert_close(loss.total, loss.parts["answers"] + 0.5 * expected)
    assert "guidance" not in task.loss(model, batch).parts


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_answers(task: VQA, name: str) -> None:
    chosen = replace(task, settings=replace(TINY, mechanism=name))
    model = model_of(chosen).eval()
    batch = batch_of(chosen)
    with torch.no_grad():
        prediction = chosen.predict(model, batch)
    metrics = chosen.metrics()
    metrics.update(prediction, batch)
    assert {"accuracy", "js", "mass", "pointing", "area", "entropy", "regions", "js of centre"} <= set(
        metrics.compute()
    )


def test_options_reach_the_mechanism(task: VQA) -> None:
    chosen = replace(task, settings=replace(TINY, mechanism="entmax", mechanism_options={"alpha": 1.25}))
    assert chosen.build_model().flat_image.attend.options == {"alpha": 1.25}
    options = {"basis": {"count": 49, "variance": 0.002}}
    chosen = replace(task, settings=replace(TINY, mechanism="continuous-softmax", mechanism_options=options))
    assert chosen.build_model().flat_image.attend.basis.centres.shape == (49, 2)


def test_r_dan_answers_with_its_own_word_attention(task: VQA) -> None:
    chosen = replace(task, settings=replace(TINY, model=Rdan(16, steps=3, word_mechanism="sparsemax")))
    answered = chosen.run(model_of(chosen).eval(), batch_of(chosen))
    assert len(answered.image) == 3
    assert (answered.question[0].weights == 0).any()


def test_survives_the_way_through_json(task: VQA) -> None:
    again = VQA.from_vocabulary(TINY, json.loads(json.dumps(task.vocabulary())))
    assert again == task


def test_max_answers_and_min_count() -> None:
    few = VQA.from_data(replace(TINY, max_answers=3), None)
    rare = VQA.from_data(replace(TINY, min_count=3), None)
    everything = VQA.from_data(TINY, None)
    assert few.answers.answers == everything.answers.answers[:3]
    assert len(rare.answers) < len(everything.answers)


def test_word_vectors_are_put_in(task: VQA, tmp_path: Path) -> None:
    path = tmp_path / "tiny.txt"
    path.write_text("is " + "0.5 " * 7 + "0.5\n")
    chosen = replace(task, settings=replace(TINY, words=str(path)))
    model = model_of(chosen)
    chosen.initialise(model)
    assert model.text.words.weight[chosen.words.index("is")].tolist() == [0.5] * 8
    wrong = replace(task, settings=replace(TINY, words=str(path), word_dim=4))
    with pytest.raises(DataError, match=r"expected word vectors of 4 dimensions, got 8 .*; set word_dim=8"):
        wrong.initialise(model_of(wrong))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName, match=r"data: .* did you mean 'scenes'"):
        VQASettings(data="scene")
    with pytest.raises(UnknownName, match=r"mechanism: .* did you mean 'tvmax'"):
        VQASettings(mechanism="tvmx")
    with pytest.raises(UnknownName, match=r"mechanism: .* did you mean 'sparsemax'"):
        VQASettings(model=Rdan(word_mechanism="sparsmax"))
    with pytest.raises(UnknownName, match=r"loss: .*"):
        VQASettings(loss="hinge")  # type: ignore[arg-type]


def test_trains_and_fine_tunes_another_mechanism(task: VQA, tmp_path: Path) -> None:
    training = Training(Adam(1e-3), epochs=1, batch_size=3)
    history = fit(task, training, _new(tmp_path / "first"), config={}, progress=False)
    assert 0 <= history.best.metrics["accuracy"] <= 1
    other = replace(task, settings=replace(TINY, mechanism="tvmax"))
    fit(other, training, _new(tmp_path / "second"), config={}, start=tmp_path / "first", progress=False)
    assert (tmp_path / "second" / "model.safetensors").is_file()


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_batches_do_not_change_the_metrics(task: VQA) -> None:
    model, examples = model_of(task), task.examples("val", None)
    one, many = (evaluate(task, model, examples, batch_size=size) for size in (1, 6))
    assert one == pytest.approx(many, rel=1e-4, abs=1e-5)


def test_a_frozen_encoder_makes_the_features_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from foveate import encoders

    torch.manual_seed(0)
    encoder, calls = ConvEncoder((8, 8, 8, 8), blocks=0).eval(), []
    monkeypatch.setattr(encoder, "name", "made-up")
    row = encoders.Encoder(lambda **options: encoder, reads="pictures", pretrained=True)
    monkeypatch.setitem(encoders.ENCODERS, "made-up", row)
    monkeypatch.setattr(encoder, "encode", lambda pictures: calls.append(1) or ConvEncoder.encode(encoder, pictures))
    frozen = VQA.from_data(replace(TINY, images=Frozen("made-up")), None)
    examples = frozen.examples("train", None)
    batch = frozen.collate([examples[0], examples[0], examples[1]])
    assert len(calls) == 2
    assert batch.pictures.values.shape == (3, 49, 8)
    model = model_of(frozen).eval()
    assert not [name for name, _ in model.named_parameters() if name.startswith("image.")]
    assert VQA.from_vocabulary(frozen.settings, json.loads(json.dumps(frozen.vocabulary()))) == frozen
    answer = frozen.predictor(model).answer(picture(), "Is it red?")
    assert answer.attention.map().shape == (1, 7, 7)


# --- data in VQA's layout, on stored features


@pytest.fixture
def vqa_folder(tmp_path: Path) -> Path:
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
        PictureFeatures(str(i), np.random.default_rng(i).normal(size=(4, 10)).astype(np.float16), (2, 2))
        for start in (0, 100, 200)
        for i in range(start, start + 3)
    )
    import_features(rows, tmp_path / "features.h5", StoreDescription("made-up"))
    return tmp_path


STORED = replace(TINY, data="vqa-coco", images=Stored(), limit=None, group=False)


def test_reads_questions_with_stored_features(vqa_folder: Path) -> None:
    task = VQA.from_data(STORED, vqa_folder)
    assert task.image_dim == 10
    examples = task.examples("val", vqa_folder)
    batch = task.collate([examples[0], examples[5]])
    assert batch.pictures.values.shape == (2, 4, 10)
    answered = task.run(model_of(task), batch)
    assert answered.image[-1].grid == (2, 2)
    result = evaluate(task, model_of(task), examples)
    assert set(result) >= {"accuracy", "accuracy/yes/no", "accuracy/is it", "area"}
    assert "js" not in result  # nobody knows where to look
    assert VQA.from_vocabulary(STORED, json.loads(json.dumps(task.vocabulary()))) == task


def test_limit_keeps_the_first_pictures(vqa_folder: Path) -> None:
    data = load_split("vqa-coco", vqa_folder, "train", content="questions", limit=2, need_pictures=False)
    assert len(data.questions) == 4


def test_a_store_a_split(vqa_folder: Path) -> None:
    for split in ("train", "val"):
        (vqa_folder / f"{split}.h5").write_bytes((vqa_folder / "features.h5").read_bytes())
    task = VQA.from_data(replace(STORED, images=Stored("{split}.h5")), vqa_folder)
    assert task.examples("val", vqa_folder).pictures.source.path.name == "val.h5"


def test_a_missing_store_says_how_to_make_it(vqa_folder: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.h5, got no file; write it with `foveate extract`"):
        VQA.from_data(replace(STORED, images=Stored("nothing.h5")), vqa_folder)


def test_a_split_without_answers_is_answered_not_evaluated(vqa_folder: Path) -> None:
    task = VQA.from_data(STORED, vqa_folder)
    examples = task.examples("test", vqa_folder)
    batch = task.collate([examples[0]])
    assert task.predict(model_of(task).eval(), batch).answers[0] in ("yes", "no")
    with pytest.raises(DataError, match="expected people's answers to question 200, got none"):
        evaluate(task, model_of(task), examples)


def test_a_split_without_questions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train_questions.json").write_text('{"questions": []}')
    (tmp_path / "train_annotations.json").write_text('{"annotations": []}')
    with pytest.raises(DataError, match="vqa-coco: expected questions in the split train, got none"):
        load_split("vqa-coco", tmp_path, "train", content="questions", need_pictures=False)


def test_guidance_needs_a_grid() -> None:
    task = VQA.from_data(replace(TINY, guidance=1.0), None)
    batch = task.collate([task.examples("train", None)[0]])
    answered = task.run(model_of(task), batch)
    flat = replace(answered, image=(replace(answered.image[-1], grid=None),))
    with pytest.raises(DataError, match="guidance: expected features on a grid, got regions; set guidance=0"):
        task._guidance(flat, batch.target_map())
    assert task._guidance(flat, None) == 0


def test_where_people_looked() -> None:
    looks = tuple(lambda k=k: np.eye(4, dtype=np.float32)[k : k + 1].T @ np.ones((1, 4), np.float32) for k in (0, 1))
    data = Dataset(
        "mine",
        "val",
        (Picture(1, lambda: np.zeros((4, 4, 3), np.uint8)),),
        (Question(1, 1, "Is it?", ("yes",), looks=looks), Question(2, 1, "Is it red?", ("no",), looks=looks[:1])),
    )
    prepare = Preprocess((4, 4), mean=(0, 0, 0), std=(1, 1, 1))
    task = VQA.from_data(TINY, None)
    batch = task.collate([QuestionExamples(data, prepare, group=True, look_size=(2, 2))[0]])
    assert batch.people.shape == (2, 2, 2, 2)
    assert batch.people[1, 1].sum() == 0
    assert batch.target_map()[0].tolist() == [[0.5, 0.5], [0.0, 0.0]]


# --- the predictor


def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)


def test_answers_a_question(task: VQA, tmp_path: Path) -> None:
    predictor = task.predictor(model_of(task).eval())
    answer = predictor.answer(picture(), "Is the zebra left of the star?", top=3)
    assert answer.text in task.answers
    assert len(answer.best) == 3
    assert answer.best[0] == (answer.text, answer.confidence)
    assert [value for _, value in answer.best] == sorted((value for _, value in answer.best), reverse=True)
    assert answer.unknown == ("zebra",)
    assert [word for word, _ in answer.words] == ["is", "the", "zebra", "left", "of", "the", "star"]
    assert sum(weight for _, weight in answer.words) == pytest.approx(1, abs=1e-5)
    assert answer.attention.map(5, 5).shape == (1, 5, 5)
    path = tmp_path / "picture.png"
    Image.fromarray(picture()).save(path)
    for same in (path, str(path), path.read_bytes(), Image.open(path)):
        assert predictor.answer(same, "Is the zebra left of the star?").best[:3] == answer.best


@pytest.mark.parametrize("name", MECHANISMS)
def test_batches_do_not_change_answers(task: VQA, name: str) -> None:
    predictor = (chosen := replace(task, settings=replace(TINY, mechanism=name))).predictor(model_of(chosen).eval())
    questions = ["Is it red?", "How many large red stars are in the picture?", "What colour is the star?"]
    together = predictor.answers([picture()] * 3, questions, batch_size=2)
    for question, found in zip(questions, together, strict=True):
        alone = predictor.answer(picture(), question)
        assert alone.text == found.text
        assert alone.confidence == pytest.approx(found.confidence, abs=1e-5)
        torch.testing.assert_close(alone.attention.map(6, 6), found.attention.map(6, 6), rtol=1e-3, atol=1e-4)


def test_confidence_is_a_softmax_where_the_loss_is(task: VQA) -> None:
    chosen = replace(task, settings=replace(TINY, loss="cross-entropy"))
    answer = chosen.predictor(model_of(chosen).eval()).answer(picture(), "Is it red?", top=1000)
    assert sum(value for _, value in answer.best) == pytest.approx(1, abs=1e-5)


def test_predictor_refusals(task: VQA, tmp_path: Path) -> None:
    predictor = task.predictor(model_of(task).eval())
    for empty in ("", "   ", "?!"):
        with pytest.raises(DataError, match=r"answer: expected a question, got .*; ask with at least one word"):
            predictor.answer(picture(), empty)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"expected a whole picture .*broken\.png"):
        predictor.answer(tmp_path / "broken.png", "Is it red?")
    with pytest.raises(DataError, match=r"expected a picture at .*nothing\.png, got no file"):
        predictor.answer(tmp_path / "nothing.png", "Is it red?")
    with pytest.raises(DataError, match="picture: expected a path, bytes, an array or a Pillow image, got int"):
        predictor.answer(3, "Is it red?")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="answer: expected one picture a question, got 1 and 2"):
        predictor.answers([picture()], ["a", "b"])
