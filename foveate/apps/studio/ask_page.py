"""The page Ask: an image, a question, the answers, and the maps of several mechanisms on the same scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from typing import Any

import numpy as np
from torch import Tensor

from foveate.apps.studio import picker, widgets
from foveate.apps.studio.attention_maps import attend, scores_of
from foveate.apps.studio.cards import MapChoice, build_cards
from foveate.apps.studio.catalogue import PHOTOGRAPHS, RunCatalogue
from foveate.apps.studio.panels import draw_panels
from foveate.apps.studio.picker import ChosenImage, choose_example, read_question, read_upload
from foveate.apps.studio.share import IMAGE_NOTE, ask_code, build_restore, choice_fields, read_choice, share_html
from foveate.errors import DataError, FoveateError
from foveate.lab.data.samples import Question
from foveate.lab.tasks.vqa.predictor import Answer
from foveate.plot.canvas import heat_colours, on_paper
from foveate.watch import Look, look

TASK = "vqa"
FIRST = "3"  # the example that the page opens with, if there is no run for photographs
FIRST_PHOTO = picker.EXAMPLES + 4  # otherwise a motorcycle
QUESTIONS = 5  # suggested per example
SHOWN = ("softmax", "tvmax", "multimodal")
NO_RUN = (
    '<p class="fv-note">No run here was trained on {domain}. {run} was trained on {trained}: press “Ask” to see its '
    'answer all the same, but do not trust it. <a href="#search">Search</a> and <a href="#caption">Caption</a> have '
    "runs for photographs; <code>foveate train vqa-folder --data DIR</code> trains one on questions of your own.</p>"
)
# Of the kinds that the embedded run for photographs was trained on.
OWN_QUESTIONS = ("Is there a man?", "Is there a dog?", "What is the man wearing?", "What place is this?")
PHOTO_QUESTIONS = {FIRST_PHOTO: ("What vehicle is it?", "Is there a motorcycle?", "Is there a dog?")}
UNSURE = 0.3  # confidence below which the page says so


@dataclass(frozen=True, eq=False)
class AskView:
    """What one visitor sees.

    Attributes:
        image: that was chosen.
        run: that answers.
        question: that was asked.
        answer: of the run, None if the question could not be asked.
        scores, grid: of the run's attention.
        known: the question of the examples with its true answer and region, None if the truth is not known.
    """

    image: ChosenImage
    run: str
    question: str
    answer: Answer | None = None
    scores: Tensor | None = None
    grid: tuple[int, int] | None = None
    known: Question | None = None


def ask(catalogue: RunCatalogue, run: str, image: ChosenImage, question: Any) -> AskView:
    """Answer a question; raises DataError if it is empty or too long, UnknownName for a run that is not offered."""
    text = read_question(question)
    answer = catalogue.predictor(run).answer(image.pixels, text)
    attention = catalogue.scorer(run).answer(image.pixels, text).attention
    if not isinstance(attention.grid, tuple):
        raise DataError("ask: expected attention over a grid, got regions; choose another run")
    known = next((one for one in questions_of(image) if one.text == text), None)
    return AskView(image, run, text, answer, scores_of(attention), attention.grid, known)


def ask_first(catalogue: RunCatalogue, image: ChosenImage, run: str | None = None) -> AskView:
    """Ask the first suggested question, by the given run if it suits the image, or by the embedded one.

    Without such a run nothing is answered until a person asks.
    """
    question, usual = suggestions_for(image)[0], catalogue.usual_run(TASK, image.domain)
    if run is None or catalogue.domain(run) != image.domain:
        if usual is None:
            return AskView(image, run or str(catalogue.first_run(TASK, image.domain)), question)
        run = usual
    return ask(catalogue, run, image, question)


def first_image(catalogue: RunCatalogue) -> ChosenImage:
    """The image that the page opens with: a photograph, if there is a run for photographs."""
    has_photos = len(picker.example_images()) > FIRST_PHOTO
    if has_photos and catalogue.usual_run(TASK, PHOTOGRAPHS) is not None:
        return ChosenImage(picker.example_images()[FIRST_PHOTO], FIRST_PHOTO)
    return choose_example(FIRST)


def questions_of(image: ChosenImage) -> Sequence[Question]:
    """The questions of an example of Scenes; none for any other image."""
    data = picker.examples()
    is_known = image.example is not None and image.example < len(data.images)
    return data.questions_of(data.images[image.example].id) if is_known and image.example is not None else ()


def suggestions_for(image: ChosenImage) -> list[str]:
    """Questions to ask about an image."""
    own = list(dict.fromkeys(question.text for question in questions_of(image)))
    return own[:QUESTIONS] or list(PHOTO_QUESTIONS.get(image.example or 0, OWN_QUESTIONS))


def maps(view: AskView, choice: MapChoice) -> str:
    """The maps of several mechanisms on the scores of the answer; empty without one."""
    if view.scores is None or view.grid is None:
        return ""
    if not choice.names:
        return widgets.error_html("Choose at least one mechanism below.")
    attended = attend(view.scores, view.grid, choice.names, choice.knobs)
    return draw_panels(view.image.pixels, attended, _truth(view))


def look_again(catalogue: RunCatalogue, view: AskView) -> tuple[Look, list[tuple[float, ...]]] | None:
    """Where the run looked for its answer, and the boxes of the true region where they are known."""
    if view.answer is None:
        return None
    boxes = [] if view.known is None else [tuple(box) for box in view.known.boxes]
    return look(catalogue.predictor(view.run), view.image.pixels, view.question), boxes


def answer_html(view: AskView, catalogue: RunCatalogue) -> str:
    """The answer beside the true one, the confidence of the best answers, and the words that the model attended to."""
    found, trained = view.answer, catalogue.trained_on(view.run)
    if found is None:
        return NO_RUN.format(domain=view.image.domain, run=escape(view.run), trained=escape(trained))
    truth = None if view.known is None else view.known.answer
    colour = "" if truth is None else " fv-right" if truth == found.text else " fv-wrong"
    sign = "" if truth is None else " ✓" if truth == found.text else " ✗"
    verdict = _said(f"{view.run}, trained on {trained}, answers", found.text + sign, colour) + (
        "" if truth is None else _said("True answer", truth)
    )
    bars = "".join(
        f'<div class="fv-bar"><b>{escape(text)}</b><i style="width:{100 * value:.1f}%"></i>'
        f"<span>{100 * value:.1f} %</span></div>"
        for text, value in found.best[:4]
    )
    most = max([weight for _, weight in found.words] + [1e-9])
    words = "".join(
        f'<span style="background:{on_paper(heat_colours()(0.5 * weight / most))}">{escape(word)}</span>'
        for word, weight in found.words
    )
    warned = _warnings(view, found, catalogue.domain(view.run))
    return (
        f'<div class="fv-read"><div><div class="fv-verdict">{verdict}</div>{warned}'
        f'<div class="fv-words"><p class="fv-label">Words it read, darker for more attention</p>{words}</div></div>'
        f'<div class="fv-bars"><p class="fv-label">Confidence in each answer, judged by itself</p>{bars}</div></div>'
    )


def share(catalogue: RunCatalogue, view: AskView, choice: MapChoice) -> str:
    """The bar that shares the view."""
    link = {"example": view.image.mark, "question": view.question, "run": view.run, **choice_fields(choice)}
    name, softmax = catalogue.code_name(view.run), catalogue.attends_by_softmax(view.run)
    code = ask_code(view.image, view.question, name, choice, softmax=softmax)
    return share_html(link, code, note=IMAGE_NOTE if view.image.example is None else "")


def _said(label: str, text: str, kind: str = "") -> str:
    return f'<div><p class="fv-label">{escape(label)}</p><p class="fv-answer{kind}">{escape(text)}</p></div>'


def _warnings(view: AskView, found: Answer, domain: str) -> str:
    said = []
    if view.image.domain != domain:
        said.append(f"{view.run} was trained on {domain}, not on {view.image.domain}: do not trust this answer.")
    elif found.warning:
        said.append(found.warning[0].upper() + found.warning[1:] + ".")
    if found.confidence < UNSURE:
        said.append(f"It is unsure: its best answer has a confidence of {100 * found.confidence:.0f} %.")
    if found.unknown:
        said.append(f"Not in the vocabulary: {', '.join(found.unknown)}.")
    return "".join(f'<p class="fv-note">{escape(sentence)}</p>' for sentence in said)


def _truth(view: AskView) -> np.ndarray | None:
    """The true region of the question, if it is known."""
    return None if view.known is None or view.known.region is None else view.known.region()


@dataclass(frozen=True)
class AskComponents:
    """The components of the page, in the order in which a view fills them."""

    view: Any
    strip: Any
    image: Any
    suggestions: Any
    question: Any
    answer: Any
    maps: Any
    share: Any
    run: Any

    def all(self) -> list[Any]:
        """As the outputs of an event."""
        return list(vars(self).values())


def build(gr: Any, catalogue: RunCatalogue) -> None:
    """Create the components of the page and connect their events; the page opens with a finished example."""
    first, choice = ask_first(catalogue, first_image(catalogue)), MapChoice(SHOWN)
    view = gr.State(first, time_to_live=3600)
    strip = picker.build_strip(gr, "ask", first.image.mark)
    with gr.Row(elem_classes="fv-row"):
        with gr.Column(scale=1, min_width=220, elem_classes="fv-narrow"):
            image = gr.HTML(widgets.chosen_image(first.image.pixels), elem_id="ask-image")
        with gr.Column(scale=4, min_width=320):
            with gr.Row(elem_classes="fv-question"):
                question = gr.Textbox(first.question, label="Question", max_lines=3, elem_id="ask-question", scale=4)
                run = gr.Dropdown(
                    catalogue.choices(TASK), value=first.run, label="Run that answers", elem_id="ask-run", scale=3
                )
                button = gr.Button("Ask", variant="primary", elem_id="ask-button", scale=1, min_width=90)
            chips = gr.HTML(
                widgets.chips(suggestions_for(first.image), first.question),
                js_on_load=widgets.PICK,
                elem_id="ask-suggestions",
            )
            answer = gr.HTML(answer_html(first, catalogue), elem_id="ask-answer")
    panels = gr.HTML(maps(first, choice), elem_id="ask-maps")
    bar = gr.HTML(share(catalogue, first, choice), elem_id="ask-share")
    widgets.build_believe(gr, "ask", view, partial(look_again, catalogue))
    with gr.Accordion("Mechanisms and their options", open=False, elem_id="ask-controls"):
        gr.HTML('<p class="fv-note">Every map above is made from the same scores of the same run.</p>')
        cards = build_cards(gr, "ask", choice)
    parts = AskComponents(view, strip, image, chips, question, answer, panels, bar, run)
    _connect(gr, catalogue, parts, cards, button)


def _connect(gr: Any, catalogue: RunCatalogue, parts: AskComponents, cards: Any, button: Any) -> None:
    """Every event makes a new view and shows all of it; turning an option only redraws the maps."""

    def show(view: AskView, choice: MapChoice) -> tuple[Any, ...]:
        return (
            view,
            picker.strip_value(view.image.mark),
            widgets.chosen_image(view.image.pixels),
            widgets.chips(suggestions_for(view.image), view.question),
            view.question,
            answer_html(view, catalogue),
            maps(view, choice),
            share(catalogue, view, choice),
            view.run,
        )

    def on_image(choose: Any, seen: AskView, cards_value: str, content: Any) -> tuple[Any, ...]:
        try:
            return show(ask_first(catalogue, choose(content), seen.run), MapChoice.from_json(cards_value))
        except FoveateError as error:
            return (gr.skip(), picker.strip_value(seen.image.mark, error), *[gr.skip()] * 7)

    def on_ask(seen: AskView, cards_value: str, run: str, text: Any) -> tuple[Any, ...]:
        try:
            return show(ask(catalogue, run, seen.image, text), MapChoice.from_json(cards_value))
        except FoveateError as error:
            blank = replace(seen, answer=None, scores=None)
            return (blank, *[gr.skip()] * 4, widgets.error_html(error), "", "", gr.skip())

    def on_turn(seen: AskView, cards_value: str) -> tuple[str, str]:
        choice = MapChoice.from_json(cards_value)
        return maps(seen, choice), share(catalogue, seen, choice) if seen.answer else ""

    def on_restore(fields: dict[str, str]) -> tuple[Any, ...]:
        choice = read_choice(fields, SHOWN)
        try:
            image = choose_example(fields.get("example", FIRST) if fields.get("example") != picker.OWN else FIRST)
            run = fields.get("run") or catalogue.usual_run(TASK, image.domain)
            view = ask(catalogue, run, image, fields.get("question")) if run else ask_first(catalogue, image)
            return (choice.to_json(), *show(view, choice))
        except FoveateError as error:
            return (choice.to_json(), *[gr.skip()] * 5, widgets.error_html(error), *[gr.skip()] * 3)

    private = {"api_visibility": "private"}
    state = [parts.view, cards]
    upload = widgets.on_event_with(gr, "address", lambda *a: on_image(lambda x: ChosenImage(read_upload(x)), *a))
    parts.strip.select(
        widgets.on_event_with(gr, "pick", lambda *a: on_image(choose_example, *a)), state, parts.all(), **private
    )
    parts.strip.upload(upload, state, parts.all(), **private)
    asked = [parts.view, cards, parts.run]
    parts.suggestions.select(widgets.on_event_with(gr, "pick", on_ask), asked, parts.all(), **private)
    for event in (button.click, parts.question.submit, parts.run.input):
        event(on_ask, [*asked, parts.question], parts.all(), **private)
    cards.change(
        on_turn, state, [parts.maps, parts.share], trigger_mode="always_last", show_progress="hidden", **private
    )
    build_restore(gr, "ask", on_restore, [cards, *parts.all()])
