"""Plots of attention. Every function returns a matplotlib figure; matplotlib is imported on the first call."""

from foveate.plot.figures import compare, show, strip
from foveate.plot.lines import profiles
from foveate.plot.words import words

__all__ = ["compare", "profiles", "show", "strip", "words"]
