"""`foveate export`: a trained run as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from foveate.apps.cli.terminal import NewFile
from foveate.errors import DataError
from foveate.export import onnx_difference, to_onnx
from foveate.lab.hub import load
from foveate.lab.tasks.graph import RunGraph

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
