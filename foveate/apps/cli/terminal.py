"""What commands read and print: words become values, results become tables and JSON; outputs are checked first."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from foveate.errors import DataError, FoveateError, UnknownName
from foveate.io import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from foveate.attention.attended import Attended


class UsageError(FoveateError):
    """A word of the command line cannot be read; no ValueError, because tyro would explain those in its own way."""


@dataclass(frozen=True)
class Between:
    """The least value of a number, and the largest if there is one."""

    least: int
    most: int | None = None


@dataclass(frozen=True)
class Writable:
    """`check(command, path)` raises DataError if a path cannot be written to; called before the command runs."""

    check: Callable[[str, Path], None]


WIDTH = 120
DPI = 120
MANY = 8  # tables with more columns are set closer, and the names in the first column are not wrapped
FIGURES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".pdf", ".svg", ".eps")

KINDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "a text", Path: "a path"}
METAVARS: dict[Any, str] = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


def check_options(command: str, function: Callable[..., Any], words: Sequence[str]) -> None:
    """Raises UnknownName if a word is an option that the function does not have.

    >>> def show(*, beams: int = 1) -> None: ...
    >>> check_options("caption", show, ["--beam", "3"])
    Traceback (most recent call last):
    foveate.errors.UnknownName: foveate caption: expected a known name, got '--beam'; did you mean '--beams'?
    """
    known = [f"--{name.replace('_', '-')}" for name in keyword_options(function)] + ["--help"]
    for word in words:
        name = word.partition("=")[0].replace("_", "-")
        if name.startswith("--") and name not in known:
            raise UnknownName(f"foveate {command}", name, known)


def check_words(command: str, function: Callable[..., Any], words: Sequence[str]) -> None:
    """Raises UsageError if an argument, or the value of an option, is missing, DataError for an output that cannot be.

    >>> def show(run: str, image: str, *, beams: int = 1) -> None: ...
    >>> check_words("caption", show, ["scenes-captioning"])
    Traceback (most recent call last):
    foveate.apps.cli.terminal.UsageError: caption: expected IMAGE, got nothing; see foveate caption --help
    >>> check_words("caption", show, ["scenes-captioning", "a.png", "--beams"])
    Traceback (most recent call last):
    foveate...UsageError: caption: expected a value after --beams, got nothing; see foveate caption --help
    """
    if {"-h", "--help"} & set(words):
        return
    parameters = inspect.signature(function).parameters.values()
    forms = {name: _form(hint) for name, hint in get_type_hints(function, include_extras=True).items()}
    flags = {name for name, kind in keyword_options(function).items() if kind is bool}
    places = [p for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    given, rest = dict[str, str](), list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            if len(given) < len(places):
                given[places[sum(p.name in given for p in places)].name] = word
            continue
        name = name.removeprefix("--").replace("-", "_")
        form = forms.get(name)
        if equals or name in flags:
            pass
        elif form is not None and form.many:
            while rest and not rest[0].startswith("--"):
                rest.pop(0)
        elif not rest or (value := rest.pop(0)).startswith("--"):
            raise UsageError(f"{command}: expected a value after {word}, got nothing; see foveate {command} --help")
        given[name] = value
    needed = [p for p in parameters if p.default is inspect.Parameter.empty and p.name not in given]
    if needed:
        missing = [p.name.upper() if p in places else f"--{p.name.replace('_', '-')}" for p in needed]
        raise UsageError(f"{command}: expected {', '.join(missing)}, got nothing; see foveate {command} --help")
    for name, value in given.items():
        form = forms.get(name)
        if form is not None and form.writable is not None:
            form.writable(command, Path(value))


def keyword_options(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only parameters by name, each with the type of its default."""
    found = inspect.signature(function).parameters.values()
    return {p.name: type(p.default) for p in found if p.kind is inspect.Parameter.KEYWORD_ONLY}


def annotate(command: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with annotations for tyro: parameters before the star are positional and shown in capitals."""
    hints = get_type_hints(function, include_extras=True)
    signature = inspect.signature(function)
    changed = [p.replace(annotation=_annotation(command, p, hints[p.name])) for p in signature.parameters.values()]

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    wrapper.__signature__ = signature.replace(parameters=changed)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in changed}
    del wrapper.__wrapped__
    return wrapper


def _annotation(command: str, parameter: inspect.Parameter, hint: Any) -> Any:
    """The annotation of a parameter: its type, how it is written in the help, and how it is read."""
    import tyro

    positional = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    required = parameter.default is inspect.Parameter.empty
    shown = parameter.name.upper() if positional else f"--{parameter.name.replace('_', '-')}"
    form = _form(hint)
    parts: list[Any] = [tyro.conf.Positional] if positional else []
    argument: dict[str, Any] = {} if form is None else {"metavar": f"{form.metavar} ..." if form.many else form.metavar}
    if positional:
        argument["metavar"] = shown if required else f"[{shown}]"
    if form is not None:
        parts.append(form.reader(command, shown))
    if parameter.default is None:
        argument["help_behavior_hint"] = ""
    return Annotated[(hint, *parts, tyro.conf.arg(**argument))]


@dataclass(frozen=True)
class _Form:
    """What the words of an option stand for: a number, a text, a path, one of some choices; one or many of them."""

    kind: Any
    between: Between | None = None
    writable: Callable[[str, Path], None] | None = None
    choices: tuple[str, ...] = ()
    many: bool = False

    @property
    def metavar(self) -> str:
        return "|".join(self.choices) or METAVARS[self.kind]

    @property
    def expected(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.between is None:
            return KINDS[self.kind]
        least, most = self.between.least, self.between.most
        return f"{KINDS[self.kind]} {f'>= {least}' if most is None else f'from {least} to {most}'}"

    def read(self, word: str) -> Any:
        """The value of a word; raises ValueError if it has none."""
        value, between = self.kind(word), self.between
        if between is not None and (value < between.least or (between.most is not None and value > between.most)):
            raise ValueError(word)
        if self.choices and value not in self.choices:
            raise ValueError(word)
        return value

    def reader(self, command: str, shown: str) -> Any:
        """How tyro reads the words; a word without a value raises UsageError."""
        from tyro.constructors import PrimitiveConstructorSpec

        def read(words: list[str]) -> Any:
            try:
                values = tuple(map(self.read, words))
            except ValueError:
                got = " ".join(words)
                raise UsageError(
                    f"{command}: expected {shown} as {self.expected}, got {got!r}; see foveate {command} --help"
                ) from None
            return values if self.many else values[0]

        return PrimitiveConstructorSpec(
            nargs="*" if self.many else 1,
            metavar=self.metavar,
            instance_from_str=read,
            is_instance=lambda value: True,  # defaults are checked by mypy
            str_from_instance=lambda value: [str(part) for part in value or ()] if self.many else [str(value)],
        )


def _form(hint: Any) -> _Form | None:
    """The form of a type; `T | None` has that of T, and other unions, flags and tuples of tuples have none."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        found = _form(parts[0])
        between = next((note for note in parts[1:] if isinstance(note, Between)), None)
        writable = next((note.check for note in parts[1:] if isinstance(note, Writable)), None)
        return None if found is None else replace(found, between=between, writable=writable)
    if origin in (Union, UnionType):
        others = [part for part in parts if part is not NoneType]
        return _form(others[0]) if len(others) == 1 else None
    if origin is Literal:
        return _Form(str, choices=parts)
    if origin is tuple and parts[1:] == (Ellipsis,):
        found = _form(parts[0])
        return None if found is None or found.many else replace(found, many=True)
    return _Form(hint) if hint in KINDS else None


def check_figure(where: str, path: Path) -> None:
    """Raises DataError if a figure cannot be written to `path`.

    >>> check_figure("answer", Path("look.txt"))
    Traceback (most recent call last):
    foveate.errors.DataError: answer: expected a file ending in .png, .jpg, ..., got look.txt; use for instance look.png
    """
    if path.suffix.lower() not in FIGURES and not path.is_dir():
        raise DataError(
            f"{where}: expected a file ending in {', '.join(FIGURES)}, got {path}; use for instance "
            f"{path.with_suffix('.png') if path.name else 'figure.png'}"
        )
    check_file(where, path)


def check_file(where: str, path: Path) -> None:
    """Raises DataError if a file cannot be written to `path`, whose directory exists."""
    if path.is_dir():
        raise DataError(f"{where}: expected a file, got the directory {path}; name a file, such as {path / path.name}")
    if not path.parent.is_dir():
        raise DataError(
            f"{where}: expected the directory {path.parent} to write {path.name} into, got none; create it first"
        )
    check_directory(where, path.parent)


def check_directory(where: str, path: Path) -> None:
    """Raises DataError if `path` is no directory, and none can be created there, or it cannot be written to."""
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise DataError(f"{where}: expected a directory, got the file {existing}; choose another")
    if not os.access(existing, os.W_OK):
        raise DataError(f"{where}: expected a directory that can be written to, got {existing}; choose another")


def check_new_file(where: str, path: Path) -> None:
    """Raises DataError if a file cannot be written to `path`, whose directory may be created."""
    if path.is_dir():
        raise DataError(f"{where}: expected a file, got the directory {path}; name a file in it")
    check_directory(where, path.parent)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure atomically, in the format that its suffix names."""
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=DPI, format=path.suffix.lower().removeprefix("."))


Count: TypeAlias = Annotated[int, Between(1)]
FigureFile: TypeAlias = Annotated[Path, Writable(check_figure)]
OutFile: TypeAlias = Annotated[Path, Writable(check_file)]
NewFile: TypeAlias = Annotated[Path, Writable(check_new_file)]
Directory: TypeAlias = Annotated[Path, Writable(check_directory)]


def print_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, at a fixed width if the output is not a terminal.

    >>> print_table("example", ("name", "value"), [("a", "1")])  # doctest: +ELLIPSIS
    example
    ...
    """
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    many = len(heads) > MANY
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0 if many else 1))
    for place, head in enumerate(heads):
        table.add_column(escape(head), overflow="fold", no_wrap=many and place == 0)
    for name, *cells in rows:
        if many:
            name, cells = name.replace(" ", "\n", 1), [cell.replace("± ", "±") for cell in cells]
        table.add_row(*map(escape, (name, *cells)))  # "foveate[hf]" is text, not markup
    console.print(title, highlight=False, markup=False)
    console.print(table)


def as_json(value: Any) -> Any:
    """The result of a command in plain lists and dictionaries.

    Attention becomes its grid and its map, one per query; numbers that JSON does not have become null; whatever has no
    form of its own (an open file, a network) becomes its text.

    >>> from pathlib import Path
    >>> as_json({"path": Path("a.png"), "score": float("nan"), "best": (("red", 0.5),)})
    {'path': 'a.png', 'score': None, 'best': [['red', 0.5]]}
    """
    from torch import Tensor  # which must not be loaded before threads are chosen

    from foveate.attention.attended import Attended

    if isinstance(value, Attended):
        return _attention(value)
    if isinstance(value, Tensor):
        return as_json(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [as_json(item) for item in value]
    return str(value)


def _attention(attended: Attended) -> dict[str, Any]:
    """Grid and map; without a grid the weights of the locations."""
    if not isinstance(attended.grid, tuple):
        return {"grid": None, "weights": attended.weights.detach().tolist()}
    return {"grid": list(attended.grid), "map": attended.map().detach().tolist()}
