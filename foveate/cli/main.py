"""Which commands there are, and how one is called: imported when it is used, its errors told in one line."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, get_type_hints

from foveate.errors import FoveateError, UnknownName
from foveate.registry import lookup

OK, ERROR, USAGE, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class Command:
    """A row of the table of commands.

    Attributes:
        target: `module:function`; the function's annotations and docstring make its options and its help.
        usage: what comes after the command's name.
        summary: one line for people.
        takes_fields: `--field value` that is no option of the function is handed on as the text `field=value`.
    """

    target: str
    usage: str
    summary: str
    takes_fields: bool = False

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        module, _, name = self.target.partition(":")
        return getattr(import_module(module), name)


COMMANDS: dict[str, Command] = {
    "demo": Command(
        "foveate.cli.demo:demo", "[--quick]", "compare attentions on embedded data and write a report, no download"
    ),
    "train": Command(
        "foveate.cli.train:train",
        "RECIPE [field=value ...] [--data DIR] [--out DIR] [--resume]",
        "train what a recipe says",
        takes_fields=True,
    ),
    "evaluate": Command(
        "foveate.cli.evaluate:evaluate",
        "RUN [field=value ...] [--data DIR] [--split S]",
        "measure a run on a split, with another attention if wished",
        takes_fields=True,
    ),
    "compare": Command(
        "foveate.cli.compare:compare",
        "TASK [--mechanisms softmax,tvmax] [field=value ...]",
        "train with several attentions and print one table",
        takes_fields=True,
    ),
    "answer": Command("foveate.cli.answer:answer", 'RUN IMAGE "QUESTION" [--plot PNG]', "ask a run about a picture"),
    "caption": Command("foveate.cli.caption:caption", "RUN IMAGE [--plot PNG]", "let a run describe a picture"),
    "predict": Command(
        "foveate.cli.predict:predict", "RUN --data DIR --out JSON", "answer a split in the evaluation server's format"
    ),
    "list": Command("foveate.cli.list:list_tables", "[TABLE]", "what there is: transforms, mechanisms, recipes, ..."),
    "studio": Command("foveate.cli.studio:studio", "[--port P]", "a web page: ask, play with mechanisms, see results"),
    "scenes": Command("foveate.cli.scenes:scenes", "[OUT] [--show PNG]", "make the embedded dataset and look at it"),
    "extract": Command("foveate.cli.extract:extract", "ENCODER IMAGES OUT", "encode pictures into a feature store"),
    "index": Command("foveate.cli.index:index", "RUN IMAGES OUT", "embed pictures into an index to search"),
    "search": Command(
        "foveate.cli.search:search",
        'INDEX "TEXT" | IMAGE [--top N] [--rerank RUN] [--plot PNG]',
        "find the pictures that a text describes, or the reverse",
    ),
    "import": Command(
        "foveate.cli.extract:import_precomputed", "FORMAT SOURCE OUT", "take over features that others published"
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 error, 2 wrong use, 130 interrupted.

    >>> main(["--version"])  # doctest: +ELLIPSIS
    foveate ...
    0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(given)
    except (KeyboardInterrupt, FoveateError, ValueError, TypeError) as error:
        return _explain(error, given)


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        print(overview())
        return OK
    if given[0] == "--version":
        from foveate import __version__

        print(f"foveate {__version__}")
        return OK
    name, *rest = given
    command = lookup("foveate", name, COMMANDS)
    function = command.load()
    return _call(name, function, fields_as_changes(rest, function) if command.takes_fields else rest)


def _call(name: str, function: Callable[..., Any], arguments: list[str]) -> int:
    import tyro

    from foveate.train.processes import processes_ended

    config = (tyro.conf.FlagCreatePairsOff,)
    more_help = getattr(inspect.getmodule(function), "more_help", None)
    try:
        with processes_ended():
            tyro.cli(with_positionals(function), prog=f"foveate {name}", args=arguments, config=config)
    except SystemExit as end:
        if end.code in (None, OK) and more_help is not None:
            print(more_help(arguments), end="")
        return end.code if isinstance(end.code, int) else OK
    return OK


def with_positionals(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as tyro reads it: what comes before the star is given by position, under its own name."""
    import tyro

    hints = get_type_hints(function)
    signature = inspect.signature(function)
    changed = []
    for parameter in signature.parameters.values():
        kind = hints[parameter.name]
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            name = parameter.name.upper()
            shown = name if parameter.default is inspect.Parameter.empty else f"[{name}]"
            kind = Annotated[kind, tyro.conf.Positional, tyro.conf.arg(metavar=shown)]
        changed.append(parameter.replace(annotation=kind))

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    wrapper.__signature__ = signature.replace(parameters=changed)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in changed}
    del wrapper.__wrapped__
    return wrapper


def overview() -> str:
    """The help of the whole program, made of the table alone.

    >>> overview().splitlines()[0]
    'foveate: visual attention for vision-language models'
    """
    rows = [(f"foveate {name} {row.usage}".strip(), row.summary) for name, row in COMMANDS.items()]
    lines = [f"  {usage}\n      {summary}" for usage, summary in rows]
    return "\n".join(
        [
            "foveate: visual attention for vision-language models",
            "",
            *lines,
            "",
            "foveate COMMAND --help tells more; foveate --version which version this is.",
        ]
    )


def fields_as_changes(arguments: Sequence[str], function: Callable[..., Any]) -> list[str]:
    """Write `--field value` and `--field=value`, where `field` is no option of the function, as `field=value`.

    >>> def function(recipe: str, *, resume: bool = False) -> None: ...
    >>> fields_as_changes(["r", "--lr", "0.1", "--resume", "--epochs=3"], function)
    ['r', 'lr=0.1', 'epochs=3', '--resume']

    Changes are moved before the options, so that people may write them in any order.
    """
    options = {f"--{name.replace('_', '-')}": kind for name, kind in _options(function).items()}
    plain, marked, rest = list[str](), list[str](), list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            plain.append(word)
        elif name in ("-h", "--help") or name.replace("_", "-") in options:
            marked.append(word)
            if not equals and rest and options.get(name.replace("_", "-")) is not bool:
                marked.append(rest.pop(0))
        elif get_close_matches(name, options, n=1, cutoff=0.85) or (not equals and not rest):
            raise UnknownName("foveate", name, options)
        else:
            plain.append(f"{name.lstrip('-').replace('-', '_')}={value if equals else rest.pop(0)}")
    return plain + marked


def _options(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only parameters by name, each with its default's type."""
    found = inspect.signature(function).parameters.values()
    return {p.name: type(p.default) for p in found if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _again(given: list[str]) -> str:
    """The command that goes on with an interrupted training."""
    program = "torchrun ... -m foveate" if "TORCHELASTIC_RUN_ID" in os.environ else "foveate"
    resumed = given if "--resume" in given or given[0] != "train" else [*given, "--resume"]
    return f"{program} {shlex.join(resumed)}"


def _explain(error: BaseException, given: list[str]) -> int:
    if isinstance(error, KeyboardInterrupt):
        if os.environ.get("RANK", "0") == "0":
            # a training that could save itself says so
            print(f"{error}\ngo on with: {_again(given)}" if str(error) else "interrupted", file=sys.stderr)
        return INTERRUPTED
    if not isinstance(error, FoveateError) and not re.match(r"[^:]+: expected .+, got .+", str(error), re.DOTALL):
        raise error  # not a message for people: show where it happened
    print(error, file=sys.stderr)
    return USAGE if isinstance(error, UnknownName) else ERROR
