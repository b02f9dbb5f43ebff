"""What is said of a job of which one rank ends, for each way to end: who, how, and what follows.

docs/diagnosis.md has the same as a table.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from commands import start_haiprof
from launched import free_port, torchrun
from recording import wait_for

from haiprof import Analyzer

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("shm")]

PATIENCE = 240.0
#: Ends the other ranks once one has failed, as launchers do, and needs no torch for that.
LAUNCHER = """
import os, subprocess, sys, time
place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1], "WORLD_SIZE": "2"}
ranks = [
    subprocess.Popen([sys.executable, "train.py"],
                     env=os.environ | place | {"RANK": str(n), "LOCAL_RANK": str(n)})
    for n in range(2)
]
while None in [rank.poll() for rank in ranks]:
    if any(rank.returncode for rank in ranks):
        time.sleep(0.5)
        for rank in ranks:
            rank.terminate()
    time.sleep(0.05)
sys.exit(any(rank.returncode for rank in ranks))
"""
TRAIN = """
import ctypes, os, pathlib, resource, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

torch.set_num_threads(1)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
ME = int(os.environ["RANK"])
FIRST = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, number):
        {item}
        return torch.randn(8)


def end():
    {ends}


{before}
dist.init_process_group("gloo", timeout=timedelta(seconds={timeout}))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, batch in enumerate(torch.utils.data.DataLoader(Data(), 4, num_workers={workers})):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    time.sleep(0.02)
    if step == 20:
        pathlib.Path(f"there-{{ME}}").write_text(str(os.getppid()))
        if ME == 1:
            end()
    if step == {steps}:
        break
dist.barrier()
dist.destroy_process_group()
"""


class Way(NamedTuple):
    """A way in which rank 1 ends in the middle, and what is said of it."""

    #: What it does after its 21st step.
    ends: str
    #: Begins the line of the end: a regular expression.
    said: str
    kind: str | None
    #: A part of its life that it has.
    part: str = "lost"
    ranks: tuple[int, ...] = (1,)
    before: str = ""
    item: str = "pass"
    timeout: int = 120
    steps: int = 900
    #: Sent by the user, to the group of `haiprof run` or to the launcher alone.
    sent: int = 0
    #: Options of torchrun; None: another launcher, which is faster.
    torchrun: tuple[str, ...] | None = None


FIRST = r"Rank 1 on \S+ failed first, at \d\d:\d\d:\d\d UTC after 2[01] steps: "
#: The other rank misses it, or was ended before it noticed.
OTHER = r"; 1 other (lost its connection|was then terminated)$"
WAYS = {
    "SIGKILL": Way(
        "os.kill(os.getpid(), 9)",
        FIRST + r"killed by SIGKILL \(kill -9, or the kernel's out-of-memory killer\)" + OTHER,
        "crash",
    ),
    "SIGSEGV": Way(
        "ctypes.string_at(0)", FIRST + r"killed by SIGSEGV \(segmentation fault\)" + OTHER, "crash"
    ),
    "abort": Way("os.abort()", FIRST + r"killed by SIGABRT \(abort\)" + OTHER, "crash"),
    "exit(3)": Way("sys.exit(3)", FIRST + r"exit code 3" + OTHER, "crash"),
    "_exit(3)": Way("os._exit(3)", FIRST + r"exit code 3" + OTHER, "crash"),
    "exit(0)": Way(
        "sys.exit(0)",
        r"Rank 1 on \S+ ended before the others, at \S+ UTC after 2[01] steps: exit code 0"
        r"; 1 other lost its connection$",
        "left_early",
    ),
    "exception": Way(
        "raise ValueError('no loss')",
        FIRST + r"ValueError: no loss \(train\.py:{end}\), exit code 1" + OTHER,
        "exception",
    ),
    "before the group": Way(
        "pass",
        # The other one waits to be let in, and may not be recorded yet.
        r"Rank 1 on \S+ failed( first)?, at \S+ UTC: OSError: no such dataset "
        r"\(train\.py:{before}\), exit code 1(; 1 other was then terminated)?$",
        "exception",
        part="startup",
        before="if ME == 1: raise OSError('no such dataset')",
    ),
    "DataLoader": Way(
        "pass",
        r"Rank 1 on \S+ failed first, at \S+ UTC( after \d+ steps?)?: KeyError: Caught KeyError in "
        r"DataLoader worker process 0: KeyError: 'no label' \(train\.py:{item}\), exit code 1"
        + OTHER,
        "loader_worker_died",
        item="if ME == 1 and number == 60: raise KeyError('no label')",
    ),
    "allocation": Way(
        "torch.empty(1 << 50)",
        FIRST + r"RuntimeError: .*can't allocate memory.* \(train\.py:{end}\), exit code 1" + OTHER,
        "out_of_memory",
    ),
    "out of memory": Way(
        "kept = [b'x' * (8 << 20) for _ in range(1000)]",
        FIRST + r"killed by the kernel: out of memory \(cgroup limit 200 MiB\)" + OTHER,
        "out_of_memory",
        before="if ME == 1: pathlib.Path(os.environ['GROUP'], 'cgroup.procs').write_text('0')",
    ),
    "never comes": Way(
        "time.sleep(600)",
        r"Rank 1 never came to all_reduce number \d+ of group 0; rank 0 waited for \S+ s; rank 1 "
        r"was at end \(\S*train\.py:{end}\)\. Rank 0 on \S+ gave up waiting for the others first, "
        r"at \S+ UTC after 2[12] steps: RuntimeError: .*Timed out waiting 5000ms .*"
        r"; 1 other was then terminated$",
        "rank_never_arrived",
        part="hang",
        timeout=5,
    ),
    "Ctrl-C": Way(
        "pass",
        r"The job was interrupted, at \S+ UTC after \d+ steps: KeyboardInterrupt \(Ctrl-C\)$",
        None,
        sent=signal.SIGINT,
    ),
    "SIGTERM": Way(
        "pass",
        r"The command failed, at \S+ UTC: exit code 1; (2 ranks were|rank \d was) terminated, and "
        r"none failed before$",
        "preempted",
        ranks=(),
        sent=signal.SIGTERM,
        torchrun=(),
    ),
    "started again": Way(
        "if FIRST: raise ValueError('first try')",
        r"The job was started again after this: "
        + FIRST
        + r"ValueError: first try \(train\.py:{end}\), exit code 1"
        + OTHER,
        "restarted",
        # After a restart gloo now and then takes a rank's old address from the store.
        before="if FIRST: dist.init_process_group('gloo')\n"
        "dist.init_process_group = dist.barrier = dist.destroy_process_group = lambda *_, **__: 0\n"
        "if not FIRST: torch.nn.parallel.DistributedDataParallel = lambda model: model",
        steps=40,
        torchrun=("--max-restarts=1",),
    ),
}


def line_of(text: str, what: str) -> str:
    (number,) = (n for n, line in enumerate(text.splitlines(), 1) if line.strip() == what.strip())
    return str(number)


@pytest.mark.parametrize("name", WAYS)
def test_what_is_said_of_an_end(
    tmp_path: Path, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = WAYS[name]
    if name == "out of memory":
        monkeypatch.setenv("GROUP", str(request.getfixturevalue("memory_group")))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    script = TRAIN.format(**way._asdict(), workers=int(name == "DataLoader"))
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "launch.py").write_text(LAUNCHER)
    command: list[str] = [sys.executable, "launch.py", str(free_port())]
    if way.torchrun is not None:
        port = f"--master-port={free_port()}"
        command = torchrun("--nproc-per-node=2", port, *way.torchrun, "train.py")
    job = start_haiprof("run", "--run", "r", "--log-dir", "logs", "--", *command, cwd=tmp_path)
    try:
        if way.sent:
            _send(job, way.sent, tmp_path)
        _, err = job.communicate(timeout=PATIENCE)
    finally:
        job.kill()
    assert (job.returncode == 0) == (name == "started again"), err
    lines = [line[11:] for line in err.splitlines() if line.startswith("haiprof:   ")]
    places = {
        which: line_of(script, getattr(way, field).splitlines()[-1])
        for which, field in (("end", "ends"), ("before", "before"), ("item", "item"))
        if f"{{{which}}}" in way.said
    }
    said = re.sub(r"{(end|before|item)}", lambda found: places[found[1]], way.said)
    assert re.match(said, lines[2 if name == "started again" else 0]), err

    run = Analyzer(tmp_path / "logs/r")
    findings = run.findings()
    first = findings[0] if findings else None
    if way.kind is None:
        assert not [each for each in findings if each.ended]
    else:
        assert first is not None
        assert (first.kind, first.ranks) == (way.kind, way.ranks)
        assert first.ended == (name != "started again")
    goodput = run.goodput()
    spent = {part: ns / 1e9 for part, ns, _ in goodput.parts.iter_rows()}
    assert spent[way.part] > 0
    # On a machine that is busy, others may stand still, too.
    assert spent["hang"] > 4 or way.part != "hang"
    if name == "started again":
        (restart,) = goodput.restarts.iter_rows(named=True)
        assert (restart["attempt"], restart["rank"]) == (1, 1)
        assert f"The job was started again after this: {restart['reason']}" == lines[2]
        assert min(restart[part] for part in ("down_ns", "lost_ns", "startup_ns")) > 0


def _send(job: subprocess.Popen[str], number: int, folder: Path) -> None:
    """Send a signal once both ranks train: Ctrl-C to all, others to the launcher alone."""
    here = [folder / f"there-{rank}" for rank in range(2)]
    wait_for(lambda: all(file.exists() and file.read_text() for file in here), PATIENCE, "training")
    if number == signal.SIGINT:
        os.killpg(job.pid, number)
    else:
        os.kill(int(here[0].read_text()), number)
