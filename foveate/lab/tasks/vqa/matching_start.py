"""An r-DAN that starts from a trained m-DAN: what matching has learnt of words and images, before any question."""

from __future__ import annotations

from pathlib import Path

import torch

from foveate.errors import DataError
from foveate.lab.data.vocabulary import Vocabulary
from foveate.lab.models import ReasoningDAN
from foveate.lab.tasks.other_run import OtherRun

SOURCE = "a run of m-DAN: foveate train matching-mdan-flickr8k"
WORDS = "text.words.weight"


def start_from_matching(model: ReasoningDAN, run: Path, words: Vocabulary) -> int:
    """Copy the layers that r-DAN and m-DAN share: text encoder, projections, attention over image and words.

    Args:
        model: with the hidden size, the steps, the word_dim and the features of the run.
        run: the directory of the run.
        words: the vocabulary of the model; a word that the run knows takes its vector, others keep their random one.

    Returns:
        the number of words whose vectors were copied.

    Raises DataError if the run is of another model or has other sizes.
    """
    found, words_of_run = OtherRun.load("matching_start", run, SOURCE)
    own = {name: x for name, x in model.state_dict().items() if name != WORDS and not name.startswith("answers.")}
    wrong = [name for name, x in own.items() if name not in found or found[name].shape != x.shape]
    if wrong or WORDS not in found:
        name = (wrong or [WORDS])[0]
        shape = tuple(found[name].shape) if name in found else "none"
        raise DataError(
            f"matching_start: expected {name} {tuple(model.state_dict()[name].shape)} in {run}, got {shape}; pass "
            f"{SOURCE}, with the same hidden, reasoning_steps, word_dim and features"
        )
    known = {word: row for row, word in enumerate(words_of_run)}
    rows = [(row, known[word]) for row, word in enumerate(words.words) if word in known]
    with torch.no_grad():
        for name, target in own.items():
            target.copy_(found[name])
        mine, theirs = torch.tensor(rows).T
        model.state_dict()[WORDS][mine] = found[WORDS][theirs]
    return len(rows)
