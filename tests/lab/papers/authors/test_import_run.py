"""Checkpoints in the layouts of the released code become runs with the same outputs."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import foveate as fv
from foveate.apps.cli.main import main
from foveate.lab.data import DATASETS
from foveate.lab.data.feature_store import FeatureRecord, StoreDescription, stack_features
from foveate.lab.data.store_writer import write_store
from tests.lab.models import matching_reference
from tests.lab.papers.authors.layouts import ReleasedMatcher, ReleasedMCAN

WORDS = ["what", "color", "is", "the", "cat", "dog", "on"]
ANSWERS = ["yes", "no", "2", "red"]
CAPTION_WORDS = ["a", "cat", "sits", ".", "dog", "t-shirt"]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def write(path: Path, content: object) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def save_mcan(directory: Path, special: list[str], **options: bool) -> tuple[ReleasedMCAN, list[str]]:
    """A checkpoint with its tokens and answers, and the arguments that import it into directory/run."""
    tokens = [*special, *WORDS]
    model = ReleasedMCAN(tokens=len(tokens), answers=len(ANSWERS), **options)
    content = {"state_dict": model.state_dict(), "optimizer": {"state": {}}, "lr_base": 1e-4}
    torch.save(content, directory / "epoch13.pkl")
    ids = {answer: place for place, answer in enumerate(ANSWERS)}
    answers = write(directory / "answer_dict.json", [ids, {str(place): answer for answer, place in ids.items()}])
    named = write(directory / "tokens.json", {token: place for place, token in enumerate(tokens)})
    paths = [str(directory / "epoch13.pkl"), str(directory / "run")]
    return model.eval(), ["import-run", "mcan", *paths, "--answers", answers, "--tokens", named, "model.heads=4"]


def record(name: str, regions: int) -> FeatureRecord:
    boxes = np.tile(np.array([[0.0, 0.0, 0.5, 0.5]], np.float32), (regions, 1))
    return FeatureRecord(name, torch.randn(regions, 6).numpy(), boxes=boxes)


@pytest.mark.parametrize("norm", ["torch", "unbiased"])
@pytest.mark.parametrize(("old", "special"), [(False, ["PAD", "UNK", "CLS"]), (True, ["PAD", "UNK"])])
def test_mcan_answers_as_the_released_network(tmp_path: Path, old: bool, special: list[str], norm: str) -> None:
    model, arguments = save_mcan(tmp_path, special, old=old)
    assert main([*arguments, f"model.norm={norm}"]) == 0
    run = fv.load(tmp_path / "run")
    questions = ["What color is the cat?", "Is the zebra on-the dog"]
    images = [record("1", 5), record("2", 3)]
    answers = run.answers(images, questions)
    known = {token: place for place, token in enumerate([*special, *WORDS])}
    batch = stack_features(images)
    texts = [run.task.settings.tokenize(question) for question in questions]
    tokens, mask = run.task.inputs.encode(texts, 14)
    with torch.no_grad():
        ours = run.model(batch, tokens, mask).scores
        for row, (image, question) in enumerate(zip(images, questions, strict=True)):
            plain = question.lower().replace("?", "").replace("-", " ").split()
            ids = torch.tensor([known.get(word, known["UNK"]) for word in plain])
            theirs = model(torch.from_numpy(image.values), ids)
            assert torch.allclose(ours[row], theirs, atol=1e-5), (ours[row] - theirs).abs().max()
            assert answers[row].text == ANSWERS[int(theirs.argmax())]
    assert answers[1].unknown == ("zebra",)


def test_mcan_takes_its_tokens_from_the_question_files(tmp_path: Path) -> None:
    special = ["PAD", "UNK", "CLS"]
    _, arguments = save_mcan(tmp_path, special)
    train = write(tmp_path / "train.json", {"questions": [{"question": "What color is the cat?"}]})
    val = write(tmp_path / "val.json", {"questions": [{"question": "What is the dog on?"}]})
    place = arguments.index("--tokens") + 1
    arguments[place] = f"{train},{val}"
    assert main(arguments) == 0
    assert fv.load(tmp_path / "run").task.inputs.words.words[4:] == ("what", "color", "is", "the", "cat", "dog", "on")


def test_an_imported_run_is_evaluated_like_any_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, arguments = save_mcan(tmp_path, ["PAD", "UNK", "CLS"])
    images = DATASETS["scenes"].read(None, "val", count=4).images
    store = tmp_path / "val.h5"
    write_store(store, [record(str(image.id), 4) for image in images], StoreDescription("bottom-up"), dim=6)
    assert main([*arguments, "--store", str(store), "dataset=scenes", "limit=4", f"images.store={store}"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--out", str(tmp_path / "numbers.json")]) == 0
    assert 0 <= json.loads((tmp_path / "numbers.json").read_text())["metrics"]["accuracy"] <= 1
    assert main(["import-run", *arguments[1:]]) == 1
    assert "expected a new directory" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["t2i", "i2t", "mean", "equal", "prob"])
@pytest.mark.parametrize("weight_norm", [False, True])
def test_scan_and_bfan_match_as_the_released_networks(tmp_path: Path, kind: str, weight_norm: bool) -> None:
    tokens = ["<pad>", "<start>", "<end>", "<unk>", *CAPTION_WORDS]
    released = ReleasedMatcher(tokens=len(tokens), weight_norm=weight_norm)
    model, options = {
        "t2i": ("scan", {"cross_attn": "t2i", "agg_func": "LogSumExp", "lambda_softmax": 9.0, "lambda_lse": 6.0}),
        "i2t": ("scan", {"cross_attn": "i2t", "agg_func": "LogSumExp", "lambda_softmax": 4.0, "lambda_lse": 5.0}),
        "mean": ("scan", {"cross_attn": "t2i", "agg_func": "Mean", "lambda_softmax": 9.0}),
        "equal": ("bfan", {"focal_type": "equal", "lambda_softmax": 20.0}),
        "prob": ("bfan", {"focal_type": "prob"}),
    }[kind]
    score = {
        "t2i": partial(matching_reference.scan, temperature=9.0, lse=6.0),
        "i2t": partial(matching_reference.scan, direction="i2t", temperature=4.0, lse=5.0),
        "mean": partial(matching_reference.scan, temperature=9.0, lse=None),
        "equal": partial(matching_reference.bfan, kind="equal"),
        "prob": partial(matching_reference.bfan, kind="prob"),
    }[kind]
    torch.save(released.checkpoint(**options), tmp_path / "model_best.pth.tar")
    known = {token: place for place, token in enumerate(tokens)}
    vocabulary = write(tmp_path / "vocab.json", {"word2idx": known, "idx": len(known)})
    paths = [str(tmp_path / "model_best.pth.tar"), str(tmp_path / "run")]
    assert main(["import-run", model, *paths, "--tokens", vocabulary]) == 0
    run = fv.load(tmp_path / "run")
    images, texts = [record("1", 4), record("2", 4)], ["A cat sits.", "a zebra, a T-shirt"]
    split = [["a", "cat", "sits", "."], ["a", "zebra", ",", "a", "t-shirt"]]
    ours = run.match(images, texts)
    with torch.no_grad():
        for i, image in enumerate(images):
            for c, words in enumerate(split):
                ids = [known["<start>"], *(known.get(word, known["<unk>"]) for word in words), known["<end>"]]
                v = released.locations(torch.from_numpy(image.values))
                theirs = score(v, released.words(torch.tensor(ids)))
                assert abs(float(ours[i, c]) - float(theirs)) < 1e-5


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, arguments = save_mcan(tmp_path, ["PAD", "UNK"])
    torch.save({"state_dict": {}, "extra": Bomb(tmp_path / "touched")}, tmp_path / "epoch13.pkl")
    assert main(arguments) == 1
    assert "system" in capsys.readouterr().err
    assert not (tmp_path / "touched").exists()
    assert not (tmp_path / "run").exists()


def test_everything_that_does_not_fit_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, arguments = save_mcan(tmp_path, ["PAD", "UNK"])
    weights = model.state_dict()
    del weights["proj.bias"]
    weights |= {"attflat_img.gate": torch.zeros(2), "proj_norm.b_2": torch.zeros(3)}
    torch.save({"state_dict": weights}, tmp_path / "epoch13.pkl")
    assert main(arguments) == 1
    error = capsys.readouterr().err
    for part in ("got 3 that do not fit", "proj.bias: missing", "attflat_img.gate: unknown", "proj_norm.b_2: (3,)"):
        assert part in error, error
    assert not (tmp_path / "run").exists()


def test_options_that_our_models_lack_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    released = ReleasedMatcher(tokens=5)
    torch.save(released.checkpoint(agg_func="Max", no_imgnorm=True), tmp_path / "best.pth.tar")
    vocabulary = write(tmp_path / "vocab.json", ["<pad>", "<start>", "<end>", "<unk>", "a"])
    assert (
        main(["import-run", "scan", str(tmp_path / "best.pth.tar"), str(tmp_path / "run"), "--tokens", vocabulary]) == 1
    )
    error = capsys.readouterr().err
    assert "agg_func='Max': only LogSumExp and Mean are supported" in error
    assert "no_imgnorm=True" in error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": ["PAD", "UNK", "what"]}, "10 vectors and 3 tokens"),
        ({"tokens": ["PAD", *WORDS]}, "word vector per token"),
        ({"tokens": {"PAD": 0, "UNK": 7}}, "the tokens in"),
        ({"answers": ["yes"]}, "proj.weight"),
        ({"checkpoint": [1, 2]}, "expected a dictionary"),
        ({"checkpoint": {"state_dict": {"a": 1}}}, "expected a state_dict"),
        ({"checkpoint": {"state_dict": {"a": torch.zeros(1)}}}, "got none called lstm"),
    ],
)
def test_wrong_files_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], message: str
) -> None:
    _, arguments = save_mcan(tmp_path, ["PAD", "UNK", "CLS"])
    for name, content in change.items():
        if name == "checkpoint":
            torch.save(content, tmp_path / "epoch13.pkl")
        else:
            write(tmp_path / {"tokens": "tokens.json", "answers": "answer_dict.json"}[name], content)
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, arguments = save_mcan(tmp_path, ["PAD", "UNK"])
    place = arguments.index("--answers")
    assert main(arguments[:place] + arguments[place + 2 :]) == 1
    assert "--answers answer_dict.json" in capsys.readouterr().err
    place = arguments.index("--tokens")
    assert main(arguments[:place] + arguments[place + 2 :]) == 1
    assert "--tokens" in capsys.readouterr().err
    (tmp_path / "epoch13.pkl").write_bytes(b"PK\x03\x04 truncated")
    assert main(arguments) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert main(["import-run", "scann", *arguments[2:]]) == 2


def test_a_store_must_have_the_size_of_the_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, arguments = save_mcan(tmp_path, ["PAD", "UNK"])
    values = FeatureRecord("1", np.zeros((4, 9)), grid=(2, 2))
    write_store(tmp_path / "f.h5", [values], StoreDescription("example"), dim=9)
    assert main([*arguments, "--store", str(tmp_path / "f.h5")]) == 1
    assert "features of size 6" in capsys.readouterr().err


def test_namespaces_may_hold_plain_values_only(tmp_path: Path) -> None:
    from foveate.lab.papers.authors.conversion import read_checkpoint

    torch.save({"opt": Namespace(a=1)}, tmp_path / "ok.pth")
    assert read_checkpoint(tmp_path / "ok.pth")["opt"].a == 1
    torch.save({"opt": Namespace(a=Bomb(tmp_path / "touched"))}, tmp_path / "bad.pth")
    with pytest.raises(fv.DataError, match="not loaded"):
        read_checkpoint(tmp_path / "bad.pth")


def test_the_attention_of_an_imported_mcan_is_that_of_the_thesis(tmp_path: Path) -> None:
    """Moments at linspace(0, 1, n), 100 functions of variance 0.001 and padding, unless other options are passed."""
    _, arguments = save_mcan(tmp_path, ["PAD", "UNK", "CLS"])
    assert main([*arguments, "mechanism=continuous-softmax"]) == 0
    attend = fv.load(str(tmp_path / "run")).model.flat_image.attend
    scores, values = torch.randn(2, 196), torch.randn(2, 196, 3)
    line = torch.linspace(0, 1, 14)
    at = torch.stack([line.expand(14, 14), line[:, None].expand(14, 14)], -1).reshape(196, 2)
    weights = scores.softmax(-1)
    mean = weights @ at
    covariance = torch.einsum("bn,bni,bnj->bij", weights, at - mean[:, None], at - mean[:, None]) + 1e-6 * torch.eye(2)
    out = attend(scores, values, grid=(14, 14))
    torch.testing.assert_close(out.density.mean, mean, atol=1e-5, rtol=0)
    torch.testing.assert_close(out.density.covariance, covariance, atol=1e-5, rtol=0)
    basis = fv.GaussianBasis.grid(100, variance=0.001)
    read = fv.ops.ridge_coefficients(values, basis, (14, 14), padding=True)
    torch.testing.assert_close(
        out.context, torch.einsum("bj,bjd->bd", fv.Gaussian(mean, covariance).expect(basis), read)
    )
    (tmp_path / "other").mkdir()
    _, arguments = save_mcan(tmp_path / "other", ["PAD", "UNK", "CLS"])
    assert (
        main([*arguments, "mechanism=multimodal", "mechanism_options.penalty=1", "mechanism_options.criterion=own"])
        == 0
    )
    fit = fv.load(str(tmp_path / "other" / "run")).model.flat_image.attend.fit
    assert (fit.penalty, fit.floor, fit.start, fit.background) == (1.0, 1e-6, "random", False)
