"""The table of the papers' tables: complete rows, known recipes, files by the publishers' names."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from foveate.apps.cli import main
from foveate.apps.cli.reproduce import compared
from foveate.errors import DataError
from foveate.lab.papers.tables import TABLES
from foveate.lab.papers.tables.cost import cost_of, recipe_of, total
from foveate.lab.papers.tables.integration import METHODS, measure_integration
from foveate.lab.papers.tables.run import Session, check_files, choose_rows, value_of
from foveate.lab.papers.tables.tiny_tables import TINY_SETTINGS, make_files
from foveate.lab.recipes import RECIPES
from foveate.lab.train import override

NAMES = [
    *("000-shares", "000-table-1", "000-table-2"),
    *("001-table-4.1", "001-table-6.2", "001-table-6.3", "001-table-6.4"),
    *("002-table-1", "002-table-2", "002-table-3", "002-table-4"),
    *("003-figures", "003-table-1", "003-table-2"),
    *("004-table-1", "004-table-2"),
]


def test_every_table_of_the_papers_is_there() -> None:
    assert list(TABLES) == NAMES


@pytest.mark.parametrize("name", TABLES)
def test_rows_are_complete(name: str) -> None:
    table = TABLES[name]
    assert table.rows
    for row in table.rows:
        assert len(row.paper) == len(table.columns), row.name
        assert bool(row.runs) == (table.kind != "measurement" and not row.quoted)
        for run in row.runs:
            assert run.recipe in RECIPES
            override(recipe_of(run), row.changes)
            small = TINY_SETTINGS[type(recipe_of(run).settings.model)]
            override(recipe_of(run), small)
    assert len({row.name for row in table.rows}) == len(table.rows)
    assert table.differs


@pytest.mark.parametrize("name", TABLES)
def test_missing_files_are_all_named(name: str, tmp_path: Path) -> None:
    table = TABLES[name]
    wanted = {file.name for file in table.files} | {feature.made_from.name for feature in table.features}
    assert {file.name for file in table.missing(tmp_path)} == wanted
    if not wanted:
        return
    with pytest.raises(DataError) as error:
        check_files(name, table, tmp_path)
    assert all(file in str(error.value) for file in wanted)
    make_files(table, tmp_path)
    assert table.missing(tmp_path) == []


def test_a_store_replaces_what_it_is_made_from(tmp_path: Path) -> None:
    table = TABLES["002-table-1"]
    for feature in table.features:
        (tmp_path / feature.store).parent.mkdir(exist_ok=True)
        (tmp_path / feature.store).touch()
    assert table.missing(tmp_path) == []


def test_one_directory_of_images_serves_questions_and_captions(tmp_path: Path) -> None:
    for subset in ("train2014", "val2014"):
        (tmp_path / "coco-images" / subset).mkdir(parents=True)
    names = {file.name for name in ("001-table-6.4", "003-figures") for file in TABLES[name].missing(tmp_path)}
    assert names.isdisjoint({"train2014", "val2014", "coco-images"})


RECALLS_THAT_DO_NOT_ADD_UP = {("002-table-3", "BFAN + CCR + CCS")}


@pytest.mark.parametrize("name", ["002-table-1", "002-table-2", "002-table-3"])
def test_rsum_is_the_sum_of_the_recalls_or_an_erratum(name: str) -> None:
    table = TABLES[name]
    for row in table.rows:
        for start in range(0, len(table.columns), 7):
            *recalls, rsum = row.paper[start : start + 7]
            adds_up = abs(sum(recalls) - rsum) < 0.35  # seven rounded numbers
            assert adds_up != ((name, row.name) in RECALLS_THAT_DO_NOT_ADD_UP), (row.name, sum(recalls), rsum)
            assert adds_up or any(f"{rsum}" in said and f"{sum(recalls):.1f}" in said for said in table.differs)


def test_constraints_begin_as_late_as_where_they_were_found() -> None:
    """Halfway through the training, as in matching-scan-flickr8k: 470 of its 940 batches."""
    found = 0
    for name in ("002-table-1", "002-table-2", "002-table-3", "002-table-4"):
        for row in TABLES[name].rows:
            for run in row.runs:
                settings, half = recipe_of(run).settings, cost_of(run).steps // 2
                for constraint in (settings.ccr, settings.ccs):
                    if constraint.weight:
                        found += 1
                        assert constraint.after == pytest.approx(half, abs=1), run.name
    assert found == 48


def test_time_is_relative_to_softmax_whatever_rows_are_asked_for() -> None:
    table = TABLES["003-figures"]
    rows = choose_rows("003-figures", table, ["TVmax"])
    assert [row.name for row in rows] == ["softmax", "TVmax"]
    found = {"softmax": [{"test: seconds": 0.5}], "TVmax": [{"test: seconds": 0.6}]}
    session = Session("003-figures", table, None, Path(), rows)
    assert value_of(session, table.columns[-1], rows[1], found) == pytest.approx(1.2)
    assert [row.name for row in choose_rows("000-table-2", TABLES["000-table-2"], ["Unimodal continuous"])] == [
        "Unimodal continuous"
    ]


def test_rows_of_other_authors_are_marked_and_train_nothing() -> None:
    counts = {}
    for name in ("004-table-1", "004-table-2"):
        rows = TABLES[name].rows
        counts[name] = sum(row.quoted for row in rows)
        session = Session(name, TABLES[name], None, Path(), rows)
        quoted = {row.name: [{"val: x": 0.0}] for row in rows} | {row.name: [] for row in rows if row.quoted}
        shown = [line for line in compared(session, quoted)[1] if line[0].endswith("(quoted)")]
        assert len(shown) == counts[name] * len(TABLES[name].columns)
        assert {line[3] for line in shown} == {"–"}
        assert len(list(session.trainings())) == 2
    assert counts == {"004-table-1": 11, "004-table-2": 6}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["000-table-1", "--run", "scenes-vqa"], "expected a table whose rows share one training for --run"),
        (["000-figure-9"], "did you mean '000-figure"),
    ],
)
def test_what_cannot_be_evaluated_says_so(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *arguments]) != 0
    assert message in capsys.readouterr().err


def test_no_zero_area_is_printed_for_softmax() -> None:
    table = TABLES["003-figures"]
    place = [column.name for column in table.columns].index("zero area (%)")
    assert [row.paper[place] for row in table.rows] == [None, 34.0, 25.0]


def test_costs_count_every_training_once() -> None:
    first = cost_of(TABLES["000-table-1"].rows[0].runs[0])
    assert first.steps == 15 * 27_735  # 443 757 questions in batches of 16
    assert total(TABLES["000-table-1"].rows).steps == 3 * first.steps
    assert total(TABLES["001-table-6.4"].rows).steps == cost_of(TABLES["001-table-6.4"].rows[0].runs[0]).steps
    assert total(TABLES["000-table-1"].rows, seeds=2).steps == 6 * first.steps
    assert first.hours(20.0) == pytest.approx(first.hours(10.0) / 2)


def test_methods_of_integration_agree() -> None:
    pytest.importorskip("scipy")
    fast = tuple(name for name in METHODS if name not in ("2D-Num", "2D-Num-Circle"))
    values = [one["value"] for one in measure_integration(2, methods=fast).values()]
    assert values == pytest.approx([values[0]] * len(values), rel=1e-6)
    rough = measure_integration(1, 0.1)
    assert rough["2D-Num"]["value"] == pytest.approx(rough["chords (ours)"]["value"], rel=0.2)


def test_the_page_is_what_its_script_writes() -> None:
    docs = Path(__file__).resolve().parents[4] / "docs"
    made = runpy.run_path(str(docs / "reproduce_page.py"))
    text = (docs / "reproduce.md").read_text(encoding="utf-8")
    assert made["page"](text) == text, "run python docs/reproduce_page.py"


@pytest.mark.parametrize("name", TABLES)
def test_the_page_says_what_a_table_needs(name: str) -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    section = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
    table = TABLES[name]
    files = {*table.files, *(feature.made_from for feature in table.features)}
    assert all(f"`{file.name}` | {file.source}" in section for file in files)
    assert all(sentence in section for sentence in table.differs)
    assert all(feature.command in section for feature in table.features)
    assert all(row.name in section for row in table.rows) or table.kind == "measurement"
