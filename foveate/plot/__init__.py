"""Plots of attention. Every function returns a matplotlib figure; matplotlib is imported on the first call."""

from foveate.plot.animation import animate
from foveate.plot.figures import compare, overlay, show, strip
from foveate.plot.one_dimension import profiles, words
from foveate.plot.sheets import gallery, heads

__all__ = ["animate", "compare", "gallery", "heads", "overlay", "profiles", "show", "strip", "words"]
