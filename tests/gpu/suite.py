"""What needs a GPU, in one run: ``python -m gpu.suite RESULTS``, as run.sh starts it.

Every part is a process of its own with its own time limit. One that fails, hangs or crashes is told
with its reason, and the others go on. Results are written after each part. The exit code is 0 when
every part could measure; targets that are missed are results, not failures.
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
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from gpu.part import scratch
from gpu.results import parsed, write


class Planned(NamedTuple):
    """One part to run."""

    name: str
    title: str
    module: str
    seconds: float
    options: str = ""
    #: Runs beside others: it counts and looks, and no time that it measures is compared.
    beside: bool = False


#: In the order in which they run, and in which they are left out when time is short: from the end.
PLAN = (
    Planned("machine", "The machine", "machine", 30),
    Planned("counts", "A1 Kernels, against torch.profiler", "counts", 90,
            "transformer,resnet50"),
    Planned("overhead-resnet50", "A2 What a step costs more: ResNet-50", "overhead", 60,
            "resnet50"),
    Planned("overhead-transformer", "A2 What a step costs more: transformer", "overhead", 60,
            "transformer"),
    Planned("launches", "A2, B2 Cost per launch, and distortion on the GPU", "launches", 38),
    Planned("phases", "A3 Device phases", "phases", 36, "resnet50,transformer"),
    Planned("graphs", "A4 CUDA graphs and torch.compile", "counts", 90, "graph,compiled",
            beside=True),
    Planned("handover", "B1 torch.profiler before, meanwhile and after", "handover", 75,
            beside=True),
    Planned("correlations", "B5 Correlation ids and watermarks", "correlations", 60, beside=True),
    Planned("clock", "B6 CUPTI's clock around a torch.profiler session", "clock", 60, beside=True),
    Planned("privileges", "B8 GPM and PCIe counters without privileges", "privileges", 30,
            beside=True),
    Planned("forks", "B9 fork after CUDA is initialised", "forks", 60, beside=True),
    Planned("ends", "B10 Ends of a job", "ends", 75, beside=True),
    Planned("refusals", "B12 No buffer, and buffers thrown away", "refusals", 60, beside=True),
    Planned("capture", "C Recorded buffers", "capture", 60, beside=True),
    Planned("soak", "A5, B4 Many millions of kernels", "soak", 55),
    Planned("sampling", "haiprof's own sampler of GPUs", "sampling", 18),
    Planned("toggling", "B11 What is left after recording ended", "toggling", 32),
    Planned("flushes", "B3 FlushAll(0)", "flushes", 26),
    Planned("nvml", "B7 NVML and GPM", "nvml", 28),
)  # fmt: skip
#: A part is not started when less than this share of its time is left.
ENOUGH = 0.5


class Suite:
    """The parts, the time they have and what they found."""

    def __init__(self, folder: Path, until: float, device: str, environment: dict[str, str],
                 machine: dict[str, Any]) -> None:  # fmt: skip
        self.folder = folder
        self.until = until
        self.device = device
        self.environment = environment
        self.results: dict[str, Any] = {"machine": machine, "parts": []}

    def run(self, plan: tuple[Planned, ...]) -> None:
        """Run the parts; those beside each other that follow one another, together."""
        at = 0
        while at < len(plan):
            group = [plan[at]]
            at += 1
            while group[0].beside and at < len(plan) and plan[at].beside:
                group.append(plan[at])
                at += 1
            with ThreadPoolExecutor(len(group)) as pool:
                for done in as_completed([pool.submit(self.part, planned) for planned in group]):
                    self.tell(done.result())

    def tell(self, part: dict[str, Any]) -> None:
        """Write what there is so far, so that a run that is cut off leaves it."""
        order = [planned.name for planned in PLAN]
        self.results["parts"].append(part)
        self.results["parts"].sort(key=lambda found: order.index(found["name"]))
        if part["name"] == "machine":
            self.results["machine"].update(part["facts"])
        write(self.folder, self.results)
        reason = f": {part['reason']}" if part["reason"] else ""
        print(f"{part['name']}: {part['state']} ({part['seconds']:.0f} s){reason}", flush=True)

    def part(self, planned: Planned) -> dict[str, Any]:
        """Run one part in a process of its own, for as long as it may take."""
        told: dict[str, Any] = {"name": planned.name, "title": planned.title}
        left = self.until - time.time()
        seconds = min(planned.seconds, left)
        if seconds < ENOUGH * planned.seconds:
            return {**told, **parsed(""), "state": "skipped", "seconds": 0.0,
                    "reason": f"{max(left, 0):.0f} s were left, and it takes "
                              f"{planned.seconds:.0f} s"}  # fmt: skip
        begin = time.monotonic()
        with scratch() as folder:
            out, errors = Path(folder, "out"), Path(folder, "errors")
            out.touch()
            state, reason = self.process(planned, seconds, out, errors)
            found = parsed(out.read_text())
        if state == "done" and found["failures"] and not found["rows"]:
            # No piece of it could be measured.
            state, reason = "failed", found["failures"][0]["reason"]
        return {**told, **found, "state": state, "reason": reason,
                "seconds": round(time.monotonic() - begin, 1)}  # fmt: skip

    def process(self, planned: Planned, seconds: float, out: Path, errors: Path) -> tuple[str, str]:
        """Return how it ended, and why when that was not as it should."""
        command = [sys.executable, "-m", f"gpu.parts.{planned.module}", "--device", self.device,
                   "--seconds", str(seconds), "--out", str(out),
                   "--options", planned.options]  # fmt: skip
        scratch = out.parent / "scratch"
        scratch.mkdir()
        environment = {**self.environment, "TMPDIR": str(scratch)}
        with errors.open("w") as file:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(timeout=seconds)
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


def commit(sources: Path) -> str:
    """The commit of the sources, or why it is not known; a copy without its history is told it."""
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


def main() -> int:
    """Run every part and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--until", type=float, default=time.time() + 500, help="Unix time")
    parser.add_argument("--sources", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", default="", help="names of parts, with commas between")
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else [part.name for part in PLAN]
    unknown = sorted(set(wanted) - {part.name for part in PLAN})
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}")
    given.results.mkdir(parents=True, exist_ok=True)
    results = given.results.resolve()
    machine = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(given.sources),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "device": given.device,
        "free in /dev/shm, MiB": shutil.disk_usage("/dev/shm").free >> 20,
    }
    shm = tempfile.mkdtemp(prefix="haiprof-gpu-", dir="/dev/shm")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HAIPROF_")}
    environment |= {"HAIPROF_SHM_DIR": shm, "GPU_SUITE_RESULTS": str(results)}
    if given.device == "cpu":
        # Many jobs on few cores would wait for each other's threads.
        environment["OMP_NUM_THREADS"] = "1"
    suite = Suite(results, given.until, given.device, environment, machine)
    try:
        suite.run(tuple(part for part in PLAN if part.name in wanted))
    finally:
        shutil.rmtree(shm, ignore_errors=True)
    return int(any(part["state"] != "done" for part in suite.results["parts"]))


if __name__ == "__main__":
    sys.exit(main())
