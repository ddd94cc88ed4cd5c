"""HTML of the report: every string is escaped, every image is embedded, nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SORT = """
document.addEventListener('click', event => {
  const head = event.target.closest('thead th'), table = head && head.closest('table');
  if (!head) return;
  const column = [...head.parentElement.children].indexOf(head), up = head.getAttribute('aria-sort') !== 'descending';
  const value = row => { const text = row.children[column].textContent; const number = parseFloat(text);
    return Number.isNaN(number) ? text : number; };
  const rows = [...table.tBodies[0].rows].sort((a, b) => { const [x, y] = [value(a), value(b)];
    const order = typeof x === 'number' && typeof y === 'number' ? x - y : String(x).localeCompare(String(y));
    return up ? -order : order; });
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
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.8rem; margin: 0 0 .3rem; } h2 { font-size: 1.25rem; margin: 2.4rem 0 .4rem; }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .1rem; } p { margin: .2rem 0 .8rem; } .soft { color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .32rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 12rem; position: sticky; left: 0;
  background: var(--paper); z-index: 1; }
th[tabindex] { cursor: pointer; white-space: normal; hyphens: auto; } th[tabindex]:hover { color: var(--mark); }
th[aria-sort=descending]::after { content: " ↓"; } th[aria-sort=ascending]::after { content: " ↑"; }
.wide > table { width: 100%; } details img { margin-bottom: 1rem; }
@media (max-width: 640px) { th:first-child, td:first-child { min-width: 8rem; max-width: 9rem; } }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; }
td.best { font-weight: 700; color: var(--mark); }
td.baseline, th.baseline { color: var(--soft); } small { color: var(--soft); }
img { display: block; max-width: 100%; height: auto; background: #fff; border: 1px solid var(--line);
  border-radius: 6px; padding: .4rem; margin: .3rem 0 0; }
code { font: .92em ui-monospace, "DejaVu Sans Mono", Consolas, monospace; }
pre { margin: .2rem 0 .9rem; padding: .6rem .8rem; background: var(--card); border-radius: 6px; overflow-x: auto; }
summary { cursor: pointer; font-weight: 600; margin: 1.2rem 0 .5rem; }
@media print { body { max-width: none; } details:not([open]) { display: none; } }
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
    return "\n".join(f"{html_text('p', about)}<pre><code>{escape(line)}</code></pre>" for about, line in commands)


def _class(kind: str) -> str:
    return f' class="{escape(kind)}"' if kind else ""
