"""What commands print and write: tables on the screen, and checks of output files before the work that fills them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from foveate.errors import DataError

WIDTH = 120
MANY = 8  # tables with more columns are set closer, and the names in the first column are not wrapped
FIGURES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".pdf", ".svg", ".eps")


def check_figure(where: str, path: Path | None) -> None:
    """Raises DataError if a figure cannot be written to `path`.

    >>> check_figure("answer", Path("look.txt"))
    Traceback (most recent call last):
    foveate.errors.DataError: answer: expected a file ending in .png, .jpg, ..., got look.txt; use for instance look.png
    """
    if path is None:
        return
    if path.expanduser().is_dir():
        raise DataError(f"{where}: expected a file, got the directory {path}; use for instance {path / 'figure.png'}")
    if path.suffix.lower() not in FIGURES:
        raise DataError(
            f"{where}: expected a file ending in {', '.join(FIGURES)}, got {path}; use for instance "
            f"{path.with_suffix('.png')}"
        )
    check_parent(where, path)


def check_parent(where: str, path: Path | None) -> None:
    """Raises DataError if the directory that `path` is to be written to does not exist."""
    if path is not None and not path.expanduser().parent.is_dir():
        raise DataError(
            f"{where}: expected the directory {path.parent} to write {path.name} into, got none; create it first"
        )


def print_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, at a fixed width if the output is not a terminal.

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
