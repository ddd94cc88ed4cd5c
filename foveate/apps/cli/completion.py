"""`foveate completion`: scripts that complete commands and options in a shell."""

from __future__ import annotations

from collections.abc import Callable

from foveate.apps.cli.main import COMMANDS, FLAGS
from foveate.apps.cli.terminal import keyword_options
from foveate.registry import lookup


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
