"""Published checkpoints, and from their names, tokens and layouts to those of our models."""

from __future__ import annotations

import argparse
import math
import pickle
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from foveate.errors import DataError
from foveate.io import read_json
from foveate.lab.data.feature_store import StoreDescription
from foveate.lab.data.files import complete_file
from foveate.lab.data.vocabulary import SPECIAL, Vocabulary
from foveate.lab.models.mcan import UnbiasedLayerNorm
from foveate.lab.train.recipe import Recipe
from foveate.lab.train.weights import named_tensors

# The one class besides tensors and plain values: SCAN and BFAN keep their options in it.
ALLOWED: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [argparse.Namespace]
_CLASS = re.compile(r"GLOBAL ([\w.]+)")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a file that `torch.save` wrote: a dictionary of tensors, plain values and `argparse.Namespace`.

    Nothing in the file is executed. Raises DataError for a file with any other class in it, and for one that is damaged
    or holds something else.
    """
    with complete_file("import-run", "checkpoint", path, "download it again"):
        try:
            with torch.serialization.safe_globals(ALLOWED):
                found = torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise DataError(f"import-run: expected the file {path}, got none; check the path") from None
        except pickle.UnpicklingError as error:
            named = _CLASS.search(str(error))
            what = f"the class {named[1]}" if named else "other Python objects"
            raise DataError(
                f"import-run: expected tensors and plain values in {path}, got {what}, which could run code and is not "
                "loaded; save the state_dict alone with torch.save, in an environment that you trust"
            ) from None
    if not isinstance(found, dict):
        raise DataError(
            f"import-run: expected a dictionary in {path}, got {type(found).__name__}; pass the checkpoint itself"
        )
    return found


def state_dict(path: Path, found: Any) -> dict[str, Tensor]:
    """The tensors of a state_dict by name, without the prefix that data-parallel training adds."""
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise DataError(
            f"import-run: expected a state_dict in {path}, got {type(found).__name__}; pass a checkpoint of this model"
        )
    return {str(name).removeprefix("module."): tensor.detach() for name, tensor in found.items()}


Tensors: TypeAlias = Mapping[str, Tensor]
MOST_LISTED = 20


@dataclass(frozen=True)
class PublishedFiles:
    """The files that a published model consists of.

    Attributes:
        checkpoint: written by `torch.save`.
        tokens: JSON of the vocabulary, or JSON files of questions in the order in which the authors read them.
        answers: JSON of the answers; None for models that have none.
        store: description of the features the model is used with, and their size; None if not known.
    """

    checkpoint: Path
    tokens: tuple[Path, ...]
    answers: Path | None = None
    store: tuple[StoreDescription, int] | None = None


@dataclass(frozen=True)
class Origin:
    """Where one of our tensors comes from.

    Attributes:
        sources: names of theirs.
        join: computes ours from them; the only one, as it is, by default.
    """

    sources: tuple[str, ...]
    join: Callable[..., Tensor] = field(default=lambda only: only)


@dataclass(frozen=True)
class Published:
    """A published model in our terms.

    Attributes:
        recipe: with its settings; how it was trained as far as it matters for using it.
        vocabulary: contents of `vocabulary.json`.
        weights: theirs, by their names.
        parts: of every tensor of our model, by our names.
        problems: what does not fit, in words.
    """

    recipe: Recipe
    vocabulary: dict[str, Any]
    weights: Tensors
    parts: Mapping[str, Origin]
    problems: tuple[str, ...] = ()


def convert(published: Published, model: nn.Module, where: str) -> None:
    """Copy the weights of a published model into ours; raises DataError with a list of everything that does not fit."""
    own, problems, new = named_tensors(model), list(published.problems), {}
    problems += [f"{name}: no counterpart in the checkpoint" for name in sorted(own.keys() - published.parts.keys())]
    for name, part in published.parts.items():
        absent = [source for source in part.sources if source not in published.weights]
        problems += [f"{source}: missing" for source in absent]
        if not absent and name in own:
            given = [published.weights[source].to(own[name].dtype) for source in part.sources]
            new[name] = given[0] if _norm_is_theirs(model, name, part) else part.join(*given)
            if new[name].shape != own[name].shape:
                problems.append(_shapes(name, part, tuple(new[name].shape), tuple(own[name].shape)))
    used = {source for part in published.parts.values() for source in part.sources}
    problems += [f"{name}: unknown" for name in sorted(published.weights.keys() - used)]
    if problems:
        listed = "\n  ".join([*problems[:MOST_LISTED], *(["..."] if len(problems) > MOST_LISTED else [])])
        raise DataError(
            f"import-run: expected the tensors of the model in {where}, got {len(problems)} that do not fit; change "
            f"fields such as model.hidden=1024 if the model has other sizes:\n  {listed}"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(new[name])


def _norm_is_theirs(model: nn.Module, name: str, part: Origin) -> bool:
    """True for the scale of a norm that divides by the unbiased deviation, as theirs does (`model.norm=unbiased`)."""
    owner = model.get_submodule(name.rpartition(".")[0])
    return part.join is unbiased_norm and isinstance(owner, UnbiasedLayerNorm)


def _shapes(name: str, part: Origin, found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    return f"{' + '.join(part.sources)}: {found}, but {expected} is the size of {name}"


def linear(ours: str, theirs: str) -> dict[str, Origin]:
    """The weight and bias of a layer."""
    return {f"{ours}.{kind}": Origin((f"{theirs}.{kind}",)) for kind in ("weight", "bias")}


def stacked(ours: Mapping[str, str], theirs: Sequence[str]) -> dict[str, Origin]:
    """Layers put one above the other: `ours` maps "weight" and "bias" to our names."""
    return {
        ours[kind]: Origin(tuple(f"{name}.{kind}" for name in theirs), lambda *rows: torch.cat(rows))
        for kind in ("weight", "bias")
    }


def recurrent(ours: str, theirs: str, *, both: bool) -> dict[str, Origin]:
    """The weights of one recurrent layer, in one or both directions; torch's names on both sides."""
    ends = ("", "_reverse") if both else ("",)
    kinds = [f"{kind}_l0{end}" for end in ends for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    return {f"{ours}.{kind}": Origin((f"{theirs}.{kind}",)) for kind in kinds}


def weight_norm(size: Tensor, direction: Tensor) -> Tensor:
    """The weight g v/‖v‖ of a layer with weight normalisation, per row.

    >>> weight_norm(torch.tensor([[2.0]]), torch.tensor([[3.0, 4.0]])).tolist()
    [[1.2000000476837158, 1.600000023841858]]
    """
    unit: Tensor = direction / direction.norm(dim=1, keepdim=True)
    return size * unit


def unbiased_norm(scale: Tensor) -> Tensor:
    """The scale of a LayerNorm that divides by the unbiased deviation, for one that divides by the biased one.

    a / (σ √(n/(n−1))) = a √((n−1)/n) / σ

    >>> unbiased_norm(torch.ones(2)).tolist()
    [0.7071067690849304, 0.7071067690849304]
    """
    n = len(scale)
    return scale * math.sqrt((n - 1) / n)


def reorder_tokens(tokens: Sequence[str], special: Mapping[str, str]) -> tuple[Vocabulary, Callable[[Tensor], Tensor]]:
    """Our vocabulary of published tokens, and the function that puts their word vectors into its order.

    Args:
        tokens: by their token ids.
        special: their names of our `SPECIAL` tokens; those that they lack get the vector zero.

    >>> words, order = reorder_tokens(["PAD", "UNK", "cat"], {"<pad>": "PAD", "<unknown>": "UNK"})
    >>> words.words, order(torch.tensor([[0.0], [1.0], [2.0]])).squeeze(-1).tolist()
    (('<pad>', '<unknown>', '<start>', '<end>', 'cat'), [0.0, 1.0, 0.0, 0.0, 2.0])
    """
    places = {token: place for place, token in enumerate(tokens)}
    absent = [name for name in special.values() if name not in places]
    if absent:
        raise DataError(
            f"import-run: expected the special tokens {', '.join(special.values())}, got no {', '.join(absent)}; "
            "pass the tokens of this model"
        )
    rest = [token for token in tokens if token not in special.values()]
    words = Vocabulary(SPECIAL + tuple(rest))
    rows = [places.get(special.get(token, ""), -1) for token in SPECIAL] + [places[token] for token in rest]

    def order(vectors: Tensor) -> Tensor:
        if len(vectors) != len(tokens):
            raise DataError(
                f"import-run: expected one word vector per token, got {len(vectors)} vectors and {len(tokens)} tokens; "
                "pass the tokens that this checkpoint was trained with, in the same order"
            )
        return torch.cat([vectors, vectors.new_zeros(1, vectors.shape[1])])[rows]

    return words, order


def strings_by_id(path: Path, found: Any, what: str) -> list[str]:
    """Strings in the order of their ids, from JSON: a list of them, or a mapping from each to its id."""
    if isinstance(found, list) and all(isinstance(item, str) for item in found):
        return found
    if isinstance(found, Mapping) and sorted(map(str, found.values())) == sorted(map(str, range(len(found)))):
        return [str(name) for name, _ in sorted(found.items(), key=lambda item: int(item[1]))]
    raise DataError(
        f"import-run: expected {what} in {path} as a list or as a mapping to the numbers from 0 on, got "
        f"{found!r:.60}; pass the file that the authors published"
    )


def read_published_json(path: Path, what: str) -> Any:
    """The content of a JSON file of the authors."""
    return read_json("import-run", path, f"pass {what} of the checkpoint")


def first_seen(sentences: Iterable[Sequence[str]], special: Sequence[str]) -> list[str]:
    """Special tokens, then all others in the order in which they first occur.

    >>> first_seen([["a", "cat"], ["a", "dog"]], ["PAD"])
    ['PAD', 'a', 'cat', 'dog']
    """
    return list(dict.fromkeys([*special, *(token for sentence in sentences for token in sentence)]))
