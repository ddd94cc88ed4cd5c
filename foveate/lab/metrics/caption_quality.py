"""Quality of captions against human references, by the evaluation code that published numbers are computed with.

The scores are those of `pycocoevalcap` (extra `captions`). Its METEOR, SPICE and PTB tokenizer are Java programs.
Without the package there is CIDEr-D alone, computed by our own code, which gives the same numbers.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from foveate.errors import DataError, FoveateError
from foveate.lab.data.samples import Id
from foveate.lab.data.vocabulary import tokenize
from foveate.lab.metrics.repetition import count_mentions, distinct_fraction, repetition_score
from foveate.metrics.means import ExampleValues
from foveate.registry import optional

Words = Sequence[str]
Ngram = tuple[str, ...]
LONGEST, SIGMA = 4, 6.0


@dataclass(frozen=True)
class CiderD:
    """CIDEr-D with the idf of a set of references, usually those of the training images.

    10 / 4 Σ_n mean_r [Σ_g min(h_g, r_g) r_g / (‖h‖ ‖r‖)] exp(−(|h| − |r|)² / 2σ²)

    where h and r are the tf-idf vectors of the n-grams of a caption and a reference, σ = 6 and |·| is the length.

    Attributes:
        images: number of images.
        counts: in how many of them each n-gram occurs.

    Reference: Vedantam et al. 2015, §5; the numbers are those of `pycocoevalcap`.

    >>> references = [[["a", "red", "star"]], [["a", "blue", "disc"]]]
    >>> rate = CiderD.from_references(references)
    >>> rate(["a", "red", "star"], references[0]) > rate(["a", "blue", "star"], references[0])
    True
    """

    images: int
    counts: Counter[Ngram]

    @classmethod
    def from_references(cls, references: Iterable[Sequence[Words]]) -> CiderD:
        """The idf of the references of many images."""
        counts: Counter[Ngram] = Counter()
        images = 0
        for own in references:
            counts.update({gram for words in own for grams in _ngrams(words) for gram in grams})
            images += 1
        return cls(images, counts)

    def __call__(self, caption: Words, references: Sequence[Words]) -> float:
        """CIDEr-D of one caption against the references of its image."""
        hypothesis = self._vectors(caption)
        total = 0.0
        for reference in references:
            others = self._vectors(reference)
            penalty = math.exp(-((len(caption) - len(reference)) ** 2) / (2 * SIGMA**2))
            total += penalty * sum(map(_similarity, hypothesis, others))
        return 10 * total / (LONGEST * max(1, len(references)))

    def _vectors(self, words: Words) -> list[dict[Ngram, float]]:
        """The tf-idf of the n-grams of each length."""
        log_images = math.log(max(1, self.images))
        return [
            {gram: count * (log_images - math.log(max(1, self.counts[gram]))) for gram, count in grams.items()}
            for grams in _ngrams(words)
        ]


def _similarity(hypothesis: dict[Ngram, float], reference: dict[Ngram, float]) -> float:
    """Cosine with every entry of the hypothesis clipped to the reference; zero if one of them is."""
    lengths = math.sqrt(sum(x * x for x in hypothesis.values()) * sum(x * x for x in reference.values()))
    if not lengths:
        return 0.0
    return sum(min(x, reference[g]) * reference[g] for g, x in hypothesis.items() if g in reference) / lengths


def _ngrams(words: Words) -> list[Counter[Ngram]]:
    """The n-grams of 1 to 4 words with their counts."""
    return [Counter(zip(*(words[start:] for start in range(n)), strict=False)) for n in range(1, LONGEST + 1)]


Tokenizer = Literal["ptb", "plain"]
Texts = Mapping[Id, Sequence[str]]


@dataclass(frozen=True)
class CaptionScores:
    """Scores of the captions of a split.

    Attributes:
        values: by name: "bleu-1" to "bleu-4", "rouge-l", "cider-d", and "meteor" and "spice" if they were requested.
        each: "rouge-l" and "cider-d" of every caption, in the order of the captions.
        tokenizer: "ptb", the one of the evaluation server, or "plain", which is `foveate.lab.data.tokenize`.
    """

    values: Mapping[str, float]
    tokenizer: Tokenizer
    each: Mapping[str, Sequence[float]] = field(default_factory=dict)


def has_java() -> bool:
    """True if Java is installed, which METEOR, SPICE and the PTB tokenizer need."""
    return shutil.which("java") is not None


def has_package() -> bool:
    """True if `pycocoevalcap` is installed (extra `captions`)."""
    return find_spec("pycocoevalcap") is not None


def caption_scores(
    captions: Mapping[Id, str], references: Texts, *, java: bool | None = None, spice: bool = False
) -> CaptionScores:
    """BLEU, ROUGE-L and CIDEr-D of captions, and METEOR if Java is installed; without the extra, CIDEr-D alone.

    Args:
        captions: one text per image.
        references: the human captions of the same images.
        java: tokenize as the evaluation server does, and add METEOR; if None, depends on whether Java and the extra are
            installed.
        spice: add SPICE; it needs Java, downloads its models on first use, and takes minutes.

    Returns:
        The scores, and the tokenizer they were computed with. CIDEr-D weights words by their idf over the references
        of the given images, so that it is meaningful only for the whole split.

    Raises MissingExtra if `java` or `spice` is asked for and the package is not installed.

    >>> references = {1: ["A red star.", "One star."], 2: ["A green disc.", "The disc"]}
    >>> scores = caption_scores({1: "a red star", 2: "a blue disc"}, references, java=False)
    >>> scores.tokenizer, round(scores.values["bleu-1"], 3)
    ('plain', 0.833)
    """
    if not captions or captions.keys() != references.keys() or not all(references.values()):
        raise DataError(
            f"caption_scores: expected captions and references of the same images, got {len(captions)} captions and "
            f"{sum(map(bool, references.values()))} images with references; pass both for every image"
        )
    wanted = has_java() and has_package() if java is None else java
    if (wanted or spice) and not has_java():
        raise FoveateError(
            "caption_scores: expected the program java on the PATH, got none; install a Java runtime, or pass "
            "java=False and spice=False"
        )
    split = ptb_tokenize if wanted else plain_tokenize
    human, own = split(references), split({key: [text] for key, text in captions.items()})
    values, each = _plain_scores(human, own)
    if wanted:
        values["meteor"] = _meteor(human, own)
    if spice:
        scorer = optional("caption_scores", "pycocoevalcap.spice.spice", "captions").Spice()
        values["spice"] = float(scorer.compute_score(human, own)[0])
    return CaptionScores(values, "ptb" if wanted else "plain", each)


def plain_tokenize(texts: Texts) -> dict[Id, list[str]]:
    """Texts tokenized as for the models, with single spaces between words.

    >>> plain_tokenize({1: ["A T-shirt!"]})
    {1: ['a t shirt']}
    """
    return {key: [" ".join(tokenize(text)) for text in own] for key, own in texts.items()}


def ptb_tokenize(texts: Texts) -> dict[Id, list[str]]:
    """Texts tokenized as by the evaluation server: Penn Treebank rules, lower case, no punctuation; needs Java."""
    package = optional("caption_scores", "pycocoevalcap.tokenizer.ptbtokenizer", "captions")
    assert package.__file__ is not None
    # The package's own wrapper writes a temporary file next to itself, which an installed package may not allow.
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


def _plain_scores(
    human: dict[Id, list[str]], own: dict[Id, list[str]]
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The scores that do not need Java, and those of every caption."""
    if not has_package():
        rated = _own_cider(human, own)
        return {"cider-d": sum(rated) / len(rated)}, {"cider-d": rated}
    bleu = optional("caption_scores", "pycocoevalcap.bleu.bleu", "captions").Bleu(4)
    rouge = optional("caption_scores", "pycocoevalcap.rouge.rouge", "captions").Rouge()
    cider = optional("caption_scores", "pycocoevalcap.cider.cider", "captions").Cider()
    by_length = bleu.compute_score(human, own, verbose=0)[0]
    values = {f"bleu-{n}": float(score) for n, score in enumerate(by_length, 1)}
    each = {}
    for name, scorer in (("rouge-l", rouge), ("cider-d", cider)):
        mean, single = scorer.compute_score(human, own)
        values[name], each[name] = float(mean), [float(score) for score in single]
    return values, each


def _own_cider(human: dict[Id, list[str]], own: dict[Id, list[str]]) -> list[float]:
    """CIDEr-D of every caption, with the idf of these references."""
    references = {key: [text.split() for text in texts] for key, texts in human.items()}
    rate = CiderD.from_references(references.values())
    return [rate(texts[0].split(), references[key]) for key, texts in own.items()]


def _meteor(human: dict[Id, list[str]], own: dict[Id, list[str]]) -> float:
    scorer = optional("caption_scores", "pycocoevalcap.meteor.meteor", "captions").Meteor()
    try:
        return float(scorer.compute_score(human, own)[0])
    finally:
        # The scorer's own destructor leaves these pipes open.
        for pipe in (scorer.meteor_p.stdout, scorer.meteor_p.stderr):
            pipe.close()


@dataclass
class CaptionQuality:
    """Captions of a split against human references and against the objects in the images.

    Names: those of `CaptionScores`; "ptb tokenizer", 1 if they were computed with it and 0 with the plain one; "rep",
    see `repetition_score`; "words", the mean length; "distinct-1" and "distinct-2", see `distinct_fraction`;
    "mentioned", the fraction of the annotated objects that the captions mention, if objects are annotated. The scores
    from "rep" on always use the plain tokenizer.

    Args:
        java, spice: as in `caption_scores`; without Java by default, to be fast while a model is trained.

    >>> quality = CaptionQuality()
    >>> references, objects = [["A red star."], ["A blue disc."]], [[("star",)], [("disc",)]]
    >>> quality.update([1, 2], ["a red star", "a disc"], references, objects)
    >>> result = quality.compute()
    >>> result["words"], result["mentioned"], result["ptb tokenizer"]
    (2.5, 1.0, 0.0)
    """

    java: bool | None = False
    spice: bool = False
    rows: dict[Id, tuple[str, list[str], list[list[str]]]] = field(default_factory=dict)
    each: ExampleValues = field(default_factory=dict)

    def update(
        self,
        ids: Sequence[Id],
        captions: Sequence[str],
        references: Sequence[Sequence[str]],
        objects: Sequence[Sequence[Sequence[str]]] | None = None,
    ) -> None:
        """Add the captions of images, with their references and the names of the objects in them."""
        known = [()] * len(ids) if objects is None else objects
        for key, caption, human, present in zip(ids, captions, references, known, strict=True):
            if key in self.rows:
                raise DataError(f"CaptionQuality: expected one caption per image, got two for {key!r}; add each once")
            self.rows[key] = (caption, list(human), [list(names) for names in present])

    def examples(self) -> ExampleValues:
        """The values of single captions, by metric; known after `compute`."""
        return self.each

    def state(self) -> dict[str, Any]:
        """The captions added so far, as JSON values for another process."""
        return {"rows": [[key, *row] for key, row in self.rows.items()]}

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the `state` of another object."""
        for key, caption, human, objects in state["rows"]:
            self.update([key], [caption], [human], [objects])

    def compute(self) -> dict[str, float]:
        """The numbers by name; empty without captions."""
        if not self.rows:
            return {}
        # Sorted, so that sums of floats do not depend on the order in which processes were merged.
        rows = dict(sorted(self.rows.items(), key=lambda row: str(row[0])))
        captions, references = {k: row[0] for k, row in rows.items()}, {k: row[1] for k, row in rows.items()}
        scores = caption_scores(captions, references, java=self.java, spice=self.spice)
        words = [tokenize(text) for text in captions.values()]
        single = {**scores.each, "words": [float(len(own)) for own in words]}
        keys = [(str(key), str(key)) for key in rows]
        self.each = {name: dict(zip(keys, values, strict=True)) for name, values in single.items()}
        numbers = {
            "rep": repetition_score(words, [[tokenize(text) for text in own] for own in references.values()]),
            "words": sum(map(len, words)) / len(words),
            "distinct-1": distinct_fraction(words, 1),
            "distinct-2": distinct_fraction(words, 2),
            "ptb tokenizer": float(scores.tokenizer == "ptb"),
        }
        objects = [row[2] for row in rows.values()]
        count = sum(map(len, objects))
        if count:
            numbers["mentioned"] = sum(map(count_mentions, words, objects)) / count
        return {**scores.values, **numbers}
