"""The notebooks of the documentation: committed with their output, small, and running from top to bottom."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).resolve().parent.parent / "docs" / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))
# The packages of extras that a notebook needs.
NEEDS = {"watch": ("transformers",), "own-data": ("efficientnet_lite_pytorch", "sklearn")}
LARGEST = 300_000


def cells(path: Path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_with_their_output(path: Path) -> None:
    counts = [cell["execution_count"] for cell in cells(path)]
    assert counts == list(range(1, len(counts) + 1)), "run python tools/notebooks.py"
    outputs = [output for cell in cells(path) for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert path.stat().st_size < LARGEST
    text = "".join("".join(output.get("text", "")) for output in outputs)
    assert not re.search(r"/(home|root|tmp|work)/", text), "a path of one machine"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation", "ignore:FigureCanvasAgg")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDS.get(path.stem, ()):
        pytest.importorskip(package, reason="needs an extra")
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": path.stem}
    with plt.rc_context():
        for number, cell in enumerate(cells(path), 1):
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), namespace)
    plt.close("all")
