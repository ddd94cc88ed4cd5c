"""One thread a test process: the tests run side by side, and forked trainings would be warned of an unset number."""

import os

import pytest

from tests.pages import CHROMIUM, FLAGS, skip_without_browser

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def chromium():
    """One browser for all tests: playwright runs once in a process."""
    skip_without_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()
