"""A recipe: everything that determines a training, as frozen data; reading and writing it as JSON, and training it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from inspect import isabstract
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from foveate.errors import DataError, FoveateError, UnknownName, WrongValue
from foveate.io import read_checked_json, read_json, write_json
from foveate.lab.data.samples import DataRoot
from foveate.lab.models import MODELS, ModelSettings
from foveate.lab.tasks import TASKS, AnyTask
from foveate.lab.train.config import Training
from foveate.lab.train.records import CONFIG, SOURCE, VOCABULARY, History, check_same
from foveate.lab.train.weights import ADVICE, WEIGHTS
from foveate.registry import lookup

if TYPE_CHECKING:
    from foveate.lab.train.loop import OnEvaluation
    from foveate.lab.train.records import History

FORMAT = 2
KIND = "kind"
T = TypeVar("T")


@dataclass(frozen=True)
class Recipe:
    """A complete training; running it twice gives the same weights.

    A recipe is returned by a function without arguments in `foveate/lab/recipes`. Its docstring states the
    expected score, the time and the command; its row in `RECIPES` is named `<task>-<model>-<dataset>`::

        def vqa_mcan_scenes() -> Recipe:
            return Recipe("vqa-mcan-scenes", "vqa", VQASettings(dataset="scenes", mechanism="softmax"),
                          Training(Adam(1e-4), epochs=13), about="91 % on val, ten minutes on two cores")

    Attributes:
        name: the row of the table `RECIPES`.
        task: the row of the table `TASKS`.
        settings: of the task, an instance of its `Settings`.
        training: optimiser, schedule, batches, length, seed.
        about: expected score and time in one line.
        start: directory or name of a run whose weights training starts from; None starts at random.
    """

    name: str
    task: str
    settings: Any
    training: Training
    about: str = ""
    start: str | None = None

    def variant(self, name: str, about: str, training: Mapping[str, Any] | None = None, **settings: Any) -> Recipe:
        """A recipe of another name that differs in some fields of `training` and of `settings`."""
        changed = replace(self.training, **(training or {}))
        return replace(self, name=name, settings=replace(self.settings, **settings), training=changed, about=about)


EMBEDDED = Path(__file__).parent.parent / "runs"


def embedded_runs() -> list[str]:
    """The names of the runs inside the package.

    >>> "scenes-vqa" in embedded_runs()
    True
    """
    return sorted(path.parent.name for path in EMBEDDED.glob(f"*/{CONFIG}"))


def run_directory(name: str | Path) -> Path:
    """The directory of a run, from its path or from the name of a run inside the package.

    >>> run_directory("no-such-run")
    Traceback (most recent call last):
    foveate.errors.DataError: load: expected the directory of a run ... got 'no-such-run'; ...
    """
    for directory in (Path(name).expanduser(), EMBEDDED / str(name)):
        if (directory / CONFIG).is_file():
            return directory
    known = embedded_runs()
    raise DataError(
        f"load: expected the directory of a run with {CONFIG} and {WEIGHTS}, got {str(name)!r}; "
        f"train one with foveate train, or use an embedded one: {', '.join(known) or 'there are none'}"
    )


def read_vocabulary(directory: Path) -> dict[str, Any]:
    """The contents of `vocabulary.json` of a run."""
    return read_checked_json("load", directory / VOCABULARY, SOURCE)


def to_config(recipe: Recipe) -> dict[str, Any]:
    """The recipe as the JSON of `config.json`."""
    return {"format": FORMAT, **encode(recipe)}


def from_config(config: Mapping[str, Any], where: str = "config.json") -> Recipe:
    """The recipe of a `config.json`; raises DataError if it was written by a newer version or is not a recipe."""
    task, data = _check_config(config, where)
    recipe: Recipe = decode(Recipe, data, where)
    return replace(recipe, settings=decode(task.Settings, recipe.settings, f"{where}.settings"))


@contextmanager
def file_errors(directory: Path) -> Iterator[None]:
    """Turns errors about values in the files of a run, which may come from anyone, into a DataError that names the run.

    Errors of other types, such as AttributeError, are mistakes of foveate and are raised as they are.
    """
    try:
        yield
    except DataError:
        raise
    except (FoveateError, ValueError, RecursionError) as error:
        raise DataError(f"load: expected the files of a run in {directory}, got {error}; {ADVICE}") from error


def read_task(run: str | Path) -> AnyTask:
    """The task of a run, without its weights and without how it was trained.

    Args:
        run: directory of a run or name of an embedded one.
    """
    directory = run_directory(run)
    where = str(directory / CONFIG)
    with file_errors(directory):
        task, data = _check_config(read_json("load", directory / CONFIG, SOURCE), where)
        settings = decode(task.Settings, data.get("settings"), f"{where}.settings")
        return task.from_vocabulary(settings, read_vocabulary(directory))


def read_run(run: str | Path, changes: Iterable[str] = ()) -> tuple[Recipe, AnyTask]:
    """The recipe and the task of a run, without its weights.

    Args:
        run: directory of a run or name of an embedded one.
        changes: fields to change, as in `override`. The weights fit as long as the model keeps its shape, so a trained
            run can be evaluated with another mechanism, other data or another rule.

    Raises DataError for a missing or broken file and for a configuration that is not a recipe or of a newer version.
    """
    directory = run_directory(run)
    with file_errors(directory):
        recipe = from_config(read_json("load", directory / CONFIG, SOURCE), str(directory / CONFIG))
    if changes:
        from foveate.lab.train.override import override

        recipe = override(recipe, changes)
    with file_errors(directory):
        return recipe, lookup("task", recipe.task, TASKS).from_vocabulary(recipe.settings, read_vocabulary(directory))


def train_recipe(
    recipe: Recipe,
    out: Path,
    *,
    root: DataRoot = None,
    resume: bool = False,
    progress: bool = True,
    on_evaluation: OnEvaluation | None = None,
) -> History:
    """Train a recipe and write the run to the directory `out`; see `fit`.

    If the recipe starts from a run, the vocabulary is that of the run, since its weights belong to these tokens and
    answers, followed by what is new in the data.
    """
    from foveate.lab.train.loop import fit  # loading a run needs no training loop

    kind = lookup("task", recipe.task, TASKS)
    start = None if recipe.start is None else run_directory(recipe.start)
    task = kind.from_data(recipe.settings, root)
    if start is not None:
        task = task.grown_from(kind.from_vocabulary(recipe.settings, read_vocabulary(start)))
    config = _config(recipe, out, resume=resume)
    return fit(
        task,
        recipe.training,
        out,
        config=config,
        root=root,
        start=start,
        resume=resume,
        progress=progress,
        on_evaluation=on_evaluation,
    )


def _config(recipe: Recipe, out: Path, *, resume: bool) -> dict[str, Any]:
    """The recipe as JSON; raises DataError if the run to resume is of another recipe."""
    path, config = out / CONFIG, to_config(recipe)
    if resume and path.is_file():
        with file_errors(out):
            stored = read_json("resume", path, SOURCE)
            known = to_config(from_config(stored, str(path)))
        check_same(CONFIG, known, config)
        if stored != json.loads(json.dumps(known)):  # older than a field, which has its default
            write_json(path, known)
    return config


def _check_config(config: Any, where: str) -> tuple[type[AnyTask], dict[str, Any]]:
    """The task and the recipe as JSON of the present format."""
    version = config.get("format") if isinstance(config, Mapping) else None
    if type(version) is not int or version < 1:
        raise DataError(f"{where}: expected the configuration of a run, got none; pass the directory of a run")
    if version != FORMAT:
        raise DataError(
            f"{where}: expected format {FORMAT}, got {version}; it was written by another version of foveate: "
            "run pip install -U foveate"
        )
    data = {key: value for key, value in config.items() if key != "format"}
    task = lookup(f"{where}: task", str(data.get("task")), TASKS)
    return task, data


def encode(value: Any) -> Any:
    """A dataclass as JSON; if an annotation allows several dataclasses, its name is stored under "kind".

    >>> from foveate.lab.train import Adam, Training
    >>> encode(Training(Adam(1e-3)))["optimiser"]
    {'lr': 0.001, 'betas': [0.9, 0.999], 'eps': 1e-08, 'weight_decay': 0.0, 'kind': 'adam'}
    """
    if is_dataclass(value) and not isinstance(value, type):
        kinds = field_types(type(value))
        return {name: _encode_field(kind, getattr(value, name)) for name, kind in kinds.items()}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    return [encode(item) for item in value] if isinstance(value, tuple | list) else value


def decode(kind: Any, value: Any, where: str) -> Any:
    """The value of type `kind` that `encode` turned into JSON; raises DataError with the place if it does not fit.

    >>> decode(tuple[float, float], [0.9, 1], "betas")
    (0.9, 1.0)
    """
    if kind is Any:
        return value
    if members(kind) is not None or variants(kind):
        return _decode_variant(kind, value, where)
    if is_dataclass(kind) and isinstance(kind, type):
        return _decode_dataclass(kind, value, where)
    origin = get_origin(kind) or kind
    if origin is Literal and value in get_args(kind):
        return value
    if origin is tuple and isinstance(value, list):
        kinds = item_types(kind, len(value), where)
        return tuple(decode(k, item, where) for k, item in zip(kinds, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
        return {key: decode(get_args(kind)[1], item, where) for key, item in value.items()}
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (bool, int, str, NoneType) and type(value) is kind:
        return value
    raise DataError(f"{where}: expected {describe(kind)}, got {value!r:.80}; correct the file or write it again")


def _encode_field(kind: Any, value: Any) -> Any:
    encoded = encode(value)
    names = [name for name, variant in variants(kind).items() if variant is type(value)]
    return encoded | {KIND: names[0]} if names else encoded


def _decode_variant(kind: Any, value: Any, where: str) -> Any:
    choices = variants(kind)
    if choices and isinstance(value, dict):
        rest = {key: item for key, item in value.items() if key != KIND}
        only = next(iter(choices)) if len(choices) == 1 else None
        return _decode_dataclass(lookup(where, str(value.get(KIND, only)), choices), rest, where)
    for member in members(kind) or ():
        with suppress(DataError):
            return decode(member, value, where)
    raise DataError(f"{where}: expected {describe(kind)}, got {value!r:.80}; correct the file or write it again")


def _decode_dataclass(kind: type[T], value: Any, where: str) -> T:
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected the fields of {kind.__name__}, got {value!r:.80}; correct the file")
    kinds = field_types(kind)
    for name in value:
        if name not in kinds:
            raise UnknownName(f"{where}.{name}", name, kinds)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise DataError(f"{where}: expected the field {field.name!r}, got none; correct the file or write it again")
    return kind(**{name: decode(kinds[name], item, f"{where}.{name}") for name, item in value.items()})


class _Word(NamedTuple):
    one: str
    many: str
    example: str


WORDS: dict[Any, _Word] = {
    int: _Word("a whole number", "whole numbers", "2"),
    float: _Word("a number", "numbers", "0.5"),
    str: _Word("text", "texts", "text"),
    bool: _Word("true or false", "truth values", "true"),
    NoneType: _Word("none", "nones", "none"),
    Mapping: _Word("named entries", "named entries", "name=value"),
}


def describe(kind: Any) -> str:
    """A type in words.

    >>> describe(int | None), describe(tuple[int, ...]), describe(Literal["fp32", "bf16"])
    ('a whole number or none', 'whole numbers separated by commas', 'fp32 or bf16')
    """
    origin = get_origin(kind)
    if variants(kind):
        return " or ".join(variants(kind))
    if members(kind) is not None:
        return " or ".join(describe(member) for member in members(kind) or ())
    if origin is Literal:
        return " or ".join(str(choice) for choice in get_args(kind))
    if origin is tuple:
        kinds = get_args(kind)
        count = "" if Ellipsis in kinds else f"{len(kinds)} "
        return f"{count}{_word(kinds[0]).many} separated by commas"
    return _word(kind).one


def example(kind: Any) -> str:
    """A value of a type, as a user writes it.

    >>> example(int | None), example(tuple[float, float]), example(Literal["fp32", "bf16"])
    ('2', '0.5,0.5', 'fp32')
    """
    if variants(kind):
        return next(iter(variants(kind)))
    if members(kind) is not None:
        return example((members(kind) or ())[0])
    if get_origin(kind) is Literal:
        return str(get_args(kind)[0])
    if get_origin(kind) is tuple:
        first, second = get_args(kind)[:2]
        return f"{example(first)},{example(first if second is Ellipsis else second)}"
    return _word(kind).example


def field_types(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields by name, in order."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def variants(kind: Any) -> dict[str, type]:
    """The dataclasses that an annotation allows, by name; empty if it allows none, one, or other types too.

    A family of models allows its rows of `MODELS`, a union its members.

    >>> from foveate.lab.train.config import Schedule
    >>> sorted(variants(Schedule))
    ['cosine', 'decay', 'steps']
    """
    if isinstance(kind, type) and issubclass(kind, ModelSettings) and isabstract(kind):
        return {name: row for name, row in MODELS.items() if issubclass(row, kind)}
    several = members(kind) or ()
    return {m.__name__.lower(): m for m in several} if all(is_dataclass(m) for m in several) else {}


def members(kind: Any) -> tuple[Any, ...] | None:
    """The members of a union; None for another type."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else None


def item_types(kind: Any, count: int, where: str) -> tuple[Any, ...]:
    """The types of the `count` items of a tuple type."""
    kinds = get_args(kind)
    if Ellipsis in kinds:
        return kinds[:1] * count
    if len(kinds) != count:
        raise WrongValue(f"{where}: expected {len(kinds)} values, got {count}; write, for example, {example(kind)}")
    return kinds


def _word(kind: Any) -> _Word:
    name = str(getattr(kind, "__name__", kind))
    return WORDS.get(get_origin(kind) or kind) or _Word(name, name, "value")
