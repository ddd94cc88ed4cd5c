"""MCAN, SCAN and BFAN as their authors released them, and such a checkpoint as the directory of a run."""

from __future__ import annotations

import hashlib
import re
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from foveate.attention import MECHANISMS
from foveate.errors import DataError
from foveate.lab.data.feature_store import StoreDescription
from foveate.lab.data.tokenizers import openvqa_tokens
from foveate.lab.data.vocabulary import AnswerVocabulary
from foveate.lab.models import BFANSettings, MCANSettings, SCANSettings
from foveate.lab.models.families import MatchingModelSettings
from foveate.lab.papers.authors.conversion import (
    Origin,
    Published,
    PublishedFiles,
    Tensors,
    convert,
    first_seen,
    linear,
    read_checkpoint,
    read_published_json,
    recurrent,
    reorder_tokens,
    stacked,
    state_dict,
    strings_by_id,
    unbiased_norm,
    weight_norm,
)
from foveate.lab.papers.paper_recipes import MIXTURE, ONE_DENSITY, THESIS
from foveate.lab.tasks import TASKS
from foveate.lab.tasks.images import Stored
from foveate.lab.tasks.inputs import Inputs
from foveate.lab.tasks.matching.settings import MatchingSettings
from foveate.lab.tasks.vqa.settings import VQASettings
from foveate.lab.train.config import Adam, Training
from foveate.lab.train.override import override
from foveate.lab.train.recipe import Recipe, to_config
from foveate.lab.train.records import CONFIG, VOCABULARY, note_environment, open_run
from foveate.lab.train.weights import WEIGHTS, named_tensors, save_tensors
from foveate.registry import lookup

# Their names of our special tokens; openvqa has a CLS, which no question uses.
MCAN_TOKENS = {"<pad>": "PAD", "<unknown>": "UNK", "<start>": "CLS"}
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
    words, order = reorder_tokens(tokens, {own: name for own, name in MCAN_TOKENS.items() if name in tokens})
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


CAPTION_TOKENS = {"<pad>": "<pad>", "<unknown>": "<unk>", "<start>": "<start>", "<end>": "<end>"}
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
    tokens = _caption_tokens(sources)
    words, order = reorder_tokens(tokens, CAPTION_TOKENS)
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
        rank_parts=5 if name == "coco" else 1,
        tokenizer="treebank",
    )
    training = Training(Adam(2e-4), epochs=30, batch_size=128, clip=2.0)
    recipe = Recipe(f"imported-{kind}", "matching", settings, training, f"published {kind.upper()}")
    return Published(recipe, inputs.to_json(), weights, parts, problems)


def _caption_tokens(sources: PublishedFiles) -> list[str]:
    """Their tokens by id: the vocabulary JSON of the release, or a mapping or list of tokens."""
    if len(sources.tokens) != 1:
        raise DataError(
            f"import-run: expected --tokens with the vocabulary of the release, got {len(sources.tokens)} files; "
            "SCAN publishes vocab/f30k_precomp_vocab.json"
        )
    path = sources.tokens[0]
    found = read_published_json(path, "the vocabulary, such as f30k_precomp_vocab.json,")
    return strings_by_id(path, found.get("word2idx", found) if isinstance(found, Mapping) else found, "the tokens")


AUTHORS: dict[str, Callable[[PublishedFiles], Published]] = {"mcan": read_mcan, "scan": read_scan, "bfan": read_bfan}


def import_run(kind: str, sources: PublishedFiles, out: Path, changes: Sequence[str] = ()) -> Recipe:
    """Write a published checkpoint as a run that `foveate.load`, `evaluate`, `answer` and `match` take.

    Args:
        kind: a row of `AUTHORS`.
        sources: its files.
        out: directory to create.
        changes: fields of the recipe to change, as "field=value": where the data is, or sizes that cannot be read from
            the weights, such as "model.heads=8". With a continuous mechanism (`mechanism=continuous-softmax`) the
            options that are not passed are those of the papers: basis, padding, floor, and cells at linspace(0, 1, n).

    Returns:
        the recipe of the run.

    Raises DataError, and writes nothing, if a file holds anything but tensors and plain values or does not fit.
    """
    published = lookup("import-run", kind, AUTHORS)(sources)
    recipe = _as_trained(override(published.recipe, changes))
    task = TASKS[recipe.task].from_vocabulary(recipe.settings, published.vocabulary)
    model = task.build_model()
    convert(published, model, str(sources.checkpoint))
    out.mkdir(parents=True, exist_ok=True)
    open_run(out, {CONFIG: to_config(recipe), VOCABULARY: task.vocabulary()}, resume=False)
    digest = hashlib.sha256(sources.checkpoint.read_bytes()).hexdigest()[:16]
    note_environment(out, recipe.training.seed, 1, "cpu", {sources.checkpoint.name: digest})
    save_tensors(out / WEIGHTS, named_tensors(model))
    return recipe


def _as_trained(recipe: Recipe) -> Recipe:
    """The recipe with the options of the papers for its continuous attention, except those that were passed."""
    settings = recipe.settings
    if not MECHANISMS[settings.mechanism].continuous:
        return recipe
    paper = {**ONE_DENSITY, **MIXTURE} if settings.mechanism == "multimodal" else THESIS
    return replace(recipe, settings=replace(settings, mechanism_options={**paper, **settings.mechanism_options}))
