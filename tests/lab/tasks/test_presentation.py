"""What reports, the demo and the studio show of each task, for runs that have learnt nothing."""

from __future__ import annotations

import math
from re import findall

import pytest

from foveate.lab import hub
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.tasks.presentation import Measure
from foveate.lab.train.recipe import run_directory
from tests.untrained import make_untrained


@pytest.mark.parametrize("task", ["captioning", "matching"])
def test_every_run_is_drawn_with_one_map_per_word(task, tmp_path):
    names = ("softmax", "sparsemax")
    kind = TASKS[task]
    runs = {name: make_untrained(tmp_path / name, kind.demo.recipe, f"mechanism={name}") for name in names}
    predictors = {name: hub.load(directory) for name, directory in runs.items()}
    examples = predictors["softmax"].task.examples("val", None)
    drawn = list(kind.presentation.draw(predictors, examples, 2))
    assert [each.alt.partition(":")[0] for each in drawn] == ["softmax", "sparsemax"] * 2
    for place, each in enumerate(drawn):
        titles = [axes.get_title() for axes in each.figure.axes[:-1]]
        if task == "captioning":
            assert titles.pop(0) == "image"  # the clean one comes first
        said = (each.title.partition(": ")[2] if task == "captioning" else each.title).lower().rstrip(".")
        assert titles[0] in said
        assert len(titles) >= 1
        if task == "matching":
            data = examples.data
            assert each.title == data.captions_of(data.images[place // 2].id)[0].text


def test_models_whose_words_do_not_attend_are_skipped(tmp_path):
    predictor = hub.load(make_untrained(tmp_path / "a", "matching-mdan-scenes"))
    draw = TASKS["matching"].presentation.draw
    assert list(draw({"mdan": predictor}, predictor.task.examples("val", None), 1)) == []


@pytest.mark.parametrize("task", TASKS)
def test_commands_name_the_run(task):
    commands = TASKS[task].presentation.commands
    assert all(purpose and command.startswith("foveate ") for purpose, command in commands)
    assert any(" RUN " in command for _, command in commands)


@pytest.mark.parametrize("task", TASKS)
def test_commands_leave_the_words_to_the_reader(task):
    """An example such as "a red circle" fits one dataset and misleads after a training on another."""
    quoted = [word for _, command in TASKS[task].presentation.commands for word in findall(r'"([^"]*)"', command)]
    assert all(word.isupper() for word in quoted)
    assert quoted or task == "captioning"


@pytest.mark.parametrize("task", TASKS)
def test_the_headlines_have_readable_labels(task):
    shown = TASKS[task].presentation
    assert TASKS[task].objective in shown.headlines
    assert all(name.partition("/")[0] in shown.measures for name in shown.headlines)
    assert shown.title
    assert shown.about


@pytest.mark.parametrize("task", TASKS)
def test_every_demo_has_its_run_and_its_recipe(task):
    row = TASKS[task].demo
    assert run_directory(row.run)
    assert row.recipe in RECIPES
    assert RECIPES[row.recipe]().task == task
    assert set(row.quick) <= set(row.mechanisms)


def test_fractions_are_shown_in_percent_and_other_numbers_as_they_are():
    assert Measure("x", "%", digits=1, factor=100).show(0.5) == "50.0"
    assert TASKS["vqa"].presentation.measures["accuracy"].show(0.5) == "50.0"
    assert TASKS["matching"].presentation.measures["i2t_r1"].show(50.0) == "50.0"  # in percent already
    assert Measure("x", "bits").show(0.5) == "0.50"


def test_spread_leaves_out_what_is_not_known():
    assert Measure("x").spread([1.0, math.nan]) == "1.00"
    assert Measure("x").spread([1.0, 3.0]) == "2.00 ± 1.41"
