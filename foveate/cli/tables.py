"""Tables on the screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WIDTH = 120
MANY = 8  # with more columns there is less space between them, and the names of the first are not broken


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
    many = len(heads) > MANY
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0 if many else 1))
    for place, head in enumerate(heads):
        table.add_column(head, overflow="fold", no_wrap=many and place == 0)
    for name, *cells in rows:
        if many:
            name, cells = name.replace(" ", "\n", 1), [cell.replace("± ", "±") for cell in cells]
        table.add_row(name, *cells)
    console.print(title, highlight=False, markup=False)
    console.print(table)
