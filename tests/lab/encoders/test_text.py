"""Recurrent text encoders against cells run by hand over each text alone."""

from __future__ import annotations

import pytest
import torch

from foveate.errors import ShapeError
from foveate.lab.encoders import TextEncoder

LENGTHS = [4, 1, 6, 0, 3]


def batch(T: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, 20, (len(LENGTHS), T), generator=torch.Generator().manual_seed(1))
    return tokens, torch.arange(T)[None] < torch.tensor(LENGTHS)[:, None]


def by_hand(
    encoder: TextEncoder, tokens: torch.Tensor, cell: str, directions: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """States (n, D) and last state (D,) of one text, one token at a time with a cell that shares the weights."""
    both = []
    for suffix, order in (("", range(len(tokens))), ("_reverse", range(len(tokens) - 1, -1, -1))):
        if suffix and directions == "forward":
            continue
        unit = {"lstm": torch.nn.LSTMCell, "gru": torch.nn.GRUCell}[cell](encoder.words.embedding_dim, encoder.hidden)
        unit.double().load_state_dict(
            {n: getattr(encoder.recurrent, f"{n}_l0{suffix}") for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        )
        state, states = None, {}
        for t in order:
            state = unit(encoder.words(tokens[t])[None], state)
            states[t] = state[0][0] if cell == "lstm" else state[0]
        both.append((torch.stack([states[t] for t in range(len(tokens))]), states[order[-1]]))
    join = {
        "forward": lambda x: x[0],
        "concatenate": lambda x: torch.cat(x, -1),
        "sum": lambda x: x[0] + x[1],
        "average": lambda x: (x[0] + x[1]) / 2,
    }[directions]
    return join([states for states, _ in both]), join([last for _, last in both])


@pytest.mark.parametrize("directions", ["forward", "concatenate", "sum", "average"])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_each_text_as_if_alone(cell: str, directions: str) -> None:
    torch.manual_seed(0)
    encoder = TextEncoder(20, word_dim=5, hidden=7, cell=cell, directions=directions).double()
    tokens, mask = batch()
    out = encoder(tokens, mask)
    assert encoder.dim == (14 if directions == "concatenate" else 7)
    assert out.states.shape == (5, 6, encoder.dim)
    assert out.last.shape == (5, encoder.dim)
    assert out.mask is mask
    for row, length in enumerate(LENGTHS):
        assert not out.states[row, length:].any()
        if length == 0:
            assert not out.last[row].any()
            continue
        states, last = by_hand(encoder, tokens[row, :length], cell, directions)
        torch.testing.assert_close(out.states[row, :length], states, atol=1e-12, rtol=0)
        torch.testing.assert_close(out.last[row], last, atol=1e-12, rtol=0)


def test_padding_words_and_width_do_not_matter() -> None:
    encoder = TextEncoder(20, word_dim=5, hidden=4, directions="average")
    tokens, mask = batch()
    other = tokens.masked_fill(~mask, 19)
    wider = torch.cat([other, torch.full((5, 3), 3)], 1)
    a, b = encoder(tokens, mask), encoder(wider, torch.cat([mask, torch.zeros(5, 3, dtype=torch.bool)], 1))
    torch.testing.assert_close(a.states, b.states[:, :6])
    torch.testing.assert_close(a.last, b.last)
    assert b.states.shape[1] == 9


def test_gradients_reach_every_parameter_but_no_padding() -> None:
    encoder = TextEncoder(20, word_dim=5, hidden=4, cell="gru", directions="sum")
    tokens, mask = (
        torch.tensor([[1, 2, 3], [4, 9, 9], [9, 9, 9]]),
        torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).bool(),
    )
    out = encoder(tokens, mask)
    (out.states.square().sum() + out.last.sum()).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in encoder.parameters())
    used = encoder.words.weight.grad.abs().sum(1) > 0
    assert used.nonzero().flatten().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(("B", "T"), [(0, 3), (2, 0)])
def test_nothing_to_read(B: int, T: int) -> None:
    out = TextEncoder(5, word_dim=2, hidden=3)(torch.zeros(B, T, dtype=torch.long), torch.zeros(B, T, dtype=torch.bool))
    assert out.states.shape == (B, T, 3)
    assert not out.last.any()


def test_given_vectors_are_copied_and_trained() -> None:
    vectors = torch.randn(6, 3)
    encoder = TextEncoder(vectors, hidden=4)
    assert torch.equal(encoder.words.weight, vectors)
    assert encoder.words.weight.requires_grad
    with torch.no_grad():
        encoder.words.weight.add_(1)
    assert not torch.equal(encoder.words.weight, vectors)
    assert TextEncoder(6).words.embedding_dim == 300


def test_errors() -> None:
    encoder = TextEncoder(20, word_dim=2, hidden=3)
    tokens, mask = batch()
    with pytest.raises(ShapeError, match="expected padding at the end only, got a token after a masked one"):
        encoder(tokens, mask.flip(1))
    with pytest.raises(TypeError, match="TextEncoder: expected a boolean mask"):
        encoder(tokens, mask.float())
    with pytest.raises(ShapeError, match=r"TextEncoder: expected mask \(B, T\)"):
        encoder(tokens, mask[:1])
    with pytest.raises(ShapeError, match=r"TextEncoder: expected tokens \(B, T\)"):
        encoder(tokens[0], mask[0])
    with pytest.raises(ValueError, match=r"expected cell 'lstm' or 'gru'.*got 'rnn' and 'forward'"):
        TextEncoder(5, cell="rnn")
    with pytest.raises(ValueError, match="got 'lstm' and 'both'"):
        TextEncoder(5, directions="both")
    with pytest.raises(ShapeError, match=r"expected word vectors \(V, 4\), got \(6, 3\)"):
        TextEncoder(torch.zeros(6, 3), word_dim=4)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("directions", ["forward", "concatenate", "sum", "average"])
def test_without_packed_sequences_the_states_are_the_same(cell, directions):
    """What an exported graph computes: texts of different lengths, one of them empty."""
    torch.manual_seed(0)
    encoder = TextEncoder(20, word_dim=4, hidden=6, cell=cell, directions=directions)
    tokens, mask = torch.randint(0, 20, (4, 7)), torch.arange(7) < torch.tensor([[7], [4], [1], [0]])
    packed, plain = encoder(tokens, mask), encoder._read_unpacked(tokens, mask)
    torch.testing.assert_close(plain.states, packed.states)
    torch.testing.assert_close(plain.last, packed.last)
