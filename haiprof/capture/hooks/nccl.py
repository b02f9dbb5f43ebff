"""What NCCL itself says of its operations, through the profiler plugin that it is offered.

Nothing is attached here: NCCL comes by itself. This says whether it has, and whether it can.

Tests: tests/nccl/test_job.py.
"""

from __future__ import annotations

import os

from haiprof import _core
from haiprof.capture.nccl import OLDEST, PLUGIN, VARIABLE


class NcclOperations:
    """The operations of NCCL's communicators, torch's and others."""

    name = "nccl"

    def attach(self) -> str:
        """Return how they are recorded.

        Raises:
            RuntimeError: torch's NCCL is too old.
        """
        import torch

        if hasattr(torch._C, "_nccl_version"):  # torch was built with it
            require(torch.cuda.nccl.version())
        return self.state()

    def state(self) -> str:
        """Return whether NCCL has loaded the plugin."""
        version = _core.nccl_version_asked()
        if version:
            return f"on: version {version} of NCCL's profiler interface"
        chosen = os.environ.get(VARIABLE, PLUGIN)
        if chosen != PLUGIN:
            return f"waiting: {VARIABLE} has NCCL load {chosen}"
        return "waiting: NCCL has not made a communicator"

    def detach(self) -> None:
        """Leave it: NCCL keeps what it has loaded."""


def require(version: tuple[int, ...]) -> None:
    """Check that an NCCL can load the plugin.

    Raises:
        RuntimeError: it is older than its plugins of a version that is known here.
    """
    if version < OLDEST:
        has, needs = (".".join(map(str, each)) for each in (version, OLDEST))
        raise RuntimeError(f"NCCL {has} is older than {needs} and cannot say what it does")
