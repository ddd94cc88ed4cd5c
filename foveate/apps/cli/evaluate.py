"""`foveate evaluate` and `foveate predict`: the metrics of a run on a split, and its predictions for a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foveate.apps.cli.terminal import OutFile, print_table
from foveate.apps.cli.train import is_first_process
from foveate.errors import DataError
from foveate.io import write_json
from foveate.lab import hub
from foveate.lab.data.samples import DataDirectory
from foveate.lab.train.evaluation import collect, evaluate_together
from foveate.lab.train.evaluation import predict as predict_rows
from foveate.lab.train.recipe import read_run
from foveate.lab.train.records import write_examples


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
    for predictor in (hub.load(one, changes) for one in runs):
        examples = predictor.task.examples(split, root)
        options = {"batch_size": batch_size or recipe.training.batch_size, "workers": recipe.training.workers}
        collected.append(collect(predictor.task, predictor.model, examples, progress=True, **options))
    metrics = evaluate_together(collected)
    if not is_first_process():
        return None
    title = " ".join([" + ".join(runs), *changes, "on", split, *([] if data is None else ["of", str(data)])])
    print_table(title, (split, "value"), [(name, f"{value:.4g}") for name, value in metrics.items()])
    where = {"data": None if data is None else str(data), "split": split, "fingerprint": examples.fingerprint()}
    others = {"ensemble": runs[1:]} if runs[1:] else {}
    numbers = {"run": run, **others, "changes": list(changes), **where, "metrics": metrics}
    if out is not None:
        write_examples(out.with_suffix(".npz"), collected[0].examples())
        write_json(out, numbers)
    return numbers


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
    """Predict every example of a split and write the evaluation server's result file.

    For questions the file is a list of {"question_id": ..., "answer": ...}, for captions of {"image_id": ...,
    "caption": ...}, in the order of the split. On several GPUs: torchrun --nproc-per-node N -m foveate predict ...

    Args:
        run: directory of a run, or name of an embedded one.
        changes: fields of its recipe to change, as field=value or --field value; dataset=vqa-v1-choice chooses among
            the candidates of multiple choice, mechanism=multimodal attends with mixtures.
        out: the file to write.
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
