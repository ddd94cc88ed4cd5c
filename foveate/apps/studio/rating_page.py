"""The page on which people rate: one image at a time, what each run made of it, and where it looked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from html import escape
from pathlib import Path
from typing import Any

from foveate.apps.report.page import data_uri
from foveate.apps.studio.app import AT_ONCE, QUEUE, load_gradio, mount_page, serve_app
from foveate.apps.studio.widgets import error_html, on_event
from foveate.errors import DataError
from foveate.lab.papers.rating.rating_store import SCALE, RatingStore
from foveate.lab.papers.rating.study import Entry, Study

TITLE = "foveate rate"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# What the ends of the scale mean, by question.
ENDS = {"quality": ("wrong", "right and complete"), "relevance": ("looks elsewhere", "looks at it")}
CSS = """
.fr-sheet { max-width: 1080px; margin: 0 auto; } .fr-sheet h2 { font-size: 20px; margin: 18px 0 6px; }
.fr-top { display: flex; flex-wrap: wrap; gap: 6px 20px; align-items: baseline; justify-content: space-between; }
.fr-bar { display: inline-block; width: 160px; height: 8px; border-radius: 4px; margin-left: 8px;
  background: var(--border-color-primary); } .fr-bar i { display: block; height: 8px;
  border-radius: 4px; background: #0072b2; } .fr-code { font-family: ui-monospace, monospace; }
.fr-image img { max-width: 100%; width: 420px; border-radius: 4px; margin: 0; } .fr-prompt { font-size: 18px; }
.fr-entry { border: 1px solid var(--border-color-primary); border-radius: 8px; padding: 8px 14px 14px;
  margin: 14px 0; }
.fr-text { font-size: 18px; margin: 2px 0 8px; } .fr-words { display: flex; flex-wrap: wrap; gap: 14px 16px; }
.fr-word { width: 232px; margin: 0; } .fr-word img { width: 100%; border-radius: 4px; margin: 0; }
.fr-word figcaption { font-weight: 600; margin-bottom: 3px; }
.fr-sheet fieldset { border: 0; padding: 4px; margin: 4px 0 0; border-radius: 6px; min-width: 0; }
.fr-sheet legend { font-size: 14px; padding: 0; }
.fr-scale { display: flex; gap: 2px; } .fr-scale label { flex: 0 0 40px; height: 40px; display: flex;
  align-items: center; justify-content: center; gap: 3px; cursor: pointer; border-radius: 6px; font-size: 15px; }
.fr-scale label:has(input:checked) { background: #0072b2; color: #fff; }
.fr-scale label:has(input:focus-visible) { outline: 3px solid #56b4e9; }
.fr-scale input { position: absolute; opacity: 0; width: 1px; height: 1px; }
.fr-scale label { border: 1px solid var(--border-color-primary); position: relative; }
.fr-missing { background: #fde8dc; color: #10131a; }
.fr-ends { font-size: 12.5px; opacity: .75; display: flex; justify-content: space-between; width: 208px; }
.fr-send { font-size: 16px; padding: 10px 22px; border: 0; border-radius: 8px; background: #0072b2; color: #fff;
  cursor: pointer; } .fr-begin input { font-size: 16px; padding: 8px; border-radius: 6px;
  border: 1px solid var(--border-color-primary); margin-right: 8px; color: #10131a;
  background: #fff; } .fr-begin input::placeholder { color: #6b7280; }
.fv-error { border-left: 4px solid #d55e00; padding: 8px 12px; background: var(--background-fill-secondary); }
@media (max-width: 520px) { .fr-word { width: 100%; } .fr-image img { width: 100%; } .fr-entry { padding: 8px; } }
footer { display: none !important; }
"""
# One listener on the component itself, because its content is replaced with every image.
SEND = """
element.addEventListener('click', event => {
  if (event.target.closest('[data-begin]')) {
    trigger('select', { sent: { code: element.querySelector('input[name=code]').value.trim() } });
    return;
  }
  if (!event.target.closest('[data-send]')) return;
  const sheet = element.querySelector('[data-rater]'), answers = {};
  let first = null;
  sheet.querySelectorAll('fieldset').forEach(field => {
    const chosen = field.querySelector('input:checked');
    field.classList.toggle('fr-missing', !chosen);
    if (chosen) answers[field.dataset.question] = Number(chosen.value); else first = first || field;
  });
  const note = sheet.querySelector('[data-note]');
  if (first) {
    note.textContent = 'Please answer every question; the ones without an answer are marked.';
    first.scrollIntoView({ block: 'center' });
    first.querySelector('input').focus({ preventScroll: true });
    return;
  }
  note.textContent = '';
  // The next sheet reuses these inputs, and with them what is checked.
  sheet.querySelectorAll('input:checked').forEach(input => { input.checked = false; });
  trigger('select', { sent: { rater: sheet.dataset.rater, item: Number(sheet.dataset.item), answers } });
});
element.addEventListener('change', event => {
  const field = event.target.closest('fieldset');
  if (field) field.classList.remove('fr-missing');
});
watch('value', () => window.scrollTo(0, 0));
"""


def make_page(study: Study) -> Any:
    """The page as a `gradio.Blocks`."""
    gr, store = load_gradio(), RatingStore(study)
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as page:
        sheet = gr.HTML(begin_html(study), elem_id="rate-sheet", js_on_load=SEND)
        sheet.select(
            on_event(gr, "sent", lambda sent: answer(store, sent)),
            None,
            sheet,
            show_progress="hidden",
            api_visibility="private",
        )
    return page.queue(max_size=QUEUE, default_concurrency_limit=AT_ONCE, api_open=False)


def make_rating_app(study: Study) -> Any:
    """The page as an ASGI application, to be served behind the gate."""
    return mount_page(make_page(study), {}, css=CSS)


def serve_study(study: Study, *, host: str = "127.0.0.1", port: int | None = None, names: Collection[str] = ()) -> None:
    """Serve a study until it is interrupted; the arguments are those of `foveate.apps.studio.app.serve`."""
    serve_app(lambda: make_rating_app(study), TITLE, host=host, port=port, names=names)


def answer(store: RatingStore, sent: Any) -> str:
    """What the page shows after a message of a rater: the next image, the end, or what is wrong."""
    message = sent if isinstance(sent, Mapping) else {}
    try:
        if "code" in message:
            code = str(message["code"]).lower()
            if code and code not in store.raters():
                raise DataError(
                    f"rate: expected the code of an earlier visit, got {code!r:.20}; leave it empty to begin anew"
                )
            return sheet_html(store, code or store.new_rater())
        rater, item = str(message.get("rater", "")), message.get("item")
        if type(item) is not int or not 0 <= item < len(store.study.items):
            raise DataError("rate: expected the ratings of an image, got something else; reload the page")
        store.add(rater, item, _by_run(store.study, rater, item, message.get("answers")))
        return sheet_html(store, rater)
    except DataError as error:
        return error_html(error) + begin_html(store.study)


def _by_run(study: Study, rater: str, item: int, answers: Any) -> dict[str, int]:
    """Answers by letter of the page as answers by run."""
    runs = {letter: entry.run for letter, entry in zip(LETTERS, study.shuffled(rater, item), strict=False)}
    found = {}
    for name, value in answers.items() if isinstance(answers, Mapping) else ():
        letter, _, question = str(name).partition("/")
        found[f"{runs.get(letter, letter)}/{question}"] = value if type(value) is int else 0
    return found


def begin_html(study: Study) -> str:
    """The first sheet: what to do, and a field for the code of an earlier visit."""
    about = f"how good each {escape(study.kind)} is, and " if study.rates_text else ""
    return f"""<div class="fr-sheet fr-begin"><h1>Rate where models look</h1>
<p>You will see {len(study.items)} images. Several models, in an order that changes from image to image, looked at each
of them. Please rate {about}for each word shown whether the model looked at the right part of the image. Dark colours
mark where it looked most; where the image has its own colours, it did not look at all.</p>
<p>Nothing about you is stored, only your answers under a random code. With the code you can continue later.</p>
<p><input name="code" placeholder="code of an earlier visit" aria-label="code of an earlier visit" maxlength="8">
<button class="fr-send" type="button" data-begin>Begin</button></p></div>"""


def sheet_html(store: RatingStore, rater: str) -> str:
    """The next image of a rater, or thanks at the end."""
    study, item = store.study, store.next_item(rater)
    done = len(store.read(rater))
    if item is None:
        return f"""<div class="fr-sheet" id="rate-done"><h1>Thank you</h1>
<p>You have rated all {len(study.items)} images. You can close this page.</p></div>"""
    one = study.items[item]
    entries = "".join(
        _entry(study, letter, entry) for letter, entry in zip(LETTERS, study.shuffled(rater, item), strict=False)
    )
    prompt = f'<p class="fr-prompt">{escape(one.prompt)}</p>' if one.prompt else ""
    return f"""<div class="fr-sheet" data-rater="{escape(rater)}" data-item="{item}">
<div class="fr-top"><span>Image {done + 1} of {len(study.items)}
<span class="fr-bar"><i style="width:{100 * done / len(study.items):.0f}%"></i></span></span>
<span>your code to continue later: <span class="fr-code">{escape(rater)}</span></span></div>
<div class="fr-image"><img alt="the image" src="{_file(study, one.image)}"></div>{prompt}{entries}
<p data-note role="alert" style="color:#b3440e"></p>
<button class="fr-send" type="button" data-send>Save and continue</button></div>"""


def _entry(study: Study, letter: str, entry: Entry) -> str:
    quality = f"How good is this {escape(study.kind)}?"
    text = ""
    if entry.text:
        text = f'<p class="fr-text">{escape(entry.text)}</p>' + _scale(f"{letter}/quality", quality, "quality")
    words = "".join(
        f'<figure class="fr-word"><figcaption>{escape(word.word)}</figcaption>'
        f'<img alt="where it looked for {escape(word.word)}" src="{_file(study, word.map)}">'
        f"{_scale(f'{letter}/{place}', 'Does it look at the right place?', 'relevance')}</figure>"
        for place, word in enumerate(entry.words)
    )
    return f'<section class="fr-entry"><h2>{letter}</h2>{text}<div class="fr-words">{words}</div></section>'


def _scale(question: str, label: str, kind: str) -> str:
    choices = "".join(
        f'<label><input type="radio" name="{escape(question)}" value="{value}">{value}</label>' for value in SCALE
    )
    low, high = ENDS[kind]
    return (
        f'<fieldset data-question="{escape(question)}"><legend>{label}</legend><div class="fr-scale">{choices}</div>'
        f'<div class="fr-ends"><span>{low}</span><span>{high}</span></div></fieldset>'
    )


def _file(study: Study, name: str) -> str:
    """A JPEG of the study inside the page."""
    return data_uri(Path(study.directory, name).read_bytes(), "image/jpeg")
