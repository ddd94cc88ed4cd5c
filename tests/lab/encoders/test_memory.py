"""Freed memory is kept while the body runs, and returned afterwards."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from contextlib import nullcontext
from foveate.lab.encoders.extraction import keep_freed_memory
import numpy as np

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(20 << 20, np.uint8)
        np.ones(100 << 20, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with keep_freed_memory():
    faults()
    kept = faults()
after = faults()
print(kept, after)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_buffers_are_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    kept, after = map(int, done.stdout.split())
    assert kept < 1000 < after
