"""MCAN as Yu et al. and, after them, Martins et al. and Farinhas et al. released it (mcan-vqa, openvqa)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from foveate.errors import DataError
from foveate.lab.data.feature_store import StoreDescription
from foveate.lab.data.tokenizers import openvqa_tokens
from foveate.lab.data.vocabulary import AnswerVocabulary
from foveate.lab.models import MCANSettings
from foveate.lab.papers.authors.checkpoint import read_checkpoint, state_dict
from foveate.lab.papers.authors.conversion import (
    Origin,
    Published,
    PublishedFiles,
    Tensors,
    first_seen,
    linear,
    read_published_json,
    recurrent,
    reorder_tokens,
    stacked,
    strings_by_id,
    unbiased_norm,
)
from foveate.lab.tasks.images import Stored
from foveate.lab.tasks.inputs import Inputs
from foveate.lab.tasks.vqa.settings import VQASettings
from foveate.lab.train.config import Adam, Training
from foveate.lab.train.recipe import Recipe

# Their names of our special tokens; openvqa has a CLS, which no question uses.
SPECIAL_TOKENS = {"<pad>": "PAD", "<unknown>": "UNK", "<start>": "CLS"}
# The layer that projects the features, in openvqa and in mcan-vqa.
FEATURE_LAYERS = ("adapter.frcn_linear", "img_feat_linear")
_LAYER = re.compile(r"backbone\.enc_list\.(\d+)\.")


def read_mcan(sources: PublishedFiles) -> Published:
    """MCAN with its tokens and answers; sizes follow from the weights, except the number of heads, which is 8."""
    if sources.answers is None:
        raise DataError("import-run: expected --answers answer_dict.json for mcan, got none; openvqa publishes it")
    found = read_checkpoint(sources.checkpoint)
    weights = state_dict(sources.checkpoint, found.get("state_dict", found))
    for name in ("lstm.weight_hh_l0", "embedding.weight"):
        if name not in weights:
            raise DataError(
                f"import-run: expected the weights of MCAN in {sources.checkpoint}, got none called {name}; "
                "pass the checkpoint of an epoch, such as epoch13.pkl"
            )
    tokens = _tokens(sources, len(weights["embedding.weight"]))
    words, order = reorder_tokens(tokens, {own: name for own, name in SPECIAL_TOKENS.items() if name in tokens})
    layers = 1 + max((int(place[1]) for name in weights if (place := _LAYER.match(name))), default=-1)
    features = next((name for name in FEATURE_LAYERS if f"{name}.weight" in weights), FEATURE_LAYERS[0])
    settings = VQASettings(
        dataset="vqa-v2",
        images=Stored("{split}.h5"),
        model=MCANSettings(hidden=weights["lstm.weight_hh_l0"].shape[1], layers=layers),
        word_dim=weights["embedding.weight"].shape[1],
        tokenizer="openvqa",
    )
    parts = {"text.words.weight": Origin(("embedding.weight",), order), **_parts(layers, features)}
    vocabulary = Inputs(words, *_features(sources, weights, f"{features}.weight")).to_json()
    recipe = Recipe(
        "imported-mcan", "vqa", settings, Training(Adam(1e-4, betas=(0.9, 0.98), eps=1e-9)), "published MCAN"
    )
    return Published(recipe, vocabulary | {"answers": _answers(sources).to_json()}, weights, parts)


def _parts(layers: int, features: str) -> dict[str, Origin]:
    parts = {
        **recurrent("text.recurrent", "lstm", both=False),
        **linear("features", features),
        **_norm("norm", "proj_norm"),
        **linear("answers", "proj"),
    }
    for ours, theirs in (("flat_question", "attflat_lang"), ("flat_image", "attflat_img")):
        parts |= linear(f"{ours}.scores.0", f"{theirs}.mlp.fc.linear") | linear(
            f"{ours}.scores.3", f"{theirs}.mlp.linear"
        )
        parts |= linear(f"{ours}.out", f"{theirs}.linear_merge")
    for place in range(layers):
        encoder, decoder = f"backbone.enc_list.{place}", f"backbone.dec_list.{place}"
        parts |= _block(f"encoder.{place}", encoder, {"attend": "mhatt"})
        parts |= _block(f"decoder.{place}", decoder, {"attend": "mhatt1", "attend_words": "mhatt2"})
    return parts


def _block(ours: str, theirs: str, attention: Mapping[str, str]) -> dict[str, Origin]:
    """One layer of the encoder or the decoder: its attention, its feed-forward layer and its norms."""
    parts = linear(f"{ours}.forward_layer.0", f"{theirs}.ffn.mlp.fc.linear")
    parts |= linear(f"{ours}.forward_layer.3", f"{theirs}.ffn.mlp.linear")
    for own, name in attention.items():
        inner = {kind: f"{ours}.{own}.in_proj_{kind}" for kind in ("weight", "bias")}
        parts |= stacked(inner, [f"{theirs}.{name}.linear_{letter}" for letter in "qkv"])
        parts |= linear(f"{ours}.{own}.out_proj", f"{theirs}.{name}.linear_merge")
    for number in range(len(attention) + 1):
        parts |= _norm(f"{ours}.joins.{number}.norm", f"{theirs}.norm{number + 1}")
    return parts


def _norm(ours: str, theirs: str) -> dict[str, Origin]:
    return {f"{ours}.weight": Origin((f"{theirs}.a_2",), unbiased_norm), f"{ours}.bias": Origin((f"{theirs}.b_2",))}


def _features(sources: PublishedFiles, weights: Tensors, name: str) -> tuple[int, StoreDescription]:
    dim = weights[name].shape[1] if name in weights else 2048
    return check_store(sources, dim, "bottom-up")


def check_store(sources: PublishedFiles, dim: int, usual: str) -> tuple[int, StoreDescription]:
    """The size of the features and their origin: the store that was passed, or the usual one."""
    if sources.store is None:
        return dim, StoreDescription(usual)
    description, size = sources.store
    if size != dim:
        raise DataError(
            f"import-run: expected a store of features of size {dim} as in the checkpoint, got {size}; "
            "pass the features that the model was trained on"
        )
    return dim, description


def _tokens(sources: PublishedFiles, count: int) -> list[str]:
    """Their tokens by id: from a JSON of tokens, or from the questions in the order they were read."""
    files = [(path, read_published_json(path, "the tokens or the question files")) for path in sources.tokens]
    if not files:
        raise DataError(
            "import-run: expected --tokens with a JSON file of tokens or the question files in order, got none; "
            "MCAN numbers its tokens in the order of the questions of train, val and test"
        )
    if len(files) == 1 and not _questions(files[0][1]):
        return strings_by_id(*files[0], "the tokens")
    sentences = [openvqa_tokens(str(one["question"])) for _, found in files for one in _questions(found)]
    # openvqa has a CLS and mcan-vqa has none: the number of word vectors shows which of them it is.
    tokens = first_seen(sentences, ["PAD", "UNK", "CLS"])
    return tokens if len(tokens) == count else first_seen(sentences, ["PAD", "UNK"])


def _questions(found: Any) -> list[Any]:
    """The questions of a VQA question file, or of Visual Genome's; empty for anything else."""
    rows = found.get("questions") if isinstance(found, Mapping) else found
    return (
        rows
        if isinstance(rows, list) and rows and all(isinstance(r, Mapping) and "question" in r for r in rows)
        else []
    )


def _answers(sources: PublishedFiles) -> AnswerVocabulary:
    """Their answers by class: openvqa's pair of mappings, one mapping, or a list."""
    assert sources.answers is not None  # checked before the checkpoint is read
    found = read_published_json(sources.answers, "answer_dict.json")
    if isinstance(found, list) and found and isinstance(found[0], Mapping):
        found = found[0]
    return AnswerVocabulary(tuple(strings_by_id(sources.answers, found, "the answers")))
