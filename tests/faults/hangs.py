"""Plants hangs, and scores what the recorder says by itself, and what ``haiprof hang`` says.

    PYTHONPATH=tests python -m faults.hangs --seeds 0,1 --kinds lock,stopped --at-once 3

A hang is found where the culprits and the kind that are named first are the true ones.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import warm_programs
from faults.hang_kinds import KINDS, Case, drawn
from faults.score import wilson
from launched import free_port, recorded
from recording import wait_for

from haiprof.control.find import with_pids
from haiprof.control.hang import by_run, look_at_ranks, verdict

#: What lasts less is no hang, s.
HANG_AFTER = 2.0
#: How long it may take until it is said beside that, s: this machine may be busy.
LATEST = 90.0
#: How long the ranks that a command starts may take to import torch, s.
STARTS = 400.0


@dataclass(frozen=True)
class Row:
    """What was said of one hang: by the recorder, and by the command; None: nothing.

    Attributes:
        late_s: how long after it had become one the recorder said so, s.
    """

    case: Case
    said: dict[str, Any] | None
    asked: dict[str, Any] | None
    late_s: float | None = None

    def right(self, hang: dict[str, Any] | None) -> bool:
        """Say whether a hang is the true one."""
        if hang is None or hang["kind"] not in self.case.kind.kinds:
            return False
        who = self.case.culprits
        return len(hang["ranks"]) > 1 if who is None else tuple(hang["ranks"]) == who


@contextlib.contextmanager
def job(case: Case, folder: Path) -> Iterator[list[int]]:
    """Run a job that hangs; gives the pids of its ranks, or of the command that started them."""
    environment = recorded(folder / "logs", run=folder.name, hang_after=HANG_AFTER)
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(case.ranks))
    # Whoever has not joined is only known to have started by its environment.
    if "rendezvous" in case.kind.kinds:
        with _launched(case, folder, environment) as pids:
            yield pids
        return
    programs = []
    try:
        for rank in range(case.ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            program = warm_programs.start(case.program, env=environment | own, cwd=folder)
            for stream in (program.stdout, program.stderr):
                threading.Thread(target=_keep, args=(stream, folder / f"{rank}.txt")).start()
            programs.append(program)
        yield [program.pid for program in programs]
    finally:
        _end([program.pid for program in programs])
        for program in programs:
            program.wait()


def _keep(stream: Any, file: Path) -> None:
    with stream, contextlib.suppress(OSError), file.open("a") as kept:
        shutil.copyfileobj(stream, kept)


@contextlib.contextmanager
def _launched(case: Case, folder: Path, environment: dict[str, str]) -> Iterator[list[int]]:
    (folder / "train.py").write_text(case.program)
    ranks = [r for r in range(case.ranks) if not (case.kind.missing and r == case.rank)]
    each = [f"RANK={rank} LOCAL_RANK={rank} {sys.executable} train.py &" for rank in ranks]
    for name in [name for name in environment if name.startswith("HAIPROF_ENABLED")]:
        del environment[name]
    words = [sys.executable, "-m", "haiprof.cli.main", "run", "--run", folder.name]
    words += ["--log-dir", "logs", "--hang-after", str(HANG_AFTER)]
    words += ["--", "sh", "-c", "\n".join([*each, "wait"])]
    with (folder / "0.txt").open("wb") as out:
        command = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield [command.pid]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        command.wait()


def _end(pids: Sequence[int]) -> None:
    below = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", ",".join(map(str, pids))], capture_output=True, check=False
    ).stdout.split()
    for pid in [*pids, *map(int, below)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run(case: Case, keep: Path) -> Row:
    """Run a job, and wait for what is said of it."""
    folder = keep / f"{case.name}-{case.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    patience = HANG_AFTER * (10 if case.kind.patient else 1)
    with job(case, folder) as pids:
        begun, logs = folder / "begun", folder / "logs" / folder.name
        try:
            said = wait_for(
                lambda: begun.exists() and begun.read_text(),
                STARTS,
                f"the hang of {case.name}, seed {case.seed}",
            )
            since = float(said.split()[0])
            wait_for(lambda: time.time() > since + 2 * HANG_AFTER, LATEST)
            asked = _asked(case, pids)
            file = wait_for(lambda: next(logs.glob("hang-*.json"), None), LATEST + 2 * patience)
        except AssertionError as error:
            wrote = [path.read_text()[-2000:] for path in folder.glob("*.txt")]
            print(folder.name, error, *wrote, flush=True)
            return Row(case, None, asked if begun.exists() else None)
        known = json.loads(file.read_text())
    return Row(case, known["hang"], asked, known["seen_ns"] / 1e9 - since - patience)


def _asked(case: Case, pids: Sequence[int]) -> dict[str, Any] | None:
    """Return what ``haiprof hang`` says; what may only be late is asked about until it is not."""

    def hang() -> dict[str, Any] | None:
        (looked,) = by_run(look_at_ranks(with_pids(pids), HANG_AFTER)).values() or [[]]
        found = verdict(looked, HANG_AFTER).hang
        return None if found is None else found.as_json()

    with contextlib.suppress(AssertionError):
        found: dict[str, Any] = wait_for(hang, LATEST, "an answer")
        return found
    return None


def table(rows: Sequence[Row]) -> str:
    """Return the score as a table of Markdown."""
    text = "| hang | runs | said by itself | by `haiprof hang` | said instead |\n"
    text += "|---|---|---|---|---|\n"
    for name in KINDS:
        mine = [row for row in rows if row.case.name == name]
        if mine:
            text += f"| `{name}` | {_cells(mine)} | {_instead(mine)} |\n"
    low, high = wilson(sum(row.right(row.said) for row in rows), len(rows))
    text += f"| **all** | {_cells(rows)} | by itself {low:.0%} to {high:.0%} (95 %) |\n"
    late = sorted(row.late_s for row in rows if row.late_s is not None)
    if late:
        text += (
            f"\nSaid {late[len(late) // 2]:.0f} s (at most {late[-1]:.0f} s) after it was one.\n"
        )
    return text


def _cells(rows: Sequence[Row]) -> str:
    said = sum(row.right(row.said) for row in rows)
    asked = sum(row.right(row.asked) for row in rows)
    return f"{len(rows)} | {said} | {asked}"


def _instead(rows: Sequence[Row]) -> str:
    wrong = [hang for row in rows for hang in (row.said, row.asked) if not row.right(hang)]
    return ", ".join(sorted({"nothing" if hang is None else hang["kind"] for hang in wrong}))


def main(words: Sequence[str] | None = None) -> int:
    """Plant, score and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kinds", help="kinds, with commas between (default: all)")
    parser.add_argument("--seeds", default="0", help="seeds, with commas between")
    parser.add_argument("--at-once", type=int, default=3, help="jobs that run at a time")
    parser.add_argument("--keep", type=Path, default=Path("build/hangs"), help="where runs are")
    parser.add_argument("--minutes", type=float, default=50.0, help="after which none is begun")
    given = parser.parse_args(words)
    kinds = given.kinds.split(",") if given.kinds else list(KINDS)
    cases = [drawn(kind, int(seed)) for seed in given.seeds.split(",") for kind in kinds]
    until = time.monotonic() + 60 * given.minutes
    rings = tempfile.mkdtemp(prefix="haiprof-test-", dir="/dev/shm")
    os.environ["HAIPROF_SHM_DIR"] = rings
    keep = given.keep.resolve()

    def one(case: Case) -> Row | None:
        if time.monotonic() > until:
            return None
        row = run(case, keep)
        for whose, hang in (("recorder", row.said), ("command", row.asked)):
            if not row.right(hang):
                said = "nothing" if hang is None else f"{hang['kind']}: {hang['problem']}"
                print(
                    f"{case.name}, seed {case.seed}, rank {case.rank}: {whose}: {said}", flush=True
                )
        return row

    try:
        with ThreadPoolExecutor(given.at_once) as pool:
            rows = [row for row in pool.map(one, cases) if row is not None]
    finally:
        shutil.rmtree(rings, ignore_errors=True)
    print(table(rows))
    (keep / "score.md").write_text(table(rows), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
