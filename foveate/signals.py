"""SIGINT and SIGTERM stop a program: they become `Interrupted`, at once or after the work that is in progress."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal has stopped the program; the message says what has been saved, if anything needs to be said.

    >>> Interrupted("everything is saved", signal.SIGTERM).exit_code
    143
    """

    def __init__(self, message: str = "", number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number = int(number)

    @property
    def exit_code(self) -> int:
        """The exit code of a program that this signal has stopped: 130 after SIGINT, 143 after SIGTERM."""
        return 128 + self.number


class StopRequest:
    """True once a signal has asked the process to stop."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.number: int | None = None
        self._at_once, self._message = at_once, ""

    def __bool__(self) -> bool:
        return self.number is not None

    def check(self) -> None:
        """Raises Interrupted if a signal has been received."""
        if self.number is not None:
            raise Interrupted(self._message, self.number)

    @contextmanager
    def at_once(self, message: str = "") -> Iterator[None]:
        """While the body runs, a signal raises Interrupted with this message, also one that came before."""
        before = self._at_once, self._message
        self._at_once, self._message = True, message
        try:
            self.check()
            yield
            self.check()  # a library may have caught the exception
        finally:
            self._at_once, self._message = before

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        # torchrun sends a second signal after that of the terminal, and kills processes that do not stop.
        second = self.number is not None
        if second and "TORCHELASTIC_RUN_ID" in os.environ:
            return
        self.number = self.number or number
        if second or self._at_once:
            self.check()


@contextmanager
def handle_signals(*, at_once: bool = False) -> Iterator[StopRequest]:
    """Handle SIGINT and SIGTERM in the body: the first is recorded, a second one raises Interrupted.

    A signal is never lost: what the body has not answered is raised at its end, and one that an enclosing body has
    received is raised at its beginning. Only the main thread handles signals.

    Args:
        at_once: raise Interrupted at the first signal.

    >>> try:
    ...     with handle_signals() as stop:
    ...         stop.handle(signal.SIGTERM, None)  # what a signal calls
    ...         print(bool(stop))
    ... except Interrupted as end:
    ...     print(end.exit_code)
    True
    143
    """
    stop = StopRequest(at_once=at_once)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        stop.check()
        return
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    for outer in (getattr(handler, "__self__", None) for handler in previous.values()):
        if isinstance(outer, StopRequest):
            outer.check()
    try:
        for number in SIGNALS:
            signal.signal(number, stop.handle)
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    stop.check()
