"""The contrastive constraints on answers, against their sentences written out one example at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from foveate.attention import DiscreteAttention
from foveate.lab.models import AnsweringSettings, MCANSettings, ReasoningDANSettings
from foveate.lab.models.answering import Reading
from foveate.lab.tasks.images import Conv
from foveate.lab.tasks.task_settings import Constraint
from foveate.lab.tasks.vqa import VQA
from foveate.lab.tasks.vqa.settings import VQASettings
from foveate.lab.tasks.vqa.task import answer_resourcing, answer_swapping

B, N, D, A = 5, 6, 4, 3


def reading(mask: Tensor | None = None) -> tuple[Reading, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    out = torch.randn(2 * D, A, dtype=torch.float64)
    made = Reading(
        torch.randn(B, D, dtype=torch.float64),
        2 * torch.randn(B, N, dtype=torch.float64),
        torch.randn(B, N, D, dtype=torch.float64),
        mask,
        lambda question, context: torch.cat([question, context], -1) @ out,
        DiscreteAttention("softmax"),
    )
    scores = made.scores if mask is None else made.scores.masked_fill(~mask, -torch.inf)
    return made, scores.softmax(-1), torch.eye(A, dtype=torch.float64)[torch.arange(B) % A], out


def right(question: Tensor, context: Tensor, target: Tensor, out: Tensor) -> float:
    return float((torch.cat([question, context]) @ out).softmax(0) @ target)


@pytest.mark.parametrize("masked", [False, True])
def test_ccr_is_its_sentence(masked: bool) -> None:
    mask = torch.arange(N)[None] < torch.tensor([6, 5, 4, 3, 6])[:, None] if masked else None
    made, weights, targets, out = reading(mask)
    expected = 0.0
    for b in range(B):
        n = int(mask[b].sum()) if mask is not None else N
        groups = [[i for i in range(n) if (weights[b, i] > 1 / n) == wanted] for wanted in (True, False)]
        assert all(groups)
        kept, ignored = (made.scores[b, group].softmax(0) @ made.values[b, group] for group in groups)
        gap = right(made.question[b], ignored, targets[b], out) - right(made.question[b], kept, targets[b], out)
        expected += max(0.0, gap + 0.3)
    assert answer_resourcing(made, weights, targets, margin=0.3).item() == pytest.approx(expected, abs=1e-12)


def test_ccs_is_its_sentence() -> None:
    made, weights, targets, out = reading()
    context = torch.einsum("bn,bnd->bd", weights, made.values)
    texts, images = torch.tensor([0, 1, 2, 0, 3]), torch.tensor([0, 0, 1, 2, 2])
    expected = 0.0
    for b in range(B):
        others = [o for o in range(B) if texts[o] != texts[b] and images[o] != images[b]]
        like = [float(torch.cosine_similarity(made.question[b], made.question[o], dim=0)) for o in others]
        other = made.question[others[like.index(min(like))]]
        gap = right(other, context[b], targets[b], out) - right(made.question[b], context[b], targets[b], out)
        expected += max(0.0, gap + 0.1)
    found = answer_swapping(made, context, targets, texts, images, margin=0.1)
    assert found.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "model",
    [MCANSettings(16, heads=2, layers=1, dropout=0.0), ReasoningDANSettings(16, reasoning_steps=2, dropout=0.0)],
)
@pytest.mark.parametrize("mechanism", ["softmax", "tvmax", "multimodal"])
def test_both_join_the_loss_of_every_model(model: AnsweringSettings, mechanism: str) -> None:
    settings = VQASettings(model=model, images=Conv((8, 8)), word_dim=8, limit=6, min_count=1, mechanism=mechanism)
    plain = VQA.from_data(settings, None)
    ccr, ccs = Constraint(weight=0.5, margin=0.9), Constraint(weight=2.0, margin=0.9)
    task = replace(plain, settings=replace(settings, ccr=ccr, ccs=ccs))
    examples = task.examples("train", None)
    batch = task.collate([examples[row] for row in (0, 8, 16, 24)])
    torch.manual_seed(0)
    network = plain.build_model()
    torch.manual_seed(1)
    before = plain.loss(network, batch, 0)
    torch.manual_seed(1)
    loss = task.loss(network, batch, 0)
    assert set(before.parts) == {"answers"}
    assert set(loss.parts) == {"answers", "ccr", "ccs"}
    assert loss.parts["ccr"] > 0
    assert loss.parts["ccs"] > 0
    expected = before.total + 0.5 * loss.parts["ccr"] + 2 * loss.parts["ccs"]
    torch.testing.assert_close(loss.total, expected)
    loss.total.backward()
    moved = {name for name, weight in network.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert any(name.startswith("text") for name in moved)


@pytest.mark.parametrize("name", ["ccr", "ccs"])
def test_each_constraint_begins_after_its_steps(name: str) -> None:
    model = MCANSettings(16, heads=2, layers=1, dropout=0.0)
    settings = VQASettings(model=model, images=Conv((8, 8)), word_dim=8, limit=6, min_count=1)
    late = replace(settings, **{name: Constraint(weight=0.5, margin=0.9, after=2)})
    task = VQA.from_data(late, None)
    examples = task.examples("train", None)
    batch = task.collate([examples[row] for row in (0, 8, 16, 24)])
    torch.manual_seed(0)
    network = task.build_model()
    losses = [task.loss(network, batch, step) for step in (0, 1, 2)]
    assert all(set(loss.parts) == {"answers", name} for loss in losses)  # alike, so that batches can be joined
    assert [bool(loss.parts[name] > 0) for loss in losses] == [False, False, True]
    torch.testing.assert_close(losses[1].total, losses[1].parts["answers"])
    torch.testing.assert_close(losses[2].total, losses[2].parts["answers"] + 0.5 * losses[2].parts[name])


def test_one_question_has_nothing_to_swap_with() -> None:
    made, weights, targets, _ = reading()
    same = torch.zeros(B, dtype=torch.long)
    context = torch.einsum("bn,bnd->bd", weights, made.values)
    assert answer_swapping(made, context, targets, same, torch.arange(B)).item() == 0
    assert answer_swapping(made, context, targets, torch.arange(B), same).item() == 0


def test_equal_weights_have_no_attended_part() -> None:
    made, _, targets, _ = reading()
    assert answer_resourcing(made, torch.full((B, N), 1 / N, dtype=torch.float64), targets).item() == 0
