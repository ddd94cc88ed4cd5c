"""Tasks as reports, the demo and the studio show them; each task keeps its own presentation in its package."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from foveate.attention import Attended
    from foveate.lab.data.samples import Dataset, ImageRecord


@dataclass(frozen=True)
class Measure:
    """The appearance of a metric in reports.

    Attributes:
        label: name shown to the reader.
        unit: written after the label.
        better: "higher" or "lower"; None if neither is better.
        digits: after the decimal point.
        factor: multiplies the number before it is shown; 100 shows a fraction in percent.
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
        """Mean and, for several numbers, standard deviation; a dash if there are none.

        >>> Measure("accuracy", "%", digits=1, factor=100).spread([0.4, 0.6]), Measure("x").spread([])
        ('50.0 ± 14.1', '–')
        """
        known = [value for value in values if value is not None and math.isfinite(value)]
        if not known:
            return "–"
        return self.show(mean(known)) + (f" ± {self.show(stdev(known))}" if len(known) > 1 else "")


def fraction(label: str, better: str | None = None, digits: int = 1) -> Measure:
    """A fraction of one, shown in percent."""
    return Measure(label, "%", better, digits, 100.0)


@dataclass(frozen=True)
class DrawnExample:
    """One example of a report.

    Attributes:
        title: the input: a question, a caption.
        below: what is known about it.
        alt: the figure in words.
        figure: the example for all runs.
    """

    title: str
    below: str
    alt: str
    figure: Figure


@dataclass(frozen=True)
class Rated:
    """The output of a run for an image, for people to rate.

    Attributes:
        prompt: what it was asked or shown besides the image; "" if nothing.
        text: what it wrote; "" if it writes nothing.
        words: each with an attention map.
        attention: of batch size one, with one query per word, or without query axis for a single word.
    """

    prompt: str
    text: str
    words: tuple[str, ...]
    attention: Attended


@dataclass(frozen=True)
class Presentation:
    """The contents of a report about the runs of a task.

    Attributes:
        headlines: the metrics of the short table, each with the head of its column.
        measures: how metrics are shown, by name; the others are shown as plain numbers.
        subsets: labels of the subsets of examples for which metrics are reported, by name.
        title, about: heading and introduction of the section with examples.
        draw: `draw(predictors, examples, count)` draws `count` examples of a split for all predictors, by their names.
        failures: metrics of single examples that choose the failures of a report: the examples with the worst mean of
            the first one over all runs; of equal ones, those with the worst of the next.
        draw_failures: `draw_failures(predictors, examples, ids)` draws the examples with these ids, which are the keys
            of the first metric of `failures`, like `draw`; None if failures are not drawn.
        rate: `rate(predictor, data, image)` is what people rate of a run on an image of a dataset; None if there is
            nothing to rate.
        rated_kind: what the text is called that a run writes about an image.
        commands: what can be done with a run, as pairs of purpose and command line; RUN stands for its directory.
    """

    headlines: Mapping[str, str]
    measures: Mapping[str, Measure] = field(default_factory=dict)
    subsets: Mapping[str, str] = field(default_factory=dict)
    title: str = "Examples"
    about: str = ""
    draw: Callable[[Mapping[str, Any], Any, int], Iterator[DrawnExample]] | None = None
    failures: Sequence[str] = ()
    draw_failures: Callable[[Mapping[str, Any], Any, Sequence[str]], Iterator[DrawnExample]] | None = None
    rate: Callable[[Any, Dataset, ImageRecord], Rated | None] | None = None
    rated_kind: str = "text"
    commands: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Demo:
    """The trainings that `foveate demo` runs for a task.

    Attributes:
        recipe: trains the model with --from-scratch.
        run: the embedded run that every mechanism starts from.
        mechanisms: compared by default.
        quick: compared with --quick.
    """

    recipe: str
    run: str
    mechanisms: tuple[str, ...]
    quick: tuple[str, ...]
