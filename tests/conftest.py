"""What all tests share."""

import contextlib
import gc
import os
import signal
import sys
from pathlib import Path
from typing import Final

import pytest
from fixtures import away_from_the_checkout, memory_group, native_build, shm
from hypothesis import settings
from real_data import (
    pytest_addoption,
    pytest_configure,
    pytest_ignore_collect,
    pytest_terminal_summary,
)

__all__ = [
    "away_from_the_checkout",
    "memory_group",
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

# `haiprof run train.py` takes the Python of PATH; a virtual environment need not be active here.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

# A shell that starts the tests in the background has Ctrl-C ignored, and so have the programs that
# they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):  # not on the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """Keep the garbage collector from what was imported: it took an eighth of a worker's time."""
    gc.freeze()


#: Folders of tests that mostly wait for programs. With several workers they begin: at the end of a
#: run one worker would wait for the last of them, and the others have nothing to do.
_WAITING: Final = ("stacks", "control", "capture", "cli", "gpu", "recorder", "beside", "fuzz")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have the tests of those folders come first, unless the order is to be random."""
    here = Path(__file__).parent
    if config.pluginmanager.hasplugin("randomly"):
        return

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(here).parts[0] if here in item.path.parents else ""
        return _WAITING.index(folder) if folder in _WAITING else len(_WAITING)

    items.sort(key=place)
