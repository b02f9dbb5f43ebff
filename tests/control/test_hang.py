"""Why a job hangs, from looks that are made up; tests/cli/test_hang.py has whole jobs."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace

import pytest
from recording import wait_for

from haiprof.common.advance import Standing
from haiprof.common.process_life import tracer_of
from haiprof.common.wait_graph import Group, Rank, Wait
from haiprof.control.doing import Doing, _held_by, _leaves
from haiprof.control.hang import Looked, verdict
from haiprof.control.stacks import Frame, Thread

NAPS = Doing(
    0, 7, "waiting", "sleeps", "nap (t.py:9)", ("nap (t.py:9)", "<module> (t.py:20)"), lasts=True
)
ALONE = Looked("r", 0, None, None, NAPS, None, Standing(9, 64.0, 1.5))
ENDS = replace(NAPS, stack=("_shutdown (threading.py:9)",), line=None, leaves=True)


def looked(doing: Doing = NAPS, age_s: float = 64.0, longest_s: float = 1.5) -> Looked:
    return replace(ALONE, doing=doing, standing=Standing(9, age_s, longest_s))


def test_a_process_of_its_own_that_gets_no_further() -> None:
    hang = verdict([ALONE], 60).hang
    assert hang is not None
    assert (hang.kind, hang.ranks, hang.waiting, hang.lasts_s) == ("stands_still", (0,), (), 64.0)
    said = "The job has got no further for 64 s, before for 1.5 s at most; it sleeps"
    assert hang.problem == said
    # Those that wait for it are on another node.
    awaited = Rank({"0": Group("0", 2, 4, "all_reduce", done=4)})
    one = verdict([replace(ALONE, progress=awaited, world_size=2)], 60).hang
    assert one is not None
    assert (one.kind, one.problem[:28]) == ("stands_still", "Rank 0 has got no further fo")
    second = replace(ALONE, rank=1, doing=replace(NAPS, rank=1), standing=None)
    hang = verdict([ALONE, second], 60).hang
    assert hang is not None
    assert hang.problem.startswith("Rank 0 has got no further for 64 s")


@pytest.mark.parametrize("state", ["stopped", "uninterruptible"])
def test_its_state_says_why(state: str) -> None:
    hang = verdict([looked(replace(NAPS, state=state, line=None, stack=()))], 60).hang
    assert hang is not None
    assert hang.kind == state


@pytest.mark.parametrize(
    "one",
    [
        looked(age_s=59),
        looked(longest_s=33),
        looked(replace(NAPS, state="running")),
        looked(replace(NAPS, lasts=False)),
        looked(replace(NAPS, stack=("save (torch/serialization.py:3)", *NAPS.stack))),
        looked(replace(NAPS, line=None)),
        looked(replace(NAPS, stack=(*NAPS.stack, "run (/lib/asyncio/runners.py:3)")), age_s=6000),
        replace(ALONE, standing=None),
        replace(ALONE, longest_s=64.0),
    ],
    ids=["short", "before", "busy", "moves", "saves", "no code", "serves", "begins", "waits"],
)
def test_what_may_only_be_late_is_no_hang(one: Looked) -> None:
    assert verdict([one], 60).hang is None


@pytest.mark.parametrize(
    "doing", [replace(NAPS, state="running"), replace(NAPS, lasts=False)], ids=["busy", "moves"]
)
def test_what_is_busy_is_late_for_ten_times_as_long(doing: Doing) -> None:
    assert verdict([looked(doing, 601)], 60).hang is not None
    assert verdict([looked(doing, 601, 31)], 60).hang is None


def test_whom_a_debugger_holds_does_not_hang_and_neither_does_who_waits_for_it() -> None:
    held = replace(NAPS, rank=1, state="debugged", does="is at a breakpoint, at f (t.py:9)")
    alone = verdict([looked(replace(held, rank=0))], 60)
    assert alone.hang is None
    assert alone.held.endswith("it is at a breakpoint, at f (t.py:9)")
    group = Group("0", 2, 4, "all_reduce", done=3)
    waits = Rank({"0": group}, [Wait("0", 4, "all_reduce", age_s=64)])
    comes = Rank({"0": replace(group, asked=3)})
    seen = verdict([replace(ALONE, progress=waits), replace(ALONE, rank=1, progress=comes,
                                                            doing=held)], 60)  # fmt: skip
    assert seen.hang is None
    assert seen.held.startswith("Rank 1 never came to all_reduce number 4")


def test_who_sleeps_where_no_loop_leads_back_to_its_training_does_not_hang() -> None:
    rests = replace(NAPS, rests=True)
    seen = verdict([looked(rests)], 60)
    assert seen.hang is None
    assert seen.held.startswith("The job has got no further for 64 s, ")
    assert seen.held.endswith("; it sleeps, in no loop of its training")
    one, two = (
        replace(looked(replace(doing, rank=rank)), rank=rank, world_size=2)
        for rank, doing in enumerate((rests, NAPS))
    )
    assert verdict([one, two], 60).hang is not None
    assert verdict([one], 60).hang is not None, "those on another node may wait for it"
    both = [one, replace(two, doing=replace(rests, rank=1))]
    assert verdict(both, 60).hang is None
    # For which another one waits.
    group = Group("0", 2, 4, "all_reduce", done=3)
    waits = Rank({"0": group}, [Wait("0", 4, "all_reduce", age_s=64)])
    absent = replace(one, progress=Rank({"0": replace(group, asked=3)}))
    hang = verdict([absent, replace(two, progress=waits, longest_s=64.0)], 60).hang
    assert hang is not None
    assert (hang.kind, hang.ranks) == ("rank_never_arrived", (0,))


def test_one_that_was_stopped_after_it_had_come_keeps_a_transfer_from_its_end() -> None:
    group = Group("0", 2, 4, "all_reduce", done=3)
    waits = Rank({"0": group}, [Wait("0", 4, "all_reduce", age_s=64)])
    one = replace(ALONE, progress=waits, longest_s=64.0)
    stopped = replace(NAPS, rank=1, state="stopped", does="is stopped by a signal or a debugger")
    stalled = verdict([one, replace(one, rank=1, doing=replace(NAPS, rank=1))], 60).hang
    assert stalled is not None
    assert (stalled.kind, stalled.ranks, stalled.waiting) == ("stalled_transfer", (), (0, 1))
    held = verdict([one, replace(one, rank=1, doing=stopped)], 60).hang
    assert held is not None
    assert (held.kind, held.ranks, held.waiting) == ("stopped", (1,), (0,))
    assert held.problem.endswith("; rank 1 is stopped by a signal or a debugger")


def test_a_thread_that_does_not_end_is_named_with_its_rank() -> None:
    thread = replace(ENDS, rank=1, does="waits at its end for a thread that sleeps", worker=("f",))
    one = replace(ALONE, rank=1, doing=thread)
    hang = verdict([one], 60).hang
    assert hang is not None
    assert (hang.kind, hang.ranks, hang.lasts_s) == ("teardown_hang", (1,), 64.0)
    assert hang.problem == "Rank 1 does not end; rank 1 waits at its end for a thread that sleeps"
    both = verdict([looked(ENDS), one], 60).hang
    assert both is not None
    assert (both.ranks, both.waiting) == ((1,), (0,))
    rest = verdict([looked(ENDS), replace(ALONE, rank=1, doing=replace(NAPS, rank=1))], 60).hang
    assert rest is not None
    assert (rest.kind, rest.ranks, rest.waiting) == ("teardown_hang", (1,), (0,))
    moves = replace(thread, lasts=False, stack=("join (threading.py:9)", *thread.stack))
    assert verdict([replace(one, doing=moves, standing=None)], 60).hang is None


def thread(*frames: tuple[str, str], state: str = "waiting", number: int = 0) -> Thread:
    return Thread(number, "", state, None, False, tuple(Frame(*frame, 1) for frame in frames))


LIB = "/usr/lib/python3.11"


def test_a_breakpoint_is_above_the_line_of_the_job() -> None:
    job = ("f", "/job/t.py")
    debugger = (("cmdloop", f"{LIB}/cmd.py"), ("trace_dispatch", f"{LIB}/bdb.py"))
    assert _held_by(thread(*debugger, job)) == "is at a breakpoint"
    # Under `python -m pdb` all runs below it.
    assert _held_by(thread(job, ("run", f"{LIB}/bdb.py"))) == ""
    assert _held_by(thread(job, state="stopped", number=os.getpid())) == ""


def test_who_traces_a_process() -> None:
    program = (
        "import ctypes, os, time; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), 19)"
    )
    with subprocess.Popen(["python3", "-c", program]) as traced:
        try:
            wait_for(lambda: tracer_of(traced.pid), 30)
            assert tracer_of(traced.pid) == os.getpid()
            held = thread(("f", "/job/t.py"), state="stopped", number=traced.pid)
            assert _held_by(held) == f"is stopped by a debugger (pid {os.getpid()})"
        finally:
            traced.send_signal(signal.SIGKILL)
    assert tracer_of(2**22 + 1) == 0


def test_a_process_leaves_where_its_program_has_ended() -> None:
    shutdown = ("_shutdown", f"{LIB}/threading.py")
    assert _leaves(thread(shutdown))
    assert not _leaves(thread(shutdown, ("<module>", "/job/t.py")))
    assert not _leaves(replace(thread(shutdown), cut=True))
    assert not _leaves(thread())
