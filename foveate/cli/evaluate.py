"""`foveate evaluate`: measure a run on a split."""

from __future__ import annotations

from pathlib import Path

from foveate import hub
from foveate.cli.tables import print_table
from foveate.cli.train import is_first_process
from foveate.data.writing import write_json
from foveate.recipes import read_run
from foveate.train import evaluate as measure


def evaluate(
    run: str,
    changes: tuple[str, ...] = (),
    *,
    data: Path | None = None,
    split: str = "val",
    out: Path | None = None,
    batch_size: int | None = None,
) -> None:
    """Measure a run on a split of its data, or of other data of the same kind.

    Args:
        run: folder of a run, or the name of an embedded one.
        changes: fields of its recipe to change, as field=value or --field value; mechanism=multimodal attends with
            mixtures in a model that was trained with something else.
        data: folder of the data; not needed for embedded data.
        split: which split.
        out: JSON file for the numbers; printed only when absent.
        batch_size: examples at a time, that of the training when absent; does not change the numbers.
    """
    recipe, _ = read_run(run, changes)
    predictor = hub.load(run, changes)
    metrics = measure(
        predictor.task,
        predictor.model,
        predictor.task.examples(split, data),
        batch_size=batch_size or recipe.training.batch_size,
        workers=recipe.training.workers,
        progress=True,
    )
    if not is_first_process():
        return
    print_table(
        " ".join([run, *changes, "on", split]),
        (split, "value"),
        [(name, f"{value:.4g}") for name, value in metrics.items()],
    )
    if out is not None:
        write_json(out, {"run": run, "changes": list(changes), "split": split, "metrics": metrics})
