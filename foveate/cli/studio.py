"""`foveate studio`: the web page."""

from __future__ import annotations

from pathlib import Path


def studio(*, port: int | None = None, host: str = "127.0.0.1", runs: Path = Path("runs")) -> None:
    """Open a page on this machine to ask, to play with mechanisms and to look at results; stop it with Ctrl-C.

    Args:
        port: to listen on; the first free one from 7860 on when absent.
        host: to listen on, this machine alone unless told; whoever reaches it can ask the runs, and see the reports.
        runs: folder whose runs and reports are offered besides the embedded ones.
    """
    from foveate.studio.app import serve

    serve(runs, host=host, port=port)
