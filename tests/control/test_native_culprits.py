"""Native frames are added to whom a hang is blamed on; tests/cli/test_hang.py has whole jobs."""

from __future__ import annotations

from collections.abc import Sequence

from haiprof.control.doing import Doing
from haiprof.control.hang import Hang, Seen
from haiprof.control.native_culprits import add_native
from haiprof.control.stacks import Frame, Looked, Thread

NAPS = Doing(1, 7, "waiting", "sleeps", None, ("nap (t.py:9)",), busy_thread=(7, 7))
FRAMES = (Frame("clock_nanosleep", "libc.so.6", 0), Frame("nap", "t.py", 9))


def seen(*culprits: Doing) -> Seen:
    return Seen(hang=Hang("rank_never_arrived", "p", "a", (1,), (0,), 6.0, culprits))


def looked(pid: int, thread: int, problem: str = "", native_problem: str = "") -> Looked:
    threads = [Thread(thread, "", "waiting", None, False, FRAMES)]
    named = Looked(pid, f"pid {pid}", 1, ())
    named.threads, named.problem, named.native_problem = threads, problem, native_problem
    return named


def native(found: Seen) -> list[tuple[str, ...]]:
    assert found.hang is not None
    return [one.native for one in found.hang.culprits]


def test_the_thread_that_is_waited_for_is_the_one_that_is_shown() -> None:
    asked = []

    def look(culprit: Doing) -> Sequence[Looked]:
        asked.append(culprit.rank)
        return [looked(8, 9), looked(7, 7)] if culprit.rank == 1 else [looked(8, 9)]

    worker = Doing(2, 3, "waiting", "", None, (), worker=("load (t.py:3)",), busy_thread=(8, 9))
    ended = Doing(3, 4, "", "has ended", None, ())
    found = seen(NAPS, worker, ended)
    add_native(found, look)
    frames = ("clock_nanosleep (libc.so.6)", "nap (t.py:9)")
    assert (native(found), asked, found.problems) == ([frames, frames, ()], [1, 2], [])


def test_why_there_are_none_is_a_line_each() -> None:
    answers = {
        1: [looked(7, 7, native_problem="pystack: not allowed")],
        2: [looked(7, 7, problem="it has ended")],
        3: [],
    }
    found = seen(NAPS, *(Doing(n, 7, "", "", None, ("f",), busy_thread=(7, 7)) for n in (2, 3)))
    add_native(found, lambda culprit: answers[culprit.rank])
    why = ["pystack: not allowed", "it has ended", "it was not found again"]
    lines = [f"rank {n} (pid 7): no native frames: {each}" for n, each in enumerate(why, 1)]
    assert (native(found), found.problems) == ([(), (), ()], lines)


def test_only_three_processes_are_stopped_and_none_without_a_hang() -> None:
    asked: list[int] = []
    found = seen(*[NAPS] * 9)
    add_native(found, lambda culprit: asked.append(culprit.rank) or [looked(7, 7)])
    assert len(asked) == 3
    add_native(Seen(), lambda _: asked.append(0) or [])
    assert len(asked) == 3
