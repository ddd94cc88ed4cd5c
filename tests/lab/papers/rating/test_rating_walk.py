"""A person rates a study in a real browser; needs the extra `studio`, playwright and chromium (`make browsers`)."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from foveate.lab.papers.rating import RatingStore, Study, read_results
from tests.pages import serve, skip_without_browser

pytestmark = pytest.mark.slow


@pytest.fixture
def address(study: Study):
    skip_without_browser()
    with serve("rate", str(study.directory)) as place:
        yield place


def visit(browser, address: str, width: int, wrong: list[str]):
    page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
    page.set_default_timeout(60_000)
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("response", lambda found: wrong.append(f"{found.status} {found.url}") if found.status >= 400 else None)
    page.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else wrong.append(r.url))
    page.goto(address)
    page.wait_for_selector("[data-begin]")
    return page


def rate_image(page, number: int) -> None:
    """Answer everything with the keyboard and the mouse, as a person would."""
    page.get_by_text(f"Image {number} of 4").wait_for()
    note = page.get_by_text("Please answer every question")
    for _ in range(60):
        page.click("[data-send]")  # nothing is answered yet
        if note.is_visible():
            break
        page.wait_for_timeout(500)  # a slow machine may still be drawing the sheet
    assert note.is_visible()
    for place in range(page.locator("fieldset").count()):
        page.locator("fieldset").nth(place).get_by_text(str(1 + (number + place) % 5), exact=True).click()
    page.click("[data-send]")


def test_a_person_rates_stops_and_resumes(study: Study, address: str, chromium) -> None:
    wrong: list[str] = []
    page = visit(chromium, address, 1280, wrong)
    page.click("[data-begin]")
    for number in (1, 2):
        rate_image(page, number)
    page.get_by_text("Image 3 of 4").wait_for()
    code = page.inner_text(".fr-code")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    _keep(page, "sheet-1280")
    page.close()
    page = visit(chromium, address, 390, wrong)  # later, on a phone
    page.fill("input[name=code]", code)
    page.click("[data-begin]")
    page.get_by_text("Image 3 of 4").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    _keep(page, "sheet-390")
    for number in (3, 4):
        rate_image(page, number)
    page.get_by_text("Thank you").wait_for()
    page.close()
    assert wrong == []
    assert len(RatingStore(study).read(code)) == 4
    assert set(read_results(study).means) == {"quality", "attention relevance"}


def test_other_origins_are_turned_away(address: str) -> None:
    request = urllib.request.Request(address, headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    with refused.value as reply:
        assert reply.code == 403


def _keep(page, name: str) -> None:
    directory = os.environ.get("FOVEATE_SCREENSHOTS")
    if directory:
        page.screenshot(path=Path(directory) / f"rate-{name}.png", full_page=True)
