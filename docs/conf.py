"""Settings of the documentation site."""

import re
import sys
from pathlib import Path

from docutils import nodes

sys.path.insert(0, str(Path(__file__).parent))

import reference

reference.write()

project = "foveate"
author = copyright = "The foveate authors"
# formulas are drawn by a copy of MathJax inside the site: the pages need no other host
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx-mathjax-offline"]
html_theme = "furo"
html_title = "foveate"
html_static_path = ["static"]
html_css_files = ["site.css"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
nb_execution_mode = "off"  # notebooks are committed with their output; tools/notebooks.py runs them
nb_merge_streams = True  # one box per cell, not one per call of print
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = True
napoleon_use_ivar = True
napoleon_custom_sections = [("Class attributes", "params_style")]
default_role = "code"
# `make docs` reports every reference without a target. Other projects are not linked, since the build needs no network,
# and a type variable has no entry.
nitpick_ignore_regex = [
    ("py:class", r"(torch|numpy|collections|pathlib|matplotlib|PIL)\..*"),
    ("py:class", "Figure"),  # of matplotlib, imported for type checkers only
    ("py:class", r"foveate\.lab\.tasks\.task\.(Model|TaskType|RunFiles)"),
    ("py:class", r"foveate\.watch\.(cases\.Pixels|video\.Frames|look_methods\.(Call|Found|RunCall))"),
]
# "0.26 ± 0.01", "3 992" and "20 %" stay on one line
TOGETHER = re.compile(r"(?<=\d) (?=\d{3}(?!\d)|%)| (?=±)|(?<=±) ")
FIELD = re.compile(r":(ivar|param|vartype|type) ([\w*\\]+(?:, [\w*\\]+)+):")


def prepare(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
    """Names that share one description get a field each, and bars of a formula are no substitutions."""
    fields = [line for each in lines for line in split_field(each)]
    lines[:] = [
        "".join(p if p.startswith("`") else p.replace("|", r"\|") for p in re.split(r"(`[^`]*`)", x)) for x in fields
    ]


def split_field(line: str) -> list[str]:
    """The field of several names as one field per name: Sphinx would take the first name for a type.

    >>> split_field(":ivar rows, columns: size of the grid.")
    [':ivar rows: see `columns`.', ':ivar columns: size of the grid.']
    """
    found = FIELD.match(line)
    if not found:
        return [line]
    *others, last = found[2].split(", ")
    return [*(f":{found[1]} {name}: see `{last}`." for name in others), f":{found[1]} {last}:{line[found.end() :]}"]


def keep_together(app, doctree):  # type: ignore[no-untyped-def]
    """Replace spaces inside numbers by spaces at which no line is broken; code stays as it is."""
    for node in list(doctree.findall(nodes.Text)):
        text = TOGETHER.sub("\u00a0", str(node))
        if text != str(node) and not isinstance(node.parent, nodes.FixedTextElement | nodes.literal | nodes.math):
            node.parent.replace(node, nodes.Text(text))


def add_contents(app, name, source):  # type: ignore[no-untyped-def]
    """Add the tables of contents, which only Sphinx understands, to the page that is read elsewhere too."""
    if name == "index":
        source[0] += "\n" + (Path(__file__).parent / "contents.txt").read_text(encoding="utf-8")


def setup(app):  # type: ignore[no-untyped-def]
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
    app.connect("doctree-read", keep_together)
    app.connect("autodoc-process-docstring", prepare, priority=900)
