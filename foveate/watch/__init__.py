"""Watch, measure and change the attention of any torch model.

The package itself can be called: `fv.watch(model)` is `foveate.watch.watch(model)`.
"""

import sys
from types import ModuleType

from foveate.watch.calls import weigh
from foveate.watch.cases import Case
from foveate.watch.describe import describe
from foveate.watch.interventions import intervene
from foveate.watch.layouts import Layout
from foveate.watch.loading import load_pretrained
from foveate.watch.looking import NEUTRAL, Look, look
from foveate.watch.measure import AttentionEvaluation, Maps, evaluate_attention, hub_source
from foveate.watch.model_families import FAMILIES, Family, find_layout
from foveate.watch.record import Record, Records
from foveate.watch.reductions import REDUCTIONS
from foveate.watch.relevance import gradient_times_input, integrated_gradients
from foveate.watch.spoken_words import Word
from foveate.watch.watching import watch

__all__ = [
    "FAMILIES",
    "NEUTRAL",
    "REDUCTIONS",
    "AttentionEvaluation",
    "Case",
    "Family",
    "Layout",
    "Look",
    "Maps",
    "Record",
    "Records",
    "Word",
    "describe",
    "evaluate_attention",
    "find_layout",
    "gradient_times_input",
    "hub_source",
    "integrated_gradients",
    "intervene",
    "load_pretrained",
    "look",
    "watch",
    "weigh",
]


class _CallablePackage(ModuleType):
    """Importing a part of this package binds `foveate.watch` to the package; it must still work as the function."""

    __call__ = staticmethod(watch)


sys.modules[__name__].__class__ = _CallablePackage
