"""`foveate studio` and `foveate rate`: web pages to ask, search and compare, and to rate runs."""

from __future__ import annotations

from pathlib import Path

from foveate.apps.cli.terminal import print_table
from foveate.errors import DataError
from foveate.lab.papers.rating import Study, StudyResults, make_study, read_results
from foveate.metrics.statistics import p_in_words


def studio(
    *, port: int | None = None, host: str = "127.0.0.1", runs: Path = Path("runs"), no_verify: bool = False
) -> None:
    """Serve a web page to ask questions, try mechanisms and view results; stop it with Ctrl-C.

    Args:
        port: port to listen on; by default the first free one from 7860.
        host: address to listen on; by default only this machine can connect. Anyone who can reach it can use the runs
            and see the reports.
        runs: directory whose runs and reports are shown besides the embedded ones.
        no_verify: skip the checksums of search indexes.
    """
    if port is not None and not 0 < port < 65536:
        raise DataError(f"studio: expected a port from 1 to 65535, got {port}; leave it out to use the first free one")
    from foveate.apps.studio.app import serve

    serve(runs, host=host, port=port, verify=not no_verify)


def rate(
    study: Path,
    *,
    make: bool = False,
    results: bool = False,
    runs: str = "",
    images: int = 100,
    seed: int = 0,
    split: str = "test",
    data: Path | None = None,
    max_words: int = 8,
    port: int | None = None,
    host: str = "127.0.0.1",
) -> StudyResults | None:
    """Serve the page of a study on which people rate; stop it with Ctrl-C.

    Args:
        study: directory of the study.
        make: create the study instead: sample images, apply all runs to them, and freeze everything.
        results: print the results of the ratings so far instead, and write results.json and ratings.csv.
        runs: with --make: runs of one task, separated by commas; fields may follow a run, as in
            "scenes-captioning,scenes-captioning mechanism=tvmax".
        images: with --make: number of images.
        seed: with --make: seed of the sampled images, and of the orders in which raters see images and runs.
        split: with --make: split of the data of the first run.
        data: with --make: directory of the data; not needed for embedded data.
        max_words: with --make: content words per text that are rated.
        port: port to listen on; by default the first free one from 7860.
        host: address to listen on; by default only this machine can connect.
    """
    if make and results:
        raise DataError("rate: expected --make or --results, got both; make the study first")
    if make:
        names = [name.strip() for name in runs.split(",") if name.strip()]
        found = make_study(
            study, names, count=images, seed=seed, split=split, root=data, max_words=max_words, progress=True
        )
        words = sum(len(entry.words) for item in found.items for entry in item.entries)
        size = f"{len(found.items)} images, {len(found.runs)} runs, {words} maps"
        print(f"{study}: {size}; open it with: foveate rate {study}")
        return None
    if results:
        return show_results(Study.load(study))
    from foveate.apps.studio.rating_page import serve_study

    serve_study(Study.load(study), host=host, port=port)
    return None


def show_results(study: Study) -> StudyResults:
    """Print the results as tables and sentences, and write them beside the study."""
    found = read_results(study)
    rows = [(run, *(str(found.means[question][run]) for question in found.means)) for run in study.runs]
    rated = len({row[1] for row in found.rows})
    print_table(f"{len(found.raters)} raters, {rated} images", ("run", *found.means), rows)
    print_table(
        "differences (corrected for their number)",
        ("question", "runs", "difference", "p"),
        [
            (one.measure, f"{one.first} - {one.second}", str(one.interval), p_in_words(one.corrected))
            for one in found.differences
        ],
    )
    for question, alpha in found.alpha.items():
        print(f"agreement of the raters on {question} (Krippendorff's alpha, ordinal): {alpha:.3f}")
    print("\n".join(found.sentences()))
    print(" ".join(["written:", *map(str, found.write(study.directory))]))
    return found
