"""Run the notebooks of the documentation and keep their output, with images of few colours.

python tools/notebooks.py [docs/tutorials/plug-in.ipynb ...]

Needs the extras docs, hf and photos; each notebook runs in an empty directory, so that it cannot rely on other files.
"""

from __future__ import annotations

import base64
import os
import sys
import tempfile
from io import BytesIO
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
WIDTH, COLOURS, SECONDS = 900, 128, 1200


def run(path: Path) -> None:
    """Run a notebook and write it back; an error in a cell stops here."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as empty:
        client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": empty}}, record_timing=False)
        client.execute()
        for cell in notebook.cells:
            cell.metadata.clear()
            if "outputs" in cell:  # what libraries write to stderr depends on the machine
                cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
            for output in cell.get("outputs", ()):
                tidy(output, empty)
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


def tidy(output: nbformat.NotebookNode, directory: str) -> None:
    """Make the images of an output small, and leave out the directory in which the notebook ran."""
    data = output.get("data", {})
    for part, kind in ((output, "text"), (data, "text/plain"), (data, "text/html")):
        if kind in part:
            part[kind] = part[kind].replace(f"{directory}/", "").replace(directory, ".")
    if "image/png" in data:
        data["image/png"] = base64.b64encode(smaller(base64.b64decode(data["image/png"]))).decode()
        data.pop("image/jpeg", None)


def smaller(png: bytes) -> bytes:
    """The same image, not wider than a page and with a palette."""
    image = Image.open(BytesIO(png)).convert("RGB")
    if image.width > WIDTH:
        image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
    file = BytesIO()
    image.quantize(COLOURS, Image.Quantize.FASTOCTREE).save(file, "png", optimize=True)
    return file.getvalue()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same last digits wherever it runs
    for name in sys.argv[1:] or sorted(TUTORIALS.glob("*.ipynb")):
        run(Path(name).resolve())
