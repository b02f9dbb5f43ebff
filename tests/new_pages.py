"""How much memory a process gets anew from the system; a file that its workers can import."""

from __future__ import annotations

import resource

import numpy as np


def new_pages(_: object) -> int:
    """Allocate and free 8 MB in small blocks, again and again; return how many new pages came."""

    def faults() -> int:
        sum(block.size for block in [np.ones(50_000) for _ in range(20)])
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    before = faults()
    return max(faults() for _ in range(20)) - before
