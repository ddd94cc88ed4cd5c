"""One thread a test process: the tests run side by side, and forked trainings would be warned of an unset number."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
