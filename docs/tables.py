"""Fill the tables of README.md from the registry and from the kept benchmark rows, so that neither can drift.

python docs/tables.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mechanisms() -> str:
    """One row a mechanism, from MECHANISMS."""
    from foveate import MECHANISMS

    return markdown(
        ["name", "what it is", "kind", "from"],
        [
            [f"`{name}`", row.summary, "density" if row.continuous else "weights", row.reference]
            for name, row in MECHANISMS.items()
        ],
    )


def speed() -> str:
    """The rows of the kept benchmarks that the README shows."""
    rows = []
    for row in load("transforms")["simplex"]:
        if row["who"] == "entmax" and row["rows"] == 512 and row["scores"] >= 196 and row["transform"] != "entmax 1.3":
            what = f"{row['transform']}, 512 x {row['scores']} scores"
            faster = f"{row['ours is faster, forward']:.1f}x forward, {row['with backward']:.1f}x with backward"
            rows.append([what, "`entmax` from PyPI", faster, ""])
    table = load("transforms")["total variation"]
    for ours, peer in zip(table[::2], table[1::2], strict=True):
        if ours["grid"] == "14x14":
            what = f"TVmax 14x14, smoothness {ours['smoothness']}, {ours['scores']}"
            cost = f"{ours['with backward us']:.0f} µs with backward, gap {ours['worst gap']:.0e}"
            rows.append([what, "`copt` from PyPI", f"{peer['ours is faster']:.1f}x forward", cost])
    rows += [
        [f"{row['work']}, 100 functions", "", "", f"{row['both us']:.0f} µs with backward, error {row['error']:.0e}"]
        for row in load("continuous")["densities"][:2]
    ]
    rows += [
        [row["work"], "", "", f"{row['best us']:.0f} µs"] for row in load("mixtures")["cost"] if row["to reach"] != "-"
    ]
    return markdown(["work", "against", "ours is faster", "ours, an example"], rows)


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


BLOCKS = {"mechanisms": mechanisms, "speed": speed}


def fill(text: str) -> str:
    """The text with every block between `<!-- name -->` and `<!-- /name -->` made anew."""
    for name, make in BLOCKS.items():
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(start)
        text = before + start + make() + "\n" + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(fill(readme.read_text(encoding="utf-8")), encoding="utf-8")
