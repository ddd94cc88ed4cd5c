"""The page Results: the reports of runs, and what each run reached."""

from __future__ import annotations

from html import escape
from typing import Any

from foveate.errors import FoveateError
from foveate.registry import lookup
from foveate.studio import widgets
from foveate.studio.shelf import Shelf

MAX_REPORT = 30_000_000  # bytes
EMPTY = "No report yet. foveate demo writes one, foveate compare too; then choose “look again”."


def show_report(shelf: Shelf, name: str | None) -> str:
    """A report in a frame of its own, in which nothing runs and nothing is fetched.

    Only reports that the shelf offers are shown; another name raises UnknownName.
    """
    if not name:
        return f'<p class="fv-note">{escape(EMPTY)}</p>'
    path = lookup("report", name, shelf.reports())
    if path.stat().st_size > MAX_REPORT:
        return widgets.trouble(f"{path} is too large to be shown here; open it in a browser")
    text = path.read_text(encoding="utf-8", errors="replace")
    return f'<iframe class="fv-report" sandbox="" title="{escape(name)}" srcdoc="{escape(text)}"></iframe>'


def runs_html(shelf: Shelf) -> str:
    """A table of the runs."""
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in shelf.table())
    return (
        f"<table><thead><tr><th>run</th><th>task</th><th>mechanism</th><th>best on val</th></tr></thead>{rows}</table>"
    )


def build(gr: Any, shelf: Shelf) -> None:
    """Lay the page out and wire it up."""

    def on_show(name: str | None) -> str:
        try:
            return show_report(shelf, name)
        except (FoveateError, OSError) as error:
            return widgets.trouble(error)

    def on_look() -> tuple:
        names = list(shelf.reports())
        first = names[0] if names else None
        return gr.Dropdown(names, value=first), runs_html(shelf), on_show(first)

    names = list(shelf.reports())
    with gr.Row():
        chosen = gr.Dropdown(names, value=names[0] if names else None, label="report", elem_id="results-report")
        again = gr.Button("look again", scale=0, min_width=120)
    frame = gr.HTML(on_show(names[0] if names else None), elem_id="results-frame")
    gr.HTML('<p class="fv-note">Runs inside the package and in the folder of the runs:</p>')
    table = gr.HTML(runs_html(shelf), elem_id="results-runs")
    chosen.input(on_show, chosen, frame, api_visibility="private")
    again.click(on_look, None, [chosen, table, frame], api_visibility="private")
