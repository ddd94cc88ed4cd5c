"""`foveate predict`: the predictions of a run for a whole split, in the evaluation server's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foveate.apps.cli.terminal import OutFile
from foveate.apps.cli.train import is_first_process
from foveate.errors import DataError
from foveate.io import write_json
from foveate.lab import hub
from foveate.lab.data.samples import DataDirectory
from foveate.lab.train.prediction import predict as predict_rows


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
