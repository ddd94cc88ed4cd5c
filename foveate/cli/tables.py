"""Tables on the screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WIDTH = 120


def print_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; when the output is no screen, at a width that fits most.

    >>> print_table("example", ("name", "value"), [("a", "1")])  # doctest: +ELLIPSIS
    example
    ...
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    table = Table(box=box.SIMPLE_HEAD)
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(title, highlight=False, markup=False)
    console.print(table)
