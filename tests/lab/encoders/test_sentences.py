"""States of a pretrained sentence encoder: one per word, cached in memory and on disk."""

from __future__ import annotations

import importlib.machinery
from pathlib import Path

import pytest
import torch

from foveate.errors import MissingExtra
from foveate.lab.encoders import SentenceEncoder
from foveate.lab.encoders.sentences import PACKAGE, _by_word


def test_pieces_of_a_word_are_averaged() -> None:
    states = torch.arange(6.0)[:, None].expand(6, 2)
    found = _by_word(states, [None, 0, 1, 1, None, None], words=2, length=5)
    assert found[:, 0].tolist() == [0.0, 1.0, 2.5, 4.0]


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foveate.lab.encoders.sentences.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "foveate\[sentences\]"'):
        SentenceEncoder()


def test_states_do_not_depend_on_the_batch_and_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(PACKAGE, reason="needs the extra sentences")
    pytest.importorskip("transformers", reason="needs the extra sentences")
    monkeypatch.setenv("FOVEATE_CACHE", str(tmp_path))
    encoder = SentenceEncoder()
    both = encoder([("a", "dog", "swimming"), ("two", "men")])
    assert both.shape == (2, 5, encoder.dim)
    assert not both[1, 4:].any()
    torch.testing.assert_close(encoder([("two", "men")])[0], both[1, :4])
    prepared = SentenceEncoder()
    prepared.prepare([("a", "dog", "swimming"), ("two", "men")])
    assert len(list(tmp_path.glob("minilm-*.safetensors"))) == 1
    again = SentenceEncoder()
    monkeypatch.setattr(again, "_encode", lambda keys, progress=False: dict.fromkeys(keys, torch.full((4, 384), 7.0)))
    again.prepare([("a", "dog", "swimming"), ("two", "men")])
    torch.testing.assert_close(again([("two", "men")])[0], both[1, :4], atol=2e-3, rtol=0)


def test_a_long_sentence_that_does_not_fit_leaves_room_for_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "foveate.lab.encoders.sentences.find_spec", lambda name: importlib.machinery.ModuleSpec(name, None, origin="x")
    )
    monkeypatch.setattr("foveate.lab.encoders.sentences.CACHE_BYTES", 40)
    encoder = SentenceEncoder()
    sizes = {("a",): 4, ("b",) * 9: 9, ("c",): 4, ("d",): 4}
    monkeypatch.setattr(encoder, "_encode", lambda keys, progress=False: {key: torch.ones(sizes[key]) for key in keys})
    encoder(list(sizes))
    assert list(encoder.cached) == [("a",), ("c",)]
    encoder([("a",), ("d",)])
    assert list(encoder.cached) == [("a",), ("c",)]
    assert encoder.bytes == 32
