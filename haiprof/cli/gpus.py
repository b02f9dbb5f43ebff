"""What can be sampled of this machine's GPUs; for ``haiprof doctor``, in a process of its own.

Tests: tests/cli/test_doctor.py.
"""

from __future__ import annotations

import time
from typing import Any, Final

from haiprof._core import HostSampler, gpu_list

#: Activity counters are means between two readings at least 0.1 s apart.
_APART_SECONDS: Final = 0.15


def look() -> dict[str, Any]:
    """Sample every GPU twice, as a recorder would those of its job.

    Returns:
        ``state``, ``reason`` and ``mend`` of NVML; ``gpus`` and ``sources`` as
        :class:`HostSampler` returns them, and ``changes``: its messages.
    """
    uuids, state, reason, fix = gpu_list()
    sampler = HostSampler(basic=0.0, io=0.0, gpu=_APART_SECONDS)
    for uuid in uuids:
        sampler.use_gpu(uuid)
    if uuids:
        sampler.read(time.monotonic_ns())
        time.sleep(_APART_SECONDS)
        sampler.read(time.monotonic_ns())
        time.sleep(_APART_SECONDS)
        sampler.read(time.monotonic_ns())
    return {
        "state": state,
        "reason": reason,
        "mend": fix,
        "gpus": sampler.gpus(),
        "sources": sampler.sources(),
        "changes": [text for _, text, _ in sampler.changes()],
    }
