"""`foveate studio`: the web page."""

from __future__ import annotations

from pathlib import Path

from foveate.errors import DataError


def studio(
    *, port: int | None = None, host: str = "127.0.0.1", runs: Path = Path("runs"), no_verify: bool = False
) -> None:
    """Serve a web page to ask questions, try mechanisms and view results; stop it with Ctrl-C.

    Args:
        port: port to listen on; by default the first free one from 7860.
        host: address to listen on; by default only this machine can connect. Anyone who can reach it can use the runs
            and see the reports.
        runs: directory whose runs and reports are shown besides the embedded ones.
        no_verify: skip the checksums of search indexes.
    """
    if port is not None and not 0 < port < 65536:
        raise DataError(f"studio: expected a port from 1 to 65535, got {port}; leave it out to use the first free one")
    from foveate.apps.studio.app import serve

    serve(runs, host=host, port=port, verify=not no_verify)
