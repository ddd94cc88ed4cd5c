"""Settings of the documentation site."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import reference

reference.write()

project = "foveate"
author = "The foveate authors"
# formulas are drawn by a copy of MathJax inside the site: the pages need no other host
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx-mathjax-offline"]
html_theme = "furo"
html_title = "foveate"
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = True
napoleon_use_ivar = True
napoleon_custom_sections = [("Class attributes", "params_style")]
default_role = "code"


def escape(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
    """Bars of a formula are no substitutions of reStructuredText."""
    lines[:] = [
        "".join(p if p.startswith("`") else p.replace("|", r"\|") for p in re.split(r"(`[^`]*`)", x)) for x in lines
    ]


def setup(app):  # type: ignore[no-untyped-def]
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", escape, priority=900)
