"""`foveate evaluate-attention`: is a model's attention where it should be?"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.apps.cli.terminal import Directory, print_table, save_figure
from foveate.apps.report.page import html_cell, html_figure, html_page, html_table, html_text
from foveate.errors import DataError
from foveate.io import ProgressBar, write_json
from foveate.lab.data import DATASETS, Dataset
from foveate.lab.data.fixations import read_fixations
from foveate.lab.data.samples import DataDirectory
from foveate.plot.canvas import heat_colours
from foveate.registry import lookup
from foveate.watch import NEUTRAL, AttentionEvaluation, Maps, evaluate_attention, hub_source, open_model
from foveate.watch.cases import Case, Gaze
from foveate.watch.gaze_agreement import GAZE_MEASURES, evaluate_gaze
from foveate.watch.loading import keep_best_heads
from foveate.watch.measure import (
    FITS,
    MEASURES,
    PROMPT,
    SIZE,
    MapSource,
    MethodComparison,
    budget,
    compare_methods,
    head_effects,
    looker_with,
    lookers_of,
    mean_region,
)
from foveate.watch.prompts import reads_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

OWN, TRAIN, FIXATIONS = "folder", "train", "fixations"
QUESTION = "Where is the {task}?"
PAIRED = ("pointing", "mass", "auc")  # measures whose differences from the baselines are printed
TYPICAL = 5000  # training cases whose mean box map is a baseline


def evaluate(
    model: str,
    *,
    data: str = "scenes",
    root: Path | None = None,
    split: str | None = None,
    texts: str | None = None,
    limit: int = 200,
    measure: str = "mass",
    relative: bool = False,
    layers: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
    method: str | None = None,
    methods: tuple[str, ...] = (),
    faithful: bool = False,
    ways: tuple[str, ...] = ("pixels", "tokens"),
    steps: int = 10,
    effects: bool = False,
    prompt: str = PROMPT,
    question: str = QUESTION,
    out: Directory | None = None,
    allow_outside: bool = False,
) -> dict[str, Any]:
    """Measure whether a model attends to what a text is about, compared with maps that ignore the image.

    Args:
        model: a run of foveate (directory or name of an embedded one), a directory of a Hugging Face model, or its name
            on the Hub.
        data: scenes, flickr30k, vqa-hat or another dataset with boxes or human maps, a directory of images with
            lines of objects and boxes, or fixations: where people looked, in the files that root holds.
        root: directory of a dataset that is not embedded.
        split: the split to evaluate on; by default val, or all for a directory.
        texts: questions, phrases or objects; by default the first of them that the data have with boxes.
        limit: the largest number of texts.
        measure: metric that selects the heads on one half of the images: pointing, mass, precision, recall, f1, js or
            auc.
        relative: divide by the attention for a neutral prompt.
        layers: numbers of the layers to use, negative ones from the last; by default as in foveate look.
        heads: numbers of the heads to average; by default as in foveate look.
        method: attention, rollout, gradient or relevance; by default as in foveate look.
        methods: names of methods to compare by truth, faithfulness, time and memory, or all.
        faithful: measure whether the model uses what its map shows: the score of each word while more and more of what
            it attends to is taken away.
        ways: how it is taken away: pixels (blurred), tokens (masked from attention), kept (all other pixels), mean,
            road.
        steps: of taking away, from the whole image to nothing.
        effects: knock out every head, and rank heads by what it costs beside where they look.
        prompt: wraps a phrase for models that generate.
        question: asked about an image with fixations, {task} being what people were to find.
        out: directory for the report, its figure and the numbers as JSON.
        allow_outside: read images outside the directory of the data, where its files name any path.
    """
    options = {"layers": layers, "heads": heads, "method": method}
    if data == FIXATIONS:
        return against_gaze(model, root, split, limit, find_source(model, prompt, relative, **options), question, out)
    dataset = read_data(data, root, split, allow_outside)
    cases = find_cases(dataset, limit, texts)
    if effects:
        return knock_out(model, dataset, cases, prompt, out)
    if faithful or methods:
        options["relative_to"] = NEUTRAL if relative else None
        return believe(model, dataset, cases, methods, options, prompt, ways, steps, out)
    name, source = f"{dataset.name} {dataset.split}", find_source(model, prompt, relative, **options)
    found = evaluate_attention(model, name, source, cases, baselines=mean_map(data, root, dataset.split, texts))
    print_summary(found)
    if len(set(found.groups)) > 1 and found.heads.shape[1] * found.heads.shape[2] > 1:
        print_heads(found, measure)
        best = [(head.layer, head.head) for head in found.best_heads(measure)]
        keep_best_heads(model, best, f"{measure} on half of {len(found.groups)} texts of {name}")
        print("kept: foveate look --best reads these heads")
    if out is not None:
        write_report(found, measure, out)
    return {"model": model, "data": found.data, "texts": len(found.groups), "maps of": found.summary()}


def believe(
    model: str,
    dataset: Dataset,
    cases: list[Case],
    methods: tuple[str, ...],
    options: dict[str, Any],
    prompt: str,
    ways: tuple[str, ...],
    steps: int,
    out: Path | None,
) -> dict[str, Any]:
    """Compare methods of looking, or the chosen one with maps that ignore the image, by truth and by faithfulness."""
    network, processor = open_model(model)
    every = lookers_of(network, processor, prompt)
    first = next(iter(every))
    chosen = {name: value for name, value in options.items() if value is not None}
    lookers = {first: looker_with(network, processor, prompt, chosen) if chosen else every[first]}
    for name in every if "all" in methods else methods:
        lookers.setdefault(name, lookup("method of looking", name, every))
    fits = FITS if "all" in methods else ()
    most = budget(len(lookers) - 1 + len(fits), ways, steps)
    print(f"{len(cases)} texts; for each, at most {most} images per word pass through the model", file=sys.stderr)

    found = compare_methods(lookers, cases, fits=fits, ways=ways, steps=steps, progress=_shown)
    rows = found.rows()
    head = list(rows[0])
    size = f"{len(found.groups)} words about {len(set(found.groups))} images of {dataset.name} {dataset.split}"
    title = f"{size}; cost in {found.faithful.unit}; ± half of the 95 % interval"
    print_table(title, head, [[_cell(row[name]) for name in head] for row in rows])
    print(found.faithful.sentence())
    for name, why in found.failed.items():
        print(f"{name} was left out: {why}", file=sys.stderr)
    agreement = found.agreement() if len(found.names) > 2 else {}
    if agreement:
        print_table(
            "rank correlation with mass inside, over methods",
            list(agreement),
            [[f"{v:.2f}" for v in agreement.values()]],
        )
    if out is not None:
        write_faithful(model, found, title, out)
    return {"model": model, "data": size, "sentence": found.faithful.sentence(), "rows": rows, "agreement": agreement}


def knock_out(model: str, dataset: Dataset, cases: list[Case], prompt: str, out: Path | None) -> dict[str, Any]:
    """Rank heads by what knocking them out costs, and by where they look."""
    network, processor = open_model(model)
    looker = lookers_of(network, processor, prompt).get("all layers")
    if looker is None:
        raise DataError(
            f"evaluate-attention: expected a Hugging Face model for effects, got the run {model}; "
            "pass one, or --methods all for the run"
        )

    found = head_effects(looker, cases, progress=_shown)
    rows = {by: found.best(by) for by in ("effect", "grounding")}
    for by, best in rows.items():
        title = f"{dataset.name}: heads chosen by {by} on one half of the images, measured on the other ({found.unit})"
        print_table(title, list(best[0]), [[_number(value) for value in row.values()] for row in best])
    print(f"rank correlation of effect and grounding over heads: {found.agreement():.2f}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        save_figure(found.plot(), out / "effects.png")
        mean = {"effects": found.effects.mean(0).tolist(), "grounding": found.grounding.mean(0).tolist()}
        write_json(out / "effects.json", {"model": model, "layers": list(found.names), "unit": found.unit, **mean})
    return {"model": model, "texts": len(cases), "best": rows, "agreement": found.agreement()}


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _shown(several: Sequence[Case]) -> Iterator[Case]:
    with ProgressBar("evaluate-attention", len(several), unit="text") as bar:
        for case in several:
            yield case
            bar.update()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.0f}"
    return value if isinstance(value, str) else str(value.brief)


def write_faithful(model: str, found: MethodComparison, title: str, out: Path) -> None:
    """Write faithful.json, a figure per way, and faithful.html."""
    out.mkdir(parents=True, exist_ok=True)
    rows, faithful = found.rows(), found.faithful
    plain = [{k: v if isinstance(v, str | float) else [v.mean, v.low, v.high] for k, v in row.items()} for row in rows]
    write_json(out / "faithful.json", {"model": model, "methods": plain, **faithful.to_json(), "failed": found.failed})
    head = list(rows[0])
    parts = [
        html_text("h1", f"Should one believe the maps of {model}?"),
        html_text("p", faithful.sentence()),
        html_text("p", title, "soft"),
        html_table(
            [html_cell("th", name) for name in head],
            [[html_cell("td", _cell(row[name])) for name in head] for row in rows],
        ),
    ]
    for way in faithful.curves:
        figure = faithful.plot(way)
        save_figure(figure, out / f"faithful-{way}.png")
        parts.append(html_figure(figure, f"cost in {faithful.unit}, {way}"))
    (out / "faithful.html").write_text(html_page(f"Faithfulness of {model}", parts), encoding="utf-8")


def against_gaze(
    model: str, root: Path | None, split: str | None, limit: int, source: MapSource, question: str, out: Path | None
) -> dict[str, Any]:
    """Compare a model's maps with where people looked."""
    cases = read_fixations(root, split)[:limit]

    def maps_of(gaze: Gaze) -> Tensor:
        text = question.format(task=gaze.task)
        return source(gaze.image.pixels(), Case(gaze.image, text, is_question=True)).total

    found = evaluate_gaze(model, f"{FIXATIONS} of {root}", maps_of, cases)
    summary = found.summary()
    rows = [
        (name, *(scores[m].brief if m in scores else "" for m in GAZE_MEASURES)) for name, scores in summary.items()
    ]
    size = f"{len(cases)} cases, {len(set(found.groups))} images, {found.people:.1f} people per case"
    head = ("maps of", *GAZE_MEASURES)
    print_table(f"{size}; ± half of the 95 % interval; kl: lower is better", head, rows)
    numbers = {
        name: {measure: [one.mean, one.low, one.high] for measure, one in scores.items()}
        for name, scores in summary.items()
    }
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "gaze.json", {"model": model, "cases": len(cases), "maps of": numbers})
        table = html_table(
            [html_cell("th", name) for name in head],
            [
                [html_cell("td", name), *(html_cell("td", str(scores.get(m, ""))) for m in GAZE_MEASURES)]
                for name, scores in summary.items()
            ],
        )
        parts = [html_text("h1", f"Where {model} and people look"), html_text("p", size, "soft"), table]
        (out / "gaze.html").write_text(html_page(f"Gaze and {model}", parts), encoding="utf-8")
    return {"model": model, "data": found.data, "texts": len(cases), "maps of": summary}


def read_data(data: str, root: Path | None, split: str | None, allow_outside: bool = False) -> Dataset:
    """A dataset by name, or a directory of images with lines."""
    if Path(data).expanduser().is_dir():
        own = DataDirectory(Path(data).expanduser(), allow_outside=allow_outside)
        return DATASETS[OWN].read(own, split or "all")
    return lookup("dataset", data, DATASETS).read(DataDirectory(root, allow_outside=allow_outside), split or "val")


def mean_map(data: str, root: Path | None, split: str, texts: str | None) -> dict[str, Tensor]:
    """The mean box map of the training set, if there is one besides the split that is evaluated."""
    row = DATASETS.get(data)
    if row is None or TRAIN not in row.splits or split == TRAIN:
        return {}
    try:
        return {"mean of train": mean_region(find_cases(read_data(data, root, TRAIN), TYPICAL, texts))}
    except DataError:  # only the split that is evaluated is on this machine
        return {}


def find_source(model: str, prompt: str, relative: bool, **options: Any) -> MapSource:
    """Where the maps of a model come from: a run of ours, or a Hugging Face model with the options of `look`."""
    network, processor = open_model(model)
    chosen = {name: value for name, value in options.items() if value is not None}
    if processor is None:
        if relative or chosen:
            raise DataError(
                f"evaluate-attention: expected no choice of layers, heads or method for a run, got {sorted(chosen)}; "
                "leave them out"
            )
        return run_source(network)
    if not reads_text(network):
        print(f"{model} reads no text: the map of an image is the same for all of its texts", file=sys.stderr)
    return hub_source(network, processor, prompt, relative_to=NEUTRAL if relative else None, **chosen)


def run_source(predictor: Any) -> MapSource:
    """Maps of a run: of the answer to a question, or the mean over the words of a phrase in the caption it stands in.

    A captioner reads the caption up to each word of the phrase (teacher forcing). A text without a caption is read by
    itself.
    """
    call = next((name for name in ("answer", "look") if hasattr(predictor, name)), None)
    if call is None:
        raise DataError(
            f"evaluate-attention: expected a run that attends to images, got {type(predictor.task).__name__}; use a "
            "run of question answering, captioning or matching"
        )

    def maps(pixels: np.ndarray, case: Case) -> Maps:
        in_caption = call == "look" and case.caption is not None
        result = getattr(predictor, call)(pixels, case.caption if in_caption else case.text)
        rows = result.attention.map(*SIZE)[0]
        # A question has one map, a sentence one per word; words beyond what a model reads have none.
        own = rows[slice(*case.words)] if in_caption and len(rows[slice(*case.words)]) else rows
        total = own.reshape(-1, *SIZE).mean(0)
        return Maps(total, total[None, None], (call,))

    return maps


def print_summary(found: AttentionEvaluation) -> None:
    """Every measure of the model beside the baselines."""
    rows = [(name, *(scores[m].brief for m in MEASURES)) for name, scores in found.summary().items()]
    size = f"{len(found.groups)} texts about {len(set(found.groups))} images"
    title = f"{found.data}: {size}; ± half of the 95 % interval; js: lower is better"
    apart = [
        (name, *(f"{one.mean:+.3f} ({one.low:+.3f} … {one.high:+.3f})" for one in map(scores.__getitem__, PAIRED)))
        for name, scores in ((name, found.differences(name)) for name in found.baselines)
    ]
    print_table(title, ("maps of", *MEASURES), rows)
    print_table(
        "maps of the model minus those of a baseline on the same texts, 95 % intervals", ("minus", *PAIRED), apart
    )


def print_heads(found: AttentionEvaluation, measure: str) -> None:
    """The heads that ground best."""
    rows = [
        (f"{head.layer} head {head.head}", f"{head.chosen:.2f}", *(head.other[m].brief for m in MEASURES))
        for head in found.best_heads(measure)
    ]
    print_table(f"heads chosen by {measure} on one half, measured on the other", ("head", "chosen", *MEASURES), rows)


def draw_heads(found: AttentionEvaluation, measure: str) -> Figure:
    """A measure of every layer and head as an image."""
    from matplotlib.figure import Figure

    values = found.heads[..., MEASURES.index(measure)].mean(0)
    figure = Figure(figsize=(1.6 + 0.3 * values.shape[1], 1.2 + 0.3 * values.shape[0]), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(values.numpy(), cmap=heat_colours())
    axes.set(xlabel="head", ylabel="layer", title=measure)
    figure.colorbar(shown)
    return figure


def write_report(found: AttentionEvaluation, measure: str, out: Path) -> None:
    """Write metrics.json, heads.png and report.html."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "metrics.json", found.to_json(measure))
    figure = draw_heads(found, measure)
    save_figure(figure, out / "heads.png")
    head = [html_cell("th", name) for name in ("maps of", *MEASURES)]
    rows = [
        [html_cell("td", name), *(html_cell("td", str(scores[m])) for m in MEASURES)]
        for name, scores in found.summary().items()
    ]
    parts = [
        html_text("h1", f"Attention of {found.model}"),
        html_text("p", f"{len(found.groups)} texts about {len(set(found.groups))} images of {found.data}.", "soft"),
        html_table(head, rows),
        html_text("h2", f"{measure} of every layer and head"),
        html_figure(figure, f"{measure} of every layer and head"),
    ]
    (out / "report.html").write_text(html_page(f"Attention of {found.model}", parts), encoding="utf-8")


def find_cases(dataset: Dataset, limit: int | None = None, kind: str | None = None) -> list[Case]:
    """The cases of a dataset.

    Args:
        dataset: any; what has no place is skipped.
        limit: the largest number of cases, taken evenly from the whole dataset.
        kind: "questions" (with boxes or human maps), "phrases" (of captions, with boxes) or "objects"; None for the
            first of them that the dataset has.

    Raises DataError if nothing has a place.
    """
    if kind is not None:
        lookup("texts", kind, KINDS)
    kinds = KINDS.values() if kind is None else [KINDS[kind]]
    found = next((cases for cases in (list(read(dataset)) for read in kinds) if cases), [])
    if not found:
        raise DataError(
            f"evaluate-attention: expected questions, phrases or objects with boxes, or human maps, in {dataset.name} "
            f"{dataset.split}, got none; use scenes, flickr30k, vqa-hat, or a directory with lines of objects and boxes"
        )
    if limit is None or limit >= len(found):
        return found
    return [found[number * len(found) // limit] for number in range(limit)]


def _questions(dataset: Dataset) -> Iterator[Case]:
    for question in dataset.questions:
        if question.boxes or question.human_maps:
            maps = () if question.boxes else question.human_maps
            yield Case(dataset.image(question), question.text, question.boxes, maps, is_question=True)


def _phrases(dataset: Dataset) -> Iterator[Case]:
    for caption in dataset.captions:
        for phrase in caption.phrases:
            if phrase.boxes:
                text, span = " ".join(caption.words(phrase)), (phrase.start, phrase.stop)
                # Joined by spaces, the tokens of a caption are its tokens again, so that the positions hold.
                yield Case(dataset.image(caption), text, phrase.boxes, caption=" ".join(caption.tokens), words=span)


def _objects(dataset: Dataset) -> Iterator[Case]:
    for image in dataset.images:
        things = dataset.objects_of(image.id)
        for name in dict.fromkeys(thing.name for thing in things):
            yield Case(image, name, tuple(thing.box for thing in things if thing.name == name))


KINDS: dict[str, Callable[[Dataset], Iterator[Case]]] = {
    "questions": _questions,
    "phrases": _phrases,
    "objects": _objects,
}
