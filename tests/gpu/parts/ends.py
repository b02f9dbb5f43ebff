"""How a job that records kernels ends: as it would without haiprof, and as soon."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu.part import Part, main, own_rings, scratch

from gpu import jobs, recorded

#: An end may take so much longer, s, than without haiprof.
LONGER = 2.0
ABREAST = 4


def _raise() -> None:
    raise SystemError("as it was told to")


def _fail_in_atexit() -> None:
    atexit.register(_raise)


def _handle_and_signal() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(5))
    os.kill(os.getpid(), signal.SIGTERM)


ENDS: dict[str, Callable[[], Any]] = {
    "return": lambda: None,
    "sys.exit(3)": lambda: sys.exit(3),
    "os._exit(4)": lambda: os._exit(4),
    "exception": _raise,
    "exception in atexit": _fail_in_atexit,
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGTERM, handled with sys.exit(5)": _handle_and_signal,
    "SIGINT": lambda: os.kill(os.getpid(), signal.SIGINT),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
}

#: Where there is no GPU these stand for all.
FEW = ["return", "exception", "SIGKILL"]


def measure(part: Part) -> None:
    wanted = list(ENDS) if part.device == "cuda" else FEW
    with scratch() as folder, ThreadPoolExecutor(ABREAST) as pool:
        jobs_of = {
            (end, how): pool.submit(ended, part, end, Path(folder, f"{number}-{how}"), how)
            for number, end in enumerate(wanted)
            for how in ("haiprof", "without")
        }
        for end in wanted:
            part.piece(end, tell, part, end, jobs_of[end, "haiprof"], jobs_of[end, "without"])


def tell(part: Part, end: str, ours: Any, without: Any) -> None:
    with_it, alone = ours.result(), without.result()
    note = f"{with_it['kernels']} kernels on disk"
    part.row(f"{end}: exit code", with_it["code"], "", target=f"= {alone['code']}, as without",
             met=with_it["code"] == alone["code"], note=note)  # fmt: skip
    longer = with_it["seconds"] - alone["seconds"]
    part.row(f"{end}: time to the end", with_it["seconds"], "s",
             target=f"<= {LONGER:g} longer than without", met=longer <= LONGER,
             note=f"{alone['seconds']:.3f} s without")  # fmt: skip


def ended(part: Part, end: str, folder: Path, how: str) -> dict[str, Any]:
    """Run a job to one end; its exit code, the seconds that the end took, and its kernels."""
    folder.mkdir()
    ready = folder / "ending"
    process = subprocess.Popen(
        [sys.executable, "-m", part.module, "--device", part.device, "--child", "job", end, how,
         str(folder)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=(folder / "stderr").open("w"),
    )  # fmt: skip
    try:
        # Without a GPU the machine may have much else to do.
        code = process.wait(timeout=min(40.0 if part.device == "cuda" else 120.0, part.left()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise RuntimeError(f"the job {how} did not end in time and was killed") from None
    gone = time.time()
    if not ready.exists():
        said = (folder / "stderr").read_text().splitlines()
        raise RuntimeError(f"the job {how} did not come to its end: {said[-1:]}")
    begun = float(ready.read_text())
    kernels = 0
    if how == "haiprof" and recorded.closed(folder, 15):
        rows = recorded.rows(folder, "kernels")
        kernels = sum(row["kind"] == "kernel" for row in rows)
    return {"code": code, "seconds": gone - begun, "kernels": kernels}


def _job(device: str, words: Sequence[str]) -> dict[str, Any]:
    end, how, folder = words
    if how == "haiprof":
        import haiprof

        rings = os.environ["HAIPROF_SHM_DIR"]
        os.environ["HAIPROF_SHM_DIR"] = own_rings(rings, Path(folder).name)

        haiprof.start(folder, run=recorded.RUN, kernels="all", budget=0.0)
    machine = jobs.Machine(device)
    jobs.training("small", machine).steps(10)
    machine.wait()
    # What is under way at the end is part of it.
    jobs.Launches(machine).eager(1000)
    Path(folder, "ending").write_text(str(time.time()))
    ENDS[end]()
    return {}


if __name__ == "__main__":
    main(measure, {"job": _job})
