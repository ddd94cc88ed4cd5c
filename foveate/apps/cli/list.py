"""`foveate list` and `foveate completion`: what the tables hold, for people and for shells."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from foveate.apps.cli.main import COMMANDS, FLAGS
from foveate.apps.cli.terminal import keyword_options, print_table
from foveate.attention import options_table
from foveate.errors import DataError
from foveate.lab.train.recipe import embedded_runs, read_run, run_directory
from foveate.lab.train.records import CONFIG, History
from foveate.ops import kernels
from foveate.registry import lookup

RUNS = "runs"
TABLES: dict[str, str] = {
    "transforms": "foveate.ops:TRANSFORMS",
    "mechanisms": "foveate.attention:MECHANISMS",
    "encoders": "foveate.lab.encoders:ENCODERS",
    "models": "foveate.lab.models:MODELS",
    "datasets": "foveate.lab.data:DATASETS",
    "tasks": "foveate.lab.tasks:TASKS",
    "recipes": "foveate.lab.recipes:RECIPES",
    "tables": "foveate.lab.papers.tables:TABLES",
}


def list_tables(table: str | None = None, *, throughput: float = 10.0) -> dict[str, dict[str, str]]:
    """List transforms, mechanisms, encoders, models, datasets, tasks, recipes, tables of the papers, and runs.

    Args:
        table: which of them to list; by default all.
        throughput: of the machine in tera-operations per second, to estimate the hours that a table of a paper takes.
    """
    found = {name: _rows(name, throughput) for name in ([table] if table else [*TABLES, RUNS])}
    for name, rows in found.items():
        print_table(name, ("name", "description"), list(rows.items()))
    if table == "mechanisms":
        print_table("options", ("option", "type", "default", "mechanisms", "meaning"), options_table())
    unit = kernels.unit()
    print("native kernels:", "none, torch does the work" if unit is None else f"in use ({unit})")
    return found


def _rows(name: str, throughput: float) -> dict[str, str]:
    if name == "tables":
        return _paper_tables(throughput)
    if name == RUNS:
        return {run: _about_run(run) for run in [*embedded_runs(), *_own_runs()]}
    module, _, attribute = lookup("list", name, {**TABLES, RUNS: ""}).partition(":")
    rows: Mapping[str, Any] = getattr(import_module(module), attribute)
    return {key: describe_row(row) for key, row in rows.items()}


def _own_runs() -> list[str]:
    """The runs below `runs` in this directory, where `foveate train` writes them."""
    return sorted(str(path.parent) for path in Path(RUNS).glob(f"**/{CONFIG}"))


def _about_run(run: str) -> str:
    """What a run was trained for, and what it scored."""
    try:
        recipe, task = read_run(run)
        best = History.load(run_directory(run), task.objective).best
    except DataError as error:
        return f"cannot be read: {error}"
    score = f"{task.objective} {best.metrics[task.objective]:.4g} after step {best.step}" if best else "not evaluated"
    return f"{recipe.task}, {recipe.name}: {score}"


def _paper_tables(throughput: float) -> dict[str, str]:
    """What every table of the papers needs: files, features, steps, multiply-adds and hours; and the figures."""
    from foveate.lab.papers.tables import TABLES as paper_tables
    from foveate.lab.papers.tables.cost import total
    from foveate.lab.papers.tables.paper_figures import FIGURES

    rows = {}
    for name, table in paper_tables.items():
        cost = total(table.rows)
        lines = [f"{table.title} ({table.reference})"]
        lines += ["files: " + ", ".join(dict.fromkeys(file.name for file in table.files))] if table.files else []
        lines += [f"{one.store} from {one.made_from.name} ({one.format})" for one in table.features]
        lines += [
            f"{cost.steps:,} steps, {cost.multiply_adds:.2g} multiply-adds, {cost.hours(throughput):.0f} hours at "
            f"{throughput:g} tera-operations per second"
        ]
        rows[name] = "\n".join(lines)
    return rows | {name: f"figure: {one.title} ({one.reference})" for name, one in FIGURES.items()}


def describe_row(row: Any) -> str:
    """A row in words: its summary, what a recipe says about itself, its plain fields, or the first line of its help.

    >>> from foveate.ops import TRANSFORMS
    >>> describe_row(TRANSFORMS["softmax"])
    'dense: every location counts (the standard choice)'
    """
    if hasattr(row, "summary"):
        return f"{row.summary} ({row.reference})" if getattr(row, "reference", "") else row.summary
    if is_dataclass(row) and not isinstance(row, type):
        return "; ".join(
            _plain(field.name, getattr(row, field.name)) for field in fields(row) if _is_shown(row, field.name)
        )
    if isinstance(row, partial) or (inspect.isfunction(row) and not inspect.signature(row).parameters):
        return getattr(row(), "about", "") or _first_line(row)
    return _first_line(row)


def _plain(name: str, value: Any) -> str:
    if value is True:
        return name
    return f"{name} {', '.join(map(str, value)) if isinstance(value, tuple) else value}"


def _is_shown(row: Any, name: str) -> bool:
    value = getattr(row, name)
    return bool(value) and not callable(value)


def _first_line(row: Callable[..., Any]) -> str:
    return (inspect.getdoc(row) or "").partition("\n")[0]


def completion(shell: str) -> str:
    """Print a script that completes the commands and options of foveate.

    Load it with `source <(foveate completion bash)` or `source <(foveate completion zsh)`, or save that of fish as
    ~/.config/fish/completions/foveate.fish.

    Args:
        shell: bash, zsh or fish.
    """
    script = lookup("completion", shell, SHELLS)()
    print(script, end="")
    return script


def words() -> dict[str, list[str]]:
    """The commands, each with the words that can follow it: names of recipes or runs, and options.

    >>> "--plot" in words()["answer"], "vqa-mcan-scenes" in words()["train"]
    (True, True)
    """
    from foveate.lab.recipes import RECIPES
    from foveate.lab.train.recipe import embedded_runs

    first = {"RECIPE": list(RECIPES), "RUN": embedded_runs(), "bash|zsh|fish": list(SHELLS)}
    found = {}
    for name, command in COMMANDS.items():
        options = [f"--{option.replace('_', '-')}" for option in keyword_options(command.load())]
        found[name] = [*first.get(command.usage.partition(" ")[0], []), *options, *FLAGS, "--help"]
    return found


def _bash() -> str:
    cases = "\n".join(f'        {name}) words="{" ".join(after)}" ;;' for name, after in words().items())
    return f"""_foveate() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words="{" ".join(COMMANDS)}"
    if [ "$COMP_CWORD" -gt 1 ]; then case "${{COMP_WORDS[1]}}" in
{cases}
        *) words="" ;;
    esac; fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [ ${{#COMPREPLY[@]}} -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o filenames -F _foveate foveate
"""


def _zsh() -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash()}"


def _fish() -> str:
    lines = ["complete -c foveate -f -n __fish_use_subcommand -a '{}'".format(" ".join(COMMANDS))]
    for name, after in words().items():
        seen = f"'__fish_seen_subcommand_from {name}'"
        plain = [word for word in after if not word.startswith("--")]
        lines += [f"complete -c foveate -n {seen} -a '{' '.join(plain)}'"] if plain else []
        lines += [f"complete -c foveate -n {seen} -l {word[2:]}" for word in after if word.startswith("--")]
    return "\n".join(lines) + "\n"


SHELLS: dict[str, Callable[[], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
