"""A run whose attention is planted on a patch: encoder, run and `evaluate-attention` must all place it there."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from foveate.apps.cli.evaluate_attention import mean_map, run_source
from foveate.attention import Attended
from foveate.lab.data.samples import ImageRecord
from foveate.lab.tasks import Captioning
from foveate.ops.boxes import Box
from foveate.watch import Case, evaluate_attention
from foveate.watch.measure import mean_region
from tests.lab.tasks.captioning.small import settings

HEIGHT, WIDTH = 90, 140
BOXES = [Box(0.0, 0.0, 0.3, 0.3), Box(0.6, 0.0, 1.0, 0.3), Box(0.1, 0.7, 0.4, 1.0), Box(0.7, 0.4, 0.9, 0.8)]


def patch(box: Box) -> np.ndarray:
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    rows = slice(round(box.y0 * HEIGHT), round(box.y1 * HEIGHT))
    pixels[rows, round(box.x0 * WIDTH) : round(box.x1 * WIDTH)] = 255
    return pixels


def captioner():
    """A captioner that attends to cells whose features are those of white rather than of black."""
    task = Captioning.from_data(settings(), None)
    torch.manual_seed(0)
    predictor = task.predictor(task.build_model().eval())
    model = predictor.model
    white, black = (
        model.image(model.image.preprocess.normalise(predictor.read_images([np.full((99, 99, 3), level, np.uint8)])))
        .values[0]
        .mean(0)
        for level in (255, 0)
    )
    towards = (white - black) / (white - black).square().sum()
    with torch.no_grad():
        for parameter in (*model.features.parameters(), *model.out_scores.parameters()):
            parameter.zero_()
        model.features.weight[0], model.features.bias[0] = towards, -(towards @ black) - 0.5
        model.out_scores.locations.weight[0, 0] = 0.05
        model.out_scores.weight[0] = 100.0
    return predictor


def test_attention_planted_on_a_patch_is_found_there() -> None:
    cases = [
        Case(ImageRecord(str(n), lambda box=box: patch(box)), "a box", (box,), caption="there is a box", words=(2, 4))
        for n, box in enumerate(BOXES)
    ]
    found = evaluate_attention("planted", "patches", run_source(captioner()), cases).summary()["planted"]
    assert found["pointing"].mean == 1
    assert found["mass"].mean > 0.8


@pytest.mark.parametrize(("caption", "words", "column"), [("a dog runs", (1, 2), 1), (None, (0, 0), None)])
def test_a_phrase_is_judged_by_its_own_words_in_its_caption(caption, words, column) -> None:
    read = []

    def look(pixels, text):
        read.append(text)
        return SimpleNamespace(attention=Attended(torch.zeros(1, 3, 1), torch.eye(4)[None, :3], grid=(1, 4)))

    case = Case(ImageRecord("a", lambda: patch(BOXES[0])), "dog", (BOXES[0],), caption=caption, words=words)
    total = run_source(SimpleNamespace(look=look))(case.image.pixels(), case).total
    assert read == [caption or "dog"]
    columns = torch.zeros(4) if column is not None else torch.tensor([1 / 3, 1 / 3, 1 / 3, 0.0])
    if column is not None:
        columns[column] = 1
    expected = columns.repeat_interleave(7).reshape(14, 2).sum(1) / 7  # each is three and a half columns wide
    torch.testing.assert_close(total.sum(0), expected)


def test_the_mean_map_of_the_training_set_is_a_baseline() -> None:
    known = mean_map("scenes", None, "val", "phrases")
    assert list(known) == ["mean of train"]
    assert known["mean of train"].sum().item() == pytest.approx(1)
    assert mean_map("scenes", None, "train", None) == {}
    left = [Case(ImageRecord(str(n), lambda: patch(BOXES[0])), "box", (BOXES[0],)) for n in range(2)]
    found = evaluate_attention(
        "m", "d", run_source(SimpleNamespace(look=uniform)), left, baselines={"mean of train": mean_region(left)}
    )
    assert found.summary()["mean of train"]["mass"].mean == pytest.approx(1)


def uniform(pixels, text):
    return SimpleNamespace(attention=Attended(torch.zeros(1, 1, 1), torch.full((1, 1, 4), 0.25), grid=(2, 2)))
