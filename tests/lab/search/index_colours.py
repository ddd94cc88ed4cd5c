"""`foveate` with an embedder of colours instead of a trained run, for tests that start it in other processes."""

from __future__ import annotations

import sys

from foveate.apps.cli import main
from foveate.lab import hub
from tests.lab.search.runs import Colours

if __name__ == "__main__":
    hub.load_embedder = lambda where, run, device=None: (Colours(), run, "abc")  # type: ignore[assignment]
    sys.exit(main())
