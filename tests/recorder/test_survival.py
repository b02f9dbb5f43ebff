"""The recorder and what may happen to it and to those it records."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import struct
import subprocess
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from recording import (
    process_file,
    python,
    read_table,
    recorders,
    run_python,
    the_recorder,
    wait_for,
    wait_recorded,
)

from haiprof import _core

pytestmark = pytest.mark.jobs

START = """
    import haiprof, os, sys, time
    session = haiprof.start(sys.argv[1], run="run", hooks=False)
"""


def mixed(n: int) -> int:
    """The twin of ``mix`` in tests/native/checked_record.h."""
    mask = (1 << 64) - 1
    x = (n + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def torn_and_missing(folder: Path, acknowledged: list[int]) -> tuple[int, int]:
    """Count records of a killed pusher that are wrong, and acknowledged ones that are not there."""
    spans = read_table(folder, "spans", pauses=True)
    torn = missing = 0
    if spans.num_rows == 0:
        return 0, sum(acknowledged)
    threads = spans["thread"].to_pylist()
    numbers = [None if c is None else c - 1 for c in spans["correlation"].to_pylist()]
    steps = spans["step"].to_pylist()
    categories = spans["category"].to_pylist()
    per_thread: dict[int, list[int]] = {}
    for thread, n, step, category in zip(threads, numbers, steps, categories, strict=True):
        if (
            n is None
            or step != mixed(n) & 0x7FFFFFFF
            or category != _core.CATEGORIES[1 + mixed(n) % 11]
        ):
            torn += 1
            continue
        per_thread.setdefault(thread, []).append(n)
    # Which thread is which lane is not recorded; the counts show it.
    reached = sorted((ns[-1] + 1 if ns else 0) for ns in per_thread.values())
    for ns in per_thread.values():
        missing += sum(b - a - 1 for a, b in pairwise(ns))
    for got, wanted in zip(reached[::-1], sorted(acknowledged)[::-1], strict=False):
        missing += max(0, wanted - got)
    missing += sum(sorted(acknowledged)[::-1][len(reached) :])
    return torn, missing


def kill_pushers(
    native_build: Path, shm: Path, tmp_path: Path, kills: int, mode: str
) -> tuple[int, int]:
    """Kill ``kills`` pushing processes at random moments under one recorder."""
    from haiprof.common.places import make_private, ring_dir, ring_root
    from haiprof.common.process_life import start_time_of
    from haiprof.options import Options
    from haiprof.recorder.command import Command, write_note
    from haiprof.recorder.launch import start_recorder

    rings, run_dir = ring_dir(tmp_path / "kill"), tmp_path / "kill"
    make_private(ring_root())
    make_private(rings)
    keeper = subprocess.Popen(["sleep", "600"])
    started = start_time_of(keeper.pid)
    assert started is not None
    write_note(rings, Command(keeper.pid, started))
    start_recorder(rings, run_dir, Options(sample_hz=0.1))
    folders: list[tuple[str, Path]] = []
    try:
        for i in range(kills):
            counts = tmp_path / f"acknowledged-{i}"
            pusher = subprocess.Popen(
                [native_build / "tests" / "native" / "ring_pusher", rings / f"{i}.ring", run_dir,
                 f"node{i}", counts, "2", mode],
                stdout=subprocess.PIPE,
            )  # fmt: skip
            assert pusher.stdout is not None
            assert pusher.stdout.readline() == b"ready\n"
            time.sleep(0.01 + (mixed(i) % 1000) / 20_000)
            pusher.kill()
            pusher.wait()
            pusher.stdout.close()
            folders.append((f"node{i}#0", counts))
            # The rings wait on tmpfs, 8 MiB each.
            wait_for(lambda: len(list(rings.glob("*.ring"))) < 20, what="the drain of dead rings")
        wait_for(lambda: not list(rings.glob("*.ring")), what="the drain of dead rings")
    finally:
        keeper.kill()
        keeper.wait()
    wait_recorded(shm)
    torn = missing = 0
    for name, counts in folders:
        acknowledged = list(struct.unpack("2Q", counts.read_bytes()[:16]))
        assert process_file(run_dir / name)["state"] == "died"
        if mode == "paced":
            assert process_file(run_dir / name)["lost"]["records"] == 0
        t, m = torn_and_missing(run_dir / name, acknowledged)
        torn, missing = torn + t, missing + m
    return torn, missing


def test_every_committed_record_survives_200_kills(
    native_build: Path, shm: Path, tmp_path: Path
) -> None:
    assert kill_pushers(native_build, shm, tmp_path, 200, "paced") == (0, 0)


def test_no_record_of_a_process_killed_at_full_speed_is_torn(
    native_build: Path, shm: Path, tmp_path: Path
) -> None:
    assert kill_pushers(native_build, shm, tmp_path, 60, "fast")[0] == 0


def test_the_same_check_catches_a_writer_that_commits_first(
    native_build: Path, shm: Path, tmp_path: Path
) -> None:
    torn = 0
    for attempt in range(10):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        torn += kill_pushers(native_build, shm, folder, 60, "commit-first")[0]
        if torn:
            break
    assert torn > 0


def test_eight_processes_of_one_run_share_one_recorder(shm: Path, tmp_path: Path) -> None:
    program = (
        START
        + """
    what = sys.argv[2]
    for i in range(20_000):
        with haiprof.range("work"):
            pass
        if i % 100 == 0:
            time.sleep(0.001)
        if what == "fork" and i == 10_000:
            if os.fork() == 0:
                for _ in range(500):
                    with haiprof.range("child"):
                        pass
                haiprof.stop()
                os._exit(0)
            os.wait()
        if what == "killed" and i == 15_000:
            haiprof.flush()
            with haiprof.range("last words"):
                pass
            os.kill(os.getpid(), 9)
    if what == "idle":
        time.sleep(2)
    """
    )
    roles = ["killed", "fork", "idle", *["busy"] * 5]
    processes = [
        python(program, str(tmp_path), role, env={**os.environ, "RANK": str(rank)})
        for rank, role in enumerate(roles)
    ]
    elected = wait_for(
        lambda: (found := recorders(shm)) and list(tmp_path.glob("run/*#*/*.arrows")) and found,
        what="the first file",
    )
    others: set[int] = set()
    while any(p.poll() is None for p in processes):
        others.update(set(recorders(shm)) - set(elected))
        time.sleep(0.02)
    for process, role in zip(processes, roles, strict=True):
        _, err = process.communicate()
        assert process.returncode == (-9 if role == "killed" else 0), err
    wait_recorded(shm)
    # Losers of the election leave by themselves; the winner stays to the end.
    assert not others
    log = (
        (tmp_path / "run" / "recorder.log").read_text()
        if (tmp_path / "run" / "recorder.log").exists()
        else ""
    )
    assert "failed" not in log
    run = tmp_path / "run"
    for rank, role in enumerate(roles):
        folder = next(run.glob(f"*#{rank}"))
        about = process_file(folder)
        assert about["state"] == ("died" if role == "killed" else "closed")
        assert not list(folder.glob("*.arrows"))
        names = Counter(read_table(folder, "spans")["name"].to_pylist())
        wanted = 15_001 if role == "killed" else 20_000
        assert names["work"] + about["lost"]["records"] == wanted
        assert names["last words"] == (role == "killed")
        assert names["child"] == 0
    child = next(run.glob(f"*#{roles.index('fork')}.*"))
    assert Counter(read_table(child, "spans")["name"].to_pylist()) == {"child": 500}
    assert process_file(child)["role"] == "process"
    nodes = [p for p in run.iterdir() if p.is_dir() and "#" not in p.name]
    assert len(nodes) == 1


def test_a_process_that_dies_at_once_leaves_its_records(shm: Path, tmp_path: Path) -> None:
    program = (
        START
        + """
    with haiprof.range("only"):
        pass
    os.kill(os.getpid(), 9)
    """
    )
    process = python(program, str(tmp_path))
    process.communicate()
    assert process.returncode == -9
    folder = wait_for(lambda: next(tmp_path.glob("run/*#0/process.json"), None), what="a folder")
    wait_recorded(shm)
    assert read_table(folder.parent, "spans")["name"].to_pylist() == ["only"]
    assert process_file(folder.parent)["state"] == "died"
    texts = read_table(folder.parent, "events")["text"].to_pylist()
    assert any("without a goodbye" in text for text in texts)


def test_a_killed_recorder_is_replaced_and_nothing_is_lost_or_doubled(
    shm: Path, tmp_path: Path
) -> None:
    program = (
        START
        + """
    n = 0
    def push(count):
        global n
        for _ in range(count):
            haiprof.mark("n", n)
            n += 1
    push(1000)
    haiprof.flush()
    for _ in range(5):
        push(700)
        time.sleep(0.3)
        print("kill", flush=True)
        sys.stdin.readline()
        push(300)
        haiprof.start()
        haiprof.flush()
    haiprof.stop()
    print("n", n)
    """
    )
    process = python(program, str(tmp_path), stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    killed = []
    for line in process.stdout:
        if line == "kill\n":
            # A second one may be there for half a second, to find that it is not needed.
            pid = the_recorder(shm)
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            process.stdin.write("\n")
            process.stdin.flush()
        else:
            pushed = int(line.split()[1])
    process.wait()
    assert process.stderr is not None
    assert process.returncode == 0, process.stderr.read()
    wait_recorded(shm)
    assert len(set(killed)) == 5
    folder = next(tmp_path.glob("run/*#0"))
    assert [p.name for p in tmp_path.glob("run/*#0*")] == [folder.name]
    samples = read_table(folder, "samples").to_pylist()
    values = [row["value"] for row in samples if row["metric"] == "n"]
    assert sorted(values) == [float(i) for i in range(pushed)]
    assert process_file(folder)["lost"]["records"] == 0


def test_ctrl_c_on_the_process_group_does_not_end_the_recorder(shm: Path, tmp_path: Path) -> None:
    program = (
        START
        + """
    haiprof.flush()
    try:
        print("ready", flush=True)
        time.sleep(30)
    except KeyboardInterrupt:
        with haiprof.range("after ctrl-c"):
            sys.stdin.readline()
    """
    )
    process = python(program, str(tmp_path), stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    before = the_recorder(shm)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.1)
    assert the_recorder(shm) == before
    process.communicate("\n", timeout=60)
    assert process.returncode == 0
    wait_recorded(shm)
    assert "after ctrl-c" in read_table(next(tmp_path.glob("run/*#0")), "spans")["name"].to_pylist()


def test_a_fork_writes_nothing_into_its_parents_records(shm: Path, tmp_path: Path) -> None:
    program = (
        START
        + """
    for i in range(2000):
        with haiprof.range("parent"):
            pass
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            for i in range(1000):
                with haiprof.range("child"):
                    pass
            haiprof.stop()
            os._exit(0)
        children.append(pid)
    quiet = os.fork()
    if quiet == 0:
        os._exit(0)
    for pid in (*children, quiet):
        os.waitpid(pid, 0)
    haiprof.stop()
    """
    )
    run_python(program, str(tmp_path))
    wait_recorded(shm)
    folders = sorted(tmp_path.glob("run/*#0*"))
    assert len(folders) == 4  # the child that recorded nothing has no ring
    for folder in folders:
        names = Counter(read_table(folder, "spans")["name"].to_pylist())
        assert names == ({"parent": 2000} if folder.name.endswith("#0") else {"child": 1000})


def in_small_disk(program: str, size: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program with a tmpfs of ``size`` on ``$DISK``, in a mount namespace of its own."""
    import sys
    import textwrap

    script = 'mkdir -p "$DISK" && mount -t tmpfs -o size=' + size + ' tmpfs "$DISK" && exec "$@"'
    probe = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "true"], capture_output=True
    )
    prefix = ["unshare", "--user", "--map-root-user", "--mount"]
    if probe.returncode != 0:
        prefix = ["unshare", "--mount"]
        if os.getuid() != 0:
            pytest.skip("needs user namespaces or root to mount a small tmpfs")
    return subprocess.run(
        [*prefix, "sh", "-c", script, "sh", sys.executable, "-c", textwrap.dedent(program),
         *arguments],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_full_disk_pauses_the_writing_and_not_the_job(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISK", str(tmp_path / "disk"))
    program = (
        START
        + """
    import json, pathlib
    disk = pathlib.Path(sys.argv[1])
    def push(name, count):
        for i in range(count):
            with haiprof.range(name):
                pass
            if i % 64 == 0:
                time.sleep(0.001)
    push("before", 2000)
    files = haiprof.flush()
    assert files, files
    filler = open(disk / "filler", "wb", buffering=0)
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass
    push("full", 5000)
    haiprof.flush(timeout=5)
    time.sleep(1.5)
    os.unlink(disk / "filler"); filler.close()
    time.sleep(2.5)
    push("after", 2000)
    haiprof.flush()
    haiprof.stop()
    import pyarrow as pa
    out = {}
    for folder in disk.glob("run/*/"):
        for table in ("spans", "events"):
            for path in sorted(folder.glob(f"{table}-*.arrow")):
                t = pa.ipc.open_file(str(path)).read_all()
                column = "name" if table == "spans" else "text"
                out.setdefault(table, []).extend(t[column].cast(pa.utf8()).to_pylist())
    lost = json.loads(next(disk.glob("run/*#0/process.json")).read_text())["lost"]["records"]
    print(json.dumps({"tables": out, "lost": lost}))
    """
    )
    done = in_small_disk(program, "2m", str(tmp_path / "disk"))
    assert done.returncode == 0, done.stderr
    assert "No space left" in done.stderr  # flush says so, once
    result = json.loads(done.stdout.splitlines()[-1])
    names = Counter(result["tables"]["spans"])
    assert names["before"] == 2000
    assert names["after"] == 2000
    assert names["full"] + result["lost"] == 5000
    events = [t for t in result["tables"]["events"] if "writing is paused" in t]
    assert len(events) == 1
    assert any("writing goes on" in t for t in result["tables"]["events"])


def test_a_full_tmpfs_is_an_error_at_start_and_never_a_sigbus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "shm"
    monkeypatch.setenv("DISK", str(disk))
    monkeypatch.setenv("HAIPROF_SHM_DIR", str(disk))
    program = (
        START
        + """
    for _ in range(100_000):
        with haiprof.range("x"):
            pass
    print("recording", session.recording)
    """
    )
    done = in_small_disk(program, "3m", str(tmp_path / "logs"))
    assert done.returncode == 0
    assert done.stdout == "recording False\n"
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr
    assert "larger /dev/shm" in done.stderr
    # A little larger, it is shared: half of it stays for the job.
    done = in_small_disk(program, "10m", str(tmp_path / "logs"))
    assert (done.returncode, done.stdout) == (0, "recording True\n")
    assert done.stderr.count("\n") == 1
    assert "takes 5 MiB" in done.stderr
    # The control: a file that is only made longer, not reserved, ends the process by a signal.
    control = """
    import os, sys, mmap
    fd = os.open(sys.argv[1] + "/sparse", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 16 << 20)
    m = mmap.mmap(fd, 16 << 20)
    for at in range(0, 16 << 20, 4096):
        m[at] = 1
    """
    assert in_small_disk(control, "4m", str(disk)).returncode in (-signal.SIGBUS, 128 + 7)


def test_a_read_only_log_directory_is_one_line_and_the_job_runs_on(
    shm: Path, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    program = (
        START
        + """
    with haiprof.range("x"):
        pass
    haiprof.mark("y"); haiprof.flush(); haiprof.stop()
    print("done", session.recording)
    """
    )
    process = python(program, str(blocked / "logs"))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "done False\n")
    assert err.count("\n") == 1
    assert str(blocked) in err
    assert "HAIPROF_LOG_DIR" in err
    assert not list(shm.rglob("*.ring"))


def test_nothing_is_left_in_shared_memory(shm: Path, tmp_path: Path) -> None:
    run_python(START + "    haiprof.mark('x')\n", str(tmp_path))
    wait_recorded(shm)
    assert [p for p in shm.rglob("*") if p.is_file() or p.is_fifo()] == []


def test_the_recorder_holds_nothing_of_the_job(shm: Path, tmp_path: Path) -> None:
    program = (
        START
        + """
    print(os.getpid(), flush=True)
    time.sleep(30)
    """
    )
    with (tmp_path / "held").open("wb") as held, mmap.mmap(-1, 4096):
        process = python(program, str(tmp_path), pass_fds=(held.fileno(),))
        assert process.stdout is not None
        job = int(process.stdout.readline())
        (pid,) = wait_for(lambda: recorders(shm), what="a recorder")
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        own = Path(f"/proc/{job}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[1]) != job  # not its child
        assert stat[2] != own[2]  # not in its process group
        targets = []
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it has just closed it
                targets.append(str(descriptor.readlink()))
        assert str(tmp_path / "held") not in targets
        assert not any(t.startswith("pipe:") for t in targets)
        process.kill()
        process.communicate()
    wait_recorded(shm)
