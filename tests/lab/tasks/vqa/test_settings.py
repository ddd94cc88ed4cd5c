"""Settings of visual question answering."""

from __future__ import annotations

import pytest

from foveate.errors import UnknownName
from foveate.lab.models import ReasoningDANSettings
from foveate.lab.tasks.vqa.settings import VQASettings


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName, match=r"dataset: .* did you mean 'scenes'"):
        VQASettings(dataset="scene")
    with pytest.raises(UnknownName, match=r"mechanism: .* did you mean 'tvmax'"):
        VQASettings(mechanism="tvmx")
    with pytest.raises(UnknownName, match=r"mechanism: .* did you mean 'sparsemax'"):
        VQASettings(model=ReasoningDANSettings(word_mechanism="sparsmax"))
    with pytest.raises(UnknownName, match=r"loss: .*"):
        VQASettings(loss="hinge")  # type: ignore[arg-type]
