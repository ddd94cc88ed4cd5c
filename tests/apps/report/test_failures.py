"""The failures of a report: chosen by the rule that it states, and drawn by the task."""

from __future__ import annotations

import pytest

from foveate.apps.report import ReportRun, write_report
from foveate.apps.report.write import choose_failures, failure_rule
from foveate.lab import hub
from foveate.lab.tasks import TASKS
from foveate.lab.train.records import EXAMPLES, write_examples
from tests.untrained import make_untrained

RIGHT, WRONG = {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.0, "e": 0.0}, {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 0.0}
FAR = {"a": 0.9, "b": 0.8, "c": 0.1, "d": 0.3, "e": 0.2}
IMAGES = {"a": "1", "b": "2", "c": "3", "d": "4", "e": "4"}


def table(values):
    return {(key, IMAGES[key]): value for key, value in values.items()}


@pytest.fixture
def runs(make_run):
    found = []
    for name, accuracy in (("softmax", RIGHT), ("tvmax", WRONG)):
        directory = make_run(name, name)
        write_examples(directory / EXAMPLES, {"accuracy": table(accuracy), "js": table(FAR)})
        found.append(ReportRun(name, (directory,)))
    return found


def test_the_worst_come_first_one_per_image_and_only_failures(runs):
    # d is farther off than c; e shares the image of d; a and b are better than the average of 0.3
    assert choose_failures(runs, 5) == ["d", "c"]
    assert choose_failures(runs, 1) == ["d"]
    assert choose_failures(runs[:1], 5) == ["d", "c"]


def test_without_values_of_examples_there_are_none(runs, tmp_path):
    (runs[1].directories[0] / EXAMPLES).unlink()
    assert choose_failures(runs, 5) == []
    assert "Failures" not in write_report(tmp_path / "r", "t", runs, examples=0).read_text(encoding="utf-8")


def test_the_report_shows_them_with_the_rule(make_run, tmp_path):
    directory = make_run("a")
    question = hub.load(directory).task.examples("val", None).data.questions[7]
    keys = [(str(question.id), str(question.image_id)), ("other", "other")]
    write_examples(directory / EXAMPLES, {"accuracy": dict(zip(keys, (0.0, 1.0), strict=True))})
    text = write_report(tmp_path / "r", "t", [ReportRun("a", (directory,))], examples=1).read_text(encoding="utf-8")
    failures = text.partition("<h2>Failures</h2>")[2]
    assert failure_rule(TASKS["vqa"].presentation).partition("“")[0] in failures
    assert f"<h3>{question.text}</h3>" in failures


@pytest.mark.parametrize(("task", "name"), [("captioning", "image"), ("matching", "caption")])
def test_every_task_draws_the_chosen_ones(task, name, tmp_path):
    kind = TASKS[task]
    predictor = hub.load(make_untrained(tmp_path / "a", kind.demo.recipe))
    examples = predictor.task.examples("val", None)
    image = examples.data.images[3]
    caption = examples.data.captions_of(image.id)[1]
    chosen = str(image.id if name == "image" else caption.id)
    drawn = list(kind.presentation.draw_failures({"a": predictor}, examples, [chosen, "missing"]))
    assert len(drawn) == 1
    assert caption.text in (drawn[0].below if task == "captioning" else drawn[0].title)


@pytest.mark.parametrize("task", TASKS)
def test_the_rule_is_made_of_measures_with_a_direction(task):
    shown = TASKS[task].presentation
    assert shown.draw_failures is not None
    assert all(shown.measures[name].better for name in shown.failures)
