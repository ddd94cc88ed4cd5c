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
    rows = [[cell.replace("± ", "±") for cell in row] if many else row for row in rows]
    names = [word for row in rows for word in row[0].split()]
    for place, head in enumerate(heads):
        whole = max(map(len, names), default=0) if many and place == 0 else None
        table.add_column(head, overflow="fold", min_width=whole)
    for row in rows:
        table.add_row(*row)
    console.print(title, highlight=False, markup=False)
    console.print(table)
