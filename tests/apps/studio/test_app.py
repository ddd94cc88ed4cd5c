"""Where the server listens, and what it says if it cannot."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys

import pytest

from foveate.apps.studio import app
from foveate.errors import DataError


def test_the_first_free_port_is_taken(monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(DataError, match=r"studio: expected a free port, got .*; choose another --port or --host"):
            app._listen("127.0.0.1", taken)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = probe.getsockname()[1]
        monkeypatch.setattr(app, "PORTS", [taken, free])
        with app._listen("127.0.0.1", None) as listener:
            assert listener.getsockname() == ("127.0.0.1", free)
            assert app._address("127.0.0.1", listener) == f"http://127.0.0.1:{free}/"
            assert app._address("0.0.0.0", listener) == f"http://localhost:{free}/"
            assert app._address("::1", listener) == f"http://[::1]:{free}/"


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("127.0.0.1", 99999999),
        ("127.0.0.1", -1),
        ("127.0.0.1", 2**70),
        ("no such host", 7860),
        ("1.2.3.4", 0),
        ("ä" * 99, 1),
    ],
)
def test_a_wrong_host_or_port_raises_data_error(host, port):
    with pytest.raises(DataError, match=r"studio: expected a (free port|host|port from 0 to 65535), got"):
        app._listen(host, port)


NO_CHOICE = """
import gradio, sys
from pathlib import Path
from foveate.apps.studio import app
page = app.make_studio(Path(sys.argv[1]))
app.mount_page(page, {})
kinds = gradio.Dropdown | gradio.Radio | gradio.CheckboxGroup
tried = 0
for function in page.fns.values():
    for place, block in enumerate(function.inputs):
        if isinstance(block, kinds):
            values = [None] * len(function.inputs)
            values[place] = "no such choice"
            try:
                page.preprocess_data(function, values, None).send(None)  # nothing in it waits
            except gradio.Error as error:
                assert "cannot be read" in error.message and not error.print_exception
                tried += 1
assert tried > 3, tried
"""


def test_a_value_that_is_no_choice_leaves_no_traceback_in_the_terminal(tmp_path):
    pytest.importorskip("gradio")
    done = subprocess.run([sys.executable, "-c", NO_CHOICE, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_gradio_gets_a_directory_of_its_own_that_is_removed(monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")  # so that what load_gradio sets is undone after the test
    monkeypatch.delenv("GRADIO_TEMP_DIR")
    later = []
    monkeypatch.setattr(app.atexit, "register", lambda *call, **options: later.append((call, options)))
    monkeypatch.setattr(app, "optional", lambda *_, **__: type("Gradio", (), {"__version__": "6.1"}))
    app.load_gradio()
    directory = os.environ["GRADIO_TEMP_DIR"]
    app.load_gradio()
    assert os.environ["GRADIO_TEMP_DIR"] == directory
    assert os.stat(directory).st_mode & 0o777 == 0o700
    assert later == [((shutil.rmtree, directory), {"ignore_errors": True})]
    shutil.rmtree(directory)
    monkeypatch.setattr(app, "optional", lambda *_, **__: type("Gradio", (), {"__version__": "5.9"}))
    with pytest.raises(DataError, match=r"studio: expected gradio 6 or newer, got 5.9; run: pip install -U gradio"):
        app.load_gradio()


HEAP = """
import ctypes, sys
if sys.argv[1] == "limited":
    from foveate.apps.studio.app import limit_heap
    limit_heap()

def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def block(size):
    address = library.malloc(size)
    ctypes.memset(address, 1, size)
    return address

library.free(block(20_000_000))  # after this, glibc keeps blocks of up to this size
before, large, small = held(), [], []
for _ in range(20):
    large.append(block(6_000_000))
    small.append(block(64_000))
for address in large:
    library.free(address)
print(held() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these options")
def test_large_blocks_return_to_the_system():
    def kept(kind: str) -> float:
        done = subprocess.run([sys.executable, "-c", HEAP, kind], capture_output=True, text=True, check=True)
        return float(done.stdout)

    assert kept("plain") > 60  # megabytes of 120
    assert kept("limited") < 20
