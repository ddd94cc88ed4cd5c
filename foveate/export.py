"""Models with our attention as graphs: torch.export, ONNX, AOTInductor.

`torch.export.export` works on every model as it is, and keeps our operators as single nodes that need foveate to run.
For other runtimes `plain_program` replaces them by ordinary operations (`foveate.ops.plain`).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from foveate.ops.plain import (
    in_float32,
    plain_cholesky,
    plain_cholesky_solve,
    plain_entmax,
    plain_entmax_alpha,
    plain_erfc,
    plain_hypot,
    plain_prox_tv,
    plain_sort,
    plain_stream,
    plain_where,
)
from foveate.registry import optional

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Arguments = tuple[Any, ...]


def decompositions() -> dict[Any, Callable[..., Any]]:
    """What each operator of foveate is in ordinary torch operations, for `ExportedProgram.run_decompositions`.

    >>> [str(op) for op in decompositions() if "foveate" in str(op)]
    ['foveate.entmax_rows.default', 'foveate.entmax_alpha.default', 'foveate.prox_tv.default', 'foveate.stream.default']
    """
    import foveate.ops.entmax_alpha
    import foveate.ops.simplex
    import foveate.ops.sparse_attention
    import foveate.ops.total_variation  # noqa: F401  they register their operators

    return {
        torch.ops.foveate.entmax_rows.default: plain_entmax,
        torch.ops.foveate.entmax_alpha.default: plain_entmax_alpha,
        torch.ops.foveate.prox_tv.default: plain_prox_tv,
        torch.ops.foveate.stream.default: plain_stream,
    }


def onnx_decompositions() -> dict[Any, Callable[..., Any]]:
    """The same and what onnxruntime lacks: factorisations, choices between booleans, functions of float64."""
    aten = torch.ops.aten
    names = ("atan2", "atan", "asin", "acos", "erf", "cos", "sin", "log1p", "expm1")
    single = [getattr(aten, name).default for name in names]
    return {
        **decompositions(),
        aten.hypot.default: plain_hypot,
        aten.erfc.default: plain_erfc,
        aten.special_erfc.default: plain_erfc,
        aten.where.self: plain_where,
        aten.sort.stable: plain_sort,
        aten.argsort.stable: lambda x, *, stable, dim=-1, descending=False: plain_sort(x, stable, dim, descending)[1],
        aten.linalg_cholesky_ex.default: lambda matrix, upper=False, **_: plain_cholesky(matrix, upper),
        aten.linalg_cholesky.default: lambda matrix, **_: plain_cholesky(matrix)[0],
        aten.cholesky_solve.default: plain_cholesky_solve,
        **{op: in_float32(op) for op in single},
    }


def plain_program(
    module: nn.Module,
    args: Arguments,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    table: Mapping[Any, Callable[..., Any]] | None = None,
) -> ExportedProgram:
    """The graph of a module in ordinary operations: what ONNX and AOTInductor can take.

    Args:
        module: in evaluation mode.
        args, kwargs: example inputs.
        dynamic_shapes: as in `torch.export.export`: which sizes may vary.
        table: of decompositions; `decompositions()` when None.

    >>> import foveate as fv
    >>> class Attend(nn.Module):
    ...     def forward(self, scores):
    ...         return fv.sparsemax(scores)
    >>> program = plain_program(Attend(), (torch.randn(2, 5),))
    >>> any("foveate" in str(node.target) for node in program.graph.nodes)
    False
    """
    with torch.no_grad(), _without_notes():
        program = torch.export.export(module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False)
        plain: ExportedProgram = program.run_decompositions(dict(decompositions() if table is None else table))
    return plain


@contextmanager
def _without_notes() -> Iterator[None]:
    """Without what torch says about itself: what it has deprecated, how its LSTM keeps weights, no torchvision."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    with warnings.catch_warnings():
        for kind in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
        warnings.filterwarnings("ignore", "The tensor attributes .*_flat_weights", UserWarning)
        try:
            log.setLevel(logging.ERROR)
            yield
        finally:
            log.setLevel(level)


def to_onnx(
    module: nn.Module,
    args: Arguments,
    path: str | Path,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> float:
    """Write a module as an ONNX file and run it once with onnxruntime.

    Args:
        module, args, kwargs, dynamic_shapes: as in `plain_program`.
        path: of the file.
        input_names, output_names: of the graph; those of torch when None.

    Returns:
        The largest difference between onnxruntime and the module on the example inputs.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        optional("to_onnx", package, extra="export")
    program = plain_program(module, args, kwargs, dynamic_shapes=dynamic_shapes, table=onnx_decompositions())
    names = {"input_names": list(input_names) if input_names else None}
    names["output_names"] = list(output_names) if output_names else None
    with _without_notes():
        # torch's optimiser takes four times as long as all the rest; onnxruntime does its work again at every start
        written = torch.onnx.export(program, dynamo=True, verbose=False, optimize=False, **names)  # type: ignore[arg-type]
        assert written is not None
        _expand(written.model)
    written.save(str(path))
    return onnx_difference(path, module, args, kwargs)


def _expand(model: Any) -> None:
    """Put functions in place of their calls, and `Cast` for `CastLike`, which onnxruntime has no kernel to fold."""
    ir = optional("to_onnx", "onnx_ir", extra="export")
    common = optional("to_onnx", "onnx_ir.passes.common", extra="export")
    common.InlinePass()(model)
    for node in model.graph:
        if node.op_type != "CastLike":
            continue
        like = node.inputs[1].dtype or getattr(ir.convenience.get_const_tensor(node.inputs[1]), "dtype", None)
        if like is not None:
            cast = ir.node("Cast", [node.inputs[0]], {"to": like})
            replace = ir.convenience.replace_nodes_and_values
            replace(model.graph, node, [node], [cast], node.outputs, cast.outputs)


def onnx_difference(
    path: str | Path, module: nn.Module, args: Arguments, kwargs: Mapping[str, Any] | None = None
) -> float:
    """The largest difference between the outputs of an ONNX file and those of the module it was made from."""
    runtime = optional("onnx_difference", "onnxruntime", extra="export")
    with torch.no_grad():
        expected = [x for x in pytree.tree_leaves(module(*args, **dict(kwargs or {}))) if isinstance(x, Tensor)]
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    leaves = [x for x in pytree.tree_leaves((args, dict(kwargs or {}))) if isinstance(x, Tensor)]
    feeds = {one.name: leaf.numpy() for one, leaf in zip(session.get_inputs(), leaves, strict=True)}
    pairs = zip(session.run(None, feeds), expected, strict=True)
    return max((largest_difference(torch.from_numpy(got), wanted) for got, wanted in pairs), default=0.0)


def largest_difference(got: Tensor, wanted: Tensor) -> float:
    """The largest difference of two tensors: equal infinities do not differ, NaN and other infinities do infinitely.

    >>> largest_difference(torch.tensor([1.0, -torch.inf]), torch.tensor([1.5, -torch.inf]))
    0.5
    >>> largest_difference(torch.tensor([torch.nan]), torch.tensor([0.0]))
    inf
    """
    if got.numel() == 0:
        return 0.0
    apart = torch.where(got == wanted, 0.0, (got.double() - wanted.double()).abs())
    return float(torch.where(apart.isnan(), torch.inf, apart).max())
