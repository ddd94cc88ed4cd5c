"""SCAN and BFAN that start from a trained dual encoder: its layers compare words with locations already."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from foveate.errors import DataError
from foveate.lab.data.vocabulary import Vocabulary
from foveate.lab.encoders import WordsInContext
from foveate.lab.models import FragmentMatcher
from foveate.lab.tasks.other_run import OtherRun

# A sentence has the mean of its states, a word its own: about the part of one word in the mean, for the same size.
STATES = 0.3
SOURCE = "a run of `dual`: foveate train matching-dual-flickr8k"


def start_from_dual(model: FragmentMatcher, run: Path, words: Vocabulary) -> None:
    """Copy the weights of a run of `dual` to a matcher of words and locations.

    A dual encoder compares the mean of the locations with the sum of the words, both by linear layers, so that these
    layers also compare one location with one word: a start from which attention finds what a word names at once.
    The layer of the means becomes that of the locations. The dual encoder beside the attention, if there is one, is the
    run itself.

    Args:
        model: with `text=minilm` and the sizes of the run.
        run: the directory of the run.
        words: the vocabulary of the model, which must be that of the run.

    Raises DataError if the run is of another model or vocabulary.
    """
    tensors, known = OtherRun.load("dual_start", run, SOURCE)
    if known != tuple(words.words):
        raise DataError(f"dual_start: expected the vocabulary of the data in {run}, got another; train it on this data")
    found, half = _layers(run, tensors), model.image.dim
    text = model.text
    assert isinstance(text, WordsInContext)  # the settings reject others
    pairs = [
        (text.words.weight, found["text.words.weight"]),
        (text.project.weight, found["text.project.weight"]),
        (text.project_states.weight, STATES * found["text.states.linear.weight"]),
        (model.features.weight, found["pooled.project.weight"][:, :half]),
        (model.features.bias, found["pooled.project.bias"]),
    ]
    if model.whole is not None:
        own = model.whole.state_dict()
        pairs += [(own[name], tensor) for name, tensor in found.items()]
    with torch.no_grad():
        text.project.bias.zero_()  # a sentence has it once, not once per word
        for target, tensor in pairs:
            if target.shape != tensor.shape:
                raise DataError(
                    f"dual_start: expected weights {tuple(target.shape)} in {run}, got {tuple(tensor.shape)}; use the "
                    "same hidden, word_dim and features as the run"
                )
            target.copy_(tensor)


def _layers(run: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a dual encoder with pretrained states, by name."""
    for name in ("text.words.weight", "text.states.linear.weight", "pooled.project.weight"):
        if name not in tensors:
            raise DataError(
                f"dual_start: expected a dual encoder with text=minilm in {run}, got no {name}; pass {SOURCE}"
            )
    return tensors
