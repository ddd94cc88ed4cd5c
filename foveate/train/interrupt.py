"""Ctrl-C and termination as a wish to stop after the current step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Wish:
    """True once somebody asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def __bool__(self) -> bool:
        return self.asked


@contextmanager
def stop_wish() -> Iterator[Wish]:
    """Inside, the first Ctrl-C or termination is noted; a second one interrupts at once, except under torchrun.

    >>> with stop_wish() as wish:
    ...     signal.raise_signal(signal.SIGINT)
    ...     bool(wish)
    True
    """
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish  # only the main thread may handle signals
        return
    previous = {number: signal.getsignal(number) for number in SIGNALS}

    # torchrun sends its own signal after the terminal's, and ends what does not stop by itself
    is_patient = "TORCHELASTIC_RUN_ID" in os.environ

    def note(number: int, frame: FrameType | None) -> None:
        if wish.asked and not is_patient:
            raise KeyboardInterrupt
        wish.asked = True

    try:
        for number in SIGNALS:
            signal.signal(number, note)
        yield wish
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
