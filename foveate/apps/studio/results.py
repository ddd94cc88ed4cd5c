"""The page Results: the reports of runs, and a table of their best objectives."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from foveate.apps.studio import widgets
from foveate.apps.studio.catalogue import RunCatalogue
from foveate.errors import FoveateError
from foveate.registry import lookup

MAX_REPORT = 30_000_000  # bytes
SCRIPT = re.compile(r"<script\b.*?</script\s*>", re.DOTALL | re.IGNORECASE)
EMPTY = "There is no report yet: foveate demo and foveate compare write one. Then press “Refresh”."


def show_report(catalogue: RunCatalogue, name: str | None) -> str:
    """A report in its own frame, in which no script runs.

    Raises UnknownName if the catalogue does not offer a report of this name.
    """
    if not name:
        return f'<p class="fv-note">{escape(EMPTY)}</p>'
    path = lookup("report", name, catalogue.reports())
    if path.stat().st_size > MAX_REPORT:
        return widgets.error_html(f"{path} is too large to be shown here; open the file in a browser")
    # The frame blocks the script that sorts tables; without it, browsers have nothing to complain about.
    text = SCRIPT.sub("", path.read_text(encoding="utf-8", errors="replace"))
    return f'<iframe class="fv-report" sandbox="" title="{escape(name)}" srcdoc="{escape(text)}"></iframe>'


def runs_html(catalogue: RunCatalogue) -> str:
    """A table of the runs."""
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in catalogue.table())
    names = ("Run", "Task", "Attention", "Best on val")
    heads = "".join(f'<th scope="col">{head}</th>' for head in names)
    table = f'<table class="fv-table"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="fv-wide">{table}</div>'


def build(gr: Any, catalogue: RunCatalogue) -> None:
    """Create the components of the page and connect their events."""

    def on_show(name: str | None) -> str:
        try:
            return show_report(catalogue, name)
        except (FoveateError, OSError) as error:
            return widgets.error_html(error)

    def on_refresh() -> tuple[Any, str, str]:
        names = list(catalogue.reports())
        first = names[0] if names else None
        return gr.Dropdown(names, value=first), runs_html(catalogue), on_show(first)

    names = list(catalogue.reports())
    with gr.Row():
        chosen = gr.Dropdown(names, value=names[0] if names else None, label="Report", elem_id="results-report")
        refresh = gr.Button("Refresh", scale=0, min_width=120)
    frame = gr.HTML(on_show(names[0] if names else None), elem_id="results-frame")
    gr.HTML('<p class="fv-note">Embedded runs, and runs in the directory of the studio:</p>')
    table = gr.HTML(runs_html(catalogue), elem_id="results-runs")
    chosen.input(on_show, chosen, frame, api_visibility="private")
    refresh.click(on_refresh, None, [chosen, table, frame], api_visibility="private")
