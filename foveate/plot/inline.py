"""What a notebook shows of an `Attended`."""

from __future__ import annotations

import io

from foveate.attention import Attended
from foveate.plot.figures import strip
from foveate.plot.heat import select_example
from foveate.plot.sheets import gallery

MOST = 8  # maps that are drawn


def to_png(attended: Attended) -> bytes | None:
    """The maps of the first examples, or of the first words of the first example; None if there is no image grid."""
    if attended.grid is None or attended.weights.ndim not in (2, 3) or 0 in attended.weights.shape:
        return None
    if isinstance(attended.grid, tuple) and len(attended.grid) != 2:
        return None
    if attended.weights.ndim == 3:
        count = min(MOST, attended.weights.shape[1])
        figure = strip(None, [f"query {n}" for n in range(count)], attended, columns=4)
    else:
        several = [select_example("inline", attended, n) for n in range(min(MOST, len(attended.weights)))]
        titles = [f"example {n}" for n in range(len(several))] if len(several) > 1 else ["attention"]
        figure = gallery([None] * len(several), several, titles=titles)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=90)
    return file.getvalue()
