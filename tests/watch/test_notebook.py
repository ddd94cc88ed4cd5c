"""The notebook runs from top to bottom on its tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs the extra hf")
NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "watch.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_the_notebook_runs(capsys):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names: dict = {"__name__": "notebook"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)
    out = capsys.readouterr().out
    assert "layers, heads, words, image tokens" in out
    assert "exactly zero" in out
    assert out.count("uniform") == 2
