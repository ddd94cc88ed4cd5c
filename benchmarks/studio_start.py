"""How long a visitor of the studio waits: for the page, for the first answer, for the next ones.

    python benchmarks/studio_start.py [--starts 3] [--answers 20] [--save]

In turns, each time with a new server and a new browser: seconds from the command to the first response of the server,
and the processor time that it took, which is what a quiet machine needs, since the start is not parallel; from opening
the address in a fresh browser to the finished example, three maps under its answer; from clicking another example to
its answer and maps on the page; the median of further clicks. The clock stops when the page has changed. Needs
`make browsers`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from studio_load import server_seconds, start_studio

RESULTS = Path(__file__).parent / "results" / "studio_start.json"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
ROWS = {  # what is measured, and what must not be exceeded, in seconds
    "command to server": None,
    "processor time of the server until then": None,
    "address to finished example": 6.0,
    "command to finished example": None,
    "first answer": 1.5,
    "later answers, median": 0.3,
}
CHANGED = "old => document.querySelector('#ask-maps .prose').innerHTML !== old"


def click(page: Any, number: int) -> float:
    """Seconds from picking an example to its maps."""
    before = page.inner_html("#ask-maps .prose")
    start = time.perf_counter()
    page.evaluate(f"document.querySelectorAll('#ask-examples [data-pick]')[{number}].click()")
    page.wait_for_function(CHANGED, arg=before)
    return time.perf_counter() - start


def once(runs: str, answers: int) -> dict[str, float]:
    """One start of the server, one visit."""
    from playwright.sync_api import sync_playwright

    start = time.perf_counter()
    server, address = start_studio(runs, wait=0.05)
    try:
        up, spent = time.perf_counter() - start, server_seconds(server.pid)
        with sync_playwright() as playwright:
            chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            begin = time.perf_counter()
            page.goto(address)
            page.wait_for_function("document.querySelectorAll('#ask-maps .fv-stack img').length >= 6")
            shown = time.perf_counter() - begin
            first = click(page, 1)
            # Examples of Scenes, of which there are eight; the page opens with the fourth.
            later = [click(page, (0, 2, 4, 5, 6, 7, 3, 1)[n % 8]) for n in range(answers)]
            browser.close()
    finally:
        server.terminate()
        server.wait(30)
    return dict(zip(ROWS, (up, spent, shown, up + shown, first, median(later)), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--answers", type=int, default=20)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as runs:
        rounds = [once(runs, options.answers) for _ in range(options.starts)]
    table = {
        name: {"median": round(median(own), 3), "all": [round(one, 3) for one in own], "limit": limit}
        for name, limit in ROWS.items()
        for own in [[each[name] for each in rounds]]
    }
    print(json.dumps({"load average": load, **table}, indent=1))
    if options.save:
        RESULTS.write_text(json.dumps({"load": list(load), "rows": table}, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(row["limit"] is not None and row["median"] > row["limit"] for row in table.values()))


if __name__ == "__main__":
    main()
