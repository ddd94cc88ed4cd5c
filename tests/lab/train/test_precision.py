"""Half precision: what computes in which type, and the scale of the loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from foveate.errors import FoveateError
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import Loss
from foveate.lab.train import Diverged, Recipe, override, step
from foveate.lab.train.records import read_log
from foveate.lab.train.step import LossScale, half_type
from foveate.lab.train.weights import CHECKPOINT, load_tensors
from tests.lab.train.test_loop import _interrupt, assert_same, run, weights
from tests.lab.train.toy import Toy, changed

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture
def half_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU computes in half precision as a GPU does."""
    monkeypatch.setattr(step, "DEVICES", ("cuda", "cpu"))


def in_float32(recipe: Recipe, name: str, **training) -> Recipe:
    return changed(recipe, settings={"dtype": "float32"}, precision=name, **training)


def test_fp16_needs_a_gpu(recipe: Recipe, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(FoveateError, match=r"train: expected a GPU for precision=fp16, got the device cpu; use prec"):
        run(in_float32(recipe, "fp16"), tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert half_type("fp16", torch.device("cuda")) is torch.float16


@pytest.mark.usefixtures("half_on_the_cpu")
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_matrix_products_have_the_type(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    seen: list[torch.dtype] = []
    original = Toy.loss

    def noting(self, model, batch, step) -> Loss:
        seen.append(model.scores(batch.points).dtype)
        return original(self, model, batch, step)

    monkeypatch.setattr(Toy, "loss", noting)
    run(in_float32(recipe, name, epochs=1), tmp_path)
    assert set(seen) == {TYPES[name]}
    assert all(tensor.dtype == torch.float32 for key, tensor in weights(tmp_path).items() if key.startswith("model."))


@pytest.mark.usefixtures("half_on_the_cpu")
def test_fp16_learns_and_resumes_bit_for_bit(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "PATIENCE", 5)
    recipe = in_float32(recipe, "fp16")
    history = run(recipe, tmp_path / "whole")
    assert history.best is not None
    assert history.best.metrics["accuracy"] > 0.8
    _interrupt(recipe, tmp_path / "cut", 12)
    stored = load_tensors(tmp_path / "cut" / CHECKPOINT)[1]["position"]
    assert stored["scale"] < step.FIRST  # some gradients have overflowed
    assert stored["good"] > 0
    run(recipe, tmp_path / "cut", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    states = [load_tensors(tmp_path / name / CHECKPOINT)[1] for name in ("whole", "cut")]
    assert states[0] == states[1]


class _Overflow(torch.autograd.Function):
    """Its gradient is infinite as long as the incoming one, which is the scale of the loss, is above a limit."""

    @staticmethod
    def forward(ctx, x: Tensor, limit: float) -> Tensor:
        ctx.limit = limit
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return (grad * torch.inf if float(grad.abs().max()) > ctx.limit else grad), None


@pytest.mark.usefixtures("half_on_the_cpu")
def test_an_overflow_halves_the_scale_and_changes_no_weight(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Toy.loss

    def overflowing(self, model, batch, step) -> Loss:
        loss = original(self, model, batch, step)
        return Loss(_Overflow.apply(loss.total, 2.0**14), loss.count, loss.parts)

    monkeypatch.setattr(Toy, "loss", overflowing)
    run(in_float32(recipe, "fp16", steps=1), tmp_path / "one")
    assert load_tensors(tmp_path / "one" / CHECKPOINT)[1]["position"]["scale"] == 2**15
    assert not any(key.startswith("optimiser") for key in weights(tmp_path / "one"))  # no step was taken
    run(in_float32(recipe, "fp16", steps=20), tmp_path / "more")
    assert load_tensors(tmp_path / "more" / CHECKPOINT)[1]["position"]["scale"] <= 2**14
    steps = [line for line in read_log(tmp_path / "more" / "log.jsonl") if line["event"] == "train"]
    assert all(0 < line["norm"] < 100 for line in steps)


@pytest.mark.usefixtures("half_on_the_cpu")
def test_a_gradient_that_is_infinite_at_every_scale_diverges(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Toy.loss

    def broken(self, model, batch, step) -> Loss:
        loss = original(self, model, batch, step)
        return Loss(_Overflow.apply(loss.total, 0.0), loss.count, loss.parts)

    monkeypatch.setattr(Toy, "loss", broken)
    with pytest.raises(Diverged, match="at step 17 "):  # 2^16 is halved sixteen times
        run(in_float32(recipe, "fp16"), tmp_path)


def test_the_scale_grows_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "PATIENCE", 2)
    monkeypatch.setattr(step, "MOST", 8)
    scale, values = LossScale(value=2), []
    for _ in range(6):
        scale.keep()
        values.append(scale.value)
    assert values == [2, 4, 4, 8, 8, 8]
    scale.keep()
    scale.lower()
    assert (scale.value, scale.good) == (4, 0)


@pytest.mark.usefixtures("half_on_the_cpu")
@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("vqa-mcan-scenes", "bf16"),
        ("vqa-mcan-scenes mechanism=multimodal", "fp16"),
        ("captioning-lstm-scenes mechanism=tvmax", "fp16"),
        ("matching-scan-scenes ccr=1", "fp16"),
    ],
)
def test_real_models_train_in_half_precision(tmp_path: Path, given: str, name: str) -> None:
    row, *changes = given.split()
    small = override(RECIPES[row](), [*changes, "limit=8", "batch_size=8", "steps=2"])
    run(small, tmp_path / "fp32")
    run(override(small, [f"precision={name}"]), tmp_path / name)
    losses = [
        next(line["loss"] for line in read_log(tmp_path / one / "log.jsonl") if line["event"] == "train")
        for one in ("fp32", name)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
    assert losses[1] != losses[0]
