"""`foveate predict`: the answers of a run to a whole split, as the evaluation server takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import tyro
from tqdm import tqdm

from foveate import hub
from foveate.data.writing import write_json
from foveate.errors import DataError
from foveate.tasks.vqa import VQA
from foveate.train.batches import move, read_batches, share_of


def predict(
    run: Annotated[str, tyro.conf.Positional],
    *,
    out: Path,
    data: Path | None = None,
    split: str = "test",
    batch_size: int = 64,
    workers: int = 0,
) -> None:
    """Answer every question of a split and write the evaluation server's result file.

    The file is a list of {"question_id": ..., "answer": ...} in the order of the questions; nothing else is needed of
    the split than pictures and questions.

    Args:
        run: folder of a run, or the name of an embedded one.
        out: the file to write.
        data: folder of the data; not needed for embedded data.
        split: which split.
        batch_size: examples at a time; does not change the answers.
        workers: processes that read pictures.
    """
    predictor = hub.load(run)
    task = predictor.task
    if not isinstance(task, VQA):
        raise DataError(
            f"predict: expected a run of visual question answering, got {run!r} of {type(task).__name__}; "
            "other tasks have no result file"
        )
    examples = task.examples(split, data)
    numbers = share_of(len(examples), batch_size, 1, 0)
    results = []
    with torch.no_grad():
        for _, batch in tqdm(read_batches(task, examples, numbers, workers), total=len(numbers), disable=None):
            answers = task.predict(predictor.model, move(batch, predictor.device)).answers
            results += [
                {"question_id": question.id, "answer": text}
                for question, text in zip(batch.questions, answers, strict=True)
            ]
    order = {question.id: place for place, question in enumerate(examples.data.questions)}
    write_json(out, sorted(results, key=lambda row: order[row["question_id"]]))
    print(f"{len(results)} answers in {out}")
