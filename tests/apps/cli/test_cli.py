"""The command line: arguments, output and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from foveate.apps.cli import COMMANDS, main
from foveate.apps.cli.list import TABLES
from foveate.apps.cli.terminal import print_table
from foveate.attention import MECHANISMS
from foveate.errors import WrongType, WrongValue
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.train.weights import CHECKPOINT, WEIGHTS, load_tensors
from tests.lab.train.toy import Toy, toy_net_points

ROOT = Path(__file__).resolve().parents[3]
TRAIN = ["train", "toy-net-points", "epochs=1", "--quiet"]


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(TASKS, "toy", Toy)
    monkeypatch.setitem(RECIPES, "toy-net-points", toy_net_points)
    monkeypatch.chdir(tmp_path)


def config(directory: str) -> dict:
    return json.loads(Path(directory, "config.json").read_text())


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert all(f"foveate {name} " in out for name in COMMANDS)


def test_help_and_misspelt_commands_do_not_wait_for_torch() -> None:
    code = (
        "import sys; from foveate.apps.cli import main;"
        "codes = main(['--help']), main(['trian']);"
        "assert codes == (0, 2), codes; assert not {'torch', 'tyro', 'rich', 'accelerate'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_readable_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"usage: foveate {name}" in out
    assert "Annotated" not in out


def test_help_with_a_recipe_shows_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "toy-net-points", "--help"]) == 0
    out = capsys.readouterr().out
    assert "training.optimiser.lr = 0.02  (a number)" in out
    assert "settings.mechanism = softmax  (text)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "foveate: expected a known name, got 'trian'; did you mean 'train'?"),
        (
            ["train", "toy-net-point"],
            "recipe: expected a known name, got 'toy-net-point'; did you mean 'toy-net-points'?",
        ),
        ([*TRAIN, "hiden=3"], "toy-net-points: expected a known name, got 'hiden'; did you mean 'hidden'?"),
        ([*TRAIN, "--hiden", "3"], "toy-net-points: expected a known name, got 'hiden'; did you mean 'hidden'?"),
        ([*TRAIN, "mechanism=softmx"], "mechanism: expected a known name, got 'softmx'; did you mean 'softmax'?"),
        (
            [*TRAIN, "--resum", "--hidden", "3"],
            "foveate: expected a known name, got '--resum'; did you mean '--resume'?",
        ),
        ([*TRAIN, "--resum"], "foveate: expected a known name, got '--resum'; did you mean '--resume'?"),
        (["list", "recipe"], "list: expected a known name, got 'recipe'; did you mean 'recipes'?"),
        (
            ["compare", "toi", "--mechanisms", "softmax"],
            "compare: expected a known name, got 'toi'; did you mean 'toy'?",
        ),
        (
            ["compare", "toy", "--mechanisms", "tvmx"],
            "mechanism: expected a known name, got 'tvmx'; did you mean 'tvmax'?",
        ),
    ],
)
def test_misspelt_words_are_answered_with_the_nearest(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.strip() == message
    assert not list(Path().iterdir())


@pytest.mark.parametrize("arguments", [["train"], ["evaluate", "a", "--split"], ["compare"]])
def test_missing_words_are_wrong_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2


def test_tables_print_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("advice", ("extra[s]", "to make it work"), [("hf", 'pip install "foveate[hf]"')])
    out = capsys.readouterr().out
    assert "foveate[hf]" in out
    assert "extra[s]" in out


def test_wrong_values_are_explained_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "epochs=many"]) == 1
    assert capsys.readouterr().err == "epochs: expected a whole number, got 'many'; write, for example, epochs=2\n"


@pytest.mark.parametrize("kind", [ValueError, TypeError])
def test_a_fault_of_the_program_shows_where(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """The type tells it from a mistake of the user, whatever the message is."""

    def broken(self, model, batch, step):
        raise kind("library: expected an even number, got 3; math domain error")

    monkeypatch.setattr(Toy, "loss", broken)
    with pytest.raises(kind, match="math domain error"):
        main(TRAIN)


@pytest.mark.parametrize(("kind", "python"), [(WrongValue, ValueError), (WrongType, TypeError)])
def test_a_mistake_of_the_user_is_one_line(
    kind: type[Exception], python: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self, model, batch, step):
        raise kind("a sentence of any form")

    monkeypatch.setattr(Toy, "loss", broken)
    assert main([*TRAIN, "--quiet"]) == 1
    assert capsys.readouterr().err.endswith("a sentence of any form\n")
    assert issubclass(kind, python)


@pytest.mark.parametrize(
    "changes",
    [
        ["hidden=4", "lr=0.1", "norm=yes", "--out", "a"],
        ["--out", "a", "--hidden", "4", "--lr=0.1", "--norm", "yes"],
        ["hidden=4", "--out", "a", "--lr", "0.1", "norm=yes"],
    ],
)
def test_changes_in_both_ways_of_writing_and_any_order(changes: list[str]) -> None:
    assert main(["train", "toy-net-points", *changes, "epochs=1", "--quiet"]) == 0
    found = config("a")
    assert found["settings"]["hidden"] == 4
    assert found["settings"]["norm"] is True
    assert found["training"]["optimiser"]["lr"] == 0.1


def test_train_names_the_directory_and_shows_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TRAIN) == 0
    captured = capsys.readouterr()
    assert "runs/toy-net-points-epochs=1: best after step 13, epoch 1" in captured.out
    assert "accuracy" in captured.out
    assert captured.err == ""
    assert Path("runs/toy-net-points-epochs=1", WEIGHTS).exists()
    assert main(TRAIN) == 1
    assert "pass --resume" in capsys.readouterr().err
    assert main([*TRAIN, "--resume"]) == 0


def test_a_run_older_than_a_field_goes_on_and_another_run_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--out", "a"]) == 0
    young = config("a")
    old = {**young, "settings": {name: value for name, value in young["settings"].items() if name != "norm"}}
    Path("a", "config.json").write_text(json.dumps(old))
    assert main([*TRAIN, "--out", "a", "--resume"]) == 0
    assert config("a") == young  # with the default of the field
    assert main([*TRAIN, "norm=true", "--out", "a", "--resume"]) == 1
    assert "norm" in capsys.readouterr().err


def test_train_reports_evaluations_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TRAIN[:-1]) == 0
    assert "step 13, epoch 1: accuracy" in capsys.readouterr().err


def test_evaluate(capsys: pytest.CaptureFixture[str]) -> None:
    main([*TRAIN, "--out", "a"])
    capsys.readouterr()
    assert main(["evaluate", "a", "--out", "val.json"]) == 0
    assert "a on val" in capsys.readouterr().out
    best = json.loads(Path("a/metrics.json").read_text())["best"]["metrics"]
    assert json.loads(Path("val.json").read_text())["metrics"] == best
    assert main(["evaluate", "a", "--split", "test", "--out", "test.json", "--batch-size", "7"]) == 0
    assert json.loads(Path("test.json").read_text())["metrics"] != best
    assert main(["evaluate", "a", "settings.count=40", "--out", "fewer.json"]) == 0
    changed = json.loads(Path("fewer.json").read_text())
    assert changed["changes"] == ["settings.count=40"]
    assert changed["metrics"] != best
    assert main(["evaluate", "a", "nois=3"]) == 2
    assert main(["evaluate", "a", "--split", "tset"]) == 1
    assert main(["evaluate", "nothing"]) == 1
    assert "expected the directory of a run" in capsys.readouterr().err


def test_compare_trains_each_and_prints_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "toy", "--mechanisms", "softmax, tvmax", "--seeds", "2", "epochs=1", "--hidden", "4"]
    words += ["--finetune", "0"]
    assert main([*words, "--out", "c"]) == 0
    out = capsys.readouterr().out
    for word in ("toy-net-points, val, 2 seed(s)", "softmax", "tvmax", "accuracy", "±", "time per step"):
        assert word in out
    assert "tvmax" in Path("c/report.html").read_text()
    results = json.loads(Path("c/compare.json").read_text())["results"]
    assert {name: len(runs) for name, runs in results.items()} == {"softmax": 2, "tvmax": 2}
    made = config("c/tvmax-1")
    assert (made["settings"]["mechanism"], made["settings"]["hidden"], made["training"]["seed"]) == ("tvmax", 4, 1)
    assert main([*words, "--out", "c"]) == 0


def test_compare_can_finetune_from_the_first() -> None:
    words = ["compare", "toy-net-points", "--mechanisms", "softmax,tvmax", "--finetune", "1", "epochs=2"]
    assert main([*words, "--seeds", "1", "--scratch", "tvmax,softmax", "--out", "c"]) == 0
    found = json.loads(Path("c/compare.json").read_text())["results"]
    assert list(found) == ["softmax", "tvmax", "tvmax from scratch"]
    assert config("c/tvmax-scratch-0")["start"] is None
    assert config("c/tvmax-scratch-0")["training"]["epochs"] == 2
    assert config("c/softmax-0")["start"] is None
    assert config("c/softmax-0")["training"]["epochs"] == 2
    assert config("c/tvmax-0")["start"] == "c/softmax-0"
    assert config("c/tvmax-0")["training"]["epochs"] == 1


@pytest.mark.parametrize("name", TABLES)
def test_list_shows_a_whole_table(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from importlib import import_module

    assert main(["list", name]) == 0
    out = capsys.readouterr().out
    module, _, attribute = TABLES[name].partition(":")
    table = getattr(import_module(module), attribute)
    assert table
    assert all(key in out for key in table)


def test_list_without_a_name_shows_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(f"{name}\n" in out for name in TABLES)
    assert all(key in out for key in MECHANISMS)


@contextmanager
def program(*arguments: str, runner: tuple[str, ...] = (sys.executable, "-m")) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [*runner, "tests.lab.train.toy", *arguments]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    with program("train", "toy-net-points", "epochs=100000", "--out", "run") as process:
        _wait_for(Path("run", CHECKPOINT), process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "everything is saved in run" in err
    assert "continue with: foveate train toy-net-points epochs=100000 --out run --resume" in err
    step = load_tensors(Path("run", CHECKPOINT))[1]["position"]["step"]
    assert f"train: stopped after step {step} of" in err


def test_torchrun_trains_one_model_with_two_processes(tmp_path: Path) -> None:
    still = ["dropout=0", "noise=0", "epochs=1", "--quiet"]
    assert main(["train", "toy-net-points", *still, "batch_size=16", "--out", "one"]) == 0
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    with program("train", "toy-net-points", *still, "--out", "two", runner=torchrun) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.count("best after step 7") == 1
    for name, tensor in load_tensors(Path("one", WEIGHTS))[0].items():
        torch.testing.assert_close(load_tensors(Path("two", WEIGHTS))[0][name], tensor, rtol=0, atol=1e-12)


def test_python_m_foveate_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "foveate", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("foveate ")
    assert done.returncode == 0


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["train", "toy-net-points", "epochs=1", "--quiet", "--out", "run"], {"run", "step", "epoch", "metrics"}),
        (["evaluate", "run"], {"run", "split", "metrics", "changes", "data", "fingerprint"}),
        (["reproduce", "000-table-1", "--dry-run"], {"table", "runs"}),
    ],
)
def test_results_are_also_json(arguments: list[str], keys: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    if arguments[0] == "evaluate":
        assert main([*TRAIN, "--out", "run"]) == 0
        capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == keys


def test_no_seeds_are_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "000-table-1", "--dry-run", "--seeds", "0"]) == 2
    assert "expected --seeds as a whole number >= 1, got '0'" in capsys.readouterr().err
