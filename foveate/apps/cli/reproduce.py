"""`foveate reproduce`: a table of a paper from the publishers' files, its numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from foveate.apps.cli.terminal import Between, Count, Directory, print_table, save_figure
from foveate.apps.cli.train import is_first_process
from foveate.apps.report.page import html_cell, html_page, html_table, html_text
from foveate.errors import DataError
from foveate.io import atomic_write, write_json
from foveate.lab.papers.tables import TABLES
from foveate.lab.papers.tables.cost import cost_of, total
from foveate.lab.papers.tables.paper_figures import FIGURES, FigureRequest, make_figure
from foveate.lab.papers.tables.run import (
    Session,
    check_files,
    choose_rows,
    evaluate_all,
    make_stores,
    measure_all,
    submission,
    train_all,
    value_of,
)
from foveate.lab.papers.tables.table import Table
from foveate.registry import lookup

if TYPE_CHECKING:
    from foveate.lab.papers.rating import TableRatings

Found = Mapping[str, list[dict[str, float]]]
RESULTS, PAGE, FIGURE = "results.json", "report.html", "figure.png"
MOST = 10**6


def reproduce(
    table: str,
    *,
    data: Path | None = None,
    out: Directory | None = None,
    only: tuple[str, ...] = (),
    seeds: Count = 1,
    dry_run: bool = False,
    tiny: bool = False,
    throughput: float = 10.0,
    run: str | None = None,
    image: Path | None = None,
    text: str | None = None,
    example: Annotated[int, Between(0, MOST)] | None = None,
) -> dict[str, Any] | None:
    """Train and evaluate what a table of a paper needs, and print the paper's numbers beside ours; or draw a figure.

    A figure is drawn from the trainings of the paper with --data, and from embedded runs without.

    If it is interrupted, repeat the command to continue; runs trained for another table are reused. On several GPUs:
    torchrun --nproc-per-node N -m foveate reproduce ...

    Args:
        table: name of a table or figure; `foveate list tables` shows them.
        data: directory with the publishers' files; docs/reproduce.md lists them for every table.
        out: directory of the runs and results; by default runs/reproduce, or runs/reproduce-tiny.
        only: reproduce these rows alone, by their names in the paper.
        seeds: trainings per row, with the seeds 0, 1, ...; the table shows the mean.
        dry_run: print the trainings, evaluations and missing files, and stop.
        tiny: make small files in the publishers' formats and run the whole table on them with models cut to seconds;
            the numbers mean nothing.
        throughput: of the machine in tera-operations per second, to estimate the hours.
        run: of a figure or a table with one training: use this run, embedded or one's own, instead of training.
        image: draw a figure of this image instead of an example of val.
        text: the question or sentence for that image.
        example: draw a figure of this example of val, counted from 0, instead of one that shows what the paper's shows.
    """
    lookup("table or figure", table, {**TABLES, **FIGURES})
    if table in FIGURES:
        directory = out or Path("runs") / ("reproduce-tiny" if tiny else "reproduce")
        return _figure(table, FigureRequest(data, directory, run, image, text, example, tiny), dry_run)
    chosen = lookup("table", table, TABLES)
    rows = choose_rows(table, chosen, only)
    directory = out or Path("runs") / ("reproduce-tiny" if tiny else "reproduce")
    session = Session(table, chosen, data, directory, rows, seeds, own=run)
    if run is not None and (chosen.kind != "runs" or len({row.runs for row in rows}) != 1 or len(rows[0].runs) != 1):
        raise DataError(
            f"reproduce: expected a table whose rows share one training for --run, got {table}; try 000-shares or "
            "001-table-6.4"
        )
    if dry_run:
        _print_plan(session, throughput)
        return {"table": table, "runs": [directory for _, _, directory in session.trainings()]}
    found = evaluate_all(session) if run is not None else _run_tiny(session) if tiny else _run(session)
    if is_first_process():
        notes = _notes(session)
        if chosen.kind == "ratings":
            rated = _ratings(session, tiny)
            found, notes = rated.metrics, [*notes, *rated.notes]
        return _write(session, found, notes)
    return None


def _figure(name: str, request: FigureRequest, dry_run: bool) -> dict[str, Any]:
    """Draw a figure into `<out>/<name>/figure.png`, and print what it shows."""
    figure, path = FIGURES[name], request.out / name / FIGURE
    print(f"{name}: {figure.title} ({figure.reference})")
    if dry_run:
        _print_plan(figure.session(name, request.root, request.out), 10.0)
        return {"figure": name, "path": str(path)}
    drawn, notes = make_figure(name, request)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(drawn, path)
    for line in notes:
        print(line)
    return {"figure": name, "path": str(path), "shows": notes}


def _run(session: Session) -> Found:
    if session.table.kind == "measurement":
        return measure_all(session, 100, 1.49e-8)
    if session.root is None:
        raise DataError(
            f"reproduce: expected the directory of the publishers' files, got none; pass --data DIR or --tiny, and see "
            f"foveate reproduce {session.name} --dry-run"
        )
    check_files(session.name, session.table, session.root)
    make_stores(session)
    train_all(session)
    return evaluate_all(session)


def _run_tiny(session: Session) -> Found:
    from foveate.lab.papers.tables.tiny_tables import run_tiny

    return run_tiny(session)


def _ratings(session: Session, tiny: bool) -> TableRatings:
    from foveate.lab.papers.rating.study_results import IMAGES, TINY_IMAGES, table_ratings
    from foveate.lab.papers.tables.tiny_tables import tiny_data

    root = tiny_data(session.out) if tiny else session.root
    assert root is not None  # its files were checked
    return table_ratings(session, root, TINY_IMAGES if tiny else IMAGES)


def _print_plan(session: Session, throughput: float) -> None:
    """The trainings and evaluations of a table, what they cost, and the files that are missing."""
    trainings = [
        (
            directory.name,
            " ".join([run.recipe, *run.changes]),
            f"{(cost := cost_of(run)).steps:,}",
            f"{cost.hours(throughput):.1f}",
        )
        for run, _, directory in session.trainings()
    ]
    print_table(f"{session.name}: trainings", ("run", "recipe and changes", "steps", "hours"), trainings)
    evaluations = [
        (
            row.name,
            " + ".join(run.name for run in row.runs) or ("quoted by the paper" if row.quoted else "measured"),
            " ".join([*session.table.splits, *row.changes]),
        )
        for row in session.rows
    ]
    print_table("evaluations", ("row", "runs", "splits and changes"), evaluations)
    whole = total(session.rows, session.seeds)
    print(
        f"{whole.steps:,} steps, {whole.multiply_adds:.3g} multiply-adds, about {whole.hours(throughput):.1f} hours at "
        f"{throughput:g} tera-operations per second"
    )
    for feature in session.table.features:
        print(f"features: {feature.command}")
    if session.root is not None:
        for file in session.table.missing(session.root):
            print(f"missing: {file.name}  from {file.source}")


def _write(session: Session, found: Found, notes: list[str]) -> dict[str, Any]:
    heads, rows = compared(session, found)
    title = f"{session.name}: {session.table.title} ({session.table.reference})"
    print_table(title, heads, rows)
    for line in notes:
        print(line)
    session.directory.mkdir(parents=True, exist_ok=True)
    numbers = {"table": session.name, "seeds": session.seeds, "metrics": found}
    write_json(session.directory / RESULTS, numbers)
    path = session.directory / PAGE
    with atomic_write(path) as temporary:
        temporary.write_text(html_page(title, _page(session.table, title, heads, rows, notes)), encoding="utf-8")
    print(f"report: {path}")
    return numbers


def compared(session: Session, found: Found) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and rows of the comparison: one line per cell of the table, the paper's number beside ours."""
    rows = []
    for row in session.rows:
        for column, paper in zip(session.table.columns, row.paper, strict=True):
            ours = value_of(session, column, row, found)
            difference = "" if ours is None or paper is None else f"{ours - paper:+.4g}"
            cells = ("–" if number is None else f"{number:.4g}" for number in (paper, ours))
            name = f"{row.name} (quoted)" if row.quoted else row.name
            rows.append((name, column.name, *cells, difference))
    return ("row", "column", "paper", "ours", "difference"), rows


def _notes(session: Session) -> list[str]:
    """What to do about numbers that only the evaluation server can provide."""
    kinds = [f"{split}{end}" for split in session.table.splits for end in ("", "-choice")]
    waiting = [
        submission(session, row, seed, kind)
        for row in session.rows
        for seed in range(session.seeds)
        for kind in kinds
        if submission(session, row, seed, kind).is_file()
        and not submission(session, row, seed, f"{kind}-score").is_file()
    ]
    notes = []
    if waiting:
        notes.append(
            f"{len(waiting)} result files for the evaluation server are in {waiting[0].parent}; write its numbers into "
            f'{waiting[0].stem}-score.json as {{"overall": ..., "yes/no": ..., "number": ..., "other": ...}} (for '
            'multiple choice {"overall": ...}) and run this command again'
        )
    return notes


def _page(
    table: Table, title: str, heads: Iterable[str], rows: Iterable[Iterable[str]], notes: Iterable[str]
) -> Iterable[str]:
    yield html_text("h1", title)
    yield html_table(
        [html_cell("th", head) for head in heads], [[html_cell("td", cell) for cell in row] for row in rows]
    )
    yield html_text("h2", "What differs from the paper")
    yield from (html_text("p", sentence) for sentence in table.differs)
    yield from (html_text("p", note, "soft") for note in notes)
