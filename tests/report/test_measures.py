"""The names of the numbers: readable, in units, and nothing lost."""

from __future__ import annotations

import math

from foveate.report.measures import MEASURES, Measure, measure_of, split_rivals
from foveate.tasks import TASKS
from foveate.train.folder import run_folder
from foveate.train.history import History


def test_shares_are_told_in_percent_and_others_as_they_are():
    assert Measure("x", "%", digits=1, factor=100).show(0.5) == "50.0"
    assert measure_of("accuracy").show(0.5) == "50.0"
    assert measure_of("i2t_r1").show(50.0) == "50.0"  # in percent already
    assert Measure("x", "bits").show(0.5) == "0.50"


def test_spread_leaves_out_what_is_not_known():
    assert Measure("x").spread([1.0, math.nan]) == "1.00"
    assert Measure("x").spread([1.0, 3.0]) == "2.00 ± 1.41"


def test_every_number_of_the_embedded_run_has_a_name_for_people():
    metrics = History.load(run_folder("scenes-vqa"), "accuracy").best.metrics
    own, rivals = split_rivals(metrics)
    assert len(own) + sum(map(len, rivals.values())) == len(metrics)
    assert set(rivals) == {"uniform", "centre", "random"}
    assert all(name.partition("/")[0] in MEASURES for name in own)
    assert {measure_of(name).label for name in own} & set(own) == set()


def test_a_subset_that_holds_a_slash_keeps_its_own_name():
    assert measure_of("accuracy/yes/no").label == "right answers: yes or no"
    assert measure_of("accuracy/colour").unit == "%"


def test_the_headlines_of_every_task_have_names_for_people():
    for task in TASKS.values():
        assert task.objective in task.headlines
        assert all(name.partition("/")[0] in MEASURES for name in task.headlines)
