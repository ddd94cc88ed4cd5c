"""Models with our attention as graphs: torch.export, ONNX, AOTInductor."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

from foveate import MECHANISMS, entmax, mechanism, scaled_dot_product_attention, tvmax
from foveate.export import decompositions, onnx_difference, plain_program, to_onnx
from foveate.ops import prox_tv1d, prox_tv2d, prox_tv_graph
from foveate.ops.plain import (
    plain_cholesky,
    plain_cholesky_solve,
    plain_entmax,
    plain_entmax_alpha,
    plain_erfc,
    plain_prox_tv,
    plain_sort,
    plain_where,
)
from tests.cases import draw

slow = pytest.mark.slow
QUICK = ("tvmax", "continuous-softmax")
tracer = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
names = pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=slow) for n in MECHANISMS])
needs_onnx = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None or importlib.util.find_spec("onnxscript") is None,
    reason='needs the extra: pip install "foveate[export]"',
)


class Attend(nn.Module):
    """A mechanism in a module, as models have it."""

    def __init__(self, name: str, masked: bool = False) -> None:
        super().__init__()
        self.attend, self.masked = mechanism(name).eval(), masked

    def forward(self, scores, values, mask):
        return self.attend(scores, values, grid=(3, 4), mask=mask if self.masked else None)


class Read(Attend):
    """The same with plain tensors as outputs."""

    def forward(self, scores, values, mask):
        seen = super().forward(scores, values, mask)
        return seen.context, seen.weights


def inputs(B: int = 2):
    kept = torch.arange(12).expand(B, 12) < torch.tensor([12, 7] + [9] * B)[:B, None]
    return 2 * draw(B, 3, 12, dtype=torch.float32), draw(B, 12, 5, seed=1, dtype=torch.float32), kept


def dynamic_batch():
    B = torch.export.Dim("B", min=1, max=64)
    return {0: B}, {0: B}, {0: B}


@tracer
@names
def test_attention_is_a_tree_that_torch_exports_with_any_batch_size(name):
    module = Attend(name, masked=True)
    program = torch.export.export(module, inputs(), dynamic_shapes=dynamic_batch(), strict=False)
    for B in (2, 5):
        seen, expected = program.module()(*inputs(B)), module(*inputs(B))
        torch.testing.assert_close(seen.context, expected.context, rtol=1e-4, atol=1e-5)
        assert type(seen.density) is type(expected.density)
        assert seen.grid == (3, 4)
        torch.testing.assert_close(seen.map(5, 5), expected.map(5, 5), rtol=1e-4, atol=1e-5)


@tracer
def test_locations_can_vary_and_programs_can_be_saved(tmp_path):
    class Weights(nn.Module):
        def forward(self, scores, values):
            return mechanism("sparsemax")(scores, values)

    N = torch.export.Dim("N", min=2, max=512)
    scores, values, _ = inputs()
    program = torch.export.export(Weights(), (scores, values), dynamic_shapes=({2: N}, {1: N}), strict=False)
    torch.export.save(program, tmp_path / "weights.pt2")
    loaded = torch.export.load(tmp_path / "weights.pt2").module()
    for n in (12, 30):
        z, v = draw(2, 3, n, dtype=torch.float32), draw(2, n, 5, dtype=torch.float32)
        torch.testing.assert_close(loaded(z, v).context, Weights()(z, v).context)


@pytest.mark.parametrize("alpha", [1.0, 1.1, 1.3, 1.5, 1.9, 2.0, 3.0])
def test_plain_entmax_is_the_operator(alpha):
    scores = 3 * draw(6, 40, dtype=torch.float32)
    scores[0, 5:] = -torch.inf
    scores[1] = -torch.inf
    scores[2, 3] = scores[2, 7] = torch.inf
    operator = torch.ops.foveate.entmax_rows(scores, alpha, -1, "entmax")
    torch.testing.assert_close(plain_entmax(scores, alpha), operator, rtol=0, atol=1e-4 if alpha > 2 else 1e-6)
    if 1 < alpha <= 2:
        rows = scores[[0, 1, 3, 4, 5]]
        own = torch.full((5, 1), alpha)
        torch.testing.assert_close(plain_entmax_alpha(rows, own), entmax(rows, alpha), rtol=0, atol=1e-6)


@pytest.mark.parametrize("smoothness", [0.01, 0.1, 0.5])
def test_plain_prox_is_the_operator(smoothness):
    scores, keep = 2 * draw(8, 7, 7, dtype=torch.float32), draw(8, 7, 7, seed=1) > -1
    value = plain_prox_tv(scores, keep, None, 2, smoothness)[0]
    torch.testing.assert_close(value, prox_tv2d(scores, smoothness, keep), rtol=0, atol=1e-5)
    line, kept = scores.flatten(1), keep.flatten(1)
    torch.testing.assert_close(
        plain_prox_tv(line, kept, None, 1, smoothness)[0], prox_tv1d(line, smoothness, kept), rtol=0, atol=1e-4
    )
    edges = torch.randint(49, (80, 2), generator=torch.Generator().manual_seed(0))
    graph = plain_prox_tv(line, kept, edges, 1, smoothness)[0]
    torch.testing.assert_close(graph, prox_tv_graph(line, edges, smoothness, kept), rtol=0, atol=1e-5)


def test_plain_linear_algebra():
    a = draw(3, 6, 6)
    matrix, right = a @ a.mT + torch.eye(6, dtype=torch.float64), draw(3, 6, 2)
    root = torch.linalg.cholesky(matrix)
    torch.testing.assert_close(plain_cholesky(matrix)[0], root)
    torch.testing.assert_close(plain_cholesky(matrix, upper=True)[0], root.mT)
    torch.testing.assert_close(plain_cholesky_solve(right, root), torch.linalg.solve(matrix, right))
    torch.testing.assert_close(plain_cholesky_solve(right, root.mT, upper=True), torch.linalg.solve(matrix, right))
    for descending in (False, True):
        torch.testing.assert_close(plain_sort(right, dim=1, descending=descending)[0], right.sort(1, descending)[0])


class Stream(nn.Module):
    def forward(self, q, k, v, mask):
        options = {"transform": "entmax", "alpha": 1.5, "temperature": 0.7, "attn_mask": mask}
        return scaled_dot_product_attention(q, k, v, **options)


def test_plain_erfc_in_both_precisions():
    for x in (torch.linspace(-3, 3, 13), torch.linspace(-3, 3, 13, dtype=torch.float64)):
        torch.testing.assert_close(plain_erfc(x), torch.erfc(x), rtol=0, atol=2e-7)


def test_streaming_attention_is_exported_as_one_operator_and_as_plain_operations():
    q, k, v = (draw(2, 2, n, 4, seed=i, dtype=torch.float32) for i, n in enumerate((3, 5, 5)))
    mask = draw(3, 5, seed=4) > -0.5
    expected = Stream()(q, k, v, mask)
    exported = torch.export.export(Stream(), (q, k, v, mask))
    assert [str(n.target) for n in exported.graph.nodes if "foveate" in str(n.target)] == ["foveate.stream.default"]
    torch.testing.assert_close(exported.module()(q, k, v, mask), expected)
    plain = plain_program(Stream(), (q, k, v, mask))
    assert not [node for node in plain.graph.nodes if "foveate" in str(node.target)]
    torch.testing.assert_close(plain.module()(q, k, v, mask), expected, rtol=0, atol=1e-5)


def test_recurrent_text_encoders_export_without_a_warning():
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.LSTM(3, 4, batch_first=True)

        def forward(self, words):
            return self.recurrent(words)[0]

    words, module = draw(2, 5, 3, dtype=torch.float32), Read()
    torch.testing.assert_close(plain_program(module, (words,)).module()(words), module(words))


def test_plain_choice_is_for_booleans_alone():
    condition, a, b = torch.cartesian_prod(*[torch.tensor([False, True])] * 3).unbind(-1)
    assert plain_where(condition, a, b).tolist() == torch.where(condition, a, b).tolist()
    assert plain_where(condition, a.float(), b.float()) is NotImplemented  # torch keeps the operator


@tracer
@pytest.mark.parametrize("name", ["sparsemax", "continuous-entmax", pytest.param("tvmax", marks=slow)])
def test_a_plain_program_needs_no_foveate(name):
    program = plain_program(Read(name, masked=True), inputs(), dynamic_shapes=dynamic_batch())
    assert not [node for node in program.graph.nodes if "foveate" in str(node.target)]
    context, _ = program.module()(*inputs(3))
    torch.testing.assert_close(context, Read(name, masked=True)(*inputs(3))[0], rtol=0, atol=1e-5)
    assert {str(op).split(".")[1] for op in decompositions()} == {"entmax_rows", "entmax_alpha", "prox_tv", "stream"}


@needs_onnx
@pytest.mark.parametrize("masked", [pytest.param(False, marks=slow), True])
@pytest.mark.parametrize("name", [n if n == "sparsemax" else pytest.param(n, marks=slow) for n in MECHANISMS])
def test_onnxruntime_computes_the_same_without_a_warning(name, masked, tmp_path, caplog):
    module, path = Read(name, masked), tmp_path / "attend.onnx"
    assert to_onnx(module, inputs(), path, dynamic_shapes=dynamic_batch()) < 1e-5
    assert "torchvision" not in caplog.text
    nodes = importlib.import_module("onnx").load(path).graph.node
    assert "CastLike" not in {node.op_type for node in nodes}, "onnxruntime warns about it at every start"
    assert onnx_difference(path, module, inputs(5)) < 1e-5


@tracer
@slow
@pytest.mark.parametrize("name", ["sparsemax", "tvmax", "continuous-softmax", "continuous-sparsemax", "k-mca"])
def test_aot_inductor(name, tmp_path):
    module = Read(name).eval()
    program = plain_program(module, inputs(), dynamic_shapes=dynamic_batch())
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "attend.pt2"))
    loaded = torch._inductor.aoti_load_package(package)
    torch.testing.assert_close(loaded(*inputs(3))[0], module(*inputs(3))[0], rtol=1e-4, atol=1e-5)


def test_tvmax_itself_is_within_the_documented_error():
    scores = 2 * draw(4, 14, 14, dtype=torch.float32)
    value = plain_prox_tv(scores, torch.ones_like(scores, dtype=torch.bool), None, 2, 0.1)[0]
    weights = plain_entmax(value.flatten(1), 2.0).unflatten(1, (14, 14))
    torch.testing.assert_close(weights, tvmax(scores, 0.1), rtol=0, atol=1e-6)
