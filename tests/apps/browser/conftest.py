"""A studio on a free port and a browser that notes every error and every request that leaves for another host.

Needs the extra `studio`, playwright and Debian's chromium: `make browsers` brings them. With FOVEATE_SCREENSHOTS set
to a directory, the walks leave images of the pages there.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from foveate.apps.report.page import html_page
from foveate.lab.train.recipe import run_directory
from tests.pages import serve, skip_without_browser
from tests.untrained import make_untrained

TINY = "tiny-llava"
TOY = "toy-answers"  # a run of one's own, by its configuration for photographs
PATIENCE = 60_000  # milliseconds for anything in the page


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A directory with one report, and runs of the tasks that have none inside the package."""
    directory = tmp_path_factory.mktemp("runs")
    make_untrained(directory / "captioner", "captioning-lstm-scenes")
    make_untrained(directory / "fits", "matching-scan-scenes")
    shutil.copytree(run_directory("scenes-vqa"), directory / TOY)
    config = (directory / TOY / "config.json").read_text(encoding="utf-8")
    (directory / TOY / "config.json").write_text(re.sub(r'"dataset": "\w+"', '"dataset": "vqa-v2"', config))
    if find_spec("transformers") is not None:
        from tests.watch.test_look import llava

        model, processor = llava()
        model.save_pretrained(directory / TINY)
        processor.save_pretrained(directory / TINY)
    (directory / "mine").mkdir()
    (directory / "mine" / "report.html").write_text(html_page("t", ["<h1>My report</h1>"]), encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def tiny_model(runs):
    """The name of a model in the directory of the runs; the walks that need it are skipped without transformers."""
    if not (runs / TINY).exists():
        pytest.skip("transformers is not installed")
    return TINY


@pytest.fixture(scope="session")
def axe():
    """The source of axe-core."""
    path = Path(sys.prefix) / "axe" / "node_modules" / "axe-core" / "axe.min.js"
    if not path.exists():
        pytest.skip("axe-core is not installed: make browsers")
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def tools():
    """What the walks need; without it they are skipped."""
    skip_without_browser()


@pytest.fixture(scope="session")
def address(tools, runs):
    """Where the studio is."""
    with serve("studio", "--runs", str(runs)) as place:
        yield place


@pytest.fixture(scope="session")
def browser(address, chromium):
    return chromium


@pytest.fixture(params=["1280x800", "390x844"])
def page(request, browser, address):
    """The studio in a fresh visit, on a desk and on a phone; nothing has gone wrong, nothing was fetched elsewhere."""
    width, height = map(int, request.param.split("x"))
    context = browser.new_context(
        viewport={"width": width, "height": height}, has_touch=True, permissions=["clipboard-write"]
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("response", lambda answer: wrong.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith((address, "data:", "blob:")) else wrong.append(f"request to {request.url}")
        ),
    )
    page.goto(address)
    page.wait_for_selector("#ask-examples button")
    yield page
    context.close()
    assert wrong == []


@pytest.fixture
def keep(request):
    """`keep(page, name)` leaves an image of the page for the documentation, when asked to."""
    directory = os.environ.get("FOVEATE_SCREENSHOTS")

    def save(page, name: str) -> None:
        if directory:
            page.mouse.move(0, 0)
            kind = "" if page.viewport_size["width"] > 600 else "phone-"
            page.screenshot(path=Path(directory) / f"studio-{kind}{name}.png", full_page=True)

    return save
