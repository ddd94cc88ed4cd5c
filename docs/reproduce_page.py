"""Write the sections of docs/reproduce.md, one per table of the papers, from the table of tables.

python docs/reproduce_page.py
"""

from __future__ import annotations

from pathlib import Path

from foveate.lab.papers.tables import TABLES
from foveate.lab.papers.tables.cost import total
from foveate.lab.papers.tables.table import Table

PAGE = Path(__file__).resolve().parent / "reproduce.md"
THROUGHPUT = 10.0


def page(text: str) -> str:
    """The page with new sections; the text before the first one is kept."""
    head = text.partition(f"\n## {next(iter(TABLES))}\n")[0].rstrip()
    return "\n\n".join([head, *(section(name, table) for name, table in TABLES.items())]) + "\n"


def section(name: str, table: Table) -> str:
    """What a table needs and how it differs from the paper."""
    title = table.title[0].upper() + table.title[1:]
    data = "" if table.kind == "measurement" else " --data DATA"
    parts = [f"## {name}", f"{title} ({table.reference}).", f"```\nfoveate reproduce {name}{data}\n```"]
    parts += ["Needs SciPy (extra `tables`) and no data."] if table.kind == "measurement" else needs(table)
    return "\n\n".join([*parts, "Differences from the paper:", "\n".join(f"- {one}" for one in table.differs)])


def needs(table: Table) -> list[str]:
    """Files, features, rows and cost."""
    files = dict.fromkeys([*table.files, *(feature.made_from for feature in table.features)])
    rows = "\n".join(f"| `{file.name}` | {file.source} |" for file in files)
    commands = "\n".join(feature.command for feature in table.features)
    cost, names = total(table.rows), "; ".join(f"`{row.name}`" for row in table.rows)
    return [
        f"| file or directory in `DATA` | publisher |\n|---|---|\n{rows}",
        "The command creates these feature stores; to create them yourself:",
        f"```\n{commands}\n```",
        f"Rows: {names}. Training takes {cost.steps:,} steps and {cost.multiply_adds:.2g} multiply-adds, about "
        f"{cost.hours(THROUGHPUT):.1f} hours at {THROUGHPUT:g} tera-operations per second.",
    ]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
