"""CIDEr-D of single captions against the evaluation code that published numbers are computed with."""

from __future__ import annotations

import pytest

from foveate.lab.metrics.caption_quality import CiderD

REFERENCES = {
    1: ["a red star and a blue disc", "one star beside a disc", "a star"],
    2: ["two dogs run on the grass", "dogs running", "a dog and another dog run in a field"],
    3: ["a man rides a horse", "a person on a brown horse"],
}
CAPTIONS = {1: "a red star and a red star", 2: "two dogs run", 3: "a dog"}


def test_is_the_published_one() -> None:
    package = pytest.importorskip("pycocoevalcap.cider.cider", reason="needs the extra captions")
    expected = package.Cider().compute_score(REFERENCES, {key: [text] for key, text in CAPTIONS.items()})[1]
    split = {key: [text.split() for text in own] for key, own in REFERENCES.items()}
    rate = CiderD.from_references(split.values())
    found = [rate(CAPTIONS[key].split(), split[key]) for key in CAPTIONS]
    assert found == pytest.approx(list(expected), abs=1e-6)


def test_nothing_said_has_no_score() -> None:
    rate = CiderD.from_references([[["a", "dog"]], [["a", "cat"]]])
    assert rate([], [["a", "dog"]]) == 0
    assert rate(["a", "dog"], []) == 0
