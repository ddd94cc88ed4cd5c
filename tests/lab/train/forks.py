"""Run a function in processes of its own, that may be killed, without waiting for torch to be imported again."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable

import torch


def forked(function: Callable[[], None], environment: dict[str, str] | None = None) -> int:
    """Start the function in a child and return the child's process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python 3.12 warns of forks with threads; none computes here
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ.update(environment or {})
        torch.set_num_threads(1)
        _forget_accelerate()
        function()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(pid: int) -> int:
    """The exit code of a child, minus the signal when one ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(function: Callable[[], None]) -> int:
    """Run the function in a child to its end."""
    return wait(forked(function))


def in_processes(count: int, function: Callable[[], None]) -> list[int]:
    """Run the function in `count` children that work together as torchrun's do, and return their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    pids = [forked(function, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(count)]
    return [wait(pid) for pid in pids]


def die() -> None:
    """End this process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def _forget_accelerate() -> None:
    from accelerate.state import AcceleratorState, PartialState

    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
