"""Self-critical training: the loss is the advantage times the log-probability, and it raises the reward."""

from __future__ import annotations

import pytest
import torch

from foveate.lab.models.decoding import Decoded
from foveate.lab.tasks import Captioning
from foveate.lab.tasks.captioning.constraints import self_critical_loss
from foveate.lab.tasks.images import encoder_input
from tests.lab.tasks.captioning.small import batch_of, settings


def small() -> Captioning:
    return Captioning.from_data(settings(self_critical=3), None)


def test_the_loss_pushes_towards_the_better_caption() -> None:
    task = small()
    torch.manual_seed(0)
    model, batch = task.build_model(), batch_of(task, "train", 1)
    own = task.inputs.words.encode(batch.examples[0].captions[0].tokens[:4])
    wrong = own[::-1]
    words = torch.tensor([[[*own, 3], [*wrong, 3]]])
    sampled = Decoded(words, words != 3, torch.zeros(1, 2), torch.zeros(1, 2))
    images = encoder_input(model.image, batch.images)
    found = self_critical_loss(model, images, sampled, batch.examples, task.inputs.words)
    assert found.rewards[0, 0] > found.rewards[0, 1]

    def likelihood(row: int) -> torch.Tensor:
        tokens = torch.tensor([[2, *words[0, row, :-1].tolist()]])
        scores = model(images, tokens, torch.ones_like(tokens, dtype=torch.bool)).scores.log_softmax(-1)
        return scores.gather(1, words[0, row][:, None]).sum()

    difference = found.rewards[0, 0] - found.rewards[0, 1]
    torch.testing.assert_close(found.total, -difference * (likelihood(0) - likelihood(1)))


def test_the_task_samples_and_reports_the_reward() -> None:
    task = small()
    torch.manual_seed(0)
    model, batch = task.build_model(), batch_of(task, "train")
    loss = task.loss(model, batch, 0)
    assert loss.count == 9
    assert set(loss.parts) == {"words", "reward"}
    loss.total.backward()
    assert batch_of(task, "val").examples[0].rate is None


def test_what_does_not_go_together() -> None:
    with pytest.raises(ValueError, match="expected self_critical=0 or at least 2 captions, got 1"):
        settings(self_critical=1)
    with pytest.raises(ValueError, match="expected ccr=0, ccs=0, guidance=0 and label_smoothing=0 with self_critical"):
        settings(self_critical=2, label_smoothing=0.1)
    with pytest.raises(ValueError, match="expected label_smoothing from 0 to below 1, got 1"):
        settings(label_smoothing=1.0)
