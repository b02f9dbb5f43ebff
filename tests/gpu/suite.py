"""What needs a GPU, in one run: ``python -m gpu.suite RESULTS``, as run.sh starts it.

Every part is a process of its own with its own time limit. One that fails, hangs or crashes says so
with its reason, and the others go on. The results are written whenever a part has a new row. The
exit code is 0 when every part could measure or skipped itself on this machine; targets that are
missed are results, not failures.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu.install import Installed, install
from gpu.part import dying_with_us, own_rings, reason_of, scratch
from gpu.plan import ENOUGH, PLAN, Planned, chosen, together
from gpu.results import pack, parsed, short, write

#: Seconds between two looks for new rows.
LOOK = 0.2
#: What a run may take, s, and one whose parts come first.
IN_ALL, FIRST = 540.0, 360.0
#: Rings of several jobs at a time need so much of /dev/shm, bytes.
RINGS = 1 << 30
#: Where nothing is a measurement, a busy machine may take so much longer, s.
PATIENCE = 120.0
#: Lines of a part's stderr that are kept.
LOGGED = 200


class Suite:
    """The parts, the time they have and what they found."""

    def __init__(
        self, folder: Path, until: float, device: str, environment: dict[str, str],
        machine: dict[str, Any], installed: Future[Installed] | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.until = until
        self.device = device
        self.environment = environment
        self.results: dict[str, Any] = {
            "state": "running", "machine": machine, "parts": [], "waiting": [],
        }  # fmt: skip
        self.log: list[str] = []
        self._installed = installed
        self._lock = threading.Lock()
        #: Of parts that run: since when, and their file of rows.
        self._running: dict[str, tuple[Planned, float, Path]] = {}
        self._ended: list[dict[str, Any]] = []

    def run(self, plan: tuple[Planned, ...]) -> None:
        """Run the parts; the results are up to date all the time."""
        self.results["waiting"] = [planned.name for planned in plan]
        self.save()
        over = threading.Event()
        watching = threading.Thread(target=self._watch, args=(over,))
        watching.start()
        workers = max(2, 3 * (os.cpu_count() or 1) // 4)
        try:
            for piece in together(plan, everything=self.device == "cpu"):
                with ThreadPoolExecutor(min(len(piece), workers)) as pool:
                    list(pool.map(self.part, piece))
        finally:
            over.set()
            watching.join()
        self.results["state"] = "finished"
        self.save()

    def _watch(self, over: threading.Event) -> None:
        """Write the results when a part that runs has new rows."""
        seen: dict[str, int] = {}
        while not over.wait(LOOK):
            with self._lock:
                sizes = {name: out.stat().st_size
                         for name, (_, _, out) in self._running.items()}  # fmt: skip
            if sizes != seen:
                seen = sizes
                with contextlib.suppress(OSError):  # the next time, perhaps
                    self.save(None)

    def save(self, line: str | None = "") -> None:
        """Write what there is so far, so that a run that is cut off leaves it; then print it.

        Args:
            line: what to print before the summary; None: print nothing.
        """
        with self._lock:
            running = [
                {**_named(planned), **parsed(out.read_text()), "state": "running", "reason": "",
                 "seconds": round(time.monotonic() - begin, 1)}
                for planned, begin, out in self._running.values()
            ]  # fmt: skip
            order = [planned.name for planned in PLAN]
            parts = sorted([*self._ended, *running], key=lambda part: order.index(part["name"]))
            for part in parts:
                if part["name"] == "machine":
                    self.results["machine"].update(part["facts"])
            if self._installed is not None and self._installed.done():
                came = self._installed.result()
                self.results["machine"]["haiprof"] = came.reason or came.source
            begun = {part["name"] for part in parts}
            self.results["waiting"] = [n for n in self.results["waiting"] if n not in begun]
            self.results["parts"] = parts
            found = write(self.folder, self.results, self.log)
            if line is not None:
                # Again each time: of a long output only the end may be kept.
                print(*filter(None, (line, short(found))), sep="\n", flush=True)

    def part(self, planned: Planned) -> dict[str, Any]:
        """Run one part in a process of its own, for as long as it may take; keep what it found."""
        seconds, reason = self._time_for(planned)
        found = {**_named(planned), **parsed(""), "state": "skipped", "seconds": 0.0,
                 "reason": reason}  # fmt: skip
        with scratch() as folder:
            if not reason:
                try:
                    found = self._measured(planned, seconds, Path(folder))
                except Exception as error:  # no room for its files, say; the others go on
                    found |= {"state": "failed", "reason": reason_of(error)}
            with self._lock:
                # From here on the file of its rows may go away.
                self._running.pop(planned.name, None)
                self._ended.append(found)
                if "GPU_SUITE_FILES" in self.environment:
                    with contextlib.suppress(OSError):  # another part is writing into it
                        files = Path(self.environment["GPU_SUITE_FILES"])
                        pack(files, self.folder / "buffers.tar.gz")
        why = f": {found['reason']}" if found["reason"] else ""
        line = f"{planned.name}: {found['state']} ({found['seconds']:.0f} s){why}"
        self.log.append(line)
        self.save(line)
        return found

    def _time_for(self, planned: Planned) -> tuple[float, str]:
        """How long a part may take, s; or why it cannot run."""
        if planned.haiprof and self._installed is not None:
            reason = self._installed.result().reason
            if reason:
                return 0.0, reason
        wanted = planned.seconds
        left = self.until - time.time()
        if left < ENOUGH * wanted:
            return 0.0, f"{max(left, 0):.0f} s were left, and it takes {wanted:.0f} s"
        return left if planned.fills and self.device != "cpu" else min(wanted, left), ""

    def _measured(self, planned: Planned, seconds: float, folder: Path) -> dict[str, Any]:
        begin = time.monotonic()
        out, errors = folder / "out", folder / "errors"
        out.touch()
        with self._lock:
            self._running[planned.name] = planned, begin, out
        state, reason = self._process(planned, seconds, out, errors)
        found = parsed(out.read_text())
        lines = errors.read_text(errors="replace").splitlines()
        self.log += [f"{planned.name}: {line}" for line in lines[-LOGGED:]]
        if state == "done" and found["skipped"]:
            state, reason = "skipped", found["skipped"]
        elif state == "done" and found["failures"] and not (found["rows"] or found["facts"]):
            # No piece of it could be measured.
            state, reason = "failed", found["failures"][0]["reason"]
        return {**_named(planned), **found, "state": state, "reason": reason,
                "seconds": round(time.monotonic() - begin, 1)}  # fmt: skip

    def _process(
        self, planned: Planned, seconds: float, out: Path, errors: Path
    ) -> tuple[str, str]:
        """Return how it ended, and why if that was not as it should be."""
        patience = PATIENCE if self.device == "cpu" else 0.0
        command = [sys.executable, "-m", f"gpu.parts.{planned.module}", "--device", self.device,
                   "--seconds", str(seconds + patience), "--out", str(out),
                   "--options", planned.options]  # fmt: skip
        scratch = out.parent / "scratch"
        scratch.mkdir()
        environment = {**self.environment, "TMPDIR": str(scratch)}
        if "HAIPROF_SHM_DIR" in environment:
            # All runs have the same name, and runs of one name in one folder share a recorder.
            environment["HAIPROF_SHM_DIR"] = own_rings(environment["HAIPROF_SHM_DIR"], planned.name)
        with errors.open("w") as file:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True, preexec_fn=dying_with_us(),
            )  # fmt: skip
            try:
                code = process.wait(timeout=seconds + patience)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                # Whatever the part has started goes with it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                # One that hangs in the driver cannot be ended; the others go on.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)
        if code == 0:
            return "done", ""
        lines = [line for line in errors.read_text(errors="replace").splitlines() if line.strip()]
        said = lines[-1][:500] if lines else "it said nothing"
        if code is None:
            return "timeout", f"it took more than {seconds:.0f} s; {said}"
        if code < 0:
            return "failed", f"it was ended by {signal.Signals(-code).name}; {said}"
        return "failed", said


def _named(planned: Planned) -> dict[str, str]:
    return {"name": planned.name, "title": planned.title}


def commit(sources: Path) -> str:
    """The commit of the sources, or why it is not known; GPU_SUITE_COMMIT says it of a copy."""
    if "GPU_SUITE_COMMIT" in os.environ:
        return os.environ["GPU_SUITE_COMMIT"]
    try:
        done = subprocess.run(
            ["git", "-C", str(sources), "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True, text=True, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: {error}"
    return done.stdout.strip() or f"unknown: {done.stderr.strip()[:200]}"


def folder_for_rings() -> tuple[str, str]:
    """A folder for the rings of all jobs, and what is to be known about it."""
    base = os.environ.get("HAIPROF_SHM_DIR", "/dev/shm")
    free = shutil.disk_usage(base).free
    if free >= RINGS:
        return tempfile.mkdtemp(prefix="haiprof-gpu-", dir=base), f"{free >> 20} MiB free"
    folder = tempfile.mkdtemp(prefix="haiprof-gpu-")
    return folder, f"{free >> 20} MiB free, too little: rings lie in {folder}"


def main() -> int:
    """Run every part and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--begin", type=float, default=time.time(), help="Unix time")
    parser.add_argument("--sources", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--site", type=Path, help="where haiprof is to be installed")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", default="", help="groups and parts, with commas between")
    given = parser.parse_args()
    try:
        plan = chosen(given.only)
    except ValueError as error:
        parser.error(str(error))
    seconds = os.environ.get("SECONDS_IN_ALL", FIRST if given.only == "first" else IN_ALL)
    given.results.mkdir(parents=True, exist_ok=True)
    shm, said = folder_for_rings()
    machine = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(given.sources),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "device": given.device,
        "/dev/shm": said,
    }
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HAIPROF_")}
    with scratch() as files, ThreadPoolExecutor(1) as installing:
        environment |= {"HAIPROF_SHM_DIR": shm, "GPU_SUITE_FILES": files,
                        "GPU_SUITE_SOURCES": str(given.sources)}  # fmt: skip
        if given.device == "cpu":
            # Many jobs on few cores would wait for each other's threads.
            environment["OMP_NUM_THREADS"] = "1"
        installed = None
        if given.site is not None:
            wheel = os.environ.get("HAIPROF_WHEEL", "")
            installed = installing.submit(install, given.site, given.sources, wheel)
        suite = Suite(given.results.resolve(), given.begin + float(seconds), given.device,
                      environment, machine, installed)  # fmt: skip
        try:
            suite.run(plan)
        finally:
            shutil.rmtree(shm, ignore_errors=True)
    # A part that skips itself, as for want of a GPU, is no failure.
    return int(any(part["state"] != "done" and not part["skipped"]
                   for part in suite.results["parts"]))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
