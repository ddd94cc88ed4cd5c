"""Millions of captioned images: tar shards (WebDataset) or tables of Lance, read at random through a table of captions.

shards/train-00000.tar  train-00001.tar ...  val-00000.tar        or train/*.tar, val/*.tar
tables/train.lance  val.lance
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TypeVar, overload

import numpy as np

from foveate.errors import DataError
from foveate.io import ProgressBar, decode_image
from foveate.lab.data.caption_table import CaptionTable, Place, TableBuilder
from foveate.lab.data.files import IMAGE_SUFFIXES, need_directory
from foveate.lab.data.folder_files import MAX_LINE, rename_keys
from foveate.lab.data.image_sources import TAR, StoredImage
from foveate.lab.data.samples import Caption, Dataset, Id, ImageRecord, Question
from foveate.lab.data.vocabulary import tokenize
from foveate.registry import optional

SOURCE = "name the archives of a split train-*.tar or put them into train/, or write a table train.lance"
ALL, SPLITS = "all", ("train", "val", "test")
LANCE = ".lance"
ROWS = 8192  # of a table of Lance that are read together
Tokenize = Callable[[str], tuple[str, ...]]
T = TypeVar("T")


def read_shards(root: Path | None, split: str = "train") -> Dataset:
    """Read the captioned images of a split from tar archives or tables of Lance, without holding them in memory.

    A sample of an archive is the members of one name up to the first dot: an image (`0001.jpg`), and its caption in
    `0001.txt` or in the keys "caption", "captions" or "text" of `0001.json`, which may be a list. Archives are not
    compressed, so that an image is read by its place in the file. A table of Lance has the columns "image" (the bytes
    of an image file), "caption" (a text or a list of texts), and "name" or "id", if images have names.

    The first call reads all captions and writes a table of them to the directory (or to `FOVEATE_CACHE` if that cannot
    be written); the table is written again when an archive has changed.

    Args:
        root: directory with `{split}-*.tar`, `{split}.tar`, `{split}/**/*.tar` or `{split}.lance`.
        split: name of the split; "all" is all of train, val and test that there are.

    Returns:
        The dataset. The id of an image is the path of its archive below `root`, a slash and the name of the member, as
        `foveate extract` names it.

    >>> from io import BytesIO
    >>> from tempfile import TemporaryDirectory
    >>> from PIL import Image
    >>> def put(archive, name, content):
    ...     info = tarfile.TarInfo(name)
    ...     info.size = len(content)
    ...     archive.addfile(info, BytesIO(content))
    >>> image = BytesIO()
    >>> Image.new("RGB", (4, 2)).save(image, "png")
    >>> with TemporaryDirectory() as directory:
    ...     with tarfile.open(Path(directory, "train-0.tar"), "w") as archive:
    ...         put(archive, "0001.png", image.getvalue())
    ...         put(archive, "0001.txt", b"A black rectangle.")
    ...     data = read_shards(Path(directory), "train")
    ...     data.images[0].id, data.images[0].pixels().shape, data.captions[0].tokens
    ('train-0.tar/0001.png', (2, 4, 3), ('a', 'black', 'rectangle'))
    """
    root = need_directory("shards", root, SOURCE).resolve()
    files = [path for one in (SPLITS if split == ALL else (split,)) for path in _files(root, one)]
    if not files:
        raise DataError(f"shards: expected archives or tables of the split {split} in {root}, got none; {SOURCE}")
    table = _open_table(root, split, files)
    stored = Shards(root, table, tuple(files), len(table))
    return ShardedDataset("shards", split, stored.images, captions=stored.captions, shards=stored)


@dataclass(frozen=True)
class Shards:
    """The images and captions of a split, made when they are asked for.

    Attributes:
        root: the directory.
        table: of captions.
        files: archives and tables that the table refers to.
        count: how many images belong to the split, the first ones of the table.
        tokenize: how captions become tokens.
    """

    root: Path
    table: CaptionTable
    files: tuple[Path, ...]
    count: int
    tokenize: Tokenize = tokenize

    @property
    def images(self) -> Sequence[ImageRecord]:
        """All images."""
        return LazySequence(range(self.count), self.image)

    @property
    def captions(self) -> Sequence[Caption]:
        """All captions."""
        last = self.table.captions_of(self.count - 1).stop if self.count else 0
        return LazySequence(range(last), self.caption)

    def image(self, position: int) -> ImageRecord:
        """The image at a position."""
        file, offset, length = self.table.place(position)
        path = str(self.files[file])
        source = LanceImage(path, offset) if path.endswith(LANCE) else StoredImage(path, offset, length)
        return ImageRecord(self.table.name(position), source)

    def caption(self, number: int, image: str | None = None) -> Caption:
        """A caption by its number among all captions."""
        image = self.table.name(self.table.image_of(number)) if image is None else image
        text = self.table.caption(number)
        return Caption(f"{image}#{number}", image, text, self.tokenize(text))

    def find(self, name: Id) -> int | None:
        """The position of an image, None if it is not in the split."""
        found = self.table.find(str(name))
        return found if found is not None and found < self.count else None


class LazySequence(Sequence[T]):
    """A sequence whose items are made when they are asked for."""

    def __init__(self, numbers: range, make: Callable[[int], T]) -> None:
        self.numbers, self.make = numbers, make

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, number: int) -> T: ...

    @overload
    def __getitem__(self, number: slice) -> LazySequence[T]: ...

    def __getitem__(self, number: int | slice) -> T | LazySequence[T]:
        if isinstance(number, slice):
            return LazySequence(self.numbers[number], self.make)
        return self.make(self.numbers[number])


@dataclass(frozen=True)
class ShardedDataset(Dataset):
    """A dataset whose images and captions are read from `Shards` when they are asked for."""

    shards: Any = None

    def __post_init__(self) -> None:
        """Names were compared when the table was written."""

    def image(self, of: Question | Caption | Id) -> ImageRecord:
        """Return the image of a caption, or the image with an id."""
        name = of.image_id if isinstance(of, Question | Caption) else of
        found = self.shards.find(name)
        if found is None:
            raise DataError(
                f"{self.name} {self.split}: expected the id of one of its {len(self)} images, got {name!r}; "
                "search another split"
            )
        record: ImageRecord = self.shards.image(found)
        return record

    def captions_of(self, image_id: Id) -> tuple[Caption, ...]:
        """Return the captions of an image, in order."""
        found = self.shards.find(image_id)
        numbers = () if found is None else self.shards.table.captions_of(found)
        return tuple(self.shards.caption(number, str(image_id)) for number in numbers)

    def caption_counts(self) -> np.ndarray:
        """(N,) number of captions per image."""
        counts: np.ndarray = self.shards.table.counts()[: self.shards.count]
        return counts

    def first(self, count: int) -> Dataset:
        """Return the first `count` images and their captions."""
        return self._with(replace(self.shards, count=min(count, self.shards.count)))

    def of_images(self, split: str, images: Sequence[ImageRecord]) -> Dataset:
        """Return some of the images with their captions, in memory."""
        captions = tuple(caption for image in images for caption in self.captions_of(image.id))
        return Dataset(self.name, split, tuple(images), captions=captions)

    def retokenized(self, tokenize: Tokenize) -> Dataset:
        """Return the dataset with captions that are tokenized in another way."""
        return self._with(replace(self.shards, tokenize=tokenize))

    def fingerprint(self) -> str:
        """Return sixteen hexadecimal digits that change with any name or caption, and with how they are tokenized."""
        tokens = [caption.tokens for caption in self.captions[:100]]
        parts = [self.name, self.split, self.shards.count, self.shards.table.fingerprint, tokens]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _with(self, shards: Shards) -> Dataset:
        return replace(self, images=shards.images, captions=shards.captions, shards=shards)


@dataclass(frozen=True)
class LanceImage:
    """Loader of an image in a row of a table of Lance."""

    location: str
    row: int
    column: ClassVar[str] = "image"

    def __call__(self) -> np.ndarray:
        """The pixels (H, W, 3) uint8; raises DataError if they cannot be read."""
        rows = _lance_table(self.location, os.getpid()).take_offsets([self.row]).select([self.column]).to_arrow()
        return decode_image(rows[self.column][0].as_py())


@lru_cache(maxsize=8)
def _lance_table(location: str, process: int) -> Any:
    """The table, opened once per process: a connection does not survive a fork."""
    path = Path(location)
    lancedb = optional("shards", "lancedb", extra="scale")
    try:
        return lancedb.connect(str(path.parent)).open_table(path.name.removesuffix(LANCE))
    except (ValueError, RuntimeError, OSError) as error:
        raise DataError(f"shards: expected a table of Lance at {path}, got {error}; write it again") from None


def _files(root: Path, split: str) -> list[Path]:
    """The archives and tables of a split, sorted."""
    patterns = (f"{split}{TAR}", f"{split}-*{TAR}", f"{split}/**/*{TAR}", f"{split}{LANCE}", f"{split}-*{LANCE}")
    return sorted({path for pattern in patterns for path in root.glob(pattern) if not path.name.startswith(".")})


def _open_table(root: Path, split: str, files: Sequence[Path]) -> CaptionTable:
    """The table of captions of a split, written if there is none of these files as they are."""
    present = [[path.relative_to(root).as_posix(), *_state(path)] for path in files]
    places = [root / f".captions-{split}.safetensors"]
    cache = Path(os.environ.get("FOVEATE_CACHE", Path.home() / ".cache" / "foveate"))
    name = hashlib.sha256(f"{root} {split}".encode()).hexdigest()[:16]
    places.append(cache / f"captions-{name}.safetensors")
    for path in places:
        table = _known_table(path, present)
        if table is not None:
            return table
    path = places[0] if os.access(root, os.W_OK) else places[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    builder, skipped = TableBuilder(), Counter[str]()
    with ProgressBar(f"captions of {split}", len(files), unit="file") as bar:
        for number, file in enumerate(files):
            samples = _lance_samples(file, root) if file.suffix == LANCE else _tar_samples(file, root)
            for sample in samples:
                if isinstance(sample, str):
                    skipped[sample] += 1
                else:
                    builder.add(sample.name, sample.captions, Place(number, sample.offset, sample.length))
            bar.update(1)
    if not len(builder):
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "no samples"
        raise DataError(f"shards: expected captioned images in {files[0]} and others, got {reasons}; {SOURCE}")
    builder.write(path, {"files": present, "skipped": dict(skipped)})
    return CaptionTable(path)


def _known_table(path: Path, present: list[list[Any]]) -> CaptionTable | None:
    if not path.is_file():
        return None
    try:
        table = CaptionTable(path)
    except DataError:  # what is damaged is written again
        return None
    return table if table.notes.get("files") == present else None


def _state(path: Path) -> tuple[int, int]:
    """A state that changes with a file: size and time, or the version of a table."""
    if path.suffix == LANCE:
        table = _lance_table(str(path), os.getpid())
        return int(table.count_rows()), int(table.version)
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class Sample:
    """An image with its captions, and where its bytes are."""

    name: str
    captions: tuple[str, ...]
    offset: int
    length: int


def _tar_samples(path: Path, root: Path) -> Iterator[Sample | str]:
    """The samples of an archive, or why one is skipped."""
    archive_name = path.relative_to(root).as_posix()
    key, found = "", Members()
    try:
        with tarfile.open(path, "r:") as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # tarfile would keep every header in memory
                if not member.isfile():
                    continue
                own, suffix = _split_name(member.name)
                if own != key:
                    yield from found.sample(archive_name)
                    key, found = own, Members()
                found.add(archive, member, suffix)
            yield from found.sample(archive_name)
    except (tarfile.TarError, OSError) as error:
        raise DataError(
            f"shards: expected a tar archive without compression, got {path} ({error}); copy it again"
        ) from None


class Members:
    """The members of one sample."""

    def __init__(self) -> None:
        self.image: tarfile.TarInfo | None = None
        self.captions: tuple[str, ...] = ()
        self.text: str | None = None
        self.empty = True

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo, suffix: str) -> None:
        """Read a member if it has captions, and note it if it is the image."""
        self.empty = False
        if suffix in IMAGE_SUFFIXES and self.image is None:
            self.image = member
        elif suffix in (".txt", ".json"):
            # A header may claim any size; a text this long is no caption.
            file = archive.extractfile(member) if member.size <= MAX_LINE else None
            content = b"" if file is None else file.read()
            text = content.decode("utf-8", errors="replace")
            if suffix == ".txt":
                self.text = text
            else:
                self.captions = _captions(_json(text))

    def sample(self, archive: str) -> Iterator[Sample | str]:
        """The sample, or why it is skipped; nothing before the first member."""
        captions = self.captions or _captions({"caption": self.text})
        if self.empty:
            return
        if self.image is None:
            yield "without an image"
        elif not captions:
            yield "without a caption"
        else:
            yield Sample(f"{archive}/{self.image.name}", captions, self.image.offset_data, self.image.size)


def _split_name(name: str) -> tuple[str, str]:
    """The key of a sample, up to the first dot of the file's name, and the last suffix in lower case.

    >>> _split_name("part/0001.seg.JPG")
    ('part/0001', '.jpg')
    """
    path = PurePosixPath(name)
    return str(path.parent / path.name.partition(".")[0]), path.suffix.lower()


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _captions(record: dict[str, Any]) -> tuple[str, ...]:
    """The captions of a record without surrounding blanks; those without a word are left out."""
    found = rename_keys(record).get("caption")
    texts = found if isinstance(found, list) else [found]
    clean = (" ".join(text.split()) for text in texts if isinstance(text, str))
    return tuple(text.encode(errors="replace").decode() for text in clean if text)


def _lance_samples(path: Path, root: Path) -> Iterator[Sample | str]:
    """The samples of a table of Lance, or why one is skipped; images are not read."""
    table = _lance_table(str(path), os.getpid())
    columns = set(table.schema.names)
    if LanceImage.column not in columns or not columns & {"caption", "captions", "text"}:
        raise DataError(
            f"shards: expected the columns image and caption in {path}, got {', '.join(sorted(columns))}; rename them"
        )
    read = sorted(columns & {"caption", "captions", "text", "name", "id"})
    row, place = 0, path.relative_to(root).as_posix()
    for batch in table.search().select(read).limit(table.count_rows()).to_batches(ROWS):
        for record in batch.to_pylist():
            captions = _captions(record)
            name = record.get("name", record.get("id", row))
            yield Sample(f"{place}/{name}", captions, row, 0) if captions else "without a caption"
            row += 1
