"""`foveate evaluate` and `foveate predict`: the metrics of a run on a split, and its predictions for a server."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from foveate.apps.cli.terminal import OutFile, print_table
from foveate.apps.cli.train import is_first_process
from foveate.apps.report.runs import measure_of
from foveate.apps.report.tables import FEW
from foveate.errors import DataError
from foveate.io import ProgressBar, atomic_write, write_json
from foveate.lab import hub
from foveate.lab.data import DATASETS
from foveate.lab.data.samples import DataDirectory
from foveate.lab.train.evaluation import collect, evaluate_together
from foveate.lab.train.evaluation import predict as predict_rows
from foveate.lab.train.recipe import read_run
from foveate.lab.train.records import write_examples
from foveate.lab.train.start import as_own_data

MOST_BROWSED = 200  # examples on a page of mistakes


def evaluate(
    run: str,
    changes: tuple[str, ...] = (),
    *,
    data: Path | None = None,
    split: str = "val",
    out: OutFile | None = None,
    batch_size: int | None = None,
    ensemble: str = "",
    no_verify: bool = False,
    allow_outside: bool = False,
) -> dict[str, Any] | None:
    """Evaluate a run on a split of its data, or of other data of the same kind.

    Args:
        run: directory of a run, or name of an embedded one.
        changes: fields of its recipe to change, as field=value or --field value; mechanism=multimodal attends with
            mixtures in a model that was trained with another mechanism.
        data: directory of the data; not needed for embedded data.
        split: the split to evaluate on.
        out: JSON file for the metrics and what they were measured on, beside which a .npz file with those of single
            examples is written; by default they are only printed.
        batch_size: examples per forward pass, by default that of the training; does not change the metrics.
        ensemble: further runs, separated by commas, whose scores are averaged with those of the run; for matching.
        no_verify: skip the checksums of feature stores.
        allow_outside: read images outside the directory of the data, where its files name any path.
    """
    recipe, _ = read_run(run, changes)
    runs = [run, *filter(None, map(str.strip, ensemble.split(",")))]
    collected, root = [], DataDirectory(data, verify=not no_verify, allow_outside=allow_outside)
    for one in runs:
        predictor, examples = _read_examples(one, changes, split, root)
        options = {"batch_size": batch_size or recipe.training.batch_size, "workers": recipe.training.workers}
        collected.append(collect(predictor.task, predictor.model, examples, progress=True, **options))
    metrics = evaluate_together(collected)
    if not is_first_process():
        return None
    title = " ".join([" + ".join(runs), *changes, "on", split, *([] if data is None else ["of", str(data)])])
    print_table(title, (split, "value"), [(name, f"{value:.4g}") for name, value in metrics.items()])
    if len(examples) < FEW:
        print(f"These numbers are means over {len(examples)} examples of {split}: too few to rank by.", file=sys.stderr)
    where = {"data": None if data is None else str(data), "split": split, "fingerprint": examples.fingerprint()}
    others = {"ensemble": runs[1:]} if runs[1:] else {}
    numbers = {"run": run, **others, "changes": list(changes), **where, "metrics": metrics}
    if out is not None:
        write_examples(out.with_suffix(".npz"), collected[0].examples())
        write_json(out, numbers)
    return numbers


def _read_examples(run: str, changes: tuple[str, ...], split: str, root: DataDirectory) -> tuple[Any, Any]:
    """A run with the examples of a split; a directory that holds no published data is read as one's own."""
    own = as_own_data(run, changes, root)
    if own == changes:
        predictor = hub.load(run, changes)
        return predictor, predictor.task.examples(split, root)
    if not DATASETS[read_run(run, changes)[0].settings.dataset].embedded:
        with suppress(DataError):
            predictor = hub.load(run, changes)
            return predictor, predictor.task.examples(split, root)
    said = " ".join(own[len(changes) :])
    print(f"evaluate: {root.path} is read as a directory of your own: {said}", file=sys.stderr)
    predictor = hub.load(run, own)
    return predictor, predictor.task.examples(split, root)


def predict(
    run: str,
    changes: tuple[str, ...] = (),
    *,
    out: OutFile,
    data: Path | None = None,
    split: str = "test",
    batch_size: int = 64,
    workers: int = 0,
    device: str | None = None,
    no_verify: bool = False,
    allow_outside: bool = False,
) -> list[Any]:
    """Predict every example of a split and write the evaluation server's result file, or a page of the mistakes.

    For questions the file is a list of {"question_id": ..., "answer": ...}, for captions of {"image_id": ...,
    "caption": ...}, in the order of the split. On several GPUs: torchrun --nproc-per-node N -m foveate predict ...

    Args:
        run: directory of a run, or name of an embedded one.
        changes: fields of its recipe to change, as field=value or --field value; dataset=vqa-v1-choice chooses among
            the candidates of multiple choice, mechanism=multimodal attends with mixtures.
        out: the JSON file to write, or an HTML page: the predictions beside the truth, the worst first, each with where
            the model looked.
        data: directory of the data; not needed for embedded data.
        split: the split to predict; test-dev uses the features of test if it has none of its own.
        batch_size: examples per forward pass; does not change the predictions.
        workers: processes that read images.
        device: device to compute on; by default a GPU if there is one.
        no_verify: skip the checksums of feature stores.
        allow_outside: read images outside the directory of the data, where its files name any path.
    """
    predictor = hub.load(run, changes)
    root = DataDirectory(data, verify=not no_verify, allow_outside=allow_outside)
    if out.suffix.lower() == ".html":
        return browse(run, predictor, predictor.task.examples(split, root), out, batch_size=batch_size)
    rows = predict_rows(
        predictor.task,
        predictor.model,
        predictor.task.examples(split, root),
        device=device,
        batch_size=batch_size,
        workers=workers,
    )
    if rows is None:
        raise DataError(
            f"predict: expected a run whose task has a result file, got {run!r} of {type(predictor.task).__name__}; "
            "use foveate evaluate"
        )
    if is_first_process():
        write_json(out, rows)
        print(f"{len(rows)} predictions in {out}")
    return list(rows)


def browse(run: str, predictor: Any, examples: Any, out: Path, *, batch_size: int) -> list[Any]:
    """Write a page of the predictions on examples whose truth is known, the worst first.

    Returns:
        the ids of the examples that are drawn, each with its value.
    """
    from foveate.apps.report.page import html_page, html_sheet, html_text

    shown = predictor.task.presentation
    values = collect(predictor.task, predictor.model, examples, batch_size=batch_size, progress=True).examples()
    first = values.get(shown.failures[0], {}) if shown.failures else {}
    if shown.draw_failures is None or not first:
        raise DataError(f"predict: expected examples with a known truth, got none for {run}; write a .json file")
    measure = measure_of(shown.failures[0], shown)
    ranked = sorted(first, key=lambda key: (first[key] if measure.better == "higher" else -first[key], key))
    usual, kept = sum(first.values()) / len(first), ranked[:MOST_BROWSED]
    title = f"{run}: the worst {len(kept)} of {len(ranked)} examples, by {measure.label}"
    parts = [html_text("h1", title), html_text("p", f"{measure.label} over all of them: {measure.show(usual)}", "soft")]
    with ProgressBar("predict", len(kept), unit="example", show=True) as bar:
        for key in kept:
            for one in shown.draw_failures({run: predictor}, examples, [key[0]]):
                below = f"{one.below}; {measure.label}: {measure.show(first[key])}; image {key[1]}"
                parts += [html_text("h3", one.title), html_text("p", below, "soft"), html_sheet(one.figure, one.alt)]
            bar.update()
    with atomic_write(out) as temporary:
        temporary.write_text(html_page(title, parts), encoding="utf-8")
    print(f"{len(kept)} examples in {out}")
    return [[key[0], first[key]] for key in kept]
