"""The qualitative figures of the papers: which models they show, on which examples, and how they are drawn.

A figure is drawn from the trainings of the paper (`data`), or from runs that need no data: the embedded ones, whose
attention is exchanged where the paper compares mechanisms, and small trainings on Scenes where the paper compares
trainings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from foveate.errors import DataError
from foveate.io import decode_image
from foveate.lab import hub
from foveate.lab.papers.tables.captioning_tables import CAPTIONING_TABLES
from foveate.lab.papers.tables.drawing import (
    AttentionStep,
    Shown,
    divergence,
    draw_captions,
    draw_maps,
    draw_steps,
    draw_words,
)
from foveate.lab.papers.tables.matching_tables import CCR, CCS, MATCHING_TABLES
from foveate.lab.papers.tables.published import COCO_IMAGES, FLICKR_IMAGES
from foveate.lab.papers.tables.run import Session, check_files, make_stores, train_all
from foveate.lab.papers.tables.table import PaperRow, PaperRun, Table
from foveate.lab.papers.tables.vqa_tables import CRITERIA, VQA_TABLES
from foveate.lab.train.recipe import train_recipe
from foveate.lab.train.weights import WEIGHTS
from foveate.ops.grid import cell_centres
from foveate.ops.mixture_fit import fit_mixture

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

    from foveate.lab.tasks.vqa.predictor import Answer

Kind = Literal["maps", "components", "captions", "words", "steps", "sentences", "images"]
SEARCHED = 96  # examples among which a figure chooses
MOST_COMPONENTS = 4


@dataclass(frozen=True)
class Panel:
    """A model in a figure.

    Attributes:
        title: as in the paper.
        paper: the paper's training.
        changes: fields of its evaluation.
        without_data: an embedded run, or a small training that needs no data.
        exchanged: fields of the evaluation of that run.
    """

    title: str
    paper: PaperRun
    changes: tuple[str, ...] = ()
    without_data: str | PaperRun = "scenes-vqa"
    exchanged: tuple[str, ...] = ()


@dataclass(frozen=True)
class PaperFigure:
    """A qualitative figure of a paper.

    Attributes:
        title: what it shows.
        reference: where it stands.
        kind: how it is drawn.
        panels: the models.
        table: whose files and features its trainings need.
        chooses: conditions on the example, the most important first; see `CONDITIONS`.
        columns: panels per row.
        original: whether the image alone is drawn first.
        human: whether the human attention map or true region is drawn last.
    """

    title: str
    reference: str
    kind: Kind
    panels: tuple[Panel, ...]
    table: Table
    chooses: tuple[str, ...] = ()
    columns: int = 4
    original: bool = False
    human: bool = False

    def session(self, name: str, root: Path | None, out: Path) -> Session:
        """The trainings of the paper behind the panels."""
        rows = tuple(PaperRow(one.title, (), (one.paper,), one.changes) for one in self.panels)
        files = (*self.table.files, FLICKR_IMAGES if self.table in MATCHING_TABLES.values() else COCO_IMAGES)
        return Session(name, replace(self.table, rows=rows, columns=(), files=files), root, out, rows)


@dataclass(frozen=True)
class Shot:
    """What a figure is drawn of.

    Attributes:
        image: as the models read it: a file, pixels or features.
        pixels: as it is drawn.
        text: a question or a sentence; for captions "".
        kind: of a question.
        answers: the right ones.
        truth: (H, W) region or human map, if known.
    """

    image: Any
    pixels: np.ndarray
    text: str = ""
    kind: str = ""
    answers: tuple[str, ...] = ()
    truth: torch.Tensor | None = None

    @property
    def boxes(self) -> torch.Tensor | None:
        """(N, 4) of regions, None for grids."""
        found = getattr(self.image, "boxes", None)
        return None if found is None else torch.as_tensor(found)


def _right(answer: Answer, case: Shot) -> bool:
    return answer.text in case.answers


def _used(answer: Answer) -> int:
    used = getattr(answer.attention.density, "components_used", None)
    return 1 if used is None else int(used[0])


Condition = Callable[[Sequence["Answer"], Shot], bool]
CONDITIONS: dict[str, Condition] = {
    "a question with yes or no": lambda answers, case: case.kind == "yes/no",
    "a counting question": lambda answers, case: case.kind == "number" and case.answers not in ((), ("0",)),
    "another question": lambda answers, case: case.kind == "other",
    "the first model is wrong": lambda answers, case: not _right(answers[0], case),
    "the first model is right": lambda answers, case: _right(answers[0], case),
    "the others are right": lambda answers, case: all(_right(one, case) for one in answers[1:]),
    "the others are wrong": lambda answers, case: not any(_right(one, case) for one in answers[1:]),
    "K* = 2": lambda answers, case: _used(answers[-1]) == 2,
    "K* = 3": lambda answers, case: _used(answers[-1]) == 3,
    "several components": lambda answers, case: _used(answers[-1]) > 1,
}

_EXCHANGE = "mechanism={}".format
_GRID = VQA_TABLES["000-table-2"]
_DISCRETE = Panel("discrete", PaperRun("vqa-mcan-vqa2-grid"))
_UNIMODAL = Panel(
    "unimodal continuous", PaperRun("vqa-mcan-vqa2-unimodal"), exchanged=(_EXCHANGE("continuous-softmax"),)
)
_MULTIMODAL = Panel("multimodal continuous", PaperRun("vqa-mcan-vqa2-multimodal"), exchanged=CRITERIA["ours"])
_THREE = (_DISCRETE, _UNIMODAL, _MULTIMODAL)
_MCAN = "vqa-mcan-vqa2"
_SOFT = Panel("2D continuous softmax", PaperRun(f"{_MCAN}-continuous"), exchanged=(_EXCHANGE("continuous-softmax"),))
_SPARSE = Panel(
    "2D continuous sparsemax", PaperRun(f"{_MCAN}-sparsemax"), exchanged=(_EXCHANGE("continuous-sparsemax"),)
)
_CHAPTER_4 = (Panel("discrete", PaperRun(_MCAN)), _SOFT, _SPARSE)
_CHAPTER_5 = (
    _SOFT,
    *(
        Panel(
            f"{k}-MCA",
            PaperRun(f"{_MCAN}-{k}-mca"),
            exchanged=(_EXCHANGE("k-mca"), f"mechanism_options.components={k}"),
        )
        for k in (2, 4)
    ),
    Panel(
        "test-MCA",
        PaperRun(f"{_MCAN}-continuous"),
        VQA_TABLES["001-table-6.3"].rows[-1].changes,
        exchanged=CRITERIA["ours"],
    ),
)
_SHORT = ("start=scenes-matching", "epochs=1", "settings.limit=1000", "lr=2e-4", "evaluate_every=1")
_SCAN = {
    "SCAN": (),
    "SCAN + CCR": (CCR, ("ccr=1",)),
    "SCAN + CCS": (CCS, ("ccs=0.5", "ccs.after=0")),
    "SCAN + CCR + CCS": ((*CCR, *CCS), ("ccr=1", "ccs=0.5", "ccs.after=0")),
}
_CONSTRAINED = tuple(
    Panel(
        name,
        PaperRun("matching-scan-flickr30k", tuple(field.format(half=16_995) for field in both[0]) if both else ()),
        MATCHING_TABLES["002-table-4"].rows[0].changes,
        without_data=PaperRun("matching-scan-scenes", (*_SHORT, *(both[1] if both else ()))),
    )
    for name, both in _SCAN.items()
)
_CAPTIONS = tuple(
    Panel(
        name,
        PaperRun(f"captioning-lstm-coco{end}"),
        without_data="scenes-captioning",
        exchanged=(_EXCHANGE(name.lower()), *options),
    )
    for name, end, options in (
        ("softmax", "", ()),
        ("sparsemax", "-sparsemax", ()),
        ("TVmax", "-tvmax", ("mechanism_options.smoothness=0.01",)),
    )
)
_RDAN = (Panel("r-DAN", PaperRun("vqa-rdan-vqa1"), without_data=PaperRun("vqa-rdan-scenes", ("epochs=2",))),)
_MDAN = (Panel("m-DAN", PaperRun("matching-mdan-flickr30k"), without_data="scenes-search"),)


def _of_000(number: int, title: str, *chooses: str, human: bool = False) -> PaperFigure:
    reference = f"Farinhas et al. 2021, figure {number}"
    return PaperFigure(title, reference, "maps", _THREE, _GRID, chooses, columns=4 if human else 3, human=human)


def _of_001(number: str, title: str, *chooses: str, mixtures: bool = False) -> PaperFigure:
    panels, table = (_CHAPTER_5 if mixtures else _CHAPTER_4), VQA_TABLES["001-table-6.4"]
    reference = f"Farinhas 2021, figure {number}"
    return PaperFigure(title, reference, "maps", panels, table, chooses, columns=2, original=not mixtures)


def _mixtures_of_000(number: int, *chooses: str) -> PaperFigure:
    title, reference = "mixtures of 1 to 4 components and the K* chosen", f"Farinhas et al. 2021, figure {number}"
    return PaperFigure(title, reference, "components", (_MULTIMODAL,), _GRID, chooses, columns=4)


def _of_003(number: int, title: str, columns: int) -> PaperFigure:
    reference = f"Martins et al. 2020, figure {number}"
    return PaperFigure(title, reference, "captions", _CAPTIONS, CAPTIONING_TABLES["003-figures"], columns=columns)


_SEVERAL = ("several components", "a counting question")
_MISTAKEN = "discrete attention is mistaken, an ellipse is not"
FIGURES: dict[str, PaperFigure] = {
    "000-figure-1": _of_000(1, "discrete, unimodal and multimodal attention", *_SEVERAL),
    "000-figure-2": _of_000(2, "a region of complex shape", "another question", "several components"),
    "000-figure-3": _mixtures_of_000(3, "K* = 3", "a counting question"),
    "000-figure-4": _mixtures_of_000(4, "K* = 2", "a counting question"),
    "000-figure-5": _of_000(5, "attention of models and people", "a question with yes or no", human=True),
    "000-figure-6": _of_000(6, "attention of models and people", "another question", human=True),
    "000-figure-7": _of_000(7, "attention of models and people", "a counting question", human=True),
    "001-figure-1.1": _of_001("1.1", _MISTAKEN, "the first model is wrong", "the others are right", "another question"),
    "001-figure-6.4": _of_001("6.4", _MISTAKEN, "the first model is wrong", "the others are right", "another question"),
    "001-figure-6.5": _of_001(
        "6.5",
        "diffuse discrete attention, a question with yes or no",
        *("a question with yes or no", "the first model is wrong", "the others are right"),
    ),
    "001-figure-6.6": _of_001(
        "6.6",
        "a failure of continuous attention: objects far apart",
        *("a counting question", "the first model is right", "the others are wrong"),
    ),
    "001-figure-6.7": _of_001(
        "6.7",
        "a small contiguous region",
        *("a counting question", "the first model is wrong", "the others are right"),
    ),
    "001-figure-6.8": _of_001(
        "6.8", "wide ellipses", "a counting question", "the first model is right", "the others are right"
    ),
    "001-figure-6.9": _of_001("6.9", "one ellipse and mixtures", "a counting question", "K* = 2", mixtures=True),
    "001-figure-6.10": _of_001("6.10", "one ellipse and mixtures", *_SEVERAL, mixtures=True),
    "001-figure-6.11": _of_001("6.11", "one ellipse and mixtures", "another question", mixtures=True),
    "002-figure-3": PaperFigure(
        "regions attended for words, with and without constraints",
        "Chen et al. 2021, figure 3",
        "words",
        _CONSTRAINED,
        MATCHING_TABLES["002-table-4"],
    ),
    "003-figure-1": _of_003(1, "captions with three output attentions", 5),
    "003-figure-3": _of_003(3, "captions with three output attentions", 5),
    "003-figure-4": _of_003(4, "captions word by word", 40),
    "003-figure-5": _of_003(5, "captions word by word", 40),
    "004-figure-5": PaperFigure(
        "steps of attention over image and question",
        "Nam et al. 2017, figure 5",
        "steps",
        _RDAN,
        VQA_TABLES["004-table-1"],
    ),
    "004-figure-6": PaperFigure(
        "sentences found for an image, with steps of attention",
        "Nam et al. 2017, figure 6",
        "sentences",
        _MDAN,
        MATCHING_TABLES["004-table-2"],
    ),
    "004-figure-7": PaperFigure(
        "images found for a sentence, with steps of attention",
        "Nam et al. 2017, figure 7",
        "images",
        _MDAN,
        MATCHING_TABLES["004-table-2"],
    ),
}
# The example of those figures that do not choose by its answers: two figures of one paper show different ones.
_EXAMPLE = {"003-figure-3": 1, "003-figure-5": 1}


@dataclass(frozen=True)
class FigureRequest:
    """What a figure is asked for.

    Attributes:
        root: directory of the data; None for embedded data, or images of one's own.
        out: directory of trainings.
        run: used for all panels instead of those of the figure.
        image, text: drawn instead of an example of the data.
        example: position of the example; None leaves the choice to the figure.
        tiny: train the paper's models on tiny files.
    """

    root: Path | None
    out: Path
    run: str | None = None
    image: Path | None = None
    text: str | None = None
    example: int | None = None
    tiny: bool = False


def make_figure(name: str, request: FigureRequest) -> tuple[Drawn, list[str]]:
    """Draw a figure, and say what it shows.

    Raises DataError where files are missing, and where text is needed with an image.
    """
    figure = FIGURES[name]
    models, root = _models(name, figure, request)
    return _DRAW[figure.kind](name, figure, models, replace(request, root=root))


def _models(name: str, figure: PaperFigure, request: FigureRequest) -> tuple[list[Any], Path | None]:
    """The loaded models of the panels, and the directory of the data they are shown on."""
    if request.run is not None or (request.root is None and not request.tiny):
        paths = [_without_data(panel, request) for panel in figure.panels]
        loaded = [hub.load(path, panel.exchanged) for path, panel in zip(paths, figure.panels, strict=True)]
        return loaded, request.root
    session = figure.session(name, request.root, request.out)
    if request.tiny:
        from foveate.lab.papers.tables.tiny_tables import prepare_tiny

        session = prepare_tiny(session)
    else:
        assert request.root is not None  # the first case is without data
        check_files(name, session.table, request.root)
        make_stores(session)
    train_all(session)
    loaded = [hub.load(session.run_directory(row.runs[0], 0), row.changes) for row in session.rows]
    return loaded, session.root


def _without_data(panel: Panel, request: FigureRequest) -> str:
    """The run of a panel: the one asked for, an embedded one, or a small training that is kept."""
    from foveate.lab.papers.tables.cost import recipe_of

    if request.run is not None or isinstance(panel.without_data, str):
        return request.run or str(panel.without_data)
    directory = request.out / panel.without_data.name
    if not (directory / WEIGHTS).is_file():
        train_recipe(recipe_of(panel.without_data), directory, resume=True)
    return str(directory)


def _own_case(request: FigureRequest, needs_text: bool) -> Shot | None:
    if request.image is None:
        return None
    if needs_text and not request.text:
        raise DataError("reproduce: expected --text beside --image, got none; pass the question or the sentence")
    return Shot(request.image, decode_image(request.image), request.text or "")


def _questions(predictor: Any, request: FigureRequest) -> list[Shot]:
    """The first questions of val, with what is known about where to look."""
    own = _own_case(request, needs_text=True)
    if own is not None:
        return [own]
    examples, cases = predictor.task.examples("val", request.root), []
    for number in range(len(examples)):
        example = examples[number]
        for place, question in enumerate(example.questions):
            truth = None
            if example.human_maps and example.human_maps[place]:
                truth = torch.stack(list(example.human_maps[place])).mean(0)
            elif example.region is not None and bool(example.region[place].any()):
                truth = example.region[place] >= 0.5 if bool((example.region[place] >= 0.5).any()) else None
            pixels = examples.data.image(question).pixels()
            right = (question.answer,) if question.answer else ()
            cases.append(Shot(example.image, pixels, question.text, str(question.answer_type), right, truth))
        if len(cases) >= SEARCHED + (request.example or 0):
            break
    return cases if request.example is None else [cases[request.example]]


def _choose(figure: PaperFigure, models: Sequence[Any], cases: Sequence[Shot]) -> tuple[Shot, list[Answer], list[str]]:
    """The example that meets most conditions, the first ones counting most; and in words what was chosen."""
    found = [model.answers([case.image for case in cases], [case.text for case in cases], top=3) for model in models]
    answers = [list(column) for column in zip(*found, strict=True)]
    met = [[CONDITIONS[name](own, case) for name in figure.chooses] for own, case in zip(answers, cases, strict=True)]
    best = max(range(len(cases)), key=lambda place: (met[place], -place))
    notes = []
    if len(cases) > 1:
        notes.append(f"question {best} of the first {len(cases)} of val; wanted: {'; '.join(figure.chooses) or 'any'}")
        notes += [
            f"no example where {name}" for name, holds in zip(figure.chooses, met[best], strict=True) if not holds
        ]
    return cases[best], answers[best], notes


def _draw_maps(name: str, figure: PaperFigure, models: list[Any], request: FigureRequest) -> tuple[Drawn, list[str]]:
    case, answers, notes = _choose(figure, models, _questions(models[0], request))
    panels = [Shown("image", None)] if figure.original else []
    for panel, answer in zip(figure.panels, answers, strict=True):
        js = "" if case.truth is None or not figure.human else f", JS {divergence(answer.attention, case.truth):.2f}"
        panels.append(Shown(f"{panel.title}: {answer.text}{js}", answer.attention))
    truth = case.truth if figure.human else None
    if figure.human and truth is None:
        notes.append("no human attention map or true region is known for this question")
    drawn = draw_maps(case.pixels, panels, columns=figure.columns, truth=truth, boxes=case.boxes, head=_head(case))
    return drawn, [case.text, *notes]


def _head(case: Shot) -> str:
    return f"{case.text}  ({', '.join(case.answers)})" if case.answers else case.text


def _draw_components(
    name: str, figure: PaperFigure, models: list[Any], request: FigureRequest
) -> tuple[Drawn, list[str]]:
    case, (answer, *_), notes = _choose(figure, models, _questions(models[0], request))
    seen, fit = answer.attention, models[0].task.settings.attention().fit
    assert seen.grid is not None  # continuous attention has one
    grid = seen.grid[0].tolist() if isinstance(seen.grid, torch.Tensor) else seen.grid
    options = {"floor": fit.floor, "likelihood": fit.likelihood, "background": fit.background, "start": fit.start}
    panels, chosen = [], _used(answer)
    for K in range(1, MOST_COMPONENTS + 1):
        density = fit_mixture(seen.weights, cell_centres(*grid), K, fit.iterations, 3, **options)
        title = f"K = {K}" + (" (chosen)" if chosen == K else "")
        panels.append(Shown(title, replace(seen, density=seen.density if chosen == K else density)))
    drawn = draw_maps(case.pixels, panels, columns=figure.columns, head=f"{_head(case)}  answer: {answer.text}")
    return drawn, [case.text, f"K* = {chosen}", *notes]


def _images(predictor: Any, request: FigureRequest, count: int) -> list[tuple[Shot, Any]]:
    """The first images of val, with their captions."""
    examples = predictor.task.examples("val", request.root)
    found: dict[Any, tuple[Shot, Any]] = {}
    for number in range(len(examples)):
        example = examples[number]
        image = examples.data.image(example.captions[0]) if example.captions else None
        if image is not None and image.id not in found:
            captions = examples.data.captions_of(image.id)
            found[image.id] = Shot(example.image, image.pixels(), captions[0].text), captions
        if len(found) >= count:
            break
    return list(found.values())


def _draw_captions(
    name: str, figure: PaperFigure, models: list[Any], request: FigureRequest
) -> tuple[Drawn, list[str]]:
    case = _own_case(request, needs_text=False)
    notes = []
    if case is None:
        place = _EXAMPLE.get(name, 0) if request.example is None else request.example
        case, notes = _images(models[0], request, place + 1)[-1][0], [f"image {place} of val"]
    written = {panel.title: model.caption(case.image) for panel, model in zip(figure.panels, models, strict=True)}
    words = {title: (one.words, one.attention) for title, one in written.items() if one.words}
    if not words:
        raise DataError(f"reproduce: expected words to draw for {name}, got empty captions; train the runs further")
    drawn = draw_captions(case.pixels, words, most=figure.columns)
    return drawn, [*(f"{title}: {one.text}" for title, one in written.items()), *notes]


def _draw_words(name: str, figure: PaperFigure, models: list[Any], request: FigureRequest) -> tuple[Drawn, list[str]]:
    case, notes, places = _own_case(request, needs_text=True), [], []
    if case is None:
        number = request.example or 0
        case, captions = _images(models[0], request, number + 1)[-1]
        notes.append(f"caption 0 of image {number} of val")
        places = [phrase.stop - 1 for phrase in captions[0].phrases]
    looks = {panel.title: model.look(case.image, case.text) for panel, model in zip(figure.panels, models, strict=True)}
    words = next(iter(looks.values())).words
    longest = sorted(range(len(words)), key=lambda place: -len(words[place]))
    chosen = sorted([place for place in (places or longest) if place < len(words)][:2])
    seen = {title: one.attention for title, one in looks.items()}
    drawn = draw_words(case.pixels, words, seen, chosen, case.boxes)
    return drawn, [" ".join(words), *notes]


def _draw_steps(name: str, figure: PaperFigure, models: list[Any], request: FigureRequest) -> tuple[Drawn, list[str]]:
    cases = _questions(models[0], request)
    chosen = _spread(cases, 4)
    answers = models[0].answers([case.image for case in chosen], [case.text for case in chosen])
    rows = [answer_steps(case.pixels, answer) for case, answer in zip(chosen, answers, strict=True)]
    head = "original image and question, then the steps of attention"
    return draw_steps(rows, head=head), [f"{case.text} {one.text}" for case, one in zip(chosen, answers, strict=True)]


def answer_steps(pixels: np.ndarray, answer: Answer) -> tuple[np.ndarray, list[str], list[AttentionStep], str]:
    """A row of `draw_steps` from an answer."""
    words = [word for word, _ in answer.words]
    steps = [AttentionStep(image, tuple(weight for _, weight in read)) for image, read in answer.steps]
    return pixels, words, steps, f"answer: {answer.text}"


def _spread(cases: Sequence[Shot], count: int) -> list[Shot]:
    """Cases of as many images and kinds as possible, in order."""
    chosen: list[Shot] = []
    for own in sorted(cases, key=lambda case: sum(case.kind == other.kind for other in cases)):
        if len(chosen) < count and all(own.image is not other.image for other in chosen):
            chosen.append(own)
    return chosen


def _draw_sentences(
    name: str, figure: PaperFigure, models: list[Any], request: FigureRequest
) -> tuple[Drawn, list[str]]:
    return _draw_ranked(models[0], request, sentences=True)


def _draw_images(name: str, figure: PaperFigure, models: list[Any], request: FigureRequest) -> tuple[Drawn, list[str]]:
    return _draw_ranked(models[0], request, sentences=False)


def _draw_ranked(model: Any, request: FigureRequest, *, sentences: bool) -> tuple[Drawn, list[str]]:
    """The two best sentences for an image, or the two best images for a sentence, among the first of val."""
    pool = _images(model, request, SEARCHED)
    number = request.example or 0
    texts = [caption.text for _, captions in pool for caption in captions]
    owner = [place for place, (_, captions) in enumerate(pool) for _ in captions]
    case = _own_case(request, needs_text=not sentences)
    rows: list[tuple[np.ndarray | None, Sequence[str], Sequence[AttentionStep], str]]
    if sentences:
        query, right = (pool[number][0], number) if case is None else (case, -1)
        best = model.match([query.image], texts)[0].topk(2).indices.tolist()
        rows = [(query.pixels, (), _image_steps(model, query.image), "the image")]
        rows += [(None, *_read_steps(model, texts[place]), _mark(owner[place] == right)) for place in best]
        notes = [texts[place] for place in best]
    else:
        text, right = (texts[number], owner[number]) if case is None else (case.text, -1)
        best = model.match([one.image for one, _ in pool], [text])[:, 0].topk(2).indices.tolist()
        rows = [(None, *_read_steps(model, text), "the sentence")]
        for place in best:
            found = pool[place][0]
            rows.append((found.pixels, (), _image_steps(model, found.image), _mark(place == right)))
        notes = [text]
    return draw_steps(rows), [*notes, f"ranked among {len(pool)} images of val"]


def _image_steps(model: Any, image: Any) -> list[AttentionStep]:
    return [AttentionStep(one) for one in model.encode_image([image]).attention]


def _read_steps(model: Any, text: str) -> tuple[tuple[str, ...], list[AttentionStep]]:
    words = tuple(model.task.settings.tokenize(text))
    weights = [one.weights[0, : len(words)].tolist() for one in model.encode_text([text]).attention]
    return words, [AttentionStep(None, tuple(own)) for own in weights]


def _mark(right: bool) -> str:
    return "(+) belongs together" if right else "(-) does not belong together"


_DRAW: Mapping[Kind, Callable[..., tuple[Any, list[str]]]] = {
    "maps": _draw_maps,
    "components": _draw_components,
    "captions": _draw_captions,
    "words": _draw_words,
    "steps": _draw_steps,
    "sentences": _draw_sentences,
    "images": _draw_images,
}
