"""Pictures of attention. Every function returns a matplotlib figure; matplotlib is imported when one is drawn."""

from foveate.plot.lines import profiles
from foveate.plot.pictures import compare, show, strip
from foveate.plot.text import words

__all__ = ["compare", "profiles", "show", "strip", "words"]
