"""Device phases of a job whose streams share one hardware queue: CUDA_DEVICE_MAX_CONNECTIONS=1.

Megatron and Transformer Engine want it so. An event on any stream then waits behind all that was
launched before it, and the launch queue of this job is long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.estimates import quantile
from gpu.part import Part, main, scratch

from gpu import jobs, recorded

SECONDS = 6.0
#: A phase that is known to within so much, ns, can be given its kernels.
NEAR = 1_000_000
VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
#: Of these counts, where the core has them.
COUNTS = ("device_spans", "spans_unresolved", "spans_with_one_end", "boundaries_exhausted",
          "boundaries_left_out")  # fmt: skip


def measure(part: Part) -> None:
    part.needs_gpu()
    for connections in ("1", ""):
        os.environ.pop(VARIABLE, None)
        if connections:
            os.environ[VARIABLE] = connections
        what = f"{VARIABLE}={connections}" if connections else "by default"
        part.piece(what, one, part, what)


def one(part: Part, what: str) -> None:
    found = part.child("job", seconds=35)
    resolved, unresolved = found["spans"], found["counts"]["spans_unresolved"]
    part.row(f"{what}: spans of phases", resolved, "spans", target="> 0", met=resolved > 0,
             note=f"in {found['steps']} steps; {found['counts']}")  # fmt: skip
    part.row(f"{what}: spans that were not resolved",
             100 * unresolved / max(1, resolved + unresolved), "%")  # fmt: skip
    if found["uncertainties"]:
        near = sum(ns <= NEAR for ns in found["uncertainties"])
        share = 100 * near / len(found["uncertainties"])
        part.row(f"{what}: spans known to within {NEAR / 1e6:g} ms", share, "%", target=">= 95",
                 met=share >= 95)  # fmt: skip
        part.row(f"{what}: uncertainty of a span, median",
                 quantile(found["uncertainties"], 0.5) / 1e3, "us",
                 note=f"95 %: {quantile(found['uncertainties'], 0.95) / 1e3:.1f} us")  # fmt: skip
    part.row(f"{what}: CPU time of haiprof's thread", found["thread_percent"], "% of a core")
    part.fact(f"{what}: events", found["events"])


def _job(device: str, words: Sequence[str]) -> dict[str, Any]:
    import torch

    import haiprof
    from haiprof import _core

    with scratch() as folder:
        haiprof.start(folder, run=recorded.RUN, kernels="off", ring_mib=16)
        machine = jobs.Machine(device)
        training = jobs.training("transformer", machine)
        side, gradients = torch.cuda.Stream(), torch.zeros(1 << 28, device=device)

        def step() -> None:
            # As gradients are sent: beside the backward pass, and waited for by the optimizer.
            training.forward().backward()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(4):
                    gradients.add_(1.0)
            torch.cuda.current_stream().wait_stream(side)
            training.optimizer.step()
            training.optimizer.zero_grad()

        steps = 0
        begin = time.monotonic()
        while time.monotonic() < begin + SECONDS:
            step()
            steps += 1
        machine.wait()
        took = time.monotonic() - begin
        counts = dict(_core.gpu_counts())
        haiprof.stop()
        if not recorded.closed(Path(folder), 15):
            raise RuntimeError("haiprof's recorder has not closed its files after 15 s")
        spans = recorded.rows(Path(folder), "device_spans")
        events = recorded.events(Path(folder))
    return {
        "spans": len(spans),
        "steps": steps,
        "uncertainties": [s["uncertainty"] for s in spans if s.get("uncertainty") is not None],
        "counts": {name: counts.get(name, 0) for name in COUNTS},
        "thread_percent": 100 * counts.get("thread_ns", 0) / 1e9 / took,
        "events": events,
    }


if __name__ == "__main__":
    main(measure, {"job": _job})
