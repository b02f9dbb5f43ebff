"""What all tests share."""

import os
import sys

from fixtures import away_from_the_checkout, native_build, shm
from hypothesis import settings
from real_data import (
    pytest_addoption,
    pytest_configure,
    pytest_ignore_collect,
    pytest_terminal_summary,
)

__all__ = [
    "away_from_the_checkout",
    "native_build",
    "pytest_addoption",
    "pytest_configure",
    "pytest_ignore_collect",
    "pytest_terminal_summary",
    "shm",
]

# Compiling all tests takes each worker longer than collecting them, whatever
# PYTHONDONTWRITEBYTECODE says of the programs that they start.
sys.dont_write_bytecode = False

# Each of the hundreds of programs that tests start would start a thread per core for algebra that
# none of them does.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
