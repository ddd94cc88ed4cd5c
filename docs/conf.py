"""Settings of the documentation site."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import reference

reference.write()

project = "foveate"
author = copyright = "The foveate authors"
# formulas are drawn by a copy of MathJax inside the site: the pages need no other host
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx-mathjax-offline"]
html_theme = "furo"
html_title = "foveate"
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
nb_execution_mode = "off"  # notebooks are committed with their output; tools/notebooks.py runs them
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
    ("py:class", r"foveate\.tasks\.task\.(Model|TaskType)"),
]
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


def setup(app):  # type: ignore[no-untyped-def]
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", prepare, priority=900)
