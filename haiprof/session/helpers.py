"""Which processes are somebody's helper, and whose ring counts what those submit."""

from __future__ import annotations

import os
import sys
from typing import Final

from haiprof import _core
from haiprof.places import ring_dir, ring_root
from haiprof.recorder.life import parent_of, start_time_of

#: A fork server stands between a rank and its workers, a shell or a starter may, too.
_LEVELS_ABOVE: Final = 4


def join_process_above() -> None:
    """Count what we submit in the ring of a process above us until we have one of our own.

    A DataLoader worker that is spawned never has.
    """
    pid = os.getppid()
    for _ in range(_LEVELS_ABOVE):
        started = start_time_of(pid)
        if started is None:
            return
        for ring in ring_root().glob(f"{ring_dir('*').name}/{pid}.*"):
            if _core.join_counters(str(ring), pid, started):
                return
        pid = parent_of(pid)


def is_dataloader_worker() -> bool:
    """Say whether this process loads data for another one."""
    torch_data = sys.modules.get("torch.utils.data")
    try:
        return torch_data is not None and torch_data.get_worker_info() is not None
    except Exception:
        return False
