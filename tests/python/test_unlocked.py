"""Threads that are in our C++ code, without the GIL, when the job ends."""

from __future__ import annotations

from pathlib import Path

from recording import python

#: Nobody answers: each thread comes back for the GIL after 0.5 s, while the interpreter ends.
ENDS = """
    import sys, threading, time
    from haiprof import _core
    _core.open_ring(sys.argv[1])

    class Lasts:
        def __del__(self, sleep=time.sleep):
            print("ending", flush=True)
            sleep(1.5)

    lasts = Lasts()
    ticket = _core.request_flush()
    for _ in range(4):
        threading.Thread(target=_core.wait_flushed, args=(ticket, 0.5), daemon=True).start()
"""


def test_a_job_ends_as_it_would_while_threads_of_ours_want_the_gil(shm: Path) -> None:
    job = python(ENDS, str(shm / "test.ring"))
    out, err = job.communicate(timeout=60)
    assert (job.returncode, out, err) == (0, "ending\n", "")
