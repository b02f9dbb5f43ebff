"""How real programs ended, as the recorder of their run wrote it down."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from recording import process_file, python, read_table, wait_for, wait_recorded

from haiprof.common.owned_files import Folder
from haiprof.common.process_life import Life, start_time_of
from haiprof.common.wait_status import Noted, forget_statuses, note_status, noted_status
from haiprof.recorder.memory_kills import MemoryKills

PATIENCE = 120.0
#: What every program has before its end. Without arguments it ends the same way, unrecorded.
BEGIN = """
import os, resource, signal, sys, threading
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
{before}
if len(sys.argv) > 1:
    import haiprof
    haiprof.start(sys.argv[1], run="run", hooks=False, ring_mib=4)
    haiprof.mark("began")
    haiprof.flush(100)  # the recorder has seen it alive
"""


class Way(NamedTuple):
    """A way to end, and what is to be known of it."""

    ends: str
    kind: str
    code: int | None
    signal: str | None = None
    reason: str | None = None
    text: str = ""
    state: str = "closed"
    before: str = ""


RAISES = """
def deep(n):
    if n:
        deep(n - 1)
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("no \\x1b[31m" + "x" * 9000 + "\\udc80") from error
deep(30)
"""
OWN_HOOK = "sys.excepthook = lambda kind, error, where: print('mine:', error, file=sys.stderr)"
WAYS = {
    "in order": Way("", "finished", 0, text="exit code 0"),
    "exit code": Way("sys.exit(3)", "failed", 3, text="exit code 3"),
    "exit text": Way("sys.exit('the text')", "failed", 1, text="exit code 1"),
    "exception": Way(RAISES, "failed", 1, reason="exception", text="ValueError: no \ufffd[31mxxx"),
    "SIGKILL": Way("os.kill(os.getpid(), 9)", "killed", None, "SIGKILL", None,
                   "killed by SIGKILL (kill -9, or the kernel's out-of-memory killer)", "died"),
    "SIGSEGV": Way("os.kill(os.getpid(), 11)", "killed", None, "SIGSEGV", None,
                   "killed by SIGSEGV (segmentation fault)", "died"),
    "SIGTERM": Way("os.kill(os.getpid(), 15)", "interrupted", None, "SIGTERM", None,
                   "ended by SIGTERM", "died"),
    "Ctrl-C": Way("os.kill(os.getpid(), 2)", "interrupted", None, "SIGINT", "exception",
                  "KeyboardInterrupt (Ctrl-C)"),
    "_exit(0)": Way("os._exit(0)", "finished", 0, text="exit code 0"),
    "_exit(5)": Way("os._exit(5)", "failed", 5, text="exit code 5", state="died"),
    "as a shell": Way("sys.exit(143)", "interrupted", 143, text="exit code 143 (128 + SIGTERM)"),
    "thread": Way("t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
                  "finished", 0, text="exit code 0"),
    "thread, then exit": Way("t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()\n"
                             "sys.exit(4)", "failed", 4, text="exit code 4"),
    "quotes another": Way(
        "class Remote(Exception): pass\n"
        "raise Remote('Caught KeyError in DataLoader worker process 0.\\nOriginal Traceback (most '"
        "'recent call last):\\n  File \"/x/site-packages/torch/w.py\", line 3, in run\\n    f()\\n'"
        "'  File \"/job/data.py\", line 18, in item\\n    raise KeyError(1)\\nKeyError: 1\\n')",
        "failed", 1, None, "exception",
        "Remote: Caught KeyError in DataLoader worker process 0: KeyError: 1 (data.py:18), exit"),
    "hook before": Way("1 / 0", "failed", 1, None, "exception",
                       "ZeroDivisionError: division by zero (<string>:", before=OWN_HOOK),
    "hook after": Way(f"{OWN_HOOK}\n1 / 0", "failed", 1, None, "exception",
                      "ZeroDivisionError: division by zero (<string>:"),
    "hook that fails": Way("sys.excepthook = None\n1 / 0", "failed", 1, None, "exception",
                           "ZeroDivisionError: division by zero (<string>:"),
    "hostile": Way("class Bad(Exception):\n    def __str__(self): raise OSError\nraise Bad",
                   "failed", 1, None, "exception", "Bad: <exception str() failed>"),
    "survived": Way("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n"
                    "    sys.excepthook(type(error), error, error.__traceback__)",
                    "finished", 0, text="exit code 0"),
    "late crash": Way("", "killed", None, "SIGABRT", None,
                      "killed by SIGABRT (abort), while it was exiting",
                      before="import atexit\natexit.register(os.kill, os.getpid(), 6)"),
}  # fmt: skip


def program(way: Way) -> str:
    return BEGIN.format(before=way.before) + way.ends


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The folder of a process for each way, all of one run; what they print is as without us."""
    shm = Path("/dev/shm", f"haiprof-test-ended-{os.getpid()}")
    shm.mkdir()
    logs = tmp_path_factory.mktemp("ended")
    clean = {n: v for n, v in os.environ.items() if not n.startswith("HAIPROF_")}
    started = []
    try:
        for rank, way in enumerate(WAYS.values()):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "HAIPROF_SHM_DIR": str(shm)}
            recorded = python(program(way), str(logs), env=clean | place, cwd=logs)
            plain = python(program(way), env=clean, cwd=logs)
            started.append((recorded, plain))
        # An older kernel has the status until the parent takes it, and no longer.
        for recorded, _ in started:
            os.waitid(os.P_PID, recorded.pid, os.WEXITED | os.WNOWAIT)
        wait_recorded(shm, PATIENCE)
        outputs = [[p.communicate(timeout=PATIENCE) for p in both] for both in started]
        for name, both, printed in zip(WAYS, started, outputs, strict=True):
            assert both[0].returncode == both[1].returncode, (name, printed)
            assert printed[0] == printed[1], name
        run = logs / "run"
        yield {name: next(run.glob(f"*#{rank}")) for rank, name in enumerate(WAYS)}
    finally:
        for both in started:
            for process in both:
                process.kill()
        wait_recorded(shm, PATIENCE)
        for left in sorted(shm.rglob("*"), reverse=True):
            left.unlink() if not left.is_dir() else left.rmdir()
        shm.rmdir()


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_table(folder, "events").to_pylist() if row["kind"] == kind]


@pytest.mark.parametrize("name", WAYS)
def test_how_a_program_ended_is_known(ends: dict[str, Path], name: str) -> None:
    way, about = WAYS[name], process_file(ends[name])
    ended = about["ended"]
    ending = (ended["kind"], ended["exit_code"], ended["signal"], ended["reason"])
    assert ending == (way.kind, way.code, way.signal, way.reason)
    assert way.text in ended["text"]
    assert (name != "exception") or "after KeyError: 'missing'" in ended["text"]
    assert about["state"] == way.state
    assert len(ended["text"]) < 600
    assert ended["text"].isprintable()
    (event,) = rows(ends[name], "exit")
    assert ended["text"] in event["text"]
    assert json.loads(event["attributes"]) == ended
    assert 0 < ended["failed_ns"] <= min(ended["time_ns"], about["ended_ns"])


def test_an_exception_is_an_event_with_its_last_lines_and_its_cause(ends: dict[str, Path]) -> None:
    (event,) = rows(ends["exception"], "exception")
    assert event["text"].startswith("ValueError: no \x1b[31mxxx")
    assert event["text"].endswith(", after KeyError: 'missing'")
    assert len(event["text"]) < 1100
    document = json.loads(event["attributes"])
    assert document["type"] == "ValueError"
    assert document["function"] == "deep"
    assert len(document["traceback"]) <= 4096
    assert "KeyError: 'missing'\nwhich led to\n" in document["traceback"]
    assert document["traceback"].count("in deep") >= 2


def test_an_exception_of_a_thread_is_an_event_and_no_end(ends: dict[str, Path]) -> None:
    for name in ("thread", "thread, then exit"):
        (event,) = rows(ends[name], "exception")
        assert json.loads(event["attributes"])["thread"].startswith("Thread-1")
        assert "ZeroDivision" not in process_file(ends[name])["ended"]["text"]


FORKS = """
import multiprocessing, os, sys
import haiprof
haiprof.start(sys.argv[1], run="run", hooks=False, ring_mib=4)
haiprof.mark("began")
haiprof.flush(100)  # the recorder has seen the rank before its children

def wait_until_seen(child):
    # An older kernel has the status until the parent takes it, and no longer.
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    haiprof.flush(100)
    haiprof.flush(100)  # the recorder has gone round once since the child ended

for code in (0, 5):
    child = os.fork()
    if child == 0:
        haiprof.mark("child")
        haiprof.flush(100)  # the recorder has seen it alive
        os._exit(code)
    wait_until_seen(child)
    os.waitpid(child, 0)

def work(how):
    haiprof.mark("worker")
    haiprof.flush(100)
    try:
        if how != "well":
            raise RuntimeError(how)
    except RuntimeError:
        if how == "as torch does":
            sys.exit(1)
        raise

context = multiprocessing.get_context("fork")
for how in ("well", "badly", "as torch does"):
    worker = context.Process(target=work, args=(how,))
    worker.start()
    wait_until_seen(worker.pid)
    worker.join()
print(os.getpid())
"""


def test_forked_children_end_each_in_its_way_and_the_rank_in_order(
    shm: Path, tmp_path: Path
) -> None:
    process = python(FORKS, str(tmp_path))
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "RuntimeError: badly" in err  # as multiprocessing shows it
    wait_recorded(shm, PATIENCE)
    about = {p: process_file(p) for p in tmp_path.glob("run/*#0*")}
    rank = next(a for p, a in about.items() if p.name.endswith("#0"))
    assert rank["ended"]["kind"] == "finished"
    children = sorted(
        (a for a in about.values() if a is not rank), key=lambda a: int(a["started_ns"])
    )
    endings = [(a["ended"]["kind"], a["ended"]["exit_code"], a["ended"]["text"]) for a in children]
    assert endings[:3] == [
        ("finished", 0, "exit code 0"),
        ("failed", 5, "exit code 5"),
        ("finished", 0, "exit code 0"),
    ]
    assert [t[:2] for t in endings[3:]] == [("failed", 1), ("failed", 1)]
    assert endings[3][2].startswith("RuntimeError: badly")
    assert endings[4][2].startswith("RuntimeError: as torch does")
    assert {a["ended"]["parent_pid"] for a in children} == {int(out)}
    assert [a["state"] for a in children] == ["closed", "died", "closed", "closed", "closed"]


def test_a_job_of_slurm_that_waits_for_its_files_is_known_to_have_failed_and_how(
    shm: Path, tmp_path: Path
) -> None:
    words = [str(tmp_path)]
    job = {**os.environ, "SLURM_JOB_ID": "7"}
    stays = python(
        BEGIN.format(before="") + "sys.stdin.read()",
        *words,
        env=job | {"RANK": "1", "LOCAL_RANK": "1"},
        stdin=subprocess.PIPE,
    )
    try:
        wait_for(lambda: list(tmp_path.glob("run/*#1/process.json")), PATIENCE, "rank 1")
        for code, ends in ((1, RAISES), (3, "sys.exit(3)")):
            place = {"RANK": str(code + 1), "LOCAL_RANK": str(code + 1)}
            fails = python(BEGIN.format(before="") + ends, *words, env=job | place)
            os.waitid(os.P_PID, fails.pid, os.WEXITED | os.WNOWAIT)
            (folder,) = tmp_path.glob(f"run/*#{code + 1}")
            wait_for(functools.partial(_ended_with, folder, code), PATIENCE, "its end")
            fails.communicate(timeout=PATIENCE)
            assert fails.returncode == code
            ended = process_file(folder)["ended"]
            assert (ended["kind"], ended["exit_code"]) == ("failed", code)
            assert ended["text"].startswith("ValueError" if code == 1 else "exit code 3")
            assert not list(folder.glob("*.arrows"))
    finally:
        stays.communicate(timeout=PATIENCE)
    wait_recorded(shm, PATIENCE)


def _ended_with(folder: Path, code: int) -> bool:
    return (process_file(folder)["ended"] or {}).get("exit_code") == code


def test_a_recording_that_is_stopped_says_nothing_of_the_end(shm: Path, tmp_path: Path) -> None:
    way = Way("import sys\nexcepthook = sys.excepthook\nhaiprof.stop()\n"
              "assert sys.excepthook is sys.__excepthook__\n1 / 0", "", None)  # fmt: skip
    process = python(program(way), str(tmp_path))
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    wait_recorded(shm, PATIENCE)
    (folder,) = tmp_path.glob("run/*#0")
    assert process_file(folder)["ended"]["kind"] == "stopped"
    assert process_file(folder)["state"] == "closed"


# -- where the status comes from -----------------------------------------------------------------


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with exit code 7 once its input is closed."""
    process = subprocess.Popen(["sh", "-c", "read line; exit 7"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def ended_life(child: subprocess.Popen[bytes]) -> Life:
    started = start_time_of(child.pid)
    assert started is not None
    life = Life(child.pid, started)
    assert not life.ended()
    assert child.stdin is not None
    child.stdin.close()
    return life


def test_the_status_of_a_child_is_read_before_its_parent_takes_it(
    child: subprocess.Popen[bytes],
) -> None:
    life = ended_life(child)
    wait_for(life.ended, 60.0, "its end")
    assert life.status == 7 << 8
    assert life.ended_at is not None
    life.close()


def test_the_status_of_a_child_that_its_parent_has_taken_is_in_the_pidfd_or_unknown(
    child: subprocess.Popen[bytes],
) -> None:
    life = ended_life(child)
    assert child.wait(60) == 7
    assert life.ended()
    newer = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)
    assert life.status == (7 << 8 if newer else None)
    life.close()


def test_a_status_that_reads_as_nought_is_no_proof_where_it_is_hidden() -> None:
    from haiprof.common.wait_status import status_in_stat

    stat = ["Z", *["0"] * 18, "123", *["0"] * 30]
    assert status_in_stat(stat, 123, shown=True) == 0
    assert status_in_stat(stat, 123, shown=False) is None
    assert status_in_stat(stat, 124, shown=True) is None
    assert status_in_stat(["R", *stat[1:]], 123, shown=True) is None
    stat[49] = "9"
    assert status_in_stat(stat, 123, shown=False) == 9


def test_a_note_of_the_parent_holds_for_that_very_process(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path)
    note_status(folder, 41, 1000, Noted(3 << 8, signal.SIGTERM))
    assert noted_status(folder, 41, 1000) == (3 << 8, signal.SIGTERM)
    assert noted_status(folder, 41, 1001) is None
    assert noted_status(folder, 42, 1000) is None
    (tmp_path / "41.status").write_text("nonsense")
    assert noted_status(folder, 41, 1000) is None
    forget_statuses(folder)
    assert not list(tmp_path.iterdir())


# -- the kernel's kills for memory ---------------------------------------------------------------


class Machine:
    """A procfs and a control group that counts, as files."""

    def __init__(self, top: Path) -> None:
        self.procfs, self.group = top / "proc", top / "cgroup/job"
        for folder in (self.procfs / "self", self.group):
            folder.mkdir(parents=True)
        mount = f"31 23 0:27 / {top}/cgroup rw - cgroup2 cgroup2 rw\n"
        (self.procfs / "self/mountinfo").write_text(mount)
        (self.procfs / "vmstat").write_text("pgfault 3\noom_kill 4\n")
        (top / "cgroup/memory.max").write_text("max\n")
        (self.group / "memory.max").write_text(f"{2 << 30}\n")
        self.kills(0)

    def kills(self, count: int) -> None:
        (self.group / "memory.events").write_text(f"low 0\noom {count}\noom_kill {count}\n")

    def process(self, pid: int, group: str = "/job") -> tuple[int, int]:
        (self.procfs / str(pid)).mkdir()
        (self.procfs / f"{pid}/cgroup").write_text(f"0::{group}\n")
        return pid, 1000 + pid


def test_a_kill_that_the_control_group_counted_is_proven(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    kills, who = MemoryKills(str(machine.procfs)), machine.process(7)
    kills.join(*who)
    machine.kills(1)
    kills.judge({who: True})
    verdict = kills.verdict(*who)
    assert verdict.proven
    assert verdict.limit == 2 << 30


def test_kills_before_a_process_and_after_its_end_are_not_its_own(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.kills(3)
    kills, one, two = MemoryKills(str(machine.procfs)), machine.process(7), machine.process(8)
    kills.join(*one)
    kills.join(*two)
    kills.judge({one: True})
    assert not kills.verdict(*one).proven
    machine.kills(4)  # a worker, say, whose rank fails for it
    kills.judge({two: False})
    assert kills.verdict(*two).kills == 1
    assert not kills.verdict(*one).proven


def test_of_two_that_were_killed_together_neither_is_accused_of_one_kill(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    kills, both = MemoryKills(str(machine.procfs)), [machine.process(7), machine.process(8)]
    for who in both:
        kills.join(*who)
    machine.kills(1)
    kills.judge(dict.fromkeys(both, True))
    assert [kills.verdict(*who).kills for who in both] == [1, 1]
    assert not any(kills.verdict(*who).proven for who in both)


def test_a_kill_on_the_machine_proves_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    kills, who = MemoryKills(str(machine.procfs)), machine.process(7, "/")
    kills.join(*who)
    (machine.procfs / "vmstat").write_text("oom_kill 5\n")
    kills.judge({who: True})
    assert kills.verdict(*who) == (1, 1, False, None)
    assert not kills.verdict(*who).proven


def test_a_control_group_that_was_removed_says_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    kills, who = MemoryKills(str(machine.procfs)), machine.process(7)
    kills.join(*who)
    (machine.group / "memory.events").unlink()
    kills.judge({who: True})
    assert kills.verdict(*who).kills == 0


def test_a_job_that_the_kernel_kills_for_memory_is_known_to_be(
    shm: Path, tmp_path: Path, memory_group: Path
) -> None:
    from commands import haiprof, the_run

    fills = textwrap.dedent(
        f"""
        import os, haiprof
        open("{memory_group}/cgroup.procs", "w").write(str(os.getpid()))
        haiprof.start(ring_mib=4)
        haiprof.mark("began")
        haiprof.flush(60)
        kept = []
        while True:
            kept.append(b"x" * (8 << 20))
        """
    )
    words = ["--log-dir", tmp_path, "--no-hooks", "--", sys.executable, "-c", fills]
    done = haiprof("run", *words)
    assert done.returncode == -signal.SIGKILL
    text = "killed by the kernel: out of memory (cgroup limit 200 MiB)"
    assert text in done.stderr
    (folder,) = the_run(tmp_path).glob("*#0")
    ended = process_file(folder)["ended"]
    assert (ended["reason"], ended["signal"], ended["text"]) == ("out of memory", "SIGKILL", text)
