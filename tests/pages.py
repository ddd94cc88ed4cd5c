"""A page of foveate on a free port, and the browser that visits it; `make browsers` brings what this needs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
WAIT = 300  # seconds until the page must answer


def skip_without_browser() -> None:
    """Skip the test if gradio, playwright or chromium is missing."""
    for package in ("gradio", "playwright"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make browsers")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: make browsers")


@contextmanager
def serve(*arguments: str) -> Iterator[str]:
    """The address of a page while `foveate ARGUMENTS --port PORT` serves it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "foveate", *arguments, "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield _wait(f"http://127.0.0.1:{port}/", server)
    finally:
        server.terminate()
        server.wait(30)


def _wait(address: str, server: subprocess.Popen) -> str:
    for _ in range(2 * WAIT):
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return address
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.5)
    raise RuntimeError(f"the page did not start, exit code {server.poll()}")
