"""How good captions are by what people wrote: the usual scores, by the code that everybody compares with.

The numbers are those of `pycocoevalcap` (extra `captions`). Its METEOR, SPICE and PTB tokenizer are Java programs.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from foveate.data.samples import Id
from foveate.data.tokens import tokenize
from foveate.errors import DataError, FoveateError
from foveate.metrics.repetition import distinct_share, mentioned, repetition_score
from foveate.registry import optional

Tokenizer = Literal["ptb", "plain"]
Texts = Mapping[Id, Sequence[str]]


@dataclass(frozen=True)
class CaptionScores:
    """Scores of the captions of a split.

    Attributes:
        values: by name: "bleu-1" to "bleu-4", "rouge-l", "cider-d", and "meteor", "spice" where they were wanted.
        tokenizer: "ptb", the one of the evaluation server, or "plain", `foveate.data.tokenize`.
    """

    values: Mapping[str, float]
    tokenizer: Tokenizer


def has_java() -> bool:
    """Whether the scores that are Java programs can be had."""
    return shutil.which("java") is not None


def caption_scores(
    captions: Mapping[Id, str], references: Texts, *, java: bool | None = None, spice: bool = False
) -> CaptionScores:
    """BLEU, ROUGE-L and CIDEr-D of captions, and METEOR where there is Java.

    Args:
        captions: one text a picture.
        references: what people wrote about each of these pictures.
        java: tokenize as the evaluation server does, and add METEOR; when absent, where Java is installed.
        spice: add SPICE; it needs Java, fetches its models when it is first used, and takes minutes.

    Returns:
        the scores, and which tokenizer they were made with. CIDEr-D weighs words by how few of the given pictures have
        them in a reference: it belongs to the whole split.

    Without the package `MissingExtra` is raised.

    >>> people = {1: ["A red star.", "One star."], 2: ["A green disc.", "The disc"]}
    >>> found = caption_scores({1: "a red star", 2: "a blue disc"}, people, java=False)
    >>> found.tokenizer, round(found.values["bleu-1"], 3)
    ('plain', 0.833)
    """
    if not captions or captions.keys() != references.keys() or not all(references.values()):
        raise DataError(
            f"caption_scores: expected captions and references of the same pictures, got {len(captions)} captions and "
            f"{sum(map(bool, references.values()))} pictures with references; give both for every picture"
        )
    wanted = has_java() if java is None else java
    if (wanted or spice) and not has_java():
        raise FoveateError(
            "caption_scores: expected the program java on the path, got none; install a Java runtime, or pass "
            "java=False and spice=False"
        )
    split = ptb_tokenize if wanted else plain_tokenize
    people, own = split(references), split({key: [text] for key, text in captions.items()})
    values = _plain_scores(people, own)
    if wanted:
        values["meteor"] = _meteor(people, own)
    if spice:
        scorer = optional("caption_scores", "pycocoevalcap.spice.spice", "captions").Spice()
        values["spice"] = float(scorer.compute_score(people, own)[0])
    return CaptionScores(values, "ptb" if wanted else "plain")


def plain_tokenize(texts: Texts) -> dict[Id, list[str]]:
    """Texts as words with single spaces between, by the tokenizer of the models.

    >>> plain_tokenize({1: ["A T-shirt!"]})
    {1: ['a t shirt']}
    """
    return {key: [" ".join(tokenize(text)) for text in own] for key, own in texts.items()}


def ptb_tokenize(texts: Texts) -> dict[Id, list[str]]:
    """Texts as the evaluation server tokenizes them: Penn Treebank's rules, lower case, no punctuation; needs Java."""
    package = optional("caption_scores", "pycocoevalcap.tokenizer.ptbtokenizer", "captions")
    assert package.__file__ is not None
    jar = Path(package.__file__).parent / package.STANFORD_CORENLP_3_4_1_JAR
    command = ["java", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    lines = "\n".join(text.replace("\n", " ") for own in texts.values() for text in own)
    done = subprocess.run(command, input=lines.encode(), capture_output=True, check=True)
    found = iter(done.stdout.decode().split("\n"))
    dropped = set(package.PUNCTUATIONS)
    return {
        key: [" ".join(w for w in next(found).rstrip().split(" ") if w not in dropped) for _ in own]
        for key, own in texts.items()
    }


def _plain_scores(people: dict[Id, list[str]], own: dict[Id, list[str]]) -> dict[str, float]:
    """The scores that need no Java."""
    bleu = optional("caption_scores", "pycocoevalcap.bleu.bleu", "captions").Bleu(4)
    rouge = optional("caption_scores", "pycocoevalcap.rouge.rouge", "captions").Rouge()
    cider = optional("caption_scores", "pycocoevalcap.cider.cider", "captions").Cider()
    by_length = bleu.compute_score(people, own, verbose=0)[0]
    values = {f"bleu-{n}": float(score) for n, score in enumerate(by_length, 1)}
    values["rouge-l"] = float(rouge.compute_score(people, own)[0])
    values["cider-d"] = float(cider.compute_score(people, own)[0])
    return values


def _meteor(people: dict[Id, list[str]], own: dict[Id, list[str]]) -> float:
    scorer = optional("caption_scores", "pycocoevalcap.meteor.meteor", "captions").Meteor()
    try:
        return float(scorer.compute_score(people, own)[0])
    finally:
        # its own end leaves the pipes open
        for pipe in (scorer.meteor_p.stdout, scorer.meteor_p.stderr):
            pipe.close()


@dataclass
class CaptionQuality:
    """Captions of a split against what people wrote and against the things in the pictures.

    Names: those of `CaptionScores`; "ptb tokenizer", 1 when they were made with it and 0 with the plain one; "rep", see
    `repetition_score`; "words", the mean length; "distinct-1" and "distinct-2", see `distinct_share`; "mentioned", the
    share of the things in the pictures that their captions mention, where things are known. The last ones always use
    the plain tokenizer.

    Args:
        java, spice: as in `caption_scores`; without Java by default, to be quick while a model is trained.

    >>> quality = CaptionQuality()
    >>> people, things = [["A red star."], ["A blue disc."]], [[("star",)], [("disc",)]]
    >>> quality.update([1, 2], ["a red star", "a disc"], people, things)
    >>> result = quality.compute()
    >>> result["words"], result["mentioned"], result["ptb tokenizer"]
    (2.5, 1.0, 0.0)
    """

    java: bool | None = False
    spice: bool = False
    rows: dict[Id, tuple[str, list[str], list[list[str]]]] = field(default_factory=dict)

    def update(
        self,
        ids: Sequence[Id],
        captions: Sequence[str],
        references: Sequence[Sequence[str]],
        things: Sequence[Sequence[Sequence[str]]] | None = None,
    ) -> None:
        """Add the captions of pictures, with their references and the names of the things in them."""
        known = [()] * len(ids) if things is None else things
        for key, caption, people, seen in zip(ids, captions, references, known, strict=True):
            if key in self.rows:
                raise DataError(f"CaptionQuality: expected one caption a picture, got two for {key!r}; add each once")
            self.rows[key] = (caption, list(people), [list(names) for names in seen])

    def state(self) -> dict[str, Any]:
        """The captions, for another process."""
        return {"rows": [[key, *row] for key, row in self.rows.items()]}

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the `state` of another one."""
        for key, caption, people, things in state["rows"]:
            self.update([key], [caption], [people], [things])

    def compute(self) -> dict[str, float]:
        """The numbers by name; none without captions."""
        if not self.rows:
            return {}
        rows = dict(sorted(self.rows.items(), key=lambda row: str(row[0])))
        captions, people = {k: row[0] for k, row in rows.items()}, {k: row[1] for k, row in rows.items()}
        scores = caption_scores(captions, people, java=self.java, spice=self.spice)
        words = [tokenize(text) for text in captions.values()]
        numbers = {
            "rep": repetition_score(words, [[tokenize(text) for text in own] for own in people.values()]),
            "words": sum(map(len, words)) / len(words),
            "distinct-1": distinct_share(words, 1),
            "distinct-2": distinct_share(words, 2),
            "ptb tokenizer": float(scores.tokenizer == "ptb"),
        }
        things = [row[2] for row in rows.values()]
        count = sum(map(len, things))
        if count:
            numbers["mentioned"] = sum(map(mentioned, words, things)) / count
        return {**scores.values, **numbers}
