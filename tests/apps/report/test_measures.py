"""The names of the metrics in a report: readable, in units, and nothing lost."""

from __future__ import annotations

import pytest

from foveate.apps.report.runs import STEP_TIME, measure_of, split_baselines
from foveate.lab.tasks import TASKS
from foveate.lab.train.recipe import run_directory
from foveate.lab.train.records import History

VQA = TASKS["vqa"].presentation


@pytest.mark.parametrize("name", [f"scenes-{task}" for task in TASKS])
def test_every_metric_of_the_embedded_runs_is_shown_once(name):
    kind = TASKS[name.removeprefix("scenes-")]
    metrics = History.load(run_directory(name), kind.objective).best.metrics
    own, baselines = split_baselines(metrics)
    assert len(own) + sum(map(len, baselines.values())) == len(metrics)


def test_every_metric_of_an_embedded_run_has_a_readable_label():
    metrics = History.load(run_directory("scenes-vqa"), "accuracy").best.metrics
    own, baselines = split_baselines(metrics)
    assert set(baselines) == {"uniform", "centre", "random"}
    assert all(name.partition("/")[0] in VQA.measures for name in own)
    assert {measure_of(name, VQA).label for name in own} & set(own) == set()


@pytest.mark.parametrize("humans", ["humans", "people"])  # the second one is of older runs
def test_the_attention_of_annotators_is_a_baseline(humans):
    assert split_baselines(["js", f"js of {humans}"]) == (["js"], {humans: {"js": f"js of {humans}"}})


def test_a_subset_whose_name_has_a_slash_keeps_its_own_label():
    assert measure_of("accuracy/yes/no", VQA).label == "right answers: yes or no"
    assert measure_of("accuracy/colour", VQA).unit == "%"


def test_other_metrics_are_shown_as_plain_numbers():
    assert (measure_of("mine", VQA).label, measure_of("mine", VQA).show(0.5)) == ("mine", "0.500")
    assert measure_of(STEP_TIME, VQA).better == "lower"
