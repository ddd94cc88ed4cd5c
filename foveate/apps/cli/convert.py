"""`foveate export` and `foveate import-run`: a trained run as an ONNX file, and a published checkpoint as a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from foveate.apps.cli.terminal import Directory, NewFile
from foveate.errors import DataError
from foveate.export import onnx_difference, to_onnx
from foveate.lab import hub
from foveate.lab.data.feature_store import FeatureStore
from foveate.lab.hub import load
from foveate.lab.papers.authors import PublishedFiles
from foveate.lab.papers.authors import import_run as write_run
from foveate.lab.tasks.task import RunGraph

TOLERANCE = 1e-3


def export_run(run: str, out: NewFile) -> dict[str, Any]:
    """Write a whole trained run as an ONNX file: image encoder, text encoder, attention and decoder.

    The file is run with onnxruntime on examples and compared with the run; a text file next to it explains how to call
    it. The batch size can vary.

    Args:
        run: directory of a run, or name of an embedded one.
        out: the file to write, ending in .onnx.
    """
    if out.suffix != ".onnx":
        raise DataError(f"export: expected a file that ends in .onnx, got {out}; use for instance model.onnx")
    predictor = load(run)
    if not hasattr(predictor, "graph"):
        raise DataError(f"export: expected a run that answers, captions or matches, got {run}; use such a run")
    graph: RunGraph = predictor.graph()
    graph.module.eval()
    out.parent.mkdir(parents=True, exist_ok=True)
    worst = to_onnx(
        graph.module,
        graph.inputs,
        out,
        dynamic_shapes=(_varying(graph),),
        input_names=graph.input_names,
        output_names=graph.output_names,
    )
    more = tuple(torch.cat([x, x[:1]]) for x in graph.inputs)
    worst = max(worst, onnx_difference(out, graph.module, more))
    if worst > TOLERANCE:
        raise DataError(f"export: expected outputs within {TOLERANCE:g} of the run, got {worst:.1e}; report this run")
    out.with_suffix(".txt").write_text(_usage(run, out, graph, worst), encoding="utf-8")
    print(f"{out}: outputs within {worst:.1e} of the run; {out.with_suffix('.txt').name} says how to call it")
    return {"file": str(out), "difference": worst, "inputs": list(graph.input_names)}


def _varying(graph: RunGraph) -> tuple[dict[int, Any], ...]:
    """Which sizes may vary: images and texts, and the length of texts."""
    images, texts = (torch.export.Dim(name, min=1, max=4096) for name in ("images", "texts"))
    paired = graph.output_names[-1] != "scores" or len(graph.inputs) == 1
    return tuple({0: images if paired or i == 0 else texts} for i in range(len(graph.inputs)))


def _usage(run: str, out: Path, graph: RunGraph, worst: float) -> str:
    shapes = {name: tuple(x.shape) for name, x in zip(graph.input_names, graph.inputs, strict=True)}
    feeds = ", ".join(f'"{name}": {name}' for name in graph.input_names)
    return f"""{out.name}: the run {run}

{graph.usage}
inputs that were tried: {shapes}; the first size of each can vary
largest difference from the run: {worst:.1e}

import onnxruntime
session = onnxruntime.InferenceSession("{out.name}")
{", ".join(graph.output_names)} = session.run(None, {{{feeds}}})
"""


def import_run(
    kind: str,
    checkpoint: Path,
    out: Directory,
    changes: tuple[str, ...] = (),
    *,
    tokens: str = "",
    answers: Path | None = None,
    store: Path | None = None,
) -> dict[str, str]:
    """Convert a published checkpoint into a run; nothing inside the file is executed.

    Args:
        kind: mcan (mcan-vqa and openvqa), scan or bfan.
        checkpoint: the .pkl or .pth.tar file.
        out: directory of the run to write.
        changes: fields of its recipe to change, as field=value or --field value, such as dataset=vqa-v1 or heads=4.
        tokens: JSON file of its tokens (SCAN and BFAN: vocab/f30k_precomp_vocab.json); for mcan also the question files
            of train, val and test in this order, separated by commas.
        answers: answer_dict.json, for mcan.
        store: a feature store the run is used with; if `foveate extract` wrote it, the run answers questions about
            new images too.
    """
    opened = None if store is None else FeatureStore(store)
    found = None if opened is None else (opened.description, opened.dim)
    files = tuple(Path(part) for part in tokens.split(",") if part)
    recipe = write_run(kind, PublishedFiles(checkpoint, files, answers, found), out, changes)
    hub.load(out)
    print(f"{out}: {recipe.about} for {recipe.settings.dataset}; evaluate it with: foveate evaluate {out} --data DIR")
    return {"run": str(out), "about": recipe.about, "dataset": recipe.settings.dataset}
