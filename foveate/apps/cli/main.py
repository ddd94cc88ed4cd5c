"""The table of commands, and how a command is run: it is imported on use, and its errors are printed in one line."""

from __future__ import annotations

import errno
import inspect
import json
import logging
import os
import re
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foveate.apps.cli.terminal import UsageError, annotate, check_options, check_words, keyword_options
from foveate.errors import FoveateError, UnknownName
from foveate.registry import load_target, lookup
from foveate.signals import SIGNALS, Interrupted, handle_signals

OK, ERROR, USAGE = 0, 1, 2
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
LONG_WORD, LONG_LINE = 200, 2000  # characters of a message, beyond which its middle is left out
FLAGS = {
    "--json": "print the result as JSON",
    "--quiet": "show no progress",
    "--verbose": "show the logs of libraries, and tracebacks",
}
LIBRARY_BARS = "HF_HUB_DISABLE_PROGRESS_BARS"
QUIET_VARIABLES = ("TQDM_DISABLE", LIBRARY_BARS)


@dataclass(frozen=True)
class Command:
    """A row of the table of commands.

    Attributes:
        target: `module:function` of this package; the function's annotations and docstring define options and help.
        usage: arguments after the name of the command.
        summary: one line of description.
        takes_fields: `--field value`, if it is not an option of the function, is passed on as `field=value`.
        resumes: the same command continues where it was stopped.
        threads: of torch at most, by default; None: as many as there are processors.
    """

    target: str
    usage: str
    summary: str
    takes_fields: bool = False
    resumes: bool = False
    threads: int | None = None

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        return load_target(f"foveate.apps.cli.{self.target}")


COMMANDS: dict[str, Command] = {
    "demo": Command(
        "compare:demo",
        "[--quick]",
        "compare mechanisms on embedded data and write a report, without a download",
        resumes=True,
        threads=2,
    ),
    "train": Command(
        "train:train",
        "RECIPE [field=value ...] [--data DIR] [--out DIR] [--resume]",
        "train a model by a recipe",
        takes_fields=True,
        resumes=True,
    ),
    "tune": Command(
        "train:tune",
        "RECIPE field=log:1e-4..1e-2 ... [--trials N] [--storage URL]",
        "search for the best fields of a recipe",
        takes_fields=True,
        resumes=True,
    ),
    "check": Command(
        "check:check",
        "DIR [--plot PNG]",
        "check your own images and annotations before training on them",
    ),
    "evaluate": Command(
        "evaluate:evaluate",
        "RUN [field=value ...] [--data DIR] [--split S]",
        "evaluate a run on a split, optionally with another mechanism",
        takes_fields=True,
    ),
    "compare": Command(
        "compare:compare",
        "TASK [--mechanisms softmax,tvmax] [field=value ...]",
        "train with several mechanisms and print one table",
        takes_fields=True,
        resumes=True,
    ),
    "answer": Command(
        "answer:answer",
        'RUN IMAGE|DIR "QUESTION" [--plot PNG] [--out CSV]',
        "answer a question about an image, or about many",
    ),
    "caption": Command(
        "answer:caption", "RUN IMAGE|DIR [--plot PNG] [--out CSV]", "write a caption for an image, or for many"
    ),
    "look": Command(
        "look:look",
        'MODEL IMAGE ["TEXT"] [--plot PNG] [--relative] [--fit NAME]',
        "show where any model looks in an image",
    ),
    "evaluate-attention": Command(
        "evaluate_attention:evaluate",
        "MODEL [--data DATA] [--out DIR]",
        "measure whether any model attends to what a text is about",
    ),
    "predict": Command(
        "evaluate:predict",
        "RUN [field=value ...] --data DIR --out JSON",
        "write the predictions for a split in the format of the evaluation server",
        takes_fields=True,
    ),
    "reproduce": Command(
        "reproduce:reproduce",
        "TABLE --data DIR | --tiny [--only ROW] [--seeds N] [--dry-run]",
        "train and evaluate what a table of a paper needs, and print its numbers beside ours",
        resumes=True,
    ),
    "export": Command("convert:export_run", "RUN OUT.onnx", "write a trained run as an ONNX file and check it"),
    "list": Command("list:list_tables", "[TABLE]", "list transforms, mechanisms, models, recipes, ..."),
    "studio": Command(
        "serve:studio",
        "[--port P]",
        "open a web page to ask questions, try mechanisms and view results",
        threads=4,
    ),
    "doctor": Command("doctor:doctor", "[--json]", "report what works on this machine, and what to install"),
    "completion": Command("list:completion", "bash|zsh|fish", "print a script that completes foveate's commands"),
    "rate": Command(
        "serve:rate",
        "STUDY [--make --runs A,B,C] [--results]",
        "let people rate the texts and attention maps of runs",
    ),
    "scenes": Command(
        "scenes:scenes",
        "[OUT] [--show PNG]",
        "write the embedded dataset to files, or draw some of it",
    ),
    "extract": Command("extract:extract", "ENCODER IMAGES OUT", "encode images into a feature store", resumes=True),
    "index": Command("search:index", "RUN IMAGES OUT", "embed images into a search index", resumes=True),
    "search": Command(
        "search:search",
        'INDEX "TEXT" | IMAGE [--top N] [--rerank RUN] [--plot PNG]',
        "find the images that match a text, or the texts that match an image",
    ),
    "import": Command(
        "extract:import_precomputed",
        "FORMAT SOURCE OUT",
        "convert published features into a feature store",
    ),
    "import-run": Command(
        "convert:import_run",
        "KIND CHECKPOINT OUT --tokens JSON [--answers JSON] [field=value ...]",
        "convert a checkpoint that the authors of a paper published into a run",
        takes_fields=True,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 success, 1 error, 2 wrong usage, 130 or 143 stopped by a signal.

    >>> main(["--version"])  # doctest: +ELLIPSIS
    foveate ...
    0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    _prepare()
    try:
        with handle_signals(at_once=True) as stop:
            try:
                code = _dispatch(given)
                sys.stdout.flush()
                return code
            except BaseException as error:
                if stop.number is None or isinstance(error, Interrupted):
                    raise
                # A library has made something else of the signal, such as "import failed".
                raise Interrupted("", stop.number) from error
    except (KeyboardInterrupt, FoveateError, OSError) as error:
        return _explain(error, given)


def _prepare() -> None:
    """Make output appear line by line on any terminal, file or pipe, and let idle threads of torch sleep."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a closed stdin, stdout or stderr: otherwise the first file of ours would take its place
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(os.dup(1), "w")
    sys.stderr = sys.stderr or os.fdopen(os.dup(2), "w")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, errors="replace" if stream is sys.stdout else "backslashreplace")


def _choose_threads(most: int | None) -> None:
    """How torch computes, unless the environment says it; read when torch is loaded, and without effect after that.

    By default the threads of OpenMP wait for their next task in a loop: beside other programs, several times the work
    goes into that. In a container, torch counts the processors of the machine and not those that it may use.
    """
    if "torch" in sys.modules:
        return
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & set(os.environ):
        os.environ["OMP_NUM_THREADS"] = str(min(usable_processors(), most or sys.maxsize))


def usable_processors() -> int:
    """Processors that this process may use, by its affinity and by the quota of its container."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        count = min(count, max(1, -(-int(quota) // int(period))))
    return count


def _dispatch(given: list[str]) -> int:
    _choose_threads(COMMANDS[given[0]].threads if given and given[0] in COMMANDS else None)
    import foveate.lab  # noqa: F401  raises MissingExtra, with the pip command, where the library is installed alone

    if not given or given[0] in ("-h", "--help", "help"):
        print(overview())
        return OK
    if given[0] in ("-V", "--version"):
        from foveate import __version__

        print(f"foveate {__version__}")
        return OK
    name, *rest = given
    command = lookup("foveate", name, COMMANDS)
    with _exit_at_signals():
        function = command.load()
    flags, rest = take_flags(rest, keyword_options(function))
    with _flags(flags):
        if not command.takes_fields:
            check_options(name, function, rest)
        with _known_options(rest, function):
            rest = fields_as_changes(rest, function) if command.takes_fields else rest
            check_words(name, function, rest)
            return _call(name, function, rest, "--json" in flags)


@contextmanager
def _exit_at_signals() -> Iterator[None]:
    """While torch is imported, a signal ends the program at once: an exception inside its C++ would abort it."""
    if "torch" in sys.modules or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda number, frame: os._exit(128 + number)) for number in SIGNALS}
    try:
        import torch  # noqa: F401
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    yield


@contextmanager
def _known_options(given: Sequence[str], function: Callable[..., Any]) -> Iterator[None]:
    """Raises UnknownName with an option where `--name` is no field and nearer to that option than to any field."""
    try:
        yield
    except UnknownName as error:
        options = {_option(word): word.partition("=")[0] for word in given if word.startswith("--")}
        typed = options.get(_option(error.name))
        if typed is None or error.kind == "foveate":
            raise
        own = [f"--{name.replace('_', '-')}" for name in keyword_options(function)]
        found = UnknownName("foveate", typed, [*own, *(f"--{name}" for name in error.known)])
        raise (found if found.nearest in own else error) from None


def _option(word: str) -> str:
    """The name in an option or field.

    >>> _option("--batch-size=4")
    'batch_size'
    """
    return word.partition("=")[0].lstrip("-").replace("-", "_")


def take_flags(words: Sequence[str], own: Container[str]) -> tuple[set[str], list[str]]:
    """The flags that every command takes, and the other words; `own` are options that the command defines itself.

    >>> take_flags(["RUN", "--json", "--quiet"], {"quiet"})
    ({'--json'}, ['RUN', '--quiet'])
    """
    taken = {flag for flag in FLAGS if flag.removeprefix("--") not in own}
    return taken & set(words), [word for word in words if word not in taken]


@contextmanager
def _flags(flags: set[str]) -> Iterator[None]:
    """Without progress under --quiet; with what libraries log, and the traceback of an error, under --verbose.

    Without a terminal there are no bars of libraries, which would fill a log with carriage returns.
    """
    hidden = QUIET_VARIABLES if "--quiet" in flags else () if sys.stderr.isatty() else (LIBRARY_BARS,)
    ours = [name for name in hidden if name not in os.environ]
    os.environ |= dict.fromkeys(ours, "1")  # read by tqdm and huggingface_hub when they are imported, after this
    if "--verbose" in flags:
        logging.basicConfig(level=logging.INFO)
    try:
        yield
    except FoveateError:
        if "--verbose" in flags:
            traceback.print_exc()
        raise
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _call(name: str, function: Callable[..., Any], arguments: list[str], as_json: bool) -> int:
    import tyro

    config = (tyro.conf.FlagCreatePairsOff,)
    more_help = getattr(inspect.getmodule(function), "more_help", None)
    asks_help = bool({"-h", "--help"} & set(arguments))
    try:
        # with --json, what is meant for people goes to stderr
        with _process_group(), redirect_stdout(sys.stderr) if as_json and not asks_help else nullcontext():
            result = tyro.cli(annotate(name, function), prog=f"foveate {name}", args=arguments, config=config)
    except SystemExit as end:
        if end.code in (None, OK):
            print(f"every command also takes {', '.join(f'{flag} ({what})' for flag, what in FLAGS.items())}")
            print(more_help(arguments) if more_help is not None else "", end="")
        return end.code if isinstance(end.code, int) else OK
    if as_json:
        from foveate.apps.cli.terminal import as_json as encode

        print(json.dumps(encode(result), ensure_ascii=not (sys.stdout.encoding or "utf-8").lower().startswith("utf")))
    return OK


def _process_group() -> AbstractContextManager[None]:
    """Ends the process group that torchrun started; without torchrun there is none."""
    if "WORLD_SIZE" not in os.environ:
        return nullcontext()
    from foveate.lab.train.processes import close_process_group

    return close_process_group()


def overview() -> str:
    """The help of the program, from the table of commands.

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
            "foveate COMMAND --help shows the options of a command. Every command also takes:",
            *(f"  {flag:<10} {what}" for flag, what in FLAGS.items()),
            "  -V         the version of foveate",
        ]
    )


def fields_as_changes(arguments: Sequence[str], function: Callable[..., Any]) -> list[str]:
    """Rewrite `--field value` and `--field=value` as `field=value` where `field` is not an option of the function.

    >>> def function(recipe: str, *, resume: bool = False) -> None: ...
    >>> fields_as_changes(["r", "--lr", "0.1", "--resume", "--epochs=3"], function)
    ['r', 'lr=0.1', 'epochs=3', '--resume']

    Changes are moved before the options, so that they can be written in any order.
    """
    options = {f"--{name.replace('_', '-')}": kind for name, kind in keyword_options(function).items()}
    plain, flagged, rest = list[str](), list[str](), list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            plain.append(word)
        elif name in ("-h", "--help") or name.replace("_", "-") in options:
            flagged.append(word)
            if not equals and rest and options.get(name.replace("_", "-")) is not bool:
                flagged.append(rest.pop(0))
        elif not equals and not rest:
            raise UnknownName("foveate", name, options)
        else:
            plain.append(f"{name.lstrip('-').replace('-', '_')}={value if equals else rest.pop(0)}")
    return plain + flagged


def _continued(given: Sequence[str]) -> str:
    """The command that continues what was stopped; "" if there is none."""
    command = COMMANDS.get(given[0]) if given else None
    if command is None or not command.resumes:
        return ""
    program = "torchrun ... -m foveate" if "TORCHELASTIC_RUN_ID" in os.environ else "foveate"
    resumed = [*given, "--resume"] if given[0] == "train" and "--resume" not in given else given
    return f"{program} {shlex.join(resumed)}"


def _explain(error: BaseException, given: Sequence[str]) -> int:
    """Print an error in one line and return the exit code; raises an error that is a fault of the program."""
    where = " ".join(["foveate", *given[:1]])
    if isinstance(error, KeyboardInterrupt):
        if os.environ.get("RANK", "0") == "0":
            again = _continued(given)
            _say(f"{error or 'interrupted'}" + (f"\ncontinue with: {again}" if again else ""))
        return error.exit_code if isinstance(error, Interrupted) else Interrupted().exit_code
    if isinstance(error, OSError) and (isinstance(error, BrokenPipeError) or error.errno in NO_ROOM):
        # What is still buffered must not fail again at exit. The reader of a pipe, such as `head`, has seen enough.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            what = error.filename or "its output"
            _say(f"{where}: expected to write {what}, got {error.strerror}; free some space or write elsewhere")
        return ERROR
    if isinstance(error, OSError) and error.filename is not None:
        # The file system's own word for what a user named: a file where a directory is needed, no permission.
        _say(f"{where}: expected a path that can be used, got {error.strerror}: {error.filename}; choose another")
        return ERROR
    if not isinstance(error, FoveateError):
        raise error  # a fault of the program, not a mistake of the user: show the traceback
    _say(str(error))
    return USAGE if isinstance(error, UnknownName | UsageError) else ERROR


def _say(text: str) -> None:
    """Print a message to stderr, without the middle of very long words and lines; nothing if stderr takes nothing."""
    words = re.sub(rf"\S{{{LONG_WORD},}}", lambda found: _cut(found[0], LONG_WORD), text)
    with suppress(OSError):
        print("\n".join(_cut(line, LONG_LINE) for line in words.split("\n")), file=sys.stderr)


def _cut(text: str, most: int) -> str:
    """The beginning and the end of a text that is too long.

    >>> _cut("/home/" + "a" * 100 + "/image.png", 24)
    '/home/aaaa.../image.png'
    """
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"
