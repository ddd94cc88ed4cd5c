"""The hinge over pairs against its definition, pair by pair."""

from __future__ import annotations

import pytest
import torch

from foveate.errors import ShapeError, UnknownName
from foveate.lab.losses import info_nce, ranking_hinge

OWNER = torch.tensor([0, 1, 1, 2, 3, 0])


def scores() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 6, dtype=torch.float64, requires_grad=True)


def slow(s: torch.Tensor, margin: float, choose) -> torch.Tensor:
    total = torch.zeros((), dtype=s.dtype)
    for c, i in enumerate(OWNER.tolist()):
        sentences = [(s[i, other] - s[i, c] + margin).clamp(min=0) for other in range(6) if OWNER[other] != i]
        images = [(s[other, c] - s[i, c] + margin).clamp(min=0) for other in range(4) if other != i]
        total = total + choose(sentences) + choose(images)
    return total


def soft(found: list[torch.Tensor]) -> torch.Tensor:
    """τ log(1 + Σ exp(excess / τ)), for a margin so wide that no hinge of `slow` is zero."""
    return 0.05 * torch.log1p(torch.stack([torch.exp(one / 0.05) for one in found]).sum())


@pytest.mark.parametrize(("negatives", "choose"), [("hardest", max), ("all", sum)])
@pytest.mark.parametrize("margin", [0.0, 0.2, 2.0])
def test_is_its_definition(negatives: str, choose, margin: float) -> None:
    s = scores()
    ours, theirs = ranking_hinge(s, OWNER, margin=margin, negatives=negatives), slow(s, margin, choose)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, s), torch.autograd.grad(theirs, s))


def test_soft_is_its_definition_and_nears_the_hardest() -> None:
    s = scores()
    ours, theirs = ranking_hinge(s, OWNER, margin=9.0, negatives="soft"), slow(s, 9.0, soft)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, s), torch.autograd.grad(theirs, s))
    near, hardest = (ranking_hinge(s, OWNER, negatives=one, softness=1e-4) for one in ("soft", "hardest"))
    torch.testing.assert_close(near, hardest, atol=1e-2, rtol=0)
    assert torch.autograd.gradcheck(lambda x: ranking_hinge(x, OWNER, negatives="soft", softness=0.3), s)


@pytest.mark.parametrize("negatives", ["hardest", "random", "all", "soft"])
def test_scores_that_are_no_numbers_are_not_hidden(negatives: str) -> None:
    scores = torch.full((2, 2), torch.nan)
    assert ranking_hinge(scores, torch.tensor([0, 1]), negatives=negatives).isnan()


def test_the_gradient_of_the_hardest_is_in_few_pairs() -> None:
    torch.manual_seed(0)
    s = torch.randn(20, 20, requires_grad=True)
    ranking_hinge(s, torch.arange(20)).backward()
    assert 0 < s.grad.count_nonzero() <= 60


def test_random_draws_every_negative_evenly_and_never_the_same_image() -> None:
    torch.manual_seed(0)
    counts, rounds = torch.zeros(4, 6), 3000
    s = torch.zeros(4, 6, requires_grad=True)
    for _ in range(rounds):
        counts += torch.autograd.grad(ranking_hinge(s, OWNER, margin=1.0, negatives="random"), s)[0]
    assert (counts[OWNER, torch.arange(6)] < 0).all()
    # a sentence is drawn for each pair of another image, one of 4 or 5, and an image for each sentence, one of 3
    pairs_of = torch.bincount(OWNER).double()
    for i in range(4):
        for c in range(6):
            if OWNER[c] != i:
                expected = pairs_of[i] / (6 - pairs_of[i]) + 1 / 3
                assert counts[i, c] / rounds == pytest.approx(expected.item(), abs=0.06)


@pytest.mark.parametrize("negatives", ["hardest", "random", "all", "soft"])
def test_a_batch_without_negatives_has_no_loss(negatives: str) -> None:
    s = torch.randn(1, 3, requires_grad=True)
    loss = ranking_hinge(s, torch.zeros(3, dtype=torch.long), negatives=negatives)
    loss.backward()
    assert loss.item() == 0
    assert s.grad.abs().sum() == 0
    assert ranking_hinge(torch.zeros(2, 0), torch.zeros(0, dtype=torch.long), negatives=negatives).item() == 0


def test_messages() -> None:
    s = torch.zeros(2, 3)
    with pytest.raises(ShapeError, match=r"ranking_hinge: expected owner \(C,\) of sizes \(3\), got \(2,\)"):
        ranking_hinge(s, torch.tensor([0, 1]))
    with pytest.raises(
        ShapeError, match=r"ranking_hinge: expected owner with integers from 0 to 1, got \[0, 1, 2\]; pass the row"
    ):
        ranking_hinge(s, torch.tensor([0, 1, 2]))
    with pytest.raises(UnknownName, match="negatives: expected a known name, got 'hard'; did you mean 'hardest'"):
        ranking_hinge(s, torch.tensor([0, 1, 1]), negatives="hard")
    with pytest.raises(ValueError, match="ranking_hinge: expected margin >= 0, got -1"):
        ranking_hinge(s, torch.tensor([0, 1, 1]), margin=-1)
    with pytest.raises(ValueError, match="ranking_hinge: expected softness > 0, got 0"):
        ranking_hinge(s, torch.tensor([0, 1, 1]), negatives="soft", softness=0)
    with pytest.raises(TypeError, match="ranking_hinge: expected floating-point scores"):
        ranking_hinge(s.long(), torch.tensor([0, 1, 1]))


def test_info_nce_is_two_cross_entropies() -> None:
    s, own = scores(), torch.arange(4)
    one_each = s[:, :4]
    expected = sum(
        torch.nn.functional.cross_entropy(part / 0.3, own, reduction="sum") for part in (one_each, one_each.mT)
    )
    torch.testing.assert_close(info_nce(one_each, own, temperature=0.3), expected / 2)
    assert torch.autograd.gradcheck(lambda x: info_nce(x, OWNER, temperature=0.3), s)


def test_info_nce_does_not_count_sentences_of_the_same_image() -> None:
    s = scores().detach()
    other = s.clone()
    other[1, 1] += 5.0  # sentences 1 and 2 share image 1

    def first_direction(x: torch.Tensor) -> torch.Tensor:
        rows = [torch.cat([x[i, c : c + 1], x[i, i != OWNER]]) for c, i in enumerate(OWNER.tolist())]
        columns = [torch.cat([x[i : i + 1, c], x[torch.arange(4) != i, c]]) for c, i in enumerate(OWNER.tolist())]
        return -sum(part.div(0.2).log_softmax(0)[0] for part in rows + columns) / 2

    for one in (s, other):
        torch.testing.assert_close(info_nce(one, OWNER, temperature=0.2), first_direction(one))
    assert info_nce(s[:1], torch.zeros(6, dtype=torch.long)).item() == 0
    with pytest.raises(ValueError, match="info_nce: expected temperature > 0, got 0"):
        info_nce(s, OWNER, temperature=0)
