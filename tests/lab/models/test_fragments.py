"""SCAN and BFAN, in blocks and from inner products, against their equations written out; the space they live in."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from foveate.attention import mechanism
from foveate.errors import ShapeError, UnknownName
from foveate.lab.encoders import StoredFeatures, TextEncoder
from foveate.lab.features import ImageFeatures
from foveate.lab.losses import ranking_hinge
from foveate.lab.models import (
    BFAN,
    SCAN,
    FragmentMatcher,
    Fragments,
    InnerProduct,
    LogSumExp,
    MatchingDAN,
    Mean,
)
from foveate.lab.models import fragments as module
from foveate.lab.models.bfan import focus_equal, focus_prob
from foveate.lab.models.fragments import join_fragments
from foveate.ops import sparsemax, tvmax
from tests.lab.models import matching_reference as slow

LENGTHS = (3, 2, 1, 3, 4)


def fragments(*, masked: bool = False, dtype: torch.dtype = torch.float64) -> tuple[Fragments, Fragments]:
    torch.manual_seed(0)
    images = torch.randn(3, 4, 5, dtype=dtype)
    texts = torch.randn(len(LENGTHS), 4, 5, dtype=dtype)
    words = torch.arange(4) < torch.tensor(LENGTHS)[:, None]
    seen = torch.arange(4) < torch.tensor([4, 2, 1])[:, None] if masked else None
    grid = torch.tensor([[2, 2], [1, 2], [1, 1]]) if masked else (2, 2)
    return Fragments(images.requires_grad_(), seen, grid), Fragments(texts.requires_grad_(), words)


def grid_tvmax(row: torch.Tensor) -> torch.Tensor:
    return tvmax(row.reshape(2, 2), smoothness=0.1).flatten()


def soft(name: str = "softmax", **options: float):
    return mechanism(name, **options)


CASES = {
    "t2i": (lambda **o: SCAN(soft(), **o), partial(slow.scan)),
    "t2i mean": (lambda **o: SCAN(soft(), aggregate=Mean(), **o), partial(slow.scan, lse=None)),
    "t2i temperature": (lambda **o: SCAN(soft(), temperature=3.0, **o), partial(slow.scan, temperature=3.0)),
    "i2t": (
        lambda **o: SCAN(soft(), direction="i2t", temperature=4.0, aggregate=LogSumExp(5.0), **o),
        partial(slow.scan, direction="i2t", temperature=4.0, lse=5.0),
    ),
    "i2t mean": (
        lambda **o: SCAN(soft(), direction="i2t", aggregate=Mean(), **o),
        partial(slow.scan, direction="i2t", lse=None),
    ),
    "t2i sparsemax": (lambda **o: SCAN(soft("sparsemax"), **o), partial(slow.scan, transform=sparsemax)),
    "bfan prob": (lambda **o: BFAN(soft(), soft(), **o), partial(slow.bfan)),
    "bfan equal": (lambda **o: BFAN(soft(), soft(), focal="equal", **o), partial(slow.bfan, kind="equal")),
    "bfan cool": (lambda **o: BFAN(soft(), soft(), temperature=2.0, **o), partial(slow.bfan, temperature=2.0)),
    "bfan sparsemax": (
        lambda **o: BFAN(soft("sparsemax"), soft("sparsemax"), **o),
        partial(slow.bfan, transform=sparsemax),
    ),
}


def gradients(scores: torch.Tensor, upstream: torch.Tensor, images: Fragments, texts: Fragments) -> list[torch.Tensor]:
    return list(torch.autograd.grad(scores, (images.values, texts.values), upstream))


def unit(images: Fragments, texts: Fragments) -> tuple[Fragments, Fragments]:
    return images.unit(), texts.unit()


@pytest.fixture(params=["all pairs", "few pairs"])
def gradient_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The two ways back: blocks of all pairs, or the pairs that have a gradient."""
    monkeypatch.setattr(module, "DENSE", 0.0 if request.param == "all pairs" else 1.0)
    return request.param


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_the_equations(case: str, masked: bool, gradient_of: str) -> None:
    make, score = CASES[case]
    images, texts = fragments(masked=masked)
    scores = make()(*unit(images, texts))
    expected = slow.matrix(score, images.values, images.mask, texts.values, texts.mask)
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-9)
    upstream = torch.randn_like(scores)
    for ours, theirs in zip(
        gradients(scores, upstream, images, texts), gradients(expected, upstream, images, texts), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


def test_tvmax_over_the_grid_of_the_image() -> None:
    images, texts = fragments()
    scores = SCAN(mechanism("tvmax", smoothness=0.1))(*unit(images, texts))
    expected = slow.matrix(partial(slow.scan, transform=grid_tvmax), images.values, None, texts.values, texts.mask)
    torch.testing.assert_close(scores, expected, rtol=1e-7, atol=1e-7)
    upstream = torch.randn_like(scores)
    ours, theirs = (gradients(s, upstream, images, texts) for s in (scores, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", ["t2i", "i2t", "bfan prob"])
def test_float32_is_close(case: str) -> None:
    make, score = CASES[case]
    images, texts = fragments(dtype=torch.float32)
    scores = make()(*unit(images, texts))
    expected = slow.matrix(score, images.values, images.mask, texts.values, texts.mask)
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn_like(scores)
    ours, theirs = (gradients(s, upstream, images, texts) for s in (scores, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["t2i", "i2t", "bfan prob"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_budget_cuts_blocks_and_changes_nothing(
    case: str, masked: bool, gradient_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, _ = CASES[case]
    images, texts = fragments(masked=masked)
    upstream = torch.randn(3, len(LENGTHS), dtype=torch.float64)
    results, calls = [], []
    for budget in (1, 2000, 1 << 30):
        scorer = make(budget=budget)
        seen = watch(scorer, monkeypatch)
        scores = scorer(*unit(images, texts))
        forward = len(seen)
        results.append([scores, *gradients(scores, upstream, images, texts)])
        calls.append((forward, len(seen) - forward))
        assert all(paired == (gradient_of == "few pairs") for _, paired in seen[forward:])
    # every pair by itself; of a dense gradient every image by itself with each of four lengths
    assert calls[0] == (15, 15 if gradient_of == "few pairs" else 12)
    assert calls[2] == (4, 4)
    assert 4 < calls[1][0] < 15
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-12, atol=1e-12)


def watch(scorer: SCAN | BFAN, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Notes of every block: how many images, and whether in pairs."""
    plain, notes = scorer.score, []

    def score(images: Fragments, texts: Fragments, *, paired: bool) -> torch.Tensor:
        notes.append((len(images), paired))
        return plain(images, texts, paired=paired)

    monkeypatch.setattr(scorer, "score", score)
    return notes


def test_only_pairs_with_a_gradient_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DENSE", 0.2)
    images, texts = fragments()
    scorer = SCAN(soft())
    notes = watch(scorer, monkeypatch)
    scores = scorer(*unit(images, texts))
    (scores[1, 0] + scores[2, 4] * 2).backward()
    assert [count for count, paired in notes if paired] == [1, 1]
    assert images.values.grad[0].abs().sum() == 0
    assert texts.values.grad[1].abs().sum() == 0


@pytest.mark.parametrize("scorer", [SCAN(soft()), BFAN(soft(), soft())], ids=["scan", "bfan"])
def test_second_derivatives_are_right(scorer) -> None:
    """Also where the score itself is differentiated, so that the upstream gradient is a constant."""
    images, texts = unit(*fragments(masked=True))
    inputs = images.values.detach().requires_grad_(), texts.values.detach().requires_grad_()

    def score(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return scorer(Fragments(x, images.mask, images.grid), Fragments(y, texts.mask))

    plain = torch.autograd.grad(score(*inputs).sum(), inputs)
    again = torch.autograd.grad(score(*inputs).sum(), inputs, create_graph=True)
    torch.testing.assert_close([x.detach() for x in again], list(plain))
    assert all(x.requires_grad for x in again)
    torch.manual_seed(0)
    assert torch.autograd.gradgradcheck(score, inputs, atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    images, texts = fragments(dtype=torch.float32)
    rounded = [
        Fragments(part.values.detach().to(dtype).requires_grad_(), part.mask, part.grid) for part in (images, texts)
    ]
    exact = [Fragments(part.values.detach().float(), part.mask, part.grid) for part in rounded]
    for scorer in (SCAN(soft()), BFAN(soft(), soft())):
        scores = scorer(*rounded)
        assert scores.dtype == torch.float32
        torch.testing.assert_close(scores, scorer(*exact))
        pairs = [part[torch.tensor([0, 1, 2])] for part in (*rounded, *exact)]
        for half, full in zip(scorer.cross_attend(*pairs[:2]), scorer.cross_attend(*pairs[2:]), strict=True):
            assert torch.equal(half.attended, full.attended)
        assert all(
            g.dtype == dtype and g.isfinite().all() for g in gradients(scores, torch.ones_like(scores), *rounded)
        )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = SCAN(soft())(*exact)
        looks = BFAN(soft(), soft()).cross_attend(*pairs[2:])
    assert torch.equal(mixed, SCAN(soft())(*exact))
    assert all(
        torch.equal(a.weights, b.weights)
        for a, b in zip(looks, BFAN(soft(), soft()).cross_attend(*pairs[2:]), strict=True)
    )


def test_two_calls_before_backward_do_not_disturb_each_other() -> None:
    images, texts = fragments()
    scorer = SCAN(soft())
    alone = gradients(scorer(*unit(images, texts)).sum(), torch.ones(()), images, texts)
    first = scorer(*unit(images, texts))
    scorer(*unit(images[0:2], texts))
    torch.testing.assert_close(gradients(first.sum(), torch.ones(()), images, texts), alone)


@pytest.mark.parametrize("case", CASES)
def test_nothing_to_look_at_scores_zero_without_nan(case: str) -> None:
    images, texts = fragments()
    images = Fragments(images.values, torch.tensor([[True] * 4, [False] * 4, [False] * 4]), (2, 2))
    texts = Fragments(texts.values, torch.arange(4) < torch.tensor([3, 0, 1, 0, 2])[:, None])
    scores = CASES[case][0]()(*unit(images, texts))
    assert (scores[:, [1, 3]] == 0).all()
    assert (scores[1:] == 0).all() or case in ("t2i", "t2i temperature", "t2i sparsemax")
    for gradient in gradients(scores, torch.ones_like(scores), images, texts):
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0


def test_zero_vectors_give_zero_and_a_finite_gradient() -> None:
    images, texts = (
        Fragments(torch.zeros(2, 3, 4, requires_grad=True)),
        Fragments(torch.zeros(1, 2, 4).requires_grad_()),
    )
    for scorer in (SCAN(soft(), aggregate=Mean()), BFAN(soft(), soft())):
        scores = scorer(*unit(images, texts))
        assert scores.tolist() == [[0.0], [0.0]]
        assert all(g.isfinite().all() for g in gradients(scores, torch.ones_like(scores), images, texts))


@pytest.mark.parametrize("shape", [(0, 3, 2, 2), (2, 3, 0, 2), (1, 1, 1, 1)])
def test_edge_sizes(shape: tuple[int, int, int, int]) -> None:
    images, texts = Fragments(torch.randn(shape[0], shape[1], 4)).unit(), Fragments(torch.randn(*shape[2:], 4)).unit()
    for scorer in (SCAN(soft()), SCAN(soft(), direction="i2t"), BFAN(soft(), soft())):
        scores = scorer(images, texts)
        assert scores.shape == (shape[0], shape[2])
        assert scores.isfinite().all()


def test_look_is_where_the_words_look() -> None:
    images, texts = fragments()
    images, texts = unit(images, texts)
    pairs = images[torch.tensor([2, 0])], texts[torch.tensor([1, 4])]
    seen = SCAN(soft()).look(*pairs)
    assert seen.map().shape == (2, 4, 2, 2)
    for p, (i, c) in enumerate([(2, 1), (0, 4)]):
        rows = slow.attention(texts.values[c][texts.mask[c]], images.values[i], 9.0, slow.softmax)
        for t, row in enumerate(rows):
            torch.testing.assert_close(seen.weights[p, t], row)
            torch.testing.assert_close(seen.context[p, t], row @ images.values[i])


def test_bfan_looks_with_focus_and_scan_does_not() -> None:
    images, texts = (part[0:3] for part in unit(*fragments()))
    focused = BFAN(soft(), soft(), temperature=5.0).cross_attend(images, texts)
    assert [look.queries_are_words for look in focused] == [True, False]
    plain = SCAN(soft(), temperature=5.0).cross_attend(images, texts)[0]
    assert (focused[0].weights[texts.mask] == 0).any()
    assert (plain.weights[texts.mask] > 0).all()
    assert torch.equal(focused[0].attended, focused[0].weights > 0)
    assert torch.equal(plain.attended, plain.weights > 1 / 4)
    row = slow.attention(texts.values[0][texts.mask[0]], images.values[0], 5.0, slow.softmax)[0]
    torch.testing.assert_close(focused[0].weights[0, 0], slow.focal(row, "prob"))
    torch.testing.assert_close(plain.scores[0, 0].softmax(-1), row)


def test_attended_counts_the_locations_that_are_there() -> None:
    images, texts = (part[0:3] for part in unit(*fragments(masked=True)))
    look = SCAN(soft()).cross_attend(images, texts)[0]
    counts = images.mask.sum(-1)[:, None, None]
    assert torch.equal(look.attended, look.weights > 1 / counts)


def test_fragments_that_do_not_fit_are_refused() -> None:
    images, texts = unit(*fragments())
    scan = SCAN(soft())
    with pytest.raises(ShapeError, match=r"SCAN: expected mask of texts \(C, T\) of sizes"):
        scan(images, Fragments(texts.values, texts.mask[:1]))
    holes = texts.mask.clone()
    holes[:, 0], holes[:, 1] = False, True
    with pytest.raises(ShapeError, match="SCAN: expected padding at the end only, got a word after a masked one"):
        scan(images, Fragments(texts.values, holes))
    with pytest.raises(ShapeError, match=r"SCAN: expected 6 locations on a grid \(2, 3\), got 4"):
        scan(Fragments(images.values, None, (2, 3)), texts)
    with pytest.raises(ShapeError, match=r"attend_pairs: expected texts \(C, T, D\) of sizes \(2, any, 5\)"):
        scan.look(images[0:2], texts[0:3])


def test_relevance_of_a_look_is_that_of_the_score() -> None:
    images, texts = (part[0:3] for part in unit(*fragments()))
    scan = SCAN(soft(), aggregate=Mean())
    relevance = scan.cross_attend(images, texts)[0].relevance()
    torch.testing.assert_close(Mean()(relevance, texts.mask), scan(images, texts).diagonal())


def test_locations_that_look_at_words_are_refused_as_looks_of_words() -> None:
    images, texts = (part[0:3] for part in unit(*fragments()))
    with pytest.raises(ValueError, match=r'SCAN: expected words that attend to images, got .* use direction="t2i"'):
        SCAN(soft(), direction="i2t").look(images, texts)


@pytest.mark.parametrize("focus", [focus_equal, focus_prob])
def test_a_focus_always_keeps_something(focus) -> None:
    assert focus(torch.full((1, 4), 0.25)).all()
    assert focus(torch.ones(1, 1)).all()
    assert not focus(torch.zeros(1, 3)).any()
    torch.manual_seed(0)
    weights = torch.randn(200, 3, 7).softmax(-1)
    for row in weights.flatten(0, 1)[:50]:
        kept = slow.focal(row, focus.__name__.removeprefix("focus_")) > 0
        assert torch.equal(focus(row[None])[0], kept)
    assert focus(weights).any(-1).all()


def test_the_mean_of_equal_focus_is_over_keys_that_count() -> None:
    weights, keys = torch.tensor([[0.5, 0.3, 0.2, 0.0]]), torch.tensor([[True, True, True, False]])
    assert focus_equal(weights, keys).tolist() == [[True, False, False, False]]
    assert focus_equal(weights).tolist() == [[True, True, False, False]]


def test_aggregates_ignore_what_does_not_count() -> None:
    x, mask = torch.tensor([[0.2, 0.4, 5.0], [1.0, 1.0, 1.0]]), torch.tensor([[True, True, False], [False] * 3])
    assert Mean()(x, mask).tolist() == pytest.approx([0.3, 0.0])
    assert LogSumExp(2.0)(x, mask)[0].item() == pytest.approx(LogSumExp(2.0)(x[:1, :2]).item())
    assert LogSumExp(2.0)(x, mask)[1].item() == 0


def tiny(scorer: SCAN | BFAN | None = None, dropout: float = 0.0) -> FragmentMatcher:
    torch.manual_seed(0)
    text = TextEncoder(20, word_dim=6, hidden=8, cell="gru", directions="average")
    return FragmentMatcher(text, StoredFeatures(10), scorer or SCAN(soft()), dropout=dropout)


def inputs() -> tuple[ImageFeatures, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    mask = torch.arange(7)[None] < torch.tensor([7, 4, 1])[:, None]
    return ImageFeatures(torch.randn(2, 6, 10), (2, 3)), torch.randint(4, 20, (3, 7)), mask


def test_the_space_holds_unit_vectors_of_both_sides() -> None:
    model, (features, tokens, mask) = tiny(), inputs()
    seen, read = model.embed_image(features), model.embed_text(tokens, mask)
    torch.testing.assert_close(seen.values.norm(dim=-1), torch.ones(2, 6))
    torch.testing.assert_close(read.values.norm(dim=-1), mask.float())
    v = model.features.weight @ features.values[1, 3] + model.features.bias
    torch.testing.assert_close(seen.values[1, 3], v / v.norm())
    forward, backward = model.text.recurrent(model.text.words(tokens[1:2, :4]))[0][0].chunk(2, -1)
    u = (forward[2] + backward[2]) / 2
    torch.testing.assert_close(read.values[1, 2], u / u.norm())
    expected = slow.matrix(slow.scan, seen.values, None, read.values, mask)
    torch.testing.assert_close(model(features, tokens, mask), expected, rtol=1e-4, atol=1e-5)


MATCHERS = {
    "scan": lambda: tiny(),
    "scan i2t": lambda: tiny(SCAN(soft(), direction="i2t", temperature=4.0)),
    "bfan": lambda: tiny(BFAN(soft(), soft())),
    "m-dan": lambda: MatchingDAN(
        TextEncoder(20, word_dim=6, hidden=8, directions="sum"), StoredFeatures(10), soft(), soft(), dropout=0.0
    ),
}


@pytest.mark.parametrize("name", MATCHERS)
def test_learns_eight_pairs_by_heart(name: str) -> None:
    torch.manual_seed(0)
    model = MATCHERS[name]()
    features, tokens = ImageFeatures(torch.randn(8, 4, 10), (2, 2)), torch.randint(4, 20, (8, 5))
    mask = torch.arange(5) < torch.randint(2, 6, (8, 1))
    optimiser, owner = torch.optim.Adam(model.parameters(), 1e-2), torch.arange(8)
    for step in range(60):
        optimiser.zero_grad()
        ranking_hinge(model(features, tokens, mask), owner, negatives="all").backward()
        if step == 0:
            still = {label for label, p in model.named_parameters() if p.grad is None or not p.grad.any()}
            assert all(label.endswith("scores.bias") for label in still)  # a shift of all scores changes nothing
        optimiser.step()
    scores = model(features, tokens, mask)
    assert torch.equal(scores.argmax(0), owner)
    assert torch.equal(scores.argmax(1), owner)


def test_joined_fragments_keep_masks_and_grids() -> None:
    one, two = Fragments(torch.randn(2, 4, 3), grid=(2, 2)), Fragments(torch.randn(1, 4, 3), grid=(2, 2))
    same = join_fragments([one, two])
    assert (len(same), same.mask, same.grid) == (3, None, (2, 2))
    other = Fragments(torch.randn(2, 6, 3), torch.arange(6) < torch.tensor([[6], [2]]), torch.tensor([[2, 3], [1, 2]]))
    mixed = join_fragments([one, other])
    assert mixed.values.shape == (4, 6, 3)
    assert mixed.mask.sum(-1).tolist() == [4, 4, 6, 2]
    assert mixed.grid.tolist() == [[2, 2], [2, 2], [2, 3], [1, 2]]
    torch.testing.assert_close(mixed.values[:2, :4], one.values)
    assert join_fragments([one, Fragments(torch.randn(1, 5, 3))]).grid is None
    texts = Fragments(torch.randn(2, 3, 3)).unit()
    for scorer in (SCAN(soft("tvmax")), BFAN(soft("tvmax"), soft())):
        apart = torch.cat([scorer(one.unit(), texts), scorer(other.unit(), texts)])
        torch.testing.assert_close(scorer(mixed.unit(), texts), apart, rtol=1e-4, atol=1e-5)


def test_drops_in_training_only() -> None:
    model, given = tiny(dropout=0.5), inputs()
    assert not torch.equal(model(*given), model(*given))
    model.eval()
    assert torch.equal(model(*given), model(*given))


def test_messages() -> None:
    images, texts = unit(*fragments())
    with pytest.raises(ShapeError, match=r"SCAN: expected texts \(C, T, D\) of sizes \(any, any, 5\), got \(2, 3, 4\)"):
        SCAN(soft())(images, Fragments(torch.zeros(2, 3, 4).double()))
    with pytest.raises(TypeError, match="BFAN: expected floating-point images"):
        BFAN(soft(), soft())(Fragments(torch.zeros(1, 2, 3, dtype=torch.long)), texts)
    with pytest.raises(ValueError, match="SCAN: expected direction 't2i' or 'i2t', got 'both'; correct the name"):
        SCAN(soft(), direction="both")
    with pytest.raises(ValueError, match="SCAN: expected budget >= 1, got 0; pass a number of bytes"):
        SCAN(soft(), budget=0)
    with pytest.raises(ValueError, match="CrossAttention: expected temperature > 0, got 0"):
        SCAN(soft(), temperature=0)
    with pytest.raises(ValueError, match="LogSumExp: expected factor > 0, got -1"):
        LogSumExp(-1)
    with pytest.raises(UnknownName, match="focal: expected a known name, got 'probs'; did you mean 'prob'"):
        BFAN(soft(), soft(), focal="probs")
    with pytest.raises(TypeError, match="CrossAttention: expected an attention with discrete weights, got Continuous"):
        SCAN(mechanism("continuous-softmax"))
    with pytest.raises(ShapeError, match=r"InnerProduct: expected images \(B, 1, D\)"):
        InnerProduct()(images, texts)
    with pytest.raises(ShapeError, match="tvmax: expected keys on a grid, got none"):
        SCAN(mechanism("tvmax"))(Fragments(images.values), texts)
