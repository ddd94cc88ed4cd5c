"""What a table of a paper consists of: columns, rows with the trainings behind them, and the published files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: its heading in the paper.
        metric: name of the metric of ours.
        split: of the evaluation; "" for what is not measured on a split.
        scale: our metric times this is in the unit of the paper.
        relative: the metric divided by that of the first row.
    """

    name: str
    metric: str
    split: str = ""
    scale: float = 1.0
    relative: bool = False


@dataclass(frozen=True)
class PaperRun:
    """A training behind a row: a recipe, and the fields that differ from it."""

    recipe: str
    changes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its directory, without the seed.

        >>> PaperRun("matching-scan-coco", ("ccr=0.2",)).name
        'matching-scan-coco-ccr=0.2'
        """
        return "-".join([self.recipe, *self.changes]).replace("/", "_")


@dataclass(frozen=True)
class PaperRow:
    """A row of a table.

    Attributes:
        name: as in the paper.
        paper: the paper's numbers, one per column; None where it reports none.
        runs: the trainings; the scores of several are averaged.
        changes: fields that differ in the evaluation.
        quoted: True for a system of other authors, whose numbers the paper quotes: it has no training.
    """

    name: str
    paper: tuple[float | None, ...]
    runs: tuple[PaperRun, ...] = ()
    changes: tuple[str, ...] = ()
    quoted: bool = False


@dataclass(frozen=True)
class PublishedFile:
    """A file or directory that a publisher provides.

    Attributes:
        name: the publisher's.
        source: where it comes from.
        places: directories of the data in which it is looked for, in order.
        needed: False if the table is complete without it.
    """

    name: str
    source: str
    places: tuple[str, ...] = ("",)
    needed: bool = True

    def find(self, root: Path) -> Path | None:
        """The file below the directory of the data; None if it is not there."""
        return next((root / place / self.name for place in self.places if (root / place / self.name).exists()), None)


@dataclass(frozen=True)
class FeatureFile:
    """A feature store that the recipes read, and the published features or images it is made from.

    Attributes:
        store: path of the store below the directory of the data.
        made_from: what is converted.
        format: of published features, a row of `FORMATS`; or the name of an encoder that encodes images.
        split: name of the split in the published files, for formats that have one.
        size: side of the images in pixels, for an encoder.
        names: file of Karpathy with the names of the images, if the features have only numbers.
    """

    store: str
    made_from: PublishedFile
    format: str
    split: str | None = None
    size: int | None = None
    names: str | None = None

    @property
    def is_encoder(self) -> bool:
        """True if images are encoded, False if published features are converted."""
        return self.size is not None

    @property
    def command(self) -> str:
        """The command that makes the store by hand."""
        source = f"DATA/{self.made_from.name}"
        if self.is_encoder:
            return f"foveate extract {self.format} {source} DATA/{self.store} --size {self.size}"
        options = "".join(
            f" --{name} {value}"
            for name, value in (("split", self.split), ("names", self.names and f"DATA/{self.names}"))
            if value
        )
        return f"foveate import {self.format} {source} DATA/{self.store}{options}"


@dataclass(frozen=True)
class Table:
    """A table, or a set of figures, of one of the papers.

    Attributes:
        title: what it shows.
        reference: where it stands.
        columns, rows: as in the paper.
        files, features: what it needs.
        differs: what differs from the paper and why, one sentence each.
        kind: "runs" trains and evaluates; "ratings" also needs people; "measurement" measures without data.
        measure: of a measurement: the metrics by row, from the number of repetitions and the tolerance.
    """

    title: str
    reference: str
    columns: tuple[Column, ...]
    rows: tuple[PaperRow, ...]
    files: tuple[PublishedFile, ...] = ()
    features: tuple[FeatureFile, ...] = ()
    differs: tuple[str, ...] = ()
    kind: Literal["runs", "ratings", "measurement"] = "runs"
    measure: Callable[[int, float], Mapping[str, Mapping[str, float]]] | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of its columns, in order."""
        return tuple(dict.fromkeys(column.split for column in self.columns if column.split))

    def missing(self, root: Path) -> list[PublishedFile]:
        """The files that are not in a directory; published features are not needed if their store is there."""
        features = [one.made_from for one in self.features if not (root / one.store).is_file()]
        return [file for file in dict.fromkeys([*self.files, *features]) if file.needed and file.find(root) is None]

    def runs(self) -> Iterator[PaperRun]:
        """The trainings of all rows, each once."""
        yield from dict.fromkeys(run for row in self.rows for run in row.runs)
