"""What the numbers of runs are called, in which unit they are told, and which direction is good."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import mean, stdev


@dataclass(frozen=True)
class Measure:
    """How a number is told.

    Attributes:
        label: for people.
        unit: written after the label.
        better: "higher" or "lower"; None where neither is better.
        digits: after the point.
        factor: what the number is shown times; 100 shows a share in percent.
    """

    label: str
    unit: str = ""
    better: str | None = None
    digits: int = 2
    factor: float = 1.0

    def show(self, value: float) -> str:
        """One number.

        >>> Measure("accuracy", "%", digits=1, factor=100).show(0.8831)
        '88.3'
        """
        return f"{self.factor * value:.{self.digits}f}"

    def spread(self, values: Iterable[float]) -> str:
        """Mean and, of several, standard deviation; a dash for none.

        >>> Measure("accuracy", "%", digits=1, factor=100).spread([0.4, 0.6]), Measure("x").spread([])
        ('50.0 ± 14.1', '–')
        """
        known = [value for value in values if value is not None and math.isfinite(value)]
        if not known:
            return "–"
        return self.show(mean(known)) + (f" ± {self.show(stdev(known))}" if len(known) > 1 else "")


def share(label: str, better: str | None = None, digits: int = 1) -> Measure:
    """A share of one, told in percent."""
    return Measure(label, "%", better, digits, 100.0)


def recall(label: str) -> Measure:
    """A recall, which is in percent already."""
    return Measure(label, "%", "higher", 1)


STEP_TIME = "seconds a step"
MEASURES: Mapping[str, Measure] = {
    "accuracy": share("right answers", "higher"),
    "js": Measure("distance from the true region (JS)", "bits", "lower"),
    "spearman": Measure("rank correlation with the true region", "", "higher"),
    "mass": share("attention inside the true region", "higher"),
    "pointing": share("strongest place inside the true region", "higher"),
    "area": share("picture that gets any attention", digits=0),
    "entropy": Measure("entropy of the attention", "bits"),
    "regions": Measure("patches above the even share"),
    "components": Measure("components of the density"),
    "rsum": Measure("sum of the six recalls", "", "higher", 1),
    **{f"i2t_r{k}": recall(f"a caption of the picture among the first {k}") for k in (1, 5, 10)},
    **{f"t2i_r{k}": recall(f"the picture of a caption among the first {k}") for k in (1, 5, 10)},
    "attention_precision": share("attended places that are of the named thing", "higher"),
    "attention_recall": share("places of the named thing that are attended", "higher"),
    "attention_f1": share("both (F1)", "higher"),
    "cider-d": Measure("CIDEr-D", "", "higher", 3),
    **{f"bleu-{n}": share(f"BLEU-{n}", "higher") for n in (1, 2, 3, 4)},
    "rouge-l": share("ROUGE-L", "higher"),
    "meteor": share("METEOR", "higher"),
    "spice": share("SPICE", "higher"),
    "rep": Measure("repetition (REP)", "", "lower"),
    "words": Measure("words of a caption", digits=1),
    "js between words": Measure("distance between the maps of successive words (JS)", "bits"),
    "zero area": share("picture that gets no attention"),
    "mentioned": share("annotated objects that are mentioned", "higher"),
    STEP_TIME: Measure("time of a training step", "s", "lower", 3),
}
SUBSETS = {
    "yes/no": "yes or no",
    "number": "numbers",
    "other": "other",
    "two-distant": "two distant things",
    "small": "one small thing",
}
RIVALS = re.compile(r"(?P<name>.+?) of (?P<rival>uniform|centre|random|people)(?P<subset>/.*)?")


def measure_of(name: str) -> Measure:
    """How a number is told, by its name or that of the whole whose subset it is; unknown ones as they are.

    >>> measure_of("accuracy/two-distant").label, measure_of("bleu").label
    ('right answers: two distant things', 'bleu')
    """
    whole, _, subset = name.partition("/")
    if name in MEASURES or whole not in MEASURES:
        return MEASURES.get(name, Measure(name, digits=3))
    found = MEASURES[whole]
    return replace(found, label=f"{found.label}: {SUBSETS.get(subset, subset)}")


def split_rivals(names: Iterable[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The numbers of models, and for each kind of rival that knows nothing the name of its number by that of the model.

    >>> split_rivals(["js", "js of uniform", "js of uniform/small"])
    (['js'], {'uniform': {'js': 'js of uniform', 'js/small': 'js of uniform/small'}})
    """
    own: list[str] = []
    rivals: dict[str, dict[str, str]] = {}
    for name in names:
        found = RIVALS.fullmatch(name)
        if found is None:
            own.append(name)
        else:
            rivals.setdefault(found["rival"], {})[found["name"] + (found["subset"] or "")] = name
    return own, rivals
