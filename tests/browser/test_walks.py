"""Walks through the pages in a real browser; see conftest for what every walk must not do."""

from __future__ import annotations

import io

from PIL import Image

from foveate.studio import PAGES


def open_page(page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


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


def upload(page, data: bytes, name: str = "image.png") -> None:
    page.set_input_files("#ask-drop input", {"name": name, "mimeType": "image/png", "buffer": data})


def test_every_page_opens(page):
    assert page.get_by_role("tab").all_inner_texts() == list(PAGES)
    for name, row in PAGES.items():
        open_page(page, name)
        page.get_by_text(row.about).wait_for()


def test_ask_from_example_to_knobs(page, keep):
    page.click("#ask-examples button >> nth=1")
    page.wait_for_selector("#ask-maps .fv-panel")
    assert panels(page, "#ask-maps")[0] == "image"
    assert panels(page, "#ask-maps")[-1] == "true region"
    keep(page, "ask")
    before = shown(page, "#ask-maps")
    page.get_by_label("number input for smoothness (fusedmax, TVmax)").locator("visible=true").fill("0.9")
    before = changed(page, "#ask-maps", before)
    page.get_by_label("gfusedmax").check()
    changed(page, "#ask-maps", before)
    assert "gfusedmax" in panels(page, "#ask-maps")
    first = page.input_value("#ask-question textarea")
    page.click("#ask-suggestions button >> nth=-1")
    page.wait_for_function("old => document.querySelector('#ask-question textarea').value !== old", arg=first)


def test_ask_ones_own_question_about_ones_own_image(page):
    upload(page, png(mode="RGBA", colour=(200, 30, 30, 128)))
    page.wait_for_selector("#ask-image img")
    answer = ask(page, "What colour is the zebra?")
    assert "Not in the vocabulary: zebra" in answer
    page.wait_for_selector("#ask-maps .fv-panel")
    assert "true region" not in panels(page, "#ask-maps")


def test_what_cannot_be_asked_shows_an_error(page):
    assert "expected a question, got none" in ask(page, "  ")
    assert "expected an image, got none" in ask(page, "What is red?")
    page.click("#ask-examples button >> nth=0")
    page.wait_for_selector("#ask-maps .fv-panel")
    assert "at most 300 characters, got 10000" in ask(page, "a" * 10_000)
    before = shown(page, "#ask-answer")
    upload(page, b"this is no image")
    error = changed(page, "#ask-answer", before)
    assert "cannot be decoded" in error
    assert "BytesIO" not in error
    assert page.locator("#ask-image img").count() == 0
    page.click("#ask-examples button >> nth=1")
    page.wait_for_selector("#ask-maps .fv-panel")
    before = shown(page, "#ask-answer")
    upload(page, png()[:60])
    assert changed(page, "#ask-answer", before) == error
    # and the studio goes on
    page.click("#ask-examples button >> nth=2")
    page.wait_for_selector("#ask-maps .fv-panel")


def test_a_file_that_is_too_large_is_not_even_sent(page):
    upload(page, b"0" * 10_000_001)
    page.wait_for_selector("#ask-answer .fv-error")


def test_play_by_picking_painting_and_turning(page, keep):
    open_page(page, "Play")
    page.wait_for_selector("#play-maps .fv-panel")
    before = shown(page, "#play-maps")
    keep(page, "play")
    box = page.locator("#play-paint canvas").bounding_box()
    page.mouse.move(box["x"] + 220, box["y"] + 60)
    page.mouse.down()
    for step in range(6):
        page.mouse.move(box["x"] + 220 - 4 * step, box["y"] + 60 + 3 * step)
    page.mouse.up()
    before = changed(page, "#play-maps", before)
    page.get_by_label("preset scores").click()
    page.get_by_role("option", name="ring").click()
    before = changed(page, "#play-maps", before)
    page.get_by_label("number input for contrast (multiplies the scores)").fill("3")
    before = changed(page, "#play-maps", before)
    page.get_by_label("number input for components K (mixtures)").locator("visible=true").fill("2")
    changed(page, "#play-maps", before)
    assert len(panels(page, "#play-maps")) == 12


def test_a_caption_word_by_word(page, keep):
    open_page(page, "Caption")
    page.click("#caption-examples button >> nth=1")
    page.wait_for_selector("#caption-maps .fv-panel")
    keep(page, "caption")
    click_word(page, "#caption-words", "#caption-maps")
    assert len(panels(page, "#caption-maps")) == 2
    page.set_input_files("#caption-drop input", {"name": "a.png", "mimeType": "image/png", "buffer": b"broken"})
    page.locator("#caption-image").get_by_text("cannot be decoded").wait_for()


def test_search_by_text_and_by_image(page, keep):
    open_page(page, "Search")
    page.click("#search-button")
    page.wait_for_selector("#search-hits .fv-panel")
    keep(page, "search")
    click_word(page, "#search-words", "#search-hits")
    page.fill("#search-text textarea", " ")
    page.click("#search-button")
    page.locator("#search-hits").get_by_text("expected a text, got none").wait_for()
    page.click("#search-examples button >> nth=0")
    page.wait_for_selector("#search-captions li")


def test_results_show_reports_and_runs(page):
    open_page(page, "Results")
    page.frame_locator("#results-frame iframe").get_by_text("My report").wait_for()
    page.locator("#results-runs").get_by_text("scenes-vqa").wait_for()
