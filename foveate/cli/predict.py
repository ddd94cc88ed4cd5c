"""`foveate predict`: the predictions of a run for a whole split, in the evaluation server's format."""

from __future__ import annotations

from pathlib import Path

import torch
from tqdm import tqdm

from foveate import hub
from foveate.cli.outputs import check_parent
from foveate.errors import DataError
from foveate.io import DataDirectory, write_json
from foveate.train.batches import evaluation_batches, move, read_batches


def predict(
    run: str,
    *,
    out: Path,
    data: Path | None = None,
    split: str = "test",
    batch_size: int = 64,
    workers: int = 0,
    no_verify: bool = False,
    allow_outside: bool = False,
) -> None:
    """Predict every example of a split and write the evaluation server's result file.

    For questions the file is a list of {"question_id": ..., "answer": ...}, for captions of {"image_id": ...,
    "caption": ...}, in the order of the split.

    Args:
        run: directory of a run, or name of an embedded one.
        out: the file to write.
        data: directory of the data; not needed for embedded data.
        split: which split.
        batch_size: examples per forward pass; does not change the predictions.
        workers: processes that read images.
        no_verify: skip the checksums of feature stores.
        allow_outside: read images outside the directory of the data, where its files name any path.
    """
    check_parent("predict", out)
    predictor = hub.load(run)
    task, model = predictor.task, predictor.model
    device = next(model.parameters()).device
    examples = task.examples(split, DataDirectory(data, verify=not no_verify, allow_outside=allow_outside))
    batches = evaluation_batches(len(examples), batch_size, 1, 0)
    rows = []
    with torch.no_grad():
        for _, batch in tqdm(read_batches(task, examples, batches, workers), total=len(batches), disable=None):
            found = task.result_rows(task.predict(model, move(batch, device)), batch)
            if found is None:
                raise DataError(
                    f"predict: expected a run whose task has a result file, got {run!r} of {type(task).__name__}; "
                    "use foveate evaluate"
                )
            rows += found
    write_json(out, rows)
    print(f"{len(rows)} predictions in {out}")
