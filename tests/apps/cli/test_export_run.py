"""`foveate export`: whole runs as ONNX files."""

from __future__ import annotations

import importlib.util

import pytest
import torch

import foveate as fv
from foveate.apps.cli import main
from foveate.lab.data.vocabulary import EOS

needs_onnx = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None or importlib.util.find_spec("onnxscript") is None,
    reason='needs the extra: pip install "foveate[export]"',
)


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("run", ["scenes-vqa", "scenes-matching", "scenes-captioning"])
def test_a_run_is_exported_whole_and_checked(run, tmp_path, capsys):
    out = tmp_path / "model.onnx"
    assert main(["export", run, str(out)]) == 0
    assert out.exists()
    usage = (tmp_path / "model.txt").read_text(encoding="utf-8")
    assert "session.run" in usage
    assert "outputs within" in capsys.readouterr().out


def test_graphs_compute_what_the_runs_do():
    vqa = fv.load("scenes-vqa")
    graph = vqa.graph()
    graph.module.eval()
    with torch.no_grad():
        scores, weights = graph.module(*graph.inputs)
        pixels, tokens, mask = graph.inputs
        answered = vqa.model(vqa.model.image.preprocess.normalise(pixels), tokens, mask)
    torch.testing.assert_close(scores, answered.scores)
    torch.testing.assert_close(weights, answered.image[-1].weights)


def test_a_graph_takes_questions_of_every_length():
    vqa = fv.load("scenes-vqa")
    graph, limit = vqa.graph(), vqa.task.settings.max_tokens
    pixels, tokens, _ = graph.inputs
    assert tokens.shape == (2, limit)
    image = pixels[0].permute(1, 2, 0).numpy()
    for question in (
        "what colour is the large circle?",
        " ".join(["is there a red square left of the blue circle"] * 4),
    ):
        words, mask = vqa.task.inputs.encode([vqa.task.settings.tokenize(question)], limit)
        pad = (0, limit - words.shape[1])
        with torch.no_grad():
            scores, _ = graph.module.eval()(
                pixels[:1], torch.nn.functional.pad(words, pad), torch.nn.functional.pad(mask, pad)
            )
        answer = vqa.answer(image, question)
        assert answer.text == vqa.task.answers.answers[scores.argmax()]
        assert answer.confidence == pytest.approx(scores.sigmoid().max().item(), abs=1e-5)


def test_matching_graphs_score_sentences_of_one_length():
    run = fv.load("scenes-matching")
    graph = run.graph()
    with torch.no_grad():
        scores = graph.module.eval()(*graph.inputs)
        pixels, tokens = graph.inputs
        images = run.model.embed_image(run.model.image.preprocess.normalise(pixels))
        expected = run.model.scorer(images, run.model.embed_text(tokens, torch.ones_like(tokens).bool(), None))
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)


def test_greedy_captions_are_those_of_one_beam():
    run = fv.load("scenes-captioning")
    graph = run.graph()
    with torch.no_grad():
        words, scores = graph.module.eval()(*graph.inputs)
        found, _ = run.task.write(run.model, graph.inputs[0], beams=1, no_repeat=None)
    length = found.words.shape[-1]
    mask = found.mask[:, 0]
    assert (words[:, :length][mask] == found.words[:, 0][mask]).all()
    assert (words[:, length:] == EOS).all()
    assert scores.shape[:2] == words.shape


def test_what_does_not_fit_is_explained(capsys):
    assert main(["export", "scenes-vqa", "model.pt"]) == 1
    assert "expected a file that ends in .onnx, got model.pt" in capsys.readouterr().err
