"""Pictures of attention. Every function returns a matplotlib figure; matplotlib is imported when one is drawn."""

from foveate.plot.profiles import profiles
from foveate.plot.show import compare, show, strip

__all__ = ["compare", "profiles", "show", "strip"]
