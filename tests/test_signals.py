"""Signals become `Interrupted`, and none is lost."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

import pytest

from foveate.signals import Interrupted, handle_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_recorded_and_raised_at_the_end(number: int) -> None:
    seen = []

    def work() -> None:
        with handle_signals() as stop:
            seen.append(bool(stop))
            signal.raise_signal(number)
            seen.append(bool(stop))

    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as error:
        work()
    assert seen == [False, True]
    assert error.value.exit_code == 128 + number
    assert signal.getsignal(number) is before


def test_the_second_is_raised_at_once_and_keeps_the_first_number() -> None:
    def work() -> None:
        with handle_signals():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the second signal was ignored")

    with pytest.raises(Interrupted) as error:
        work()
    assert error.value.number == signal.SIGTERM


def test_what_a_library_swallows_is_raised_later() -> None:
    trained = []

    def work() -> None:
        with handle_signals(at_once=True):
            with suppress(BaseException):
                signal.raise_signal(signal.SIGINT)
            with handle_signals():
                trained.append("the next training")

    with pytest.raises(Interrupted):
        work()
    assert not trained
    with pytest.raises(Interrupted), handle_signals(at_once=True), suppress(BaseException):
        signal.raise_signal(signal.SIGINT)


def test_a_part_can_be_stopped_at_once() -> None:
    def work(before: bool) -> None:
        with handle_signals() as stop:
            if before:
                signal.raise_signal(signal.SIGINT)
            with stop.at_once("all saved"):
                assert not before
                signal.raise_signal(signal.SIGINT)
                pytest.fail("the signal was deferred")

    for before in (False, True):
        with pytest.raises(Interrupted, match="all saved"):
            work(before)


def test_another_error_is_not_replaced() -> None:
    def work() -> None:
        with handle_signals():
            signal.raise_signal(signal.SIGINT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def test_other_threads_handle_none() -> None:
    found = []

    def work() -> None:
        with handle_signals() as stop:
            found.append(bool(stop))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]
