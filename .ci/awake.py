"""Keep memory of this machine in use, at idle priority, until what started this has ended.

Some hosts take memory from a virtual machine that rests, and each page then costs tens of
microseconds of CPU time when it is next used. Programs that mostly wait, as tests do, pay for that
each time they wake up: `import torch` took 2.6 to 5.9 s of CPU time there, and 1.4 to 1.8 s beside
this.
"""

from __future__ import annotations

import mmap
import os
import time

#: Half of it was too little there.
BYTES = 512 << 20


def main() -> None:
    """Read each page again and again."""
    parent = os.getppid()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    memory = mmap.mmap(-1, BYTES)
    for page in range(0, BYTES, mmap.PAGESIZE):
        memory[page] = 1
    while os.getppid() == parent:
        _ = memory[:: mmap.PAGESIZE]
        time.sleep(0.02)


if __name__ == "__main__":
    main()
