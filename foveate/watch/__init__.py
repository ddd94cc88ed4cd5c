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
from foveate.watch.loading import load_pretrained, open_model
from foveate.watch.looking import METHODS, NEUTRAL, Look, Method, Word, look
from foveate.watch.measure import AttentionEvaluation, Maps, evaluate_attention, hub_source
from foveate.watch.model_families import FAMILIES, Family, find_layout
from foveate.watch.record import Record, Records
from foveate.watch.reductions import REDUCTIONS
from foveate.watch.relevance import gradient_times_input, integrated_gradients
from foveate.watch.watching import watch

__all__ = [
    "FAMILIES",
    "METHODS",
    "NEUTRAL",
    "REDUCTIONS",
    "AttentionEvaluation",
    "Case",
    "Family",
    "Layout",
    "Look",
    "Maps",
    "Method",
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
    "open_model",
    "watch",
    "weigh",
]


class _CallablePackage(ModuleType):
    """Importing a part of this package binds `foveate.watch` to the package; it must still work as the function."""

    __call__ = staticmethod(watch)


sys.modules[__name__].__class__ = _CallablePackage
