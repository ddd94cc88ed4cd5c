"""The command `foveate`, also `python -m foveate`: signals are handled before anything else is imported."""

import os
import signal
import sys


def main() -> int:
    """Run the command line; before it is ready, and while the program ends, a signal stops it without a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os._exit(128 + number))
    from foveate.apps.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
