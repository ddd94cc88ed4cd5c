"""Walks through the pages in a real browser; see conftest for what every walk must not do."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from foveate.apps.studio import PAGES
from tests.apps.browser.conftest import TOY


def open_page(page, name: str) -> None:
    page.locator(".fv-nav").get_by_role("link", name=name, exact=True).click()
    page.locator(f"#page-{name.lower()} .fv-about").wait_for()


def changed(page, selector: str, before: str) -> str:
    """What a component shows once it is no longer what it was."""
    page.wait_for_function("([w, old]) => document.querySelector(w).innerHTML !== old", arg=[inside(selector), before])
    return page.inner_html(inside(selector))


def inside(selector: str) -> str:
    """The value of a component, without the signs of work around it."""
    return f"{selector} .prose"


def shown(page, selector: str) -> str:
    return page.inner_html(inside(selector))


def panels(page, where: str) -> list[str]:
    return page.locator(f"{where} figcaption").all_inner_texts()


def click_word(page, words: str, maps: str) -> None:
    before = shown(page, maps)
    page.click(f"{words} button >> nth=1")
    changed(page, maps, before)


def ask(page, question: str) -> str:
    before = shown(page, "#ask-answer")
    page.fill("#ask-question textarea", question)
    page.click("#ask-button")
    return changed(page, "#ask-answer", before)


def png(**options) -> bytes:
    file = io.BytesIO()
    Image.new(options.get("mode", "RGB"), (60, 40), options.get("colour", "red")).save(file, "PNG")
    return file.getvalue()


def upload(page, data: bytes, name: str = "image.png", where: str = "ask") -> None:
    page.set_input_files(f"#{where}-examples input", {"name": name, "mimeType": "image/png", "buffer": data})


def marked(page, where: str = "ask") -> list[str]:
    return [one.get_attribute("data-pick") for one in page.locator(f"#{where}-examples [aria-pressed=true]").all()]


def slide(page, selector: str, value: float) -> None:
    """Move a slider of ours."""
    page.locator(selector).first.evaluate(
        "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })); }", value
    )


def test_every_page_opens_and_fits(page, keep):
    assert page.locator(".fv-nav a").all_inner_texts() == list(PAGES)
    for name, row in PAGES.items():
        link = page.locator(".fv-nav").get_by_role("link", name=name, exact=True)
        assert link.is_visible()
        open_page(page, name)
        page.get_by_text(row.about).wait_for()
        assert link.get_attribute("aria-current") == "page"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator(".fv-page:visible").count() == 1
        keep(page, f"{name.lower()}-page")


def test_the_page_opens_with_a_finished_example(page, keep):
    assert ", answers" in page.inner_text("#ask-answer")
    assert panels(page, "#ask-maps") == ["softmax", "tvmax", "multimodal"]
    before = shown(page, "#ask-answer")
    page.click("#ask-examples [data-pick='2']")
    changed(page, "#ask-answer", before)
    answer = page.locator("#ask-answer")
    assert "scenes-vqa, trained on Scenes, generated shapes, answers" in answer.inner_text()
    assert "True answer" in answer.inner_text()
    assert panels(page, "#ask-maps") == ["softmax", "tvmax", "multimodal"]
    assert page.locator("#ask-maps .fv-truth").count() == 3
    for box in page.locator("#ask-maps .fv-stack").all():
        assert box.bounding_box()["width"] >= 320
    assert page.locator("#ask-maps .fv-ramp").count() == 1
    assert page.locator("#ask-cards .fv-card").first.is_hidden()
    assert page.locator("#ask-maps").bounding_box()["y"] < page.locator("#ask-controls").bounding_box()["y"]
    keep(page, "ask")


def test_a_run_of_ones_own_answers_only_where_it_is_chosen(page):
    before = shown(page, "#ask-image")
    upload(page, png())
    changed(page, "#ask-image", before)
    assert TOY not in page.inner_text("#ask-answer")
    page.click("#ask-run input")
    before = shown(page, "#ask-answer")
    page.get_by_role("option", name=f"{TOY} · photographs").click()
    changed(page, "#ask-answer", before)
    assert f"{TOY}, trained on photographs (vqa-v2), answers" in page.inner_text("#ask-answer")


def test_models_opens_with_a_network_that_needs_no_download(page):
    pytest.importorskip("transformers")
    pytest.importorskip("onnx")
    open_page(page, "Models")
    page.locator("#models-maps .fv-panel").first.wait_for()
    assert "families are known" not in page.inner_text("#models-words")
    assert "What is in the image?" not in page.inner_text("#models-words")  # it reads no text


def test_the_painter_stays_in_view_on_a_wide_screen(page):
    open_page(page, "Explain")
    if page.viewport_size["width"] < 900:
        pytest.skip("a phone shows one column")
    page.locator("#explain-steps-view").scroll_into_view_if_needed()
    box = page.locator("#explain-paint").bounding_box()
    assert 0 <= box["y"] < page.viewport_size["height"] - 100


def test_results_fit(page):
    open_page(page, "Results")
    table = page.locator("#results-runs .fv-wide")
    assert table.evaluate("e => e.scrollWidth <= e.clientWidth + 1")


def test_programs_call_the_page(page):
    client = pytest.importorskip("gradio_client").Client(page.url.partition("#")[0], verbose=False)
    address = "data:image/png;base64," + base64.b64encode(png()).decode()
    found = client.predict(address, "Is there a star?", "scenes-vqa", api_name="/answer")
    assert found["trained_on"] == "Scenes, generated shapes"
    assert len(client.predict([address, address], "scenes-captioning", 1, api_name="/caption")) == 2
    with pytest.raises(Exception, match="expected an image, got something else"):
        client.predict("nonsense", "Is there a star?", "scenes-vqa", api_name="/answer")


def test_ask_from_example_to_options(page):
    before = shown(page, "#ask-maps")
    page.click("#ask-examples button >> nth=1")
    before = changed(page, "#ask-maps", before)
    assert marked(page) == ["1"]
    page.click("#ask-controls > button")
    slide(page, "#ask-cards [data-knob=smoothness]", 0.9)
    before = changed(page, "#ask-maps", before)
    page.locator("#ask-cards .fv-card[data-name=gfusedmax] input[type=checkbox]").check()
    changed(page, "#ask-maps", before)
    assert "gfusedmax" in panels(page, "#ask-maps")
    first = page.input_value("#ask-question textarea")
    page.click("#ask-suggestions button >> nth=-1")
    page.wait_for_function("old => document.querySelector('#ask-question textarea').value !== old", arg=first)


def test_ask_ones_own_question_about_ones_own_image(page):
    before = shown(page, "#ask-image")
    upload(page, png(mode="RGBA", colour=(200, 30, 30, 128)))
    changed(page, "#ask-image", before)
    assert marked(page) == []
    assert "photographs" in page.inner_text("#ask-answer")
    assert TOY not in page.inner_text("#ask-answer")
    assert "Not in the vocabulary: zebra" in ask(page, "What colour is the zebra?")
    assert page.locator("#ask-maps .fv-truth").count() == 0


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"this is no image", "cannot be decoded"),
        (png()[:60], "cannot be decoded"),
        (b"", "cannot be decoded"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "cannot be decoded"),
        (b"0" * 10_000_001, "at most 10 MB"),
    ],
)
def test_a_bad_upload_shows_a_sentence_and_keeps_the_view(page, data, sentence):
    before, chosen = shown(page, "#ask-image"), marked(page)
    upload(page, data)
    error = page.locator("#ask-examples .fv-error")
    error.get_by_text(sentence).wait_for()
    assert "BytesIO" not in error.inner_text()
    assert shown(page, "#ask-image") == before
    assert marked(page) == chosen
    page.click("#ask-examples button >> nth=2")  # and the studio goes on
    changed(page, "#ask-image", before)
    assert error.is_hidden()


def test_what_cannot_be_asked_shows_an_error(page):
    assert "expected a question, got none" in ask(page, "  ")
    assert "at most 300 characters, got 10000" in ask(page, "a" * 10_000)
    assert ", answers" in ask(page, "Is there a dog?")


def test_a_link_restores_the_view(page, browser):
    page.click("#ask-examples button >> nth=5")
    page.wait_for_function("document.querySelector('#ask-share .fv-share').dataset.link.includes('example=5')")
    page.click("#ask-controls > button")
    page.locator("#ask-cards .fv-card[data-name=sparsemax] input[type=checkbox]").check()
    page.locator("#ask-maps figcaption").get_by_text("sparsemax").wait_for()
    page.wait_for_function("document.querySelector('#ask-share .fv-share').dataset.link.includes('sparsemax')")
    page.click("#ask-share [data-share=link]")
    other = browser.new_page()
    other.goto(page.url)
    other.locator("#ask-maps figcaption").get_by_text("sparsemax").wait_for()
    assert other.locator("#ask-examples [aria-pressed=true]").get_attribute("data-pick") == "5"
    assert other.input_value("#ask-question textarea") == page.input_value("#ask-question textarea")
    other.close()


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<svg")])
def test_maps_are_saved(page, kind, start):
    with page.expect_download() as waiting:
        page.click(f"#ask-share [data-share={kind}]")
    data = waiting.value.path().read_bytes()
    assert data.startswith(start)
    assert len(data) > 20_000


def test_play_by_picking_painting_and_turning(page, keep):
    open_page(page, "Play")
    page.wait_for_selector("#play-maps .fv-panel")
    before = shown(page, "#play-maps")
    keep(page, "play")
    canvas = page.locator("#play-paint canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 220, box["y"] + 60)
    page.mouse.down()
    for step in range(6):
        page.mouse.move(box["x"] + 220 - 4 * step, box["y"] + 60 + 3 * step)
    page.mouse.up()
    before = changed(page, "#play-maps", before)
    page.get_by_label("Scores to begin with").click()
    page.get_by_role("option", name="ring").click()
    before = changed(page, "#play-maps", before)
    page.get_by_label("number input for Contrast (multiplies the scores)").fill("3")
    before = changed(page, "#play-maps", before)
    page.click("#play-controls > button")
    slide(page, "#play-cards [data-knob=components]", 2)
    changed(page, "#play-maps", before)
    assert len(panels(page, "#play-maps")) == 12


def test_paint_by_touch_and_lower_without_a_right_button(page):
    open_page(page, "Play")
    before = shown(page, "#play-maps")
    page.click("#play-paint [data-mode=lower]")
    page.locator("#play-paint canvas").tap(position={"x": 90, "y": 100})
    before = changed(page, "#play-maps", before)
    page.click("#play-paint [data-mode=clear]")
    changed(page, "#play-maps", before)


def test_a_caption_word_by_word(page, keep):
    open_page(page, "Caption")
    page.wait_for_selector("#caption-maps .fv-panel")
    assert "Log-probability" in page.inner_text("#caption-text")
    keep(page, "caption")
    assert page.locator("#caption-words .fv-stack").count() == page.locator("#caption-words button").count() > 3
    click_word(page, "#caption-words", "#caption-maps")
    assert panels(page, "#caption-maps")[0].startswith("2.")
    before = shown(page, "#caption-maps")
    page.keyboard.press("ArrowRight")
    changed(page, "#caption-maps", before)
    assert panels(page, "#caption-maps")[0].startswith("3.")
    pressed = page.locator("#caption-words [aria-pressed=true]")
    assert pressed.count() == 1
    assert pressed.inner_text().startswith("3.")
    assert page.locator("#caption-maps .fv-stack").bounding_box()["width"] >= 320
    upload(page, b"broken", where="caption")
    page.locator("#caption-examples").get_by_text("cannot be decoded").wait_for()


def test_search_by_text_and_by_image(page, keep):
    open_page(page, "Search")
    page.wait_for_selector("#search-hits .fv-panel")
    keep(page, "search")
    before = shown(page, "#search-hits")
    page.click("#search-controls > button")
    page.get_by_label("Search in").click()
    page.get_by_role("option", name="Scenes, 120 images").click()
    changed(page, "#search-hits", before)
    assert page.input_value("#search-text textarea") == "a large red circle"
    click_word(page, "#search-words", "#search-hits")
    page.fill("#search-text textarea", " ")
    page.click("#search-button")
    page.locator("#search-hits").get_by_text("expected a text, got none").wait_for()
    page.click("#search-reverse > button")
    page.click("#search-examples button >> nth=0")
    page.wait_for_selector("#search-captions td")


def test_search_ones_own_images(page):
    open_page(page, "Search")
    page.wait_for_selector("#search-hits .fv-panel")
    files = [{"name": "a.png", "mimeType": "image/png", "buffer": png(colour=colour)} for colour in ("red", "blue")]
    broken = {"name": "b.png", "mimeType": "image/png", "buffer": b"no image"}
    page.set_input_files("#search-own input", [*files, broken])
    page.wait_for_function("document.querySelectorAll('#search-hits .fv-hit').length === 2")
    page.locator("#search-own").get_by_text("2 images of yours, 1 left out").wait_for()
    page.set_input_files("#search-own input", [broken])
    page.locator("#search-own .fv-error").get_by_text("expected images that can be decoded").wait_for()
    assert page.locator("#search-hits .fv-hit").count() == 2


LINKS = {  # per page what is looked at, and where the picture of the view is
    "Caption": ("#caption-words button >> nth=1", "#caption-maps"),
    "Search": ("#search-queries button >> nth=1", "#search-hits"),
    "Compare": ("#compare-examples button >> nth=1", "#compare-view"),
    "Explain": ("#explain-presets button >> nth=-2", "#explain-together"),
    "Play": ("#play-paint [data-mode=clear]", "#play-maps"),
}


@pytest.mark.parametrize("name", list(LINKS))
def test_every_page_is_restored_and_saved(page, browser, name):
    click, place = LINKS[name]
    open_page(page, name)
    page.wait_for_selector(f"{place} .fv-panel")
    before = shown(page, place)
    link = page.get_attribute(f"#page-{name.lower()} .fv-share", "data-link")
    page.click(click)
    after = changed(page, place, before)
    page.wait_for_function(
        "([bar, old]) => document.querySelector(bar).dataset.link !== old",
        arg=[f"#page-{name.lower()} .fv-share", link],
    )
    page.click(f"#page-{name.lower()} [data-share=link]")
    other = browser.new_page(viewport=page.viewport_size)
    other.goto(page.url)
    other.wait_for_function(
        "([place, html]) => document.querySelector(place)?.innerHTML === html", arg=[inside(place), after]
    )
    other.close()
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<svg")):
        with page.expect_download() as waiting:
            page.click(f"#page-{name.lower()} [data-share={kind}]")
        assert waiting.value.path().read_bytes().startswith(start)


def test_results_show_reports_and_runs(page):
    open_page(page, "Results")
    page.frame_locator("#results-frame iframe").get_by_text("My report").wait_for()
    page.locator("#results-runs").get_by_text("scenes-vqa").wait_for()


def test_explain_by_moving_every_slider(page, keep):
    open_page(page, "Explain")
    keep(page, "explain")
    moves = {
        "threshold": ("alpha", 1.5),
        "fusing": ("smoothness", 0.4),
        "gaussian": ("count", 3),
        "steps": ("step", 12),
        "choice": ("penalty", 1.0),
    }
    for name, (knob, value) in moves.items():
        task = page.locator(f"#explain-{name}-view .fv-task")
        assert task.get_attribute("data-done") == "false"
        slide(page, f"#explain-{name}-knobs [data-knob={knob}]", value)
        page.locator(f"#explain-{name}-view .fv-task[data-done=true]").wait_for()
    before = shown(page, "#explain-steps-view")
    page.locator("#explain-presets").get_by_role("button", name="ring").click()
    changed(page, "#explain-steps-view", before)


def test_compare_wipes_between_two_maps(page, keep):
    open_page(page, "Compare")
    keep(page, "compare")
    cut = page.locator("#compare-view .fv-cut")
    before = cut.bounding_box() and cut.evaluate("e => e.style.clipPath")
    slide(page, "#compare-view .fv-wipe", 80)
    assert cut.evaluate("e => e.style.clipPath") != before
    before = shown(page, "#compare-view")
    page.click("#compare-examples button >> nth=1")
    changed(page, "#compare-view", before)


def test_models_look_word_by_word(page, tiny_model, keep):
    open_page(page, "Models")
    page.fill("#models-name input", tiny_model)
    page.keyboard.press("Enter")
    page.click("#models-examples button >> nth=2")
    page.wait_for_function("document.querySelectorAll('#models-words [data-pick]').length > 1")
    assert marked(page, "models") == ["2"]
    keep(page, "models")
    click_word(page, "#models-words", "#models-maps")
    before = shown(page, "#models-maps")
    slide(page, "#models-place [data-knob=layer]", 2)
    before = changed(page, "#models-maps", before)
    slide(page, "#models-place [data-knob=head]", 1)
    changed(page, "#models-maps", before)


def test_a_model_that_is_not_there_shows_a_sentence(page, tiny_model):
    open_page(page, "Models")
    page.fill("#models-name input", "/no/such/model")
    page.keyboard.press("Enter")
    page.click("#models-button")
    page.locator("#models-message .fv-error").get_by_text("look: expected a model").wait_for()


def test_keyboard_alone(page):
    """Tab reaches the pages, the examples and the question; Enter opens, picks and asks."""
    page.locator(".fv-nav a").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("#page-caption .fv-about").wait_for()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.locator("#page-ask .fv-about").wait_for()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        place = page.evaluate("(document.activeElement.closest('[id^=ask-]') || {}).id || ''")
        reached.append(place)
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        if place == "ask-examples" and reached.count(place) == 2:
            before = shown(page, "#ask-image")
            page.keyboard.press("Enter")
            changed(page, "#ask-image", before)
            assert outline != "none"
        if place == "ask-question":
            break
    assert "ask-examples" in reached
    page.keyboard.press("Control+A")
    page.keyboard.type("Is there a star?")
    before = shown(page, "#ask-answer")
    page.keyboard.press("Enter")
    changed(page, "#ask-answer", before)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, axe, scheme):
    page.emulate_media(color_scheme=scheme)
    page.reload()
    page.wait_for_selector("#ask-maps .fv-panel")
    page.evaluate("document.querySelectorAll('[id$=-controls] > button').forEach(button => button.click())")
    page.evaluate(axe)
    for name in PAGES:
        open_page(page, name)
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        serious = [
            f"{name}: {one['id']}: {one['nodes'][0]['html'][:150]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == []
