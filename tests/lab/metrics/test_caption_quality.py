"""Caption scores against pycocoevalcap's own evaluation, with and without Java."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from foveate.errors import DataError, FoveateError, MissingExtra
from foveate.lab.metrics import CaptionQuality, caption_scores
from foveate.lab.metrics import caption_quality as module
from foveate.lab.metrics.caption_quality import has_java, plain_tokenize, ptb_tokenize

pytest.importorskip("pycocoevalcap", reason="the extra captions is not installed")
needs_java = pytest.mark.skipif(not has_java(), reason="no Java here")

PEOPLE = {
    1: ["A man with a red helmet on a small moped.", "Man riding a motor bike on a dirt road.", "A man, on a bike!"],
    2: ["A woman wearing a net on her head cutting a cake.", "Someone's cutting a large white sheet-cake."],
    "three": ["A child holding a flowered umbrella, petting a yak.", "A young man (19) holds an umbrella."],
    4: ["A young boy standing in front of a computer keyboard.", 'A boy "plays" at the computer -- happily.'],
}
SAID = {
    1: "a man riding a motor bike on a road",
    2: "a woman cutting a large white cake with a cake",
    "three": "a young man holding an umbrella next to a yak",
    4: "a boy in front of a computer",
}


def theirs(people: dict[Any, list[str]], said: dict[Any, list[str]]) -> dict[str, float]:
    """The scores by their own classes, called as their evaluation calls them."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    bleu, _ = Bleu(4).compute_score(people, said, verbose=0)
    scores = {f"bleu-{n + 1}": value for n, value in enumerate(bleu)}
    return scores | {
        "rouge-l": Rouge().compute_score(people, said)[0],
        "cider-d": Cider().compute_score(people, said)[0],
    }


def test_without_java_the_tokenizer_is_named_and_the_scores_are_theirs() -> None:
    found = caption_scores(SAID, PEOPLE, java=False)
    own = {key: [text] for key, text in SAID.items()}
    expected = theirs(plain_tokenize(PEOPLE), plain_tokenize(own))
    assert found.tokenizer == "plain"
    assert dict(found.values) == pytest.approx(expected, abs=1e-6)
    assert 0.1 < found.values["bleu-4"] < 1
    assert found.values["cider-d"] > 0.5


@pytest.mark.slow
@needs_java
def test_with_java_everything_is_as_in_their_evaluation() -> None:
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    tokenizer = PTBTokenizer()
    people = tokenizer.tokenize({key: [{"caption": text} for text in own] for key, own in PEOPLE.items()})
    said = tokenizer.tokenize({key: [{"caption": text}] for key, text in SAID.items()})
    assert ptb_tokenize(PEOPLE) == people
    meteor = Meteor()
    expected = theirs(people, said) | {"meteor": meteor.compute_score(people, said)[0]}
    for pipe in (meteor.meteor_p.stdout, meteor.meteor_p.stderr):
        pipe.close()
    found = caption_scores(SAID, PEOPLE)
    assert found.tokenizer == "ptb"
    assert dict(found.values) == pytest.approx(expected, abs=1e-6)


@needs_java
def test_the_tokenizer_of_the_server_reads_odd_captions() -> None:
    odd = {1: ["", "two\nlines", "No."], 2: ["ünïcode – dash"]}
    found = ptb_tokenize(odd)
    assert found[1] == ["", "two lines", "no"]
    assert len(found[2]) == 1


def test_java_is_used_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(module, "ptb_tokenize", lambda texts: calls.append("ptb") or plain_tokenize(texts))
    monkeypatch.setattr(module, "_meteor", lambda people, own: 0.25)
    monkeypatch.setattr(module, "has_java", lambda: True)
    found = caption_scores(SAID, PEOPLE)
    assert (found.tokenizer, found.values["meteor"], calls) == ("ptb", 0.25, ["ptb", "ptb"])
    monkeypatch.setattr(module, "has_java", lambda: False)
    found = caption_scores(SAID, PEOPLE)
    assert found.tokenizer == "plain"
    assert "meteor" not in found.values


def test_java_that_is_wanted_and_absent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for options in ({"java": True}, {"spice": True}):
        with pytest.raises(FoveateError, match="caption_scores: expected the program java on the PATH, got none"):
            caption_scores(SAID, PEOPLE, **options)


def test_spice_is_added_when_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    import pycocoevalcap.spice.spice as theirs_spice

    class Spice:
        def compute_score(self, people: dict, own: dict) -> tuple[float, None]:
            assert people.keys() == own.keys()
            return 0.125, None

    monkeypatch.setattr(theirs_spice, "Spice", Spice)
    monkeypatch.setattr(module, "has_java", lambda: True)
    assert caption_scores(SAID, PEOPLE, java=False, spice=True).values["spice"] == 0.125


def test_without_the_package_cider_is_our_own_and_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Iterator:
        raise ModuleNotFoundError(f"No module named {name!r}", name="pycocoevalcap")

    expected = caption_scores(SAID, PEOPLE, java=False)
    monkeypatch.setattr("foveate.registry.import_module", missing)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    for java in (False, None):
        found = caption_scores(SAID, PEOPLE, java=java)
        assert found.values == {"cider-d": pytest.approx(expected.values["cider-d"], rel=1e-12)}
        assert found.each == {"cider-d": pytest.approx(expected.each["cider-d"], rel=1e-12)}
    monkeypatch.setattr(module, "has_java", lambda: True)
    with pytest.raises(MissingExtra, match=r'pip install "foveate\[captions\]"'):
        caption_scores(SAID, PEOPLE, java=True)


@pytest.mark.parametrize("people", [{}, {1: ["a"]}, {**PEOPLE, 4: []}])
def test_captions_without_references_raise_an_error(people: dict) -> None:
    with pytest.raises(DataError, match="caption_scores: expected captions and references of the same images"):
        caption_scores(SAID, people, java=False)


def test_quality_has_every_number() -> None:
    quality = CaptionQuality()
    quality.update([1, 2], ["a star and a star", "discs"], [["A star."], ["A disc."]], [[("star",), ("cross",)], []])
    result = quality.compute()
    assert result["rep"] == pytest.approx(100 * 1 / 4)
    assert result["words"] == 3
    assert result["distinct-1"] == pytest.approx(4 / 6)
    assert result["distinct-2"] == pytest.approx(3 / 4)
    assert result["mentioned"] == 0.5
    assert result["ptb tokenizer"] == 0
    assert {"bleu-1", "bleu-4", "rouge-l", "cider-d"} <= set(result)
    unknown = CaptionQuality()
    unknown.update([1], ["a star"], [["A star."]])
    assert "mentioned" not in unknown.compute()


def test_quality_passes_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict] = []
    monkeypatch.setattr(
        module,
        "caption_scores",
        lambda captions, people, **options: given.append(options) or module.CaptionScores({}, "ptb"),
    )
    quality = CaptionQuality(java=None, spice=True)
    quality.update([1], ["a"], [["a"]])
    assert quality.compute()["ptb tokenizer"] == 1
    assert given == [{"java": None, "spice": True}]


def test_two_captions_of_an_image_raise_an_error() -> None:
    quality = CaptionQuality()
    with pytest.raises(DataError, match="CaptionQuality: expected one caption per image, got two for 1"):
        quality.update([1, 1], ["a", "b"], [["a"], ["b"]])


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    caption_scores(SAID, PEOPLE, java=False)
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""
