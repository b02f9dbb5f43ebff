"""A recorded job that forks after CUDA was initialised, as DataLoader's workers do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu.part import Part, main, scratch

from gpu import jobs, modes, recorded

#: A child that has not ended after so long, s, hangs.
HANGS = 15.0


def measure(part: Part) -> None:
    result = part.child("job", "haiprof", seconds=55)
    for name, found in result["children"].items():
        part.check(f"{name}: ends as it should", found["as_wanted"],
                   f"{found['seconds']:.2f} s, {found['said']}")  # fmt: skip
    part.check("the parent goes on to record all kernels", result["after"] == result["before"] > 0,
               f"{result['before']} in the steps before, {result['after']} after")  # fmt: skip
    part.fact("DataLoader with two workers", result["batches"])
    part.fact("events", result["events"])


def forked(what: Callable[[], Any], code: int) -> dict[str, Any]:
    """Run something in a forked child and wait for its end."""
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            what()
        except SystemExit as leaving:
            os._exit(int(leaving.code or 0))
        except BaseException:
            os._exit(99)
        os._exit(0)
    while time.monotonic() < begin + HANGS:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            found = os.waitstatus_to_exitcode(status)
            return {"as_wanted": found == code, "seconds": time.monotonic() - begin,
                    "said": f"exit code {found}"}  # fmt: skip
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return {"as_wanted": False, "seconds": HANGS, "said": "it hung and was killed"}


def _record() -> None:
    import haiprof

    with haiprof.range("in the child"):
        time.sleep(0.01)
    haiprof.flush()


def _stop() -> None:
    import haiprof

    haiprof.stop()


def _leave() -> None:
    raise SystemExit(3)


def _job(device: str, words: Sequence[str]) -> dict[str, Any]:
    import torch

    import haiprof

    with scratch() as folder:
        haiprof.start(folder, run=recorded.RUN, kernels="all", budget=0.0, ring_mib=16)
        machine = jobs.Machine(device)
        training = jobs.training("small", machine)
        training.steps(10)
        machine.wait()

        def steps() -> int:
            before = modes.counts()["kernels"]
            training.steps(5)
            machine.wait()
            return modes.counts()["kernels"] - before

        before = steps()
        children = {
            "a child that does nothing": forked(lambda: None, 0),
            "a child that leaves with 3": forked(_leave, 3),
            "a child that computes on the CPU": forked(lambda: torch.ones(9).sum().item(), 0),
            "a child that records": forked(_record, 0),
            "a child that calls stop()": forked(_stop, 0),
            "a child that asks for the counts": forked(modes.counts, 0),
        }
        data = torch.utils.data.TensorDataset(torch.arange(64))
        loader = torch.utils.data.DataLoader(
            data, batch_size=8, num_workers=2, timeout=int(HANGS), multiprocessing_context="fork"
        )
        batches = sum(1 for _ in loader)
        after = steps()
        haiprof.stop()
        recorded.closed(Path(folder), 10)
        events = recorded.events(Path(folder))
    return {"before": before, "after": after, "children": children,
            "batches": f"{batches} of 8 batches came", "events": events}  # fmt: skip


if __name__ == "__main__":
    main(measure, {"job": _job})
