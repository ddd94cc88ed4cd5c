"""Where the server listens, and what it says if it cannot."""

from __future__ import annotations

import os
import shutil
import socket

import pytest

from foveate.errors import DataError
from foveate.studio import app


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
