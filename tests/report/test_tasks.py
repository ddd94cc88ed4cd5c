"""What only the report of one task shows, for runs that have learnt nothing."""

from __future__ import annotations

import pytest

from foveate.report import SECTIONS, ReportRun
from foveate.tasks import TASKS
from tests.untrained import make_untrained

RECIPES = {"vqa": "vqa-mcan-scenes", "captioning": "captioning-lstm-scenes", "matching": "matching-scan-scenes"}


def test_every_task_has_a_row():
    assert set(SECTIONS) == set(TASKS) == set(RECIPES)


@pytest.mark.parametrize("task", ["captioning", "matching"])
def test_every_run_is_drawn_with_a_map_a_word(task, tmp_path):
    runs = [
        ReportRun(name, (make_untrained(tmp_path / name, RECIPES[task], f"mechanism={name}"),))
        for name in ("softmax", "sparsemax")
    ]
    drawn = list(SECTIONS[task].draw(runs, None, "val", 2))
    assert [each.alt.partition(":")[0] for each in drawn] == ["softmax", "sparsemax"] * 2
    data = runs[0].opened[1].examples("val", None).data
    for place, each in enumerate(drawn):
        titles = [axes.get_title() for axes in each.figure.axes[:-1]]
        said = (each.title.partition(": ")[2] if task == "captioning" else each.title).lower().rstrip(".")
        assert titles[0] in said
        assert len(titles) >= 1
        if task == "matching":
            assert each.title == data.captions_of(data.pictures[place // 2].id)[0].text


def test_words_that_do_not_look_are_passed_over(tmp_path):
    run = ReportRun("mdan", (make_untrained(tmp_path / "a", "matching-mdan-scenes"),))
    assert list(SECTIONS["matching"].draw([run], None, "val", 1)) == []


@pytest.mark.parametrize("task", list(SECTIONS))
def test_commands_name_the_run_and_are_quoted(task):
    for _, command in SECTIONS[task].commands("runs/a b"):
        assert "'runs/a b'" in command
