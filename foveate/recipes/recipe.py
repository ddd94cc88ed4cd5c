"""What a recipe is: everything that decides a training, as frozen data; and how single fields of it are changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple, get_args

from foveate.errors import DataError, UnknownName
from foveate.recipes.typed import decode, encode, field_types, parse, variants
from foveate.registry import lookup
from foveate.train.config import Training

FORMAT = 1
FIXED = ("name", "task", "about")


@dataclass(frozen=True)
class Recipe:
    """A complete training: run twice, it gives the same weights.

    A recipe is made by a function without arguments in `foveate/recipes/<task>.py`, whose docstring states the expected
    score, the time and the command, and which has a row in the table `RECIPES` under its name `<task>-<model>-<data>`::

        def vqa_mcan_scenes() -> Recipe:
            return Recipe("vqa-mcan-scenes", "vqa", VQASettings(data="scenes", mechanism="softmax"),
                          Training(Adam(1e-4), epochs=13), about="91 % on val, ten minutes on two cores")

    Attributes:
        name: the row of the table `RECIPES`.
        task: the row of the table `TASKS`.
        settings: of the task, an instance of its `Settings`.
        training: optimiser, schedule, batches, length, seed.
        about: expected score and time, in one line for people.
        start: folder or name of a run whose weights training starts from; None starts at random.
    """

    name: str
    task: str
    settings: Any
    training: Training
    about: str = ""
    start: str | None = None


class Field(NamedTuple):
    """A field of a recipe that can be changed: its full name, its type and its value."""

    path: str
    kind: Any
    value: Any


def override(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """The recipe with some fields changed.

    Args:
        recipe: stays as it is.
        changes: texts `field=value`. A field is named by itself (`mechanism`, `lr`) or, where that is not enough, with
            what it is part of (`optimiser.lr`). An entry of a mapping is named after it (`mechanism_options.alpha=2`).
            Another optimiser or schedule is named by its class (`optimiser=sgd`) and keeps the fields both have.

    An unknown field raises UnknownName with the nearest one, a value of the wrong type ValueError.

    >>> from foveate.train import Adam
    >>> recipe = Recipe("example", "none", Adam(1e-3), Training(Adam(1e-3)))
    >>> override(recipe, ["epochs=3", "training.optimiser.lr=0.1"]).training.optimiser.lr
    0.1
    >>> override(recipe, ["epoch=3"])
    Traceback (most recent call last):
    foveate.errors.UnknownName: example: expected a known name, got 'epoch'; did you mean 'epochs'?
    """
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise ValueError(f"{recipe.name}: expected field=value, got {change!r}; write for instance epochs=3")
        recipe = _set(recipe, name.strip(), text.strip())
    return recipe


def recipe_fields(recipe: Recipe) -> list[Field]:
    """Every field that `override` can change, in order.

    >>> from foveate.train import Adam
    >>> [field.path for field in recipe_fields(Recipe("example", "none", Adam(1e-3), Training(Adam(1e-3))))][:3]
    ['settings.lr', 'settings.betas', 'settings.eps']
    """
    return [field for field in _walk(recipe, "") if field.path not in FIXED]


def to_config(recipe: Recipe) -> dict[str, Any]:
    """The recipe as the JSON of `config.json`."""
    return {"format": FORMAT, **encode(recipe)}


def from_config(config: Mapping[str, Any], where: str = "config.json") -> Recipe:
    """The recipe of a `config.json`; DataError when it is of a newer version or not a recipe."""
    from foveate.tasks import TASKS

    version = config.get("format") if isinstance(config, Mapping) else None
    if type(version) is not int or version < 1:
        raise DataError(f"{where}: expected the configuration of a run, got none; point to the folder of a run")
    if version > FORMAT:
        raise DataError(
            f"{where}: expected format {FORMAT} or older, got {version}; a newer foveate wrote it: "
            "run pip install -U foveate"
        )
    data = {key: value for key, value in config.items() if key != "format"}
    task = lookup(f"{where}: task", str(data.get("task")), TASKS)
    recipe = decode(Recipe, data, where)
    return replace(recipe, settings=decode(task.Settings, recipe.settings, f"{where}.settings"))


def _walk(part: Any, prefix: str) -> Iterator[Field]:
    for name, kind in field_types(type(part)).items():
        value = getattr(part, name)
        if not is_dataclass(value):
            yield Field(prefix + name, kind, value)
            continue
        if variants(kind):
            yield Field(prefix + name, kind, value)
        yield from _walk(value, f"{prefix}{name}.")


def _set(recipe: Recipe, name: str, text: str) -> Recipe:
    known = recipe_fields(recipe)
    found = _find(recipe, name, known)
    if found is not None:
        return _replace(recipe, found.path.split("."), _value(found, text))
    holder, dot, key = name.rpartition(".")
    mapping = _find(recipe, holder, known) if dot else None
    if mapping is None or not isinstance(mapping.value, Mapping):
        raise UnknownName(recipe.name, name, {end for field in known for end in _ends(field.path)})
    kind = get_args(mapping.kind)[1] if get_args(mapping.kind) else Any
    return _replace(recipe, mapping.path.split("."), {**mapping.value, key: parse(kind, text, name)})


def _ends(path: str) -> Iterator[str]:
    """The names by which a field can be called: a.b.c, b.c and c."""
    while path:
        yield path
        path = path.partition(".")[2]


def _find(recipe: Recipe, name: str, known: list[Field]) -> Field | None:
    found = [field for field in known if f".{field.path}".endswith(f".{name}")]
    exact = [field for field in found if field.path == name]
    if len(found) > 1 and not exact:
        raise ValueError(
            f"{recipe.name}: expected the name of one field, got {name!r}; "
            f"write {' or '.join(field.path for field in found)}"
        )
    return next(iter(exact or found), None)


def _value(field: Field, text: str) -> Any:
    choices = variants(field.kind)
    if choices:
        chosen = lookup(field.path, text.lower(), choices)
        kept = {f.name: getattr(field.value, f.name) for f in fields(chosen) if hasattr(field.value, f.name)}
        return chosen(**kept)
    if isinstance(field.value, Mapping):
        raise ValueError(f"{field.path}: expected an entry, got {text!r}; write {field.path}.<name>=<value>")
    return parse(field.kind, text, field.path.rpartition(".")[2])


def _replace(part: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    return replace(part, **{name: _replace(getattr(part, name), rest, value) if rest else value})
