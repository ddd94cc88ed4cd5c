"""SCAN and BFAN as Lee et al. and Liu et al. released them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from foveate.errors import DataError
from foveate.lab.models import BFANSettings, SCANSettings
from foveate.lab.models.families import MatchingModelSettings
from foveate.lab.papers.authors.checkpoint import read_checkpoint, state_dict
from foveate.lab.papers.authors.conversion import (
    Origin,
    Published,
    PublishedFiles,
    linear,
    read_published_json,
    recurrent,
    reorder_tokens,
    strings_by_id,
    weight_norm,
)
from foveate.lab.papers.authors.released_mcan import check_store
from foveate.lab.tasks.images import Stored
from foveate.lab.tasks.inputs import Inputs
from foveate.lab.tasks.matching.settings import MatchingSettings
from foveate.lab.train.config import Adam, Training
from foveate.lab.train.recipe import Recipe

SPECIAL_TOKENS = {"<pad>": "<pad>", "<unknown>": "<unk>", "<start>": "<start>", "<end>": "<end>"}
AGGREGATES = {"LogSumExp": "lse", "Mean": "mean"}
DATASETS = {"f30k": "flickr30k", "coco": "coco-karpathy"}
# Options whose other values our models do not have.
FIXED: Mapping[str, Any] = {
    "raw_feature_norm": "clipped_l2norm",
    "num_layers": 1,
    "no_imgnorm": False,
    "no_txtnorm": False,
}


def read_scan(sources: PublishedFiles) -> Published:
    """SCAN; its direction, temperature and aggregation are read from the options in the checkpoint."""
    weights, options = _read(sources)
    problems = _check(options, {"agg_func": tuple(AGGREGATES), "cross_attn": ("t2i", "i2t")})
    model = SCANSettings(
        hidden=_hidden(weights),
        direction=options.get("cross_attn", "t2i") if not problems else "t2i",
        temperature=float(options.get("lambda_softmax", 9.0)),
        aggregate="mean" if options.get("agg_func") == "Mean" else "lse",
        lse=float(options.get("lambda_lse", 6.0)),
    )
    return _published("scan", sources, weights, options, model, problems)


def read_bfan(sources: PublishedFiles) -> Published:
    """BFAN; its focal type and temperature are read from the options in the checkpoint."""
    weights, options = _read(sources)
    problems = _check(options, {"focal_type": ("equal", "prob")})
    model = BFANSettings(
        hidden=_hidden(weights),
        focal="equal" if options.get("focal_type") == "equal" else "prob",
        temperature=float(options.get("lambda_softmax", 20.0)),
    )
    return _published("bfan", sources, weights, options, model, problems)


def _read(sources: PublishedFiles) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights of both encoders under "image." and "text.", and the options."""
    found = read_checkpoint(sources.checkpoint)
    both = found.get("model")
    if not isinstance(both, list | tuple) or len(both) != 2:
        raise DataError(
            f"import-run: expected the weights of an image and a text encoder under 'model' in {sources.checkpoint}, "
            f"got {type(both).__name__}; pass a model_best.pth.tar"
        )
    parts = (state_dict(sources.checkpoint, part) for part in both)
    weights = {
        f"{kind}.{name}": t for kind, part in zip(("image", "text"), parts, strict=True) for name, t in part.items()
    }
    options = found.get("opt")
    return weights, dict(vars(options)) if isinstance(options, Namespace) else dict(options or {})


def _check(options: Mapping[str, Any], choices: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What the options demand that our models do not have, in words."""
    wrong = [
        f"{name}={options[name]!r}: only {value!r} is supported"
        for name, value in FIXED.items()
        if options.get(name, value) != value
    ]
    wrong += [
        f"{name}={options[name]!r}: only {' and '.join(known)} are supported"
        for name, known in choices.items()
        if options.get(name, known[0]) not in known
    ]
    return tuple(wrong)


def _hidden(weights: Mapping[str, Tensor]) -> int:
    name = "text.rnn.weight_hh_l0"
    if name not in weights:
        raise DataError(
            f"import-run: expected the weights of a recurrent text encoder, got none called {name.partition('.')[2]}; "
            "pass a checkpoint of SCAN or BFAN"
        )
    return weights[name].shape[1]


def _published(
    kind: str,
    sources: PublishedFiles,
    weights: dict[str, Tensor],
    options: Mapping[str, Any],
    model: MatchingModelSettings,
    problems: tuple[str, ...],
) -> Published:
    tokens = _tokens(sources)
    words, order = reorder_tokens(tokens, SPECIAL_TOKENS)
    normalised = "image.fc.weight_v" in weights
    parts = {
        "text.words.weight": Origin(("text.embed.weight",), order),
        **recurrent("text.recurrent", "text.rnn", both=True),
        **linear("features", "image.fc"),
    }
    if normalised:
        parts["features.weight"] = Origin(("image.fc.weight_g", "image.fc.weight_v"), weight_norm)
    shape = weights.get("image.fc.weight_v" if normalised else "image.fc.weight")
    inputs = Inputs(words, *check_store(sources, 2048 if shape is None else shape.shape[1], "scan"))
    name = str(options.get("data_name", "f30k")).partition("_")[0]
    settings = MatchingSettings(
        dataset=DATASETS.get(name, "flickr30k"),
        images=Stored("{split}.h5"),
        model=model,
        word_dim=weights["text.embed.weight"].shape[1] if "text.embed.weight" in weights else 300,
        max_words=80,
        folds=5 if name == "coco" else 1,
        tokenizer="treebank",
    )
    training = Training(Adam(2e-4), epochs=30, batch_size=128, clip=2.0)
    recipe = Recipe(f"imported-{kind}", "matching", settings, training, f"published {kind.upper()}")
    return Published(recipe, inputs.to_json(), weights, parts, problems)


def _tokens(sources: PublishedFiles) -> list[str]:
    """Their tokens by id: the vocabulary JSON of the release, or a mapping or list of tokens."""
    if len(sources.tokens) != 1:
        raise DataError(
            f"import-run: expected --tokens with the vocabulary of the release, got {len(sources.tokens)} files; "
            "SCAN publishes vocab/f30k_precomp_vocab.json"
        )
    path = sources.tokens[0]
    found = read_published_json(path, "the vocabulary, such as f30k_precomp_vocab.json,")
    return strings_by_id(path, found.get("word2idx", found) if isinstance(found, Mapping) else found, "the tokens")
