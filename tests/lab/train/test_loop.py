"""The loop on a toy task: what training must keep, whatever happens to it."""

from __future__ import annotations

import json
import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foveate.errors import DataError
from foveate.lab.train import SGD, Diverged, Recipe, train_recipe
from foveate.lab.train.records import History, read_log
from foveate.lab.train.weights import CHECKPOINT, WEIGHTS, load_tensors
from foveate.signals import Interrupted
from tests.lab.train.toy import Toy, ToyMetrics, changed


def run(recipe: Recipe, directory: Path, **options) -> History:
    return train_recipe(recipe, directory, progress=False, **options)


def weights(directory: Path, name: str = CHECKPOINT) -> dict[str, torch.Tensor]:
    return load_tensors(directory / name)[0]


def assert_same(first: Path, second: Path) -> None:
    """The same last state, best weights and evaluations, bit for bit."""
    for name in (CHECKPOINT, WEIGHTS):
        a, b = weights(first, name), weights(second, name)
        assert a.keys() == b.keys()
        for key in a:
            assert torch.equal(a[key], b[key]), key
    assert (first / "metrics.json").read_text() == (second / "metrics.json").read_text()


def test_it_learns_and_keeps_the_best(recipe: Recipe, tmp_path: Path) -> None:
    history = run(recipe, tmp_path / "a")
    assert history.best is not None
    assert history.best.metrics["accuracy"] > 0.85
    assert [e.epoch for e in history.evaluations] == [1, 2, 3, 4]
    saved = json.loads((tmp_path / "a" / "metrics.json").read_text())
    assert saved["best"]["step"] == history.best.step < 52
    last = {k.removeprefix("model."): v for k, v in weights(tmp_path / "a").items() if k.startswith("model.")}
    best = weights(tmp_path / "a", WEIGHTS)
    assert any(not torch.equal(best[name], last[name]) for name in best)
    again = run(replace(recipe, training=replace(recipe.training, steps=history.best.step)), tmp_path / "b")
    assert again.best == history.best
    assert all(torch.equal(best[name], weights(tmp_path / "b", WEIGHTS)[name]) for name in best)


def test_files_of_a_run(recipe: Recipe, tmp_path: Path) -> None:
    run(changed(recipe, epochs=1, seed=5), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    expected = {"config.json", "vocabulary.json", "environment.json", "metrics.json", "log.jsonl", WEIGHTS, CHECKPOINT}
    assert names == expected | {".lock"}
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["seed"] == 5
    assert environment["data"] == {"train": "train-100", "val": "val-51"}
    assert environment["versions"]["torch"] == torch.__version__
    lines = read_log(tmp_path / "log.jsonl")
    assert [(line["step"], line["event"]) for line in lines] == [(13, "train"), (13, "evaluate")]
    assert {"loss", "entropy", "rate", "norm", "examples_per_second", "epoch", "time"} <= lines[0].keys()
    assert lines[0]["loss"] == pytest.approx(lines[0]["entropy"])


@pytest.mark.parametrize("stop", [1, 12, 13, 14, 39, 51])
def test_resuming_changes_nothing(recipe: Recipe, stop: int, tmp_path: Path) -> None:
    recipe = changed(recipe, settings={"norm": True})
    run(recipe, tmp_path / "whole")
    _interrupt(recipe, tmp_path / "cut", stop)
    run(recipe, tmp_path / "cut", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    steps = [line["step"] for line in read_log(tmp_path / "cut" / "log.jsonl")]
    assert steps == sorted(steps)


@pytest.mark.parametrize("stop", [12, 39])
def test_averaged_weights_are_kept_and_survive_a_resume(recipe: Recipe, stop: int, tmp_path: Path) -> None:
    averaged = replace(recipe, training=replace(recipe.training, average=0.9))
    run(averaged, tmp_path / "whole")
    _interrupt(averaged, tmp_path / "cut", stop)
    run(averaged, tmp_path / "cut", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    run(recipe, tmp_path / "plain")
    last, plain = weights(tmp_path / "whole"), weights(tmp_path / "plain")
    for name in (name.removeprefix("average.") for name in last if name.startswith("average.")):
        assert torch.equal(last[f"model.{name}"], plain[f"model.{name}"])  # training itself is the same
        assert not torch.equal(last[f"average.{name}"], last[f"model.{name}"])
    kept = weights(tmp_path / "whole", WEIGHTS)
    assert any(not torch.equal(kept[name], weights(tmp_path / "plain", WEIGHTS)[name]) for name in kept)


def _interrupt(recipe: Recipe, directory: Path, step: int) -> None:
    """Press Ctrl-C in the given step."""
    original, count = Toy.loss, [0]

    def pressed(self, model, batch, taken):
        count[0] += 1
        if count[0] == step:
            signal.raise_signal(signal.SIGINT)
        return original(self, model, batch, taken)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toy, "loss", pressed)
        with pytest.raises(Interrupted, match=f"train: stopped after step {step} of 52, everything is saved in"):
            run(recipe, directory)


def test_a_second_signal_interrupts_at_once(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(self, model, batch, step):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Toy, "loss", twice)
    with pytest.raises(Interrupted) as error:
        run(recipe, tmp_path)
    assert str(error.value) == ""  # nothing was saved
    assert signal.getsignal(signal.SIGINT) is before


def test_torchruns_second_signal_does_not_cut_the_saving_short(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Toy.loss

    def twice(self, model, batch, step):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return original(self, model, batch, step)

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "example")
    monkeypatch.setattr(Toy, "loss", twice)
    with pytest.raises(Interrupted, match="stopped after step 1 of 52"):
        run(recipe, tmp_path)


def test_resuming_a_finished_run_changes_nothing(recipe: Recipe, tmp_path: Path) -> None:
    recipe = changed(recipe, epochs=1)
    run(recipe, tmp_path)
    before = (tmp_path / CHECKPOINT).read_bytes()
    assert run(recipe, tmp_path, resume=True).best is not None
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_what_came_after_the_checkpoint_is_forgotten(recipe: Recipe, tmp_path: Path) -> None:
    """Without its checkpoint a run begins anew: evaluations and lines of the log are not counted twice."""
    run(recipe, tmp_path / "whole")
    run(recipe, tmp_path / "cut")
    (tmp_path / "cut" / CHECKPOINT).unlink()
    run(recipe, tmp_path / "cut", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    first, second = (read_log(tmp_path / name / "log.jsonl") for name in ("whole", "cut"))
    assert [(line["step"], line["event"]) for line in first] == [(line["step"], line["event"]) for line in second]


def test_an_older_checkpoint_forgets_later_evaluations(recipe: Recipe, tmp_path: Path) -> None:
    run(changed(recipe, epochs=2), tmp_path / "cut")
    older = (tmp_path / "cut" / CHECKPOINT).read_bytes()
    run(recipe, tmp_path / "cut", resume=True)
    before = (tmp_path / "cut" / "metrics.json").read_text()
    (tmp_path / "cut" / CHECKPOINT).write_bytes(older)
    history = run(recipe, tmp_path / "cut", resume=True)
    assert [e.step for e in history.evaluations] == [13, 26, 39, 52]
    assert (tmp_path / "cut" / "metrics.json").read_text() == before


def test_first_weights_are_the_tasks_own_unless_another_run_gives_them(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    monkeypatch.setattr(Toy, "initialise", lambda self, model, root: called.append(model))
    run(changed(recipe, steps=1), tmp_path / "a")
    assert len(called) == 1
    run(replace(changed(recipe, steps=1), start=str(tmp_path / "a")), tmp_path / "b")
    assert len(called) == 1


def test_a_run_can_be_made_longer(recipe: Recipe, tmp_path: Path) -> None:
    run(recipe, tmp_path / "whole")
    run(changed(recipe, epochs=2), tmp_path / "cut")
    run(recipe, tmp_path / "cut", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_not_a_number_stops_and_names_the_batch(recipe: Recipe, tmp_path: Path) -> None:
    poisoned = changed(recipe, settings={"poison": 30}, batch_size=20)
    with pytest.raises(Diverged) as error:
        run(poisoned, tmp_path)
    message = str(error.value)
    assert "expected a finite loss and gradient, got loss nan" in message
    assert "epoch 1, batch" in message
    step = int(message.split("at step ")[1].split()[0])
    named = message.split("examples ")[1].split(",")[0]
    assert 1 <= step <= 5
    assert named.isdigit()
    assert "there is no checkpoint yet" in message


def test_not_a_number_keeps_the_last_good_checkpoint(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, count = Toy.loss, [0]

    def later(self, model, batch, step):
        count[0] += 1
        loss = original(self, model, batch, step)
        return replace(loss, total=loss.total * float("nan")) if count[0] == 20 else loss

    monkeypatch.setattr(Toy, "loss", later)
    recipe = changed(recipe, save_every=0.0)
    with pytest.raises(
        Diverged, match=r"at step 20 \(epoch 2, batch 7, examples .*; the checkpoint of step 19 is kept"
    ):
        run(recipe, tmp_path / "cut")
    run(recipe, tmp_path / "cut", resume=True)
    monkeypatch.setattr(Toy, "loss", original)
    run(recipe, tmp_path / "whole")
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_an_infinite_gradient_of_a_finite_loss_stops_too(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Toy.loss

    def steep(self, model, batch, step):
        loss = original(self, model, batch, step)
        return replace(loss, total=loss.total + (model.last.bias.sum() * 0).sqrt())  # 0 with slope 0 · ∞

    monkeypatch.setattr(Toy, "loss", steep)
    with pytest.raises(Diverged, match=r"got loss \d.* and norm nan at step 1 "):
        run(recipe, tmp_path)


def test_accumulated_batches_equal_one_batch(recipe: Recipe, tmp_path: Path) -> None:
    still = changed(recipe, settings={"dropout": 0.0, "noise": 0.0}, epochs=2)
    run(changed(still, batch_size=24), tmp_path / "one")
    run(changed(still, batch_size=8, accumulate=3), tmp_path / "three")
    _assert_close(tmp_path / "one", tmp_path / "three")


def _assert_close(first: Path, second: Path) -> None:
    for name, tensor in weights(first, WEIGHTS).items():
        torch.testing.assert_close(weights(second, WEIGHTS)[name], tensor, rtol=0, atol=1e-12)


def test_a_step_equals_a_slow_one(recipe: Recipe, tmp_path: Path) -> None:
    """Mean gradient, clipped, times the scheduled rate: by hand from the first weights."""
    settings = {"dropout": 0.0, "noise": 0.0, "count": 8}
    recipe = changed(recipe, settings=settings, optimiser=SGD(0.5, momentum=0.0), clip=0.01, epochs=1)
    from foveate.lab.train.loop import _first_model

    task = Toy(recipe.settings, 3)
    model, _ = _first_model(task, recipe.training.seed, None, None)
    examples = task.examples("train", None)
    loss = task.loss(model, task.collate([examples[n] for n in range(8)]), 0)
    mean = loss.total / loss.count
    gradients = torch.autograd.grad(mean, list(model.parameters()))
    norm = torch.sqrt(sum(g.square().sum() for g in gradients))
    assert norm > 0.01
    expected = {
        name: (p - 0.5 * 0.5 * g * 0.01 / norm).detach()  # half the rate in the first of two epochs of warm-up
        for (name, p), g in zip(model.named_parameters(), gradients, strict=True)
    }
    run(recipe, tmp_path)
    for name, tensor in weights(tmp_path, WEIGHTS).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-14)


def test_patience_stops_early(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([0.5, 0.6, 0.6, 0.1, 0.9])
    monkeypatch.setattr(ToyMetrics, "compute", lambda self: {"accuracy": next(values)})
    history = run(changed(recipe, epochs=10, patience=2), tmp_path)
    assert [e.metrics["accuracy"] for e in history.evaluations] == [0.5, 0.6, 0.6, 0.1]
    assert history.best.epoch == 2


@pytest.mark.parametrize(("every", "expected"), [(1, [13, 26, 39, 40]), (2, [26, 40])])
def test_evaluations_every_so_many_epochs_and_at_the_end(
    recipe: Recipe, every: int, expected: list[int], tmp_path: Path
) -> None:
    history = run(changed(recipe, evaluate_every=every, steps=40), tmp_path)
    assert [e.step for e in history.evaluations] == expected


def test_checkpoints_every_so_many_seconds(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []
    monkeypatch.setattr(
        "foveate.lab.train.step.save_checkpoint", lambda path, m, o, position, average: saved.append(position["step"])
    )
    run(changed(recipe, epochs=1, save_every=3600.0), tmp_path / "a")
    assert saved == [13]
    saved.clear()
    run(changed(recipe, epochs=1, save_every=0.0), tmp_path / "b")
    assert saved == list(range(1, 14))


def test_workers_change_nothing(recipe: Recipe, tmp_path: Path) -> None:
    recipe = changed(recipe, epochs=1)
    run(recipe, tmp_path / "none")
    run(changed(recipe, workers=1), tmp_path / "one")
    assert_same(tmp_path / "none", tmp_path / "one")


def test_the_seed_changes_weights_and_order(recipe: Recipe, tmp_path: Path) -> None:
    for seed in (0, 1):
        run(changed(recipe, steps=1, seed=seed), tmp_path / str(seed))
    first, second = (weights(tmp_path / str(seed), WEIGHTS) for seed in (0, 1))
    assert not torch.equal(first["first.weight"], second["first.weight"])


def test_training_starts_from_another_run(recipe: Recipe, tmp_path: Path) -> None:
    run(changed(recipe, epochs=1), tmp_path / "first")
    begun = replace(changed(recipe, steps=1, optimiser=SGD(1e-12)), start=str(tmp_path / "first"))
    run(begun, tmp_path / "second")
    for name, tensor in weights(tmp_path / "first", WEIGHTS).items():
        torch.testing.assert_close(weights(tmp_path / "second", WEIGHTS)[name], tensor, rtol=0, atol=1e-9)
    with pytest.raises(DataError, match="the weights belong to another model"):
        run(replace(changed(begun, settings={"hidden": 5})), tmp_path / "third")
    assert not (tmp_path / "third").exists()


def test_the_loss_receives_its_step(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted over interruptions, over accumulated batches, and on from the run that training started from."""
    original, seen = Toy.loss, []

    def noted(self, model, batch, step):
        seen.append(step)
        return original(self, model, batch, step)

    monkeypatch.setattr(Toy, "loss", noted)
    two = changed(recipe, batch_size=4, accumulate=2)
    run(changed(two, steps=3), tmp_path / "first")
    run(changed(two, steps=5), tmp_path / "first", resume=True)
    assert seen == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    best = json.loads((tmp_path / "first" / "metrics.json").read_text())["best"]["step"]
    seen.clear()
    run(replace(changed(recipe, steps=2), start=str(tmp_path / "first")), tmp_path / "second")
    assert seen == [best, best + 1]
    seen.clear()
    run(replace(changed(recipe, steps=1), start=str(tmp_path / "second")), tmp_path / "third")
    assert seen == [best + 2]


def test_a_full_disk_keeps_the_last_checkpoint(recipe: Recipe, tmp_path: Path) -> None:
    run(changed(recipe, epochs=1), tmp_path)
    before = (tmp_path / CHECKPOINT).read_bytes()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) - 100, old[1]))
    try:
        with pytest.raises(DataError, match=r"atomic_write: expected to write .* previous file, if any, is unchanged"):
            run(recipe, tmp_path, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    run(recipe, tmp_path, resume=True)
    run(recipe, tmp_path / "whole")
    assert_same(tmp_path / "whole", tmp_path)


def test_a_directory_that_cannot_be_written_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"train: expected to write to .*file/run, got .*; choose another directory"):
        run(recipe, tmp_path / "file" / "run")


def test_a_damaged_checkpoint_is_named(recipe: Recipe, tmp_path: Path) -> None:
    run(changed(recipe, epochs=1), tmp_path)
    data = (tmp_path / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(data[:-8])
    with pytest.raises(
        DataError, match=r"expected complete tensors in .*checkpoint.safetensors, got .*; the file is damaged"
    ):
        run(recipe, tmp_path, resume=True)


def test_precision_on_the_cpu_is_the_models_own(recipe: Recipe, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU computes in bfloat16")
    for precision in ("fp32", "bf16"):
        run(changed(recipe, settings={"dtype": "float32"}, steps=2, precision=precision), tmp_path / precision)
    assert_same(tmp_path / "fp32", tmp_path / "bf16")


def test_small_evaluations_are_logged_and_change_nothing_else(recipe: Recipe, tmp_path: Path) -> None:
    recipe = changed(recipe, settings={"norm": True}, average=0.9)
    run(recipe, tmp_path / "without")
    run(changed(recipe, curve_points=5, curve_examples=7), tmp_path / "with")
    assert_same(tmp_path / "without", tmp_path / "with")
    lines = [line for line in read_log(tmp_path / "with" / "log.jsonl") if line["event"] == "curve"]
    assert [line["step"] for line in lines] == [11, 21, 32, 42, 52]
    assert {line["examples"] for line in lines} == {7}
    assert all(round(7 * line["accuracy"], 6) in range(8) for line in lines)


@pytest.mark.parametrize("stop", [11, 12, 32])
def test_a_resumed_training_has_every_point_of_the_curve_once(recipe: Recipe, stop: int, tmp_path: Path) -> None:
    recipe = changed(recipe, curve_points=5, curve_examples=7)
    run(recipe, tmp_path / "whole")
    _interrupt(recipe, tmp_path / "cut", stop)
    run(recipe, tmp_path / "cut", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    both = [read_log(tmp_path / name / "log.jsonl") for name in ("whole", "cut")]
    whole, cut = ([(x["step"], x["accuracy"]) for x in log if x["event"] == "curve"] for log in both)
    assert whole == cut


def test_a_run_without_the_fields_of_the_curve_goes_on_with_them(recipe: Recipe, tmp_path: Path) -> None:
    run(changed(recipe, steps=5), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["training"]["curve_points"], config["training"]["curve_examples"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    run(changed(recipe, steps=10, curve_points=2), tmp_path, resume=True)
    assert [x["step"] for x in read_log(tmp_path / "log.jsonl") if x["event"] == "curve"] == [10]
