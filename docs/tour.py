"""Draw docs/images/tour-*.png: the pages of a running studio, with generated images and free photographs alone.

foveate studio --port 7900 &  python docs/tour.py http://127.0.0.1:7900     needs make browsers
"""

from __future__ import annotations

import shutil
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

OUT = Path(__file__).resolve().parent / "images"
SIZE = {"width": 1280, "height": 860}
# What is shown of each page, and what must be there before.
PAGES = {
    "ask": "#ask-maps .fv-panel",
    "caption": "#caption-words .fv-panel",
    "search": "#search-hits .fv-hit",
    "models": "#models-maps .fv-panel",
    "compare": "#compare-view .fv-stack",
    "explain": "#explain-threshold-view .fv-task",
}


def main(address: str) -> None:
    """Photograph the pages."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.goto(address, timeout=120_000)
        for name, part in PAGES.items():
            page.evaluate("name => { location.hash = name; }", name)
            page.locator(part).first.wait_for(state="visible", timeout=120_000)
            page.wait_for_timeout(1500)
            image = Image.open(BytesIO(page.screenshot())).convert("RGB")
            image = image.quantize(256, Image.Quantize.FASTOCTREE)
            image.save(OUT / f"tour-{name}.png", optimize=True)
            print(OUT / f"tour-{name}.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
