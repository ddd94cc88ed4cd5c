"""`python -m foveate` is the command line."""

import sys

from foveate.apps.cli import main

if __name__ == "__main__":
    sys.exit(main())
