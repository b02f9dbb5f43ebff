"""Offers NCCL the profiler plugin that is in haiprof's compiled module (``src/nccl``).

Tests: tests/nccl/test_job.py.
"""

from __future__ import annotations

import os
from typing import Final

from haiprof.common.threads import own

#: What NCCL is to load. It finds the compiled module by it, where that is loaded, and nothing else.
PLUGIN: Final = "libhaiprof-nccl.so"
VARIABLE: Final = "NCCL_PROFILER_PLUGIN"
#: The first NCCL whose plugins are of a version that is known here.
OLDEST: Final = (2, 27)


def offer() -> None:
    """Have NCCL load it, unless the job has NCCL load another.

    Only from the program's own thread: the environment of a job that runs may be read meanwhile.
    """
    if own("_thread", "get_native_id")() == os.getpid():
        os.environ.setdefault(VARIABLE, PLUGIN)
