"""HTML of reports: the page, texts, tables, commands, and figures of several panels that fit any width."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.plot.canvas import bar_ticks, css_gradient

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

SORT = """
document.addEventListener('click', event => {
  const head = event.target.closest('thead th'), table = head && head.closest('table');
  if (!head) return;
  const column = [...head.parentElement.children].indexOf(head), up = head.getAttribute('aria-sort') !== 'descending';
  const text = row => row.children[column].textContent.replace('<', '').trim();
  const numbers = [...table.tBodies[0].rows].some(row => !Number.isNaN(parseFloat(text(row))));
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    if (!numbers) return up ? text(b).localeCompare(text(a)) : text(a).localeCompare(text(b));
    const [x, y] = [parseFloat(text(a)), parseFloat(text(b))];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);  // what has no value comes last
    return up ? y - x : x - y; });
  [...head.parentElement.children].forEach(one => one.removeAttribute('aria-sort'));
  head.setAttribute('aria-sort', up ? 'descending' : 'ascending');
  table.tBodies[0].append(...rows);
});
document.addEventListener('keydown', event => {
  if ((event.key === 'Enter' || event.key === ' ') && event.target.closest('thead th')) {
    event.preventDefault(); event.target.click(); }
});
"""
# The one script sorts tables; browsers block every other one by its hash, and all other hosts.
_HASH = base64.b64encode(hashlib.sha256(SORT.encode()).digest()).decode()
POLICY = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'"
STYLE = """
:root { color-scheme: light dark; --ink: #10131a; --soft: #5a6472; --paper: #fff; --card: #f5f6f8; --line: #d9dce1;
  --mark: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaee; --soft: #a3abb8; --paper: #14171d; --card: #1e232b;
  --line: #39414d; --mark: #6cc0f0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; max-width: 78rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.8rem; margin: 0 0 .3rem; } h2 { font-size: 1.25rem; margin: 2.4rem 0 .4rem; }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .1rem; } p { margin: .2rem 0 .8rem; } .soft { color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .45rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 8.5rem; position: sticky; left: 0;
  background: var(--paper); z-index: 1; }
th[tabindex] { cursor: pointer; white-space: normal; font-size: .84rem; line-height: 1.3; }
th[tabindex]:hover { color: var(--mark); } :focus-visible { outline: 3px solid var(--mark); outline-offset: 2px; }
th[aria-sort=descending]::after { content: " ↓"; } th[aria-sort=ascending]::after { content: " ↑"; }
.wide > table { width: 100%; }
.takeaway { border-left: 4px solid var(--mark); background: var(--card); padding: .7rem 1rem; margin: .6rem 0 1rem; }
@media (max-width: 640px) { th:first-child, td:first-child { min-width: 7rem; max-width: 8.5rem;
  overflow-wrap: anywhere; }
  h1 { font-size: 1.45rem; } }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; }
td.best { font-weight: 700; color: var(--mark); }
td.baseline, th.baseline { color: var(--soft); } small { color: var(--soft); }
img { display: block; max-width: 100%; height: auto; background: #fff; border: 1px solid var(--line);
  border-radius: 6px; padding: .4rem; margin: .3rem 0 0; }
.sheet { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(46%, 225px), 1fr));
  margin: .4rem 0 .6rem; }
.sheet.many { grid-template-columns: repeat(auto-fill, minmax(min(30%, 150px), 1fr)); gap: .8rem; }
.sheet.charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.sheet figure { margin: 0; min-width: 0; display: flex; flex-direction: column; } .sheet img { width: 100%;
  margin: 0; padding: 0; }
.sheet.charts img { padding: .4rem; }
.sheet figcaption { font-weight: 600; font-size: .92rem; line-height: 1.3; overflow-wrap: anywhere;
  margin: 0 0 .25rem; }
.sheet small { line-height: 1.35; margin-top: .25rem; }
.scale { max-width: 32rem; margin: .8rem 0; font-size: .88rem; color: var(--soft); } .scale p { margin: 0 0 .3rem; }
.ramp { height: 11px; border-radius: 6px; box-shadow: 0 0 0 1px var(--line); } .ticks { position: relative;
  height: 1.4rem; }
.ticks span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.ticks span:first-child { transform: none; } .ticks span:last-child { transform: translateX(-100%); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; list-style: none; padding: 0; margin: .2rem 0 .8rem;
  font-size: .92rem; }
.legend li { display: flex; align-items: center; gap: .5rem; }
code { font: .92em ui-monospace, "DejaVu Sans Mono", Consolas, monospace; }
pre { margin: .2rem 0 .9rem; padding: .6rem .8rem; background: var(--card); border-radius: 6px; overflow-x: auto; }
summary { cursor: pointer; font-weight: 600; margin: 1.2rem 0 .5rem; }
@media (scripting: none) { .sorts { display: none; } }
@media print { .sorts { display: none; } body { max-width: none; } details:not([open]) { display: none; } }
"""


def html_page(title: str, parts: Iterable[str]) -> str:
    """A whole page from parts that are already HTML.

    >>> "&lt;b&gt;" in html_page("<b>", [])
    True
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + f"\n<script>{SORT}</script>\n</body>\n</html>\n"
    )


def html_text(tag: str, text: str, kind: str = "") -> str:
    """An element with escaped text.

    >>> html_text("p", "a < b", "soft")
    '<p class="soft">a &lt; b</p>'
    """
    return f"<{tag}{_class(kind)}>{escape(text)}</{tag}>"


def html_cell(tag: str, text: str, kind: str = "", note: str = "") -> str:
    """A cell of a table, with a small note after the text.

    >>> html_cell("td", "js", note="bits")
    '<td>js <small>bits</small></td>'
    """
    after = f" <small>{escape(note)}</small>" if note else ""
    return f"<{tag}{_class(kind)}>{escape(text)}{after}</{tag}>"


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table from cells that are already HTML: a click on a head sorts it; it scrolls if it is too wide."""
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    head = [cell.replace("<th", '<th tabindex="0"', 1) for cell in head]
    return f'<div class="wide"><table><thead><tr>{"".join(head)}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def html_figure(figure: Figure, alt: str, dpi: int = 110) -> str:
    """A matplotlib figure embedded in the page.

    >>> from matplotlib.figure import Figure
    >>> html_figure(Figure(figsize=(1, 1)), 'a "map"').startswith('<img alt="a &quot;map&quot;" src="data:image/png;')
    True
    """
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    return f'<img alt="{escape(alt)}" src="{data_uri(file.getvalue())}">'


def data_uri(data: bytes, kind: str = "image/png") -> str:
    """The bytes of a file as a data URI."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def html_commands(commands: Iterable[tuple[str, str]]) -> str:
    """Commands, each with its purpose."""
    return "\n".join(
        f'{html_text("p", about)}<pre tabindex="0"><code>{escape(line)}</code></pre>' for about, line in commands
    )


def _class(kind: str) -> str:
    return f' class="{escape(kind)}"' if kind else ""


COLOUR_BAR = "<colorbar>"  # matplotlib's label of the axes of a colour bar
UNIT = "attention per area, compared with looking evenly at the whole image (1×)"
MANY = 9  # panels from which they are smaller
PAD = 3  # pixels around axes with labels


def html_sheet(figure: Figure, alt: str, dpi: int = 120) -> str:
    """A matplotlib figure as a grid of its panels, which wraps on narrow screens.

    The titles and labels of maps and the colour bar become text, so that they have the size of text at any
    width. Panels with other axes, for instance curves, keep what is drawn around them.

    Args:
        figure: of one or several axes.
        alt: the whole in words.
        dpi: pixels per inch.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)  # matplotlib has no types for it
    figure.set_dpi(dpi)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    panels = [axes for axes in figure.axes if axes.get_label() != COLOUR_BAR]
    bars = [axes for axes in figure.axes if axes.get_label() == COLOUR_BAR]
    charts = _chart_boxes([axes for axes in panels if not axes.images])
    inside = "".join(_map(axes, pixels) if axes.images else _chart(axes, charts[axes], pixels) for axes in panels)
    kind = "charts" if not any(axes.images for axes in panels) else "many" if len(panels) >= MANY else "maps"
    parts = [f'<div class="sheet {kind}" role="group" aria-label="{escape(alt)}">{inside}</div>']
    parts += [_colour_bar(axes.get_ylim()[1]) for axes in bars[:1]]
    lines = [line for line in re.split(r"\n| {3,}", figure.get_supxlabel()) if line]
    return "".join([*parts, html_text("p", "; ".join(lines), "soft") if lines else ""])


def _map(axes: Axes, pixels: np.ndarray) -> str:
    """What is inside of the axes, below its title."""
    title, below = " ".join(axes.get_title().split()), axes.get_xlabel()
    image = _image(_crop(pixels, axes.get_window_extent()), ", ".join(filter(None, (title, below))))
    return f"<figure>{html_text('figcaption', title)}{image}{html_text('small', below) if below else ''}</figure>"


def _chart_boxes(charts: Sequence[Axes]) -> dict[Axes, Bbox]:
    """The places of axes with everything around them, all of the same height."""
    from matplotlib.transforms import Bbox

    boxes = {axes: axes.get_tightbbox() or axes.get_window_extent() for axes in charts}
    low, high = min((box.y0 for box in boxes.values()), default=0), max((box.y1 for box in boxes.values()), default=0)
    return {axes: Bbox([[box.x0, low], [box.x1, high]]) for axes, box in boxes.items()}


def _chart(axes: Axes, box: Bbox, pixels: np.ndarray) -> str:
    return f"<figure>{_image(_crop(pixels, box, PAD), axes.get_title())}</figure>"


def _crop(pixels: np.ndarray, box: Bbox, pad: int = 0) -> np.ndarray:
    """The pixels in a box of matplotlib, whose origin is at the bottom."""
    height, width = pixels.shape[:2]
    left, right = max(0, round(box.x0) - pad), min(width, round(box.x1) + pad)
    top, bottom = max(0, height - round(box.y1) - pad), min(height, height - round(box.y0) + pad)
    return pixels[top:bottom, left:right, :3]


def _image(pixels: np.ndarray, alt: str) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
    return f'<img alt="{escape(alt)}" src="{data_uri(file.getvalue())}">'


def _colour_bar(top: float) -> str:
    ticks = "".join(f'<span style="left:{100 * place:.1f}%">{text}</span>' for place, text in bar_ticks(top))
    return (
        f'<div class="scale" role="img" aria-label="colours from 0 to {top:.3g} times the even share"><p>{UNIT}</p>'
        f'<div class="ramp" style="background:{css_gradient()}"></div><div class="ticks">{ticks}</div></div>'
    )


def html_legend(lines: Iterable[tuple[str, str, Sequence[float]]]) -> str:
    """A legend of lines, from their names, colours and dashes, which are empty for a solid line.

    >>> "stroke-dasharray" in html_legend([("softmax", "#0072b2", ())])
    False
    """
    items = []
    for name, colour, dashes in lines:
        pattern = f' stroke-dasharray="{" ".join(f"{2 * step:g}" for step in dashes)}"' if dashes else ""
        line = f'<line x1="0" x2="30" y1="5" y2="5" stroke="{colour}" stroke-width="2.5"{pattern}/>'
        items.append(f'<li><svg width="30" height="10" aria-hidden="true">{line}</svg>{escape(name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'
